//! Frames of the transfer protocol as bytes in chunks.

use std::collections::VecDeque;

use lnet_core::lnd::Span;
use lnet_core::xfer::{Bundled, Content, Outgoing, Xfer};
use lnet_wire::frame::{
    CRC_OFFSET, FRAME_HEADER_BYTES, HANDSHAKE_BYTES, RECORD_BYTES, RECORD_CRC_OFFSET, Record, Transfer,
};
use lnet_wire::header::{Header, LARGE_HEADER_BYTES};

use super::path::{Path, TEMPLATE_MAX_BYTES};
use crate::memory::Memory;
use crate::xsk::{CHUNK_BYTES, Frame, TxDescriptor, Umem};

const CHUNK: usize = CHUNK_BYTES as usize;
/// Bytes of a record before its payload.
const RECORD_HEAD_BYTES: usize = RECORD_BYTES + LARGE_HEADER_BYTES;

/// What a frame is made of.
pub(super) struct Source<'a> {
    pub(super) umem: &'a Umem,
    pub(super) xfer: &'a Xfer,
    pub(super) memory: &'a Memory,
    /// Whether payloads get a checksum.
    pub(super) payload_checksum: bool,
}

/// Fills chunks from the stock, one after the other.
struct Chunks<'a> {
    umem: &'a Umem,
    stock: &'a mut VecDeque<Frame>,
    full: &'a mut Vec<TxDescriptor>,
    last: TxDescriptor,
}

impl Chunks<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let at = self.last.length as usize;
        if bytes.len() <= CHUNK - at {
            self.umem.bytes_mut(&mut self.last.frame)[at..at + bytes.len()].copy_from_slice(bytes);
            self.last.length += bytes.len() as u32;
        } else {
            self.write_across(bytes);
        }
    }

    fn write_across(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(CHUNK - self.last.length as usize);
        self.write(first);
        for part in rest.chunks(CHUNK) {
            let next = next_chunk(self.stock, 0);
            self.full.push(TxDescriptor { more: true, ..std::mem::replace(&mut self.last, next) });
            self.write(part);
        }
    }
}

fn next_chunk(stock: &mut VecDeque<Frame>, length: u32) -> TxDescriptor {
    let Some(frame) = stock.pop_back() else { unreachable!("frames are polled only while there are chunks") };
    TxDescriptor { frame, offset: 0, length, more: false }
}

/// Writes a frame into chunks of the stock, which has enough of them, and appends them to `out`.
#[inline]
pub(super) fn write_frame(
    outgoing: &Outgoing,
    path: &Path,
    source: &Source<'_>,
    stock: &mut VecDeque<Frame>,
    out: &mut Vec<TxDescriptor>,
) {
    let covered_bytes = outgoing.header.covered_bytes();
    let start = path.length();
    let first = next_chunk(stock, (start + covered_bytes) as u32);
    let mut chunks = Chunks { umem: source.umem, stock, full: out, last: first };
    let bytes = source.umem.bytes_mut(&mut chunks.last.frame);
    let covered = &mut bytes[start..start + covered_bytes];
    let (head, body) = covered.split_first_chunk_mut::<FRAME_HEADER_BYTES>().expect("the header is covered");
    outgoing.header.encode(head);
    let mut payload_crc = None;
    let mut payload: &[u8] = &[];
    let mut bundled = 0;
    match &outgoing.content {
        Content::Nothing => {}
        Content::Padding => body.fill(0),
        Content::Handshake => {
            let body = body.first_chunk_mut::<HANDSHAKE_BYTES>().expect("the handshake is covered");
            source.xfer.handshake(outgoing.ni).encode(body);
        }
        Content::Message { lnet, payload: span, bundled: further } => {
            if let Some(lnet) = lnet {
                let body = body.first_chunk_mut::<LARGE_HEADER_BYTES>().expect("the LNet header is covered");
                lnet.encode_large(body);
            }
            payload = bytes_of(source.memory, span.as_ref());
            payload_crc = source.payload_checksum.then(|| crc_fast::crc32_iscsi(payload));
            bundled = *further;
        }
    }
    if payload_crc.is_some() {
        Transfer { payload_crc, ..outgoing.transfer }.encode(head);
    } else {
        outgoing.transfer.encode(head);
    }
    let crc = crc_fast::crc32_iscsi(covered);
    covered[CRC_OFFSET..FRAME_HEADER_BYTES][..4].copy_from_slice(&crc.to_le_bytes());
    if !payload.is_empty() {
        chunks.write(payload);
    }
    for index in 0..bundled {
        write_record(&mut chunks, source, &source.xfer.bundled(index));
    }
    let Chunks { full, last, .. } = chunks;
    full.push(last);
    finish(path, source.umem, full);
}

fn bytes_of<'a>(memory: &'a Memory, span: Option<&Span>) -> &'a [u8] {
    span.map_or(&[], |span| memory.bytes(span))
}

fn write_record(chunks: &mut Chunks<'_>, source: &Source<'_>, record: &Bundled) {
    let payload = bytes_of(source.memory, record.payload.as_ref());
    let payload_crc = if source.payload_checksum { crc_fast::crc32_iscsi(payload) } else { 0 };
    let Bundled { id_delta, lnet, .. } = record;
    let mut head = record_head(*id_delta, lnet, payload_crc);
    let crc = crc_fast::crc32_iscsi(&head);
    head[RECORD_CRC_OFFSET..RECORD_CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
    chunks.write(&head);
    chunks.write(payload);
}

fn record_head(id_delta: u16, lnet: &Header, payload_crc: u32) -> [u8; RECORD_HEAD_BYTES] {
    let mut bytes = [0; RECORD_HEAD_BYTES];
    let (head, rest) = bytes.split_first_chunk_mut::<RECORD_BYTES>().expect("a record has a head");
    Record { id_delta, length: lnet.payload_length, payload_crc }.encode(head);
    lnet.encode_large(rest.first_chunk_mut().expect("a record has an LNet header"));
    bytes
}

/// Writes the headers below ours, now that the length is known.
#[inline]
fn finish(path: &Path, umem: &Umem, frame: &mut [TxDescriptor]) {
    let datagram_bytes = frame.iter().map(|part| part.length as usize).sum::<usize>() - path.length();
    path.write(umem.bytes_mut(&mut frame[0].frame), datagram_bytes);
    if path.needs_udp_checksum() {
        let skip = |index: usize| if index == 0 { path.length() } else { 0 };
        let pieces = frame
            .iter()
            .enumerate()
            .map(|(index, part)| &umem.bytes(&part.frame)[skip(index)..part.length as usize]);
        let checksum = path.udp6_checksum(pieces).to_be_bytes();
        umem.bytes_mut(&mut frame[0].frame)[path.length() - 2..path.length()].copy_from_slice(&checksum);
    }
}

// All that a checksum covers lies in the first chunk, and every chunk but the last is full: the pieces that the
// UDP checksum is made of have even lengths.
const _: () = assert!(TEMPLATE_MAX_BYTES + FRAME_HEADER_BYTES + HANDSHAKE_BYTES < CHUNK);
const _: () = assert!(TEMPLATE_MAX_BYTES.is_multiple_of(2) && CHUNK.is_multiple_of(2));
