//! Many event queues on one shard: each tells what is its own, whatever the others do.

use std::collections::{BTreeMap, BTreeSet};

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{
    Ack, Buffer, EntrySpec, Event, EventQueue, Limits, Lnet, MdOptions, MdSpec, QueuedEvent, ShardHandle,
    Threshold,
};
use proptest::prelude::*;

use crate::common::{PINNED, await_idle, config, next, to_self};

/// Places of each queue; few, so that events wait in the shard.
const SLOTS: u32 = 24;

/// A queue, and what is still to come by it, by descriptor's `user_ptr` and count.
struct Known {
    queue: EventQueue,
    /// Puts of which it is still to tell, by their number.
    expected: BTreeSet<u64>,
    /// PUTs that are kept, and so keep buffers from coming home.
    kept: Vec<QueuedEvent>,
    room: u32,
}

/// Posts an entry for one PUT and sends it; the event of both comes by the queue.
fn exchange(shard: &ShardHandle, known: &mut Known, number: u64) {
    // PUT, SEND; the last event of either descriptor is one of these.
    if known.room < 4 {
        return;
    }
    known.room -= 4;
    let spec = |options| MdSpec {
        user_ptr: number,
        ..MdSpec::new(8, Threshold::Count(1), options, known.queue.handle())
    };
    let entry = EntrySpec::new(PINNED[0], number);
    shard.attach(&entry, &spec(MdOptions::PUT), Buffer::zeroed(8)).unwrap().detach();
    let bytes = Buffer::from(number.to_le_bytes().to_vec());
    let source = shard.bind(&spec(MdOptions::NONE), bytes).unwrap();
    source.put(&to_self(PINNED[0], number), Ack::NotWanted, number).queue().unwrap();
    source.detach();
    known.expected.extend([number * 2, number * 2 + 1]);
}

/// Takes an event that must come.
fn take(known: &mut Known, keeps: bool) {
    let queued = next(&mut known.queue);
    let is_put = matches!(queued.event, Event::Put { .. });
    assert!(known.expected.remove(&(queued.event.user_ptr() * 2 + u64::from(is_put))), "{queued:?}");
    known.room += 2;
    if is_put {
        assert_eq!(queued.payload(), Some(&queued.event.user_ptr().to_le_bytes()[..]));
        if keeps {
            known.kept.push(queued);
        }
    }
}

/// Each queue is told exactly what one would tell that looked at all of them in each turn, on a shard that
/// sleeps whenever it can.
fn check(steps: &[(u8, u8)]) {
    let limits = Limits { event_queues: 64, ..config(1).limits };
    let threads = Threads::new().idle(Idle::new(std::time::Duration::ZERO));
    let lnet = Lnet::start_on(&config(1).limits(limits), &threads).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut queues = BTreeMap::new();
    for (number, (step, index)) in (1_u64..).zip(steps) {
        let known = queues.get_mut(index);
        match (step, known) {
            (_, None) => {
                let queue = shard.create_event_queue(SLOTS).unwrap();
                let known = Known { queue, expected: BTreeSet::new(), kept: Vec::new(), room: SLOTS };
                queues.insert(*index, known);
            }
            (0..=4, Some(known)) => exchange(&shard, known, number),
            (5 | 6, Some(known)) if !known.expected.is_empty() => take(known, *step == 6),
            (7, Some(known)) => known.kept.clear(),
            (8, Some(_)) => drop(queues.remove(index)),
            _ => {}
        }
    }
    for known in queues.values_mut() {
        while !known.expected.is_empty() {
            take(known, false);
        }
        assert!(known.queue.try_next().unwrap().is_none());
    }
    drop(queues);
    await_idle(&shard);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn each_queue_is_told_what_is_its_own(steps in proptest::collection::vec((0_u8..9, 0_u8..40), 0..400)) {
        check(&steps);
    }
}
