//! Many messages by one descriptor: parts of its buffer.

use lnet_user::{
    Ack, Buffer, EntrySpec, Event, EventKind, LnetError, MdOptions, MdSpec, Status, SubmitError, Target,
    Threshold,
};

use crate::common::{PINNED, next, post, spec, start, to_self};
use crate::events::block_on;

#[test]
fn a_descriptor_that_is_bound_once_puts_part_after_part() {
    let lnet = start(1);
    let shard = lnet.shard(0).unwrap();
    let (mut near, mut far) = (shard.create_event_queue(128).unwrap(), shard.create_event_queue(64).unwrap());
    for _ in 0..16 {
        post(&shard, &far, PINNED[0], 1, 8);
    }
    let md = MdSpec { threshold: Threshold::Infinite, ..spec(&near, 64, 1, MdOptions::NONE) };
    let source = shard.bind(&md, Buffer::from((0..64).collect::<Vec<u8>>())).unwrap();
    for number in 0..16 {
        let put = source.put(&to_self(PINNED[0], 1), Ack::Wanted, number.into());
        put.part(4 * number, number % 5).queue().unwrap();
    }
    for number in 0..16_u32 {
        let put = next(&mut far);
        assert_eq!(put.event.hdr_data(), Some(u64::from(number)));
        let first = 4 * number as u8;
        let expected: Vec<u8> = (first..first + number as u8 % 5).collect();
        assert_eq!(put.payload(), Some(&expected[..]));
    }
    let answers: Vec<_> = (0..32).map(|_| next(&mut near).event).collect();
    assert!(answers.iter().all(|event| event.status() == Status::Ok && !event.unlinked()), "{answers:?}");
    // What leaves the descriptor is refused, by the call and by an event; and another one goes on.
    let beyond = source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).part(60, 5).start().unwrap_err();
    assert!(matches!(beyond, LnetError::Request(SubmitError::Part { length_bytes: 64, .. })), "{beyond}");
    assert!(!beyond.is_busy());
    source.get(&to_self(PINNED[0], 1)).part(64, 1).queue().unwrap();
    let refused = next(&mut near);
    assert!(refused.refusal().unwrap().to_string().starts_with("bytes 64 to 65 of"), "{refused:?}");
    source.put(&to_self(PINNED[0], 1), Ack::NotWanted, 0).part(64, 0).start().unwrap();
    assert_eq!(next(&mut near).event.manipulated_bytes(), 0);
    drop(source);
    assert_eq!(next(&mut near).into_buffer().map(|buffer| buffer.len()), Some(64));
}

#[test]
fn gets_fill_a_buffer_part_by_part() {
    let lnet = start(1);
    let mut events = lnet.create_event_queue(128).unwrap();
    let md = MdSpec {
        options: MdOptions::GET | MdOptions::MANAGE_REMOTE,
        threshold: Threshold::Infinite,
        ..spec(&events, 64, 1, MdOptions::GET)
    };
    let served = Buffer::from((0..64).collect::<Vec<u8>>());
    let _served = lnet.attach(&EntrySpec::new(PINNED[0], 2), &md, served).unwrap();
    let md = MdSpec { options: MdOptions::NONE, ..spec(&events, 64, 8, MdOptions::NONE) };
    let sink = lnet.bind(&md, Buffer::from(vec![99; 64])).unwrap();
    let mut from = to_self(PINNED[0], 2);
    for (remote, offset_bytes, length_bytes) in [(10, 0, 4), (50, 60, 4), (0, 20, 1), (0, 30, 0)] {
        from.offset = remote;
        let got = block_on(async { sink.get(&from).part(offset_bytes, length_bytes).await }).unwrap();
        let Event::Reply { offset_bytes: found, manipulated_bytes, .. } = got.event else {
            panic!("{got:?}")
        };
        assert_eq!((found, manipulated_bytes), (u64::from(offset_bytes), length_bytes));
        if let Some(buffer) = got.into_buffer() {
            let mut expected = [99; 64];
            expected[..4].copy_from_slice(&[10, 11, 12, 13]);
            expected[60..].copy_from_slice(&[50, 51, 52, 53]);
            expected[20] = 0;
            assert_eq!(*buffer, expected);
        }
    }
    let kinds = [(); 4].map(|()| next(&mut events).event.kind());
    assert_eq!(kinds, [EventKind::Get; 4]);
}

/// Sixteen GETs of one descriptor, each for a part of it, are started before any is answered.
#[test]
fn gets_fill_parts_at_once() {
    const PARTS: u32 = 16;
    let lnet = start(1);
    let mut events = lnet.create_event_queue(256).unwrap();
    let bytes = || (0..64).collect::<Vec<u8>>();
    let md = spec(&events, 64, PARTS, MdOptions::GET | MdOptions::MANAGE_REMOTE);
    let _served = lnet.attach(&EntrySpec::new(PINNED[0], 2), &md, bytes().into()).unwrap();
    let sink = lnet.bind(&spec(&events, 64, 2 * PARTS, MdOptions::NONE), Buffer::zeroed(64)).unwrap();
    for number in (0..PARTS).rev() {
        let from = Target { offset: 4 * number, ..to_self(PINNED[0], 2) };
        sink.get(&from).part(4 * number, 4).queue().unwrap();
    }
    let got = loop {
        let queued = next(&mut events);
        assert_eq!(queued.event.status(), Status::Ok);
        assert!(queued.refusal().is_none(), "{queued:?}");
        if queued.event.md() == sink.handle() && queued.event.unlinked() {
            break queued.into_buffer().unwrap();
        }
    };
    assert_eq!(*got, *bytes());
}
