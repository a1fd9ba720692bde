//! The interfaces of a capture, and what all its threads share.
//!
//! Invariants: an interface has one slot, which is the number of its block in the file, and keeps it; slots
//! are filled by the threads that start captures and open NIs, read by the shards and the writer. No thread
//! waits for another.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, PoisonError};

use crate::locks::Mutex;

/// Interfaces that a capture can have, those that have gone included.
pub(super) const SLOTS: usize = 256;

/// What a captured frame begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An Ethernet header: frames of rings.
    Ethernet,
    /// An IP header: datagrams of sockets, with headers made for the capture.
    RawIp,
}

impl Link {
    /// Its number in capture files (tcpdump.org, link-layer header types).
    pub(super) fn number(self) -> u16 {
        match self {
            Self::Ethernet => 1,
            Self::RawIp => 101,
        }
    }
}

/// An interface, under the name that it had when it was first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureInterface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The header that its frames begin with.
    pub link: Link,
}

#[derive(Default)]
struct Slot {
    interface: OnceLock<CaptureInterface>,
    /// The interface's index, 0 when another interface has it now.
    index: AtomicU32,
    /// Its frames that found no room in a buffer.
    missed: AtomicU64,
}

/// What the threads of a capture share.
pub(super) struct Shared {
    slots: Box<[Slot]>,
    count: AtomicUsize,
    /// Whether the capture is to end.
    pub(super) stop: AtomicBool,
    /// Whether frames are still written.
    pub(super) is_running: AtomicBool,
    pub(super) written_bytes: AtomicU64,
    pub(super) frame_count: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            count: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            is_running: AtomicBool::new(true),
            written_bytes: AtomicU64::new(0),
            frame_count: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Gives an interface a slot, unless it has one. One thread at a time calls this. Whether there was room.
    pub(super) fn add(&self, interface: &CaptureInterface) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        for slot in &self.slots[..count] {
            let Some(known) = slot.interface.get() else { continue };
            if slot.index.load(Ordering::Relaxed) == interface.index && known.link == interface.link {
                if known == interface {
                    return true;
                }
                slot.index.store(0, Ordering::Relaxed);
            }
        }
        let Some(slot) = self.slots.get(count) else { return false };
        slot.interface.get_or_init(|| interface.clone());
        slot.index.store(interface.index, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
        true
    }

    /// The interfaces, in the order of their numbers.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = &CaptureInterface> {
        let count = self.count.load(Ordering::Acquire);
        self.slots[..count].iter().filter_map(|slot| slot.interface.get())
    }

    /// The number of an interface whose frames are wanted.
    pub(super) fn find(&self, index: u32, link: Link) -> Option<usize> {
        let count = self.count.load(Ordering::Acquire);
        self.slots[..count].iter().position(|slot| {
            slot.index.load(Ordering::Relaxed) == index
                && slot.interface.get().is_some_and(|interface| interface.link == link)
        })
    }

    pub(super) fn count_missed(&self, number: usize) {
        self.slots[number].missed.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames of an interface that found no room.
    pub(super) fn missed(&self, number: usize) -> u64 {
        self.slots[number].missed.load(Ordering::Relaxed)
    }

    /// Frames of all interfaces that found no room in a buffer.
    pub(super) fn missed_count(&self) -> u64 {
        self.slots.iter().map(|slot| slot.missed.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn set_failure(&self, failure: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, link: Link) -> CaptureInterface {
        CaptureInterface { index, name: name.to_owned(), link }
    }

    #[test]
    fn an_interface_has_one_number_for_each_link() {
        let shared = Shared::new();
        let [first, raw, second] = [
            interface(3, "eth0", Link::Ethernet),
            interface(3, "eth0", Link::RawIp),
            interface(4, "eth1", Link::Ethernet),
        ];
        for added in [&first, &raw, &second, &first, &raw] {
            assert!(shared.add(added));
        }
        let found: Vec<&CaptureInterface> = shared.interfaces().collect();
        assert_eq!(found, [&first, &raw, &second]);
        assert_eq!(shared.find(3, Link::RawIp), Some(1));
        assert_eq!(shared.find(4, Link::RawIp), None);
        assert_eq!(shared.find(0, Link::Ethernet), None);
    }

    /// The same index under another name is another interface, and the former one is no more.
    #[test]
    fn a_renamed_interface_gets_a_number_of_its_own() {
        let shared = Shared::new();
        for name in ["eth0", "lan0", "eth0"] {
            assert!(shared.add(&interface(3, name, Link::Ethernet)));
        }
        assert_eq!(shared.find(3, Link::Ethernet), Some(2));
        assert_eq!(shared.interfaces().count(), 3);
    }

    #[test]
    fn the_table_is_bounded() {
        let shared = Shared::new();
        let add = |index: usize| shared.add(&interface(index as u32, "eth0", Link::Ethernet));
        assert!((1..=SLOTS).all(add));
        assert!(!add(SLOTS + 1));
        assert!(add(SLOTS), "it has its slot");
    }
}
