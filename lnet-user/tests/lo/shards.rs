//! Shards that help each other: portals that all of them serve.

use lnet_core::event::EventKind::{Put, Reply, Send};
use lnet_core::md::MdOptions;
use lnet_core::portal::EntrySpec;
use lnet_core::stats::DropReason;

use crate::common::{LAZY_ROTOR, ROTOR, Shards, kinds, pattern};

#[test]
fn one_shard_has_the_entry() {
    for count in [2_u8, 3, 5] {
        for from in 0..usize::from(count) {
            for to in 0..usize::from(count) {
                let mut shards = Shards::new(count);
                let bytes = pattern(7, 5000);
                shards.post(to, &EntrySpec::new(ROTOR, 1), 5000, 1, MdOptions::PUT);
                shards.post(to, &EntrySpec::new(ROTOR, 2), 5000, 1, MdOptions::GET);
                let md = shards.bind(from, bytes.clone(), 2);
                shards.put(from, md, ROTOR, 1, true);
                let mut events = shards.events(from);
                events.extend(shards.events(to));
                let put = events.iter().find(|delivery| delivery.event.kind() == Put).unwrap();
                assert_eq!(&**put.buffer.as_ref().unwrap(), bytes, "{from} to {to} of {count}");
                assert_eq!(events.len(), 3);
                let md = shards.bind(from, vec![1; 5000], 2);
                shards.get(from, md, ROTOR, 2);
                let mut events = shards.events(from);
                events.extend(shards.events(to));
                let reply = events.iter().find(|delivery| delivery.event.kind() == Reply).unwrap();
                assert_eq!(&**reply.buffer.as_ref().unwrap(), vec![0; 5000]);
                shards.assert_idle();
            }
        }
    }
}

#[test]
fn nobody_has_the_entry() {
    let mut shards = Shards::new(3);
    let md = shards.bind(1, pattern(7, 100), 1);
    shards.put(1, md, ROTOR, 1, false);
    shards.event(1, Send);
    assert_eq!(shards.workers[1].counters().drops(DropReason::NoMatch).messages, 1);
    shards.assert_idle();
}

#[test]
fn an_entry_comes_later_and_elsewhere() {
    for to in 0..3 {
        let mut shards = Shards::new(3);
        let bytes = pattern(3, 777);
        let md = shards.bind(1, bytes.clone(), 1);
        shards.put(1, md, LAZY_ROTOR, 1, false);
        assert!(shards.events(1).is_empty());
        shards.post(to, &EntrySpec::new(LAZY_ROTOR, 1), 777, 1, MdOptions::PUT);
        let mut events = shards.events(to);
        events.extend(shards.events(1));
        let put = events.iter().find(|delivery| delivery.event.kind() == Put).unwrap();
        assert_eq!(&**put.buffer.as_ref().unwrap(), bytes);
        assert_eq!(events.len(), 2);
        shards.assert_idle();
    }
}

#[test]
fn an_entry_is_unlinked_while_siblings_ask_for_it() {
    for turns in 0..20 {
        let mut shards = Shards::new(3);
        let (entry, _) = shards.post(2, &EntrySpec::new(ROTOR, 1), 10, 4, MdOptions::PUT);
        let md = shards.bind(0, pattern(3, 10), 1);
        shards.put(0, md, ROTOR, 1, false);
        for turn in 0..turns {
            shards.workers[turn % 3].progress();
        }
        shards.workers[2].unlink_entry(entry).unwrap();
        shards.event(0, Send);
        let last = shards.events(2).pop().unwrap();
        assert!(last.event.unlinked() && last.buffer.is_some());
        shards.assert_idle();
    }
}

/// More is said at once than a ring between two shards holds.
#[test]
fn a_full_ring_only_delays() {
    let mut shards = Shards::new(2);
    const COUNT: u32 = 200;
    shards.post(1, &EntrySpec::new(ROTOR, 1), 8 * COUNT as usize, COUNT, MdOptions::PUT);
    let md = shards.bind(0, pattern(1, 8), COUNT);
    for _ in 0..COUNT {
        shards.put(0, md, ROTOR, 1, false);
        // Shard 1 sleeps.
        shards.workers[0].progress();
    }
    let sent = shards.events(0);
    assert_eq!(kinds(&sent), [Send; COUNT as usize]);
    let dropped = shards.workers[0].counters().drops(DropReason::DelayedFull).messages;
    let arrived = shards.events(1);
    assert_eq!(arrived.len() as u64 + dropped, u64::from(COUNT));
    assert!(arrived.len() >= 64, "as many as may wait of one peer: {}", arrived.len());
    let last = arrived.last().unwrap().event;
    if !last.unlinked() {
        shards.workers[1].unlink(last.md()).unwrap();
        shards.events(1);
    }
    shards.assert_idle();
}
