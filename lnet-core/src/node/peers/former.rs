//! NIDs that peers had until of late.
//!
//! What is on its way to such a NID may go to another NI of the peer, and what comes from it may be older
//! than the word of the peer that took it away. Invariants: a NID is remembered for as long as a message of
//! before may be under way; how many there are is bounded.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::Nid;

use super::peer_state::{CONFIGURED, LOCK_PRIMARY};
use super::{Peer, PeerTable};
use crate::time::Instant;

/// NIDs that are remembered: of more the oldest are forgotten.
const FORMER_MAX: usize = 1024;

/// A NID that was taken away from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node) struct LostNid {
    pub(in crate::node) nid: Nid,
    /// A NID that the peer still has.
    pub(in crate::node) other: Nid,
    /// Whether the peer itself has told so.
    pub(in crate::node) is_told: bool,
    /// Whether its node, asked at the NID, has said that it has it no more, or has said nothing.
    pub(in crate::node) is_moved: bool,
}

/// NIDs that peers had until of late.
#[derive(Default, Debug)]
pub(in crate::node) struct FormerNids {
    /// Lost NIDs, each with the time when it is forgotten. They stand in that order as long as the timeout
    /// stays.
    nids: VecDeque<(LostNid, Instant)>,
}

impl FormerNids {
    /// Remembers these for so long.
    pub(in crate::node) fn remember(
        &mut self,
        now: Instant,
        time: Duration,
        lost: impl IntoIterator<Item = LostNid>,
    ) {
        for lost in lost {
            self.nids.retain(|(former, _)| former.nid != lost.nid);
            for (former, _) in &mut self.nids {
                if former.other == lost.nid {
                    former.other = lost.other;
                }
            }
            if self.nids.len() >= FORMER_MAX {
                self.nids.pop_front();
            }
            self.nids.push_back((lost, now + time));
        }
    }

    /// Forgets those whose time is over; whether there were any.
    pub(in crate::node) fn forget(&mut self, now: Instant) -> bool {
        let before = self.nids.len();
        self.nids.retain(|(_, until)| *until > now);
        self.nids.len() != before
    }

    /// When the next one is to be forgotten.
    pub(in crate::node) fn next_end(&self) -> Option<Instant> {
        self.nids.iter().map(|(_, until)| *until).min()
    }

    /// A NID that was taken away, while what was sent before may still be under way.
    pub(in crate::node) fn get(&self, now: Instant, nid: &Nid) -> Option<&LostNid> {
        let found = self.nids.iter().find(|(former, until)| former.nid == *nid && *until > now);
        found.map(|(former, _)| former)
    }

    /// Notes that no node has a NID any more, as far as asking there tells; whether it is one that was taken
    /// away.
    pub(in crate::node) fn note_moved(&mut self, nid: &Nid) -> bool {
        let lost = self.nids.iter_mut().map(|(former, _)| former).find(|former| former.nid == *nid);
        lost.map(|lost| lost.is_moved = true).is_some()
    }

    /// Each with a NID that its peer still has, in the order of the NIDs.
    pub(in crate::node) fn others(&self) -> Arc<[(Nid, Nid)]> {
        self.pairs(|_| true)
    }

    /// NIDs of them that no node has any more, as far as asking there tells.
    pub(in crate::node) fn moved(&self) -> Arc<[(Nid, Nid)]> {
        self.pairs(|former| former.is_moved)
    }

    fn pairs(&self, is_one: impl Fn(&LostNid) -> bool) -> Arc<[(Nid, Nid)]> {
        let ones = self.nids.iter().map(|(former, _)| former).filter(|former| is_one(former));
        let mut pairs: Vec<_> = ones.map(|former| (former.nid, former.other)).collect();
        pairs.sort_unstable();
        pairs.into()
    }
}

impl PeerTable {
    /// Forgets the peer that was made of a NID alone, by a request: another peer's node has it.
    pub(in crate::node) fn forget_moved(&mut self, nid: &Nid) {
        let is_alone = |peer: &&Peer| peer.nis.len() == 1 && !peer.is(CONFIGURED) && !peer.is(LOCK_PRIMARY);
        if self.get(nid).filter(is_alone).is_some() {
            self.remove(nid);
        }
    }

    /// NIDs that peers have lost since this was asked last, and have others.
    pub(in crate::node) fn take_lost(&mut self) -> Vec<LostNid> {
        core::mem::take(&mut self.lost)
    }

    /// Leaves a peer those of its NIs that `stays` says, its primary one among them; that it loses the others
    /// is its own word, or the administrator's.
    pub(super) fn retain_nis(&mut self, nid: &Nid, is_told: bool, stays: impl Fn(&Nid) -> bool) {
        let lost = self.change(nid, |peer| {
            let other = peer.primary;
            let is_own = peer.is_own;
            // Messages of this node itself go by `lo`, whatever its peer has.
            let gone = peer.nis.extract_if(.., |ni| !stays(&ni.nid)).filter(|_| !is_own);
            gone.map(|ni| LostNid { nid: ni.nid, other, is_told, is_moved: false }).collect::<Vec<_>>()
        });
        self.lost.extend(lost.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::nid;

    const TIME: Duration = Duration::from_secs(50);

    fn lost(nid: Nid, other: Nid) -> LostNid {
        LostNid { nid, other, is_told: true, is_moved: false }
    }

    #[test]
    fn a_nid_leads_to_what_its_peer_has_now_and_is_forgotten_in_time() {
        let [first, second, third] = [1, 2, 3].map(|host| nid(1, host));
        let mut former = FormerNids::default();
        let start = Instant(0);
        former.remember(start, TIME, [lost(first, second)]);
        former.remember(start + TIME / 2, TIME, [lost(second, third)]);
        assert_eq!(*former.others(), [(first, third), (second, third)]);
        let known = |former: &FormerNids, at| [first, second].map(|nid| former.get(at, &nid).is_some());
        assert_eq!(known(&former, start + TIME / 2), [true, true]);
        assert_eq!(known(&former, start + TIME), [false, true]);
        assert_eq!(former.next_end(), Some(start + TIME));
        assert!(former.forget(start + TIME) && !former.forget(start + TIME));
        assert_eq!(*former.others(), [(second, third)]);
        former.remember(start + TIME, TIME, [lost(third, second)]);
        assert_eq!(*former.others(), [(second, second), (third, second)]);
    }

    #[test]
    fn the_oldest_make_room() {
        let numbered = |number: u32| Nid::from_small(2 << 48 | u64::from(number) << 8 | 1).unwrap();
        let mut former = FormerNids::default();
        for number in 0..FORMER_MAX as u32 + 1 {
            former.remember(Instant(0), TIME, [lost(numbered(number), nid(1, 1))]);
        }
        let is_known = |number| former.get(Instant(0), &numbered(number)).is_some();
        assert_eq!([0, 1, FORMER_MAX as u32].map(is_known), [false, true, true]);
    }
}
