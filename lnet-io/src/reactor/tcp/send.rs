//! How streams send.

use io_uring::cqueue;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::operation::{Operation, Purpose, Tag};
use super::stream::Phase;
use super::submission::Request;
use super::{StreamEvent, StreamId, Streams, errno_of, is_pause};
use crate::region::ReadLease;

// A flag of include/uapi/linux/io_uring.h.
/// Flag of a notification: the kernel has copied the bytes.
const IORING_NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;

/// Errors of a send without copying that one with copying may not have: memory cannot be locked, or the
/// kernel does not know the flags.
fn refuses_zero_copy(errno: Errno) -> bool {
    matches!(errno, Errno::NOMEM | Errno::NOBUFS | Errno::OPNOTSUPP | Errno::INVAL)
}

impl Streams {
    /// Queues a copy of these bytes. A stream that can send no more takes none.
    pub fn queue_bytes(&mut self, id: StreamId, bytes: &[u8]) {
        let Some(stream) = self.slots.get_mut(id.slot as usize) else { return };
        if stream.takes_bytes(id.generation) {
            stream.outgoing.queue_bytes(bytes, &mut self.chunks);
            self.make_due(id.slot);
        }
    }

    /// Queues bytes that stay where they are. The lease is dropped once the kernel has taken them and, with
    /// zero copy, let go of them.
    pub fn queue_lease(&mut self, id: StreamId, lease: ReadLease) {
        let Some(stream) = self.slots.get_mut(id.slot as usize) else { return };
        if stream.takes_bytes(id.generation) {
            stream.outgoing.queue_lease(lease);
            self.make_due(id.slot);
        }
    }

    /// Bytes that are queued, and that the kernel is not known to have taken.
    #[must_use]
    pub fn queued_bytes(&self, id: StreamId) -> u64 {
        self.get(id).map_or(0, |stream| stream.outgoing.queued_bytes())
    }

    /// Sends what an open stream has queued: at once as much as the kernel has room for, and starts an
    /// operation for the rest.
    pub(super) fn advance_send(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if !stream.send.is_idle() || stream.outgoing.is_empty() {
            return;
        }
        let zero_copy =
            self.submission.sends_zero_copy && stream.outgoing.is_worth_zero_copy(self.zero_copy_min_bytes);
        if !zero_copy && !self.send_now(slot) {
            return;
        }
        let stream = &mut self.slots[slot as usize];
        let pieces = self.submission.vector(stream.outgoing.addresses());
        let request = Request::Send { pieces, zero_copy };
        let fd = stream.fd();
        let sequence = stream.next_sequence();
        stream.send = Operation::UnderWay(sequence);
        self.submission.start(fd, request, Tag { purpose: Purpose::Send, sequence, slot });
    }

    /// Sends what the kernel has room for, which an operation would do no sooner. Whether one is to send the
    /// rest.
    fn send_now(&mut self, slot: u32) -> bool {
        let stream = &mut self.slots[slot as usize];
        let (sent, is_all) = self.submission.send_now(stream.fd(), stream.outgoing.addresses());
        match sent {
            Ok(bytes) => {
                self.counters.sent_bytes += bytes as u64;
                let done = stream.outgoing.sent(bytes, None, &mut self.chunks);
                // There may be more than one call sends.
                let is_due = is_all && !stream.outgoing.is_empty();
                self.tell_sent(slot, done);
                if is_due {
                    self.make_due(slot);
                }
                !is_all
            }
            Err(errno) if is_pause(errno) => true,
            Err(errno) => {
                self.fail_sending(slot, errno);
                false
            }
        }
    }

    /// A send has completed, or the kernel has let go of what one has sent.
    pub(super) fn sent(&mut self, slot: u32, sequence: u32, result: i32, flags: u32) {
        self.make_due(slot);
        if cqueue::notif(flags) {
            self.released(slot, sequence, result as u32 & IORING_NOTIF_USAGE_ZC_COPIED != 0);
            return;
        }
        self.submission.ended();
        let stream = &mut self.slots[slot as usize];
        stream.send = Operation::Idle;
        let awaited = cqueue::more(flags).then_some(sequence);
        let bytes = usize::try_from(result).unwrap_or(0);
        self.counters.sent_bytes += bytes as u64;
        let done = stream.outgoing.sent(bytes, awaited, &mut self.chunks);
        self.tell_sent(slot, done);
        let stream = &mut self.slots[slot as usize];
        match errno_of(result) {
            None => {}
            Some(errno) if is_pause(errno) => {}
            Some(errno)
                if refuses_zero_copy(errno)
                    && stream.outgoing.is_worth_zero_copy(self.zero_copy_min_bytes) =>
            {
                stream.outgoing.give_up_zero_copy();
            }
            Some(errno) => self.fail_sending(slot, errno),
        }
    }

    fn released(&mut self, slot: u32, sequence: u32, copied: bool) {
        let stream = &mut self.slots[slot as usize];
        let (bytes, done) = stream.outgoing.released(sequence, &mut self.chunks);
        if copied {
            stream.outgoing.give_up_zero_copy();
        } else {
            self.counters.zero_copy_bytes += bytes;
        }
        self.tell_sent(slot, done);
    }

    fn tell_sent(&mut self, slot: u32, bytes: u64) {
        if bytes != 0 && self.slots[slot as usize].phase == Phase::Open {
            let id = self.id(slot);
            self.events.push_back(StreamEvent::Sent { id, bytes });
        }
    }

    /// Nothing can be sent any more. What has arrived is received; the end is told behind it.
    fn fail_sending(&mut self, slot: u32, errno: Errno) {
        let stream = &mut self.slots[slot as usize];
        stream.outgoing.clear(&mut self.chunks);
        stream.error = Some(errno);
        if let Some(socket) = &stream.socket {
            // A shutdown ends the receive, whatever the reason was; it fails where the connection has gone.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }
}
