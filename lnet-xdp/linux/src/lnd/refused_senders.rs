//! Where refused frames came from: the Ethernet addresses that their answers go back to.

use std::collections::VecDeque;

use lnet_core::lnd::NiId;
use lnet_io::netlink::Mac;
use lnet_wire::Nid;

/// Most senders that are remembered, the last ones: as many as may wait for an answer.
const SENDERS_MAX: usize = 64;
/// Where the source stands in an Ethernet header.
const SOURCE_OFFSET: usize = 6;

/// The senders of refused frames that came by rings: an answer that tells no secret needs no next hop of the
/// kernel's, which is asked for no address that a stranger has written into a frame.
///
/// The Ethernet address is the sender's, or that of the router that the frame came by, which has a way to
/// its source. Tags and bonds are the device's affair: an answer leaves by the NI that the frame came by.
#[derive(Default)]
pub(super) struct RefusedSenders(VecDeque<(NiId, Nid, Mac)>);

impl RefusedSenders {
    /// Remembers the sender of a frame that begins with `head`.
    pub(super) fn note(&mut self, ni: NiId, from: &Nid, head: &[u8]) {
        let source = head.get(SOURCE_OFFSET..).and_then(|rest| rest.first_chunk::<6>());
        // Groups send nothing (IEEE 802.3 section 3.2.3).
        let Some(source) = source.filter(|source| source[0] & 1 == 0 && **source != [0; 6]) else { return };
        if self.0.len() == SENDERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((ni, *from, *source));
    }

    /// The Ethernet address of the last sender with this NID, once.
    pub(super) fn take(&mut self, ni: NiId, to: &Nid) -> Option<Mac> {
        let index = self.0.iter().rposition(|(by, from, _)| *by == ni && from == to)?;
        self.0.remove(index).map(|(_, _, mac)| mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(host: u8) -> Nid {
        format!("10.0.0.{host}@xdp").parse().unwrap()
    }

    fn head(source: Mac) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1], &source[..], &[8, 0]].concat()
    }

    #[test]
    fn the_last_senders_are_remembered_and_each_once() {
        let mut senders = RefusedSenders::default();
        for host in 0..100 {
            senders.note(NiId(1), &nid(host), &head([2, 0, 0, 0, 0, host]));
        }
        assert_eq!(senders.0.len(), SENDERS_MAX);
        assert_eq!(senders.take(NiId(1), &nid(35)), None, "it was the last but 64");
        assert_eq!(senders.take(NiId(2), &nid(99)), None, "by another NI");
        assert_eq!(senders.take(NiId(1), &nid(99)), Some([2, 0, 0, 0, 0, 99]));
        assert_eq!(senders.take(NiId(1), &nid(99)), None);
        senders.note(NiId(1), &nid(98), &head([2, 0, 0, 0, 1, 98]));
        assert_eq!(senders.take(NiId(1), &nid(98)), Some([2, 0, 0, 0, 1, 98]), "it came from there last");
    }

    #[test]
    fn nothing_goes_back_to_a_group() {
        let mut senders = RefusedSenders::default();
        for source in [[0xFF; 6], [1, 0, 0x5E, 0, 0, 1], [0; 6]] {
            senders.note(NiId(1), &nid(1), &head(source));
        }
        senders.note(NiId(1), &nid(1), &[2; 11]);
        assert_eq!(senders.take(NiId(1), &nid(1)), None);
    }
}
