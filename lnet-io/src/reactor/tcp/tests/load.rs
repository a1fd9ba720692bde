//! Many streams, slow ones, and a lot of bytes.

use std::io::{ErrorKind, Read};

use super::*;

over_both! {
    hundreds_of_streams_share_few_receive_buffers,
    starved_streams_go_on_with_the_buffers_that_are_given_back,
    a_slow_reader_gets_all_bytes,
    large_leases_arrive_byte_for_byte,
    leases_are_back_when_they_are_told_to_be_sent,
}

fn hundreds_of_streams_share_few_receive_buffers() {
    let config = StreamsConfig {
        streams_max: 300,
        receive_buffers: 16,
        receive_buffer_bytes: 1024,
        zero_copy_min_bytes: 64 << 10,
        reactor: testing::reactor(),
    };
    for mode in [Mode::Many, Mode::Once] {
        let mut sides = [Side::new(config), Side::new(config)];
        let pairs: Vec<_> = (0..300).map(|_| connect(&mut sides)).collect();
        sides[1].echoes = true;
        let bytes: Vec<_> = (0..300).map(|seed| pattern(seed, 5000 + seed as usize)).collect();
        for ([near, far], bytes) in pairs.iter().zip(&bytes) {
            sides[0].receive(*near, mode);
            sides[1].receive(*far, mode);
            sides[0].streams.queue_bytes(*near, bytes);
        }
        let all: usize = bytes.iter().map(Vec::len).sum();
        until("all echoes", &mut sides, |sides| {
            sides[0].arrived.values().map(Vec::len).sum::<usize>() == all
        });
        for ([near, _], bytes) in pairs.iter().zip(&bytes) {
            assert_same(&sides[0].arrived[near], bytes);
        }
        let lacking = sides.iter().map(|side| side.streams.counters().buffers_lacking).sum::<u64>();
        assert!(lacking != 0 || mode == Mode::Once, "there were buffers enough");
    }
}

fn starved_streams_go_on_with_the_buffers_that_are_given_back() {
    let mut sides = Side::pair();
    let pairs: Vec<_> = (0..8).map(|_| connect(&mut sides)).collect();
    let bytes = pattern(7, 20_000);
    sides[0].keeps = Some(Vec::new());
    for [near, far] in &pairs {
        sides[0].receive(*near, Mode::Many);
        sides[1].streams.queue_bytes(*far, &bytes);
    }
    until("all buffers are full", &mut sides, |sides| !sides[0].streams.buffers.is_stocked());
    sides[0].step();
    sides[0].step();
    assert!(!sides[0].streams.has_due(), "starved streams give no work");
    // A stream that waits for a buffer may be closed or paused.
    let starved: Vec<_> = pairs.iter().map(|[near, _]| *near).collect();
    sides[0].streams.close(starved[0]);
    sides[0].pause(starved[1]);
    let event = next_event("the pause", &mut sides);
    assert!(matches!(event, StreamEvent::Paused { id } if id == starved[1]), "{event:?}");
    let kept = sides[0].keeps.take().unwrap();
    // Those of polled streams are others.
    assert!(kept.len() >= 16, "{} buffers", kept.len());
    kept.into_iter().for_each(|received| sides[0].streams.give_back(received));
    sides[0].receive(starved[1], Mode::Many);
    until("all bytes", &mut sides, |sides| {
        starved[1..].iter().all(|id| sides[0].arrived_bytes(*id) == bytes.len())
    });
    starved[1..].iter().for_each(|id| assert_same(&sides[0].arrived[id], &bytes));
    assert_eq!(sides[0].streams.buffers.stocked_count(), 16);
}

fn a_slow_reader_gets_all_bytes() {
    let mut sides = [Side::new(small())];
    let [near, mut far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    let bytes = pattern(8, 8 << 20);
    sides[0].streams.queue_bytes(id, &bytes);
    // The kernel takes what it has room for.
    let mut sent = 0;
    for _ in 0..100 {
        sides[0].step();
        sent = sides[0].streams.counters().sent_bytes;
    }
    assert!(sent < bytes.len() as u64, "the kernel has taken all");
    far.set_nonblocking(true).unwrap();
    let (mut found, mut buffer) = (Vec::new(), vec![0; 50_000]);
    until("all bytes", &mut sides, |_| {
        match far.read(&mut buffer) {
            Ok(count) => found.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        found.len() == bytes.len()
    });
    assert_same(&found, &bytes);
    until("all is told to be sent", &mut sides, |sides| sides[0].sent_bytes(id) == bytes.len() as u64);
    assert_eq!(sides[0].streams.queued_bytes(id), 0);
}

fn large_leases_arrive_byte_for_byte() {
    let mut sides = Side::pair();
    let [near, far] = connect(&mut sides);
    sides[1].receive(far, Mode::Many);
    let lengths = [1, 65_535, 65_536, 65_537, 3 << 20, 10, 300_000, 2 << 20];
    let mut expected = Vec::new();
    let mut regions = Vec::new();
    for (seed, length) in lengths.into_iter().enumerate() {
        let bytes = pattern(seed as u64, length);
        let header = pattern(length as u64, 100 * seed);
        let mut region = Region::from(bytes.clone().into_boxed_slice());
        sides[0].streams.queue_bytes(near, &header);
        sides[0].streams.queue_lease(near, region.lend_read(0..length).unwrap());
        expected.extend([header, bytes].concat());
        regions.push(region);
    }
    // The region has more fragments than one operation sends.
    let fragments = (0..150).map(|seed| Region::from(pattern(seed, 1000).into_boxed_slice()));
    let mut fragmented = Region::of_fragments(fragments);
    sides[0].streams.queue_lease(near, fragmented.lend_read(500..149_500).unwrap());
    expected.extend(fragmented.fragments(500..149_500).unwrap().flatten());
    regions.push(fragmented);
    assert_eq!(sides[0].streams.queued_bytes(near), expected.len() as u64);
    until("all bytes", &mut sides, |sides| {
        let is_sent = sides[0].sent_bytes(near) == expected.len() as u64;
        is_sent && sides[1].arrived_bytes(far) == expected.len()
    });
    assert_same(&sides[1].arrived[&far], &expected);
    assert!(regions.iter_mut().all(Region::is_whole), "a lease is out");
}

fn leases_are_back_when_they_are_told_to_be_sent() {
    let mut sides = Side::pair();
    let [near, far] = connect(&mut sides);
    sides[1].receive(far, Mode::Many);
    let mut source = region(1 << 20);
    for round in 1..=20 {
        let bytes = source.bytes_mut(0..1 << 20).unwrap();
        bytes.fill(round);
        sides[0].streams.queue_lease(near, source.lend_read(0..1 << 20).unwrap());
        let sent = u64::from(round) << 20;
        until("all is told to be sent", &mut sides, |sides| sides[0].sent_bytes(near) == sent);
    }
    until("all bytes", &mut sides, |sides| sides[1].arrived_bytes(far) == 20 << 20);
    for (bytes, round) in sides[1].arrived[&far].chunks(1 << 20).zip(1..) {
        assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
    }
}
