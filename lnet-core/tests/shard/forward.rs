//! Messages of other nodes that are sent on.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, ShardId};
use lnet_core::lnd::{Cause, NiId, Span, Status, Uplink};
use lnet_core::shard::{ForwardError, ForwardRequest, Forwarded};
use lnet_core::topology::{LocalNi, Topology};
use lnet_wire::{Header, Nid};

use crate::common::{MESSAGE_TIMEOUT, NI, NOW, Node, config, host, local_ni, nid, put_header, put_request};

fn buffer(slot: u32) -> BufferHandle {
    BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), slot, 1))
}

/// A message from host 2 to host 9 of another net, by the router that is host 3.
fn request(slot: u32) -> ForwardRequest {
    let mut header: Header = put_header(1, 8);
    (header.source, header.destination.nid) = (host(2), nid(2, 9));
    ForwardRequest { ni: NI, next_hop: nid(1, 3), header, buffer: buffer(slot), offset_bytes: 16 }
}

#[test]
fn a_forwarded_message_keeps_its_header_and_gives_its_buffer_back_once() {
    let mut node = Node::new(config());
    node.shard.forward(NOW, &request(5)).unwrap();
    let sent = node.transmit().unwrap();
    assert_eq!((sent.next_hop, sent.header), (nid(1, 3), request(5).header));
    assert_eq!(sent.payload, Some(Span { buffer: buffer(5).into(), offset_bytes: 16, length_bytes: 8 }));
    assert_eq!(node.shard.ni_credits(NI), Some(7));
    assert_eq!(node.shard.peer_credits(&nid(1, 3)), Some(3), "its credit is that of the next hop");
    assert_eq!(node.shard.poll_forwarded(), None);
    node.shard.sent(NOW, sent.tx, Status::Ok);
    assert_eq!(node.shard.poll_forwarded(), Some(Forwarded { buffer: buffer(5), status: Status::Ok }));
    assert_eq!(node.shard.poll_forwarded(), None);
    assert_eq!(node.shard.ni_credits(NI), Some(8));
    assert!(node.events().is_empty());
    assert_eq!(node.shard.usage().messages, 0);
    let counted = node.shard.counters();
    assert_eq!((counted.routed.messages, counted.routed.bytes, counted.sent.messages), (1, 8, 0));
}

#[test]
fn as_many_are_sent_on_as_the_limits_say_and_the_nodes_own_have_their_room() {
    let mut node = Node::new(config());
    for slot in 0..2 {
        node.shard.forward(NOW, &request(slot)).unwrap();
    }
    assert_eq!(node.shard.forward(NOW, &request(2)), Err(ForwardError::Full));
    let sent = node.transmit().unwrap();
    let failed = Status::Unknown(Cause::Timeout);
    node.shard.sent(NOW, sent.tx, failed);
    assert_eq!(node.shard.forward(NOW, &request(2)), Err(ForwardError::Full), "its end has not been polled");
    assert_eq!(node.shard.poll_forwarded(), Some(Forwarded { buffer: buffer(0), status: failed }));
    assert_eq!(node.shard.forward(NOW, &request(2)), Ok(()));
}

#[test]
fn one_that_has_ended_passes_no_credit_on_before_it_is_polled() {
    let mut node = Node::new(config());
    node.shard.forward(NOW, &request(5)).unwrap();
    let ended = node.transmit().unwrap().tx;
    node.shard.sent(NOW, ended, Status::Ok);
    for peer in [4, 4, 4, 4, 5, 5, 5, 5, 6] {
        let md = node.shard.bind(&node.md(1)).unwrap();
        node.shard.put(NOW, &put_request(md, peer)).unwrap();
    }
    let sent: Vec<_> = std::iter::from_fn(|| node.transmit()).map(|sent| sent.tx).collect();
    assert_eq!(sent.len(), 8);
    let later = NOW + Duration::from_secs(1);
    node.shard.handle_timeout(later);
    assert_eq!(node.shard.counters().credits_passed_on, 1);
    let last = node.transmit().unwrap().tx;
    assert_eq!(node.shard.ni_credits(NI), Some(-1), "nine are in flight");
    sent.into_iter().chain([last]).for_each(|tx| node.shard.sent(later, tx, Status::Ok));
    assert_eq!(node.shard.ni_credits(NI), Some(8));
    assert_eq!(node.shard.poll_forwarded(), Some(Forwarded { buffer: buffer(5), status: Status::Ok }));
}

#[test]
#[should_panic(expected = "the LND does not have the message")]
fn one_that_has_ended_ends_no_second_time() {
    let mut node = Node::new(config());
    node.shard.forward(NOW, &request(5)).unwrap();
    let sent = node.transmit().unwrap().tx;
    (0..2).for_each(|_| node.shard.sent(NOW, sent, Status::Ok));
}

#[test]
fn an_ni_of_another_net_or_none_is_refused() {
    let mut node = Node::new(config());
    let elsewhere = ForwardRequest { next_hop: nid(2, 9), ..request(0) };
    let refused = ForwardError::Unreachable(NI, nid(2, 9));
    assert_eq!(node.shard.forward(NOW, &elsewhere), Err(refused));
    assert_eq!(refused.to_string(), format!("NI 0 does not serve the net of next hop {}", nid(2, 9)));
    let absent = ForwardRequest { ni: NiId(1), ..request(0) };
    assert_eq!(node.shard.forward(NOW, &absent), Err(ForwardError::Unreachable(NiId(1), nid(1, 3))));
    assert_eq!(node.shard.usage().messages, 0);
}

#[test]
fn a_next_hop_that_is_this_node_is_refused() {
    let nis = vec![LocalNi::loopback(MESSAGE_TIMEOUT), local_ni(nid(1, 1), 8, 4)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    for (ni, next_hop) in [(NiId(0), Nid::LO), (NiId(0), nid(1, 1)), (NiId(1), nid(1, 1))] {
        let refused = ForwardError::Local(next_hop);
        assert_eq!(node.shard.forward(NOW, &ForwardRequest { ni, next_hop, ..request(0) }), Err(refused));
        assert_eq!(refused.to_string(), format!("next hop {next_hop} is this node: another one is expected"));
    }
    assert_eq!(node.shard.usage().messages, 0);
}

#[test]
fn one_that_waits_too_long_for_a_credit_ends_with_its_buffer() {
    let mut config = config();
    config.limits.forwards = 5;
    let mut node = Node::new(config);
    for slot in 0..5 {
        node.shard.forward(NOW, &request(slot)).unwrap();
    }
    let deadline = node.shard.poll_timeout().unwrap();
    node.shard.handle_timeout(deadline);
    let status = Status::NeverSent(Cause::CreditTimeout);
    assert_eq!(node.shard.poll_forwarded(), Some(Forwarded { buffer: buffer(4), status }));
}
