//! Frames of the transfer protocol as bytes in chunks.

use std::collections::VecDeque;

use lnet_io::xsk::{CHUNK_BYTES, Frame, RingDescriptor, Umem};
use lnet_wire::frame::{FRAME_HEADER_BYTES, HANDSHAKE_BYTES};
use lnet_xdp_proto::OutgoingFrame;

use super::frames::{Head, Source};
use super::path::{Path, TEMPLATE_BYTES_MAX};

const CHUNK: usize = CHUNK_BYTES as usize;

/// Fills chunks from the stock, one after the other.
struct Chunks<'a> {
    umem: &'a Umem,
    stock: &'a mut VecDeque<Frame>,
    out: &'a mut Vec<RingDescriptor>,
    /// The chunk that is being filled, and how far.
    frame: Frame,
    length: usize,
}

impl Chunks<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (at, end) = (self.length, self.length + bytes.len());
        if end <= CHUNK {
            self.umem.bytes_mut(&mut self.frame)[at..end].copy_from_slice(bytes);
            self.length = end;
        } else {
            self.write_across(bytes);
        }
    }

    fn write_across(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(CHUNK - self.length);
        self.write(first);
        for part in rest.chunks(CHUNK) {
            let frame = std::mem::replace(&mut self.frame, next_chunk(self.stock));
            self.out.push(RingDescriptor { frame, offset: 0, length: CHUNK_BYTES, more: true });
            self.length = 0;
            self.write(part);
        }
    }
}

fn next_chunk(stock: &mut VecDeque<Frame>) -> Frame {
    stock.pop_back().expect("frames are polled only while there are chunks")
}

/// Writes a frame into chunks of the stock, which has enough of them, and appends them to `out`.
#[inline]
pub(super) fn write_frame(
    outgoing: &OutgoingFrame,
    path: &Path,
    (umem, source): (&Umem, &Source<'_>),
    stock: &mut VecDeque<Frame>,
    out: &mut Vec<RingDescriptor>,
) {
    let start = path.length();
    let mut frame = next_chunk(stock);
    let bytes = umem.bytes_mut(&mut frame);
    let Head { covered_bytes, payload, records, checksum } =
        source.write_head(outgoing, &mut bytes[start..], || path.ends_crc);
    let mut chunks = Chunks { umem, stock, out, frame, length: start + covered_bytes };
    payload.for_each(|piece| chunks.write(piece));
    for index in 0..records {
        let (head, payload) = source.record(index, checksum);
        chunks.write(&head);
        payload.for_each(|piece| chunks.write(piece));
    }
    let Chunks { out, frame, length, .. } = chunks;
    out.push(RingDescriptor { frame, offset: 0, length: length as u32, more: false });
    finish(path, umem, out);
}

/// Writes the headers of a frame whose payload follows in descriptors of its own, into a chunk of the stock.
#[inline]
pub(super) fn write_headers(
    outgoing: &OutgoingFrame,
    path: &Path,
    (umem, source): (&Umem, &Source<'_>),
    stock: &mut VecDeque<Frame>,
) -> RingDescriptor {
    let start = path.length();
    let mut frame = next_chunk(stock);
    let bytes = umem.bytes_mut(&mut frame);
    let Head { covered_bytes, payload, .. } =
        source.write_head(outgoing, &mut bytes[start..], || path.ends_crc);
    path.write(bytes, covered_bytes + payload.length_bytes());
    RingDescriptor { frame, offset: 0, length: (start + covered_bytes) as u32, more: true }
}

/// Writes the headers below ours, now that the length is known.
#[inline]
fn finish(path: &Path, umem: &Umem, frame: &mut [RingDescriptor]) {
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

// All that a checksum covers lies in the first chunk, and every chunk but the last is full: the pieces that
// the UDP checksum is made of have even lengths.
const _: () = assert!(TEMPLATE_BYTES_MAX + FRAME_HEADER_BYTES + HANDSHAKE_BYTES < CHUNK);
const _: () = assert!(TEMPLATE_BYTES_MAX.is_multiple_of(2) && CHUNK.is_multiple_of(2));
