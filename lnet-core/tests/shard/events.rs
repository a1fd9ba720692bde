//! What events say, field by field (LNet `lib-msg.c: lnet_build_msg_event`).

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{Cause, RxId, Status, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_wire::{MessageType, ProcessId};

use crate::common::{
    NI, NOW, Node, ack_header, arrived, config, get_header, get_request, nid, put_header, put_request,
    reply_header, sent,
};

#[test]
fn a_get_and_its_reply() {
    let mut node = Node::new(config());
    let options = MdOptions::TRUNCATE;
    let spec = MdSpec { threshold: Threshold::Count(2), options, user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.event(), Event { unlinked: false, ..sent(MessageType::Get, &spec, md) });

    node.arrive(&reply_header(md, 130));
    let reply = arrived(EventKind::Reply, MessageType::Reply, &spec, md);
    assert_eq!(node.event(), Event { requested_bytes: 130, manipulated_bytes: 100, ..reply });
}

#[test]
fn an_acknowledged_put_that_fails() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(2), user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, 2) }).unwrap();
    let transmit = node.transmit().unwrap();
    let status = Status::Unknown(Cause::Timeout);
    node.shard.sent(NOW, transmit.tx, status);
    let put = Event { status, unlinked: false, hdr_data: 7, ..sent(MessageType::Put, &spec, md) };
    assert_eq!(node.event(), Event { requested_bytes: 100, manipulated_bytes: 100, ..put });

    node.arrive(&ack_header(md));
    let ack = arrived(EventKind::Ack, MessageType::Ack, &spec, md);
    assert_eq!(node.event(), Event { match_bits: 5, manipulated_bytes: 77, ..ack });
}

#[test]
fn a_put_that_no_interface_leads_away() {
    let mut node = Node::new(config());
    let spec = MdSpec { user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    let target = ProcessId::lustre(nid(9, 9));
    node.shard.put(NOW, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    let put = Event { target, hdr_data: 7, ..sent(MessageType::Put, &spec, md) };
    let status = Status::NeverSent(Cause::Unreachable);
    assert_eq!(node.event(), Event { status, requested_bytes: 100, manipulated_bytes: 100, ..put });
}

/// At the offset that the one before left.
#[test]
fn a_put_that_is_cut_and_a_get_that_is_answered_or_not() {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::TRUNCATE;
    let spec = MdSpec { threshold: Threshold::Count(4), options, user_ptr: 42, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    let common = |kind, message_type| {
        let event = arrived(kind, message_type, &spec, md);
        Event { unlinked: false, portal: 4, match_bits: 1, ..event }
    };
    let get = common(EventKind::Get, MessageType::Get);

    node.arrive(&get_header(1, 30));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.event(), Event { manipulated_bytes: 30, ..get });

    let status = Status::NeverSent(Cause::Device);
    node.arrive(&get_header(1, 20));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, status);
    assert_eq!(node.event(), Event { status, manipulated_bytes: 20, offset_bytes: 30, ..get });

    let status = Status::Unknown(Cause::Reset);
    node.shard.header(NOW, NI, RxId(0), &get_header(1, 10));
    node.shard.received(NOW, RxId(0), status);
    assert_eq!(node.event(), Event { status, manipulated_bytes: 10, offset_bytes: 50, ..get });

    node.arrive(&put_header(1, 60));
    let put = Event { unlinked: true, hdr_data: 99, ..common(EventKind::Put, MessageType::Put) };
    assert_eq!(node.event(), Event { requested_bytes: 60, manipulated_bytes: 40, offset_bytes: 60, ..put });
}
