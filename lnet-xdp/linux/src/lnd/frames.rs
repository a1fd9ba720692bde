//! Frames of the transfer protocol as bytes, whatever carries them.
//!
//! A driver that sends has [`Source::write_head`] write what a frame's checksum covers, and puts the payload
//! and the [records](Source::record) behind it. One that receives has [`take`] check a frame, before any of
//! it is believed, and hand it over.
//!
//! Invariants: a frame is taken whole or not at all; no byte of a peer's trips an assertion.

use std::ops::Range;

use lnet_core::lnd::{NiId, Span, Uplink};
use lnet_core::time::Instant;
use lnet_io::memory::{Fragments, FragmentsMut, Memory, checksum};
use lnet_wire::frame::{
    CRC_OFFSET, FIRST_HEADERS_BYTES, FRAME_HEADER_BYTES, FrameHeader, HANDSHAKE_BYTES, Handshake, Kind,
    RECORD_BYTES, RECORD_CRC_OFFSET, Record, ShortPut, Transfer,
};
use lnet_wire::header::{Header, LARGE_HEADER_BYTES, WireHandle};
use lnet_wire::nid::NID_BYTES;
use lnet_wire::steer::{self, PORTALS, PolicyWord, SteerKey};
use lnet_wire::{Body, Nid, ProcessId};
use lnet_xdp_proto::{Arrived, BUNDLE_MAX, BufferId, Content, Disposition, OutgoingFrame, Xfer, XferDrop};

use super::announce::{Batch, look_ahead};
use super::counters::XdpDrop;

/// The shortest UDP payload that an interface must be able to carry: a handshake.
pub(crate) const DATAGRAM_BYTES_MIN: usize = FRAME_HEADER_BYTES + HANDSHAKE_BYTES;
/// Bytes of a record before its payload.
const RECORD_HEAD_BYTES: usize = RECORD_BYTES + LARGE_HEADER_BYTES;

/// Payload that is sent in a short frame at most: a longer one gains nothing, and may be sent where it lies,
/// which leaves the headers to a descriptor of their own.
const SHORT_PAYLOAD_MAX: u32 = 1024;

/// What frames that are sent are made of.
pub(super) struct Source<'a> {
    pub(super) xfer: &'a Xfer,
    pub(super) memory: &'a Memory,
}

/// The beginning of a frame, written, and what follows it.
pub(super) struct Head<'a> {
    /// Bytes that were written.
    pub(super) covered_bytes: usize,
    /// What follows.
    pub(super) payload: Fragments<'a>,
    /// How many records follow that.
    pub(super) records: u8,
    /// Whether their payloads have checksums.
    pub(super) checksum: bool,
}

impl<'a> Source<'a> {
    /// Writes what the checksum of a frame covers to the beginning of `room`, in which there is more than
    /// enough. Of a short frame the [sum of its ends](ends_crc) is asked for.
    #[inline]
    pub(super) fn write_head(
        &self,
        outgoing: &OutgoingFrame,
        room: &mut [u8],
        ends_crc: impl FnOnce() -> u32,
    ) -> Head<'a> {
        let short = self.short_put(outgoing);
        let header = FrameHeader { short, ..outgoing.header };
        let covered_bytes = header.covered_bytes();
        let (head, body) =
            room.split_first_chunk_mut::<FRAME_HEADER_BYTES>().expect("there is room for a header");
        header.encode(head);
        let mut payload_crc = None;
        let mut payload = Fragments::default();
        let mut records = 0;
        match &outgoing.content {
            Content::Nothing => {}
            Content::Handshake => {
                let body = body.first_chunk_mut::<HANDSHAKE_BYTES>().expect("there is room for a handshake");
                self.xfer.handshake(outgoing.ni).encode(body);
            }
            Content::Message { lnet, payload: span, bundled, checksum: is_summed, .. } => {
                if let Some(lnet) = lnet.as_ref().filter(|_| short.is_none()) {
                    let body = body
                        .first_chunk_mut::<LARGE_HEADER_BYTES>()
                        .expect("there is room for an LNet header");
                    lnet.encode_large(body);
                }
                payload = self.payload(span.as_ref());
                // Fetches the payload, a frame at most, into the cache that it is copied out of next.
                payload_crc = is_summed.then(|| checksum(payload.clone()));
                records = *bundled;
            }
        }
        if payload_crc.is_some() {
            Transfer { payload_crc, ..outgoing.transfer }.encode(head);
        } else {
            outgoing.transfer.encode(head);
        }
        let crc = crc_fast::crc32_iscsi(&room[..covered_bytes]) ^ short.map_or(0, |_| ends_crc());
        room[CRC_OFFSET..][..4].copy_from_slice(&crc.to_le_bytes());
        Head { covered_bytes, payload, records, checksum: payload_crc.is_some() }
    }

    /// What a frame says in short, if that is all: a whole PUT from the interface to where it is sent, that
    /// wants no ACK, in a session that is in full swing. Sent again it says everything.
    #[inline]
    fn short_put(&self, outgoing: &OutgoingFrame) -> Option<ShortPut> {
        let Content::Message { lnet: Some(lnet), payload: Some(span), bundled: 0, resent: false, .. } =
            &outgoing.content
        else {
            return None;
        };
        let Body::Put { ack_md, hdr_data, offset, .. } = lnet.body else { return None };
        let is_whole =
            span.length_bytes == outgoing.header.total_length && span.length_bytes <= SHORT_PAYLOAD_MAX;
        let from = self.xfer.nid_of(outgoing.ni)?;
        let says_all = is_whole
            && ack_md.is_none()
            && outgoing.transfer.ack.is_some()
            && outgoing.transfer.fits_short()
            && lnet.destination == ProcessId::lustre(outgoing.destination)
            && lnet.source == ProcessId::lustre(*from);
        says_all.then_some(ShortPut { hdr_data, offset })
    }

    /// The head of a further message of the frame, and its payload, which may have a checksum.
    pub(super) fn record(&self, index: u8, has_checksum: bool) -> ([u8; RECORD_HEAD_BYTES], Fragments<'a>) {
        let record = self.xfer.bundled(index);
        let payload = self.payload(record.payload.as_ref());
        let payload_crc = if has_checksum { checksum(payload.clone()) } else { 0 };
        let mut bytes = [0; RECORD_HEAD_BYTES];
        let (head, rest) = bytes.split_first_chunk_mut::<RECORD_BYTES>().expect("a record has a head");
        Record { id_delta: record.id_delta, length: record.lnet.payload_length, payload_crc }.encode(head);
        record.lnet.encode_large(rest.first_chunk_mut().expect("a record has an LNet header"));
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[RECORD_CRC_OFFSET..RECORD_CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        (bytes, payload)
    }

    /// Bytes of payload of a frame.
    #[inline]
    pub(super) fn payload_bytes(&self, outgoing: &OutgoingFrame) -> u64 {
        let Content::Message { payload, bundled, .. } = &outgoing.content else { return 0 };
        let further = (0..*bundled).map(|index| self.xfer.bundled(index).payload);
        let spans = further.chain([*payload]).flatten();
        spans.map(|span| u64::from(span.length_bytes)).sum()
    }

    #[inline]
    fn payload(&self, span: Option<&Span>) -> Fragments<'a> {
        span.map_or_else(Fragments::default, |span| self.memory.fragments(span))
    }
}

/// A frame that has arrived, and what a driver has around it. Offsets are from its beginning.
pub(super) trait Datagram {
    /// Copies the bytes from `offset` on until `to` is full; there are as many.
    fn copy_out(&self, offset: usize, to: &mut [u8]);

    /// Copies bytes out, like [`Datagram::copy_out`], to one fragment of a buffer after the other.
    #[inline]
    fn scatter(&self, mut offset: usize, to: FragmentsMut<'_>) {
        for piece in to {
            self.copy_out(offset, piece);
            offset += piece.len();
        }
    }

    /// CRC32C of `length` bytes from `offset` on.
    fn checksum(&self, offset: usize, length: usize) -> u32;
}

impl Datagram for [u8] {
    #[inline]
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[offset..offset + to.len()]);
    }

    fn checksum(&self, offset: usize, length: usize) -> u32 {
        crc_fast::crc32_iscsi(&self[offset..offset + length])
    }
}

/// What is to become of a frame that is not for the transfer protocol.
pub(super) enum Aside {
    /// The frame belongs to another shard.
    Misdirected(usize),
    /// The frame is dropped and counted.
    Dropped(XdpDrop),
}

/// The bytes of a frame whose header is decoded already.
pub(super) struct Bytes<'a, D: ?Sized> {
    pub(super) header: FrameHeader,
    /// Bytes around the frame, as far as they lie in one piece, and where in it the frame begins.
    pub(super) head: &'a [u8],
    pub(super) start: usize,
    pub(super) length: usize,
    /// All that is around it.
    pub(super) datagram: &'a D,
}

/// Where a frame came in, and from where.
pub(super) struct Ingress<'a> {
    pub(super) ni: NiId,
    /// The NID of that interface.
    pub(super) own: &'a Nid,
    pub(super) from: &'a Nid,
    /// [`ends_crc`] of the two if the frame is a short one, else 0.
    pub(super) ends_crc: u32,
}

/// A further message of a frame.
pub(super) struct Further {
    id_delta: u16,
    lnet: Header,
    payload_offset: usize,
}

/// The shard that frames are for.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) policies: &'a [PolicyWord; PORTALS],
    pub(super) shards: u32,
    pub(super) shard: u32,
}

impl Owner<'_> {
    /// The bytes that a frame's checksum covers, if it is right and the frame is this shard's.
    #[inline(always)]
    fn checked_head<'a>(
        &self,
        ingress: &Ingress<'_>,
        bytes: &Bytes<'a, impl Datagram + ?Sized>,
    ) -> Result<&'a [u8], Aside> {
        let Bytes { header, head, start, .. } = bytes;
        let Some(covered) = head.get(*start..start + header.covered_bytes()) else {
            return Err(Aside::Dropped(XdpDrop::BadHeader));
        };
        if !has_right_checksum(covered, CRC_OFFSET, ingress.ends_crc) {
            return Err(Aside::Dropped(XdpDrop::BadChecksum));
        }
        let shard = self.shard_of(&header.key);
        if shard == self.shard { Ok(covered) } else { Err(Aside::Misdirected(shard as usize)) }
    }

    /// Checks what stands behind the headers, there in the datagram, and lists the further messages.
    #[inline]
    fn examine_rest(
        &self,
        arrived: &Arrived<'_>,
        rest: Range<usize>,
        datagram: &(impl Datagram + ?Sized),
        further: &mut Vec<Further>,
    ) -> Result<(), Aside> {
        if let Some(crc) = arrived.transfer.payload_crc
            && datagram.checksum(rest.start, arrived.payload_bytes as usize) != crc
        {
            return Err(Aside::Dropped(XdpDrop::PayloadCorrupt));
        }
        if arrived.header.bundled {
            further.clear();
            self.examine_further(arrived, rest, datagram, further).map_err(Aside::Dropped)?;
        }
        Ok(())
    }

    /// Checks all further messages of a frame before any of its messages is taken.
    fn examine_further(
        &self,
        arrived: &Arrived<'_>,
        rest: Range<usize>,
        datagram: &(impl Datagram + ?Sized),
        further: &mut Vec<Further>,
    ) -> Result<(), XdpDrop> {
        let (key, end) = (&arrived.header.key, rest.end);
        let mut at = rest.start + arrived.payload_bytes as usize;
        while at < end {
            if further.len() == BUNDLE_MAX - 1 || end - at < RECORD_HEAD_BYTES {
                return Err(XdpDrop::BadHeader);
            }
            let mut head = [0; RECORD_HEAD_BYTES];
            datagram.copy_out(at, &mut head);
            if !copy_has_right_checksum(&mut head, RECORD_CRC_OFFSET, 0) {
                return Err(XdpDrop::BadChecksum);
            }
            let (record, lnet) = head.split_first_chunk::<RECORD_BYTES>().expect("a record has a head");
            let lnet = lnet.first_chunk::<LARGE_HEADER_BYTES>().expect("a record has an LNet header");
            let Record { id_delta, length, payload_crc } =
                Record::decode(record).ok_or(XdpDrop::BadHeader)?;
            let lnet = Header::decode_large(lnet).map_err(|_| XdpDrop::BadHeader)?;
            let payload_offset = at + RECORD_HEAD_BYTES;
            if length as usize > end - payload_offset {
                return Err(XdpDrop::BadHeader);
            }
            let message_id = key.message_id.wrapping_add(u64::from(id_delta));
            let its_key = SteerKey::of(&lnet, message_id, key.initiator_hash);
            let is_ours = its_key.is_some_and(|key| self.shard_of(&key) == self.shard);
            let carries = length == 0 || lnet.message_type().carries_payload();
            if lnet.payload_length != length || !is_ours || !carries {
                return Err(XdpDrop::HeaderMismatch);
            }
            if arrived.transfer.payload_crc.is_some()
                && datagram.checksum(payload_offset, length as usize) != payload_crc
            {
                return Err(XdpDrop::PayloadCorrupt);
            }
            further.push(Further { id_delta, lnet, payload_offset });
            at = payload_offset + length as usize;
        }
        Ok(())
    }

    #[inline]
    fn shard_of(&self, key: &SteerKey) -> u32 {
        steer::shard_of(key, self.policies[usize::from(key.portal)], self.shards)
    }
}

/// What the transfer protocol has made of a frame.
pub(super) enum Taken {
    /// The transfer protocol has taken the frame.
    Whole,
    /// The transfer protocol has refused and counted the frame.
    Refused(XferDrop),
    /// The frame is to be kept.
    Buffer(BufferId),
}

/// Checks a frame, hands it to the transfer protocol, and copies its payloads to where they belong. `further`
/// is scratch, which each frame of several messages empties first.
// One function, in which what a frame says stays where it was read: it is much, and moving it about would
// cost more than reading it.
#[inline(always)]
pub(super) fn take(
    (xfer, memory, up): (&mut Xfer, &mut Memory, &mut impl Uplink),
    now: Instant,
    ingress: &Ingress<'_>,
    owner: &Owner<'_>,
    bytes: &Bytes<'_, impl Datagram + ?Sized>,
    further: &mut Vec<Further>,
) -> Result<Taken, Aside> {
    let &Bytes { ref header, start, length, datagram, .. } = bytes;
    let bad_header = Aside::Dropped(XdpDrop::BadHeader);
    let covered = owner.checked_head(ingress, bytes)?;
    let frame_header = bytes.head[start..].first_chunk().expect("the frame header was decoded");
    let Some(transfer) = &Transfer::decode(frame_header) else { return Err(bad_header) };
    let decoded = match header.short {
        Some(short) => Some(Ok(spelled_out(header, short, ingress))),
        None => covered[FRAME_HEADER_BYTES..]
            .first_chunk()
            .filter(|_| header.lnet_header_bytes() != 0)
            .map(Header::decode_large),
    };
    let lnet = match &decoded {
        None => None,
        Some(Ok(lnet)) if header.short.is_some() || agrees(lnet, &header.key, header.total_length) => {
            Some(lnet)
        }
        Some(Ok(_)) => return Err(Aside::Dropped(XdpDrop::HeaderMismatch)),
        Some(Err(_)) => return Err(bad_header),
    };
    let rest = start + covered.len()..start + length;
    let has_handshake = matches!(header.kind, Kind::Hello | Kind::Welcome);
    let handshake = if has_handshake { handshake(rest.start, datagram) } else { None };
    let arrived = Arrived {
        ni: ingress.ni,
        from: *ingress.from,
        header,
        transfer,
        lnet,
        payload_bytes: if header.bundled { header.total_length } else { rest.len() as u32 },
        handshake: handshake.as_ref(),
    };
    owner.examine_rest(&arrived, rest.clone(), datagram, further)?;
    if header.bundled && up.wants_hints() {
        announce_bundle(lnet, further, up, memory);
    }
    let action = xfer.receive(now, &arrived, up);
    look_ahead(up, memory);
    match action {
        Disposition::Write => {
            datagram.scatter(rest.start, memory.fragments_mut(xfer.destination()));
            xfer.written(now, up);
        }
        Disposition::Done => {}
        Disposition::Buffer(hold) => return Ok(Taken::Buffer(hold)),
        Disposition::Drop(reason) => return Ok(Taken::Refused(reason)),
    }
    if header.bundled {
        for Further { id_delta, lnet, payload_offset } in further.drain(..) {
            let action = xfer.receive_record(now, &arrived, id_delta, &lnet, up);
            look_ahead(up, memory);
            match action {
                Disposition::Write => {
                    datagram.scatter(payload_offset, memory.fragments_mut(xfer.destination()));
                    xfer.written(now, up);
                }
                Disposition::Done | Disposition::Drop(_) => {}
                Disposition::Buffer(hold) => {
                    unreachable!("a message of several in a frame is kept as {hold:?}")
                }
            }
        }
        xfer.end_bundle(now, &arrived);
    }
    Ok(Taken::Whole)
}

/// Announces the messages that share a frame.
fn announce_bundle(first: Option<&Header>, further: &[Further], up: &mut impl Uplink, memory: &Memory) {
    let mut batch = Batch::<BUNDLE_MAX>::new();
    first.into_iter().chain(further.iter().map(|one| &one.lnet)).for_each(|lnet| batch.add(lnet));
    batch.tell(up, memory);
}

/// The handshake that ends there.
fn handshake(end: usize, datagram: &(impl Datagram + ?Sized)) -> Option<Handshake> {
    let mut body = [0; HANDSHAKE_BYTES];
    datagram.copy_out(end - HANDSHAKE_BYTES, &mut body);
    Handshake::decode(&body)
}

/// The LNet header that a short frame does without.
#[inline]
fn spelled_out(
    header: &FrameHeader,
    ShortPut { hdr_data, offset }: ShortPut,
    ingress: &Ingress<'_>,
) -> Header {
    Header {
        destination: ProcessId::lustre(*ingress.own),
        source: ProcessId::lustre(*ingress.from),
        payload_length: header.total_length,
        body: Body::Put {
            ack_md: WireHandle::NONE,
            match_bits: header.key.key,
            hdr_data,
            portal: header.key.portal.into(),
            offset,
        },
    }
}

/// What the two NIDs that the checksum of a short frame covers before its header, and that are not sent, add
/// to that of the header alone: CRC32C of them and as many zeros as the header has bytes, less that of the
/// zeros.
// CRCs are linear but for a constant, so the sum of the two is the CRC of all of it; this part is known
// before there is a frame.
pub(super) fn ends_crc(destination: &Nid, source: &Nid) -> u32 {
    let mut bytes = [0; 2 * NID_BYTES + FRAME_HEADER_BYTES];
    bytes[..NID_BYTES].copy_from_slice(&destination.to_bytes());
    bytes[NID_BYTES..2 * NID_BYTES].copy_from_slice(&source.to_bytes());
    crc_fast::crc32_iscsi(&bytes) ^ crc_fast::crc32_iscsi(&[0; FRAME_HEADER_BYTES])
}

/// Whether the CRC32C at an offset is that of the bytes, as many as a frame's checksum may cover, with zero
/// in its place, exclusive-or `beside`. In a copy: the CPU that received them has them in its cache, and
/// would have to give them up for a write.
#[inline(always)]
fn has_right_checksum(bytes: &[u8], offset: usize, beside: u32) -> bool {
    // A copy of a known length is made without a call: of a first fragment, and most others.
    if let Ok(mut copy) = <[u8; FIRST_HEADERS_BYTES]>::try_from(bytes) {
        return copy_has_right_checksum(&mut copy, offset, beside);
    }
    if let Ok(mut copy) = <[u8; FRAME_HEADER_BYTES]>::try_from(bytes) {
        return copy_has_right_checksum(&mut copy, offset, beside);
    }
    let mut copy = [0; DATAGRAM_BYTES_MIN];
    let copy = &mut copy[..bytes.len()];
    copy.copy_from_slice(bytes);
    copy_has_right_checksum(copy, offset, beside)
}

/// Whether a copy has the right checksum, like [`has_right_checksum`]: the checksum is taken out of it.
#[inline(always)]
fn copy_has_right_checksum(copy: &mut [u8], offset: usize, beside: u32) -> bool {
    let Some(field) = copy[offset..].first_chunk_mut::<4>() else { return false };
    let stored = std::mem::take(field);
    crc_fast::crc32_iscsi(copy) ^ beside == u32::from_le_bytes(stored)
}

/// Whether a frame was steered by what its LNet header says, and is as long as that says.
#[inline]
fn agrees(header: &Header, key: &SteerKey, total_length: u32) -> bool {
    header.payload_length == total_length
        && SteerKey::of(header, key.message_id, key.initiator_hash).is_some_and(|expected| expected == *key)
}
