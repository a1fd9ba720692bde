//! Names of GETs that are for a part of their descriptor.
//!
//! A REPLY names what it answers by the handle that its GET has brought, and by nothing else. A GET for all
//! of a descriptor brings the descriptor's handle. One for a part brings a handle of its own: so GETs for
//! several parts may be under way at once, and a REPLY that comes late fills no other part.
//!
//! Invariants: a name is there from the start of its GET until the REPLY is taken, the GET has failed or the
//! descriptor is gone. A REPLY that is lost, to a descriptor without a threshold, is awaited for longer than
//! a transaction takes only while there are names left. The slots of names are behind those of descriptors:
//! no handle names both.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::MdPart;
use crate::collections::{Link, List, NONE, Slab, linked};
use crate::handle::SLOT_BITS;
use crate::time::Instant;

/// A part that a REPLY is to fill.
struct AwaitedPart {
    /// Slot of its descriptor.
    md: u32,
    part: MdPart,
    /// Neighbours among the parts of the same descriptor, or [`NONE`].
    newer: u32,
    older: u32,
    /// When its GET started.
    asked_at: Instant,
    link: Link,
}

/// Marks the order in which GETs started.
struct InOrder;

linked!(AwaitedPart, InOrder, link);

/// The parts of descriptors that REPLYs are to fill.
pub(super) struct AwaitedParts {
    parts: Slab<AwaitedPart>,
    /// All of them, the oldest first.
    order: List<InOrder>,
    /// The newest part of each descriptor, by slot, as its slot and one. Apart from the descriptors, each of
    /// which is a cache line; zeros, of which the kernel provides what is used.
    newest: Vec<u32>,
    /// The slot that the first name has in handles.
    first_name: u32,
}

impl AwaitedParts {
    /// Names for as many parts as there are descriptors, as far as handles can name them.
    pub(super) fn new(descriptors: u32) -> Self {
        let nameable = (1_u32 << SLOT_BITS).saturating_sub(descriptors);
        Self {
            parts: Slab::new(descriptors.min(nameable)),
            order: List::new(),
            newest: vec![0; descriptors as usize],
            first_name: descriptors,
        }
    }

    /// Awaits a part of a descriptor from now on: slot and generation of its name, if there is one left, or
    /// has been there for longer than `timeout`.
    pub(super) fn begin(
        &mut self,
        (now, timeout): (Instant, Duration),
        md: u32,
        part: MdPart,
    ) -> Option<(u32, u32)> {
        if self.parts.is_full() {
            self.end_lost(now, timeout);
        }
        let (older, link) = (self.newest[md as usize].wrapping_sub(1), Link::UNLINKED);
        let slot =
            self.parts.insert(AwaitedPart { md, part, newer: NONE, older, asked_at: now, link }).ok()?;
        self.order.push_back(&mut self.parts, slot);
        if older != NONE {
            self.parts[older].newer = slot;
        }
        self.newest[md as usize] = slot + 1;
        Some((self.first_name + slot, self.parts.generation(slot)))
    }

    /// The descriptor and the part of a name, if that is there.
    pub(super) fn find(&self, name: u32, generation: u32) -> Option<(u32, MdPart)> {
        let slot = name.checked_sub(self.first_name)?;
        let awaited = self.parts.holds(slot, generation).then(|| &self.parts[slot])?;
        Some((awaited.md, awaited.part))
    }

    /// Ends the oldest name if its REPLY is lost.
    #[cold]
    fn end_lost(&mut self, now: Instant, timeout: Duration) {
        let oldest = self.order.first();
        if self.parts.get(oldest).is_some_and(|part| part.asked_at + timeout <= now) {
            self.end(self.first_name + oldest);
        }
    }

    /// Ends a name that is there.
    pub(super) fn end(&mut self, name: u32) {
        let slot = name - self.first_name;
        self.order.remove(&mut self.parts, slot);
        let AwaitedPart { md, newer, older, .. } = self.parts.remove(slot);
        if newer == NONE {
            self.newest[md as usize] = older.wrapping_add(1);
        } else {
            self.parts[newer].older = older;
        }
        if older != NONE {
            self.parts[older].newer = newer;
        }
    }

    /// Ends all names of a descriptor.
    pub(super) fn end_all(&mut self, md: u32) {
        while let Some(newest) = self.newest[md as usize].checked_sub(1) {
            self.end(self.first_name + newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MDS: u32 = 4;
    /// Steps after which a REPLY is lost.
    const LOST_AFTER: u32 = 6;
    const TIMEOUT: Duration = Duration::from_nanos(LOST_AFTER as u64);

    proptest! {
        /// Names stand for what they were made for until they end, and none is lost.
        #[test]
        fn names_come_and_go(steps in proptest::collection::vec((0_u8..8, 0..MDS, 0_usize..8), 0..200)) {
            let mut parts = AwaitedParts::new(MDS);
            let mut model: Vec<(u32, (u32, u32), MdPart)> = Vec::new();
            let mut ended: Vec<(u32, u32)> = Vec::new();
            for (number, (step, md, which)) in (0_u32..).zip(steps) {
                match step {
                    0..=3 => {
                        let part = MdPart { offset_bytes: number, length_bytes: 1 };
                        let name = parts.begin((Instant(number.into()), TIMEOUT), md, part);
                        // The offset of a part says when it was asked for.
                        let is_lost = |part: &MdPart| part.offset_bytes + LOST_AFTER <= number;
                        if model.len() == MDS as usize && model.first().is_some_and(|first| is_lost(&first.2)) {
                            ended.push(model.remove(0).1);
                        }
                        prop_assert_eq!(name.is_some(), model.len() < MDS as usize);
                        model.extend(name.map(|name| (md, name, part)));
                    }
                    4..=6 if !model.is_empty() => {
                        let (_, name, _) = model.remove(which % model.len());
                        parts.end(name.0);
                        ended.push(name);
                    }
                    7 => {
                        parts.end_all(md);
                        ended.extend(model.iter().filter(|(of, ..)| *of == md).map(|(_, name, _)| *name));
                        model.retain(|(of, ..)| *of != md);
                    }
                    _ => {}
                }
                for (md, (slot, generation), part) in &model {
                    prop_assert!(*slot >= MDS, "a descriptor may have that slot");
                    prop_assert_eq!(parts.find(*slot, *generation), Some((*md, *part)));
                }
                for (slot, generation) in &ended {
                    prop_assert_eq!(parts.find(*slot, *generation), None);
                }
            }
        }
    }
}
