//! Frames as bytes: what a driver writes for an [`OutgoingFrame`], and what it reads again.
//!
//! Invariant: a frame whose headers or (with its checksum) payload were changed on the way is not decoded.

use std::ops::Range;

use lnet_core::lnd::Span;
use lnet_wire::frame::{
    CRC_OFFSET, FRAME_HEADER_BYTES, HANDSHAKE_BYTES, Handshake, Kind, RECORD_BYTES, RECORD_CRC_OFFSET,
    Record, ShortPut, Transfer,
};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::SteerKey;
use lnet_wire::{Body, FrameHeader, Header, Nid, ProcessId, WireHandle};
use lnet_xdp_proto::{Content, OutgoingFrame, Xfer};

/// A frame, read.
pub(super) struct Decoded {
    pub(super) header: FrameHeader,
    pub(super) transfer: Transfer,
    pub(super) lnet: Option<Header>,
    /// Where the payload of the message that `header` describes is.
    pub(super) payload: Range<usize>,
    pub(super) handshake: Option<Handshake>,
    /// Further messages: id less that of the frame, header, payload.
    pub(super) records: Vec<(u16, Header, Range<usize>)>,
}

/// Writes a frame; `payload_of` appends the bytes of a span.
pub(super) fn encode(
    outgoing: &OutgoingFrame,
    xfer: &Xfer,
    bytes: &mut Vec<u8>,
    mut payload_of: impl FnMut(&Span, &mut Vec<u8>),
) {
    bytes.clear();
    bytes.resize(FRAME_HEADER_BYTES, 0);
    let mut transfer = outgoing.transfer;
    let short = short_put(outgoing, xfer);
    let outer = FrameHeader { short, ..outgoing.header };
    let mut ends = Vec::new();
    match outgoing.content {
        Content::Nothing => {}
        Content::Handshake => {
            let mut body = [0; HANDSHAKE_BYTES];
            xfer.handshake(outgoing.ni).encode(&mut body);
            bytes.extend_from_slice(&body);
        }
        Content::Message { lnet, payload, bundled, checksum, .. } => {
            if let Some(lnet) = lnet {
                if short.is_some() {
                    ends = ends_of(&lnet.destination.nid, &lnet.source.nid);
                } else {
                    append_header(&lnet, bytes);
                }
            }
            let start = bytes.len();
            if let Some(span) = payload {
                payload_of(&span, bytes);
            }
            if checksum {
                transfer.payload_crc = Some(crc_fast::crc32_iscsi(&bytes[start..]));
            }
            for index in 0..bundled {
                let further = xfer.bundled(index);
                let head = bytes.len();
                bytes.resize(head + RECORD_BYTES, 0);
                append_header(&further.lnet, bytes);
                let start = bytes.len();
                if let Some(span) = further.payload {
                    payload_of(&span, bytes);
                }
                let length = (bytes.len() - start) as u32;
                let payload_crc = if checksum { crc_fast::crc32_iscsi(&bytes[start..]) } else { 0 };
                let record = Record { id_delta: further.id_delta, length, payload_crc };
                record.encode(bytes[head..].first_chunk_mut().expect("made above"));
                let crc = crc_fast::crc32_iscsi(&bytes[head..start]);
                put_crc(&mut bytes[head..], RECORD_CRC_OFFSET, crc);
            }
        }
    }
    let mut header = [0; FRAME_HEADER_BYTES];
    outer.encode(&mut header);
    transfer.encode(&mut header);
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header);
    ends.extend_from_slice(&bytes[..outer.covered_bytes()]);
    put_crc(bytes, CRC_OFFSET, crc_fast::crc32_iscsi(&ends));
}

/// What a frame says in short, if it can: docs/xdp-lnd.md, section 2.
fn short_put(outgoing: &OutgoingFrame, xfer: &Xfer) -> Option<ShortPut> {
    let Content::Message { lnet: Some(lnet), payload: Some(payload), bundled: 0, .. } = outgoing.content
    else {
        return None;
    };
    let Body::Put { ack_md, hdr_data, offset, .. } = lnet.body else { return None };
    let whole = payload.length_bytes == outgoing.header.total_length;
    let from = *xfer.nid_of(outgoing.ni)?;
    let ends =
        lnet.destination == ProcessId::lustre(outgoing.destination) && lnet.source == ProcessId::lustre(from);
    (whole && ends && ack_md.is_none() && outgoing.transfer.fits_short())
        .then_some(ShortPut { hdr_data, offset })
}

/// What the checksum of a short frame covers before its header.
fn ends_of(destination: &Nid, source: &Nid) -> Vec<u8> {
    [destination.to_bytes(), source.to_bytes()].concat()
}

fn append_header(header: &Header, bytes: &mut Vec<u8>) {
    let mut large = [0; LARGE_HEADER_BYTES];
    header.encode_large(&mut large);
    bytes.extend_from_slice(&large);
}

fn put_crc(bytes: &mut [u8], offset: usize, crc: u32) {
    bytes[offset..offset + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the four bytes at `offset` are the checksum of the rest.
fn crc_fits(bytes: &[u8], offset: usize) -> bool {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..offset]);
    digest.update(&[0; 4]);
    digest.update(&bytes[offset + 4..]);
    let found = bytes[offset..].first_chunk().map(|crc| u32::from_le_bytes(*crc));
    found == Some(digest.finalize() as u32)
}

/// Reads a frame that came in at `own`; `None` if it is not as it was written.
pub(super) fn decode(bytes: &[u8], own: &Nid, from: &Nid) -> Option<Decoded> {
    let head = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
    let header = FrameHeader::decode(head, bytes.len()).ok()?;
    let mut covered = if header.short.is_some() { ends_of(own, from) } else { Vec::new() };
    let crc_offset = covered.len() + CRC_OFFSET;
    covered.extend_from_slice(&bytes[..header.covered_bytes()]);
    if !crc_fits(&covered, crc_offset) {
        return None;
    }
    let transfer = Transfer::decode(head)?;
    let start = header.covered_bytes();
    let lnet = match (header.short, header.lnet_header_bytes()) {
        (Some(ShortPut { hdr_data, offset }), _) => {
            let (portal, match_bits) = (header.key.portal.into(), header.key.key);
            Some(Header {
                destination: ProcessId::lustre(*own),
                source: ProcessId::lustre(*from),
                payload_length: header.total_length,
                body: Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data, portal, offset },
            })
        }
        (None, 0) => None,
        (None, _) => {
            let lnet = Header::split_large(&bytes[FRAME_HEADER_BYTES..]).ok()?.0;
            let key = SteerKey::of(&lnet, header.key.message_id, header.key.initiator_hash)?;
            if key != header.key || lnet.payload_length != header.total_length {
                return None;
            }
            Some(lnet)
        }
    };
    let handshake = match header.kind {
        Kind::Hello | Kind::Welcome => Some(Handshake::decode(bytes[FRAME_HEADER_BYTES..].first_chunk()?)?),
        _ => None,
    };
    let end = if header.bundled { start + header.total_length as usize } else { bytes.len() };
    let payload_fits = |range: Range<usize>, crc| crc_fast::crc32_iscsi(&bytes[range]) == crc;
    if transfer.payload_crc.is_some_and(|crc| !payload_fits(start..end, crc)) {
        return None;
    }
    let mut records = Vec::new();
    let mut at = end;
    while at < bytes.len() {
        let body = at + RECORD_BYTES + LARGE_HEADER_BYTES;
        let covered = bytes.get(at..body).filter(|covered| crc_fits(covered, RECORD_CRC_OFFSET))?;
        let record = Record::decode(covered.first_chunk()?)?;
        let lnet = Header::split_large(&covered[RECORD_BYTES..]).ok()?.0;
        let payload = body..body + record.length as usize;
        if payload.end > bytes.len() || lnet.payload_length != record.length {
            return None;
        }
        if transfer.payload_crc.is_some() && !payload_fits(payload.clone(), record.payload_crc) {
            return None;
        }
        at = payload.end;
        records.push((record.id_delta, lnet, payload));
    }
    Some(Decoded { header, transfer, lnet, payload: start..end, handshake, records })
}
