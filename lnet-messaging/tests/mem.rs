//! The mem transport.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod any;
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Party;
use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, BulkDescriptor, Callback, Domain, Errno, Event, MemTransport, Memory, Operation, QueueType,
    StopMode, TmEvent, TmState,
};

fn mem() -> Arc<dyn Transport> {
    MemTransport::default().shared()
}

/// Two started transfer machines of two domains; each test has ports of its own.
fn pair(port: u16) -> [Party; 2] {
    [0, 1].map(|number| Party::started(&mem(), &format!("127.0.0.1:{}", port + number)))
}

const CANCELED: Result<(), Errno> = Err(Errno::Canceled);

#[test]
fn me_01_bytes_are_copied_across_segments() {
    let bytes: Vec<u8> = (0..48).collect();
    let shapes: [&[usize]; 6] = [&[48], &[24; 2], &[16; 3], &[12; 4], &[8; 6], &[1, 40, 7]];
    for from in shapes {
        for to in shapes {
            let [mut source, mut target] = [from, to].map(|lengths| {
                Memory::from_segments(lengths.iter().map(|length| vec![0; *length]).collect()).unwrap()
            });
            assert_eq!(source.fill(&bytes), 48);
            target.copy_from(&source, 48).unwrap();
            assert_eq!(target.bytes(0, 48), bytes, "{from:?} {to:?}");
            target.fill(&[0; 48]);
            target.copy_from(&source, 17).unwrap();
            assert_eq!((target.bytes(0, 17), target.bytes(17, 31)), (bytes[..17].to_vec(), vec![0; 31]));
            assert_eq!(target.copy_from(&source, 49).unwrap_err().errno(), Errno::TooBig);
        }
    }
}

#[test]
fn me_02_transfer_machines_come_and_go() {
    for workers in [1, 2] {
        let transport = MemTransport::with_workers(workers);
        assert_eq!(transport.workers(), workers);
        for _ in 0..3 {
            let party = Party::started(&transport.shared(), "127.0.0.1:2001");
            let domain = party.domain.clone();
            party.end();
            assert_eq!((domain.tm_count(), domain.buffer_count()), (0, 0));
            domain.finish().unwrap();
        }
    }
}

#[test]
fn me_03_end_points_have_two_parts() {
    let text = "255.255.255.255:65535";
    let party = Party::started(&mem(), text);
    let own = party.tm.create_end_point(text).unwrap();
    assert_eq!((own.address(), own.reference_count()), (text, 2));
    let again = party.tm.create_end_point(text).unwrap();
    assert_eq!((own == again, own.reference_count()), (true, 3));
    for wrong in
        ["1.2.3.4:5:6", "1.2.3.4", "1.2.3:5", "1.2.3.256:5", "1.2.3.4:65536", "1.2.3.4:+5", ":5", "1.2.3.4:"]
    {
        assert_eq!(party.tm.create_end_point(wrong).unwrap_err().errno(), Errno::Invalid, "{wrong}");
    }
    assert_eq!(party.tm.create_end_point("").unwrap_err().errno(), Errno::NotSupported);
    let other = Party::new(&mem());
    assert_eq!(other.tm.start(text).unwrap_err().errno(), Errno::AddressInUse);
    drop((own, again));
    party.end();
}

#[test]
fn me_04_a_message_to_a_transfer_machine_that_is_not_started() {
    let mut party = Party::started(&mem(), "127.0.0.1:2010");
    let id = party.send("127.0.0.1:2011", b"hello");
    assert_eq!(party.end_of(id), (Err(Errno::NetworkUnreachable), 0));
    party.end();
}

#[test]
fn me_05_a_message_without_a_receive_buffer() {
    let [mut near, mut far] = pair(2020);
    let id = near.send("127.0.0.1:2021", b"hello");
    assert_eq!(near.end_of(id), (Err(Errno::NoBuffers), 0));
    assert_eq!(near.counts(QueueType::Send), (1, 0, 0, 1));
    assert_eq!(far.tm_event(), TmEvent::Error(Errno::NoBuffers));
    assert_eq!(far.counts(QueueType::Receive), (0, 0, 0, 1));
    // A message arrives as soon as there is a buffer.
    far.post(8, 8, 1);
    let id = near.send("127.0.0.1:2021", b"hello");
    assert_eq!((near.end_of(id).0, far.buffer_event().payload_bytes()), (Ok(()), b"hello".to_vec()));
    near.end();
    far.end();
}

#[test]
fn me_06_a_message_that_is_too_long() {
    let [mut near, mut far] = pair(2030);
    let room = far.post(10, 10, 1);
    let id = near.send("127.0.0.1:2031", &[7; 40]);
    assert_eq!(near.end_of(id), (Err(Errno::MessageSize), 0));
    let event = far.buffer_event();
    assert_eq!((event.id, event.status, event.length_bytes), (room, Err(Errno::MessageSize), 40));
    assert!(event.end_point.is_none() && event.payload_bytes().is_empty());
    assert_eq!(near.counts(QueueType::Send), (1, 0, 0, 1));
    assert_eq!(far.counts(QueueType::Receive), (1, 0, 0, 1));
    drop(event);
    near.end();
    far.end();
}

#[test]
fn me_07_a_bulk_operation_in_the_wrong_direction() {
    let [mut near, mut far] = pair(2040);
    let passive = far.tm.add(far.buffer(&[8]), Operation::PassiveReceive { initiator: None }).unwrap();
    let from = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id), (Err(Errno::NotPermitted), 0));
    assert_eq!(near.counts(QueueType::ActiveReceive), (1, 0, 0, 1));
    assert!(far.tm.queued(passive.id).is_some() && far.tm.del(passive.id));
    assert_eq!(far.end_of(passive.id), (CANCELED, 0));
    assert_eq!(far.counts(QueueType::PassiveReceive), (1, 1, 0, 1));
    near.end();
    far.end();
}

#[test]
fn me_08_bulk_data_that_does_not_fit() {
    let [mut near, mut far] = pair(2050);
    let passive = far.tm.add(far.buffer(&[8]), Operation::PassiveReceive { initiator: None }).unwrap();
    let to = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[9]), Operation::ActiveSend { to, length_bytes: 9 });
    assert_eq!(near.end_of(id).0, Err(Errno::TooBig));
    assert_eq!(far.end_of(passive.id).0, Err(Errno::TooBig));
    let send = Operation::PassiveSend { initiator: None, length_bytes: 9 };
    let passive = far.tm.add(far.buffer(&[9]), send).unwrap();
    let from = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id).0, Err(Errno::TooBig));
    assert_eq!(far.end_of(passive.id).0, Err(Errno::TooBig));
    near.end();
    far.end();
}

#[test]
fn me_09_a_descriptor_dies_with_its_use() {
    let [mut near, mut far] = pair(2060);
    let room = Operation::PassiveReceive { initiator: None };
    let first = far.tm.add(far.buffer(&[8]), room).unwrap();
    assert!(far.tm.del(first.id));
    let buffer = far.buffer_event().into_buffer().unwrap();
    let second = far.tm.add(buffer, Operation::PassiveReceive { initiator: None }).unwrap();
    assert_ne!(first.descriptor, second.descriptor);
    let old = Operation::ActiveSend { to: first.descriptor.unwrap(), length_bytes: 8 };
    let id = near.add(near.buffer(&[8]), old);
    assert_eq!(near.end_of(id).0, Err(Errno::NotFound));
    assert!(far.tm.queued(second.id).is_some() && far.tm.del(second.id));
    assert_eq!(far.end_of(second.id).0, CANCELED);
    assert_eq!(far.counts(QueueType::PassiveReceive), (2, 2, 0, 2));
    near.end();
    far.end();
}

#[test]
fn me_10_only_the_initiator_may() {
    let [mut near, far] = pair(2070);
    let initiator = Some(far.tm.create_end_point("127.0.0.1:9").unwrap());
    let send = Operation::PassiveSend { initiator, length_bytes: 8 };
    let passive = far.tm.add(far.buffer(&[8]), send).unwrap();
    let from = passive.descriptor.unwrap();
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id).0, Err(Errno::AccessDenied));
    assert!(far.tm.queued(passive.id).is_some());
    near.end();
    far.end();
}

#[test]
fn me_11_ping_and_bulk() {
    let mut client = Party::started(&mem(), "127.0.0.1:2080");
    let id = client.send("127.0.0.1:2081", b"anyone there?");
    assert_eq!(client.end_of(id).0, Err(Errno::NetworkUnreachable));
    let mut server = Party::started(&mem(), "127.0.0.1:2081");
    for shape in [&[64][..], &[10, 30, 24], &[1; 16]] {
        let length: usize = shape.iter().sum();
        let bytes: Vec<u8> = (0..length as u8).collect();
        server.add(server.buffer(shape), Operation::Receive { min_receive_bytes: 1, max_messages: 1 });
        let id = client.send("127.0.0.1:2081", &bytes);
        let event = server.buffer_event();
        assert_eq!((event.status, event.payload_bytes()), (Ok(()), bytes.clone()));
        assert_eq!(event.end_point.as_ref().unwrap().address(), "127.0.0.1:2080");
        assert_eq!(client.end_of(id).0, Ok(()));

        let mut posted = server.buffer(shape);
        posted.fill(&bytes);
        let send = Operation::PassiveSend { initiator: None, length_bytes: length as u64 };
        let passive = server.tm.add(posted, send).unwrap();
        let from = passive.descriptor.unwrap();
        client.add(client.buffer(&[length]), Operation::ActiveReceive { from });
        assert_eq!(client.buffer_event().payload_bytes(), bytes);
        assert_eq!(server.end_of(passive.id).0, Ok(()));

        let passive =
            server.tm.add(server.buffer(shape), Operation::PassiveReceive { initiator: None }).unwrap();
        let to = passive.descriptor.unwrap();
        let id = client.add(client.filled(&bytes), Operation::ActiveSend { to, length_bytes: length as u64 });
        assert_eq!(client.end_of(id).0, Ok(()));
        assert_eq!(server.buffer_event().payload_bytes(), bytes);
    }
    client.end();
    server.end();
}

#[test]
fn me_12_stop_with_and_without_cancel() {
    let [mut near, mut far] = pair(2090);
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
    assert_eq!(far.counts(QueueType::Receive), (5, 5, 0, 5));

    let room = near.post(8, 8, 1);
    near.tm.stop(StopMode::Drain).unwrap();
    assert_eq!(near.tm.state(), TmState::Stopping);
    let refused = near.tm.add(near.buffer(&[8]), Operation::PassiveReceive { initiator: None });
    assert_eq!(refused.unwrap_err().error.errno(), Errno::NotPermitted);
    assert!(near.tm.del(room));
    assert_eq!(near.end_of(room).0, CANCELED);
    assert_eq!(near.tm_event(), stopped);
}

/// Every queue has buffers, those of sends and active operations that wait for the one worker included.
#[test]
fn me_12_an_aborting_stop_with_all_queues_loaded() {
    let [mut near, far] = pair(2180);
    let (entered, is_entered) = std::sync::mpsc::channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let hold = Callback::new(move |_, _| {
        entered.send(()).unwrap();
        let _ = gate.lock().unwrap().recv();
    });
    // The worker is held in a callback, so that nothing behind it has begun.
    let receive = || Operation::Receive { min_receive_bytes: 8, max_messages: 1 };
    let first = near.add(near.buffer(&[8]), Addition::from(receive()).callback(&hold));
    assert!(near.tm.del(first));
    is_entered.recv().unwrap();
    let send = || Operation::PassiveSend { initiator: None, length_bytes: 8 };
    let from = far.tm.add(far.buffer(&[8]), send()).unwrap().descriptor.unwrap();
    let room = Operation::PassiveReceive { initiator: None };
    let to = far.tm.add(far.buffer(&[8]), room).unwrap().descriptor.unwrap();
    far.post(8, 8, 1);
    for operation in [
        receive(),
        Operation::PassiveReceive { initiator: None },
        send(),
        Operation::ActiveReceive { from },
        Operation::ActiveSend { to, length_bytes: 8 },
    ] {
        near.add(near.buffer(&[8]), operation);
    }
    near.send(&far.address(), b"hello");
    assert!(QueueType::ALL.iter().all(|queue| near.tm.queue_length(*queue) == 1));
    near.tm.stop(StopMode::Abort).unwrap();
    go.send(()).unwrap();
    let mut ended: Vec<_> = (0..6)
        .map(|_| near.buffer_event())
        .map(|event| (event.queue(), event.status, event.is_last()))
        .collect();
    ended.sort_by_key(|(queue, ..)| *queue);
    assert_eq!(ended, QueueType::ALL.map(|queue| (queue, CANCELED, true)));
    assert!(matches!(near.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
    // The other side's buffers were not touched.
    let queues = [QueueType::Receive, QueueType::PassiveReceive, QueueType::PassiveSend];
    assert!(queues.iter().all(|queue| far.tm.queue_length(*queue) == 1));
    far.end();
}

#[test]
fn me_13_transfer_machines_of_one_domain_do_not_meet() {
    let domain = Domain::new(&mem()).unwrap();
    let mut one = Party::in_domain(&domain).start("127.0.0.1:2100");
    let other = Party::in_domain(&domain).start("127.0.0.1:2101");
    other.post(8, 8, 1);
    let id = one.send("127.0.0.1:2101", b"hello");
    assert_eq!(one.end_of(id).0, Err(Errno::NetworkUnreachable));
    one.end();
    other.end();
}

#[test]
fn deadlines_pass() {
    let mut party = Party::started(&mem(), "127.0.0.1:2110");
    let begun = Instant::now();
    let wait = Duration::from_millis(30);
    let receive = Operation::Receive { min_receive_bytes: 1, max_messages: 1 };
    let late = party.add(party.buffer(&[8]), Addition::from(receive).deadline(begun + wait));
    let other = party.post(8, 8, 1);
    assert_eq!(party.end_of(late).0, Err(Errno::TimedOut));
    assert!(begun.elapsed() >= wait);
    assert!(party.tm.queued(other).is_some());
    party.end();
}

/// Descriptors from a peer that means ill, or of another transport.
#[test]
fn descriptors_that_are_none_are_refused() {
    let [mut near, far] = pair(2120);
    let send = Operation::PassiveSend { initiator: None, length_bytes: 8 };
    let passive = far.tm.add(far.buffer(&[8]), send).unwrap();
    let good = passive.descriptor.unwrap().as_bytes().to_vec();
    let mut wrong: Vec<(Vec<u8>, Errno)> =
        (0..good.len()).map(|end| (good[..end].to_vec(), Errno::Invalid)).collect();
    wrong.push((vec![0; 48], Errno::Invalid));
    let forged = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    wrong.extend([(forged(4), Errno::Invalid), (forged(8), Errno::NotFound)]);
    wrong.extend([(forged(16), Errno::Invalid), (forged(24), Errno::NetworkUnreachable)]);
    for (bytes, errno) in wrong {
        let from = BulkDescriptor::from_bytes(&bytes);
        let id = near.add(near.buffer(&[100]), Operation::ActiveReceive { from });
        assert_eq!(near.end_of(id).0, Err(errno), "{bytes:?}");
        assert!(far.tm.queued(passive.id).is_some());
    }
    near.end();
    far.end();
}

/// Both directions from several threads; nothing is lost.
#[test]
fn many_messages_on_several_workers() {
    const MESSAGES: usize = 500;
    let transport = MemTransport::with_workers(3).shared();
    let mut far = Party::started(&transport, "127.0.0.1:2130");
    for _ in 0..MESSAGES {
        far.post(8, 8, 1);
    }
    let near = Party::started(&transport, "127.0.0.1:2131");
    for number in 0..MESSAGES as u64 {
        near.send("127.0.0.1:2130", &number.to_le_bytes());
    }
    let mut seen = vec![false; MESSAGES];
    for _ in 0..MESSAGES {
        let bytes = far.buffer_event().payload_bytes();
        let number = u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
        assert!(!std::mem::replace(&mut seen[number], true));
    }
    assert!(far.events.try_next().is_none_or(|event| matches!(event, Event::Tm(_))));
    near.end();
    far.end();
}

#[test]
fn a_stop_while_callbacks_run() {
    any::a_stop_while_callbacks_run(pair(2140));
}

#[test]
fn a_message_is_refused_while_the_buffers_of_a_pool_are_held() {
    any::a_pool_whose_buffers_are_held(pair(2150), "127.0.0.1:2152", true);
}

#[test]
fn if_06_to_if_20_the_front() {
    any::front::starts_and_stops(pair(2160), "127.0.0.1:2162");
    any::front::end_points(pair(2160));
    any::front::refusals(pair(2160));
    any::front::additions_deletions_and_counters(pair(2160));
    any::front::a_callback_uses_the_front(pair(2160));
    any::front::domains_come_and_go(pair(2160));
    any::front::a_callback_that_panics(pair(2160), "127.0.0.1:2163");
    any::front::deadlines(pair(2160));
    any::front::diagnostics(pair(2160));
    any::front::neither_confined_nor_synchronous(pair(2160), "127.0.0.1:2162");
}

#[test]
fn pv_02_to_pv_13_pools() {
    let two = ["127.0.0.1:2172", "127.0.0.1:2173"];
    any::pooled::the_queue_is_filled_behind_the_start(pair(2170), two[0]);
    any::pooled::two_queues_of_one_pool(pair(2170), two);
    any::pooled::a_message_is_made_up_for(pair(2170), two[0]);
    any::pooled::buffers_by_their_colours(pair(2170), two);
    any::pooled::a_stop_feeds_another(pair(2170), two);
    any::pooled::starts_and_stops_share_a_pool(pair(2170), two);
}

#[test]
fn ln_07_to_ln_09_several_messages_in_one_buffer() {
    common::received::several_messages_in_one_buffer(pair(2180));
    common::received::a_second_buffer(pair(2180));
    common::received::a_deletion_behind_messages(pair(2180), false);
    common::received::many_messages_in_few_buffers(pair(2180));
}

/// With several workers the last event of a buffer is the last one all the same.
#[test]
fn several_messages_in_one_buffer_on_several_workers() {
    let transport = MemTransport::with_workers(3).shared();
    let pair = || [2190, 2191].map(|port| Party::started(&transport, &format!("127.0.0.1:{port}")));
    common::received::many_messages_in_few_buffers(pair());
}
