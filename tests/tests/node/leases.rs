//! Buffers whose payload other threads read: they come home after the last event and the last lease.

use std::sync::mpsc;

use lnet_core::md::{MdOptions, Threshold};
use lnet_tests::netns::{Netns, Wiring};
use lnet_tests::node::{config, descriptor, entry, nid_v4, start};
use lnet_user::memory::Buffer;
use lnet_user::region::LeaseError;

use crate::privileged;

#[test]
fn a_buffer_that_is_read_elsewhere_comes_home_later() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let nid = nid_v4(netns.a().interface(), 0);
    let (_node, mut workers) = start(netns.a(), &config(netns.a(), nid));
    let worker = &mut workers[0];
    let queue = worker.create_event_queue(4).unwrap();
    let md = descriptor(queue, Threshold::Count(1), MdOptions::NONE, 100);
    let bytes: Vec<u8> = (0..100).collect();
    let handle = worker.bind(&md, Buffer::from(bytes.clone())).unwrap();
    let lease = worker.read_lease(handle, 10, 20).unwrap();

    let (go, gone) = mpsc::channel::<()>();
    let waker = worker.waker();
    let reader = std::thread::spawn(move || {
        gone.recv().unwrap();
        let read = lease.to_vec();
        drop(lease);
        waker.wake();
        read
    });
    worker.unlink(handle).unwrap();
    let delivery = worker.poll_event(queue).unwrap();
    assert!(delivery.event.unlinked && delivery.buffer.is_none());
    assert_eq!(worker.payload(handle, 0, 100), bytes);
    assert!(worker.poll_buffer().is_none());
    go.send(()).unwrap();
    let (from, buffer) = loop {
        worker.wait(None).unwrap();
        if let Some(home) = worker.poll_buffer() {
            break home;
        }
    };
    assert_eq!((from, &*buffer), (handle, &bytes[..]));
    assert_eq!(reader.join().unwrap(), bytes[10..30]);
    assert!(worker.poll_buffer().is_none());

    // Without leases it comes with the event, as ever.
    let handle = worker.bind(&md, buffer).unwrap();
    worker.unlink(handle).unwrap();
    assert_eq!(worker.poll_event(queue).unwrap().buffer, Some(Buffer::from(bytes)));
}

#[test]
fn a_buffer_that_peers_write_where_they_like_is_read_by_nobody_else() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let nid = nid_v4(netns.a().interface(), 0);
    let (_node, mut workers) = start(netns.a(), &config(netns.a(), nid));
    let worker = &mut workers[0];
    let queue = worker.create_event_queue(4).unwrap();
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let md = descriptor(queue, Threshold::Count(1), options, 100);
    let (_entry, handle) = worker.attach(&entry(1), &md, Buffer::zeroed(100)).unwrap();
    assert_eq!(worker.read_lease(handle, 0, 1).unwrap_err(), LeaseError::PeersChoose);
}
