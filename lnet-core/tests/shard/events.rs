//! What events say, field by field (LNet `lib-msg.c: lnet_build_msg_event`).

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{Cause, RxId, Status, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_wire::{MessageType, ProcessId};

use crate::common::{
    ANYONE, NI, NOW, Node, PID, ack_header, config, get_header, get_request, host, nid, put_header,
    put_request, reply_header,
};

/// The event of a message that host 2 sent here, of 100 bytes of a descriptor with such options.
fn arrived(kind: EventKind, message_type: MessageType, spec: &MdSpec, event: &Event) -> Event {
    Event {
        kind,
        status: Status::Ok,
        unlinked: true,
        // Which one it is, is looked at where it is made.
        md: event.md,
        user_ptr: 42,
        options: spec.options,
        message_type: Some(message_type),
        target: host(1),
        initiator: host(2),
        source: host(2),
        sender: nid(1, 2),
        portal: 0,
        match_bits: 0,
        hdr_data: 0,
        requested_bytes: 0,
        manipulated_bytes: 0,
        offset_bytes: 0,
    }
}

/// The event of a request to host 2 from portal 4, match bits 5, offset 6.
fn sent(message_type: MessageType, spec: &MdSpec, event: &Event) -> Event {
    let own = ProcessId { pid: PID, ..ANYONE };
    Event {
        target: host(2),
        initiator: own,
        source: own,
        sender: ANYONE.nid,
        portal: 4,
        match_bits: 5,
        offset_bytes: 6,
        ..arrived(EventKind::Send, message_type, spec, event)
    }
}

#[test]
fn a_get_and_its_reply() {
    let mut node = Node::new(config());
    let options = MdOptions::TRUNCATE;
    let spec = MdSpec { threshold: Threshold::Count(2), options, user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    let event = node.event();
    assert_eq!(event, Event { md, unlinked: false, ..sent(MessageType::Get, &spec, &event) });

    node.arrive(&reply_header(md, 130));
    let event = node.event();
    let reply = arrived(EventKind::Reply, MessageType::Reply, &spec, &event);
    assert_eq!(event, Event { md, requested_bytes: 130, manipulated_bytes: 100, ..reply });
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
    let event = node.event();
    let put = Event { status, unlinked: false, hdr_data: 7, ..sent(MessageType::Put, &spec, &event) };
    assert_eq!(event, Event { md, requested_bytes: 100, manipulated_bytes: 100, ..put });

    node.arrive(&ack_header(md));
    let event = node.event();
    let ack = arrived(EventKind::Ack, MessageType::Ack, &spec, &event);
    assert_eq!(event, Event { md, match_bits: 5, manipulated_bytes: 77, ..ack });
}

#[test]
fn a_put_that_no_interface_leads_away() {
    let mut node = Node::new(config());
    let spec = MdSpec { user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    let target = ProcessId::lustre(nid(9, 9));
    node.shard.put(NOW, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    let event = node.event();
    let put = Event { target, hdr_data: 7, ..sent(MessageType::Put, &spec, &event) };
    let status = Status::NeverSent(Cause::Unreachable);
    assert_eq!(event, Event { md, status, requested_bytes: 100, manipulated_bytes: 100, ..put });
}

/// At the offset that the one before left.
#[test]
fn a_put_that_is_cut_and_a_get_that_is_answered_or_not() {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::TRUNCATE;
    let spec = MdSpec { threshold: Threshold::Count(4), options, user_ptr: 42, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    let common = |kind, message_type, event: &Event| {
        let event = arrived(kind, message_type, &spec, event);
        Event { md, unlinked: false, portal: 4, match_bits: 1, ..event }
    };
    let get = |event: &Event| common(EventKind::Get, MessageType::Get, event);

    node.arrive(&get_header(1, 30));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    let event = node.event();
    assert_eq!(event, Event { manipulated_bytes: 30, ..get(&event) });

    let status = Status::NeverSent(Cause::Device);
    node.arrive(&get_header(1, 20));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, status);
    let event = node.event();
    assert_eq!(event, Event { status, manipulated_bytes: 20, offset_bytes: 30, ..get(&event) });

    let status = Status::Unknown(Cause::Reset);
    node.shard.header(NOW, NI, RxId(0), &get_header(1, 10));
    node.shard.received(NOW, RxId(0), status);
    let event = node.event();
    assert_eq!(event, Event { status, manipulated_bytes: 10, offset_bytes: 50, ..get(&event) });

    node.arrive(&put_header(1, 60));
    let event = node.event();
    let put = Event { unlinked: true, hdr_data: 99, ..common(EventKind::Put, MessageType::Put, &event) };
    assert_eq!(event, Event { requested_bytes: 60, manipulated_bytes: 40, offset_bytes: 60, ..put });
}
