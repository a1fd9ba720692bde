//! Payload that other threads read while messages go on arriving.

use std::sync::mpsc;

use lnet_core::event::EventKind::{Put, Reply, Send};
use lnet_core::md::MdOptions;
use lnet_core::portal::EntrySpec;
use lnet_user::LeaseError;

use crate::common::{PINNED, Shards, kinds, pattern};

#[test]
fn a_buffer_that_is_read_elsewhere_comes_home_later() {
    for from in [0, 1] {
        let mut shards = Shards::new(2);
        let bytes = pattern(1, 100);
        shards.post(0, &EntrySpec::new(PINNED[0], 1), 250, 3, MdOptions::PUT | MdOptions::TRUNCATE);
        let md = shards.bind(from, bytes.clone(), 3);
        let mut leases = Vec::new();
        for _ in 0..3 {
            shards.put(from, md, PINNED[0], 1, false);
            let put = shards.events(0).into_iter().find(|delivery| delivery.event.kind() == Put).unwrap();
            assert!(put.buffer.is_none(), "leases are out, or it is not the last one");
            leases.push(shards.workers[0].read_lease(&put).unwrap());
        }
        shards.events(1);
        let worker = &mut shards.workers[0];
        assert!(worker.poll_buffer().is_none());
        let (go, gone) = mpsc::channel::<()>();
        let waker = worker.waker();
        let reader = std::thread::spawn(move || {
            gone.recv().unwrap();
            let read: Vec<Vec<u8>> = leases.iter().map(|lease| lease.to_vec()).collect();
            drop(leases);
            waker.wake();
            read
        });
        go.send(()).unwrap();
        let (_, buffer) = loop {
            worker.wait(None).unwrap();
            if let Some(home) = worker.poll_buffer() {
                break home;
            }
        };
        assert_eq!(reader.join().unwrap(), [&bytes[..], &bytes, &bytes[..50]]);
        assert_eq!(*buffer, [&bytes[..], &bytes, &bytes[..50]].concat());
        shards.assert_idle();
    }
}

/// Whatever messages come, none is written to bytes that are being read: of a descriptor that may be written
/// to again nothing is lent.
#[test]
fn what_may_be_written_again_is_read_by_nobody_else() {
    let mut shards = Shards::new(2);
    shards.post(1, &EntrySpec::new(PINNED[1], 1), 10, 5, MdOptions::GET | MdOptions::MANAGE_REMOTE);
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let (_, chosen) = shards.post(0, &EntrySpec::new(PINNED[0], 1), 10, 5, options);
    let md = shards.bind(0, vec![1; 10], 9);
    shards.put(0, md, PINNED[0], 1, false);
    shards.get(0, md, PINNED[1], 1);
    let events = shards.events(0);
    assert_eq!(kinds(&events), [Put, Send, Send, Reply]);
    let refusals = events.iter().map(|delivery| shards.workers[0].read_lease(delivery).unwrap_err());
    let refusals: Vec<LeaseError> = refusals.collect();
    let [again, none] = [LeaseError::PeersChoose, LeaseError::NoPayload];
    assert_eq!(refusals, [again, none, none, again]);
    // More of the same: nothing is in the way of these messages.
    shards.put(0, md, PINNED[0], 1, false);
    shards.get(0, md, PINNED[1], 1);
    assert_eq!(shards.events(0).len(), 4);

    shards.workers[0].unlink(md).unwrap();
    shards.workers[0].unlink(chosen).unwrap();
    let buffers = shards.events(0).into_iter().map(|delivery| delivery.buffer.unwrap().to_vec());
    assert_eq!(buffers.collect::<Vec<_>>(), [[0; 10]; 2].map(Vec::from), "zeros of the REPLY were put");
    let refused = shards.workers[0].read_lease(&events[0]).unwrap_err();
    assert_eq!(refused, LeaseError::Home);
}

/// The lessee may return the lease, and wake the shard, before that sleeps: it does not sleep then.
#[test]
fn a_buffer_that_is_home_lets_nobody_sleep() {
    let mut shards = Shards::new(1);
    shards.post(0, &EntrySpec::new(PINNED[0], 1), 200, 2, MdOptions::PUT);
    let md = shards.bind(0, pattern(1, 100), 2);
    shards.put(0, md, PINNED[0], 1, false);
    let first = shards.events(0).into_iter().find(|delivery| delivery.event.kind() == Put).unwrap();
    let lease = shards.workers[0].read_lease(&first).unwrap();
    shards.put(0, md, PINNED[0], 1, false);
    assert!(
        shards.events(0).iter().all(|delivery| delivery.event.kind() != Put || delivery.buffer.is_none())
    );
    drop(lease);
    shards.workers[0].wait(None).unwrap();
    assert!(shards.workers[0].poll_buffer().is_some());
    shards.assert_idle();
}
