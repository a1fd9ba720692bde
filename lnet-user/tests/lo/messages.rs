//! Each type of message, in one shard and between two.

use lnet_core::event::Event;
use lnet_core::event::EventKind::{Ack, Get, Put, Reply, Send, Unlink};
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdOptions, Threshold, Unlinked};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_core::stats::{Counters, DelayReason, DropReason};
use lnet_user::Buffer;
use lnet_user::runtime::{LendError, SteeringError};
use lnet_wire::header::PAYLOAD_BYTES_MAX;

use crate::common::{LAZY_PINNED, PINNED, SELF, Shards, kinds, pattern, put_request};

const MIB: usize = PAYLOAD_BYTES_MAX as usize;

#[test]
fn puts_of_all_sizes() {
    for target in [0, 1] {
        let mut shards = Shards::new(2);
        for length in [0, 1, 64, 4096, MIB] {
            let bytes = pattern(length as u64, length);
            shards.post(target, &EntrySpec::new(PINNED[target], 5), length, 1, MdOptions::PUT);
            let md = shards.bind(0, bytes.clone(), 2);
            shards.put(0, md, PINNED[target], 5, true);
            let mut events = shards.events(0);
            if target == 0 {
                assert_eq!(kinds(&events), [Put, Send, Ack]);
            } else {
                assert_eq!(kinds(&events), [Send, Ack]);
                events.splice(0..0, shards.events(1));
            }
            let put = &events[0];
            let Event::Put { origin, hdr_data, requested_bytes, offset_bytes, .. } = put.event else {
                panic!("no PUT: {put:?}")
            };
            assert_eq!((origin.initiator, origin.source, hdr_data), (SELF, SELF.nid, !5));
            assert_eq!((requested_bytes, offset_bytes), (length as u32, 0));
            assert_eq!(&**put.buffer.as_ref().unwrap(), bytes, "{length} bytes");
            let ack = events.last().unwrap();
            assert_eq!((ack.event.manipulated_bytes(), ack.event.unlinked()), (length as u32, true));
            assert_eq!(&**ack.buffer.as_ref().unwrap(), bytes);
            shards.assert_idle();
        }
        let total =
            |of: fn(&Counters) -> u64| shards.workers.iter().map(|worker| of(worker.counters())).sum::<u64>();
        assert_eq!((total(|all| all.received.messages), total(|all| all.dropped().messages)), (5 + 5, 0));
        assert_eq!(total(|all| all.received.bytes), (1 + 64 + 4096 + MIB) as u64);
    }
}

#[test]
fn gets_of_all_sizes() {
    for target in [0, 1] {
        let mut shards = Shards::new(2);
        for length in [0, 1, 64, 4096, MIB] {
            let bytes = pattern(length as u64, length);
            let spec = shards.spec(target, length, 1, MdOptions::GET);
            let entry = EntrySpec::new(PINNED[target], 6);
            shards.workers[target].attach(&entry, &spec, Buffer::from(bytes.clone())).unwrap();
            let md = shards.bind(0, vec![0; length], 2);
            shards.get(0, md, PINNED[target], 6);
            let mut events = shards.events(0);
            if target == 0 {
                assert_eq!(kinds(&events), [Send, Reply, Get]);
            } else {
                assert_eq!(kinds(&events), [Send, Reply]);
                assert_eq!(kinds(&shards.events(1)), [Get]);
            }
            let reply = events.swap_remove(1);
            assert_eq!((reply.event.manipulated_bytes(), reply.event.unlinked()), (length as u32, true));
            assert_eq!(&*reply.buffer.unwrap(), bytes, "{length} bytes");
            shards.assert_idle();
        }
    }
}

#[test]
fn what_is_too_long_is_cut_or_dropped() {
    for target in [0, 1] {
        let mut shards = Shards::new(2);
        let bytes = pattern(1, 100);
        let options = MdOptions::PUT | MdOptions::TRUNCATE;
        shards.post(target, &EntrySpec::new(PINNED[target], 1), 30, 1, options);
        let (_, strict) = shards.post(target, &EntrySpec::new(PINNED[target], 2), 30, 1, MdOptions::PUT);
        let md = shards.bind(0, bytes.clone(), 4);
        shards.put(0, md, PINNED[target], 1, true);
        let mut events = shards.events(0);
        assert_eq!(events.pop().unwrap().event.manipulated_bytes(), 30);
        events.extend(shards.events(target));
        let put = events.into_iter().find(|delivery| delivery.event.kind() == Put).unwrap();
        assert!(matches!(put.event, Event::Put { requested_bytes: 100, manipulated_bytes: 30, .. }));
        assert_eq!(&*put.buffer.unwrap(), &bytes[..30]);

        shards.put(0, md, PINNED[target], 2, false);
        shards.event(0, Send);
        let drops = |shards: &Shards, reason| shards.workers[0].counters().drops(reason).messages;
        assert_eq!(drops(&shards, DropReason::TooLong), 1, "it is counted where it arrives");
        shards.put(0, md, PINNED[target], 3, false);
        let last = shards.event(0, Send);
        assert_eq!(drops(&shards, DropReason::NoMatch), 1);
        assert_eq!(shards.workers[0].counters().dropped().messages, 2);
        assert!(last.buffer.is_some());
        assert_eq!(shards.workers[target].unlink(strict), Ok(Unlinked::Done));
        shards.event(target, Unlink);
        shards.assert_idle();
    }
}

#[test]
fn senders_choose_the_offset() {
    for target in [0, 1] {
        let mut shards = Shards::new(2);
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        let (_, md) = shards.post(target, &EntrySpec::new(PINNED[target], 1), 64, 9, options);
        let mut expected = vec![0; 64];
        for (number, offset) in [3_usize, 40, 10, 0, 54].into_iter().enumerate() {
            let bytes = pattern(number as u64, 10);
            expected[offset..offset + 10].copy_from_slice(&bytes);
            let bound = shards.bind(0, bytes, 1);
            let request =
                PutRequest { offset: offset as u32, ..put_request(bound, PINNED[target], 1, false) };
            shards.workers[0].put(&request).unwrap();
        }
        // Spans of the messages overlap, and the sibling lends one at a time.
        shards.settle();
        assert_eq!(shards.workers[target].payload(md, 0, 64).unwrap(), expected);
        shards.workers[target].unlink(md).unwrap();
        for shard in [0, 1] {
            shards.events(shard);
        }
        shards.assert_idle();
    }
}

#[test]
fn a_put_waits_for_an_entry() {
    for shard_count in [1, 2] {
        let mut shards = Shards::new(shard_count);
        let target = usize::from(shard_count) - 1;
        let bytes = pattern(9, 1000);
        let md = shards.bind(0, bytes.clone(), 2);
        shards.put(0, md, LAZY_PINNED, 1, true);
        assert!(shards.events(0).is_empty(), "neither sent nor dropped");
        shards.post(target, &EntrySpec::new(LAZY_PINNED, 1), 1000, 1, MdOptions::PUT);
        let mut events = shards.events(0);
        events.extend(shards.events(target));
        let put = events.iter().find(|delivery| delivery.event.kind() == Put).unwrap();
        assert_eq!(&**put.buffer.as_ref().unwrap(), bytes);
        assert_eq!(events.len(), 3);
        let counters = shards.workers[0].counters();
        assert_eq!(DelayReason::ALL.map(|reason| counters.delays(reason)).iter().sum::<u64>(), 1);
        shards.assert_idle();

        // And another one until it is not waited for any more.
        let md = shards.bind(0, bytes, 1);
        shards.put(0, md, LAZY_PINNED, 2, false);
        shards.settle();
        for worker in &mut shards.workers {
            worker.clear_lazy(LAZY_PINNED).unwrap();
        }
        shards.event(0, Send);
        shards.assert_idle();
    }
}

#[test]
fn more_messages_wait_than_there_are_places() {
    let mut shards = Shards::new(1);
    let md = shards.bind(0, pattern(1, 8), 200);
    for bits in 0..100 {
        shards.put(0, md, LAZY_PINNED, bits, false);
    }
    assert_eq!(shards.events(0).len(), 36, "of 128 one peer has half");
    for bits in 0..64 {
        shards.post(0, &EntrySpec::new(LAZY_PINNED, bits), 8, 1, MdOptions::PUT);
    }
    assert_eq!(shards.events(0).len(), 128);
    shards.workers[0].unlink(md).unwrap();
    shards.event(0, Unlink);
    shards.assert_idle();
}

#[test]
fn unlinked_while_the_message_is_under_way() {
    for turns in 0..12 {
        for (source_goes, target_goes) in [(true, false), (false, true), (true, true)] {
            let mut shards = Shards::new(2);
            let (entry, target) = shards.post(1, &EntrySpec::new(PINNED[1], 1), 100, 1, MdOptions::PUT);
            let source = shards.bind(0, pattern(1, 100), 2);
            shards.put(0, source, PINNED[1], 1, true);
            for turn in 0..turns {
                shards.workers[turn % 2].progress();
            }
            if source_goes {
                // Gone already after the ACK.
                let _ = shards.workers[0].unlink(source);
            }
            if target_goes {
                // It went with its descriptor if that was used up, which then may be on its way out.
                if shards.workers[1].unlink_entry(entry).is_err() {
                    let _ = shards.workers[1].unlink(target);
                }
            }
            shards.settle();
            // A source without an answer waits for its ACK.
            let _ = shards.workers[0].unlink(source);
            for shard in [0, 1] {
                let events = shards.events(shard);
                let last: Vec<_> = events.iter().filter(|delivery| delivery.event.unlinked()).collect();
                assert_eq!(last.len(), 1, "{turns}: {events:?}");
                assert!(last[0].buffer.is_some());
            }
            shards.assert_idle();
        }
    }
}

#[test]
fn a_get_is_unlinked_while_its_reply_is_under_way() {
    for turns in 0..12 {
        let mut shards = Shards::new(2);
        let (_, target) = shards.post(1, &EntrySpec::new(PINNED[1], 1), 100, 1, MdOptions::GET);
        let sink = shards.bind(0, vec![0; 100], 2);
        shards.get(0, sink, PINNED[1], 1);
        for turn in 0..turns {
            shards.workers[turn % 2].progress();
        }
        let _ = shards.workers[0].unlink(sink);
        let _ = shards.workers[1].unlink(target);
        for shard in [0, 1] {
            let events = shards.events(shard);
            assert_eq!(events.iter().filter(|delivery| delivery.event.unlinked()).count(), 1, "{events:?}");
        }
        shards.assert_idle();
    }
}

/// A descriptor into which a sibling writes a REPLY is not read meanwhile.
#[test]
fn nothing_is_put_from_a_buffer_that_is_being_written() {
    let mut refused = 0;
    for turns in 0..12 {
        let mut shards = Shards::new(2);
        shards.post(1, &EntrySpec::new(PINNED[1], 1), 100, 1, MdOptions::GET);
        let (_, target) = shards.post(0, &EntrySpec::new(PINNED[0], 7), 100, 1, MdOptions::PUT);
        let md = shards.bind(0, vec![1; 100], 4);
        shards.get(0, md, PINNED[1], 1);
        for turn in 0..turns {
            shards.workers[turn % 2].progress();
        }
        match shards.workers[0].put(&put_request(md, PINNED[0], 7, false)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, SubmitError::MdLent(md));
                refused += 1;
                shards.workers[0].unlink(target).unwrap();
            }
        }
        shards.settle();
        shards.workers[0].unlink(md).unwrap();
        shards.events(0);
        shards.events(1);
        shards.assert_idle();
    }
    assert_ne!(refused, 0);
}

#[test]
fn a_node_that_reaches_nobody_else() {
    let mut shards = Shards::new(1);
    let md = shards.bind(0, vec![1; 8], 1);
    let mut request = put_request(md, PINNED[0], 1, false);
    request.target.nid = "10.0.0.1@xdp".parse().unwrap();
    shards.workers[0].put(&request).unwrap();
    let events = shards.events(0);
    assert_eq!(events[0].event.status(), Status::NeverSent(Cause::Unreachable));
}

#[test]
fn an_entry_where_its_messages_do_not_belong() {
    let mut shards = Shards::new(2);
    let spec = shards.spec(0, 8, 1, MdOptions::PUT);
    let refused =
        shards.workers[0].attach(&EntrySpec::new(PINNED[1], 1), &spec, Buffer::zeroed(8)).unwrap_err();
    assert!(matches!(
        refused.error,
        LendError::Steering(SteeringError::OtherShard { home: 1, shard: 0, .. })
    ));
    assert_eq!(refused.buffer.len(), 8);
    assert_eq!(spec.threshold, Threshold::Count(1));
    shards.assert_idle();
}
