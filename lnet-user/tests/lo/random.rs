//! Random traffic between shards, each byte of which is checked: Puts and Gets to portals of all kinds,
//! entries that come before and after their message, on any shard, and some that are unlinked in between.

use std::collections::BTreeMap;

use lnet_core::event::EventKind;
use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::Status;
use lnet_core::md::MdOptions;
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::runtime::Delivery;
use proptest::prelude::*;

use crate::common::{LAZY_ROTOR, PINNED, ROTOR, Shards, pattern};

const SHARDS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Operation {
    is_put: bool,
    from: usize,
    to: usize,
    /// Portal: the target's own, one of all, a lazy one of all.
    portal: usize,
    length: usize,
    ack: bool,
    /// Turns between the request and the entry; none: the entry comes first.
    entry_late: Option<u8>,
    /// Turns between the second of both and an unlink.
    unlinked_after: Option<u8>,
}

fn operation() -> impl Strategy<Value = Operation> {
    let late = proptest::option::weighted(0.4, 0..8_u8);
    let unlinked = proptest::option::weighted(0.2, 0..8_u8);
    (any::<bool>(), 0..SHARDS, 0..SHARDS, 0..3_usize, 0..5000_usize, any::<bool>(), late, unlinked).prop_map(
        |(is_put, from, to, portal, length, ack, entry_late, unlinked_after)| Operation {
            is_put,
            from,
            to,
            portal,
            length,
            ack,
            entry_late,
            unlinked_after,
        },
    )
}

struct Running {
    shards: Shards,
    /// Which operation a descriptor is of, and what its buffer begins with.
    owners: BTreeMap<MdHandle, (usize, Vec<u8>)>,
    events: Vec<Vec<(EventKind, Status)>>,
    unlinked: usize,
}

impl Running {
    fn turn(&mut self, shard: usize) {
        self.shards.workers[shard].progress();
        while let Some(Delivery { event, buffer, .. }) =
            self.shards.workers[shard].poll_event(self.shards.queues[shard])
        {
            let (operation, before) = &self.owners[&event.md()];
            if event.status() == Status::Ok && matches!(event.kind(), EventKind::Put | EventKind::Reply) {
                let sent = pattern(*operation as u64, event.manipulated_bytes() as usize);
                let held = buffer.as_ref().expect("the last event of a message with payload");
                assert_eq!(**held, sent, "operation {operation}");
            } else if let Some(buffer) = &buffer
                && event.kind() == EventKind::Unlink
            {
                assert_eq!(**buffer, **before, "operation {operation}: what nobody wrote to");
            }
            self.unlinked += usize::from(event.unlinked());
            self.events[*operation].push((event.kind(), event.status()));
        }
    }

    fn bind(&mut self, number: usize, shard: usize, bytes: Vec<u8>, count: u32) -> MdHandle {
        let md = self.shards.bind(shard, bytes.clone(), count);
        self.owners.insert(md, (number, bytes));
        md
    }

    fn post(&mut self, number: usize, operation: &Operation, portal: u32) -> MeHandle {
        let bytes = if operation.is_put { vec![0; operation.length] } else { sent(number, operation) };
        let options = if operation.is_put { MdOptions::PUT } else { MdOptions::GET };
        let spec = self.shards.spec(operation.to, operation.length, 1, options);
        let entry = EntrySpec::new(portal, number as u64);
        let worker = &mut self.shards.workers[operation.to];
        let (entry, md) = worker.attach(&entry, &spec, Buffer::from(bytes.clone())).unwrap();
        self.owners.insert(md, (number, bytes));
        entry
    }
}

fn sent(number: usize, operation: &Operation) -> Vec<u8> {
    pattern(number as u64, operation.length)
}

fn run(operations: &[Operation], schedule: &[usize]) {
    let mut running = Running {
        shards: Shards::new(SHARDS as u8),
        owners: BTreeMap::new(),
        events: vec![Vec::new(); operations.len()],
        unlinked: 0,
    };
    let mut schedule = schedule.iter().cycle();
    let mut turns = |running: &mut Running, count: u8| {
        for _ in 0..count {
            running.turn(*schedule.next().unwrap());
        }
    };
    for (number, operation) in operations.iter().enumerate() {
        let portal = [PINNED[operation.to], ROTOR, LAZY_ROTOR][operation.portal];
        let mut entry = None;
        if operation.entry_late.is_none() {
            entry = Some(running.post(number, operation, portal));
        }
        let md = if operation.is_put {
            let count = 1 + u32::from(operation.ack);
            let md = running.bind(number, operation.from, sent(number, operation), count);
            running.shards.put(operation.from, md, portal, number as u64, operation.ack);
            md
        } else {
            let md = running.bind(number, operation.from, vec![0; operation.length], 2);
            running.shards.get(operation.from, md, portal, number as u64);
            md
        };
        if let Some(late) = operation.entry_late {
            turns(&mut running, late);
            entry = Some(running.post(number, operation, portal));
        }
        if let Some(after) = operation.unlinked_after {
            turns(&mut running, after);
            let _ = running.shards.workers[operation.to].unlink_entry(entry.unwrap());
            if after % 2 == 0 {
                let _ = running.shards.workers[operation.from].unlink(md);
            }
        }
        turns(&mut running, 1);
    }
    finish(running, operations);
}

/// Lets everything end, unlinks what was not answered, and looks whether nothing is missing.
fn finish(mut running: Running, operations: &[Operation]) {
    for _ in 0..4 * operations.len() + 100 {
        (0..SHARDS).for_each(|shard| running.turn(shard));
    }
    for (number, operation) in operations.iter().enumerate() {
        let count = |kind, events: &[(EventKind, Status)]| {
            events.iter().filter(|(other, status)| *other == kind && *status == Status::Ok).count()
        };
        let events = &running.events[number];
        let arrived = count(if operation.is_put { EventKind::Put } else { EventKind::Reply }, events);
        assert!(arrived <= 1, "{number}: {events:?}");
        let in_time = operation.entry_late.is_none() || operation.portal == 2 && operation.is_put;
        if in_time && operation.unlinked_after.is_none() {
            assert_eq!(arrived, 1, "{number} {operation:?}: {events:?}");
            let acks = count(EventKind::Ack, events);
            assert_eq!(acks, usize::from(operation.ack && operation.is_put), "{events:?}");
        }
    }
    let handles: Vec<MdHandle> = running.owners.keys().copied().collect();
    for worker in &mut running.shards.workers {
        worker.clear_lazy(LAZY_ROTOR).unwrap();
    }
    for md in handles {
        let shard = usize::from(md.0.shard().0);
        let _ = running.shards.workers[shard].unlink(md);
    }
    for _ in 0..4 * operations.len() + 100 {
        (0..SHARDS).for_each(|shard| running.turn(shard));
    }
    assert_eq!(running.unlinked, running.owners.len(), "each descriptor has a last event");
    running.shards.assert_idle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn nothing_is_lost_doubled_or_mixed_up(
        operations in proptest::collection::vec(operation(), 1..60),
        schedule in proptest::collection::vec(0..SHARDS, 1..40),
    ) {
        run(&operations, &schedule);
    }
}
