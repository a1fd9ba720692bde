//! Connections, deadlines, and servers that misbehave (RP-06, RP-07, RP-10).

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lnet_messaging::{Added, Addition, BulkDescriptor, Errno, Flags, Operation, QueueType, RpcTransport};

use super::common::{PATIENCE, Party};
use super::{Place, read_call, reply, rpc, succeed, wait_until};

/// A server that is not ours.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("{}:1", listener.local_addr().unwrap());
    (listener, address)
}

/// A descriptor of that server's: number, no initiator, where it is, queue, bytes.
fn descriptor_at(address: &str, queue: u32, bytes: u32) -> BulkDescriptor {
    let port = address.split(':').nth(1).unwrap().parse().unwrap();
    let words: [u32; 10] = [0, 7, 0, 0, 0, 0x7F00_0001, port, 1, queue, bytes];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    BulkDescriptor::from_bytes(&bytes)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn rp_06_connections_are_cached_for_a_while() {
    let place = Place::new();
    let idle = Duration::from_millis(400);
    let transport = RpcTransport::default().idle_max(idle).tick(Duration::from_millis(5)).shared();
    let mut party = Party::started(&transport, &place.address(1));
    let (listener, address) = listen();
    let first = party.send(&address, b"hello");
    let mut stream = accept(&listener);
    let (xid, procedure, arguments) = read_call(&mut stream).unwrap();
    assert_eq!((procedure, arguments.len()), (1, 24 + 4 + 8));
    succeed(&mut stream, xid, &[0]);
    assert_eq!(party.end_of(first).0, Ok(()));
    // The next call comes on the same connection, if it comes in time.
    let answered = Instant::now();
    let second = party.send(&address, b"again");
    match read_call(&mut stream) {
        Some((xid, ..)) => succeed(&mut stream, xid, &[0]),
        None => {
            assert!(answered.elapsed() >= idle, "closed too early");
            stream = accept(&listener);
            let (xid, ..) = read_call(&mut stream).unwrap();
            succeed(&mut stream, xid, &[0]);
        }
    }
    let answered = Instant::now();
    assert_eq!(party.end_of(second).0, Ok(()));
    assert!(read_call(&mut stream).is_none(), "a connection that is idle is closed");
    assert!(answered.elapsed() >= idle);
    // A connection that the server has closed is made anew, and idle ones go with the domain.
    for _ in 0..2 {
        let id = party.send(&address, b"once more");
        let mut stream = accept(&listener);
        let (xid, ..) = read_call(&mut stream).unwrap();
        succeed(&mut stream, xid, &[0]);
        assert_eq!(party.end_of(id).0, Ok(()));
    }
    let transport = RpcTransport::default().shared();
    let mut lasting = Party::started(&transport, &place.address(2));
    let id = lasting.send(&address, b"hello");
    let mut stream = accept(&listener);
    let (xid, ..) = read_call(&mut stream).unwrap();
    succeed(&mut stream, xid, &[0]);
    assert_eq!(lasting.end_of(id).0, Ok(()));
    lasting.end();
    assert!(read_call(&mut stream).is_none(), "connections end with their domain");
    party.end();
}

/// One operation for each queue. `server` has the other ends of those that send or are active.
fn operations_of_all_queues(party: &Party, server: &str) -> [Operation; 6] {
    let (passive_receive, passive_send) = (2, 3);
    [
        Operation::Receive { min_receive_bytes: 8, max_messages: 1 },
        Operation::PassiveReceive { initiator: None },
        Operation::PassiveSend { initiator: None, length_bytes: 8 },
        Operation::Send { to: party.tm.create_end_point(server).unwrap(), length_bytes: 8 },
        Operation::ActiveReceive { from: descriptor_at(server, passive_send, 8) },
        Operation::ActiveSend { to: descriptor_at(server, passive_receive, 8), length_bytes: 8 },
    ]
}

/// All workers wait for a server that does not answer: the skulker looks at deadlines. On each queue there is
/// a buffer whose data is being moved, which goes on, and one that has yet to begin.
#[test]
fn rp_07_deadlines_pass_on_all_queues_and_spare_what_is_in_use() {
    let place = Place::new();
    let transport = RpcTransport::default().workers(3).tick(Duration::from_millis(5)).shared();
    let mut party = Party::started(&transport, &place.address(1));
    let mut other = Party::started(&rpc(), &place.address(2));
    let (listener, address) = listen();
    // Enough for all to be in use on a slow machine.
    let deadline = Instant::now() + Duration::from_secs(2);
    let add_to_all = || {
        operations_of_all_queues(&party, &address)
            .map(|operation| party.tm.add(party.buffer(&[8]), Addition::from(operation).deadline(deadline)))
            .map(Result::unwrap)
    };
    let in_use = add_to_all();
    let mut calls = [(); 3].map(|()| {
        let mut stream = accept(&listener);
        let (xid, procedure, _) = read_call(&mut stream).unwrap();
        (stream, xid, procedure)
    });
    // No worker is left for what comes in: those buffers are in use until one is.
    let [_, room, source, ..] = &in_use;
    let (to, from) = (room.descriptor.clone().unwrap(), source.descriptor.clone().unwrap());
    let write = Operation::ActiveSend { to, length_bytes: 8 };
    let write = other.add(other.filled(b"it comes"), write);
    assert_eq!(other.end_of(write).0, Ok(()));
    let read = other.add(other.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(other.end_of(read), (Ok(()), 8));
    let message = other.send(&party.address(), b"a word");
    assert_eq!(other.end_of(message).0, Ok(()));
    let idle = add_to_all();
    let flags = |added: &Added| party.tm.queued(added.id).map(|queued| queued.flags);
    let spared = Flags { in_use: true, cancelled: false, timed_out: false };
    assert!(in_use.iter().all(|added| flags(added) == Some(spared)), "not in use in time: {in_use:?}");
    assert!(Instant::now() < deadline, "not in use in time");
    wait_until("deadlines pass", || {
        idle.iter().all(|added| flags(added).is_some_and(|flags| flags.timed_out))
    });
    assert!(Instant::now() >= deadline);
    for added in &in_use {
        assert_eq!(flags(added), Some(spared), "{:?}", added.id);
    }
    for (stream, xid, procedure) in &mut calls {
        // The results of a GET are the status, that this is all, and eight bytes.
        let results: &[u32] = if *procedure == 2 { &[0, 1, 8, 1, 2] } else { &[0] };
        succeed(stream, *xid, results);
    }
    let mut ended: Vec<_> =
        (0..12).map(|_| party.buffer_event()).map(|event| (event.id, event.status)).collect();
    ended.sort_by_key(|(id, _)| *id);
    let timed_out = idle.iter().map(|added| (added.id, Err(Errno::TimedOut)));
    let mut expected: Vec<_> = in_use.iter().map(|added| (added.id, Ok(()))).chain(timed_out).collect();
    expected.sort_by_key(|(id, _)| *id);
    assert_eq!(ended, expected);
    drop(calls);
    other.end();
    party.end();
}

/// What a caller is told of the replies of a server.
#[test]
fn rp_08_replies_that_are_faults() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let (listener, address) = listen();
    let cases: [(&[u32], Result<(), Errno>); 15] = [
        (&[1, 0, 0, 0, 0, 0], Ok(())),
        (&[1, 1, 0, 2, 2], Err(Errno::ProtocolNotSupported)),
        (&[1, 1, 1, 1], Err(Errno::AccessDenied)),
        (&[1, 0, 0, 0, 1], Err(Errno::ProtocolNotSupported)),
        (&[1, 0, 0, 0, 2, 1, 1], Err(Errno::ProtocolNotSupported)),
        (&[1, 0, 0, 0, 3], Err(Errno::ProtocolNotSupported)),
        (&[1, 0, 0, 0, 4], Err(Errno::BadMessage)),
        (&[1, 0, 0, 0, 5], Err(Errno::Io)),
        (&[1, 0, 0, 0, 0, -105_i32 as u32], Err(Errno::NoBuffers)),
        (&[1, 0, 0, 0, 0, -9999_i32 as u32], Err(Errno::Io)),
        (&[1, 0, 0, 0, 0, 5], Err(Errno::Io)),
        // Results that are too short or too long.
        (&[1, 0, 0, 0, 0], Err(Errno::BadMessage)),
        (&[1, 0, 0, 0, 0, 0, 0], Err(Errno::BadMessage)),
        // A reply that is none.
        (&[1, 7], Err(Errno::Protocol)),
        (&[0], Err(Errno::ConnectionReset)),
    ];
    let server = std::thread::spawn(move || {
        let mut stream = accept(&listener);
        for (words, _) in cases {
            let (xid, ..) = read_call(&mut stream).unwrap();
            reply(&mut stream, &[&[xid], words].concat());
        }
        assert!(read_call(&mut stream).is_none(), "no reply closes the connection");
        let mut stream = accept(&listener);
        let (xid, ..) = read_call(&mut stream).unwrap();
        succeed(&mut stream, xid + 1, &[0]);
        assert!(read_call(&mut stream).is_none(), "another call's reply closes the connection");
    });
    for (words, status) in cases {
        let id = party.send(&address, b"hello");
        assert_eq!(party.end_of(id).0, status, "{words:?}");
    }
    let id = party.send(&address, b"hello");
    assert_eq!(party.end_of(id).0, Err(Errno::ConnectionReset));
    server.join().unwrap();
    party.end();
}

/// The first part of a buffer has come when its process goes, in the middle of an answer; and one that goes
/// before it has answered a PUT.
#[test]
fn rp_10_servers_that_die_in_a_bulk_operation() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let (listener, address) = listen();
    let descriptor = |queue| descriptor_at(&address, queue, 16);
    let (passive_receive, passive_send) = (2, 3);
    let read = Operation::ActiveReceive { from: descriptor(passive_send) };
    let id = party.add(party.buffer(&[16]), read);
    let mut stream = accept(&listener);
    let (xid, procedure, arguments) = read_call(&mut stream).unwrap();
    assert_eq!((procedure, arguments.len()), (2, 44));
    // Status, whether that is all, and eight bytes.
    succeed(&mut stream, xid, &[0, 0, 8, 0x0102_0304, 0x0506_0708]);
    let (_, procedure, arguments) = read_call(&mut stream).unwrap();
    assert_eq!((procedure, &arguments[40..]), (2, &[0, 0, 0, 8][..]), "the second part");
    std::io::Write::write_all(&mut stream, &(48_u32 | 1 << 31).to_be_bytes()).unwrap();
    drop(stream);
    assert_eq!(party.end_of(id).0, Err(Errno::ConnectionReset));

    let write = Operation::ActiveSend { to: descriptor(passive_receive), length_bytes: 16 };
    let id = party.add(party.buffer(&[8, 8]), write);
    let mut stream = accept(&listener);
    let (xid, procedure, _) = read_call(&mut stream).unwrap();
    assert_eq!(procedure, 3);
    succeed(&mut stream, xid, &[0]);
    read_call(&mut stream).unwrap();
    drop(stream);
    assert_eq!(party.end_of(id).0, Err(Errno::ConnectionReset));
    for queue in [QueueType::ActiveReceive, QueueType::ActiveSend] {
        assert_eq!(party.counts(queue), (1, 0, 0, 1));
    }
    // The server lives on.
    party.post(8, 8, 1);
    let mut other = Party::started(&rpc(), &place.address(2));
    let id = other.send(&party.address(), b"hello");
    assert_eq!((other.end_of(id).0, party.buffer_event().payload_bytes()), (Ok(()), b"hello".to_vec()));
    other.end();
    party.end();
}

/// RP-04: data in uneven segments goes by one call for each of the segments that it comes from, and the last
/// one alone says so.
#[test]
fn rp_04_one_call_for_each_segment() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let (listener, address) = listen();
    let descriptor = |queue, bytes| descriptor_at(&address, queue, bytes);
    let mut stream = None;
    for segments in [&[12][..], &[5, 7], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]] {
        let total: usize = segments.iter().sum();
        let bytes: Vec<u8> = (0..total as u8).collect();
        let mut buffer = party.buffer(segments);
        buffer.fill(&bytes);
        let to = descriptor(2, 0);
        let id = party.add(buffer, Operation::ActiveSend { to, length_bytes: total as u64 });
        let stream = stream.get_or_insert_with(|| accept(&listener));
        let mut offset = 0;
        for length in segments {
            let (xid, procedure, arguments) = read_call(stream).unwrap();
            let word = |at: usize| u32::from_be_bytes(*arguments[at..].first_chunk().unwrap()) as usize;
            assert_eq!((procedure, word(36), word(40), word(44)), (3, total, offset, *length));
            assert_eq!(arguments[48..48 + length], bytes[offset..offset + length]);
            assert_eq!(arguments.len(), 48 + length.next_multiple_of(4));
            succeed(stream, xid, &[0]);
            offset += length;
        }
        assert_eq!(party.end_of(id).0, Ok(()));

        // The other end has these segments, and this one other ones.
        let from = descriptor(3, total as u32);
        let id = party.add(party.buffer(&[total - 1, 1]), Operation::ActiveReceive { from });
        let mut offset = 0;
        for length in segments {
            let (xid, procedure, arguments) = read_call(stream).unwrap();
            let asked = u32::from_be_bytes(*arguments[40..].first_chunk().unwrap()) as usize;
            assert_eq!((procedure, asked), (2, offset));
            let end = offset + length;
            let mut words = vec![0, u32::from(end == total), *length as u32];
            let mut data = bytes[offset..end].to_vec();
            data.resize(length.next_multiple_of(4), 0);
            words.extend(data.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())));
            succeed(stream, xid, &words);
            offset = end;
        }
        let event = party.buffer_event();
        assert_eq!((event.id, event.status, event.payload_bytes()), (id, Ok(()), bytes));
    }
    party.end();
}

/// A server that does not answer, one that answers drop by drop, and one that never comes to an end.
#[test]
fn rp_10_servers_that_hold_a_caller_up() {
    let place = Place::new();
    let timeout = Duration::from_secs(1);
    let transport = RpcTransport::default().call_timeout(timeout).shared();
    let mut party = Party::started(&transport, &place.address(1));
    let (listener, address) = listen();
    let begun = Instant::now();
    let id = party.send(&address, b"hello");
    let mut stream = accept(&listener);
    read_call(&mut stream).unwrap();
    assert_eq!(party.end_of(id).0, Err(Errno::TimedOut));
    assert!(begun.elapsed() >= timeout);
    assert!(read_call(&mut stream).is_none(), "a late reply must meet no other call");

    let id = party.send(&address, b"hello");
    let mut stream = accept(&listener);
    read_call(&mut stream).unwrap();
    let (ended, end) = mpsc::channel::<()>();
    let drops = std::thread::spawn(move || {
        // Empty fragments, and never the last one.
        while end.recv_timeout(Duration::from_millis(10)) == Err(mpsc::RecvTimeoutError::Timeout) {
            if std::io::Write::write_all(&mut stream, &[0; 4]).is_err() {
                break;
            }
        }
    });
    assert_eq!(party.end_of(id).0, Err(Errno::TimedOut));
    drop(ended);
    drops.join().unwrap();

    // The server lives on.
    party.post(8, 8, 1);
    let mut other = Party::started(&rpc(), &place.address(2));
    let id = other.send(&party.address(), b"hello");
    assert_eq!(other.end_of(id).0, Ok(()));
    assert_eq!(party.buffer_event().payload_bytes(), b"hello");
    // A record that is longer than any.
    let id = other.send(&address, b"hello");
    let mut stream = accept(&listener);
    read_call(&mut stream).unwrap();
    std::io::Write::write_all(&mut stream, &0xFFFF_FFFF_u32.to_be_bytes()).unwrap();
    assert_eq!(other.end_of(id).0, Err(Errno::Protocol));
    other.end();
    party.end();
}
