//! Random traffic between two shards: whatever happens, nothing is lost and nothing happens twice.

use std::collections::BTreeMap;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdError, MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest};
use proptest::prelude::*;

use crate::common::{NI, entry, host, nid};
use crate::pair::Pair;

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
            ..self.pair.sides[side].node.md(self.random.below(64) as u64)
        }
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
        let ignore_bits = if self.random.one_in(3) { 1 } else { 0 };
        let entry = EntrySpec { ignore_bits, ..entry(self.random.below(4) as u64) };
        let side_ref = &mut self.pair.sides[side];
        let Ok(me) = side_ref.node.shard.attach_entry(&entry) else { return };
        match side_ref.node.shard.attach(me, &spec) {
            Ok(md) => {
                side_ref.memory.insert(md, vec![0; spec.length_bytes as usize]);
                self.ledgers[side].attached.push(md);
            }
            Err(error) => assert!(matches!(error, MdError::Full | MdError::EventSlots { .. }), "{error}"),
        }
    }

    fn bind(&mut self, side: usize) {
        let options = if self.random.one_in(2) { MdOptions::TRUNCATE } else { MdOptions::NONE };
        let spec = self.spec(side, options);
        let side_ref = &mut self.pair.sides[side];
        match side_ref.node.shard.bind(&spec) {
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
        let match_bits = self.random.below(5) as u64;
        let offset = self.random.below(80) as u32;
        let (now, ack) = (self.pair.now, self.random.one_in(2));
        let shard = &mut self.pair.sides[side].node.shard;
        let started = if self.random.one_in(3) {
            shard.get(now, &GetRequest { md, self_nid: None, target, portal: 4, match_bits, offset })
        } else {
            let hdr_data = 0;
            let put = PutRequest { md, ack, self_nid: None, target, portal: 4, match_bits, offset, hdr_data };
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
        if self.pair.sides[side].node.shard.unlink(md) == Ok(Unlinked::Done) {
            ledger.idle_unlinks += 1;
        }
    }

    /// Takes the events of a side into its ledger.
    fn listen(&mut self, side: usize) {
        for event in self.pair.events(side) {
            self.ledgers[side].events.entry(event.md).or_default().push(event);
        }
    }

    fn header(&mut self, side: usize) {
        let waiting = self.pair.sides[side].wire.len();
        if waiting > 0 {
            let which = self.random.below(waiting);
            if let Some(taken) = self.pair.header(side, which) {
                self.presented[side] += 1;
                self.ledgers[side].operations += u64::from(taken);
            }
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
        let side = self.random.below(2);
        match self.random.below(16) {
            0 => self.post(side),
            1 => self.bind(side),
            2..=4 => self.request(side),
            5 if self.random.one_in(3) => self.unlink(side),
            6 => self.listen(side),
            7..=9 => {
                let full = self.random.one_in(5);
                self.pair.transmit(side, full);
            }
            10 | 11 => self.header(side),
            12 | 13 => self.received(side),
            14 => self.sent(side),
            15 if self.random.one_in(10) => {
                self.pair.now = self.pair.now + Duration::from_secs(60);
                self.pair.sides[side].node.shard.handle_timeout(self.pair.now);
            }
            _ => {}
        }
    }

    /// Lets everything end: messages, then descriptors.
    fn drain(&mut self) {
        while self.pair.sides.iter().any(|side| side.node.shard.usage().messages > 0 || !side.wire.is_empty())
            || self.pair.sides.iter().any(|side| !side.arriving.is_empty())
        {
            for side in 0..2 {
                self.pair.transmit(side, false);
                self.header(side);
                self.received(side);
                self.sent(side);
            }
        }
        for side in 0..2 {
            self.listen(side);
            while !self.ledgers[side].bound.is_empty() || !self.ledgers[side].attached.is_empty() {
                self.unlink(side);
            }
            self.listen(side);
        }
    }

    fn check(&mut self) {
        for side in 0..2 {
            let ledger = &self.ledgers[side];
            let node = &mut self.pair.sides[side].node;
            let usage = node.shard.usage();
            assert_eq!((usage.memory_descs, usage.match_entries), (0, 0));
            assert_eq!((usage.messages, usage.events, usage.trackers), (0, 0, 0));
            assert_eq!(node.shard.interface_credits(NI), Some(4));
            let peer = nid(1, if side == 0 { 2 } else { 1 });
            assert!(matches!(node.shard.peer_credits(&peer), None | Some(3)));
            assert_eq!(node.shard.free_event_queue(node.queue), Ok(()), "event slots are lost");
            assert!(self.pair.sides[side].memory.is_empty(), "a buffer was never given back");

            let all = ledger.events.values().flatten();
            let (unlinks, others): (Vec<&Event>, Vec<&Event>) =
                all.partition(|event| event.kind == EventKind::Unlink);
            assert_eq!(others.len() as u64, ledger.operations, "one event for each operation");
            let late = unlinks.iter().filter(|event| event.status != Status::Ok).count() as u64;
            assert_eq!(unlinks.len() as u64, ledger.idle_unlinks + late);
            assert!(late <= node.shard.counters().response_timeouts);
            for (md, events) in &ledger.events {
                let (last, before) = events.split_last().unwrap();
                assert!(last.unlinked, "{md:?} ended without a mark");
                assert!(before.iter().all(|event| !event.unlinked), "{md:?} ended twice");
            }
            let counters = self.pair.sides[side].node.shard.counters();
            let received = counters.received.messages + counters.receive_failures;
            assert_eq!(received + counters.dropped().messages, self.presented[side]);
            assert_eq!(counters.sent.messages, ledger.sent);
        }
    }
}

fn run(seed: u64) -> Traffic {
    let mut traffic =
        Traffic { pair: Pair::new(), random: Random(seed), ledgers: Default::default(), presented: [0; 2] };
    for _ in 0..1500 {
        traffic.step();
    }
    traffic.drain();
    traffic
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn everything_comes_home(seed: u64) {
        run(seed).check();
    }
}

/// Guards the test above: its traffic really has all kinds of events and ends.
#[test]
fn traffic_is_varied() {
    let traffic = run(1);
    let events: Vec<_> = traffic.ledgers.iter().flat_map(|ledger| ledger.events.values().flatten()).collect();
    for kind in
        [EventKind::Get, EventKind::Put, EventKind::Reply, EventKind::Ack, EventKind::Send, EventKind::Unlink]
    {
        assert!(events.iter().any(|event| event.kind == kind), "no {kind:?}");
    }
    for status in [
        Status::Ok,
        Status::Unknown(Cause::Device),
        Status::Unknown(Cause::Timeout),
        Status::NeverSent(Cause::Unreachable),
    ] {
        assert!(events.iter().any(|event| event.status == status), "no {status:?}");
    }
    let late = |event: &&&Event| event.kind == EventKind::Unlink && event.status != Status::Ok;
    assert_ne!(events.iter().filter(late).count(), 0, "no response was late");
}
