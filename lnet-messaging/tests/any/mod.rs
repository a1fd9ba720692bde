//! What two transfer machines do with each other over any transport. Each scenario ends both; an address that
//! it is given is one more on the far side.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod front;
pub(crate) mod pooled;

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use lnet_messaging::{
    Addition, Callback, Errno, Event, Operation, QueueType, StopMode, TmEvent, TmState, TransferMachine,
};

use crate::common::Party;

/// Whether it is the event of a transfer machine that has stopped.
pub(crate) fn is_stop(event: &Event) -> bool {
    matches!(event, Event::Tm(TmEvent::StateChange { state: TmState::Stopped, .. }))
}

/// All buffers of a pool are out when a message comes: it is lost, and where the transport tells it both
/// sides hear `ENOBUFS`; over lnet the sender hears that it has left. When the buffers are back the next one
/// arrives.
pub(crate) fn a_pool_whose_buffers_are_held([mut near, far]: [Party; 2], address: &str, is_told: bool) {
    let (held, holds) = mpsc::channel();
    let held = Mutex::new(held);
    let callback = Callback::new(move |_: &TransferMachine, event| held.lock().unwrap().send(event).unwrap());
    let (mut pooled, _pool) = pooled::party(&far, 2, 2, callback, address);
    let send = |near: &mut Party, text: &[u8]| {
        let id = near.send(address, text);
        near.end_of(id).0
    };
    let buffers: Vec<_> = [b"one", b"two"]
        .map(|text| {
            assert_eq!(send(&mut near, text), Ok(()));
            let event = holds.recv().unwrap();
            assert_eq!((event.status, event.payload_bytes()), (Ok(()), text.to_vec()));
            event.into_buffer().unwrap()
        })
        .into();
    pooled.await_state(TmState::Started);
    assert_eq!((pooled.tm.queue_length(QueueType::Receive), pooled.tm.deficit()), (0, 2));
    pooled.tm.stats(QueueType::Receive, true).unwrap();

    let lost = send(&mut near, b"lost");
    assert_eq!(lost, if is_told { Err(Errno::NoBuffers) } else { Ok(()) });
    if is_told {
        assert_eq!(pooled.tm_event(), TmEvent::Error(Errno::NoBuffers));
        assert_eq!(pooled.counts(QueueType::Receive), (0, 0, 0, 1));
    } else {
        // The message may still be under way: on a slow machine it comes when there are buffers again.
        std::thread::sleep(Duration::from_millis(100));
    }
    for buffer in buffers {
        buffer.put_back(None).unwrap();
    }
    assert_eq!((pooled.tm.queue_length(QueueType::Receive), pooled.tm.deficit()), (2, 0));
    assert_eq!(send(&mut near, b"next"), Ok(()));
    let mut event = holds.recv().unwrap();
    if !is_told && event.payload_bytes() == b"lost" {
        event = holds.recv().unwrap();
    }
    assert_eq!((event.status, event.payload_bytes()), (Ok(()), b"next".to_vec()));
    drop(event);
    pooled.end();
    drop(holds);
    near.end();
    far.end();
}

/// Callbacks send what they are told of back while their transfer machine stops.
pub(crate) fn a_stop_while_callbacks_run([near, mut far]: [Party; 2]) {
    let callback = Callback::new(|tm: &TransferMachine, event| {
        let Some(from) = event.end_point.clone().filter(|_| event.is_last()) else { return };
        let length_bytes = event.length_bytes;
        if let Some(buffer) = event.into_buffer() {
            // Refused, once it stops.
            let _ = tm.add(buffer, Operation::Send { to: from, length_bytes });
        }
    });
    for _ in 0..20 {
        let receive = Operation::Receive { min_receive_bytes: 8, max_messages: 1 };
        far.add(far.buffer(&[8]), Addition::from(receive).callback(&callback));
        near.post(8, 8, 1);
        near.send(&far.address(), b"echo");
    }
    far.tm.stop(StopMode::Abort).unwrap();
    while !is_stop(&far.event()) {}
    far.await_state(TmState::Stopped);
    for queue in QueueType::ALL {
        let stats = far.tm.stats(queue, false).unwrap();
        assert_eq!(stats.num_adds, stats.num_s_events + stats.num_f_events, "{queue:?}");
    }
    far.tm.finish().unwrap();
    near.end();
}
