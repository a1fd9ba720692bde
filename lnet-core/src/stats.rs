//! Counters of a shard. They run freely until all are reset.

mod histogram;
mod ni;
mod summary;

use core::ops::AddAssign;

use lnet_wire::named;

use crate::lnd::Status;

pub use histogram::{Histogram, NiLatencies};
pub use ni::{Durations, HealthCounts, NiCounters, TypeCounts};
pub use summary::{Statistics, Usage};

/// Messages and their payload.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl Traffic {
    pub(crate) const fn add(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

named! {
    /// Why a message that arrived was dropped. The sender learns nothing of it (LNet `lib-move.c:
    /// lnet_parse`).
    DropReason {
        /// A HELLO, an ACK or GET with payload, more payload than `LNET_MTU`, a GET that wants more than
        /// that.
        Malformed => "malformed header",
        /// The header's destination is not the NID of the NI it arrived by.
        NotLocal => "destination is not the receiving NI",
        /// The header's source NID is a wildcard.
        NoSource => "source nid is a wildcard",
        /// The message wants a response, and its source is not on the net of the NI it arrived by.
        NoRoute => "no way back to the source",
        /// A portal index of 64 or more.
        Portal => "portal index out of range",
        /// No entry of the portal takes it.
        NoMatch => "no entry matches",
        /// The first entry that matches has too little room and may not truncate.
        TooLong => "too long for the matching entry",
        /// An ACK or REPLY whose handle names no descriptor of this shard's life.
        UnknownMd => "unknown descriptor handle",
        /// An ACK or REPLY whose descriptor has used up its threshold.
        MdExhausted => "descriptor is used up",
        /// An ACK or REPLY whose descriptor is attached to a match entry.
        MdAttached => "descriptor is attached to an entry",
        /// A REPLY longer than its descriptor, which may not truncate.
        ReplyTooLong => "reply too long for its descriptor",
        /// The descriptor has no threshold, its reserved event slots are all in use, and as many messages of
        /// its peer are delayed as may be.
        EventQueueFull => "event slots are used up",
        /// The message wants a response or would have to wait, and every peer slot is busy with another peer.
        PeersFull => "peer table is full",
        /// The message wants a response, and no more responses may be under way.
        ResponsesFull => "too many responses under way",
        /// A drop rule ([`crate::fault`]).
        Fault => "drop rule",
        /// Its sender seems to have failed ([`crate::fault`]).
        PeerFailed => "simulated failure of the peer",
        /// The message would have to wait, and as many messages of its peer are delayed as may be
        /// ([`crate::Limits::delayed`]).
        DelayedFull => "too many messages are delayed",
        /// The message waited on a portal that is lazy no more.
        NotLazy => "portal is lazy no more",
        /// The NI that it arrived by is closed
        /// ([`NiStatus::Closed`](crate::topology::NiStatus::Closed)), or so new that the shard which it is
        /// for does not know it yet.
        NiClosed => "receiving NI is closed",
        /// The source is no NID of the peer that sent the message, or is on a net that this node is not on.
        ForgedSource => "source is not the sender's",
        /// The message has come by a gateway, and no route by that leads to its source's net: where that is
        /// demanded (`drop_asym_route`).
        AsymmetricRoute => "no route back by its gateway",
        /// The message is for a node on another net, and this one forwards nothing.
        RoutingOff => "routing is off",
        /// The message is to be forwarded, and nothing leads to its destination.
        NoNextHop => "no next hop to forward to",
        /// The message is to be forwarded, and its next hop does not answer.
        NextHopSilent => "next hop does not answer",
        /// The message would go back to the node that has forwarded it.
        LeadsBack => "next hop has sent it",
        /// The message is to be forwarded, and would come back: its gateway was found to lead here. Or it is
        /// the probe that has found that ([`LOOP_HOLD`](crate::shard::LOOP_HOLD)).
        Loop => "gateway leads back here",
        /// The message is to be forwarded, and longer than the buffers that there are.
        RouterTooLong => "too long for the router buffers",
        /// The message has waited too long for a router credit or a buffer
        /// ([`BUFFER_WAIT`](crate::shard::BUFFER_WAIT)).
        RouterFull => "no router buffer in time",
    }
}

named! {
    /// Why a message that arrived was delayed. One may be delayed several times, for several reasons.
    DelayReason {
        /// Its portal is lazy, and no entry takes it yet.
        Lazy => "no entry of the lazy portal yet",
        /// Its descriptor has no threshold, and its reserved event slots are all in use.
        EventSlots => "event slots are used up",
        /// Another message is written into its descriptor, by a sibling shard or as a REPLY, or waits for
        /// that.
        Filled => "another message is written into the descriptor",
        /// A sibling shard is asked whether it takes it.
        Sibling => "sibling is asked",
        /// A delay rule ([`crate::fault`]).
        Fault => "delay rule",
        /// A NID is being asked that its sender may have to go by
        /// ([`PeerView::awaits_name`](crate::topology::PeerView::awaits_name)).
        Name => "name of its sender is in question",
        /// The message is to be forwarded, and waits for a router credit of its sender or for a buffer.
        RouterBuffer => "no router buffer yet",
    }
}

/// What a shard has done so far. Only what ended well counts as sent or received (LNet
/// `lib-msg.c: lnet_msg_decommit`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Messages of this node that were sent; bytes of PUT and REPLY payload.
    pub sent: Traffic,
    /// Messages of other nodes that were sent on.
    pub routed: Traffic,
    /// Messages of other nodes that began to go on before all of them had arrived.
    pub cuts: u64,
    /// Messages among them of which the rest did not come soon.
    pub cuts_slow: u64,
    /// Messages received by the LNDs of this shard; bytes of PUT and REPLY payload that were taken.
    pub received: Traffic,
    /// Messages that could not be sent, or whose fate the LND does not know.
    pub send_failures: u64,
    /// Failed messages by how they ended, but for those that were unlinked before.
    pub failed: HealthCounts,
    /// How often a message was sent anew by another NI.
    pub resends: u64,
    /// Messages that were sent anew and got through.
    pub successful_resends: u64,
    /// Messages that were sent anew and failed all the same.
    pub failed_resends: u64,
    /// Requests that have waited for their peers to be discovered.
    pub gated: u64,
    /// Responses that had waited for a credit for long, and made room for others.
    pub responses_evicted: u64,
    /// Requests that were refused since every peer slot was busy with another peer.
    pub peers_refused: u64,
    /// Credits of NIs that went from a message which its peer did not take for long to one that waited, or
    /// that were lent and went.
    pub credits_passed_on: u64,
    /// Descriptors that were unlinked because a response did not come in time.
    pub response_timeouts: u64,
    /// Messages whose payload did not arrive whole.
    pub receive_failures: u64,
    /// Most messages that were on their way out at once.
    pub messages_max: u32,
    /// Messages that a sibling shard received into descriptors of this one; that one counts them as received.
    pub lent: u64,
    drops: [Traffic; DropReason::ALL.len()],
    delays: [u64; DelayReason::ALL.len()],
}

impl Counters {
    /// Messages dropped for `reason`, with the payload they announced.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> Traffic {
        self.drops[reason as usize]
    }

    /// How often a message was delayed for `reason`.
    #[must_use]
    pub const fn delays(&self, reason: DelayReason) -> u64 {
        self.delays[reason as usize]
    }

    /// Messages dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.drops.iter().for_each(|drop| sum += *drop);
        sum
    }

    /// Counts a message that was not sent.
    #[cold]
    pub(crate) fn count_failure(&mut self, status: Status) {
        self.send_failures += 1;
        if let Some(health) = status.health() {
            self.failed.add(health);
        }
    }

    /// Counts the end of a message that was sent anew.
    #[cold]
    pub(crate) fn count_resent(&mut self, status: Status) {
        let counter =
            if status == Status::Ok { &mut self.successful_resends } else { &mut self.failed_resends };
        *counter += 1;
    }

    /// Counts a message that an LND has finished with, and the payload that was taken.
    pub(crate) const fn count_received(&mut self, status: Status, bytes: u32) {
        match status {
            Status::Ok => self.received.add(bytes),
            Status::NeverSent(_) | Status::Unknown(_) => self.receive_failures += 1,
        }
    }

    pub(crate) const fn count_delay(&mut self, reason: DelayReason) {
        self.delays[reason as usize] += 1;
    }

    pub(crate) const fn count_drop(&mut self, reason: DropReason, bytes: u32) {
        self.drops[reason as usize].add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter() {
        let mut counters = Counters::default();
        for (position, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, position);
            counters.count_drop(reason, position as u32);
            assert_eq!(counters.drops(reason), Traffic { messages: 1, bytes: position as u64 });
        }
        let count = DropReason::ALL.len() as u64;
        assert_eq!(counters.dropped(), Traffic { messages: count, bytes: count * (count - 1) / 2 });
    }

    #[test]
    fn each_delay_has_its_own_counter() {
        let mut counters = Counters::default();
        for (position, reason) in DelayReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, position);
            counters.count_delay(reason);
            assert_eq!(
                DelayReason::ALL.iter().map(|other| counters.delays(*other)).sum::<u64>(),
                position as u64 + 1
            );
            assert_eq!(counters.delays(reason), 1);
        }
    }
}
