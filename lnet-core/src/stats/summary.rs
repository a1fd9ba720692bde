//! Objects that a shard holds, and the counters that `lnetctl stats show` prints of a node.

use super::{Counters, HealthCounts, Traffic};

/// Objects that a shard holds at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Match entries.
    pub match_entries: u32,
    /// Memory descriptors, those that wait for their last operation included.
    pub memory_descs: u32,
    /// Events that were not polled yet.
    pub events: u32,
    /// Messages on their way out.
    pub messages: u32,
    /// Delayed messages, and those that a sibling shard receives here or that this one receives there.
    pub delayed: u32,
    /// Descriptors for which responses are awaited.
    pub trackers: u32,
    /// Peers that are remembered.
    pub peers: u32,
}

/// The counters of a node's shards together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// Messages on their way out at this moment.
    pub messages: u64,
    /// The sum of the most that each shard had at once.
    pub messages_max: u64,
    /// Descriptors for which responses are awaited at this moment.
    pub trackers: u64,
    /// Messages sent; bytes of PUT and REPLY payload.
    pub sent: Traffic,
    /// Messages of other nodes that were sent on.
    pub routed: Traffic,
    /// Messages of other nodes that began to go on before all of them had arrived.
    pub cuts: u64,
    /// Messages among them of which the rest did not come soon.
    pub cuts_slow: u64,
    /// Messages received; bytes of PUT and REPLY payload that were taken.
    pub received: Traffic,
    /// Messages dropped, with the payload they announced.
    pub dropped: Traffic,
    /// How often a message was sent anew.
    pub resends: u64,
    /// Messages that were sent anew and got through.
    pub successful_resends: u64,
    /// Messages that were sent anew and failed all the same.
    pub failed_resends: u64,
    /// Credits of NIs that messages passed on.
    pub credits_passed_on: u64,
    /// Descriptors that were unlinked because a response did not come in time.
    pub response_timeouts: u64,
    /// Messages that were not sent, by how they ended.
    pub failed: HealthCounts,
}

impl Statistics {
    /// Adds what a shard has.
    pub fn add(&mut self, counters: &Counters, usage: &Usage) {
        self.messages += u64::from(usage.messages);
        self.messages_max += u64::from(counters.messages_max);
        self.trackers += u64::from(usage.trackers);
        self.sent += counters.sent;
        self.routed += counters.routed;
        self.cuts += counters.cuts;
        self.cuts_slow += counters.cuts_slow;
        self.received += counters.received;
        self.dropped += counters.dropped();
        self.resends += counters.resends;
        self.successful_resends += counters.successful_resends;
        self.failed_resends += counters.failed_resends;
        self.credits_passed_on += counters.credits_passed_on;
        self.response_timeouts += counters.response_timeouts;
        self.failed += &counters.failed;
    }
}
