//! What came of a load.
//!
//! Invariant: everything is bounded: of faults the first [`FAULTS_MAX`] are told, all are counted.

use std::collections::BTreeMap;

use lnet_user::Nid;

use super::Kind;
use super::distribution::Distribution;
use super::pattern::Difference;
use super::plan::SizeClass;

/// Faults that a report tells in detail.
pub const FAULTS_MAX: usize = 16;

/// Messages and their payload.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Messages.
    pub messages: u64,
    /// Payload bytes of those.
    pub bytes: u64,
}

impl Tally {
    /// Counts a message in.
    pub(super) fn count(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += u64::from(bytes);
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// What was wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// The number is not that of a Put of this scheme.
    Number,
    /// Another portal than the message's number says.
    Portal,
    /// Other match bits than expected.
    MatchBits,
    /// Another length than expected.
    Length,
    /// A byte differs.
    Byte,
    /// Never started: the node refused.
    NotStarted,
    /// Gets were not sent, since no target of a load was found at a tcp node. A kernel node whose portal
    /// never had an entry dies of a Get.
    NoTarget,
    /// No way to the target.
    Unreachable,
    /// Not in time.
    Timeout,
    /// The load was cancelled before it ended.
    Cancelled,
    /// Larger than the network driver carries.
    TooLong,
    /// The device or the kernel refused it.
    Device,
    /// The peer has begun a new life.
    Reset,
    /// A fault rule failed it.
    Simulated,
    /// A bad end that has no name here.
    Other,
}

/// A message that went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// How.
    pub fault: FaultKind,
    /// Put or Get.
    pub kind: Kind,
    /// Its number; of a Get that a target tells of 0.
    pub number: u64,
    /// The node at the other end.
    pub peer: Nid,
    /// Portal.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
    /// Length of its payload.
    pub length_bytes: u32,
    /// What differs, if that is a number.
    pub difference: Option<Difference>,
}

/// Messages that went wrong.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FaultTally {
    /// All of them.
    pub count: u64,
    /// How many went wrong in which way.
    pub by_kind: BTreeMap<FaultKind, u64>,
    /// The first ones, at most [`FAULTS_MAX`].
    pub first: Vec<Fault>,
}

impl FaultTally {
    pub(super) fn add(&mut self, fault: Fault) {
        self.count += 1;
        *self.by_kind.entry(fault.fault).or_default() += 1;
        if self.first.len() < FAULTS_MAX {
            self.first.push(fault);
        }
    }

    /// How many went wrong in this way.
    #[must_use]
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or(0)
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        for (kind, count) in &other.by_kind {
            *self.by_kind.entry(*kind).or_default() += count;
        }
        let room = FAULTS_MAX.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }
}

/// What a target has seen.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TargetReport {
    /// Puts of which every byte and field was as it should be.
    pub puts: Tally,
    /// Gets that were served.
    pub gets: Tally,
    /// What was wrong with others.
    pub faults: FaultTally,
    /// Messages that the target's stop cut off.
    pub interrupted: u64,
    /// Messages by the shard that had their entry.
    pub by_shard: Vec<u64>,
    /// Buffers that were filled up and posted again.
    pub reposted: u64,
    /// Entries that could not be posted again, or had not come back when the target stopped.
    pub lost_entries: u64,
}

impl TargetReport {
    /// Adds that of another target, or of another shard.
    pub fn merge(&mut self, other: &Self) {
        self.puts.merge(&other.puts);
        self.gets.merge(&other.gets);
        self.faults.merge(&other.faults);
        merge_shards(&mut self.by_shard, &other.by_shard);
        self.interrupted += other.interrupted;
        self.reposted += other.reposted;
        self.lost_entries += other.lost_entries;
    }
}

/// What came of the messages of a size and kind that went well.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassReport {
    /// The sizes.
    pub class: SizeClass,
    /// Put or Get.
    pub kind: Kind,
    /// How many.
    pub tally: Tally,
    /// How long they took: from the request to the ACK (if one was wanted; else SEND) or REPLY, as the
    /// application sees them.
    pub latency: Distribution,
}

/// What an initiator has done.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct InitiatorReport {
    /// Messages by size and kind; classes without messages are missing.
    pub classes: Vec<ClassReport>,
    /// Messages that went wrong.
    pub faults: FaultTally,
    /// Messages that were started, by shard of the initiator.
    pub by_shard: Vec<u64>,
    /// Nanoseconds from the first request to the last event.
    pub elapsed_ns: u64,
    /// Whether it was stopped before its end.
    pub is_cancelled: bool,
    /// Whether it gave up, because as many messages as its window holds, one after the other, went wrong.
    pub has_given_up: bool,
}

impl InitiatorReport {
    /// Puts that went well.
    #[must_use]
    pub fn puts(&self) -> Tally {
        self.tally(Kind::Put)
    }

    /// Gets that went well, with every byte as it should be.
    #[must_use]
    pub fn gets(&self) -> Tally {
        self.tally(Kind::Get)
    }

    fn tally(&self, kind: Kind) -> Tally {
        let mut sum = Tally::default();
        self.classes.iter().filter(|class| class.kind == kind).for_each(|class| sum.merge(&class.tally));
        sum
    }

    /// Adds that of another initiator that ran at the same time, or of another shard.
    pub fn merge(&mut self, other: &Self) {
        for more in &other.classes {
            match self.classes.iter_mut().find(|sum| sum.class == more.class && sum.kind == more.kind) {
                Some(sum) => {
                    sum.tally.merge(&more.tally);
                    sum.latency.merge(&more.latency);
                }
                None => self.classes.push(more.clone()),
            }
        }
        self.classes.sort_by_key(|class| (class.class, class.kind));
        self.faults.merge(&other.faults);
        merge_shards(&mut self.by_shard, &other.by_shard);
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.is_cancelled |= other.is_cancelled;
        self.has_given_up |= other.has_given_up;
    }
}

fn merge_shards(sums: &mut Vec<u64>, others: &[u64]) {
    sums.resize(sums.len().max(others.len()), 0);
    sums.iter_mut().zip(others).for_each(|(sum, more)| *sum += more);
}

/// How far an initiator is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Messages of the plan.
    pub messages: u64,
    /// Messages that have ended, well or badly.
    pub ended: u64,
    /// Whether it is over.
    pub is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(fault: FaultKind) -> Fault {
        let difference = Some(Difference { offset_bytes: 3, expected: 1, found: 2 });
        Fault {
            fault,
            kind: Kind::Put,
            number: u64::MAX,
            peer: Nid::LO,
            portal: 9,
            match_bits: 1,
            length_bytes: 5,
            difference,
        }
    }

    #[test]
    fn faults_are_all_counted_and_the_first_told() {
        let mut faults = FaultTally::default();
        (0..100).for_each(|_| faults.add(fault(FaultKind::Byte)));
        let mut more = FaultTally::default();
        more.add(fault(FaultKind::Length));
        more.merge(&faults);
        assert_eq!((more.count, more.of(FaultKind::Byte), more.of(FaultKind::Length)), (101, 100, 1));
        assert_eq!((more.first.len(), more.first[0].fault), (FAULTS_MAX, FaultKind::Length));
    }

    #[test]
    fn reports_merge_by_class() {
        let class = SizeClass { min_bytes: 1, max_bytes: 64, weight: 1 };
        let tally = Tally { messages: 2, bytes: 20 };
        let of = |kind| ClassReport { class, kind, tally, latency: Distribution::default() };
        let one = InitiatorReport {
            classes: vec![of(Kind::Put)],
            by_shard: vec![1],
            elapsed_ns: 1_000_000_000,
            ..InitiatorReport::default()
        };
        let mut sum = InitiatorReport {
            classes: vec![of(Kind::Get), of(Kind::Put)],
            by_shard: vec![1, 2],
            elapsed_ns: 2_000_000_000,
            ..InitiatorReport::default()
        };
        sum.merge(&one);
        assert_eq!((sum.puts().messages, sum.gets().messages), (4, 2));
        assert_eq!((sum.classes.len(), &sum.by_shard[..]), (2, &[2, 2][..]));
    }
}
