//! Streams that the driver looks at itself.

use super::*;

over_both! {
    a_stream_is_polled_after_bytes_have_come,
    few_streams_are_polled,
    a_polled_stream_tells_of_its_end,
    polled_streams_are_paused_and_closed,
    a_polled_stream_is_looked_at_beside_one_that_never_rests,
}

impl Side {
    fn is_polled(&self, id: StreamId) -> bool {
        self.streams.slots[id.slot as usize].is_polled
    }

    /// Whether the kernel tells of something within 20 s.
    fn is_told(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.streams.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap() != 0
    }
}

fn a_stream_is_polled_after_bytes_have_come() {
    let mut sides = [Side::new(small())];
    let [near, mut far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    sides[0].receive(id, Mode::Many);
    sides[0].step();
    assert!(!sides[0].is_polled(id));
    for round in 1..=20 {
        far.write_all(&[1; 100]).unwrap();
        until("the first bytes", &mut sides, |sides| sides[0].arrived_bytes(id) == round * 300 - 200);
        assert!(sides[0].is_polled(id) && !sides[0].streams.submission.is_under_way());
        far.write_all(&[2; 200]).unwrap();
        // A look is enough to find them.
        let begun = Instant::now();
        while !sides[0].streams.has_arrivals() {
            assert!(begun.elapsed() < PATIENCE, "never: bytes are found");
        }
        until("more bytes", &mut sides, |sides| sides[0].arrived_bytes(id) == round * 300);
        // Before a sleep, and after many looks in vain, there is something that wakes.
        if round % 2 == 0 {
            sides[0].streams.end_polling().unwrap();
        } else {
            until("it is polled no more", &mut sides, |sides| !sides[0].is_polled(id));
            sides[0].step();
        }
        assert!(!sides[0].is_polled(id) && sides[0].streams.submission.is_under_way());
        assert!(!sides[0].streams.has_arrivals());
    }
    far.write_all(&[3; 50]).unwrap();
    assert!(sides[0].is_told());
    until("the last bytes", &mut sides, |sides| sides[0].arrived_bytes(id) == 6050);
}

fn a_polled_stream_is_looked_at_beside_one_that_never_rests() {
    let mut sides = [Side::new(small())];
    let [(id, mut far), (busy, mut far_busy)] = [sockets(), sockets()].map(|[near, far]| {
        let id = sides[0].streams.adopt(near.into()).unwrap();
        (id, far)
    });
    sides[0].receive(id, Mode::Many);
    sides[0].step();
    far.write_all(&[1]).unwrap();
    until("the first byte", &mut sides, |sides| sides[0].arrived_bytes(id) == 1);
    assert!(sides[0].is_polled(id));
    far.write_all(&[2]).unwrap();
    let mut busy_turns = 0;
    while busy_turns < 50 && sides[0].arrived_bytes(id) == 1 {
        far_busy.write_all(&[3]).unwrap();
        let filled = sides[0].filled.len();
        sides[0].fill(busy, region(1), 0..1);
        // Its byte is there, and told in the turn that asks.
        sides[0].step();
        busy_turns += usize::from(sides[0].filled.len() > filled);
    }
    assert_eq!(sides[0].arrived_bytes(id), 2, "after {busy_turns} busy turns");
}

fn few_streams_are_polled() {
    let mut sides = Side::pair();
    let pairs: Vec<_> = (0..6).map(|_| connect(&mut sides)).collect();
    let bytes = pattern(9, 30_000);
    for [near, far] in &pairs {
        sides[0].receive(*near, Mode::Many);
        sides[1].streams.queue_bytes(*far, &bytes);
    }
    let mut most = 0;
    until("all bytes", &mut sides, |sides| {
        most = most.max(pairs.iter().filter(|[near, _]| sides[0].is_polled(*near)).count());
        pairs.iter().all(|[near, _]| sides[0].arrived_bytes(*near) == bytes.len())
    });
    assert_eq!(most, super::super::polled::POLLED_MAX);
    pairs.iter().for_each(|[near, _]| assert_same(&sides[0].arrived[near], &bytes));
    assert_eq!(sides[0].streams.buffers.stocked_count(), 16);
}

fn a_polled_stream_tells_of_its_end() {
    let mut sides = [Side::new(small())];
    let [near, mut far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    sides[0].receive(id, Mode::Many);
    far.write_all(&[7; 60]).unwrap();
    until("it is polled", &mut sides, |sides| sides[0].is_polled(id));
    drop(far);
    let event = next_event("the end", &mut sides);
    assert!(matches!(event, StreamEvent::Ended { error: None, .. }), "{event:?}");
    assert_eq!(sides[0].arrived_bytes(id), 60);
}

fn polled_streams_are_paused_and_closed() {
    let mut sides = [Side::new(small())];
    for round in 0..10 {
        let [near, mut far] = sockets();
        let id = sides[0].streams.adopt(near.into()).unwrap();
        sides[0].receive(id, Mode::Many);
        far.write_all(&[7; 60]).unwrap();
        until("it is polled", &mut sides, |sides| sides[0].is_polled(id));
        if round % 2 == 0 {
            sides[0].pause(id);
            let event = next_event("the pause", &mut sides);
            assert!(matches!(event, StreamEvent::Paused { .. }), "{event:?}");
            far.write_all(&[7; 60]).unwrap();
            sides[0].step();
            assert_eq!(sides[0].arrived_bytes(id), 60, "bytes have arrived in a pause");
            sides[0].receive(id, Mode::Once);
            until("the bytes", &mut sides, |sides| sides[0].arrived_bytes(id) == 120);
        }
        sides[0].streams.close(id);
        until("it is closed", &mut sides, |sides| sides[0].closed.contains(&id));
    }
}
