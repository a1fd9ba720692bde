//! Descriptors of one transport that are given to another one. A program of its own: rpc has one server a
//! process.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Party;
use lnet_messaging::transport::Transport;
use lnet_messaging::{BulkDescriptor, Errno, LnetTransport, MemTransport, Operation, RpcTransport};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Lnet, NodeConfig};

const BYTES: usize = 8;

/// How reading with a descriptor ends: at once, or by an event.
fn read(party: &mut Party, from: &BulkDescriptor) -> Result<Vec<u8>, Errno> {
    match party.tm.add(party.buffer(&[BYTES]), Operation::ActiveReceive { from: from.clone() }) {
        Err(refused) => Err(refused.error.errno()),
        Ok(added) => {
            let event = party.buffer_event();
            assert_eq!((event.id, event.is_last()), (added.id, true));
            event.status.map(|()| event.payload_bytes())
        }
    }
}

#[test]
fn a_descriptor_serves_its_own_transport_alone() {
    let lnet =
        Lnet::start_on(&NodeConfig::loopback(), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    let transports: [(Arc<dyn Transport>, [&str; 2]); 3] = [
        (LnetTransport::with_event_slots(&lnet, 64).shared(), ["0@lo:12345:34:1", "0@lo:12345:34:2"]),
        (MemTransport::default().shared(), ["127.0.0.1:1", "127.0.0.1:2"]),
        (RpcTransport::default().shared(), ["127.9.9.1:17777:1", "127.9.9.1:17777:2"]),
    ];
    let mut pairs = transports
        .each_ref()
        .map(|(transport, addresses)| addresses.map(|address| Party::started(transport, address)));
    for of in 0..3 {
        for used_by in 0..3 {
            let far = &pairs[of][1];
            let send = Operation::PassiveSend { initiator: None, length_bytes: BYTES as u64 };
            let passive = far.tm.add(far.filled(&[of as u8; BYTES]), send).unwrap();
            let from = passive.descriptor.unwrap();
            let read = read(&mut pairs[used_by][0], &from);
            let expected = if of == used_by { Ok(vec![of as u8; BYTES]) } else { Err(Errno::Invalid) };
            assert_eq!(read, expected, "a descriptor of {of}, used by {used_by}");
            let far = &mut pairs[of][1];
            if of != used_by {
                assert!(far.tm.queued(passive.id).is_some() && far.tm.del(passive.id));
            }
            let status = if of == used_by { Ok(()) } else { Err(Errno::Canceled) };
            assert_eq!(far.end_of(passive.id).0, status);
        }
    }
    pairs.into_iter().flatten().for_each(Party::end);
}
