//! A node as a peer of itself: pinged and discovered by its own NIDs, configured and announced.

use std::time::Duration;

use lnet_core::node::{
    Action, ChangeError, NodeChange, NodeConfig, Outcome, PeerEdit, PeerError, Report, Request, RequestError,
    peer_state,
};
use lnet_core::shard::HealthNote;
use lnet_core::topology::HEALTH_MAX;
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
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
fn ask(runner: &mut Runner, nid: Nid) {
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
    own.iter().for_each(|nid| ask(&mut runner, *nid));
    assert_eq!(peers(&runner), own.map(|nid| (vec![nid], 0)));
    discover(&mut runner, nid(2, 2));
    assert_eq!(peers(&runner), [(own.to_vec(), KNOWN)]);
    discover(&mut runner, nid(1, 1));
    ask(&mut runner, nid(1, 1));
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
    ask(&mut runner, nid(1, 1));
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]).unwrap();
    assert_eq!(peers(&runner), []);
}

fn add(primary: Nid, nids: &[Nid], locks: bool) -> NodeChange<u32> {
    NodeChange::Peer(PeerEdit::Add(PeerSpec {
        primary_nid: primary,
        nids: nids.to_vec(),
        multi_rail: true,
        lock_primary: locks,
    }))
}

fn set_health(nid: Option<Nid>, value: u32) -> NodeChange<u32> {
    NodeChange::Peer(PeerEdit::SetHealth { nid, value })
}

/// What a node tells of itself that has these NIDs.
fn info(nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    let features = Features(0x1E);
    ping::write(&mut bytes, features, 12345, 1, nis).unwrap();
    bytes
}

fn healths(runner: &Runner) -> Vec<u32> {
    runner.node.peers().flat_map(|peer| &peer.nis).map(|ni| ni.health).collect()
}

/// Reference tests 211 and 215.
#[test]
fn its_health_is_set_and_recovery_pings_of_its_own_bring_it_back() {
    let mut runner = runner();
    let own = [nid(1, 1), nid(2, 2)];
    let unknown = RequestError::Change { index: 0, error: ChangeError::Peer(PeerError::Unknown(own[0])) };
    assert_eq!(runner.batch(&[set_health(Some(own[0]), 500)]), Err(unknown));
    discover(&mut runner, own[0]);
    runner.batch(&[set_health(Some(own[0]), 800)]).unwrap();
    assert_eq!(healths(&runner), [800, HEALTH_MAX]);
    assert!(runner.topology.peer(&own[0]).is_none());
    assert!(own.iter().all(|nid| runner.node.ni(nid).unwrap().health == HEALTH_MAX));
    let (local, peers) = runner.node.recovering();
    assert_eq!((local, peers.len(), peers[0].nid, peers[0].health), (vec![], 1, own[0], 800));
    // The local NI of that NID is ill besides, and each has its pings.
    runner.batch(&[NodeChange::SetHealth { nid: Some(own[0]), value: 900 }]).unwrap();
    for _ in 0..8 {
        runner.advance(Duration::from_secs(1));
        let mut asked = Vec::new();
        runner.done.retain(|action| match action {
            Action::Ping { ping, nid, source, .. } => {
                assert_eq!((nid, source), (&own[0], &Some(own[0])));
                asked.push(*ping);
                false
            }
            _ => true,
        });
        for ping in asked {
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &[] });
            runner.run();
        }
        // What a shard notes of an own NID is the local NI's.
        let note = HealthNote { nid: own[0], failures: 1, successes: 1 };
        runner.node.handle_report(runner.now, Report::Health(note));
    }
    assert_eq!((healths(&runner), runner.node.recovering()), (vec![HEALTH_MAX; 2], (vec![], vec![])));
    assert_eq!(runner.node.ni(&own[0]).unwrap().health, HEALTH_MAX);
    runner.batch(&[set_health(None, 3)]).unwrap();
    assert_eq!((healths(&runner), runner.node.recovering().1.len()), (vec![3; 2], 2));
    // Health stays as it was set when the peer gets another NI.
    runner.batch(&[NodeChange::AddNi(spec(1, 7))]).unwrap();
    let mut healths = healths(&runner);
    healths.sort_unstable();
    assert_eq!(healths, [3, 3, HEALTH_MAX]);
}

#[test]
fn an_administrator_makes_it_and_takes_it_out() {
    for is_discovered in [false, true] {
        let mut runner = runner();
        let own = [nid(1, 1), nid(2, 2)];
        if is_discovered {
            discover(&mut runner, own[0]);
        }
        runner.batch(&[add(own[1], &own[..1], true)]).unwrap();
        let found = if is_discovered { KNOWN } else { 0 };
        let state = peer_state::CONFIGURED | peer_state::LOCK_PRIMARY | peer_state::MULTI_RAIL;
        assert_eq!(peers(&runner), [(vec![own[1], own[0]], state | found)]);
        assert!(runner.node.peers().all(|peer| peer.nis.iter().all(|ni| ni.is_configured)));
        assert!(own.iter().all(|nid| runner.topology.peer(nid).is_none()), "all goes by lo");
        discover(&mut runner, own[0]);
        assert_eq!(peers(&runner), [(vec![own[1], own[0]], state | KNOWN)]);
        // No message of another node changes it.
        let known = runner.node.peers().next().cloned();
        let push = info(&[nid(1, 9), own[0], own[1]]);
        for from in [nid(1, 9), own[0]] {
            let report = Report::Pushed { from, bytes: &push, length_bytes: push.len() };
            runner.node.handle_report(runner.now, report);
            runner.run();
        }
        assert_eq!(runner.node.peer(&own[0]).cloned(), known);
        let other = PeerEdit::Delete { primary: nid(1, 9), nids: vec![], is_forced: true };
        let some = PeerEdit::Delete { primary: own[1], nids: own[..1].to_vec(), is_forced: false };
        runner.batch(&[NodeChange::Peer(other), NodeChange::Peer(some)]).unwrap();
        assert_eq!(peers(&runner)[0].0, own[1..]);
        let all = PeerEdit::Delete { primary: own[1], nids: vec![], is_forced: true };
        runner.batch(&[NodeChange::Peer(all)]).unwrap();
        assert_eq!(peers(&runner), []);
        let is_push = |action: &Action<u32>| matches!(action, Action::Push { nid, .. } if own.contains(nid));
        assert!(!runner.done.iter().any(is_push), "nothing is pushed to it");
    }
}

/// Reference test 304.
#[test]
fn a_locked_nid_stays_primary_when_it_is_discovered_by_another() {
    for is_first in [true, false] {
        let mut runner = runner();
        let mut own = [nid(1, 1), nid(2, 2)];
        own.sort_by_key(|nid| (*nid == self::nid(1, 1)) != is_first);
        let [locked, other] = own;
        runner.batch(&[add(locked, &[], true)]).unwrap();
        assert_eq!(peers(&runner), [(vec![locked], 1_048_585)]);
        let set = PeerEdit::SetState { nid: locked, state: 1_048_577 };
        runner.batch(&[NodeChange::Peer(set)]).unwrap();
        assert_eq!(peers(&runner), [(vec![locked], 1_048_577)]);
        let id = runner.start(Request::Discover { nid: other, is_forced: false });
        let Some(Ok(Outcome::Pinged(pinged))) = runner.result(id) else { panic!("it is known at once") };
        assert_eq!(pinged.primary, locked);
        assert_eq!(peers(&runner), [(vec![other, locked], 1_048_849)]);
        assert_eq!(runner.node.peer(&other).unwrap().primary, locked);
    }
}

/// Reference test 40.
#[test]
fn a_program_announces_it() {
    let mut runner = runner();
    let own = [nid(1, 1), nid(2, 2)];
    discover(&mut runner, own[0]);
    let id = runner.start(Request::Announce { nids: vec![own[1], own[0]] });
    let Some(Ok(Outcome::Pinged(pinged))) = runner.result(id) else { panic!("it is known at once") };
    assert_eq!(pinged.primary, own[1]);
    let known = [(vec![own[1], own[0]], KNOWN | peer_state::LOCK_PRIMARY)];
    assert_eq!(peers(&runner), known);
    discover(&mut runner, own[0]);
    assert_eq!(peers(&runner), known);
    // The peer follows the node's NIs, and has all that are announced.
    let mut runner = self::runner();
    runner.start(Request::Announce { nids: own.to_vec() });
    assert_eq!(peers(&runner), [(own.to_vec(), peer_state::MULTI_RAIL | peer_state::LOCK_PRIMARY)]);
    runner.batch(&[NodeChange::DeleteNi { nid: own[0] }]).unwrap();
    assert_eq!(peers(&runner), [(own[1..].to_vec(), KNOWN)], "what was locked is this node's no more");
}

/// A configured peer is this node while its NIDs are this node's.
#[test]
fn a_configured_peer_stays_when_its_nids_come_and_go() {
    let mut runner = runner();
    let primary = nid(1, 7);
    runner.batch(&[add(primary, &[], false)]).unwrap();
    let is_own = |runner: &Runner| runner.node.peer(&primary).map(lnet_core::node::Peer::is_own);
    assert_eq!((is_own(&runner), runner.topology.peer(&primary).is_some()), (Some(false), true));
    runner.batch(&[NodeChange::AddNi(spec(1, 7))]).unwrap();
    assert_eq!((is_own(&runner), runner.topology.peer(&primary).is_some()), (Some(true), false));
    runner.batch(&[NodeChange::DeleteNi { nid: primary }]).unwrap();
    assert_eq!((is_own(&runner), runner.topology.peer(&primary).is_some()), (Some(false), true));
    assert!(runner.node.peer(&primary).unwrap().nis[0].is_configured);
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

/// A configured peer keeps a NID that becomes this node's own, and a new node takes it so.
#[test]
fn a_configured_peer_may_have_own_nids_and_others() {
    let (primary, shared) = (nid(1, 9), nid(1, 7));
    for is_new in [false, true] {
        let mut runner = runner();
        let peer = add(primary, &[shared], false);
        let ni = NodeChange::AddNi(spec(1, 7));
        runner.batch(&if is_new { [ni, peer] } else { [peer, ni] }).unwrap();
        let peer = runner.node.peer(&shared).unwrap();
        assert_eq!((peer.nids(), peer.is_own()), (vec![primary, shared], false));
        runner.batch(&[set_health(None, 3)]).unwrap();
        assert_eq!((healths(&runner), runner.node.ni(&shared).unwrap().health), (vec![3; 2], HEALTH_MAX));
    }
}

/// NIDs by which shards reach a peer.
fn paths(runner: &Runner, of: Nid) -> Vec<Nid> {
    let view = runner.topology.peer(&of);
    view.map_or_else(Vec::new, |view| view.nis.iter().map(|ni| ni.nid).collect())
}

/// Shards reach another node by none of this node's NIDs, whatever is configured.
#[test]
fn own_nids_are_no_paths_to_another_node() {
    let (foreign, shared) = (nid(1, 9), nid(1, 7));
    for nids in [[foreign, shared], [shared, foreign]] {
        let mut runner = runner();
        runner.batch(&[add(nids[0], &nids[1..], false)]).unwrap();
        assert_eq!(paths(&runner, foreign), nids);
        for _ in 0..2 {
            runner.batch(&[NodeChange::AddNi(spec(1, 7))]).unwrap();
            assert_eq!(paths(&runner, foreign), [foreign]);
            let view = runner.topology.peer(&foreign).unwrap();
            assert_eq!((view.primary, view.nid_count), (foreign, 1));
            assert!(runner.topology.peer(&shared).is_none());
            assert_eq!(runner.node.peer(&shared).map(lnet_core::node::Peer::nids), Some(nids.to_vec()));
            let discovery = runner.start(Request::Discover { nid: foreign, is_forced: true });
            runner.answer_all(&[foreign], &info(&[foreign]));
            assert!(matches!(runner.result(discovery), Some(Ok(_))), "the other node is asked, and no other");
            runner.batch(&[NodeChange::DeleteNi { nid: shared }]).unwrap();
            assert_eq!((paths(&runner, foreign), paths(&runner, shared)), (nids.to_vec(), nids.to_vec()));
        }
    }
}

#[test]
fn a_peer_without_a_path_but_own_nids_is_not_reached() {
    let (far, own) = (nid(40, 9), nid(1, 1));
    let mut runner = runner();
    runner.batch(&[add(own, &[far], false)]).unwrap();
    assert_eq!(paths(&runner, far), [far]);
    let unreachable = || Some(Err(RequestError::PingUnreachable(far)));
    let ping = runner.start(Request::Ping { nid: far, source: None, timeout: None });
    assert_eq!(runner.result(ping), unreachable());
    let discovery = runner.start(Request::Discover { nid: far, is_forced: true });
    assert_eq!(runner.result(discovery), unreachable());
}
