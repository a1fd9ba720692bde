//! Two processes: messages, and bulk data both ways (LN-24).

use std::collections::BTreeMap;

use lnet_messaging::{BulkDescriptor, Operation, QueueType};
use lnet_tests::netns::{Netns, Wiring};

use crate::common::Party;
use crate::killed::{Life, child};
use crate::nets::{Carrier, address, config_of, privileged, start, transport};
use crate::scenarios::pattern;

const DESCRIPTOR_BYTES: usize = 48;
const MESSAGE_BYTES: usize = 2 * DESCRIPTOR_BYTES;
const BULK_BYTES_MAX: usize = 1 << 20;

/// The other process: it reads one buffer, writes its bytes to another one, and sends the message back that
/// named both. There is nothing to it in the tests' own process.
#[test]
fn child_that_answers() {
    let Some((_lnet, mut party, to)) = child() else { return };
    let message = |party: &Party| party.post(MESSAGE_BYTES, MESSAGE_BYTES as u64, 1);
    message(&party);
    let hello = party.send(&to, b"hello");
    assert_eq!(party.end_of(hello).0, Ok(()));
    loop {
        let event = party.buffer_event();
        if event.queue() == QueueType::Send {
            // The other process may be quicker with the next message than this one with the end of its
            // answer.
            assert_eq!((event.status, event.is_last()), (Ok(()), true));
            continue;
        }
        assert_eq!((event.queue(), event.status), (QueueType::Receive, Ok(())));
        let named = event.payload_bytes();
        drop(event);
        message(&party);
        let [from, to_there] = [0, 1].map(|at| &named[at * DESCRIPTOR_BYTES..][..DESCRIPTOR_BYTES]);
        let from = BulkDescriptor::from_bytes(from);
        party.add(party.buffer(&[BULK_BYTES_MAX]), Operation::ActiveReceive { from });
        let event = party.buffer_event_of(QueueType::ActiveReceive);
        let length_bytes = event.length_bytes;
        assert_eq!(event.status, Ok(()));
        let to_there = BulkDescriptor::from_bytes(to_there);
        let write = Operation::ActiveSend { to: to_there, length_bytes };
        party.add(event.into_buffer().unwrap(), write);
        assert_eq!(party.buffer_event_of(QueueType::ActiveSend).status, Ok(()));
        party.send(&to, &named);
    }
}

/// Sends a message that names two buffers; what became of all that is queued for that.
fn exchange(party: &mut Party, far: &str, bytes: &[u8]) {
    let length_bytes = bytes.len() as u64;
    let send = Operation::PassiveSend { initiator: None, length_bytes };
    let source = party.tm.add(party.filled(bytes), send).unwrap();
    let target =
        party.tm.add(party.buffer(&[bytes.len()]), Operation::PassiveReceive { initiator: None }).unwrap();
    let named = [source.descriptor.unwrap(), target.descriptor.unwrap()];
    let named = named.each_ref().map(BulkDescriptor::as_bytes).concat();
    party.post(MESSAGE_BYTES, MESSAGE_BYTES as u64, 1);
    party.send(far, &named);
    let mut expected = BTreeMap::from([
        (QueueType::Send, None),
        (QueueType::PassiveSend, None),
        (QueueType::PassiveReceive, Some(bytes)),
        (QueueType::Receive, Some(&named[..])),
    ]);
    while !expected.is_empty() {
        let event = party.buffer_event();
        assert!(event.status.is_ok() && event.is_last(), "{event:?}");
        if let Some(bytes) = expected.remove(&event.queue()).unwrap() {
            assert!(event.payload_bytes() == bytes, "{event:?}");
        }
        if event.queue() == QueueType::Receive {
            assert_eq!(event.end_point.as_ref().unwrap().address(), far);
        }
    }
}

fn two_processes(carrier: Carrier) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let lnet = start(netns.a(), &config_of(netns.a(), carrier));
    let [own, far] = [netns.a(), netns.b()].map(|namespace| address(namespace, carrier, 7));
    let mut party = Party::started(&transport(&lnet).shared(), &own);
    party.post(MESSAGE_BYTES, MESSAGE_BYTES as u64, 1);
    let _child = Life::start(netns.b(), "processes::child_that_answers", &format!("{carrier:?} {far} {own}"));
    let event = party.buffer_event();
    assert_eq!((event.status, event.payload_bytes()), (Ok(()), b"hello".to_vec()));
    drop(event);
    for length in [1, 4096, 100_001, BULK_BYTES_MAX] {
        exchange(&mut party, &far, &pattern(length));
    }
    party.end();
}

#[test]
fn ln_24_two_processes_with_rings() {
    two_processes(Carrier::Rings);
}

#[test]
fn ln_24_two_processes_with_sockets() {
    two_processes(Carrier::Sockets);
}

#[test]
fn ln_24_two_processes_with_tcp() {
    two_processes(Carrier::Tcp);
}
