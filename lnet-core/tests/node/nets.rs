//! What becomes of peers when a local net goes and comes back.

use lnet_core::node::{Action, NodeChange, PeerEdit, Report, Request, RequestError, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_wire::{Nid, ping};

use crate::common::{Runner, nid, spec};

fn peer(nids: &[Nid], locks_primary: bool) -> NodeChange<u32> {
    let (primary, nids) = (nids[0], nids[1..].to_vec());
    NodeChange::Peer(PeerEdit::Add(PeerSpec {
        primary_nid: primary,
        nids,
        multi_rail: true,
        lock_primary: locks_primary,
    }))
}

/// A node on three nets.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[1, 2, 3].map(|net| NodeChange::AddNi(spec(net, 1)))).unwrap();
    runner
}

fn delete(runner: &mut Runner, net: u16) {
    runner.batch(&[NodeChange::DeleteNet { net: nid(net, 1).net() }]).unwrap();
}

/// The NIDs of the peer with a NID, the primary one first.
fn nids(runner: &Runner, of: &Nid) -> Option<Vec<Nid>> {
    runner.node.peer(of).map(|peer| {
        assert_eq!(
            runner.topology.peer(of).map(|view| view.primary),
            Some(peer.primary),
            "shards know the same"
        );
        peer.nids()
    })
}

#[test]
fn peers_lose_what_goes_with_a_net_and_those_go_that_have_no_more() {
    let mut runner = runner();
    let [by_two, by_other, alone, far, locked] = [9, 8, 7, 6, 5].map(|host| nid(1, host));
    runner
        .batch(&[
            peer(&[by_two, nid(2, 9), nid(3, 9)], false),
            peer(&[nid(2, 8), by_other], false),
            peer(&[alone, nid(1, 77)], false),
            // Its other net is none of this node's.
            peer(&[far, nid(40, 6)], false),
            peer(&[locked, nid(1, 55), nid(2, 5)], true),
            peer(&[nid(3, 4)], false),
        ])
        .unwrap();
    delete(&mut runner, 1);
    assert_eq!(nids(&runner, &nid(2, 9)), Some(vec![nid(2, 9), nid(3, 9)]), "it goes by another NID");
    assert_eq!(nids(&runner, &nid(2, 8)), Some(vec![nid(2, 8)]));
    assert_eq!(nids(&runner, &locked), Some(vec![locked, nid(2, 5)]), "a locked one keeps its primary NID");
    assert_eq!(nids(&runner, &nid(3, 4)), Some(vec![nid(3, 4)]));
    assert_eq!(runner.node.peers().count(), 4);
    for gone in [alone, nid(1, 77), far, nid(40, 6)] {
        assert_eq!((runner.node.peer(&gone), runner.topology.peer(&gone)), (None, None), "{gone}");
    }
    for (name, peer) in [(by_two, nid(2, 9)), (by_other, nid(2, 8)), (nid(1, 55), locked)] {
        assert_eq!(runner.node.peer(&name), None);
        assert_eq!(runner.topology.peer(&name), runner.topology.peer(&peer), "{name} is a name of its");
    }
}

/// NIDs of this node's peer at which it is pinged, since this was asked last.
fn pinged(runner: &mut Runner) -> Vec<Nid> {
    let is_ping = |action: &mut Action<_>| matches!(action, Action::Ping { .. });
    let pings = runner.done.extract_if(.., is_ping).map(|action| match action {
        Action::Ping { nid, .. } => nid,
        _ => unreachable!(),
    });
    pings.collect()
}

/// A node pings and discovers a peer by the name that it had on a net that the node has left, and requests
/// that go there find it; until the peer, or the net, says otherwise.
#[test]
fn a_peer_is_reached_by_its_name_on_a_net_that_has_gone() {
    let (name, left) = (nid(1, 9), nid(2, 9));
    for is_found in [false, true] {
        let mut runner = runner();
        if is_found {
            let bytes = told(1, &[name, left]);
            let report = Report::Pushed { from: left, bytes: &bytes, length_bytes: bytes.len() };
            runner.node.handle_report(runner.now, report);
            runner.run();
            runner.answer_all(&[name], &bytes);
        } else {
            runner.batch(&[peer(&[name, left], false)]).unwrap();
        }
        assert_eq!(nids(&runner, &name), Some(vec![name, left]));
        delete(&mut runner, 1);
        pinged(&mut runner);
        runner.start(Request::Ping { nid: name, source: None, timeout: None });
        assert_eq!(pinged(&mut runner), [left], "a ping goes by the other NID");
        runner.start(Request::Discover { nid: name, is_forced: true });
        assert_eq!(pinged(&mut runner), [left], "so does a discovery");
        // The peer tells the name, which is a claim now that cannot be asked.
        runner.answer_all(&[left], &told(2, &[name, left]));
        let push = told(3, &[name, left]);
        let report = Report::Pushed { from: left, bytes: &push, length_bytes: push.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
        runner.node.handle_report(runner.now, Report::Wanted { nid: name });
        runner.run();
        assert_eq!(runner.node.peers().count(), 1, "a request to that name makes no peer");
        let view = runner.topology.peer(&name).expect("shards find it by the name");
        assert_eq!(view.nis.iter().map(|ni| ni.nid).collect::<Vec<_>>(), [left]);
        // Another peer has the NID, by the administrator's word.
        let other = nid(3, 9);
        runner.batch(&[peer(&[other, name], false)]).unwrap();
        assert_eq!(runner.topology.peer(&name).map(|view| view.primary), Some(other));
        let delete = PeerEdit::Delete { primary: other, nids: vec![], is_forced: false };
        runner.batch(&[NodeChange::Peer(delete)]).unwrap();
        // On the net the NID itself is asked again.
        runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
        pinged(&mut runner);
        runner.start(Request::Ping { nid: name, source: None, timeout: None });
        assert_eq!(pinged(&mut runner), [name]);
    }
}

#[test]
fn a_name_goes_with_the_word_of_its_peer_and_with_the_peer() {
    let (name, left) = (nid(1, 9), nid(2, 9));
    for is_forgotten in [false, true] {
        let mut runner = runner();
        let bytes = told(1, &[name, left]);
        let report = Report::Pushed { from: left, bytes: &bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
        runner.answer_all(&[name], &bytes);
        delete(&mut runner, 1);
        assert!(runner.topology.peer(&name).is_some());
        if is_forgotten {
            runner.node.forget_peers();
        } else {
            let bytes = told(2, &[left]);
            let report = Report::Pushed { from: left, bytes: &bytes, length_bytes: bytes.len() };
            runner.node.handle_report(runner.now, report);
        }
        runner.run();
        assert_eq!(runner.topology.peer(&name), None);
        let ping = runner.start(Request::Ping { nid: name, source: None, timeout: None });
        assert_eq!(runner.result(ping), Some(Err(RequestError::PingUnreachable(name))));
    }
}

/// Word of a node that has these NIDs.
fn told(sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| ping::PingNi { nid: *nid, status: ping::NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, ping::Features(0x1E), 12345, sequence, nis).unwrap();
    bytes
}

/// Shards count messages, of which the node hears later: those of a net that has gone make no peer there. A
/// peer that is known stays known, also by a NID on a net of others.
#[test]
fn what_is_heard_late_of_a_net_that_has_gone_makes_no_peer() {
    let mut runner = runner();
    runner.batch(&[peer(&[nid(2, 9), nid(40, 9)], false)]).unwrap();
    delete(&mut runner, 1);
    for (heard, peers) in [(nid(1, 9), 1), (nid(40, 9), 1), (nid(40, 8), 1), (nid(2, 8), 2)] {
        let report = Report::Traffic { nid: heard, is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
        runner.run();
        assert_eq!(runner.node.peers().count(), peers, "{heard}: {:?}", runner.node.peer(&heard));
    }
    assert_eq!(nids(&runner, &nid(40, 9)), Some(vec![nid(2, 9), nid(40, 9)]));
}

/// One of two NIs of a net goes: the net stays, and so do its peers.
#[test]
fn a_net_that_keeps_an_ni_keeps_its_peers() {
    let mut runner = runner();
    runner.batch(&[NodeChange::AddNi(spec(1, 2)), peer(&[nid(1, 9), nid(2, 9)], false)]).unwrap();
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]).unwrap();
    assert_eq!(nids(&runner, &nid(1, 9)), Some(vec![nid(1, 9), nid(2, 9)]));
    // It goes and comes back in one batch.
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 2) }, NodeChange::AddNi(spec(1, 3))]).unwrap();
    assert_eq!(nids(&runner, &nid(1, 9)), Some(vec![nid(1, 9), nid(2, 9)]));
}

/// A batch that fails changes no peer.
#[test]
fn a_net_that_could_not_go_after_all_keeps_its_peers() {
    let mut runner = runner();
    runner.batch(&[peer(&[nid(1, 9)], false)]).unwrap();
    runner.broken.push(nid(4, 1));
    let delete = NodeChange::DeleteNet { net: nid(1, 1).net() };
    let result = runner.batch(&[delete, NodeChange::AddNi(spec(4, 1))]);
    assert!(matches!(result, Err(RequestError::Open { .. })), "{result:?}");
    assert_eq!(nids(&runner, &nid(1, 9)), Some(vec![nid(1, 9)]));
}

/// A request that waits for a peer that goes with a net ends; one whose peer goes by another NID from now on
/// goes on.
#[test]
fn discoveries_of_peers_that_lose_a_net_end() {
    let mut runner = runner();
    let discover = |runner: &mut Runner, nid| runner.start(Request::Discover { nid, is_forced: true });
    runner.batch(&[peer(&[nid(1, 8), nid(2, 8)], false)]).unwrap();
    // As many as are pinged at once, so that the next ones wait for their turn.
    for host in 100..164 {
        discover(&mut runner, nid(3, host));
    }
    let alone = discover(&mut runner, nid(1, 9));
    let other = discover(&mut runner, nid(1, 8));
    delete(&mut runner, 1);
    assert_eq!(runner.result(alone), Some(Err(RequestError::PeerGone(nid(1, 9)))));
    assert_eq!(runner.result(other), None);
    let pings = |runner: &Runner| {
        let pinged = |action: &lnet_core::node::Action<u32>| match action {
            lnet_core::node::Action::Ping { ping, nid, .. } => Some((*ping, *nid)),
            _ => None,
        };
        runner.done.iter().filter_map(pinged).collect::<Vec<_>>()
    };
    for (ping, _) in pings(&runner) {
        let error = lnet_core::node::DriverError { errno: 113, message: "no answer".to_owned() };
        runner.node.handle_report(runner.now, Report::Unanswered { ping, error });
    }
    runner.run();
    assert_eq!(pings(&runner).last().map(|(_, to)| *to), Some(nid(2, 8)), "its turn comes under another NID");
    assert!(runner.node.peer(&nid(2, 8)).unwrap().is(peer_state::DISCOVERING));
}

/// Its NIDs there are asked for again when the net is back, at its next use.
#[test]
fn a_net_that_comes_back_has_peers_asked_for_their_nids_there() {
    let mut runner = runner();
    runner.batch(&[peer(&[nid(1, 9), nid(2, 9)], false), peer(&[nid(3, 8)], false)]).unwrap();
    let known = peer_state::MULTI_RAIL | peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE;
    for nid in [nid(1, 9), nid(3, 8)] {
        runner.batch(&[NodeChange::Peer(PeerEdit::SetState { nid, state: known })]).unwrap();
    }
    delete(&mut runner, 1);
    let is_up_to_date =
        |runner: &Runner, nid| runner.node.peer(&nid).unwrap().is(peer_state::NIDS_UP_TO_DATE);
    assert!(is_up_to_date(&runner, nid(2, 9)), "nothing is asked where nothing can have come");
    runner.batch(&[NodeChange::AddNi(spec(2, 2))]).unwrap();
    assert!(is_up_to_date(&runner, nid(2, 9)), "nor for an NI of a net that there was");
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    assert!(!is_up_to_date(&runner, nid(2, 9)) && is_up_to_date(&runner, nid(3, 8)));
}

/// An address moves here: a message to the peer that had it must not go to this node. What an administrator
/// has made stays.
#[test]
fn a_nid_that_becomes_this_nodes_own_is_no_peers_any_more() {
    let mut runner = runner();
    let (first, second) = (nid(1, 9), nid(2, 9));
    let features = ping::Features::NI_STATUS.with(ping::Features::MULTI_RAIL).with(ping::Features::DISCOVERY);
    let told = [first, second].map(|nid| ping::PingNi { nid, status: ping::NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(told).unwrap()];
    ping::write(&mut bytes, features, 12345, 1, told).unwrap();
    let report = Report::Pushed { from: first, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    runner.answer_all(&[second], &bytes);
    runner
        .node
        .handle_report(runner.now, Report::Traffic { nid: nid(3, 9), is_incoming: true, first_ni: None });
    runner.run();
    runner.batch(&[peer(&[nid(1, 8), nid(2, 8)], false)]).unwrap();
    assert_eq!(nids(&runner, &second), Some(vec![first, second]));
    runner.batch(&[NodeChange::AddNi(spec(1, 9)), NodeChange::AddNi(spec(3, 9))]).unwrap();
    assert_eq!(nids(&runner, &second), Some(vec![second]), "it goes by the NID that it has left");
    assert!(!runner.node.peer(&second).unwrap().is(peer_state::NIDS_UP_TO_DATE), "it is asked again");
    for own in [first, nid(3, 9)] {
        assert!(runner.node.peer(&own).is_none() && runner.topology.peer(&own).is_none(), "{own}");
    }
    runner.batch(&[NodeChange::DeleteNi { nid: nid(3, 9) }, NodeChange::AddNi(spec(2, 8))]).unwrap();
    assert_eq!(nids(&runner, &nid(1, 8)), Some(vec![nid(1, 8), nid(2, 8)]), "a configured one");
}
