//! Messages to a NID that their peer loses while they are on their way.

use std::sync::Arc;

use lnet_core::ShardConfig;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::shard::PutRequest;
use lnet_core::topology::{HEALTH_MAX, LocalNi, NiStatus, PeerMap, PeerNid, PeerView, Topology};
use lnet_wire::{Nid, ProcessId};

use crate::common::{NOW, Node, config, entry, get_header, local_ni, nid, put_request};
use crate::multi_rail::{put, sent};

const UNREACHABLE: Status = Status::NeverSent(Cause::Unreachable);

fn locals() -> Vec<LocalNi> {
    vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)]
}

/// A Multi-Rail peer with these NIDs, the primary one first, that had others until of late.
fn topology(generation: u64, locals: Vec<LocalNi>, nids: &[Nid], former: &[Nid]) -> Topology {
    let nis = nids.iter().map(|nid| PeerNid::new(*nid, HEALTH_MAX)).collect();
    let mut map = PeerMap::default();
    map.insert(PeerView::new(true, nis).unwrap());
    map.set_former(former.iter().map(|nid| (*nid, nids[0])).collect());
    Topology::new(locals).with_peers(map).with_generation(generation)
}

fn node(nids: &[Nid]) -> Node {
    let limits = Limits { nis: 4, ..config().limits };
    let topology = Arc::new(topology(1, locals(), nids, &[]));
    Node::new(ShardConfig { limits, topology, ..config() })
}

/// The peer loses a NID.
fn lose(node: &mut Node, nids: &[Nid], lost: Nid) {
    node.shard.update(NOW, Arc::new(topology(2, locals(), nids, &[lost])));
}

/// What leaves next leaves from here to there, and then all that a message holds is home.
#[track_caller]
fn check_leaves(node: &mut Node, from: Nid, to: Nid) {
    let [message] = sent(node)[..] else { panic!("one message") };
    let header = &message.header;
    assert_eq!((header.source.nid, message.next_hop, header.destination.nid), (from, to, to));
    node.shard.sent(NOW, message.tx, Status::Ok);
    assert_eq!(node.shard.usage().messages, 0);
    for peer in node.shard.peers() {
        let held = (peer.credits, peer.queued_bytes, peer.reference_count);
        assert_eq!(held, (i64::from(peer.credits_max), 0, 0), "{}", peer.nid);
    }
}

/// One of two NIDs goes, be it the primary one or the other, on a net of its own or not, for whatever reason
/// the message did not leave.
#[test]
fn a_message_to_a_nid_that_its_peer_has_lost_goes_to_another_one_of_the_peer() {
    let (first, same_net, other_net) = (nid(1, 11), nid(1, 12), nid(2, 11));
    for second in [same_net, other_net] {
        for (lost, left) in [(first, second), (second, first)] {
            for cause in [Cause::Unreachable, Cause::Device, Cause::Timeout] {
                let mut node = node(&[first, second]);
                // The NIs have their turns.
                [0; 4].iter().for_each(|_| put(&mut node, first, None));
                let (to_lost, others): (Vec<_>, Vec<_>) =
                    sent(&mut node).into_iter().partition(|message| message.next_hop == lost);
                others.iter().for_each(|message| node.shard.sent(NOW, message.tx, Status::Ok));
                assert_eq!(to_lost.len(), 2);
                node.shard.sent(NOW, to_lost[1].tx, Status::Ok);
                node.events();
                lose(&mut node, &[left], lost);
                node.shard.sent(NOW, to_lost[0].tx, Status::NeverSent(cause));
                check_leaves(&mut node, if left == other_net { nid(2, 1) } else { nid(1, 1) }, left);
                assert_eq!(node.event().status(), Status::Ok);
                assert_eq!(node.shard.counters().successful_resends, 1);
            }
        }
    }
}

/// The NI goes by which it was to leave, at the same time.
#[test]
fn a_message_that_waits_for_an_ni_that_goes_takes_another_nid_than_the_one_that_went() {
    let mut node = node(&[nid(1, 11), nid(2, 11)]);
    put(&mut node, nid(1, 11), None);
    let [first] = sent(&mut node)[..] else { panic!("one message") };
    node.shard.sent(NOW, first.tx, Status::Ok);
    // The other net's turn has come.
    put(&mut node, nid(1, 11), None);
    let (lost, left) = if first.next_hop == nid(1, 11) { (2, 1) } else { (1, 2) };
    let mut locals = locals();
    locals[lost - 1].status = NiStatus::Down;
    let (lost, left) = (nid(lost as u16, 11), nid(left, 11));
    node.shard.update(NOW, Arc::new(topology(2, locals, &[left], &[lost])));
    check_leaves(&mut node, first.header.source.nid, left);
}

/// Its sender has lost the NI meanwhile that has asked: the REPLY goes to another one.
#[test]
fn a_response_to_a_nid_that_its_peer_has_lost_goes_to_another_one_of_the_peer() {
    let mut node = node(&[nid(1, 11), nid(2, 11)]);
    let spec = MdSpec { options: MdOptions::GET, ..node.md(8) };
    let entry = node.shard.attach_entry(&entry(5)).unwrap();
    node.shard.attach(entry, &spec).unwrap();
    let mut header = get_header(5, 8);
    (header.source.nid, header.destination.nid) = (nid(2, 11), nid(2, 1));
    let verdict = node.shard.header(NOW, NiId(1), &nid(2, 11), RxId(0), &header);
    assert!(matches!(verdict, Verdict::Deliver(_)), "{verdict:?}");
    node.shard.received(NOW, RxId(0), Status::Ok);
    let [reply] = sent(&mut node)[..] else { panic!("one REPLY") };
    assert_eq!(reply.next_hop, nid(2, 11));
    lose(&mut node, &[nid(1, 11)], nid(2, 11));
    node.shard.sent(NOW, reply.tx, UNREACHABLE);
    check_leaves(&mut node, nid(1, 1), nid(1, 11));
    assert_eq!(node.event().status(), Status::Ok);
}

/// Nothing is done for what leaves by one path and no other: a response to a NID that its peer has, and what
/// names its source.
#[test]
fn what_is_bound_to_its_path_stays_so() {
    let mut node = node(&[nid(1, 11), nid(2, 11)]);
    put(&mut node, nid(2, 11), Some(nid(2, 1)));
    let [message] = sent(&mut node)[..] else { panic!("one message") };
    lose(&mut node, &[nid(1, 11)], nid(2, 11));
    node.shard.sent(NOW, message.tx, UNREACHABLE);
    assert_eq!(sent(&mut node), []);
    assert_eq!(node.event().status(), UNREACHABLE);
}

/// A ping asks the node that has the NID now, and no other.
#[test]
fn a_ping_of_a_lost_nid_goes_to_no_other_one() {
    let mut node = node(&[nid(1, 11), nid(2, 11)]);
    let md = node.shard.bind(&node.md(10)).unwrap();
    let target = ProcessId::lustre(nid(1, 11));
    node.shard.put(NOW, &PutRequest { target, portal: 0, ..put_request(md, 0) }).unwrap();
    let [ping] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!(ping.next_hop, nid(1, 11));
    lose(&mut node, &[nid(2, 11)], nid(1, 11));
    node.shard.sent(NOW, ping.tx, UNREACHABLE);
    assert!(sent(&mut node).iter().all(|again| again.next_hop == nid(1, 11)));
}

/// The node that has a lost NID says there that it has it no more: new requests go to the peer that had it,
/// as do those that wait for the NID to be found out about. A ping asks the NID all the same.
#[test]
fn a_request_for_a_nid_that_its_node_has_no_more_goes_to_another_one_of_the_peer() {
    let (lost, left) = (nid(1, 11), nid(2, 11));
    let moved = |generation, is_moved: bool| {
        let mut map = PeerMap::default();
        map.insert(PeerView::new(true, vec![PeerNid::new(left, HEALTH_MAX)]).unwrap());
        map.set_former([(lost, left)].into());
        map.set_moved(if is_moved { [(lost, left)].into() } else { [].into() });
        let topology = Topology::new(locals()).with_peers(map).with_generation(generation);
        Arc::new(topology.with_gated_requests(true))
    };
    let mut node = node(&[lost, left]);
    node.shard.update(NOW, moved(2, false));
    put(&mut node, lost, None);
    assert_eq!(sent(&mut node), [], "it waits until the NID is found out about");
    assert_eq!(node.shard.poll_wanted(), Some(lost));
    node.shard.update(NOW, moved(3, true));
    check_leaves(&mut node, nid(2, 1), left);
    put(&mut node, lost, None);
    check_leaves(&mut node, nid(2, 1), left);
    assert_eq!(node.shard.poll_wanted(), None);
    let choice = node.shard.explain(NOW, &lost).choice.unwrap();
    assert_eq!((choice.ni, choice.destination), (NiId(1), left));
    let md = node.shard.bind(&node.md(10)).unwrap();
    let target = ProcessId::lustre(lost);
    node.shard.put(NOW, &PutRequest { target, portal: 0, ..put_request(md, 0) }).unwrap();
    let [ping] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!(ping.next_hop, lost);
    node.shard.sent(NOW, ping.tx, Status::Ok);
    // What names its source leaves by no other.
    node.events();
    put(&mut node, lost, Some(nid(1, 1)));
    assert_eq!((sent(&mut node), node.event().status()), (vec![], UNREACHABLE));
}

/// A peer that is gone as a whole has no other NID.
#[test]
fn a_message_to_a_peer_that_is_gone_ends() {
    let mut node = node(&[nid(1, 11), nid(2, 11)]);
    put(&mut node, nid(1, 11), None);
    let [message] = sent(&mut node)[..] else { panic!("one message") };
    let mut map = PeerMap::default();
    map.set_former([(nid(1, 11), nid(2, 11)), (nid(2, 11), nid(1, 11))].into());
    node.shard.update(NOW, Arc::new(Topology::new(locals()).with_peers(map).with_generation(2)));
    node.shard.sent(NOW, message.tx, UNREACHABLE);
    assert_eq!(sent(&mut node), []);
    assert_eq!(node.event().status(), UNREACHABLE);
}
