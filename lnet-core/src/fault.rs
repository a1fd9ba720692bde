//! Simulated faults: rules that drop messages, peers that seem to have failed (LNet `net_fault.c`,
//! `lib-move.c: lnet_fail_nid`).
//!
//! Invariants: rules act on what arrives whole and well-formed, before it is matched, and in silence; the
//! newest rule is asked first, the first that fires ends the search, each that was asked and whose filter
//! fits has counted the message. What a rule does follows from its seed and from what it has seen.
//! The number of rules and of failed peers is bounded; room for them is made once.

use alloc::vec::Vec;
use core::fmt;
use core::ops::BitOr;
use core::time::Duration;

use lnet_wire::{Body, Header, MessageType, Nid};

use crate::md::Threshold;
use crate::random::Random;
use crate::stats::DropReason;
use crate::time::Instant;

/// Most drop rules that a shard holds.
pub const RULES_MAX: usize = 64;
/// Most simulated peer failures that a shard holds.
pub const FAILED_PEERS_MAX: usize = 64;

/// A set of message types, with the bits of LNet's rules.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MessageTypes(u8);

impl MessageTypes {
    /// None of them; in a filter as good as all.
    pub const NONE: Self = Self(0);
    /// ACKs.
    pub const ACK: Self = Self(1);
    /// PUTs.
    pub const PUT: Self = Self(2);
    /// GETs.
    pub const GET: Self = Self(4);
    /// REPLYs.
    pub const REPLY: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// The set with these bits; `None` if one of them stands for nothing.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits > Self::ALL.0 as u32 { None } else { Some(Self(bits as u8)) }
    }

    /// The set as bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether messages of this type are among them.
    #[must_use]
    pub const fn contains(self, message_type: MessageType) -> bool {
        // The bits stand in the order of the types' numbers.
        self.0 >> message_type as u32 & 1 != 0
    }
}

impl BitOr for MessageTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which messages a rule is about: those that pass every test. A NID matches if it is equal, or the rule's
/// is the wildcard, or the rule's is `255.255.255.255` on the same net.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The header's source.
    pub source: Nid,
    /// The header's destination.
    pub destination: Nid,
    /// The interface that receives.
    pub local: Nid,
    /// The types; [`MessageTypes::NONE`] is as good as all.
    pub messages: MessageTypes,
    /// Bit n is portal n; 0 is as good as all. If it is not 0, the rule is about PUTs and GETs only.
    pub portals: u64,
}

impl Filter {
    /// Every message.
    pub const EVERYTHING: Self = Self {
        source: Nid::ANY,
        destination: Nid::ANY,
        local: Nid::ANY,
        messages: MessageTypes::ALL,
        portals: 0,
    };

    fn matches(&self, local: &Nid, header: &Header) -> bool {
        let portal_fits = match header.body {
            Body::Put { portal, .. } | Body::Get { portal, .. } => {
                self.portals == 0 || self.portals.checked_shr(portal).is_some_and(|bits| bits & 1 != 0)
            }
            Body::Ack { .. } | Body::Reply { .. } | Body::Hello { .. } => true,
        };
        portal_fits
            && self.messages.contains(header.message_type())
            && nid_matches(&self.source, &header.source.nid)
            && nid_matches(&self.destination, &header.destination.nid)
            && nid_matches(&self.local, local)
    }
}

fn nid_matches(pattern: &Nid, nid: &Nid) -> bool {
    pattern.is_any() || pattern == nid || is_whole_net(pattern) && pattern.net() == nid.net()
}

/// Whether a NID stands for all of its net.
fn is_whole_net(nid: &Nid) -> bool {
    nid.to_small().is_some_and(|small| small as u32 == u32::MAX)
}

/// A rule by which messages are dropped as they arrive.
///
/// Of `rate` and `interval` exactly one is not zero, even where `drop_all` makes both irrelevant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropRule {
    /// Which messages.
    pub filter: Filter,
    /// Drops one of so many, at a random place among them. With 2 the first message goes, until the rule is
    /// reset.
    pub rate: u32,
    /// Drops one message in each such time: the first one after a random moment. If none comes, it is the
    /// first one later, and the next such time begins with it.
    pub interval: Duration,
    /// Drops about half of the messages instead, each by chance. Needs `interval`, whose length does not
    /// matter then.
    pub random: bool,
    /// Drops every message instead.
    pub drop_all: bool,
}

impl DropRule {
    /// The rule in plain terms, if it makes sense.
    fn checked(mut self) -> Result<Self, FaultError> {
        let Self { rate, interval, .. } = self;
        if (rate == 0) == interval.is_zero() {
            return Err(FaultError::RateAndInterval { rate, interval });
        }
        if self.random && interval.is_zero() {
            return Err(FaultError::RandomWithoutInterval { rate });
        }
        let Filter { messages, portals, .. } = self.filter;
        let messages = if messages == MessageTypes::NONE { MessageTypes::ALL } else { messages };
        self.filter.messages = messages;
        if portals != 0 {
            self.filter.messages = MessageTypes(messages.0 & (MessageTypes::PUT | MessageTypes::GET).0);
            if self.filter.messages == MessageTypes::NONE {
                return Err(FaultError::Portals { portals, messages });
            }
        }
        Ok(self)
    }
}

/// Why a fault is not simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultError {
    /// Both or neither of rate and interval are given (`-EINVAL`).
    RateAndInterval {
        /// The rate.
        rate: u32,
        /// The interval.
        interval: Duration,
    },
    /// A random rule without an interval (`-EINVAL`).
    RandomWithoutInterval {
        /// The rate that was given instead.
        rate: u32,
    },
    /// Portals are named, but neither PUTs nor GETs, which alone have one (`-EINVAL`).
    Portals {
        /// The portals.
        portals: u64,
        /// The messages.
        messages: MessageTypes,
    },
    /// A peer that is to fail no times (`-EINVAL`).
    FailureCount,
    /// There are [`RULES_MAX`] rules (`-ENOMEM`).
    RulesFull,
    /// There are [`FAILED_PEERS_MAX`] simulated peer failures (`-ENOMEM`).
    FailedPeersFull,
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateAndInterval { rate, interval } => {
                write!(f, "rate {rate} and interval {interval:?}: exactly one other than zero is expected")
            }
            Self::RandomWithoutInterval { rate } => {
                write!(f, "random with rate {rate}: an interval is expected instead of the rate")
            }
            Self::Portals { portals, messages } => write!(
                f,
                "portals {portals:#x} with message types {:#x}: PUT (0x2) or GET (0x4) is expected among them",
                messages.bits()
            ),
            Self::FailureCount => {
                f.write_str("a peer that fails 0 times: at least 1 is expected; restoring it ends a failure")
            }
            Self::RulesFull => write!(f, "{RULES_MAX} drop rules exist, the most there can be: delete some"),
            Self::FailedPeersFull => {
                write!(f, "{FAILED_PEERS_MAX} peers fail, the most that can: restore some")
            }
        }
    }
}

impl core::error::Error for FaultError {}

/// What a rule has seen and done since it was added or reset.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RuleCounters {
    /// Messages that it was asked about and that passed its filter.
    pub matched: u64,
    /// PUTs that it dropped.
    pub puts: u64,
    /// ACKs that it dropped.
    pub acks: u64,
    /// GETs that it dropped.
    pub gets: u64,
    /// REPLYs that it dropped.
    pub replies: u64,
}

impl RuleCounters {
    /// Messages that it dropped.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.puts + self.acks + self.gets + self.replies
    }

    const fn count_drop(&mut self, message_type: MessageType) {
        match message_type {
            MessageType::Put => self.puts += 1,
            MessageType::Ack => self.acks += 1,
            MessageType::Get => self.gets += 1,
            MessageType::Reply => self.replies += 1,
            MessageType::Hello => {}
        }
    }
}

/// A rule at work.
struct ActiveRule {
    rule: DropRule,
    counters: RuleCounters,
    random: Random,
    /// With a rate: the message to drop, counted from 0.
    drop_at: u64,
    /// With an interval: when the next message is dropped, and when the time after this one begins.
    due: Instant,
    next_slot: Instant,
}

impl ActiveRule {
    fn new(now: Instant, rule: DropRule, seed: u64) -> Self {
        let mut active = Self {
            rule,
            counters: RuleCounters::default(),
            random: Random::new(seed),
            drop_at: 0,
            due: now,
            next_slot: now,
        };
        active.reset(now);
        if rule.rate == 2 {
            active.drop_at = 0;
        }
        active
    }

    fn reset(&mut self, now: Instant) {
        self.counters = RuleCounters::default();
        self.drop_at = self.random.below(self.rule.rate.into());
        self.begin_slot(now);
    }

    fn begin_slot(&mut self, start: Instant) {
        let interval = self.rule.interval;
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.due = start + Duration::from_nanos(self.random.below(interval_ns));
        self.next_slot = start + interval;
    }

    /// Whether it drops a message that passed its filter.
    fn fires(&mut self, now: Instant) -> bool {
        let position = self.counters.matched;
        self.counters.matched += 1;
        if self.rule.drop_all {
            true
        } else if self.rule.random {
            self.random.below(2) == 0
        } else if self.rule.rate == 0 {
            self.fires_in_time(now)
        } else {
            self.fires_at(position)
        }
    }

    fn fires_at(&mut self, position: u64) -> bool {
        let fires = position == self.drop_at;
        let next = position + 1;
        if next.is_multiple_of(self.rule.rate.into()) {
            self.drop_at = next + self.random.below(self.rule.rate.into());
        }
        fires
    }

    fn fires_in_time(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        self.begin_slot(self.next_slot.max(now));
        true
    }
}

/// A peer that seems to have failed: PUTs and GETs to it are refused, what it sends is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedPeer {
    /// Its NID; the wildcard is every peer.
    pub nid: Nid,
    /// How many messages are still to be hit, in either direction.
    pub left: Threshold,
}

/// The faults that a shard simulates.
pub struct Faults {
    /// Oldest first.
    rules: Vec<ActiveRule>,
    /// Oldest first.
    failed: Vec<FailedPeer>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self { rules: Vec::with_capacity(RULES_MAX), failed: Vec::with_capacity(FAILED_PEERS_MAX) }
    }

    /// Whether there are any: the only thing that a message pays for when there are none.
    #[inline]
    pub(crate) const fn is_active(&self) -> bool {
        !self.rules.is_empty() || !self.failed.is_empty()
    }

    /// Adds a rule, which goes before all others.
    ///
    /// # Errors
    /// [`FaultError`] when the rule makes no sense, or there are too many.
    pub fn add_drop_rule(&mut self, now: Instant, rule: &DropRule, seed: u64) -> Result<(), FaultError> {
        let rule = rule.checked()?;
        if self.rules.len() == RULES_MAX {
            return Err(FaultError::RulesFull);
        }
        self.rules.push(ActiveRule::new(now, rule, seed));
        Ok(())
    }

    /// Deletes the rules with exactly this source and destination, of which each may be the wildcard, and
    /// then stands for any. Returns how many.
    pub fn delete_drop_rules(&mut self, source: &Nid, destination: &Nid) -> usize {
        let before = self.rules.len();
        self.rules.retain(|active| {
            let Filter { source: its_source, destination: its_destination, .. } = active.rule.filter;
            !source.is_any() && *source != its_source
                || !destination.is_any() && *destination != its_destination
        });
        before - self.rules.len()
    }

    /// Clears the counters of all rules and draws their next drops anew.
    pub fn reset_drop_rules(&mut self, now: Instant) {
        self.rules.iter_mut().for_each(|active| active.reset(now));
    }

    /// The rules with what they have counted, newest first. Of each filter the message types are those that
    /// it can really pass.
    pub fn drop_rules(&self) -> impl ExactSizeIterator<Item = (&DropRule, &RuleCounters)> {
        self.rules.iter().rev().map(|active| (&active.rule, &active.counters))
    }

    /// Makes a peer (or every one, with the wildcard) seem to fail for so many messages. Failures of one peer
    /// add up, and the oldest that fits a message is used up first.
    ///
    /// # Errors
    /// [`FaultError::FailureCount`], [`FaultError::FailedPeersFull`].
    pub fn fail_peer(&mut self, nid: &Nid, left: Threshold) -> Result<(), FaultError> {
        if left == Threshold::Count(0) {
            return Err(FaultError::FailureCount);
        }
        if self.failed.len() == FAILED_PEERS_MAX {
            return Err(FaultError::FailedPeersFull);
        }
        self.failed.push(FailedPeer { nid: *nid, left });
        Ok(())
    }

    /// Ends the failures of this very NID; with the wildcard all failures. Returns how many.
    pub fn restore_peer(&mut self, nid: &Nid) -> usize {
        let before = self.failed.len();
        self.failed.retain(|failed| !nid.is_any() && failed.nid != *nid);
        before - self.failed.len()
    }

    /// The failures that are not used up, oldest first.
    #[must_use]
    pub fn failed_peers(&self) -> &[FailedPeer] {
        &self.failed
    }

    /// Whether a peer seems to have failed; uses one failure up if so.
    pub(crate) fn peer_fails(&mut self, peer: &Nid) -> bool {
        let fits = |failed: &FailedPeer| failed.nid.is_any() || failed.nid == *peer;
        let Some(at) = self.failed.iter().position(fits) else { return false };
        if let Threshold::Count(left) = &mut self.failed[at].left {
            *left -= 1;
            if *left == 0 {
                self.failed.remove(at);
            }
        }
        true
    }

    /// Why a message that arrives by the interface `local` is to be dropped, if it is.
    #[cold]
    pub(crate) fn judge(&mut self, now: Instant, local: &Nid, header: &Header) -> Option<DropReason> {
        if self.peer_fails(&header.source.nid) {
            return Some(DropReason::PeerFailed);
        }
        for active in self.rules.iter_mut().rev() {
            if active.rule.filter.matches(local, header) && active.fires(now) {
                active.counters.count_drop(header.message_type());
                return Some(DropReason::Fault);
            }
        }
        None
    }
}
