//! Who may answer a request: the node that was asked, by the handle that it was given.

use lnet_core::ShardConfig;
use lnet_core::event::EventKind;
use lnet_core::lnd::{Status, Uplink, Verdict};
use lnet_core::md::{MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_core::stats::DropReason;
use lnet_core::topology::{PeerMap, PeerNid, PeerView, Topology};
use lnet_wire::{Body, Header, WireHandle};

use crate::common::{
    NOW, Node, ack_of, config, get_request, handle_of, host, local_ni, nid, put_request, reply_of,
};

/// The handle that a request leaves with, which then is sent.
fn asked(node: &mut Node) -> WireHandle {
    let transmit = node.transmit().unwrap();
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    match transmit.header.body {
        Body::Put { ack_md: handle, .. } | Body::Get { return_md: handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

fn from(source: u8, header: Header) -> Header {
    Header { source: host(source), ..header }
}

/// Host 8 is asked by a descriptor too. With what it is shown it answers in its own stead alone, whatever it
/// makes of it.
#[test]
fn a_node_that_was_not_asked_cannot_answer() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(60), ..node.md(100) };
    let (md, other) = (node.shard.bind(&spec).unwrap(), node.shard.bind(&spec).unwrap());
    node.shard.get(NOW, &get_request(md)).unwrap();
    let of_friend = asked(&mut node);
    node.shard.put(NOW, &PutRequest { ack: true, ..put_request(other, 8) }).unwrap();
    let of_stranger = asked(&mut node);
    node.events();

    // The other descriptor, and what comes to its slot next.
    for object_cookie in [of_friend.object_cookie, of_friend.object_cookie + (1 << 32)] {
        let guessed = WireHandle { object_cookie, ..of_stranger };
        for header in [reply_of(guessed, 8), ack_of(guessed)] {
            node.assert_drop(&from(8, header), DropReason::UnknownMd);
        }
    }
    assert!(node.events().is_empty());
    assert_ne!(node.arrive(&from(8, ack_of(of_stranger))), Verdict::Drop);
    assert_ne!(node.arrive(&reply_of(of_friend, 8)), Verdict::Drop);
    let kinds: Vec<_> = node.events().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [EventKind::Ack, EventKind::Reply]);
}

/// One descriptor asks several nodes: each has a handle of its own, and requests to one have the same.
#[test]
fn each_node_is_given_a_handle_of_its_own() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(60), ..node.md(100) };
    let md = node.shard.bind(&spec).unwrap();
    let mut given = [2, 8, 2].map(|to| {
        node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, to) }).unwrap();
        asked(&mut node)
    });
    assert_eq!((given[0], given[0]), (given[2], handle_of(md)));
    assert_ne!(given[0], given[1]);
    given[1].interface_cookie = given[0].interface_cookie;
    assert_eq!(given[0], given[1], "the descriptor is the same");
    // Nothing is answered that asks for no answer.
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert_eq!(asked(&mut node), WireHandle::NONE);
}

/// A peer answers by another NID than the one that was asked: one that is known to be its own, or one that is
/// not known yet, with the handle that the NID asked last was given.
#[test]
fn a_peer_answers_by_any_of_its_nids() {
    let own = vec![local_ni(nid(1, 1), 8, 4)];
    let peer = |hosts: &[u8]| {
        let nis = hosts.iter().map(|host| PeerNid::new(nid(1, *host), 1000)).collect();
        let mut peers = PeerMap::default();
        peers.insert(PeerView::new(true, nis).unwrap());
        Topology::new(own.clone()).with_peers(peers).into()
    };
    for (hosts, asks_more, is_taken) in [(&[2, 3][..], true, true), (&[2], false, true), (&[2], true, false)]
    {
        let mut node = Node::new(ShardConfig { topology: peer(hosts), ..config() });
        let spec = MdSpec { threshold: Threshold::Count(4), ..node.md(100) };
        let md = node.shard.bind(&spec).unwrap();
        node.shard.get(NOW, &GetRequest { self_nid: Some(nid(1, 1)), ..get_request(md) }).unwrap();
        let sent = node.transmit().unwrap();
        node.shard.sent(NOW, sent.tx, Status::Ok);
        let Body::Get { return_md, .. } = sent.header.body else { unreachable!() };
        if asks_more {
            node.shard.put(NOW, &PutRequest { ack: true, ..put_request(md, 8) }).unwrap();
            asked(&mut node);
        }
        let another = if sent.next_hop == nid(1, 2) { 3 } else { 2 };
        let verdict = node.arrive(&from(another, reply_of(return_md, 8)));
        assert_eq!(verdict != Verdict::Drop, is_taken, "{hosts:?}, {asks_more}");
    }
}
