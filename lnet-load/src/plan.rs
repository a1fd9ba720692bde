//! Which message is which: both ends derive everything about a message from the scheme and its number.
//!
//! Invariants: [`Scheme::message`] is a pure function; it gives every message a portal and match bits that
//! [`Scheme::postings`] has an entry for, with room for its length.

use std::time::Duration;

use lnet_user::Nid;
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::steer::PORTALS;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Kind;
use super::pattern::{Pattern, mix};

/// Longest message that finds its buffer under the match bits for small ones.
const SMALL_BYTES_MAX: u32 = 1 << 16;
/// Buffer of an entry for small Puts, in messages of the greatest length.
const SMALL_ROOM: u64 = 4;
/// Most messages that such a buffer takes, however short they are.
const SMALL_COUNT: u32 = 32;
/// Entries for Puts under the same match bits: one is filled while another is read.
pub(super) const DEPTH: u32 = 2;
/// Gets begin anywhere below this.
const GET_OFFSET_MAX: u64 = 1 << 16;
/// Marks the match bits of entries for large Puts.
const LARGE_FLAG: u64 = 1 << 40;
/// Marks the match bits of entries for Gets.
const GET_FLAG: u64 = 1 << 41;
/// The match bits of the entry that says that a target is there.
pub(super) const PROBE_FLAG: u64 = 1 << 42;
/// Match bits of one kind that a portal may have.
const MATCH_BITS_MAX: u32 = 256;
/// Classes of sizes.
const CLASSES_MAX: usize = 16;
/// Payload memory of a target whose entries are on one shard each.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Payload memory of an initiator: window times longest message.
const WINDOW_BYTES_MAX: u64 = 1 << 30;
/// Messages in flight.
const WINDOW_MAX: u32 = 4096;

const PUT_SALT: u64 = 0x5055_5400;
const GET_SALT: u64 = 0x4745_5400;
const SHAPE_SALT: u64 = 0x5348_4150;

/// Messages of these lengths, and how many of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeClass {
    /// Shortest payload.
    pub min_bytes: u32,
    /// Longest payload, at most 1 MiB.
    pub max_bytes: u32,
    /// Its share of the messages, in relation to the other classes' weights.
    pub weight: u32,
}

impl SizeClass {
    /// Messages of this length only, as many as of other classes of weight 1.
    #[must_use]
    pub const fn of(length_bytes: u32) -> Self {
        Self { min_bytes: length_bytes, max_bytes: length_bytes, weight: 1 }
    }
}

/// Where a target posts its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Layout {
    /// The first of its portals. They are the load's alone, and lazy while a target is there.
    pub first_portal: u8,
    /// How many they are.
    pub portals: u8,
    /// Match bits of each portal under which Puts of up to 64 KiB are taken, 1 to 256.
    pub small_match_bits: u32,
    /// Match bits of each portal under which longer ones are.
    pub large_match_bits: u32,
    /// Match bits of each portal under which Gets are served.
    pub get_match_bits: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self { first_portal: 10, portals: 8, small_match_bits: 6, large_match_bits: 2, get_match_bits: 2 }
    }
}

/// The scheme from which both ends derive each message; it is alike at both of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scheme {
    /// Seed of everything that is chosen.
    pub seed: u64,
    /// Where the entries are.
    pub layout: Layout,
    /// Lengths of messages, 1 to 16 classes.
    pub sizes: Vec<SizeClass>,
    /// How many of a hundred messages are Puts; the others are Gets.
    pub puts_percent: u8,
}

impl Default for Scheme {
    /// Mostly short messages up to pages, some of up to 64 KiB, one in a hundred of up to 1 MiB; as many Puts
    /// as Gets.
    fn default() -> Self {
        let class = |min_bytes, max_bytes, weight| SizeClass { min_bytes, max_bytes, weight };
        let sizes = vec![
            class(0, 0, 10),
            class(1, 64, 30),
            class(65, 1024, 25),
            class(1025, 4096, 20),
            class(4097, 1 << 16, 14),
            class((1 << 16) + 1, 1 << 20, 1),
        ];
        Self { seed: 0, layout: Layout::default(), sizes, puts_percent: 50 }
    }
}

/// What an initiator is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// What the messages are; the targets go by the same.
    pub scheme: Scheme,
    /// NIDs of targets, on each of which messages go by turns as their number has it.
    #[serde(with = "lnet_model::text::list")]
    pub targets: Vec<Nid>,
    /// Messages in all, numbered from 0.
    pub messages: u64,
    /// Messages in flight, over all shards: 1 to 4096, and 1 GiB if all were as long as can be. Each shard
    /// has one at least.
    pub window: u32,
    /// Whether Puts are to be acknowledged. Without, it is not known what became of them.
    pub ack: bool,
    /// How long a message may take before it counts as failed. Longer than the node's LND timeout, so that
    /// one that is only slow is no failure.
    pub timeout_ms: u64,
}

impl LoadPlan {
    /// 100,000 messages, 64 at once, with ACKs, a minute for each at most.
    #[must_use]
    pub fn new(scheme: Scheme, targets: Vec<Nid>) -> Self {
        Self { scheme, targets, messages: 100_000, window: 64, ack: true, timeout_ms: 60_000 }
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`PlanError`] names what does not.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.scheme.validate()?;
        if self.targets.is_empty() {
            return Err(PlanError::NoTargets);
        }
        let wanted_bytes = u64::from(self.window) * u64::from(self.scheme.max_bytes());
        if self.window == 0 || self.window > WINDOW_MAX || wanted_bytes > WINDOW_BYTES_MAX {
            return Err(PlanError::Window { window: self.window, max_bytes: self.scheme.max_bytes() });
        }
        if self.timeout_ms == 0 {
            return Err(PlanError::Timeout);
        }
        Ok(())
    }

    /// How long a message may take.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Why a plan makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No classes of sizes, or too many.
    #[error("{0} classes of sizes: 1 to {CLASSES_MAX} are expected")]
    Classes(usize),
    /// A class that no message can be of.
    #[error(
        "sizes {} to {}, weight {}: at least one byte less or as many at first as at last, at most {} bytes, and a \
         weight from 1 are expected",
        .0.min_bytes, .0.max_bytes, .0.weight, PAYLOAD_BYTES_MAX
    )]
    Class(SizeClass),
    /// More than all messages.
    #[error("{0} percent of Puts: 0 to 100 are expected")]
    Percent(u8),
    /// Portals that do not exist.
    #[error("{portals} portals from {first}: at least 1, and none beyond {} are expected", PORTALS - 1)]
    Portals {
        /// The first one.
        first: u8,
        /// How many.
        portals: u8,
    },
    /// No match bits, or too many.
    #[error("{0} match bits of a portal: 1 to {MATCH_BITS_MAX} are expected of each kind")]
    MatchBits(u32),
    /// More than a target may have.
    #[error("{0} bytes of buffers: at most {MEMORY_BYTES_MAX} are expected; have fewer portals, match bits")]
    Memory(u64),
    /// No target to send to.
    #[error("no NIDs of targets: at least one is expected")]
    NoTargets,
    /// Too few or too many messages in flight.
    #[error(
        "a window of {window} messages of up to {max_bytes} bytes: 1 to {WINDOW_MAX} messages and at most \
         {WINDOW_BYTES_MAX} bytes are expected"
    )]
    Window {
        /// How many.
        window: u32,
        /// How long.
        max_bytes: u32,
    },
    /// No time at all.
    #[error("a timeout of 0 ms: at least 1 is expected")]
    Timeout,
}

/// What follows from a message's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadMessage {
    /// The number; travels with a Put as header data.
    pub number: u64,
    /// Put or Get.
    pub kind: Kind,
    /// Which of the scheme's sizes.
    pub class: usize,
    /// Length of the payload.
    pub length_bytes: u32,
    /// Portal.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
    /// Where a Get begins in what the target has; 0 for a Put.
    pub offset_bytes: u32,
    pattern: Pattern,
}

impl LoadMessage {
    /// Writes the payload of a Put.
    pub(super) fn fill(&self, payload: &mut [u8]) {
        self.pattern.fill(u64::from(self.offset_bytes), payload);
    }

    /// The first byte of a payload, of a Put or a Get, that is not as it should be.
    pub(super) fn check(&self, payload: &[u8]) -> Option<super::pattern::Difference> {
        self.pattern.check(u64::from(self.offset_bytes), payload)
    }
}

/// An entry that a target posts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Posting {
    pub(super) kind: Kind,
    pub(super) portal: u32,
    pub(super) match_bits: u64,
    /// Length of its buffer.
    pub(super) room_bytes: u64,
    /// Longest message.
    pub(super) max_bytes: u64,
    /// Messages until it is posted again; `None` for no end.
    pub(super) count: Option<u32>,
}

impl Scheme {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`PlanError`] names what does not.
    pub fn validate(&self) -> Result<(), PlanError> {
        let Layout { first_portal, portals, small_match_bits, large_match_bits, get_match_bits } =
            self.layout;
        if self.sizes.is_empty() || self.sizes.len() > CLASSES_MAX {
            return Err(PlanError::Classes(self.sizes.len()));
        }
        let is_wrong = |class: &&SizeClass| {
            class.min_bytes > class.max_bytes || class.max_bytes > PAYLOAD_BYTES_MAX || class.weight == 0
        };
        if let Some(class) = self.sizes.iter().find(is_wrong) {
            return Err(PlanError::Class(*class));
        }
        if self.puts_percent > 100 {
            return Err(PlanError::Percent(self.puts_percent));
        }
        if portals == 0 || usize::from(first_portal) + usize::from(portals) > PORTALS {
            return Err(PlanError::Portals { first: first_portal, portals });
        }
        let counts = [small_match_bits, large_match_bits, get_match_bits];
        if let Some(count) = counts.into_iter().find(|count| *count == 0 || *count > MATCH_BITS_MAX) {
            return Err(PlanError::MatchBits(count));
        }
        let memory_bytes = self.postings().map(|posting| posting.room_bytes).sum();
        if memory_bytes > MEMORY_BYTES_MAX { Err(PlanError::Memory(memory_bytes)) } else { Ok(()) }
    }

    /// Its portals.
    pub(super) fn portals(&self) -> impl Iterator<Item = u32> + use<> {
        let first = u32::from(self.layout.first_portal);
        first..first + u32::from(self.layout.portals)
    }

    /// The longest message.
    pub(super) fn max_bytes(&self) -> u32 {
        self.sizes.iter().map(|class| class.max_bytes).max().unwrap_or(0)
    }

    /// The entries of a target, [`DEPTH`] times where they are used up, and that for probes.
    pub(super) fn postings(&self) -> impl Iterator<Item = Posting> + '_ {
        let max_bytes = u64::from(self.max_bytes());
        let small_bytes = max_bytes.min(u64::from(SMALL_BYTES_MAX));
        let layout = self.layout;
        let has_puts = self.puts_percent > 0;
        let small = if has_puts { layout.small_match_bits } else { 0 };
        let large = if has_puts && max_bytes > small_bytes { layout.large_match_bits } else { 0 };
        let gets = if self.puts_percent < 100 { layout.get_match_bits } else { 0 };
        self.portals()
            .flat_map(move |portal| {
                let put = move |match_bits, room_bytes, max_bytes, count| {
                    let kind = Kind::Put;
                    Posting { kind, portal, match_bits, room_bytes, max_bytes, count: Some(count) }
                };
                let get = move |index: u32| Posting {
                    kind: Kind::Get,
                    portal,
                    match_bits: GET_FLAG | u64::from(index),
                    room_bytes: GET_OFFSET_MAX + max_bytes,
                    max_bytes,
                    count: None,
                };
                let small = (0..small * DEPTH).map(move |index| {
                    put(u64::from(index / DEPTH), small_bytes * SMALL_ROOM, small_bytes, SMALL_COUNT)
                });
                let large = (0..large * DEPTH)
                    .map(move |index| put(LARGE_FLAG | u64::from(index / DEPTH), max_bytes, max_bytes, 1));
                small.chain(large).chain((0..gets).map(get))
            })
            .chain((self.puts_percent < 100).then(|| self.probe()))
    }

    /// The entry for an empty Put by which an initiator learns that a target is there, before the first Get.
    pub(super) fn probe(&self) -> Posting {
        let (portal, match_bits) = (self.layout.first_portal.into(), PROBE_FLAG);
        Posting { kind: Kind::Put, portal, match_bits, room_bytes: 1, max_bytes: 0, count: Some(SMALL_COUNT) }
    }

    /// The message of this number.
    #[must_use]
    pub fn message(&self, number: u64) -> LoadMessage {
        let shape = mix(mix(self.seed ^ SHAPE_SALT) ^ number);
        let (what, position) = (mix(shape ^ 1), mix(shape ^ 2));
        let kind = if what % 100 < u64::from(self.puts_percent) { Kind::Put } else { Kind::Get };
        let class = self.class(mix(shape ^ 3));
        let SizeClass { min_bytes, max_bytes, .. } = self.sizes[class];
        let length_bytes = min_bytes + (mix(shape ^ 4) % (u64::from(max_bytes - min_bytes) + 1)) as u32;
        let layout = self.layout;
        let (flag, count) = match kind {
            Kind::Get => (GET_FLAG, layout.get_match_bits),
            Kind::Put if length_bytes > SMALL_BYTES_MAX => (LARGE_FLAG, layout.large_match_bits),
            Kind::Put => (0, layout.small_match_bits),
        };
        let portal = u32::from(layout.first_portal) + (position % u64::from(layout.portals)) as u32;
        let match_bits = flag | ((position >> 8) % u64::from(count));
        let (offset_bytes, pattern) = match kind {
            Kind::Put => (0, Pattern::of(self.seed, number, PUT_SALT)),
            Kind::Get => ((mix(shape ^ 5) % GET_OFFSET_MAX) as u32, self.source(portal, match_bits)),
        };
        LoadMessage { number, kind, class, length_bytes, portal, match_bits, offset_bytes, pattern }
    }

    /// The bytes that Gets of these match bits find.
    pub(super) const fn source(&self, portal: u32, match_bits: u64) -> Pattern {
        Pattern::of(self.seed, match_bits << 8 | portal as u64, GET_SALT)
    }

    fn class(&self, hash: u64) -> usize {
        let total: u64 = self.sizes.iter().map(|class| u64::from(class.weight)).sum();
        let mut end = 0;
        let found = self.sizes.iter().position(|class| {
            end += u64::from(class.weight);
            hash % total < end
        });
        found.unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
