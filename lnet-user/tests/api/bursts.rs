//! Many entries and messages by few calls.

use lnet_user::api::{LnetError, OwnedRequest};
use lnet_user::runtime::LendError;
use lnet_user::{Ack, Buffer, EntrySpec, EventKind, MdOptions, MdSpec, Status, SubmitError};

use crate::common::{PINNED, await_idle, next, spec, start, to_self};

/// More than the shard has room for, and some that it refuses for themselves.
#[test]
fn each_entry_of_a_list_has_a_result_of_its_own() {
    const COUNT: usize = 700;
    /// Entries of the shard, but for those of the node itself.
    const ROOM: usize = 1 << 9;
    const OWN_MAX: usize = 8;
    let lnet = start(2);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(2048).unwrap();
    // Every tenth has a short buffer; the one after that belongs to the other shard.
    let is_short = |number: usize| number.is_multiple_of(10);
    let is_strange = |number: usize| number % 10 == 1;
    let entries = (0..COUNT).map(|number| {
        let portal = PINNED[usize::from(is_strange(number))];
        let length = 4 - usize::from(is_short(number));
        let md = MdSpec { user_ptr: number as u64, ..spec(&queue, 4, 1, MdOptions::PUT) };
        (EntrySpec::new(portal, number as u64), md, Buffer::from(vec![number as u8; length]))
    });
    let results = shard.attach_all(entries.collect());
    assert_eq!(results.len(), COUNT);
    let mut made = Vec::new();
    for (number, result) in results.into_iter().enumerate() {
        let error = match result {
            Ok(entry) => {
                assert!(!is_short(number) && !is_strange(number));
                made.push((number, entry));
                continue;
            }
            Err(error) => error,
        };
        let LnetError::Lend(reason) = &error.error else { panic!("{number}: {error}") };
        match reason {
            LendError::ShortBuffer { .. } => assert!(is_short(number)),
            LendError::Steering(_) => assert!(is_strange(number)),
            LendError::Entry(_) => assert!(made.len() >= ROOM, "{number}: {reason}"),
            reason => panic!("{number}: {reason}"),
        }
        let buffer = error.buffer.expect("a refused buffer comes back");
        assert!(buffer.iter().all(|byte| *byte == number as u8));
    }
    assert!((ROOM..ROOM + OWN_MAX).contains(&made.len()), "{}", made.len());
    // What was made takes a message; the rest is unlinked with its handle.
    let (last, _) = made[made.len() - 1];
    let source = shard.bind(&spec(&queue, 4, 1, MdOptions::NONE), Buffer::from(vec![9; 4])).unwrap();
    source.put(&to_self(PINNED[0], last as u64), Ack::NotWanted, 0).start().unwrap();
    let put = loop {
        let queued = next(&mut queue);
        if queued.event.kind() == EventKind::Put {
            break queued;
        }
    };
    assert_eq!((put.event.user_ptr(), put.payload()), (last as u64, Some(&[9; 4][..])));
    drop((put, made));
    while shard.usage().unwrap().memory_descs != 0 {
        let _ = next(&mut queue);
    }
}

/// A node finds the shard of each entry, and the results stand in the order of the entries.
#[test]
fn a_list_of_entries_goes_to_the_shards_that_they_belong_to() {
    const COUNT: usize = 300;
    let lnet = start(2);
    let mut queue = lnet.create_event_queue(1024).unwrap();
    let portal = |number: usize| if number == 7 { 64 } else { PINNED[number % 2] };
    let entry = |number: usize| {
        let md = MdSpec { user_ptr: number as u64, ..spec(&queue, 4, 1, MdOptions::PUT) };
        (EntrySpec::new(portal(number), number as u64), md, Buffer::from(vec![number as u8; 4]))
    };
    let made = lnet.attach_all((0..COUNT).map(entry).collect());
    assert_eq!(made.len(), COUNT);
    let mut entries = Vec::new();
    for (number, made) in made.into_iter().enumerate() {
        match made {
            Ok(entry) => {
                assert_eq!(usize::from(entry.shard().id().0), number % 2);
                entries.push(entry);
            }
            Err(refused) => {
                assert_eq!(number, 7, "{refused}");
                assert_eq!(refused.buffer.unwrap()[..], [7; 4]);
            }
        }
    }
    assert_eq!(entries.len(), COUNT - 1);
    let source = lnet.bind(&spec(&queue, 4, 3, MdOptions::NONE), Buffer::from(vec![9; 4])).unwrap();
    for number in [0, 1, 299] {
        source.put(&to_self(portal(number), number as u64), Ack::NotWanted, 0).start().unwrap();
        let put = loop {
            let queued = next(&mut queue);
            if queued.event.kind() == EventKind::Put {
                break queued;
            }
        };
        assert_eq!(put.event.user_ptr(), number as u64);
    }
}

/// An entry that is refused takes the others with it where the results are collected.
#[test]
fn a_list_may_be_all_or_none() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let queue = lnet.create_event_queue(1024).unwrap();
    let list = |length: usize| {
        let entry = |number: u64| {
            let length = if number == 100 { length } else { 4 };
            (EntrySpec::new(PINNED[0], number), spec(&queue, 4, 1, MdOptions::PUT), Buffer::zeroed(length))
        };
        (0..200).map(entry).collect::<Vec<_>>()
    };
    let refused = shard.attach_all(list(3)).into_iter().collect::<Result<Vec<_>, _>>();
    assert!(matches!(refused.unwrap_err().error, LnetError::Lend(LendError::ShortBuffer { .. })));
    assert_eq!(shard.usage().unwrap().match_entries, 0, "those beside it are unlinked");
    let all = shard.attach_all(list(4)).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!((all.len(), shard.usage().unwrap().match_entries), (200, 200));
}

#[test]
fn a_list_without_entries_is_answered() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    assert!(shard.attach_all(Vec::new()).is_empty() && shard.start_all(Vec::new()).is_empty());
    assert!(lnet.attach_all(Vec::new()).is_empty());
}

/// The message and its descriptor are one call.
#[test]
fn a_message_is_started_with_its_descriptor() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(64).unwrap();
    let mut other = shard.create_event_queue(64).unwrap();
    let md = spec(&queue, 64, 8, MdOptions::PUT);
    shard.attach(&EntrySpec::new(PINNED[0], 1), &md, Buffer::zeroed(64)).unwrap().detach();
    let outgoing = |length, portal| {
        let md = spec(&other, 4, 2, MdOptions::NONE);
        OwnedRequest::put(&md, Buffer::from(vec![5; length]), &to_self(portal, 1), Ack::Wanted, 3)
    };
    let short = shard.start(outgoing(3, PINNED[0])).unwrap_err();
    assert!(matches!(short.error, LnetError::Lend(_)) && short.buffer.unwrap().len() == 3);
    let portal = shard.start(outgoing(4, 64)).unwrap_err();
    assert!(matches!(portal.error, LnetError::Request(SubmitError::Portal(64))) && portal.buffer.is_none());
    let started = shard.start(outgoing(4, PINNED[0])).unwrap();
    let end = next(&mut other);
    assert_eq!((end.event.kind(), end.event.unlinked()), (EventKind::Unlink, true), "of the refused one");
    let put = next(&mut queue);
    assert_eq!((put.event.hdr_data(), put.payload()), (Some(3), Some(&[5; 4][..])));
    for _ in 0..2 {
        let queued = next(&mut other);
        assert_eq!((queued.event.status(), queued.event.md()), (Status::Ok, started.handle()));
    }
    drop((put, started, queue));
    await_idle(&shard);
}
