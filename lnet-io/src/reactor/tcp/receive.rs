//! How streams receive.

use io_uring::cqueue;
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use super::operation::{Operation, Purpose, Tag};
use super::stream::{Phase, Wanted};
use super::submission::{PIECES_MAX, Request};
use super::{Mode, ReceivedBytes, StreamEvent, StreamId, Streams, errno_of, is_pause};
use crate::region::FragmentsMut;

impl Streams {
    /// Receives into provided buffers; each brings a [`StreamEvent::Received`].
    ///
    /// # Panics
    /// If a receive is under way.
    pub fn receive(&mut self, id: StreamId, mode: Mode) {
        self.want(id, Wanted::Buffers(mode));
    }

    /// Tells by [`StreamEvent::Readable`] when [`Streams::receive_now`] would find something.
    ///
    /// # Panics
    /// If a receive is under way.
    pub fn await_bytes(&mut self, id: StreamId) {
        self.want(id, Wanted::Readiness);
    }

    /// Receives what has arrived straight into `into`, as far as that goes; how many bytes. `None` if
    /// nothing waits in the kernel. At the end of the stream that is so for good, and [`StreamEvent::Ended`]
    /// follows.
    ///
    /// # Panics
    /// If a receive is under way, or `into` has no bytes.
    pub fn receive_now(&mut self, id: StreamId, mut into: FragmentsMut<'_>) -> Option<usize> {
        assert!(into.length_bytes() != 0, "a receive of no bytes");
        let stream = self.find(id)?;
        if stream.stops() || stream.is_ended {
            return None;
        }
        assert!(stream.wanted.is_nothing() && stream.receive.is_idle(), "two receives at once on a stream");
        let socket = stream.socket.as_ref().filter(|_| stream.phase == Phase::Open)?;
        let mut pieces: [_; PIECES_MAX] =
            core::array::from_fn(|_| IoSliceMut::new(into.next().unwrap_or_default()));
        let mut ancillary = RecvAncillaryBuffer::new(&mut []);
        let received = loop {
            match recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match received.map(|message| message.bytes) {
            Ok(0) => {
                let error = stream.has_hung_up().then_some(Errno::CONNRESET);
                self.drop_wanted(id.slot, error);
                None
            }
            Ok(bytes) => {
                self.counters.placed_bytes += bytes as u64;
                Some(bytes)
            }
            Err(Errno::AGAIN) => None,
            Err(errno) => {
                self.drop_wanted(id.slot, Some(errno));
                None
            }
        }
    }

    fn want(&mut self, id: StreamId, wanted: Wanted) {
        let Some(stream) = self.find(id) else { return };
        assert!(!stream.stops(), "a receive on a stream that is being paused or detached");
        assert!(stream.wanted.is_nothing(), "two receives at once on a stream");
        stream.wanted = wanted;
        self.make_due(id.slot);
    }

    /// Ends a receive; then [`StreamEvent::Paused`] follows. Bytes that arrived are told of before.
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
        let bytes = self.polled.bytes(&received.buffer);
        &bytes.unwrap_or_else(|| self.buffers.bytes(&received.buffer))[..received.length as usize]
    }

    /// Whether few buffers are left: bytes that wait are to be moved elsewhere, so that other streams can
    /// receive.
    pub fn lacks_buffers(&self) -> bool {
        self.buffers.is_scarce()
    }

    /// Lets the kernel use their buffer again.
    #[inline]
    pub fn give_back(&mut self, received: ReceivedBytes) {
        match self.polled.buffers_of(&received.buffer) {
            Some(polled) => polled.give_back(received.buffer),
            None => self.buffers.give_back(received.buffer),
        }
    }

    /// Starts or ends the receive of an open stream.
    pub(super) fn advance_receive(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if stream.stops() {
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
        let request = match stream.wanted {
            Wanted::Nothing => return,
            Wanted::Buffers(Mode::Many) if stream.is_polled => return,
            Wanted::Buffers(_) if stream.is_starved => return,
            Wanted::Buffers(_) if !self.buffers.is_stocked() => return self.starve(slot),
            Wanted::Buffers(Mode::Many) if !self.polled.has_room() => Request::ReceiveMany,
            // A length of 0 is as much as the buffer holds. What receives on and on may be polled afterwards.
            Wanted::Buffers(Mode::Many | Mode::Once) => Request::ReceiveOnce(0),
            Wanted::Buffers(Mode::UpTo(bytes)) => Request::ReceiveOnce(bytes),
            Wanted::Readiness => Request::AwaitBytes,
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
            None => self.went_on(slot),
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
    fn went_on(&mut self, slot: u32) {
        let id = self.id(slot);
        let wanted = &mut self.slots[slot as usize].wanted;
        match *wanted {
            Wanted::Readiness => {
                *wanted = Wanted::Nothing;
                self.events.push_back(StreamEvent::Readable { id });
            }
            Wanted::Buffers(Mode::Many) => self.begin_polling(slot),
            Wanted::Nothing => {}
            Wanted::Buffers(Mode::Once | Mode::UpTo(_)) => *wanted = Wanted::Nothing,
        }
    }

    /// Nothing arrives any more.
    fn drop_wanted(&mut self, slot: u32, error: Option<Errno>) {
        let stream = &mut self.slots[slot as usize];
        let error = stream.error.or(error);
        stream.wanted = Wanted::Nothing;
        self.end(slot, error);
    }
}
