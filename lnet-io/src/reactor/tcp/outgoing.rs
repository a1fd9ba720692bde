//! What a stream has to send.
//!
//! Invariant: the kernel may read a piece, queued or sent, until the operation that took its last byte has
//! ended and, with zero copy, the kernel has reported that it is done with it. Pieces are freed in their
//! order.

use core::ptr::NonNull;
use std::collections::VecDeque;

use crate::region::ReadLease;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 4096;
/// Chunks that are not in use and not freed, at most.
const SPARE_CHUNKS: usize = 64;
/// Bytes that one operation sends, at most. The kernel tries again by itself 128 times, whenever a part of
/// the socket's buffer is free; beyond that it would block a thread of its own (`APOLL_MAX_RETRY`,
/// io_uring/poll.c).
const SEND_BYTES_MAX: usize = 2 << 20;

/// Memory that queued bytes are copied to. It never moves while it is in use.
#[derive(Default)]
pub(super) struct SpareMemory(Vec<Vec<u8>>);

impl SpareMemory {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES))
    }

    fn put(&mut self, mut chunk: Vec<u8>) {
        if self.0.len() < SPARE_CHUNKS {
            chunk.clear();
            self.0.push(chunk);
        }
    }
}

/// A run of bytes that the kernel reads.
enum Piece {
    /// Never longer than its first allocation, so that its bytes stay where they are.
    Chunk(Vec<u8>),
    Lease(ReadLease),
}

impl Piece {
    fn length_bytes(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.len(),
            Self::Lease(lease) => lease.length_bytes(),
        }
    }

    fn free(self, chunks: &mut SpareMemory) {
        if let Self::Chunk(chunk) = self {
            chunks.put(chunk);
        }
    }
}

/// Bytes that the kernel has taken, but is not known to have let go of, or that come behind such.
struct Sent {
    /// The operation that it reports on; `None` if it has, or has nothing to report.
    awaited: Option<u32>,
    bytes: u64,
    /// What ended with these bytes.
    pieces: Vec<Piece>,
}

/// The queue of a stream.
#[derive(Default)]
pub(super) struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that the kernel has taken.
    taken_bytes: usize,
    queued_bytes: u64,
    sent: VecDeque<Sent>,
    /// The kernel copies anyway.
    copies: bool,
}

impl Outgoing {
    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the kernel may still read what it has taken.
    pub(super) fn awaits_release(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Bytes that the kernel has not taken.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Sends of this stream copy from now on.
    pub(super) fn give_up_zero_copy(&mut self) {
        self.copies = true;
    }

    /// Queues a copy of these bytes.
    pub(super) fn queue_bytes(&mut self, mut bytes: &[u8], chunks: &mut SpareMemory) {
        self.queued_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = match self.pieces.back() {
                Some(Piece::Chunk(chunk)) => chunk.capacity() - chunk.len(),
                _ => 0,
            };
            if room == 0 {
                self.pieces.push_back(Piece::Chunk(chunks.take()));
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(room));
            if let Some(Piece::Chunk(chunk)) = self.pieces.back_mut() {
                chunk.extend_from_slice(now);
            }
            bytes = rest;
        }
    }

    /// Queues what is lent.
    pub(super) fn queue_lease(&mut self, lease: ReadLease) {
        if lease.length_bytes() != 0 {
            self.queued_bytes += lease.length_bytes() as u64;
            self.pieces.push_back(Piece::Lease(lease));
        }
    }

    /// Where the bytes are that are sent next.
    pub(super) fn addresses(&self) -> impl Iterator<Item = NonNull<[u8]>> {
        let mut left = SEND_BYTES_MAX;
        self.parts().flat_map(Self::addresses_of).map_while(move |piece| {
            let length = piece.len().min(left);
            left -= length;
            (length != 0).then(|| NonNull::slice_from_raw_parts(piece.cast(), length))
        })
    }

    /// The queued pieces, with the bytes of each that the kernel has taken.
    fn parts(&self) -> impl Iterator<Item = (&Piece, usize)> {
        let taken = core::iter::once(self.taken_bytes).chain(core::iter::repeat(0));
        self.pieces.iter().zip(taken)
    }

    fn addresses_of((piece, taken): (&Piece, usize)) -> impl Iterator<Item = NonNull<[u8]>> {
        let (chunk, lease) = match piece {
            Piece::Chunk(chunk) => (Some(NonNull::from(&chunk[taken..])), None),
            Piece::Lease(lease) => (None, Some(lease.part(taken..lease.length_bytes()).into_addresses())),
        };
        chunk.into_iter().chain(lease.into_iter().flatten())
    }

    /// Whether what is sent next is worth being sent without copying: a lease of so many bytes is among it.
    pub(super) fn is_worth_zero_copy(&self, least_bytes: usize) -> bool {
        let is_large = |(piece, taken): (&Piece, usize)| matches!(piece, Piece::Lease(lease) if lease.length_bytes() - taken >= least_bytes);
        !self.copies && self.parts().take(8).any(is_large)
    }

    /// The kernel has taken this many bytes, and reports on operation `awaited` once it has let go of them.
    /// Returns how many are done with.
    ///
    /// # Panics
    /// If there are not so many.
    pub(super) fn sent(&mut self, bytes: usize, awaited: Option<u32>, chunks: &mut SpareMemory) -> u64 {
        self.queued_bytes -= bytes as u64;
        self.taken_bytes += bytes;
        let waits = awaited.is_some() || self.awaits_release();
        let mut pieces = Vec::new();
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.length_bytes() <= self.taken_bytes) {
            self.taken_bytes -= piece.length_bytes();
            if waits {
                pieces.push(piece);
            } else {
                piece.free(chunks);
            }
        }
        assert!(!self.pieces.is_empty() || self.taken_bytes == 0, "the kernel has sent more than there was");
        if !waits {
            return bytes as u64;
        }
        self.sent.push_back(Sent { awaited, bytes: bytes as u64, pieces });
        0
    }

    /// The kernel has let go of what an operation has sent. Returns its bytes, and how many are done with.
    pub(super) fn released(&mut self, sequence: u32, chunks: &mut SpareMemory) -> (u64, u64) {
        let mut bytes = 0;
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.awaited == Some(sequence)) {
            (sent.awaited, bytes) = (None, sent.bytes);
        }
        let mut done = 0;
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.awaited.is_none()) {
            done += sent.bytes;
            sent.pieces.into_iter().for_each(|piece| piece.free(chunks));
        }
        (bytes, done)
    }

    /// Drops what is queued, no operation being under way.
    pub(super) fn clear(&mut self, chunks: &mut SpareMemory) {
        let pieces = core::mem::take(&mut self.pieces);
        (self.taken_bytes, self.queued_bytes) = (0, 0);
        match self.sent.back_mut() {
            // The kernel may read the beginning of the first of them.
            Some(sent) => sent.pieces.extend(pieces),
            None => pieces.into_iter().for_each(|piece| piece.free(chunks)),
        }
    }
}
