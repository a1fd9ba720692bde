//! Streams that the driver looks at itself.
//!
//! A stream on which something has just arrived soon has more: the next request, or the answer. Where the
//! driver polls, asking such a socket costs less than an operation that waits for its bytes: no wake-up by
//! who sends them, no completion. So a stream that receives on and on is left without an operation after
//! bytes have come, and is asked in each turn and each look for arrivals. When nothing has come for a while,
//! and before its driver sleeps, it gets an operation as any other.
//!
//! Invariants: a stream in the list has no receive under way; there are few of them, so a look costs little
//! however many streams there are.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::stream::{Phase, Wanted};
use super::{Mode, ReceivedBytes, StreamEvent, Streams, TcpError};
use crate::epoll::Supply;
use crate::reactor::buffers::{Buffer, Buffers};

/// Streams that are polled at once.
pub(super) const POLLED_MAX: usize = 2;
/// Looks in vain after which streams are not polled any more. One takes some 0.3 us.
const LOOKS_MAX: u32 = 200;
/// Buffers that polled streams are received into.
const BUFFERS: u16 = 16;

/// The streams that are polled, and buffers of their own.
pub(super) struct Polled {
    slots: Vec<u32>,
    /// Looks in vain since something came.
    looks: u32,
    buffers: Buffers,
    /// The buffer to receive into next.
    spare: Option<Buffer>,
}

impl Polled {
    /// None yet, with buffers of so many bytes.
    pub(super) fn new(buffer_bytes: usize) -> rustix::io::Result<Self> {
        let buffers = Buffers::new(BUFFERS, buffer_bytes)?;
        Ok(Self { slots: Vec::with_capacity(POLLED_MAX), looks: 0, buffers, spare: None })
    }

    /// Whether there is room for another stream.
    pub(super) fn has_room(&self) -> bool {
        self.slots.len() < POLLED_MAX
    }

    /// The buffers, if this one is of them.
    pub(super) fn buffers_of(&mut self, buffer: &Buffer) -> Option<&mut Buffers> {
        Some(&mut self.buffers).filter(|buffers| buffers.has(buffer))
    }

    /// The bytes of a buffer, if it is one of these.
    pub(super) fn bytes(&self, buffer: &Buffer) -> Option<&[u8]> {
        self.buffers.has(buffer).then(|| self.buffers.bytes(buffer))
    }

    fn take_spare(&mut self) -> Option<Buffer> {
        self.spare.take().or_else(|| {
            let index = self.buffers.peek(0)?.index;
            self.buffers.advance(1);
            Some(self.buffers.take(index))
        })
    }
}

impl Streams {
    /// Polls a stream from now on that receives on and on, if it may.
    pub(super) fn begin_polling(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        let is_fit = matches!(stream.wanted, Wanted::Buffers(Mode::Many)) && stream.receive.is_idle();
        // Its place may be in the list yet by a stream that has gone.
        let is_listed = self.polled.slots.contains(&slot);
        if is_fit && (is_listed || self.polled.has_room()) {
            stream.is_polled = true;
            self.polled.looks = 0;
            if !is_listed {
                self.polled.slots.push(slot);
            }
        }
    }

    /// Gives polled streams an operation each, since the driver is about to sleep.
    ///
    /// # Errors
    /// The kernel's refusal to go on.
    pub fn end_polling(&mut self) -> Result<(), TcpError> {
        if self.polled.slots.is_empty() {
            return Ok(());
        }
        self.end_looks();
        self.flush()
    }

    fn end_looks(&mut self) {
        while let Some(slot) = self.polled.slots.pop() {
            self.slots[slot as usize].is_polled = false;
            self.make_due(slot);
        }
    }

    /// Whether something has arrived: looks at polled streams as well.
    #[inline]
    pub fn has_arrivals(&mut self) -> bool {
        self.has_work() || self.look()
    }

    /// Receives what has come on polled streams; whether that is anything.
    pub(super) fn look(&mut self) -> bool {
        if self.polled.slots.is_empty() {
            return false;
        }
        let before = self.events.len();
        for index in (0..self.polled.slots.len()).rev() {
            let slot = self.polled.slots[index];
            if !self.receive_polled(slot) {
                self.slots[slot as usize].is_polled = false;
                self.polled.slots.swap_remove(index);
                self.make_due(slot);
            }
        }
        let has_come = self.events.len() != before;
        self.polled.looks = if has_come { 0 } else { self.polled.looks + 1 };
        if self.polled.looks > LOOKS_MAX {
            self.end_looks();
        }
        has_come
    }

    /// Receives from a polled stream; false if it is not to be polled any more.
    fn receive_polled(&mut self, slot: u32) -> bool {
        let id = self.id(slot);
        let stream = &self.slots[slot as usize];
        let is_fit = stream.is_polled
            && stream.phase == Phase::Open
            && matches!(stream.wanted, Wanted::Buffers(Mode::Many))
            && !stream.stops()
            && !stream.is_ended;
        let Some(socket) = stream.socket.as_ref().filter(|_| is_fit) else { return false };
        let Some(mut buffer) = self.polled.take_spare() else { return false };
        let received =
            rustix::net::recv(socket, self.polled.buffers.bytes_mut(&mut buffer), RecvFlags::DONTWAIT);
        match received {
            Ok((_, length @ 1..)) => {
                self.counters.copied_bytes += length as u64;
                let bytes = ReceivedBytes { buffer, length: length as u32 };
                self.events.push_back(StreamEvent::Received { id, bytes });
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.polled.spare = Some(buffer);
                return true;
            }
            _ => self.polled.spare = Some(buffer),
        }
        // An operation finds out the same, and tells.
        false
    }
}
