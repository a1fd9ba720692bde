//! What two transfer machines of the lnet transport do with each other, whatever net is between them. Each
//! scenario ends both.

pub(crate) mod alone;

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use lnet_messaging::{
    Addition, Attachment, Callback, Errno, Operation, Pool, PoolSpec, QueueType, Reprovision, StopMode,
    TmEvent, TmState, TransferMachine,
};

use crate::common::Party;
use crate::common::received::{messages, send_each};

/// An address on the node of this one, with another identifier.
fn beside(address: &str, tmid: u16) -> String {
    let (node, _) = address.rsplit_once(':').unwrap();
    format!("{node}:{tmid}")
}

fn passive_send(length_bytes: u64) -> Operation {
    Operation::PassiveSend { initiator: None, length_bytes }
}

/// Bytes of which each tells its place.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index ^ index >> 8 ^ index >> 16) as u8).collect()
}

/// A message, and a bulk operation in either direction, in one segment and in several.
pub(crate) fn messages_and_bulk([mut client, mut server]: [Party; 2]) {
    for shape in [&[64][..], &[10, 30, 24], &[1 << 20]] {
        let length: usize = shape.iter().sum();
        let bytes = pattern(length);
        server.add(
            server.buffer(shape),
            Operation::Receive { min_receive_bytes: length as u64, max_messages: 1 },
        );
        let id = client.send(&server.address(), &bytes);
        let event = server.buffer_event();
        assert_eq!((event.status, event.is_last()), (Ok(()), true));
        assert!(event.payload_bytes() == bytes, "{length} bytes");
        assert_eq!(event.end_point.as_ref().unwrap().address(), client.address());
        drop(event);
        assert_eq!(client.end_of(id).0, Ok(()));

        let mut posted = server.buffer(shape);
        posted.fill(&bytes);
        let send = Operation::PassiveSend { initiator: None, length_bytes: length as u64 };
        let passive = server.tm.add(posted, send).unwrap();
        let from = passive.descriptor.unwrap();
        assert_eq!(from.as_bytes().len(), 48);
        client.add(client.buffer(&[length]), Operation::ActiveReceive { from });
        let event = client.buffer_event();
        assert_eq!((event.status, event.length_bytes), (Ok(()), length as u64));
        assert!(event.payload_bytes() == bytes, "{length} bytes");
        assert_eq!(server.end_of(passive.id).0, Ok(()));

        let passive =
            server.tm.add(server.buffer(shape), Operation::PassiveReceive { initiator: None }).unwrap();
        let to = passive.descriptor.unwrap();
        let id = client.add(client.filled(&bytes), Operation::ActiveSend { to, length_bytes: length as u64 });
        assert_eq!(client.end_of(id).0, Ok(()));
        assert!(server.buffer_event().payload_bytes() == bytes, "{length} bytes");
    }
    client.end();
    server.end();
}

/// ME-01: a message and a bulk operation in either direction between buffers of each of these shapes.
pub(crate) fn bytes_across_segments([mut near, mut far]: [Party; 2]) {
    let bytes = pattern(48);
    let shapes: [&[usize]; 6] = [&[48], &[24; 2], &[16; 3], &[12; 4], &[8; 6], &[1, 40, 7]];
    let filled = |party: &Party, shape| {
        let mut buffer = party.buffer(shape);
        buffer.fill(&bytes);
        buffer
    };
    let taken = |party: &mut Party| {
        let event = party.buffer_event();
        assert_eq!((event.status, event.payload_bytes()), (Ok(()), bytes.clone()));
    };
    for from in shapes {
        for to in shapes {
            far.add(far.buffer(to), Operation::Receive { min_receive_bytes: 48, max_messages: 1 });
            let end_point = near.tm.create_end_point(&far.address()).unwrap();
            let id = near.add(filled(&near, from), Operation::Send { to: end_point, length_bytes: 48 });
            assert_eq!(near.end_of(id).0, Ok(()));
            taken(&mut far);
            let passive = far.tm.add(filled(&far, from), passive_send(48)).unwrap();
            near.add(near.buffer(to), Operation::ActiveReceive { from: passive.descriptor.unwrap() });
            taken(&mut near);
            assert_eq!(far.end_of(passive.id).0, Ok(()));
            let room = Operation::PassiveReceive { initiator: None };
            let passive = far.tm.add(far.buffer(to), room).unwrap();
            let write = Operation::ActiveSend { to: passive.descriptor.unwrap(), length_bytes: 48 };
            let id = near.add(filled(&near, from), write);
            assert_eq!(near.end_of(id).0, Ok(()));
            taken(&mut far);
        }
    }
    near.end();
    far.end();
}

/// ME-09: the same buffer is queued again, and the former descriptor reads nothing of it.
pub(crate) fn a_descriptor_of_an_earlier_use([mut near, mut far]: [Party; 2]) {
    let first = far.tm.add(far.filled(&[1; 8]), passive_send(8)).unwrap();
    assert!(far.tm.del(first.id));
    let buffer = far.buffer_event().into_buffer().unwrap();
    let second = far.tm.add(buffer, passive_send(8)).unwrap();
    assert_ne!(first.descriptor, second.descriptor);
    let old = Addition::from(Operation::ActiveReceive { from: first.descriptor.unwrap() });
    let id = near.add(near.buffer(&[8]), old.deadline(Instant::now() + Duration::from_millis(50)));
    assert_eq!(near.end_of(id).0, Err(Errno::TimedOut));
    assert!(far.tm.queued(second.id).is_some());
    near.add(near.buffer(&[8]), Operation::ActiveReceive { from: second.descriptor.unwrap() });
    assert_eq!(near.buffer_event().payload_bytes(), [1; 8]);
    assert_eq!(far.end_of(second.id).0, Ok(()));
    assert_eq!(far.counts(QueueType::PassiveSend), (2, 1, 1, 1));
    near.end();
    far.end();
}

/// ME-12 and LN-23: every queue has a buffer when the stop aborts. What has left this node by then has gone
/// well.
pub(crate) fn a_stop_with_all_queues_loaded([mut near, mut far]: [Party; 2]) {
    let (entered, is_entered) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let hold = Callback::new(move |_, _| {
        entered.send(()).unwrap();
        let _ = gate.lock().unwrap().recv();
    });
    // The worker is held in a callback, so that all that is added behind it stays queued.
    let receive = || Operation::Receive { min_receive_bytes: 8, max_messages: 1 };
    let room = || Operation::PassiveReceive { initiator: None };
    let first = near.add(near.buffer(&[8]), Addition::from(receive()).callback(&hold));
    assert!(near.tm.del(first));
    is_entered.recv().unwrap();
    // A GET for what is gone is never answered.
    let gone = far.tm.add(far.buffer(&[8]), passive_send(8)).unwrap();
    assert!(far.tm.del(gone.id));
    assert_eq!(far.end_of(gone.id).0, Err(Errno::Canceled));
    let to = far.tm.add(far.buffer(&[8]), room()).unwrap().descriptor.unwrap();
    far.post(8, 8, 1);
    for operation in [
        receive(),
        room(),
        passive_send(8),
        Operation::ActiveReceive { from: gone.descriptor.unwrap() },
        Operation::ActiveSend { to, length_bytes: 8 },
    ] {
        near.add(near.buffer(&[8]), operation);
    }
    near.send(&far.address(), b"hello");
    assert!(QueueType::ALL.iter().all(|queue| near.tm.queue_length(*queue) == 1));
    near.tm.stop(StopMode::Abort).unwrap();
    assert_eq!(near.tm.add(near.buffer(&[8]), room()).unwrap_err().error.errno(), Errno::NotPermitted);
    go.send(()).unwrap();
    let mut ended: Vec<_> = QueueType::ALL.iter().map(|_| near.buffer_event()).collect();
    ended.sort_by_key(|event| event.queue());
    for (event, queue) in ended.iter().zip(QueueType::ALL) {
        let may_have_left = matches!(queue, QueueType::Send | QueueType::ActiveSend);
        let is_well = may_have_left && event.status.is_ok() || event.status == Err(Errno::Canceled);
        assert!(event.queue() == queue && event.is_last() && is_well, "{event:?}");
    }
    drop(ended);
    assert!(matches!(near.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
    for queue in QueueType::ALL {
        let (adds, dels, successes, failures) = near.counts(queue);
        assert_eq!((adds, dels), (successes + failures, adds), "{queue:?}");
    }
    near.tm.finish().unwrap();
    far.end();
}

/// ME-12 and LN-23: a stop that drains waits for what the program deletes.
pub(crate) fn a_stop_that_drains([mut near, far]: [Party; 2]) {
    let waiting = [
        near.post(8, 8, 1),
        near.add(near.buffer(&[8]), passive_send(8)),
        near.add(near.buffer(&[8]), Operation::PassiveReceive { initiator: None }),
    ];
    near.tm.stop(StopMode::Drain).unwrap();
    for id in waiting {
        assert_eq!(near.tm.state(), TmState::Stopping);
        assert!(near.events.try_next().is_none() && near.tm.del(id));
        assert_eq!(near.end_of(id).0, Err(Errno::Canceled));
    }
    assert!(matches!(near.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
    far.end();
}

/// Messages that find no receive buffer are lost, and those behind them are not.
pub(crate) fn messages_to_nowhere([mut near, mut far]: [Party; 2]) {
    let to = far.address();
    for lost in [to.clone(), beside(&to, 4000)] {
        let id = near.send(&lost, b"lost");
        assert_eq!(near.end_of(id).0, Ok(()));
        assert_eq!(near.counts(QueueType::Send), (1, 0, 1, 0));
    }
    // A message that has left may be under way: a fetch behind it shows that the far end has looked at it.
    let passive = far.tm.add(far.filled(b"then"), passive_send(4)).unwrap();
    let id = near.add(near.buffer(&[4]), Operation::ActiveReceive { from: passive.descriptor.unwrap() });
    assert_eq!((near.end_of(id).0, far.end_of(passive.id).0), (Ok(()), Ok(())));
    far.post(8, 8, 1);
    let id = near.send(&to, b"found");
    assert_eq!(near.end_of(id).0, Ok(()));
    assert_eq!(far.buffer_event().payload_bytes(), b"found");
    assert_eq!(far.counts(QueueType::Receive), (1, 0, 1, 0));
    near.end();
    far.end();
}

/// A message that is too long is lost, and its buffer stays.
pub(crate) fn a_message_that_is_too_long([mut near, mut far]: [Party; 2]) {
    let id = far.post(100, 20, 2);
    send_each(&mut near, &far.address(), &[21]);
    assert!(near.events.try_next().is_none() && far.tm.queued(id).is_some());
    send_each(&mut near, &far.address(), &[20]);
    assert_eq!(messages(&mut far, 1), [(20, 0, false)]);
    near.end();
    far.end();
}

/// Refused operations leave the passive buffer alone.
pub(crate) fn refused_bulk_operations([mut near, mut far]: [Party; 2]) {
    let refused = |near: &Party, operation, bytes, errno| {
        let refused = near.tm.add(near.buffer(&[bytes]), operation).unwrap_err();
        assert_eq!((refused.error.errno(), refused.buffer.size_bytes()), (errno, bytes as u64));
    };
    let passive = far.tm.add(far.filled(&[5; 64]), passive_send(64)).unwrap();
    let desc = || passive.descriptor.clone().unwrap();
    refused(&near, Operation::ActiveSend { to: desc(), length_bytes: 64 }, 64, Errno::NotPermitted);
    refused(&near, Operation::ActiveReceive { from: desc() }, 63, Errno::TooBig);
    near.add(near.buffer(&[65]), Operation::ActiveReceive { from: desc() });
    assert_eq!(near.buffer_event().payload_bytes(), [5; 64]);
    assert_eq!(far.end_of(passive.id).0, Ok(()));

    let passive = far.tm.add(far.buffer(&[64]), Operation::PassiveReceive { initiator: None }).unwrap();
    let desc = || passive.descriptor.clone().unwrap();
    refused(&near, Operation::ActiveReceive { from: desc() }, 64, Errno::NotPermitted);
    refused(&near, Operation::ActiveSend { to: desc(), length_bytes: 65 }, 65, Errno::TooBig);
    let id = near.add(near.filled(&[6; 63]), Operation::ActiveSend { to: desc(), length_bytes: 63 });
    assert_eq!(near.end_of(id).0, Ok(()));
    assert_eq!(far.buffer_event().payload_bytes(), [6; 63]);
    for (party, queues) in [
        (&near, [QueueType::ActiveReceive, QueueType::ActiveSend]),
        (&far, [QueueType::PassiveSend, QueueType::PassiveReceive]),
    ] {
        assert_eq!(queues.map(|queue| party.counts(queue)), [(1, 0, 1, 0); 2]);
    }
    near.end();
    far.end();
}

/// A descriptor whose buffer is gone: nothing answers, and the deadline ends the operation.
pub(crate) fn a_passive_buffer_that_has_gone([mut near, far]: [Party; 2]) {
    let passive = far.tm.add(far.buffer(&[8]), passive_send(8)).unwrap();
    let from = passive.descriptor.unwrap();
    far.end();
    let active = Addition::from(Operation::ActiveReceive { from });
    let id = near.add(near.buffer(&[8]), active.deadline(Instant::now() + Duration::from_millis(50)));
    let (status, _) = near.end_of(id);
    assert!(matches!(status, Err(Errno::TimedOut | Errno::HostUnreachable)), "{status:?}");
    near.end();
}

/// A pool that runs empty, and is refilled by the callbacks: every message arrives.
pub(crate) fn a_pool_that_runs_empty([mut near, far]: [Party; 2]) {
    const MESSAGES: usize = 200;
    let address = beside(&far.address(), 4001);
    let domain = far.domain.clone();
    let spec = PoolSpec { threshold: 1, segments: 1, segment_bytes: 64, colours: 1 };
    let pool = Pool::new(&domain, spec, Arc::new(Reprovision)).unwrap();
    assert_eq!(pool.lock().provision(8), 8);
    let (told, seen) = mpsc::channel();
    let told = Mutex::new(told);
    let callback = Callback::new(move |tm: &TransferMachine, event| {
        let _ = told.lock().unwrap().send((event.status, event.payload_bytes()));
        let Some(buffer) = event.into_buffer() else { return };
        buffer.put_back(tm.colour()).unwrap();
    });
    let pooled = Party::in_domain(&domain);
    let attachment =
        Attachment { pool: pool.clone(), min_receive_bytes: 16, max_messages: 3, callback: Some(callback) };
    pooled.tm.attach_pool(attachment, 8).unwrap();
    pooled.tm.set_colour(Some(0)).unwrap();
    let pooled = pooled.start(&address);
    for number in 0..MESSAGES as u64 {
        let id = near.send(&address, &number.to_le_bytes());
        assert_eq!(near.end_of(id).0, Ok(()));
        let (status, bytes) = seen.recv().unwrap();
        assert_eq!((status, bytes), (Ok(()), number.to_le_bytes().to_vec()));
    }
    pooled.end();
    pool.finish().unwrap();
    near.end();
    far.end();
}
