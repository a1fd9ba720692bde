//! How streams begin and end.

use std::io::Read;
use std::net::Ipv4Addr;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::reactor::tcp::socket::{SocketOptions, reserved_dialler};

over_both! {
    a_dialled_stream_sends_what_was_queued_before,
    a_refused_dial_is_told_and_gives_its_memory_back,
    no_more_streams_than_there_are_slots,
    accepting_stops_while_all_slots_are_taken,
    the_end_is_told_once_behind_all_bytes,
    a_peer_that_resets_ends_the_stream_with_the_reason,
    what_the_kernel_has_taken_is_sent_after_a_close,
    bytes_behind_an_urgent_one_arrive,
}

fn a_dialled_stream_sends_what_was_queued_before() {
    let mut sides = Side::pair();
    let (socket, address) = listener();
    sides[1].streams.listen(socket);
    let id = sides[0].streams.dial(dialler(), address).unwrap();
    sides[0].streams.queue_bytes(id, b"hello");
    let event = next_event("the dial", &mut sides);
    let StreamEvent::Dialled { id: dialled, result: Ok(local) } = event else { panic!("{event:?}") };
    assert_eq!(dialled, id);
    until("a stream is accepted", &mut sides, |sides| !sides[1].events.is_empty());
    let event = sides[1].events.pop_front();
    let Some(StreamEvent::Accepted { id, from, local: to }) = event else { panic!("{event:?}") };
    assert_eq!((from, to), (local, address));
    sides[1].receive(id, Mode::Many);
    until("the bytes", &mut sides, |sides| sides[1].arrived_bytes(id) == 5);
    assert_eq!(sides[1].arrived[&id], b"hello");
    assert_eq!((sides[0].streams.counters().dialled, sides[1].streams.counters().accepted), (1, 1));
}

fn a_refused_dial_is_told_and_gives_its_memory_back() {
    let mut sides = [Side::new(small())];
    let mut source = region(100_000);
    let (socket, address) = listener();
    drop(socket);
    // More often than there are slots.
    for _ in 0..20 {
        let id = sides[0].streams.dial(dialler(), address).unwrap();
        sides[0].streams.queue_lease(id, source.lend_read(0..100_000).unwrap());
        let event = next_event("the dial ends", &mut sides);
        let refused = matches!(event, StreamEvent::Dialled { result: Err(Errno::CONNREFUSED), .. });
        assert!(refused, "{event:?}");
        assert!(source.is_whole());
        sides[0].streams.close(id);
        sides[0].step();
    }
    assert_eq!(sides[0].streams.counters().dialled, 0);
    assert!(sides[0].events.is_empty(), "{:?}", sides[0].events);
}

fn no_more_streams_than_there_are_slots() {
    let mut sides = [Side::new(StreamsConfig { streams_max: 2, ..small() })];
    let (socket, address) = listener();
    let listening = sides[0].streams.listen(socket);
    let mut clients: Vec<_> = (0..6).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.write_all(&[index as u8]).unwrap();
    }
    let mut seen = Vec::new();
    let mut open = VecDeque::new();
    for _ in &clients {
        let event = next_event("a stream is accepted", &mut sides);
        let StreamEvent::Accepted { id, .. } = event else { panic!("{event:?}") };
        open.push_back(id);
        sides[0].receive(id, Mode::Many);
        until("its byte", &mut sides, |sides| sides[0].arrived_bytes(id) == 1);
        seen.push(sides[0].arrived[&id][0]);
        if open.len() == 2 {
            (0..5).for_each(|_| sides[0].step());
            assert!(sides[0].events.is_empty(), "{:?}", sides[0].events);
            let socket = dialler();
            assert!(sides[0].streams.dial(socket, address).is_err(), "all slots are taken");
            sides[0].streams.close(open.pop_front().unwrap());
        }
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5], "in the order of their arrival");
    assert_eq!(sides[0].streams.counters().accepted, 6);
    sides[0].streams.unlisten(listening);
    until("the listener has gone", &mut sides, |_| TcpStream::connect(address).is_err());
}

fn accepting_stops_while_all_slots_are_taken() {
    let mut sides = [Side::new(StreamsConfig { streams_max: 2, ..small() })];
    let (socket, address) = listener();
    sides[0].streams.listen(socket);
    let mut clients: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    until("two streams", &mut sides, |sides| sides[0].events.len() == 2);
    until("accepting has ended", &mut sides, |sides| !sides[0].streams.submission.is_under_way());
    clients.extend((0..4).map(|_| TcpStream::connect(address).unwrap()));
    (0..5).for_each(|_| sides[0].step());
    assert!(sides[0].streams.listeners.waiting.is_empty(), "streams are accepted without slots for them");
    for _ in 0..4 {
        let event = next_event("a stream is accepted", &mut sides);
        let StreamEvent::Accepted { id, .. } = event else { panic!("{event:?}") };
        sides[0].streams.close(id);
    }
    until("all streams", &mut sides, |sides| sides[0].streams.counters().accepted == 6);
}

fn the_end_is_told_once_behind_all_bytes() {
    for mode in [Mode::Once, Mode::Many] {
        let mut sides = [Side::new(small())];
        let [near, mut far] = sockets();
        let id = sides[0].streams.adopt(near.into()).unwrap();
        far.write_all(&pattern(9, 50_000)).unwrap();
        drop(far);
        sides[0].receive(id, mode);
        let event = next_event("the end", &mut sides);
        assert!(matches!(event, StreamEvent::Ended { error: None, .. }), "{event:?}");
        assert_same(&sides[0].arrived[&id], &pattern(9, 50_000));
        // What is asked for afterwards changes nothing.
        sides[0].pause(id);
        let event = next_event("the pause", &mut sides);
        assert!(matches!(event, StreamEvent::Paused { .. }), "{event:?}");
        sides[0].step();
        assert!(sides[0].events.is_empty(), "{:?}", sides[0].events);
    }
}

fn a_peer_that_resets_ends_the_stream_with_the_reason() {
    let mut sides = [Side::new(small())];
    let [near, far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    let mut source = region(8 << 20);
    sides[0].streams.queue_lease(id, source.lend_read(0..8 << 20).unwrap());
    sides[0].receive(id, Mode::Many);
    until("some bytes are sent", &mut sides, |sides| sides[0].streams.counters().sent_bytes != 0);
    // There are bytes that it has not read.
    drop(far);
    let event = next_event("the end", &mut sides);
    let StreamEvent::Ended { error: Some(error), .. } = event else { panic!("{event:?}") };
    assert!([Errno::CONNRESET, Errno::PIPE].contains(&error), "{error}");
    sides[0].streams.queue_bytes(id, b"to nowhere");
    sides[0].streams.close(id);
    until("the lease is back", &mut sides, |_| source.is_whole());
}

fn what_the_kernel_has_taken_is_sent_after_a_close() {
    let mut sides = [Side::new(small())];
    let [near, mut far] = sockets();
    let id = sides[0].streams.adopt(near.into()).unwrap();
    sides[0].receive(id, Mode::Many);
    sides[0].streams.queue_bytes(id, b"farewell");
    until("the bytes are sent", &mut sides, |sides| sides[0].sent_bytes(id) == 8);
    sides[0].streams.close(id);
    sides[0].step();
    far.set_nonblocking(true).unwrap();
    let (mut found, mut buffer) = (Vec::new(), [0; 100]);
    until("the end", &mut sides, |_| match far.read(&mut buffer) {
        Ok(count) => {
            found.extend_from_slice(&buffer[..count]);
            count == 0
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            false
        }
    });
    assert_eq!(found, b"farewell");
}

#[test]
fn who_may_have_no_reserved_port_dials_from_another() {
    let dialled = std::thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_BIND_SERVICE);
        set_capabilities(None, sets).unwrap();
        let host = Ipv4Addr::LOCALHOST.into();
        reserved_dialler(host, 1024, host, &SocketOptions::default()).unwrap()
    });
    let (socket, port) = dialled.join().unwrap();
    let bound = socket_address(Some(&socket)).unwrap();
    assert_eq!(port, 0);
    assert!(bound.port() >= 1024, "{bound}");
}

/// A read ends before an urgent byte, and the kernel tells nothing more of what is behind it.
fn bytes_behind_an_urgent_one_arrive() {
    let mut sides = [Side::new(small())];
    let [mut near, far] = sockets();
    let id = sides[0].streams.adopt(far.into()).unwrap();
    sides[0].receive(id, Mode::Many);
    for round in 1..=3 {
        near.write_all(b"ab").unwrap();
        rustix::net::send(&near, b"!", rustix::net::SendFlags::OOB).unwrap();
        near.write_all(b"cd").unwrap();
        until("all but the urgent byte", &mut sides, |sides| sides[0].arrived_bytes(id) == round * 4);
    }
    assert_eq!(sides[0].arrived[&id], b"abcdabcdabcd");
}
