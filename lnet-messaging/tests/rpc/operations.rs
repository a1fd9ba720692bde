//! Messages and bulk operations between transfer machines of one process (RP-01 to RP-05).

use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use lnet_messaging::{
    Addition, BulkDescriptor, Domain, Errno, Operation, QueueType, StopMode, TmEvent, TmState,
};

use super::any;
use super::common::{Party, received};
use super::{CALL_HEAD_BYTES, CANCELED, Place, free_port, host, read_record, rpc, write_record};

/// Where the port of the passive end stands in a call with a descriptor.
const PASSIVE_PORT: Range<usize> = CALL_HEAD_BYTES + 24..CALL_HEAD_BYTES + 28;

#[test]
fn rp_01_messages_that_go_nowhere() {
    let place = Place::new();
    let [mut near, mut far] = place.pair();
    // ME-04: none has that service.
    let id = near.send(&place.address(9), b"hello");
    assert_eq!(near.end_of(id), (Err(Errno::NetworkUnreachable), 0));
    // No process listens there.
    let id = near.send(&format!("{}:{}:1", host(), free_port()), b"hello");
    assert_eq!(near.end_of(id), (Err(Errno::ConnectionRefused), 0));
    near.counts(QueueType::Send);
    // ME-05.
    let id = near.send(&far.address(), b"hello");
    assert_eq!(near.end_of(id), (Err(Errno::NoBuffers), 0));
    assert_eq!(near.counts(QueueType::Send), (1, 0, 0, 1));
    assert_eq!(far.tm_event(), TmEvent::Error(Errno::NoBuffers));
    assert_eq!(far.counts(QueueType::Receive), (0, 0, 0, 1));
    // ME-06.
    let room = far.post(10, 10, 1);
    let id = near.send(&far.address(), &[7; 40]);
    assert_eq!(near.end_of(id), (Err(Errno::MessageSize), 0));
    let event = far.buffer_event();
    assert_eq!((event.id, event.status, event.length_bytes), (room, Err(Errno::MessageSize), 40));
    assert!(event.end_point.is_none() && event.payload_bytes().is_empty());
    drop(event);
    near.end();
    far.end();
}

#[test]
fn rp_01_bulk_operations_that_are_refused() {
    let place = Place::new();
    let [mut near, mut far] = place.pair();
    let room = || Operation::PassiveReceive { initiator: None };
    // ME-07: the wrong direction.
    let passive = far.tm.add(far.buffer(&[8]), room()).unwrap();
    let from = passive.descriptor.clone().unwrap();
    assert_eq!(from.as_bytes().len(), 40);
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id), (Err(Errno::NotPermitted), 0));
    assert!(far.tm.queued(passive.id).is_some());
    // ME-08: too long for the passive buffer, which takes another one.
    let to = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[9]), Operation::ActiveSend { to: to.clone(), length_bytes: 9 });
    assert_eq!(near.end_of(id).0, Err(Errno::TooBig));
    let id = near.add(near.buffer(&[8]), Operation::ActiveSend { to, length_bytes: 8 });
    assert_eq!(near.end_of(id).0, Ok(()));
    assert_eq!(far.end_of(passive.id), (Ok(()), 8));
    // Too long for the active buffer: no call is made.
    let send = Operation::PassiveSend { initiator: None, length_bytes: 9 };
    let passive = far.tm.add(far.buffer(&[9]), send).unwrap();
    let from = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id).0, Err(Errno::TooBig));
    assert!(far.tm.queued(passive.id).is_some() && far.tm.del(passive.id));
    assert_eq!(far.end_of(passive.id).0, CANCELED);
    // ME-09: a descriptor of an earlier use.
    let first = far.tm.add(far.buffer(&[8]), room()).unwrap();
    assert!(far.tm.del(first.id));
    let buffer = far.buffer_event().into_buffer().unwrap();
    let second = far.tm.add(buffer, room()).unwrap();
    assert_ne!(first.descriptor, second.descriptor);
    let old = Operation::ActiveSend { to: first.descriptor.unwrap(), length_bytes: 8 };
    let id = near.add(near.buffer(&[8]), old);
    assert_eq!(near.end_of(id).0, Err(Errno::NotFound));
    assert!(far.tm.queued(second.id).is_some());
    // ME-10: of another initiator; and one who forges the descriptor is found out by the server.
    let initiator = Some(far.tm.create_end_point(&place.address(9)).unwrap());
    let passive =
        far.tm.add(far.buffer(&[8]), Operation::PassiveSend { initiator, length_bytes: 8 }).unwrap();
    let from = passive.descriptor.unwrap();
    let mut forged = from.as_bytes().to_vec();
    forged[8..20].fill(0);
    for from in [from, BulkDescriptor::from_bytes(&forged)] {
        let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
        assert_eq!(near.end_of(id).0, Err(Errno::AccessDenied));
        assert!(far.tm.queued(passive.id).is_some());
    }
    near.end();
    far.end();
}

#[test]
fn rp_01_descriptors_that_are_none() {
    let place = Place::new();
    let [mut near, far] = place.pair();
    let send = Operation::PassiveSend { initiator: None, length_bytes: 8 };
    let passive = far.tm.add(far.buffer(&[8]), send).unwrap();
    let good = passive.descriptor.unwrap().as_bytes().to_vec();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let mut renamed = good.clone();
    renamed[0] ^= 0x55;
    let cases = [
        (Vec::new(), Errno::Invalid),
        (good[..39].to_vec(), Errno::Invalid),
        ([&good[..], &[0]].concat(), Errno::Invalid),
        (renamed, Errno::NotFound),
        (changed(35, 1), Errno::Invalid),
        (changed(35, 9), Errno::Invalid),
        // The service of the passive end.
        (changed(31, 9), Errno::NetworkUnreachable),
        (changed(31, 0), Errno::Invalid),
        // A total that is a lie: less or more than there is.
        (changed(39, 7), Errno::Protocol),
    ];
    for (bytes, errno) in cases {
        let from = BulkDescriptor::from_bytes(&bytes);
        let id = near.add(near.buffer(&[100]), Operation::ActiveReceive { from });
        assert_eq!(near.end_of(id).0, Err(errno), "{bytes:?}");
    }
    near.end();
    far.end();
}

/// ME-11, and RP-04: one call for each segment of the buffer that the data comes from.
#[test]
fn rp_04_ping_and_bulk_in_parts() {
    let place = Place::new();
    let mut client = Party::started(&rpc(), &place.address(1));
    let id = client.send(&place.address(2), b"is it there?");
    assert_eq!(client.end_of(id).0, Err(Errno::NetworkUnreachable));
    let mut server = Party::started(&rpc(), &place.address(2));
    let uneven: Vec<usize> = (0..16).map(|index| 1 + index * 997).collect();
    for shape in [&[64][..], &[10, 31], &[1 << 18, 3, 1 << 18], &uneven] {
        let length: usize = shape.iter().sum();
        let bytes: Vec<u8> = (0..length).map(|index| (index ^ index >> 8) as u8).collect();
        server.add(server.buffer(shape), Operation::Receive { min_receive_bytes: 1, max_messages: 1 });
        let mut message = client.buffer(&[length / 3 + 1; 3]);
        message.fill(&bytes);
        let to = client.tm.create_end_point(&server.address()).unwrap();
        let id = client.add(message, Operation::Send { to, length_bytes: length as u64 });
        let event = server.buffer_event();
        assert_eq!((event.status, event.length_bytes), (Ok(()), length as u64));
        assert!(event.payload_bytes() == bytes, "{shape:?}");
        assert_eq!(event.end_point.as_ref().unwrap().address(), client.address());
        drop(event);
        assert_eq!(client.end_of(id).0, Ok(()));

        let mut posted = server.buffer(shape);
        posted.fill(&bytes);
        let length_bytes = length as u64;
        let passive =
            server.tm.add(posted, Operation::PassiveSend { initiator: None, length_bytes }).unwrap();
        let from = passive.descriptor.unwrap();
        client.add(client.buffer(&[length / 3 + 1; 3]), Operation::ActiveReceive { from });
        let event = client.buffer_event();
        assert_eq!((event.status, event.length_bytes), (Ok(()), length_bytes));
        assert!(event.payload_bytes() == bytes, "{shape:?}");
        drop(event);
        assert_eq!(server.end_of(passive.id).0, Ok(()));

        let room = Operation::PassiveReceive { initiator: None };
        let passive = server.tm.add(server.buffer(&[length / 3 + 1; 3]), room).unwrap();
        let to = passive.descriptor.unwrap();
        let mut active = client.buffer(shape);
        active.fill(&bytes);
        let id = client.add(active, Operation::ActiveSend { to, length_bytes });
        assert_eq!(client.end_of(id).0, Ok(()));
        let event = server.buffer_event();
        assert_eq!((event.id, event.status, event.length_bytes), (passive.id, Ok(()), length_bytes));
        assert!(event.payload_bytes() == bytes, "{shape:?}");
    }
    client.end();
    server.end();
}

/// ME-12.
#[test]
fn rp_01_stop_with_and_without_cancel() {
    let place = Place::new();
    let [mut near, mut far] = place.pair();
    for _ in 0..5 {
        far.post(8, 8, 1);
        far.add(far.buffer(&[8]), Operation::PassiveReceive { initiator: None });
    }
    far.tm.stop(StopMode::Abort).unwrap();
    for _ in 0..10 {
        let event = far.buffer_event();
        assert_eq!((event.status, event.is_last()), (CANCELED, true));
    }
    let stopped = TmEvent::StateChange { state: TmState::Stopped, status: Ok(()), end_point: None };
    assert_eq!(far.tm_event(), stopped);
    let room = near.post(8, 8, 1);
    near.tm.stop(StopMode::Drain).unwrap();
    assert_eq!(near.tm.state(), TmState::Stopping);
    assert!(near.tm.del(room));
    assert_eq!(near.end_of(room).0, CANCELED);
    assert_eq!(near.tm_event(), stopped);
    for party in [near, far] {
        party.await_state(TmState::Stopped);
        party.tm.finish().unwrap();
    }
}

#[test]
fn rp_02_addresses() {
    let place = Place::new();
    let transport = rpc();
    let port = place.port;
    for (address, errno) in [
        (format!("127.0.0.1:{port}"), Errno::Invalid),
        (format!("127.0.0.1:{port}:0"), Errno::Invalid),
        (format!("127.0.0.1:{port}:1:1"), Errno::Invalid),
        (format!("127.0.0.1:{port}:+1"), Errno::Invalid),
        (format!("127.0.0.1:{port}:4294967296"), Errno::Invalid),
        ("127.0.0.1:65536:1".to_owned(), Errno::Invalid),
        ("127.0.0.1:0:1".to_owned(), Errno::Invalid),
        ("256.0.0.1:1:1".to_owned(), Errno::Invalid),
        ("localhost:1:1".to_owned(), Errno::Invalid),
        (String::new(), Errno::NotSupported),
    ] {
        let party = Party::new(&transport);
        assert_eq!(party.tm.start(&address).unwrap_err().errno(), errno, "{address}");
        assert_eq!(party.tm.state(), TmState::Failed);
    }
    let first = Party::started(&transport, &place.address(1));
    assert_eq!(first.address(), place.address(1));
    let same = Party::new(&transport);
    assert_eq!(same.tm.start(&place.address(1)).unwrap_err().errno(), Errno::AddressInUse);
    // Another server is not made.
    let mut other = Party::in_domain(&Domain::new(&transport).unwrap());
    other.tm.start(&format!("{}:{}:2", host(), free_port())).unwrap();
    let status = Err(Errno::AddressNotAvailable);
    assert_eq!(other.tm_event(), TmEvent::StateChange { state: TmState::Failed, status, end_point: None });
    other.await_state(TmState::Failed);
    other.tm.finish().unwrap();
    first.end();
}

#[test]
fn rp_03_the_server_lives_as_long_as_a_transfer_machine() {
    let place = Place::new();
    let connects = || TcpStream::connect((host(), place.port)).is_ok();
    assert!(!connects());
    let [near, far] = place.pair();
    assert!(connects());
    near.end();
    assert!(connects());
    far.end();
    assert!(!connects());
    // A server may start again; and another program's port is none for it.
    let [near, far] = place.pair();
    near.end();
    far.end();
    let taken = std::net::TcpListener::bind((host(), 0)).unwrap();
    let mut party = Party::new(&rpc());
    party.tm.start(&format!("{}:1", taken.local_addr().unwrap())).unwrap();
    let status = Err(Errno::AddressInUse);
    assert_eq!(party.tm_event(), TmEvent::StateChange { state: TmState::Failed, status, end_point: None });
}

/// What becomes of a passive buffer while its operation is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Deleted,
    /// Its deadline passes.
    Late,
}

/// The active end is a transfer machine. What it calls passes on the calls to the server of the passive end,
/// which it is told apart from by its port alone, and holds up the second one until the passive buffer has
/// gone.
fn check_a_part_too_late(active_queue: QueueType, fate: Fate) {
    // Enough for the first part on a slow machine.
    const WAIT: Duration = Duration::from_secs(1);
    let place = Place::new();
    let [mut near, mut far] = place.pair();
    let mut server = TcpStream::connect((host(), place.port)).unwrap();
    let between = TcpListener::bind((host(), 0)).unwrap();
    let mut pass_on = |call: &[u8]| {
        let mut call = call.to_vec();
        call[PASSIVE_PORT].copy_from_slice(&u32::from(place.port).to_be_bytes());
        write_record(&mut server, &call);
        let reply = read_record(&mut server).unwrap();
        let status = i32::from_be_bytes(reply[24..28].try_into().unwrap());
        (reply, status)
    };
    let (operation, bytes) = match active_queue {
        QueueType::ActiveReceive => (Operation::PassiveSend { initiator: None, length_bytes: 8 }, [7; 8]),
        _ => (Operation::PassiveReceive { initiator: None }, [0; 8]),
    };
    let begun = Instant::now();
    let addition = match fate {
        Fate::Deleted => Addition::from(operation),
        Fate::Late => Addition::from(operation).deadline(begun + WAIT),
    };
    let mut buffer = far.buffer(&[4, 4]);
    buffer.fill(&bytes);
    let passive = far.tm.add(buffer, addition).unwrap();
    let mut descriptor = passive.descriptor.unwrap().as_bytes().to_vec();
    let port = u32::from(between.local_addr().unwrap().port());
    descriptor[PASSIVE_PORT.start - CALL_HEAD_BYTES..][..4].copy_from_slice(&port.to_be_bytes());
    let descriptor = BulkDescriptor::from_bytes(&descriptor);
    let active = match active_queue {
        QueueType::ActiveReceive => Operation::ActiveReceive { from: descriptor },
        _ => Operation::ActiveSend { to: descriptor, length_bytes: 8 },
    };
    let id = near.add(near.buffer(&[4, 4]), active);
    let (mut stream, _) = between.accept().unwrap();
    let first = read_record(&mut stream).unwrap();
    let (reply, status) = pass_on(&first);
    assert_eq!(status, 0, "the first part came {:?} after the passive buffer", begun.elapsed());
    if active_queue == QueueType::ActiveSend {
        assert_eq!(pass_on(&first).1, -22, "the same part twice");
    }
    write_record(&mut stream, &reply);
    let second = read_record(&mut stream).unwrap();
    match fate {
        Fate::Deleted => {
            assert!(far.tm.del(passive.id));
            assert_eq!(far.end_of(passive.id).0, CANCELED);
        }
        Fate::Late => {
            assert_eq!(far.end_of(passive.id).0, Err(Errno::TimedOut));
            assert!(begun.elapsed() >= WAIT);
        }
    }
    assert!(near.tm.queued(id).is_some_and(|queued| queued.flags.in_use), "the active end waits");
    let (reply, status) = pass_on(&second);
    assert_eq!(status, -2);
    write_record(&mut stream, &reply);
    assert_eq!(near.end_of(id), (Err(Errno::NotFound), 0));
    assert_eq!(near.counts(active_queue), (1, 0, 0, 1));
    near.end();
    far.end();
}

#[test]
fn rp_05_a_passive_buffer_that_is_deleted_between_parts() {
    for queue in [QueueType::ActiveReceive, QueueType::ActiveSend] {
        check_a_part_too_late(queue, Fate::Deleted);
    }
}

#[test]
fn rp_05_a_passive_buffer_whose_deadline_passes_between_parts() {
    for queue in [QueueType::ActiveReceive, QueueType::ActiveSend] {
        check_a_part_too_late(queue, Fate::Late);
    }
}

#[test]
fn a_stop_while_callbacks_run() {
    let place = Place::new();
    any::a_stop_while_callbacks_run(place.pair());
}

#[test]
fn a_message_is_refused_while_the_buffers_of_a_pool_are_held() {
    let place = Place::new();
    any::a_pool_whose_buffers_are_held(place.pair(), &place.address(3), true);
}

#[test]
fn rp_01_the_front_and_pools() {
    let place = Place::new();
    let two = [3, 4].map(|service| place.address(service));
    let two = two.each_ref().map(String::as_str);
    any::front::refusals(place.pair());
    any::front::additions_deletions_and_counters(place.pair());
    any::front::a_callback_uses_the_front(place.pair());
    any::front::a_callback_that_panics(place.pair(), &place.address(3));
    any::front::deadlines(place.pair());
    any::front::diagnostics(place.pair());
    any::front::neither_confined_nor_synchronous(place.pair(), two[0]);
    any::pooled::a_message_is_made_up_for(place.pair(), two[0]);
    any::pooled::a_stop_feeds_another(place.pair(), two);
}

#[test]
fn ln_07_to_ln_09_several_messages_in_one_buffer() {
    let place = Place::new();
    received::several_messages_in_one_buffer(place.pair());
    received::a_second_buffer(place.pair());
    received::a_deletion_behind_messages(place.pair(), false);
    received::many_messages_in_few_buffers(place.pair());
}
