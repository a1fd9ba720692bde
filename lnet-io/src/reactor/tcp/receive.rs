//! How streams receive.

use io_uring::cqueue;
use rustix::io::Errno;

use super::operation::{Operation, Purpose, Tag};
use super::stream::{Phase, Wanted};
use super::submission::{PIECES_MAX, Request};
use super::{Mode, ReceivedBytes, StreamEvent, StreamId, Streams, errno_of, is_pause};
use crate::region::WriteLease;

impl Streams {
    /// Receives into provided buffers; each brings a [`StreamEvent::Received`].
    ///
    /// # Panics
    /// If a receive is under way.
    pub fn receive(&mut self, id: StreamId, mode: Mode) {
        self.want(id, Wanted::Buffers(mode));
    }

    /// Receives as many bytes as the lease has from `filled_bytes` on straight into it;
    /// [`StreamEvent::Placed`] brings the lease back.
    ///
    /// # Panics
    /// If a receive is under way, or nothing is to be filled.
    pub fn receive_into(&mut self, id: StreamId, lease: WriteLease, filled_bytes: usize) {
        assert!(filled_bytes < lease.length_bytes(), "a placement of no bytes");
        self.want(id, Wanted::Placement { lease, placed_bytes: filled_bytes });
    }

    fn want(&mut self, id: StreamId, wanted: Wanted) {
        let Some(stream) = self.find(id) else { return };
        assert!(!stream.stops(), "a receive on a stream that is being paused or detached");
        assert!(stream.wanted.is_nothing(), "two receives at once on a stream");
        stream.wanted = wanted;
        self.make_due(id.slot);
    }

    /// Ends a receive into buffers, or waits for the end of a placement; then [`StreamEvent::Paused`]
    /// follows. Bytes that arrived are told of before.
    pub fn pause(&mut self, id: StreamId) {
        if let Some(stream) = self.find(id) {
            stream.is_pausing = true;
            self.make_due(id.slot);
        }
    }

    /// Bytes that have arrived.
    #[must_use]
    #[inline]
    pub fn bytes(&self, received: &ReceivedBytes) -> &[u8] {
        &self.buffers.bytes(&received.buffer)[..received.length as usize]
    }

    /// Whether few buffers are left: bytes that wait are to be moved elsewhere, so that other streams can
    /// receive.
    pub fn lacks_buffers(&self) -> bool {
        self.buffers.is_scarce()
    }

    /// Lets the kernel use their buffer again.
    #[inline]
    pub fn give_back(&mut self, received: ReceivedBytes) {
        self.buffers.give_back(received.buffer);
    }

    /// Starts or ends the receive of an open stream.
    pub(super) fn advance_receive(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        let stops = stream.stops() && !stream.wanted.is_placement();
        if stops {
            self.cancel(slot, Purpose::Receive);
            return;
        }
        if !stream.receive.is_idle() {
            return;
        }
        if stream.is_ended {
            self.drop_wanted(slot, None);
            return;
        }
        let fd = stream.fd();
        let request = match &mut stream.wanted {
            Wanted::Nothing => return,
            Wanted::Buffers(_) if stream.is_starved => return,
            Wanted::Buffers(_) if !self.buffers.is_stocked() => return self.starve(slot),
            Wanted::Buffers(Mode::Many) => Request::ReceiveMany,
            // A length of 0 is as much as the buffer holds.
            Wanted::Buffers(Mode::Once) => Request::ReceiveOnce(0),
            Wanted::Buffers(Mode::UpTo(bytes)) => Request::ReceiveOnce(*bytes),
            Wanted::Placement { lease, placed_bytes } => {
                let pieces = lease.fragments_mut(*placed_bytes..lease.length_bytes()).into_addresses();
                Request::Fill(self.submission.vector(pieces.take(PIECES_MAX)))
            }
        };
        let sequence = stream.next_sequence();
        stream.receive = Operation::UnderWay(sequence);
        self.submission.start(fd, request, Tag { purpose: Purpose::Receive, sequence, slot });
    }

    /// A receive has completed, or goes on.
    pub(super) fn received(&mut self, slot: u32, result: i32, flags: u32) {
        let id = self.id(slot);
        let stream = &mut self.slots[slot as usize];
        if !cqueue::more(flags) {
            stream.receive = Operation::Idle;
            self.submission.ended();
            self.make_due(slot);
        }
        if let Some(index) = cqueue::buffer_select(flags) {
            let bytes = ReceivedBytes { buffer: self.buffers.take(index), length: result.max(0) as u32 };
            let is_open = self.slots[slot as usize].phase == Phase::Open;
            if is_open && bytes.length != 0 {
                self.counters.copied_bytes += u64::from(bytes.length);
                self.events.push_back(StreamEvent::Received { id, bytes });
            } else {
                self.give_back(bytes);
            }
        }
        let stream = &mut self.slots[slot as usize];
        match errno_of(result) {
            _ if stream.phase != Phase::Open => stream.wanted = Wanted::Nothing,
            None if result == 0 => {
                let error = stream.has_hung_up().then_some(Errno::CONNRESET);
                self.drop_wanted(slot, error);
            }
            None => self.went_on(slot, result as usize),
            Some(Errno::NOBUFS) => {
                self.counters.buffers_lacking += 1;
                self.starve(slot);
            }
            Some(errno) if is_pause(errno) => {}
            Some(errno) => self.drop_wanted(slot, Some(errno)),
        }
    }

    /// Has a stream wait for a provided buffer.
    fn starve(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.slots[slot as usize].is_starved, true) {
            self.starved.push_back(slot);
        }
    }

    /// Bytes have arrived.
    fn went_on(&mut self, slot: u32, bytes: usize) {
        let id = self.id(slot);
        let stream = &mut self.slots[slot as usize];
        match core::mem::take(&mut stream.wanted) {
            Wanted::Placement { lease, mut placed_bytes } => {
                self.counters.placed_bytes += bytes as u64;
                placed_bytes += bytes;
                if placed_bytes == lease.length_bytes() {
                    self.events.push_back(StreamEvent::Placed { id, lease, result: Ok(()) });
                } else {
                    stream.wanted = Wanted::Placement { lease, placed_bytes };
                }
            }
            Wanted::Buffers(Mode::Many) => stream.wanted = Wanted::Buffers(Mode::Many),
            Wanted::Buffers(Mode::Once | Mode::UpTo(_)) | Wanted::Nothing => {}
        }
    }

    /// Nothing arrives any more.
    fn drop_wanted(&mut self, slot: u32, error: Option<Errno>) {
        let id = self.id(slot);
        let stream = &mut self.slots[slot as usize];
        let error = stream.error.or(error);
        if let Wanted::Placement { lease, .. } = core::mem::take(&mut stream.wanted) {
            self.events.push_back(StreamEvent::Placed { id, lease, result: Err(error) });
        }
        self.end(slot, error);
    }
}
