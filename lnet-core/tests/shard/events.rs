//! What events say, field by field (LNet `lib-msg.c: lnet_build_msg_event`).

use lnet_core::event::{Event, EventMd};
use lnet_core::lnd::{Cause, RxId, Status, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_wire::{MessageType, ProcessId};

use crate::common::{
    NI, NOW, Node, ack_header, config, event_md, get_header, get_request, host, nid, origin, put_header,
    put_request, put_sent, reply_header,
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
    let last = event_md(&spec, md);
    // The event has the length of the sink.
    let sent = Event::Send {
        md: EventMd { unlinked: false, ..last },
        message_type: MessageType::Get,
        target: host(2),
        portal: 4,
        match_bits: 5,
        hdr_data: 0,
        length_bytes: 100,
        offset_bytes: 6,
    };
    assert_eq!(node.event(), sent);

    node.arrive(&reply_header(md, 130));
    let (requested_bytes, manipulated_bytes, offset_bytes) = (130, 100, 0);
    let reply = Event::Reply { md: last, origin: origin(), requested_bytes, manipulated_bytes, offset_bytes };
    assert_eq!(node.event(), reply);
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
    let last = event_md(&spec, md);
    assert_eq!(node.event(), put_sent(EventMd { status, unlinked: false, ..last }, host(2)));

    node.arrive(&ack_header(md));
    let ack = Event::Ack { md: last, origin: origin(), match_bits: 5, manipulated_bytes: 77 };
    assert_eq!(node.event(), ack);
}

#[test]
fn a_put_that_no_ni_leads_away() {
    let mut node = Node::new(config());
    let spec = MdSpec { user_ptr: 42, ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    let target = ProcessId::lustre(nid(9, 9));
    node.shard.put(NOW, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    let status = Status::NeverSent(Cause::Unreachable);
    assert_eq!(node.event(), put_sent(EventMd { status, ..event_md(&spec, md) }, target));
}

/// The offset of each message is the one that the message before left.
#[test]
fn a_put_that_is_cut_and_a_get_that_is_answered_or_not() {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::TRUNCATE;
    let spec = MdSpec { threshold: Threshold::Count(4), options, user_ptr: 42, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    let last = event_md(&spec, md);
    let origin = origin();
    let get = |status, manipulated_bytes, offset_bytes| {
        let md = EventMd { status, unlinked: false, ..last };
        Event::Get { md, origin, portal: 4, match_bits: 1, manipulated_bytes, offset_bytes }
    };

    node.arrive(&get_header(1, 30));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.event(), get(Status::Ok, 30, 0));

    let status = Status::NeverSent(Cause::Device);
    node.arrive(&get_header(1, 20));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, status);
    assert_eq!(node.event(), get(status, 20, 30));

    let status = Status::Unknown(Cause::Reset);
    node.shard.header(NOW, NI, &get_header(1, 10).source.nid, RxId(0), &get_header(1, 10));
    node.shard.received(NOW, RxId(0), status);
    assert_eq!(node.event(), get(status, 10, 50));

    node.arrive(&put_header(1, 60));
    let put = Event::Put {
        md: last,
        origin,
        portal: 4,
        match_bits: 1,
        hdr_data: 99,
        requested_bytes: 60,
        manipulated_bytes: 40,
        offset_bytes: 60,
    };
    assert_eq!(node.event(), put);
}
