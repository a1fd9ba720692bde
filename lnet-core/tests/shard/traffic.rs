//! Random traffic between two nodes, of one shard and of several, with lazy portals and delay rules: whatever
//! happens, nothing is lost and nothing happens twice.

use std::collections::BTreeMap;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::fault::DelayRule;
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdError, MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest, Usage};
use lnet_core::stats::{Counters, DelayReason, DropReason};
use lnet_model::fault::Filter;
use lnet_wire::steer::{PORTALS, Policy, Spread, SteerKey, initiator_hash, shard_of};
use lnet_wire::{Body, Header, Nid};
use proptest::prelude::*;

use crate::common::{FOREIGN, NI, entry, host, nid, poll_mesh};
use crate::pair::{Pair, Reached};

const LATE: Status = Status::Unknown(Cause::Timeout);

/// A small generator: the same numbers for the same seed, for ever.
struct Random(u64);

impl Random {
    /// Below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = usize::try_from(self.0 >> 33).unwrap();
        high % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// What has been asked of one side, and what it has said.
#[derive(Default)]
struct Ledger {
    /// Operations begun on descriptors: requests, and headers taken.
    operations: u64,
    /// Delayed messages that were given up; a descriptor may have taken them already.
    given_up: u64,
    /// Descriptors that were idle when they were unlinked.
    idle_unlinks: u64,
    /// Events by descriptor.
    events: BTreeMap<MdHandle, Vec<Event>>,
    /// Descriptors that are not unlinked yet, as far as the application knows.
    bound: Vec<MdHandle>,
    attached: Vec<MdHandle>,
    /// Messages whose sending went well, by the LND.
    sent: u64,
}

struct Traffic {
    pair: Pair,
    random: Random,
    ledgers: [Ledger; 2],
    /// Headers that were presented to each side, and those it took whole.
    presented: [u64; 2],
}

impl Traffic {
    fn spec(&mut self, side: usize, options: MdOptions) -> MdSpec {
        let threshold = match self.random.below(5) {
            0 => Threshold::Infinite,
            count => Threshold::Count(count as u32),
        };
        MdSpec {
            options,
            threshold,
            auto_unlink: !self.random.one_in(4),
            ..self.pair.sides[side].nodes[0].md(self.random.below(64) as u64)
        }
    }

    fn shard(&mut self) -> usize {
        self.random.below(self.pair.sides[0].nodes.len())
    }

    fn post(&mut self, side: usize) {
        let mut options =
            [MdOptions::PUT, MdOptions::GET, MdOptions::PUT | MdOptions::GET][self.random.below(3)];
        for option in [MdOptions::TRUNCATE, MdOptions::MANAGE_REMOTE, MdOptions::ACK_DISABLE] {
            if self.random.one_in(3) {
                options = options | option;
            }
        }
        let spec = self.spec(side, options);
        let portal = 4 + self.random.below(4) as u32;
        let ignore_bits = if self.random.one_in(3) { 1 } else { 0 };
        let entry = EntrySpec { portal, ignore_bits, ..entry(self.random.below(4) as u64) };
        let shard = self.home(side, &entry);
        let event_queue = Some(self.pair.sides[side].nodes[shard].queue);
        let spec = MdSpec { event_queue, length_bytes: 4 * spec.length_bytes, ..spec };
        let side_ref = &mut self.pair.sides[side];
        let Ok(me) = side_ref.nodes[shard].shard.attach_entry(&entry) else { return };
        match side_ref.nodes[shard].shard.attach(me, &spec) {
            Ok(md) => {
                side_ref.memory.insert(md, vec![0; spec.length_bytes as usize]);
                self.ledgers[side].attached.push(md);
            }
            Err(error) => assert!(matches!(error, MdError::Full | MdError::EventSlots { .. }), "{error}"),
        }
    }

    /// A shard that the messages for this entry come to.
    fn home(&mut self, side: usize, entry: &EntrySpec) -> usize {
        let policy = policies()[entry.portal as usize];
        if policy == Policy::Rotor {
            return self.shard();
        }
        let source = host(if side == 0 { 2 } else { 1 });
        let body = Body::Get {
            return_md: FOREIGN,
            match_bits: entry.match_bits,
            portal: entry.portal,
            offset: 0,
            sink_length: 0,
        };
        let header = Header { destination: source, source, payload_length: 0, body };
        let key = SteerKey::of(&header, 0, initiator_hash(&source.nid)).unwrap();
        shard_of(&key, policy.pack().unwrap(), self.pair.sides[side].nodes.len() as u32) as usize
    }

    fn bind(&mut self, side: usize) {
        let options = if self.random.one_in(2) { MdOptions::TRUNCATE } else { MdOptions::NONE };
        let shard = self.shard();
        let event_queue = Some(self.pair.sides[side].nodes[shard].queue);
        let spec = MdSpec { event_queue, ..self.spec(side, options) };
        let side_ref = &mut self.pair.sides[side];
        match side_ref.nodes[shard].shard.bind(&spec) {
            Ok(md) => {
                side_ref.memory.insert(md, vec![7; spec.length_bytes as usize]);
                self.ledgers[side].bound.push(md);
            }
            Err(error) => assert!(matches!(error, MdError::Full | MdError::EventSlots { .. }), "{error}"),
        }
    }

    fn request(&mut self, side: usize) {
        let count = self.ledgers[side].bound.len();
        if count == 0 {
            return;
        }
        let md = self.ledgers[side].bound[self.random.below(count)];
        let mut target = host(if side == 0 { 2 } else { 1 });
        if self.random.one_in(20) {
            target.nid = nid(9, 9);
        }
        let match_bits = self.random.below(4) as u64;
        let offset = self.random.below(80) as u32;
        let (now, ack) = (self.pair.now, self.random.one_in(2));
        let portal = 4 + self.random.below(4) as u32;
        let shard = &mut self.pair.sides[side].nodes[shard_of_md(md)].shard;
        let started = if self.random.one_in(3) {
            shard.get(now, &GetRequest { md, part: None, self_nid: None, target, portal, match_bits, offset })
        } else {
            let hdr_data = 0;
            let put = PutRequest {
                md,
                part: None,
                ack,
                self_nid: None,
                target,
                portal,
                match_bits,
                offset,
                hdr_data,
            };
            shard.put(now, &put)
        };
        self.ledgers[side].operations += u64::from(started.is_ok());
    }

    fn unlink(&mut self, side: usize) {
        let ledger = &mut self.ledgers[side];
        let list = if self.random.one_in(2) { &mut ledger.bound } else { &mut ledger.attached };
        if list.is_empty() {
            return;
        }
        let md = list.swap_remove(self.random.below(list.len()));
        if self.pair.sides[side].nodes[shard_of_md(md)].shard.unlink(md) == Ok(Unlinked::Done) {
            ledger.idle_unlinks += 1;
        }
    }

    /// Takes the events of a shard into its ledger.
    fn listen(&mut self, side: usize, shard: usize) {
        for event in self.pair.events(side, shard) {
            self.ledgers[side].events.entry(event.md()).or_default().push(event);
        }
    }

    fn header(&mut self, side: usize) {
        let waiting = self.pair.sides[side].wire.len();
        if waiting > 0 {
            let (which, shard) = (self.random.below(waiting), self.shard());
            if let Some(reached) = self.pair.header(side, shard, which) {
                self.presented[side] += 1;
                self.ledgers[side].operations += u64::from(reached == Reached::Taken);
            }
        }
    }

    fn resume(&mut self, side: usize) {
        let shard = self.shard();
        let reached = self.pair.resume(side, shard);
        self.ledgers[side].operations += u64::from(reached == Some(Reached::Taken));
    }

    fn give_up(&mut self, side: usize) {
        let delayed = self.pair.sides[side].delayed.len();
        if delayed > 0 {
            let which = self.random.below(delayed);
            self.pair.give_up(side, which);
            self.ledgers[side].given_up += 1;
        }
    }

    fn mesh(&mut self, side: usize) {
        let (from, to) = (self.shard(), self.shard());
        if self.random.one_in(2) {
            self.pair.say(side, from);
        } else {
            self.pair.hear(side, from, to);
        }
    }

    /// Makes portals lazy or not, and adds or deletes delay rules.
    fn change(&mut self, side: usize) {
        let (shard, now) = (self.shard(), self.pair.now);
        let portal = 4 + self.random.below(4) as u32;
        let seed = self.random.below(1000) as u64;
        let choice = self.random.below(8);
        let shard = &mut self.pair.sides[side].nodes[shard].shard;
        match choice {
            0 => shard.clear_lazy(portal).unwrap(),
            1 => {
                let (rate, latency) = (5, Duration::from_secs(20));
                let rule = DelayRule { filter: Filter::EVERYTHING, rate, interval: Duration::ZERO, latency };
                // The shard refuses rules once there are enough.
                let _ = shard.faults_mut().add_delay_rule(now, &rule, seed);
            }
            2 => {
                shard.delete_delay_rules(now, &Nid::ANY, &Nid::ANY);
            }
            _ => shard.set_lazy(portal).unwrap(),
        }
    }

    fn received(&mut self, side: usize) {
        let arriving = self.pair.sides[side].arriving.len();
        if arriving > 0 {
            let which = self.random.below(arriving);
            let status = if self.random.one_in(10) { Status::Unknown(Cause::Device) } else { Status::Ok };
            self.pair.received(side, which, status);
        }
    }

    fn sent(&mut self, side: usize) {
        let flying = self.pair.sides[side].flying.len();
        if flying > 0 {
            let which = self.random.below(flying);
            let status = if self.random.one_in(10) { Status::Unknown(Cause::Timeout) } else { Status::Ok };
            self.ledgers[side].sent += u64::from(status == Status::Ok);
            self.pair.sent(side, which, status);
        }
    }

    fn step(&mut self) {
        let (side, shard) = (self.random.below(2), self.shard());
        match self.random.below(24) {
            0 => self.post(side),
            1 => self.bind(side),
            2..=4 => self.request(side),
            5 if self.random.one_in(3) => self.unlink(side),
            6 if self.random.one_in(2) => self.listen(side, shard),
            7..=9 => {
                let full = self.random.one_in(5);
                self.pair.transmit(side, shard, full);
            }
            10 | 11 => self.header(side),
            12 | 13 => self.received(side),
            14 => self.sent(side),
            15 if self.random.one_in(10) => {
                self.pair.now = self.pair.now + Duration::from_secs(60);
                self.tick(side, shard);
            }
            16 | 17 => self.resume(side),
            18 if self.random.one_in(10) => self.give_up(side),
            19..=22 => self.mesh(side),
            23 if self.random.one_in(4) => self.change(side),
            _ => {}
        }
    }

    /// Time passes, if the shard has anything to do then.
    fn tick(&mut self, side: usize, shard: usize) {
        let now = self.pair.now;
        let shard = &mut self.pair.sides[side].nodes[shard].shard;
        if shard.poll_timeout().is_some_and(|due| due <= now) {
            shard.handle_timeout(now);
        }
    }

    /// Whether anything is under way.
    fn is_busy(&self) -> bool {
        self.pair.sides.iter().any(|side| {
            let busy = |usage: Usage| usage.messages > 0 || usage.delayed > 0;
            side.nodes.iter().any(|node| busy(node.shard.usage()))
                || !(side.wire.is_empty() && side.arriving.is_empty() && side.delayed.is_empty())
                || side.mesh.values().any(|queue| !queue.is_empty())
        })
    }

    /// Lets everything end: messages, then descriptors.
    fn drain(&mut self) {
        let shards = self.pair.sides[0].nodes.len();
        for (side, shard) in (0..2 * shards).map(|index| (index % 2, index / 2)) {
            let shard = &mut self.pair.sides[side].nodes[shard].shard;
            (4..8).for_each(|portal| shard.clear_lazy(portal).unwrap());
            shard.delete_delay_rules(self.pair.now, &Nid::ANY, &Nid::ANY);
        }
        for turn in 0.. {
            if !self.is_busy() {
                break;
            }
            assert!(turn < 20_000, "it does not end");
            for side in 0..2 {
                for shard in 0..shards {
                    self.pair.transmit(side, shard, false);
                    self.listen(side, shard);
                }
                self.header(side);
                self.received(side);
                self.sent(side);
                self.resume(side);
                self.pair.mesh(side);
            }
        }
        for side in 0..2 {
            let listen = |traffic: &mut Self| (0..shards).for_each(|shard| traffic.listen(side, shard));
            listen(self);
            while !self.ledgers[side].bound.is_empty() || !self.ledgers[side].attached.is_empty() {
                self.unlink(side);
            }
            listen(self);
            // Siblings may have to hear of entries yet.
            self.pair.mesh(side);
        }
    }

    fn check(&mut self) {
        for side in 0..2 {
            let ledger = &self.ledgers[side];
            for node in &mut self.pair.sides[side].nodes {
                let usage = node.shard.usage();
                assert_eq!((usage.memory_descs, usage.match_entries), (0, 0));
                assert_eq!((usage.messages, usage.events, usage.trackers, usage.delayed), (0, 0, 0, 0));
                assert_eq!(node.shard.ni_credits(NI), Some(4));
                let peer = nid(1, if side == 0 { 2 } else { 1 });
                assert!(matches!(node.shard.peer_credits(&peer), None | Some(3)));
                assert_eq!(node.shard.free_event_queue(node.queue), Ok(()), "event slots are lost");
                assert_eq!((node.shard.poll_resume(), poll_mesh(&mut node.shard)), (None, None));
                assert!(node.shard.peers().all(|peer| peer.reference_count == 0));
            }
            assert!(self.pair.sides[side].memory.is_empty(), "a buffer was never given back");

            let all = ledger.events.values().flatten();
            let (unlinks, others): (Vec<&Event>, Vec<&Event>) =
                all.partition(|event| event.kind() == EventKind::Unlink);
            let ended = others.len() as u64;
            let most = ledger.operations + ledger.given_up;
            assert!((ledger.operations..=most).contains(&ended), "one event for each operation: {ended}");
            let late = unlinks.iter().filter(|event| event.status() == LATE).count() as u64;
            assert_eq!(unlinks.len() as u64, ledger.idle_unlinks + late);
            let sum = |count: fn(&Counters) -> u64| -> u64 {
                self.pair.sides[side].nodes.iter().map(|node| count(node.shard.counters())).sum()
            };
            assert!(late <= sum(|counters| counters.response_timeouts));
            for (md, events) in &ledger.events {
                let (last, before) = events.split_last().unwrap();
                assert!(last.unlinked(), "{md:?} ended without a mark");
                assert!(before.iter().all(|event| !event.unlinked()), "{md:?} ended twice");
            }
            let received = sum(|counters| counters.received.messages + counters.receive_failures);
            assert_eq!(received + sum(|counters| counters.dropped().messages), self.presented[side]);
            assert_eq!(sum(|counters| counters.sent.messages), ledger.sent);
        }
    }

    fn sum(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.pair.sides.iter().flat_map(|side| &side.nodes).map(|node| count(node.shard.counters())).sum()
    }
}

/// The portals in use each have another policy.
fn policies() -> [Policy; PORTALS] {
    let mut policies = [Policy::Pin(0); PORTALS];
    policies[4] = Policy::Rotor;
    // Not the bit that entries ignore.
    policies[5] = Policy::MatchBits { shift: 1, bits: 63, spread: Spread::Hash };
    policies[6] = Policy::Initiator;
    policies[7] = Policy::Pin(1);
    policies
}

fn shard_of_md(md: MdHandle) -> usize {
    md.0.shard().0.into()
}

fn run(seed: u64, shards: u8, delayed: u32) -> Traffic {
    let pair = Pair::with_shards(shards, policies(), delayed);
    let mut traffic = Traffic { pair, random: Random(seed), ledgers: Default::default(), presented: [0; 2] };
    for _ in 0..3000 * usize::from(shards) {
        traffic.step();
    }
    traffic.drain();
    traffic
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn everything_comes_home(seed: u64, shards in 1_u8..=4, delayed in 0_u32..=16) {
        run(seed, shards, delayed).check();
    }
}

/// Guards the test above: its traffic really has all kinds of events and ends.
#[test]
fn traffic_is_varied() {
    let runs: Vec<_> = (0..20).map(|seed| run(seed, 3, 8)).collect();
    let sum = |count: &dyn Fn(&Counters) -> u64| runs.iter().map(|traffic| traffic.sum(count)).sum::<u64>();
    // No peer's name is in question here, and nothing is forwarded.
    let others = [DelayReason::Name, DelayReason::RouterBuffer];
    for reason in DelayReason::ALL.into_iter().filter(|reason| !others.contains(reason)) {
        assert_ne!(sum(&|counters| counters.delays(reason)), 0, "nothing was delayed for: {reason}");
    }
    for reason in [DropReason::NotLazy, DropReason::NoMatch, DropReason::TooLong, DropReason::DelayedFull] {
        assert_ne!(sum(&|counters| counters.drops(reason).messages), 0, "nothing was dropped for: {reason}");
    }
    assert!(
        sum(&|counters| counters.lent) > sum(&|counters| counters.received.messages) / 10,
        "little was lent"
    );
    let ledgers = runs.iter().flat_map(|traffic| &traffic.ledgers);
    let events: Vec<_> = ledgers.flat_map(|ledger| ledger.events.values().flatten()).collect();
    for kind in
        [EventKind::Get, EventKind::Put, EventKind::Reply, EventKind::Ack, EventKind::Send, EventKind::Unlink]
    {
        assert!(events.iter().any(|event| event.kind() == kind), "no {kind:?}");
    }
    for status in [
        Status::Ok,
        Status::Unknown(Cause::Device),
        Status::Unknown(Cause::Timeout),
        Status::NeverSent(Cause::Unreachable),
    ] {
        assert!(events.iter().any(|event| event.status() == status), "no {status:?}");
    }
    let late = |event: &&&Event| event.kind() == EventKind::Unlink && event.status() == LATE;
    assert_ne!(events.iter().filter(late).count(), 0, "no response was late");
}
