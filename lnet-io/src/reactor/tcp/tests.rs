//! Streams between `Streams` and plain sockets over loopback.

use core::mem::take;
use core::ops::Range;
use std::collections::HashMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, poll};

use super::super::testing::{self, over_both};
use super::*;
use crate::region::Region;

mod load;
mod options;
mod peers;
mod polled;

/// How long a condition may take to come true: machines are slow at times.
const PATIENCE: Duration = Duration::from_secs(30);
fn small() -> StreamsConfig {
    StreamsConfig {
        streams_max: 8,
        receive_buffers: 16,
        receive_buffer_bytes: 4096,
        zero_copy_min_bytes: 64 << 10,
        reactor: testing::reactor(),
    }
}

over_both! {
    bytes_come_back_in_each_mode,
    bytes_are_received_straight_into_their_place,
    the_end_of_a_stream_is_told_to_who_waits_for_bytes,
    a_pause_loses_nothing,
    a_pause_ends_the_wait_for_bytes,
    a_stream_moves_between_streams_in_order,
    another_thread_goes_on_without_a_loss,
    streams_close_while_things_are_under_way,
    streams_are_dropped_while_things_are_under_way,
}

/// Streams, and what they have told.
struct Side {
    streams: Streams,
    /// Those that receive.
    modes: HashMap<StreamId, Mode>,
    arrived: HashMap<StreamId, Vec<u8>>,
    sent: HashMap<StreamId, u64>,
    /// Regions that streams are received straight into, and what is left of them.
    filling: Vec<(StreamId, Region, Range<usize>)>,
    filled: Vec<Region>,
    closed: Vec<StreamId>,
    /// All other events.
    events: VecDeque<StreamEvent>,
    /// Sends back what arrives.
    echoes: bool,
    /// Buffers that are not given back.
    keeps: Option<Vec<ReceivedBytes>>,
}

impl Side {
    fn new(config: StreamsConfig) -> Self {
        let streams = Streams::new(&config).unwrap();
        let (modes, arrived, sent, filling, filled, closed, events) = Default::default();
        Self { streams, modes, arrived, sent, filling, filled, closed, events, echoes: false, keeps: None }
    }

    fn pair() -> [Self; 2] {
        [Self::new(small()), Self::new(small())]
    }

    fn receive(&mut self, id: StreamId, mode: Mode) {
        self.modes.insert(id, mode);
        self.streams.receive(id, mode);
    }

    fn pause(&mut self, id: StreamId) {
        self.modes.remove(&id);
        self.streams.pause(id);
    }

    /// Receives straight into a part of a region.
    fn fill(&mut self, id: StreamId, region: Region, range: Range<usize>) {
        self.filling.push((id, region, range));
        self.streams.await_bytes(id);
    }

    fn readable(&mut self, readable: StreamId) {
        let index = self.filling.iter().position(|(id, ..)| *id == readable).expect("it was asked for");
        let (_, region, range) = &mut self.filling[index];
        while range.start < range.end {
            let target = region.fragments_mut(range.clone()).unwrap();
            let Some(bytes) = self.streams.receive_now(readable, target) else {
                return self.streams.await_bytes(readable);
            };
            range.start += bytes;
        }
        self.filled.push(self.filling.swap_remove(index).1);
    }

    fn step(&mut self) {
        self.streams.turn().unwrap();
        while let Some(event) = self.streams.poll_event() {
            match event {
                StreamEvent::Received { id, bytes } => self.received(id, bytes),
                StreamEvent::Sent { id, bytes } => *self.sent.entry(id).or_default() += bytes,
                StreamEvent::Closed { id } => self.closed.push(id),
                StreamEvent::Readable { id } if !self.filling.is_empty() => self.readable(id),
                event => self.events.push_back(event),
            }
        }
        self.streams.flush().unwrap();
    }

    fn received(&mut self, id: StreamId, received: ReceivedBytes) {
        let bytes = self.streams.bytes(&received);
        assert!(!bytes.is_empty());
        if let Some(Mode::UpTo(max)) = self.modes.get(&id) {
            assert!(bytes.len() <= *max as usize, "{} bytes instead of {max}", bytes.len());
        }
        self.arrived.entry(id).or_default().extend_from_slice(bytes);
        if self.echoes {
            let bytes = bytes.to_vec();
            self.streams.queue_bytes(id, &bytes);
        }
        match &mut self.keeps {
            Some(kept) => kept.push(received),
            None => self.streams.give_back(received),
        }
        if let Some(mode) = self.modes.get(&id).filter(|mode| **mode != Mode::Many) {
            self.streams.receive(id, *mode);
        }
    }

    fn arrived_bytes(&self, id: StreamId) -> usize {
        self.arrived.get(&id).map_or(0, Vec::len)
    }

    fn sent_bytes(&self, id: StreamId) -> u64 {
        self.sent.get(&id).copied().unwrap_or(0)
    }
}

/// Drives all sides until a condition holds.
fn until(what: &str, sides: &mut [Side], mut done: impl FnMut(&mut [Side]) -> bool) {
    let begun = Instant::now();
    loop {
        sides.iter_mut().for_each(Side::step);
        if done(sides) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        if !sides.iter_mut().any(|side| side.streams.has_work()) {
            let mut fds: Vec<_> =
                sides.iter().map(|side| PollFd::from_borrowed_fd(side.streams.fd(), PollFlags::IN)).collect();
            // The condition may be one that no completion tells of.
            let interval = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            poll(&mut fds, Some(&interval)).unwrap();
        }
    }
}

/// Drives all sides until the first tells of something, and returns that.
fn next_event(what: &str, sides: &mut [Side]) -> StreamEvent {
    until(what, sides, |sides| !sides[0].events.is_empty());
    sides[0].events.pop_front().unwrap()
}

/// Two sockets that are connected.
fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    [near, far].map(|socket| {
        socket.set_nodelay(true).unwrap();
        socket
    })
}

/// A stream between the first two sides.
fn connect(sides: &mut [Side]) -> [StreamId; 2] {
    let [near, far] = sockets();
    [sides[0].streams.adopt(near.into()).unwrap(), sides[1].streams.adopt(far.into()).unwrap()]
}

/// A socket that can dial.
fn dialler() -> OwnedFd {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    socket
}

fn listener() -> (OwnedFd, SocketAddr) {
    let options = socket::SocketOptions::default();
    let socket = socket::listener(([127, 0, 0, 1], 0).into(), 64, false, &options).unwrap();
    let address = socket_address(Some(&socket)).unwrap();
    (socket, address)
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_be_bytes()[..chunk.len()]);
    }
    bytes
}

#[track_caller]
fn assert_same(found: &[u8], expected: &[u8]) {
    let common = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    let lengths = (found.len(), expected.len());
    assert!(found == expected, "of {lengths:?} bytes found and expected, the first {common} are the same");
}

/// A region of so many zeros.
fn region(length: usize) -> Region {
    Region::from(vec![0; length].into_boxed_slice())
}

fn bytes_come_back_in_each_mode() {
    for mode in [Mode::Once, Mode::UpTo(1000), Mode::Many] {
        let mut sides = Side::pair();
        let [near, far] = connect(&mut sides);
        sides[1].echoes = true;
        sides[0].receive(near, mode);
        sides[1].receive(far, mode);
        let bytes = pattern(1, 500_000);
        for length in [1, 4095, 4096, 4097, 100_000, 387_711] {
            let before = sides[0].arrived_bytes(near);
            sides[0].streams.queue_bytes(near, &bytes[before..before + length]);
            until("the echo", &mut sides, |sides| sides[0].arrived_bytes(near) == before + length);
        }
        assert_same(&sides[0].arrived[&near], &bytes);
        for (side, id) in sides.iter().zip([near, far]) {
            let counters = side.streams.counters();
            assert_eq!((counters.copied_bytes, counters.placed_bytes), (500_000, 0));
            assert_eq!((counters.sent_bytes, side.streams.queued_bytes(id)), (500_000, 0));
        }
        until("all is told to be sent", &mut sides, |sides| sides[1].sent_bytes(far) == 500_000);
    }
}

fn bytes_are_received_straight_into_their_place() {
    let whole = region(200_000);
    // More fragments than one call fills.
    let fragments = Region::of_fragments((1..=200).map(region));
    for region in [whole, fragments] {
        let mut sides = Side::pair();
        let [near, far] = connect(&mut sides);
        let length = region.length_bytes();
        let bytes = pattern(2, length + 10);
        sides[0].fill(near, region, 5..length - 5);
        sides[1].streams.queue_bytes(far, &bytes[..1000]);
        until("a part is placed", &mut sides, |sides| sides[0].streams.counters().placed_bytes == 1000);
        sides[1].streams.queue_bytes(far, &bytes[1000..]);
        until("all is placed", &mut sides, |sides| sides[0].filling.is_empty());
        let placed: Vec<u8> = sides[0].filled[0].fragments(0..length).unwrap().flatten().copied().collect();
        assert_same(&placed[5..length - 5], &bytes[..length - 10]);
        assert!([&placed[..5], &placed[length - 5..]] == [&[0; 5]; 2], "other bytes were written");
        // What comes behind is not lost.
        sides[0].receive(near, Mode::Many);
        until("the rest", &mut sides, |sides| sides[0].arrived_bytes(near) == 20);
        assert_same(&sides[0].arrived[&near], &bytes[length - 10..]);
        let counters = sides[0].streams.counters();
        assert_eq!((counters.placed_bytes, counters.copied_bytes), (length as u64 - 10, 20));
    }
}

fn the_end_of_a_stream_is_told_to_who_waits_for_bytes() {
    let mut sides = [Side::new(small())];
    let [near, mut far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    sides[0].fill(id, region(100), 0..100);
    far.write_all(&[7; 60]).unwrap();
    drop(far);
    let event = next_event("the end", &mut sides);
    assert!(matches!(event, StreamEvent::Ended { error: None, .. }), "{event:?}");
    assert_eq!(sides[0].streams.counters().placed_bytes, 60);
    let (_, region, range) = &sides[0].filling[0];
    assert_eq!(*range, 60..100);
    assert_same(region.bytes(0..60).unwrap(), &[7; 60]);
    sides[0].step();
    assert!(sides[0].events.is_empty(), "{:?}", sides[0].events);
}

fn a_pause_loses_nothing() {
    for mode in [Mode::Many, Mode::Once] {
        let mut sides = Side::pair();
        let [near, far] = connect(&mut sides);
        let bytes = pattern(3, 1 << 20);
        sides[1].streams.queue_bytes(far, &bytes);
        for _ in 0..40 {
            let before = sides[0].arrived_bytes(near);
            sides[0].receive(near, mode);
            until("some bytes", &mut sides, |sides| sides[0].arrived_bytes(near) > before);
            sides[0].pause(near);
            let event = next_event("the pause", &mut sides);
            assert!(matches!(event, StreamEvent::Paused { id } if id == near), "{event:?}");
            let paused = sides[0].arrived_bytes(near);
            sides[0].step();
            assert_eq!(sides[0].arrived_bytes(near), paused, "bytes have arrived in a pause");
            if paused == bytes.len() {
                break;
            }
        }
        if sides[0].arrived_bytes(near) < bytes.len() {
            sides[0].receive(near, mode);
            until("all bytes", &mut sides, |sides| sides[0].arrived_bytes(near) == bytes.len());
        }
        assert_same(&sides[0].arrived[&near], &bytes);
    }
}

fn a_pause_ends_the_wait_for_bytes() {
    let mut sides = Side::pair();
    let [near, far] = connect(&mut sides);
    for round in 1..=20 {
        sides[0].streams.await_bytes(near);
        sides[0].step();
        sides[0].pause(near);
        if round % 2 == 0 {
            sides[1].streams.queue_bytes(far, &[1]);
        }
        until("the pause", &mut sides, |sides| {
            matches!(sides[0].events.back(), Some(StreamEvent::Paused { .. }))
        });
        // Bytes may have come before.
        sides[0].events.clear();
    }
    let mut place = region(10);
    let received = sides[0].streams.receive_now(near, place.fragments_mut(0..10).unwrap());
    assert_eq!(received, Some(10));
    assert_eq!(sides[0].streams.receive_now(near, place.fragments_mut(0..10).unwrap()), None);
}

fn a_stream_moves_between_streams_in_order() {
    let mut sides = [Side::new(small()), Side::new(small()), Side::new(small())];
    let [mut id, far] = connect(&mut sides);
    let (there, back) = (pattern(4, 1 << 20), pattern(5, 1 << 20));
    sides[1].streams.queue_bytes(far, &there);
    sides[1].receive(far, Mode::Many);
    let (mut arrived, mut queued) = (Vec::new(), 0);
    for _ in 0..10 {
        sides[0].receive(id, Mode::Many);
        sides[0].streams.queue_bytes(id, &back[queued..queued + 100_000]);
        queued += 100_000;
        let enough = (there.len() - arrived.len()).min(50_000);
        until("some bytes", &mut sides, |sides| sides[0].arrived_bytes(id) >= enough);
        sides[0].streams.detach(id);
        let event = next_event("the stream is detached", &mut sides);
        let StreamEvent::Detached { id: detached, socket } = event else { panic!("{event:?}") };
        assert_eq!(detached, id);
        assert_eq!(sides[0].sent_bytes(id), 100_000, "what was queued is sent before");
        arrived.append(&mut sides[0].arrived.remove(&id).unwrap_or_default());
        // Nothing happens to it any more.
        sides[0].streams.queue_bytes(id, b"late");
        sides[0].streams.close(id);
        sides.swap(0, 2);
        id = sides[0].streams.adopt(socket).unwrap();
    }
    sides[0].streams.queue_bytes(id, &back[queued..]);
    sides[0].receive(id, Mode::Many);
    until("all bytes", &mut sides, |sides| {
        let rest = sides[0].arrived_bytes(id);
        arrived.len() + rest == there.len() && sides[1].arrived_bytes(far) == back.len()
    });
    arrived.append(&mut sides[0].arrived.remove(&id).unwrap_or_default());
    assert_same(&arrived, &there);
    assert_same(&sides[1].arrived[&far], &back);
}

fn another_thread_goes_on_without_a_loss() {
    let mut sides = Side::pair();
    let (socket, address) = listener();
    sides[1].streams.listen(socket);
    let [near, far] = connect(&mut sides);
    let [placing, sending] = connect(&mut sides);
    let bytes = pattern(6, 2 << 20);
    let mut source = Region::from(bytes.clone().into_boxed_slice());
    sides[0].streams.queue_bytes(near, &bytes);
    sides[1].receive(far, Mode::Many);
    sides[1].streams.queue_lease(sending, source.lend_read(0..bytes.len()).unwrap());
    sides[0].fill(placing, region(bytes.len()), 0..bytes.len());
    let dialled = sides[0].streams.dial(dialler(), address).unwrap();
    // Some threads end while operations of theirs are under way, another lives on.
    for _ in 0..20 {
        sides.iter_mut().for_each(Side::step);
        let drive = || sides.iter_mut().for_each(Side::step);
        std::thread::scope(|scope| scope.spawn(drive).join()).unwrap();
    }
    until("all bytes", &mut sides, |sides| {
        let is_placed = sides[0].streams.counters().placed_bytes == bytes.len() as u64;
        is_placed && sides[1].arrived_bytes(far) == bytes.len() && sides[1].streams.counters().accepted == 1
    });
    let is_dialled =
        |event: &StreamEvent| matches!(event, StreamEvent::Dialled { id, result: Ok(_) } if *id == dialled);
    until("the dial", &mut sides, |sides| sides[0].events.iter().any(is_dialled));
    assert_same(&sides[1].arrived[&far], &bytes);
    until("the leases are back", &mut sides, |sides| {
        sides[0].events.clear();
        source.is_whole() && sides[0].filling.is_empty()
    });
    assert_same(sides[0].filled[0].bytes(0..bytes.len()).unwrap(), &bytes);
}

fn streams_close_while_things_are_under_way() {
    let mut sides = [Side::new(small())];
    let mut source = region(8 << 20);
    for round in 0..10 {
        let [near, far] = sockets();
        let id = sides[0].streams.adopt(near.into()).unwrap();
        // The peer reads nothing, so the kernel cannot take all.
        sides[0].streams.queue_lease(id, source.lend_read(0..8 << 20).unwrap());
        sides[0].streams.queue_bytes(id, &[1; 10_000]);
        if round % 2 == 0 {
            sides[0].receive(id, Mode::Many);
        } else {
            sides[0].streams.await_bytes(id);
        }
        let (socket, address) = listener();
        let listener = sides[0].streams.listen(socket);
        let dialled = sides[0].streams.dial(dialler(), address).unwrap();
        for _ in 0..round {
            sides[0].step();
        }
        sides[0].streams.close(id);
        sides[0].streams.close(dialled);
        sides[0].streams.unlisten(listener);
        (&far).write_all(b"too late").unwrap_or(());
        until("the streams have gone", &mut sides, |sides| {
            for event in take(&mut sides[0].events) {
                if let StreamEvent::Accepted { id, .. } = event {
                    sides[0].streams.close(id);
                }
            }
            let streams = &sides[0].streams;
            // It is said of none while the kernel has what was lent to it.
            let has_closed = sides[0].closed.contains(&id);
            assert!(!has_closed || source.is_whole());
            has_closed && streams.free.len() == streams.slots.len()
        });
        assert!(sides[0].closed.contains(&dialled));
        assert_eq!(sides[0].streams.queued_bytes(id), 0);
        let kept = sides[0].streams.buffers.stocked_count();
        assert_eq!(kept, 16, "all buffers are there again");
    }
}

fn streams_are_dropped_while_things_are_under_way() {
    let mut sides = Side::pair();
    let [near, _far] = connect(&mut sides);
    let [awaiting, _sending] = connect(&mut sides);
    let mut source = region(8 << 20);
    sides[0].receive(near, Mode::Many);
    sides[0].streams.queue_lease(near, source.lend_read(0..8 << 20).unwrap());
    sides[0].streams.await_bytes(awaiting);
    sides[0].streams.listen(listener().0);
    until("some bytes are sent", &mut sides, |sides| sides[0].streams.counters().sent_bytes != 0);
    let begun = Instant::now();
    drop(sides);
    assert!(begun.elapsed() < END_PATIENCE, "what was under way has not ended");
    assert!(source.is_whole());
}
