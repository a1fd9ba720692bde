//! A node as a peer of itself: pinged and discovered by its own NIDs.

use lnet_core::node::{
    Action, ChangeError, NodeChange, NodeConfig, Outcome, PeerEdit, PeerError, Report, Request, RequestError,
    peer_state,
};
use lnet_core::topology::HEALTH_MAX;
use lnet_model::peer::PeerSpec;
use lnet_wire::{Discovery, Global, Nid};

use crate::common::{Runner, nid, spec};

const KNOWN: u32 = peer_state::MULTI_RAIL | peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE;

/// A node with an NI on each of two nets.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    let add = [NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))];
    assert_eq!(runner.batch(&add), Ok(Outcome::Changed));
    runner
}

/// It is pinged by one of its NIDs, and answers.
fn ping(runner: &mut Runner, nid: Nid) {
    let id = runner.start(Request::Ping { nid, source: None, timeout: None });
    let published = runner.done.iter().rev().find_map(|action| match action {
        Action::Publish(bytes) => Some(bytes.clone()),
        _ => None,
    });
    let mut asked = None;
    runner.done.retain(|action| match action {
        Action::Ping { ping, nid: to, .. } if *to == nid => {
            asked = Some(*ping);
            false
        }
        _ => true,
    });
    let (ping, bytes) = (asked.unwrap(), published.unwrap());
    runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &bytes });
    runner.run();
    assert!(matches!(runner.result(id), Some(Ok(Outcome::Pinged(_)))));
}

fn discover(runner: &mut Runner, nid: Nid) {
    let id = runner.start(Request::Discover { nid, is_forced: false });
    assert!(matches!(runner.result(id), Some(Ok(Outcome::Pinged(_)))));
}

/// The peers: their NIDs, and their states.
fn peers(runner: &Runner) -> Vec<(Vec<Nid>, u32)> {
    assert!(runner.node.peers().all(lnet_core::node::Peer::is_own));
    runner.node.peers().map(|peer| (peer.nids(), peer.state)).collect()
}

/// Reference test 219.
#[test]
fn pings_of_own_nids_make_a_peer_each_and_a_discovery_makes_one_of_them() {
    let mut runner = runner();
    let own = [nid(1, 1), nid(2, 2)];
    own.iter().for_each(|nid| ping(&mut runner, *nid));
    assert_eq!(peers(&runner), own.map(|nid| (vec![nid], 0)));
    discover(&mut runner, nid(2, 2));
    assert_eq!(peers(&runner), [(own.to_vec(), KNOWN)]);
    discover(&mut runner, nid(1, 1));
    ping(&mut runner, nid(1, 1));
    assert_eq!(peers(&runner), [(own.to_vec(), KNOWN)]);
    // Shards have nothing to do with it, and nothing is pushed to it.
    assert!(own.iter().all(|nid| runner.topology.peer(nid).is_none()));
    assert!(!runner.done.iter().any(|action| matches!(action, Action::Push { .. })));
}

/// Reference test 525.
#[test]
fn it_follows_its_nis() {
    let mut runner = runner();
    discover(&mut runner, Nid::LO);
    runner.batch(&[NodeChange::DeleteNet { net: nid(1, 1).net() }]).unwrap();
    assert_eq!(peers(&runner), [(vec![nid(2, 2)], KNOWN)], "the other NID stays");
    runner.batch(&[NodeChange::AddNi(spec(1, 7))]).unwrap();
    assert_eq!(peers(&runner)[0].0.len(), 2, "{:?}", peers(&runner));
    runner
        .batch(&[NodeChange::DeleteNi { nid: nid(1, 7) }, NodeChange::DeleteNi { nid: nid(2, 2) }])
        .unwrap();
    assert_eq!(peers(&runner), []);
    // One that was only pinged goes with its NI.
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    ping(&mut runner, nid(1, 1));
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]).unwrap();
    assert_eq!(peers(&runner), []);
}

#[test]
fn an_administrator_may_delete_it_and_make_none() {
    let mut runner = runner();
    discover(&mut runner, nid(1, 1));
    let add = PeerEdit::Add(PeerSpec {
        primary_nid: nid(1, 1),
        nids: vec![],
        multi_rail: true,
        lock_primary: false,
    });
    assert!(matches!(runner.batch(&[NodeChange::Peer(add)]), Err(RequestError::Change { .. })));
    runner.batch(&[NodeChange::Peer(PeerEdit::SetHealth { nid: None, value: 3 })]).unwrap();
    assert_eq!(runner.node.recovering(), (vec![], vec![]), "local NIs recover by themselves");
    let healths = runner.node.peers().flat_map(|peer| &peer.nis).map(|ni| ni.health);
    assert_eq!(healths.collect::<Vec<_>>(), [HEALTH_MAX; 2], "nothing would bring it back");
    let set = |nid| NodeChange::Peer(PeerEdit::SetHealth { nid: Some(nid), value: 3 });
    let refused = RequestError::Change { index: 0, error: ChangeError::Peer(PeerError::Own(nid(2, 2))) };
    assert_eq!(runner.batch(&[set(nid(2, 2))]), Err(refused.clone()));
    let configured = PeerEdit::SetState { nid: nid(2, 2), state: peer_state::CONFIGURED };
    let set = runner.batch(&[NodeChange::Peer(configured)]);
    assert_eq!(set, Err(refused), "no node takes a backup with such a peer");
    let delete = PeerEdit::Delete { primary: nid(1, 1), nids: vec![], is_forced: false };
    runner.batch(&[NodeChange::Peer(delete)]).unwrap();
    assert_eq!(peers(&runner), []);
}

#[test]
fn without_discovery_it_has_one_nid() {
    let mut runner = runner();
    let off = Discovery::Off as i64;
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: off }]).unwrap();
    discover(&mut runner, nid(1, 1));
    assert_eq!(peers(&runner), [(vec![nid(1, 1)], 0)]);
    let none = NodeConfig { peers_max: 0, ..crate::common::config(1) };
    let mut node = lnet_core::node::Node::<u32>::new(none);
    node.handle_request(runner.now, Request::Discover { nid: Nid::LO, is_forced: false }).unwrap();
    assert_eq!(node.peers().count(), 0, "there is no room for peers");
}

/// A configured peer keeps a NID that becomes this node's own, whose health is the local NI's.
#[test]
fn the_health_of_an_own_nid_that_a_configured_peer_has_is_not_the_peers() {
    let mut runner = runner();
    let (primary, nids) = (nid(1, 9), vec![nid(1, 7)]);
    let add = PeerEdit::Add(PeerSpec { primary_nid: primary, nids, multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add), NodeChange::AddNi(spec(1, 7))]).unwrap();
    runner.batch(&[NodeChange::Peer(PeerEdit::SetHealth { nid: None, value: 3 })]).unwrap();
    let peer = runner.node.peer(&primary).unwrap();
    assert_eq!(peer.nis.iter().map(|ni| ni.health).collect::<Vec<_>>(), [3, HEALTH_MAX]);
    let set = PeerEdit::SetHealth { nid: Some(nid(1, 7)), value: 3 };
    assert!(matches!(runner.batch(&[NodeChange::Peer(set)]), Err(RequestError::Change { .. })));
}
