//! Drop rules.

use alloc::format;
use alloc::vec::Vec;

use lnet_wire::Nid;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};

/// Names and mask bits of the message types that a rule can be about.
pub const MESSAGE_TYPES: [(&str, u32); 4] = [("ACK", 1), ("PUT", 2), ("GET", 4), ("REPLY", 8)];

words! {
    /// How a send can be made to end.
    #[expect(missing_docs, reason = "LNet's names, which say all there is to say")]
    HealthError {
        LocalInterrupt = "local_interrupt",
        LocalDropped = "local_dropped",
        LocalAborted = "local_aborted",
        LocalNoRoute = "local_no_route",
        LocalError = "local_error",
        LocalTimeout = "local_timeout",
        RemoteError = "remote_error",
        RemoteDropped = "remote_dropped",
        RemoteTimeout = "remote_timeout",
        NetworkTimeout = "network_timeout",
        Random = "random",
    }
}

/// A rule by which messages are dropped, or fail with a health error.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DropRule {
    /// Final source: a NID, `255.255.255.255` of a net for all of the net, or [`Nid::ANY`].
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub source: Nid,
    /// Final destination, likewise.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub destination: Nid,
    /// The NI that a message arrives by; [`Nid::ANY`] for each.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub local_nid: Nid,
    /// Bit n is portal n; 0 is all.
    pub portals: u64,
    /// Bits of [`MESSAGE_TYPES`]; 15 is all.
    pub messages: u32,
    /// One of so many is hit; 0 if `interval_s` decides.
    pub rate: u32,
    /// One is hit in so many seconds; 0 if `rate` decides.
    pub interval_s: u32,
    /// Messages are hit by chance; needs `interval_s`.
    pub random: bool,
    /// Each message is hit.
    pub drop_all: bool,
    /// If not empty: the send ends with one of these instead of vanishing.
    pub health_errors: Vec<HealthError>,
}

counters! {
    /// What a rule has seen and hit since it was made or reset.
    RuleCounters {
        /// Messages that passed its filter.
        count: u64 = "fs_count",
        /// PUTs hit.
        put: u64 = "fs_put",
        /// ACKs hit.
        ack: u64 = "fs_ack",
        /// GETs hit.
        get: u64 = "fs_get",
        /// REPLYs hit.
        reply: u64 = "fs_reply",
    }
}

/// A rule and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct DropRuleRecord {
    /// The rule.
    pub rule: DropRule,
    /// Messages that it dropped.
    pub dropped: u64,
    /// What it has seen.
    pub counters: RuleCounters,
}

impl DropRule {
    /// Whether the rule makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), Refusal> {
        let Self { rate, interval_s, .. } = self;
        let refused = |message: &str| Err(Refusal::new(Errno::INVAL, message));
        if (*rate == 0) == (*interval_s == 0) {
            let numbers = format!("rate {rate} and interval {interval_s}");
            return refused(&format!("{numbers}: exactly one other than zero is expected"));
        }
        if self.random && *interval_s == 0 {
            return refused("a random rule has an interval, not a rate");
        }
        // PUT and GET alone have portals.
        if self.portals != 0 && self.messages != 0 && self.messages & 6 == 0 {
            return refused("portals go with PUT or GET, not with ACK and REPLY alone");
        }
        Ok(())
    }
}
