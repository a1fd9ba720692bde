//! What a batch that has just arrived is about, told to the shard before its first message: shard and LND
//! have fetched some messages ahead what they would wait for once a message.
//!
//! Nothing that is told is checked, and nothing comes of it: a frame that turns out to be none costs a look
//! at an entry that no message asks for.

use lnet_core::lnd::{PrefetchHint, Uplink};
use lnet_io::memory::Memory;
use lnet_io::xsk;
use lnet_wire::frame::{FRAME_HEADER_BYTES, FrameHeader};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::SteerKey;
use lnet_wire::{Body, Header, Nid, ProcessId};

const BLANK: PrefetchHint = PrefetchHint { portal: 0, match_bits: 0, source: ProcessId::ANY };

/// Messages that are announced at once, of those that arrive in frames of their own.
pub(super) const FRAMES_MAX: usize = 64;

/// How many messages before the next but one each is fetched: what is known of a buffer, then the buffer's
/// beginning. The shard expects descriptors as far ahead as this
/// ([`lnet_core::lnd::PrefetchHints::expected_md`]).
const LOAN_DISTANCE: usize = 8;
const BYTES_DISTANCE: usize = 4;

/// PUTs and GETs that have arrived, `N` at most.
pub(super) struct Batch<const N: usize> {
    arrivals: [PrefetchHint; N],
    count: usize,
}

impl<const N: usize> Batch<N> {
    pub(super) const fn new() -> Self {
        Self { arrivals: [BLANK; N], count: 0 }
    }

    /// Adds the message that a frame begins, if it begins one; `datagram` holds its headers, is
    /// `length_bytes` long altogether, and came from there.
    #[inline]
    pub(super) fn add_frame(&mut self, from: Nid, datagram: &[u8], length_bytes: usize) {
        let Some((head, rest)) = datagram.split_first_chunk::<FRAME_HEADER_BYTES>() else { return };
        let Ok(header) = FrameHeader::decode(head, length_bytes) else { return };
        if header.short.is_some() {
            let SteerKey { portal, key, .. } = header.key;
            let source = ProcessId::lustre(from);
            return self.add_request(PrefetchHint { portal: portal.into(), match_bits: key, source });
        }
        if header.lnet_header_bytes() == 0 {
            return;
        }
        if let Some(Ok(lnet)) = rest.first_chunk::<LARGE_HEADER_BYTES>().map(Header::decode_large) {
            self.add(&lnet);
        }
    }

    /// Adds a message, if it is one that is matched and there is room.
    #[inline]
    pub(super) fn add(&mut self, lnet: &Header) {
        let (Body::Put { portal, match_bits, .. } | Body::Get { portal, match_bits, .. }) = lnet.body else {
            return;
        };
        self.add_request(PrefetchHint { portal, match_bits, source: lnet.source });
    }

    #[inline]
    fn add_request(&mut self, request: PrefetchHint) {
        if let Some(arrival) = self.arrivals.get_mut(self.count) {
            *arrival = request;
            self.count += 1;
        }
    }

    /// Tells of them. A single one would be waited for all the same.
    #[inline]
    pub(super) fn tell(&self, up: &mut impl Uplink, memory: &Memory) {
        if self.count > 1 {
            up.hint(&self.arrivals[..self.count], xsk::prefetch);
            // What the first ones would have had fetched while others were taken in.
            (0..=LOAN_DISTANCE).filter_map(|at| up.expected_md(at)).for_each(|md| memory.prefetch_loan(md));
            (0..=BYTES_DISTANCE).filter_map(|at| up.expected_md(at)).for_each(|md| memory.prefetch_bytes(md));
        }
    }
}

/// A message has come: has memory fetched for later ones that were announced.
#[inline]
pub(super) fn look_ahead(up: &impl Uplink, memory: &Memory) {
    if let Some(md) = up.expected_md(LOAN_DISTANCE) {
        memory.prefetch_loan(md);
    }
    if let Some(md) = up.expected_md(BYTES_DISTANCE) {
        memory.prefetch_bytes(md);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use lnet_core::handle::ShardId;
    use lnet_core::lnd::{NiId, Prefetch, PrefetchHints, RxId, Status, TxId, Verdict};
    use lnet_core::time::Instant;

    use super::*;

    /// A shard that knows the descriptors of all that was announced, and notes which ones it is asked for.
    #[derive(Default)]
    struct Foresight {
        announced: usize,
        next: usize,
        asked: RefCell<Vec<u32>>,
    }

    impl PrefetchHints for Foresight {
        fn wants_hints(&self) -> bool {
            true
        }

        fn hint(&mut self, arrivals: &[PrefetchHint], _: Prefetch) {
            self.announced = arrivals.len();
        }

        fn expected_md(&self, distance: usize) -> Option<u32> {
            let message = self.next + distance;
            let md = (message < self.announced).then_some(message as u32);
            self.asked.borrow_mut().extend(md);
            md
        }
    }

    impl Uplink for Foresight {
        fn header(&mut self, _: Instant, _: NiId, _: &Nid, _: RxId, _: &Header) -> Verdict {
            self.next += 1;
            Verdict::Drop
        }

        fn received(&mut self, _: Instant, _: RxId, _: Status) {}

        fn sent(&mut self, _: Instant, _: TxId, _: Status) {}
    }

    #[test]
    fn each_buffer_is_fetched_for_in_two_steps() {
        let memory = Memory::new(ShardId(0), 64, 1);
        let source = ProcessId::lustre(Nid::ANY);
        let body = Body::Put {
            ack_md: lnet_wire::WireHandle::NONE,
            match_bits: 1,
            hdr_data: 0,
            portal: 4,
            offset: 0,
        };
        let header = Header { destination: source, source, payload_length: 0, body };
        for count in [2, 4, 5, 6, 9, 10, 16, 64] {
            let mut up = Foresight::default();
            let mut batch = Batch::<FRAMES_MAX>::new();
            (0..count).for_each(|_| batch.add(&header));
            batch.tell(&mut up, &memory);
            for _ in 0..count {
                up.header(Instant(0), NiId(0), &header.source.nid, RxId(0), &header);
                look_ahead(&up, &memory);
            }
            let mut asked = up.asked.take();
            asked.sort_unstable();
            assert_eq!(asked, (0..count).flat_map(|md| [md, md]).collect::<Vec<_>>());
        }
    }
}
