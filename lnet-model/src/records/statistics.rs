//! Counters of a node, of a local NI, of a peer NI.

use serde::{Deserialize, Serialize};

counters! {
    /// Counters of a whole node (`stats show`). Lengths are bytes.
    Statistics {
        /// Messages in existence.
        msgs_alloc: u64 = "msgs_alloc",
        /// Most messages that there were at once.
        msgs_max: u64 = "msgs_max",
        /// Responses waited for.
        rst_alloc: u64 = "rst_alloc",
        /// Errors that have no counter of their own.
        errors: u64 = "errors",
        /// Messages sent.
        send_count: u64 = "send_count",
        /// Messages sent again.
        resend_count: u64 = "resend_count",
        /// Responses that did not come in time.
        response_timeout_count: u64 = "response_timeout_count",
        /// Sends that ended so.
        local_interrupt_count: u64 = "local_interrupt_count",
        /// Sends that ended so.
        local_dropped_count: u64 = "local_dropped_count",
        /// Sends that ended so.
        local_aborted_count: u64 = "local_aborted_count",
        /// Sends that ended so.
        local_no_route_count: u64 = "local_no_route_count",
        /// Sends that ended so.
        local_timeout_count: u64 = "local_timeout_count",
        /// Sends that ended so.
        local_error_count: u64 = "local_error_count",
        /// Sends that ended so.
        remote_dropped_count: u64 = "remote_dropped_count",
        /// Sends that ended so.
        remote_error_count: u64 = "remote_error_count",
        /// Sends that ended so.
        remote_timeout_count: u64 = "remote_timeout_count",
        /// Sends that ended so.
        network_timeout_count: u64 = "network_timeout_count",
        /// Messages given up after they were sent again.
        failed_resends: u64 = "failed_resends",
        /// Messages that got through because they were sent again.
        successful_resends: u64 = "successful_resends",
        /// Messages received.
        recv_count: u64 = "recv_count",
        /// Messages forwarded.
        route_count: u64 = "route_count",
        /// Messages dropped.
        drop_count: u64 = "drop_count",
        /// Payload sent.
        send_length: u64 = "send_length",
        /// Payload received.
        recv_length: u64 = "recv_length",
        /// Payload forwarded.
        route_length: u64 = "route_length",
        /// Payload dropped.
        drop_length: u64 = "drop_length",
        /// Pushes of peers by which they are known.
        pushes_taken: u64 = "pushes_taken",
        /// Pushes whose senders were pinged instead: longer than the buffer, older than what is known,
        /// without Multi-Rail.
        pushes_pinged: u64 = "pushes_pinged",
        /// NIDs that a peer claimed, and that have answered otherwise, or were given to another peer.
        pushes_contradicted: u64 = "pushes_contradicted",
        /// NIDs that a peer claimed, and that have answered so.
        pushes_proven: u64 = "pushes_proven",
        /// Pushes that were malformed, or not of their senders.
        pushes_refused: u64 = "pushes_refused",
        /// Answers to pings that were malformed, or not of the peer that was asked.
        answers_refused: u64 = "answers_refused",
        /// Pings and pushes of discovery that were given up while they were silent, since others had no room.
        discoveries_evicted: u64 = "discoveries_evicted",
        /// Credits of NIs that messages passed on which their peers did not take for a second.
        credits_passed_on: u64 = "credits_passed_on",
        /// Messages of other nodes that left before they had arrived whole.
        cuts: u64 = "cuts",
        /// Messages among them whose rest did not come soon.
        cuts_slow: u64 = "cuts_slow",
    }
}

counters! {
    /// Messages by type.
    MessageCounts {
        /// PUTs.
        put: u64 = "put",
        /// GETs.
        get: u64 = "get",
        /// REPLYs.
        reply: u64 = "reply",
        /// ACKs.
        ack: u64 = "ack",
        /// HELLOs.
        hello: u64 = "hello",
    }
}

/// Times of one kind; all zero while there are no samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LatencySummary {
    /// How many were taken.
    pub samples: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Mean of the times.
    pub average_ns: u64,
}

impl MessageCounts {
    /// Messages of all types.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.put + self.get + self.reply + self.ack + self.hello
    }
}

/// Traffic of a local NI or a peer NI.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NiTraffic {
    /// Messages sent.
    pub sent: MessageCounts,
    /// Messages received.
    pub received: MessageCounts,
    /// Messages dropped.
    pub dropped: MessageCounts,
    /// Payload sent, bytes.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Payload received, bytes.
    #[serde(default)]
    pub received_bytes: u64,
    /// Times from the call until a PUT has left.
    pub put_egress: LatencySummary,
    /// Times from a GET to its REPLY.
    pub get_rtt: LatencySummary,
    /// Times from a PUT to its ACK.
    pub put_ack: LatencySummary,
}
