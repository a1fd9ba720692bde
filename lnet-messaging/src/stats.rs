//! Counters of queues, read and set back under the lock of their transfer machine.

use std::time::Duration;

/// Counters of one queue of a transfer machine, since it was made or they were set back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueStats {
    /// Buffers that were added.
    pub num_adds: u64,
    /// Calls that asked for the end of a queued buffer, and buffers that an aborting stop has met. Deadlines
    /// do not count.
    pub num_dels: u64,
    /// Events that say success, those that keep their buffer queued included.
    pub num_s_events: u64,
    /// Events that say failure; of the receive queue also messages that were lost, and buffers by which the
    /// deficit of provisioning has grown.
    pub num_f_events: u64,
    /// Sum over all buffers that left the queue of the time that they were in it.
    pub time_in_queue: Duration,
    /// Bytes of successful operations: of the length that was received, or of the length that was to be sent.
    pub total_bytes: u64,
    /// Bytes of the longest of them.
    pub max_bytes: u64,
}

impl QueueStats {
    /// Counts a success of so many bytes.
    pub(crate) fn succeed(&mut self, length_bytes: u64) {
        self.num_s_events += 1;
        self.total_bytes += length_bytes;
        self.max_bytes = self.max_bytes.max(length_bytes);
    }
}
