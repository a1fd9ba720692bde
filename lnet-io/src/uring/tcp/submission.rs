//! The ring of streams: operations that wait to be submitted, and what describes them to the kernel.
//!
//! Invariant: what describes an operation stays where it is until the kernel has taken the operation; then
//! the kernel has a copy (`IORING_FEAT_SUBMIT_STABLE`).

use core::mem::zeroed;
use core::ptr::NonNull;
use std::net::SocketAddr;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::io::Errno;

use super::super::ring;
use super::super::socket::write_address;
use super::super::waiter::{is_passing, refused, system};
use super::TcpError;
use super::operation::{Purpose, Tag};

/// Operations that can wait to be submitted.
const ENTRIES: usize = 512;
/// Pieces that one operation sends or fills, at most.
pub(super) const PIECES_MAX: usize = 64;
/// Entries and pieces that a stream may use at once.
const ENTRIES_OF_STREAM: usize = 4;
const PIECES_OF_STREAM: usize = 2 * PIECES_MAX;
/// Pieces that can wait to be submitted.
const PIECES: usize = 4096;
/// Completions beyond these wait in the kernel.
const COMPLETIONS_MAX: usize = 8192;

/// A ring, and what was not submitted.
pub(super) struct Submission {
    ring: IoUring,
    /// Lists that never grow.
    messages: Vec<libc::msghdr>,
    pieces: Vec<libc::iovec>,
    addresses: Vec<libc::sockaddr_in6>,
    /// Entries that the kernel has not taken.
    waiting: usize,
    /// Operations that have not ended, cancellations and zero-copy reports aside.
    under_way: usize,
    /// Whether the kernel can send without copying.
    pub(super) sends_zero_copy: bool,
}

// SAFETY: the pointers lead into memory that belongs to this value, or to the streams that the operations are
// of, and mean the same on every thread.
unsafe impl Send for Submission {}

impl Submission {
    pub(super) fn new(streams_max: u32, receive_buffers: u16) -> Result<Self, TcpError> {
        let unsupported = |feature| TcpError::Unsupported { feature };
        let completions = usize::from(receive_buffers) + 2 * streams_max as usize + ENTRIES;
        let ring =
            ring::make(ENTRIES, completions.min(COMPLETIONS_MAX)).map_err(
                |error| match Errno::from_io_error(&error) {
                    Some(Errno::INVAL) => unsupported("cooperative completions"),
                    _ => refused(&error).into(),
                },
            )?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_submit_stable() {
            return Err(unsupported("lossless completions"));
        }
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        probed.map_err(|error| system("IORING_REGISTER_PROBE", &error))?;
        // SendZc came with multishot receives, of which nothing else tells.
        if !probe.is_supported(opcode::SendZc::CODE) {
            return Err(unsupported("multishot recv"));
        }
        Ok(Self {
            ring,
            messages: Vec::with_capacity(ENTRIES),
            pieces: Vec::with_capacity(PIECES),
            addresses: Vec::with_capacity(ENTRIES),
            waiting: 0,
            under_way: 0,
            sends_zero_copy: probe.is_supported(opcode::SendMsgZc::CODE),
        })
    }

    pub(super) fn ring(&self) -> &IoUring {
        &self.ring
    }

    /// Whether the kernel is to be entered: for entries, or for what it has put off.
    pub(super) fn needs_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        self.waiting != 0 || submission.taskrun() || submission.cq_overflow()
    }

    /// Whether entries wait.
    pub(super) fn has_entries(&self) -> bool {
        self.waiting != 0
    }

    /// Whether completions can be taken.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes the completions.
    pub(super) fn completions(&mut self, out: &mut Vec<io_uring::cqueue::Entry>) {
        out.extend(self.ring.completion());
    }

    /// Whether an operation has not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way != 0
    }

    /// Makes room for the operations of one stream; false if the kernel takes none now.
    pub(super) fn make_room(&mut self) -> Result<bool, TcpError> {
        if self.has_room() {
            return Ok(true);
        }
        self.enter()?;
        Ok(self.has_room())
    }

    fn has_room(&self) -> bool {
        // Descriptions of operations stay until the kernel has taken all of them.
        let of_entries = [self.waiting, self.messages.len(), self.addresses.len()];
        of_entries.into_iter().all(|used| used + ENTRIES_OF_STREAM <= ENTRIES)
            && self.pieces.len() + PIECES_OF_STREAM <= PIECES
    }

    /// A vector of pieces for an operation that is pushed next, at most [`PIECES_MAX`].
    pub(super) fn vector(
        &mut self,
        pieces: impl Iterator<Item = NonNull<[u8]>>,
    ) -> (*const libc::iovec, usize) {
        let start = self.pieces.len();
        let pieces = pieces.take(PIECES_MAX);
        let piece =
            |piece: NonNull<[u8]>| libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() };
        for piece in pieces.map(piece) {
            assert!(self.pieces.len() < PIECES, "pieces without room");
            self.pieces.push(piece);
        }
        (self.pieces[start..].as_ptr(), self.pieces.len() - start)
    }

    /// A message of these pieces, likewise.
    pub(super) fn message(&mut self, (pieces, count): (*const libc::iovec, usize)) -> *const libc::msghdr {
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { zeroed() };
        (message.msg_iov, message.msg_iovlen) = (pieces.cast_mut(), count);
        assert!(self.messages.len() < ENTRIES, "a message without room");
        self.messages.push(message);
        &raw const self.messages[self.messages.len() - 1]
    }

    /// An address, likewise, and its length.
    pub(super) fn address(&mut self, address: SocketAddr) -> (*const libc::sockaddr, u32) {
        // SAFETY: all zeros is an address of no family.
        let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
        let length = write_address(&mut name, address);
        assert!(self.addresses.len() < ENTRIES, "an address without room");
        self.addresses.push(name);
        ((&raw const self.addresses[self.addresses.len() - 1]).cast(), length)
    }

    /// Starts an operation. Its memory belongs to the streams, which do not free it before it has ended.
    #[inline]
    pub(super) fn start(&mut self, entry: squeue::Entry, tag: Tag) {
        self.push(&entry.user_data(tag.user_data()));
        self.under_way += 1;
    }

    /// Cancels an operation.
    pub(super) fn cancel(&mut self, purpose: Purpose, sequence: u32, slot: u32) {
        let tag = Tag { purpose, sequence, slot };
        let entry = opcode::AsyncCancel::new(tag.user_data()).build().user_data(tag.cancellation());
        // Only a cancellation that does not find its operation says so.
        self.push(&entry.flags(squeue::Flags::SKIP_SUCCESS));
    }

    /// An operation has ended.
    #[inline]
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    #[inline]
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what the entry points to is in `self` until the entry is submitted, or in the streams until
        // the operation has ended.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "room was made for each operation");
        self.waiting += 1;
    }

    /// Hands the kernel what waits, and lets it do what it has put off.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), TcpError> {
        self.entered(self.ring.submitter().submit())
    }

    /// Enters like [`Submission::enter`], and waits for a completion, but not for long.
    pub(super) fn enter_and_wait(&mut self, interval: Timespec) -> Result<(), TcpError> {
        let args = SubmitArgs::new().timespec(&interval);
        self.entered(self.ring.submitter().submit_with_args(1, &args))
    }

    fn entered(&mut self, outcome: std::io::Result<usize>) -> Result<(), TcpError> {
        match outcome {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(system("io_uring_enter", &error).into()),
        }
        self.waiting = self.ring.submission().len();
        if self.waiting == 0 {
            self.messages.clear();
            self.pieces.clear();
            self.addresses.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_only_where_all_that_describes_an_operation_has_some() {
        let mut submission = Submission::new(1, 2).unwrap();
        // More than there is room for at once.
        for _ in 0..2 * ENTRIES {
            assert!(submission.make_room().unwrap());
            submission.message((core::ptr::null(), 0));
            submission.address(SocketAddr::from(([127, 0, 0, 1], 1)));
        }
    }
}
