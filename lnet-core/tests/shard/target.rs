//! PUT and GET at the target.

use lnet_core::event::{Event, EventKind, EventMd};
use lnet_core::lnd::{Cause, RxId, Span, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::stats::Traffic;
use lnet_wire::{Body, Header};

use crate::common::{
    FOREIGN, NI, NOW, Node, acked_put_header, config, event_md, get_header, get_request, host, nid, origin,
    put_header, reply_header,
};

#[test]
fn a_put_is_delivered_and_reported() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, user_ptr: 42, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    let verdict = node.shard.header(NOW, NI, &put_header(1, 60).source.nid, RxId(3), &put_header(1, 60));
    assert_eq!(verdict, Verdict::Deliver(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 60 }));
    assert!(node.events().is_empty(), "nothing is reported before the payload is in place");
    node.shard.received(NOW, RxId(3), Status::Ok);
    let put = Event::Put {
        md: event_md(&spec, md),
        origin: origin(),
        portal: 4,
        match_bits: 1,
        hdr_data: 99,
        requested_bytes: 60,
        manipulated_bytes: 60,
        offset_bytes: 0,
    };
    assert_eq!(node.event(), put);
    assert!(node.transmit().is_none(), "no ACK was asked for");
    assert_eq!(node.shard.counters().received, Traffic { messages: 1, bytes: 60 });
    assert_eq!(node.shard.usage().memory_descs, 0);
}

#[test]
fn an_ack_goes_back_after_the_event() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT | MdOptions::TRUNCATE, ..node.md(40) };
    node.post(1, &spec);
    node.shard.header(NOW, NI, &acked_put_header(1, 60).source.nid, RxId(3), &acked_put_header(1, 60));
    assert!(node.transmit().is_none(), "the payload is not in place yet");
    node.shard.received(NOW, RxId(3), Status::Ok);
    assert_eq!(node.event().manipulated_bytes(), 40);
    let transmit = node.transmit().unwrap();
    let body = Body::Ack { md: FOREIGN, match_bits: 1, manipulated_length: 40 };
    let header = Header { destination: host(2), source: host(1), payload_length: 0, body };
    assert_eq!(
        transmit,
        Transmit {
            tx: transmit.tx,
            ni: NI,
            next_hop: header.destination.nid,
            peer: transmit.peer,
            header,
            payload: None
        }
    );
    assert_eq!(node.shard.ni_credits(NI), Some(7), "responses take credits too");
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    assert_eq!(node.shard.ni_credits(NI), Some(8));
    assert!(node.events().is_empty(), "an ACK makes no event at its sender");
    assert_eq!(node.shard.counters().sent, Traffic { messages: 1, bytes: 0 });
}

/// The payload goes nowhere; all else is as if it were there.
#[test]
fn a_descriptor_may_discard_what_comes_in() {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::TRUNCATE | MdOptions::DISCARD;
    let spec = MdSpec { options, threshold: Threshold::Count(3), ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    let nowhere = |offset_bytes| Verdict::Deliver(Span { buffer: md.into(), offset_bytes, length_bytes: 0 });
    for (offset_bytes, length_bytes) in [(0, 60), (60, 40)] {
        assert_eq!(
            node.shard.header(
                NOW,
                NI,
                &acked_put_header(1, 60).source.nid,
                RxId(3),
                &acked_put_header(1, 60)
            ),
            nowhere(offset_bytes)
        );
        node.shard.received(NOW, RxId(3), Status::Ok);
        let Event::Put { requested_bytes, manipulated_bytes, offset_bytes: offset, .. } = node.event() else {
            panic!("no PUT")
        };
        assert_eq!((requested_bytes, manipulated_bytes, offset), (60, length_bytes, offset_bytes));
        let ack = node.transmit().unwrap();
        let body = Body::Ack { md: FOREIGN, match_bits: 1, manipulated_length: length_bytes };
        assert_eq!(ack.header.body, body);
        node.shard.sent(NOW, ack.tx, Status::Ok);
    }
    assert_eq!(node.shard.counters().received, Traffic { messages: 2, bytes: 100 });

    // What goes out is not discarded.
    let (_, md) = node.post(2, &spec);
    node.arrive(&get_header(2, 30));
    let reply = node.transmit().unwrap();
    assert_eq!(reply.payload, Some(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 30 }));

    // The receiver of a REPLY is its initiator.
    let spec = MdSpec { options: MdOptions::DISCARD, threshold: Threshold::Count(2), ..node.md(8) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let nowhere = Verdict::Deliver(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 0 });
    assert_eq!(
        node.shard.header(NOW, NI, &reply_header(md, 8).source.nid, RxId(3), &reply_header(md, 8)),
        nowhere
    );
    node.shard.received(NOW, RxId(3), Status::Ok);
    assert_eq!(node.event().manipulated_bytes(), 8);
}

#[test]
fn no_ack_where_it_is_disabled_or_the_payload_is_lost() {
    let mut node = Node::new(config());
    let disabled = MdSpec { options: MdOptions::PUT | MdOptions::ACK_DISABLE, ..node.md(40) };
    node.post(1, &disabled);
    node.arrive(&acked_put_header(1, 4));
    assert_eq!(node.event().status(), Status::Ok);
    assert!(node.transmit().is_none());

    node.post(1, &MdSpec { options: MdOptions::PUT, ..disabled });
    node.shard.header(NOW, NI, &acked_put_header(1, 4).source.nid, RxId(3), &acked_put_header(1, 4));
    node.shard.received(NOW, RxId(3), Status::Unknown(Cause::Device));
    assert_eq!(node.event().status(), Status::Unknown(Cause::Device));
    assert!(node.transmit().is_none());
    assert_eq!(node.shard.counters().receive_failures, 1);
    assert_eq!(node.shard.counters().received.messages, 1);
}

#[test]
fn an_unlinked_descriptor_reports_a_timeout_and_acknowledges_nothing() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(3), ..node.md(40) };
    let (me, md) = node.post(1, &spec);
    node.shard.header(NOW, NI, &acked_put_header(1, 4).source.nid, RxId(3), &acked_put_header(1, 4));
    node.shard.header(NOW, NI, &acked_put_header(1, 4).source.nid, RxId(4), &acked_put_header(1, 4));
    assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Pending));
    assert_eq!(node.arrive(&acked_put_header(1, 4)), Verdict::Drop);
    node.shard.received(NOW, RxId(4), Status::Ok);
    node.shard.received(NOW, RxId(3), Status::Unknown(Cause::Device));
    let events = node.events();
    assert_eq!(
        events.iter().map(|event| (event.md(), event.status(), event.unlinked())).collect::<Vec<_>>(),
        [(md, Status::Unknown(Cause::Timeout), false), (md, Status::Unknown(Cause::Device), true)]
    );
    assert!(node.transmit().is_none());
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(4));
}

#[test]
fn a_get_whose_descriptor_is_unlinked_before_the_answer_gets_none() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::GET, ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    assert!(matches!(
        node.shard.header(NOW, NI, &get_header(1, 30).source.nid, RxId(0), &get_header(1, 30)),
        Verdict::Deliver(_)
    ));
    assert_eq!(node.shard.unlink(md), Ok(Unlinked::Pending));
    node.shard.received(NOW, RxId(0), Status::Ok);
    assert!(node.transmit().is_none(), "its bytes are its owner's again");
    let event = node.event();
    assert_eq!((event.status(), event.unlinked()), (Status::NeverSent(Cause::Cancelled), true));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(4));
}

#[test]
fn a_get_is_answered_and_reported_when_the_reply_is_out() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::GET, threshold: Threshold::Count(2), ..node.md(100) };
    let (_, md) = node.post(1, &spec);
    for (offset_bytes, last) in [(0, false), (30, true)] {
        let nothing = Span { buffer: md.into(), offset_bytes, length_bytes: 0 };
        assert_eq!(node.arrive(&get_header(1, 30)), Verdict::Deliver(nothing));
        assert!(node.events().is_empty());
        let transmit = node.transmit().unwrap();
        let body = Body::Reply { md: FOREIGN };
        let header = Header { destination: host(2), source: host(1), payload_length: 30, body };
        let payload = Some(Span { buffer: md.into(), offset_bytes, length_bytes: 30 });
        assert_eq!(
            transmit,
            Transmit {
                tx: transmit.tx,
                ni: NI,
                next_hop: header.destination.nid,
                peer: transmit.peer,
                header,
                payload
            }
        );
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        let manipulated_bytes = 30;
        let md = EventMd { unlinked: last, ..event_md(&spec, md) };
        let origin = origin();
        let get = Event::Get { md, origin, portal: 4, match_bits: 1, manipulated_bytes, offset_bytes };
        assert_eq!(node.event(), get);
    }
    assert_eq!(node.shard.counters().sent, Traffic { messages: 2, bytes: 60 });
    assert_eq!(node.shard.counters().received, Traffic { messages: 2, bytes: 0 });
}

#[test]
fn an_empty_reply_has_no_payload() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::GET | MdOptions::TRUNCATE, ..node.md(0) };
    node.post(1, &spec);
    node.arrive(&get_header(1, 30));
    let transmit = node.transmit().unwrap();
    assert_eq!((transmit.header.payload_length, transmit.payload), (0, None));
}

#[test]
fn a_get_whose_reply_fails_is_reported_so() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::GET, ..node.md(100) };
    node.post(1, &spec);
    node.arrive(&get_header(1, 30));
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::NeverSent(Cause::Device));
    let event = node.event();
    assert_eq!((event.kind(), event.status()), (EventKind::Get, Status::NeverSent(Cause::Device)));

    node.post(1, &spec);
    node.shard.header(NOW, NI, &get_header(1, 30).source.nid, RxId(3), &get_header(1, 30));
    node.shard.received(NOW, RxId(3), Status::Unknown(Cause::Device));
    assert_eq!(node.event().status(), Status::Unknown(Cause::Device));
    assert!(node.transmit().is_none(), "what did not arrive is not answered");
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(4));
}

#[test]
#[should_panic(expected = "uses RxId(3) twice")]
fn an_lnd_that_uses_a_receive_twice_is_caught() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(2), ..node.md(100) };
    node.post(1, &spec);
    node.shard.header(NOW, NI, &put_header(1, 6).source.nid, RxId(3), &put_header(1, 6));
    node.shard.header(NOW, NI, &put_header(1, 6).source.nid, RxId(3), &put_header(1, 6));
}

#[test]
#[should_panic(expected = "beyond the limits")]
fn a_receive_beyond_the_limits_is_caught() {
    Node::new(config()).shard.header(NOW, NI, &put_header(1, 6).source.nid, RxId(16), &put_header(1, 6));
}

#[test]
#[should_panic(expected = "no message arrives as RxId(3)")]
fn the_end_of_an_unknown_receive_is_caught() {
    Node::new(config()).shard.received(NOW, RxId(3), Status::Ok);
}
