//! The edge cases: two that ask for one peer, what goes while it is in use, nodes that are configured
//! inconsistently.

use std::time::Duration;

use lnet_core::node::{NodeChange, Outcome, PeerEdit, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_tests::fleet::Stage;

use crate::common::{
    A, B, C, MULTI_RAIL, acquainted, all_talk, at, both, check_acquainted, check_knows, check_quiet,
    configured, nids,
};

/// Two programs discover a peer by one NID: one ping serves both.
#[test]
fn edge_case_two_programs_discover_a_peer_by_one_nid() {
    let mut stage = Stage::new(&both());
    let requests = [0; 2].map(|_| stage.discover(A, at(B, 0), false));
    stage.run();
    for request in requests {
        let Some(Ok(Outcome::Pinged(pinged))) = stage.result(A, request) else {
            panic!("it has not ended well")
        };
        assert_eq!((pinged.primary, pinged.nids.clone()), (at(B, 0), nids(B, &[0, 1])));
    }
    assert_eq!((stage.sent("ping"), stage.sent("push a")), (1, 1));
    check_acquainted(&stage, &[0, 1]);
    check_quiet(&mut stage, 2);
}

/// Two programs discover a peer by different NIDs, in every order of the replies: both learn the same.
#[test]
fn edge_case_two_programs_discover_a_peer_by_different_nids() {
    for seed in 0..50 {
        let mut stage = Stage::new(&both());
        let requests = [0, 1].map(|rail| stage.discover(A, at(B, rail), false));
        stage.run_in_any_order(seed);
        for request in requests {
            let Some(Ok(Outcome::Pinged(pinged))) = stage.result(A, request) else {
                panic!("seed {seed}: {:?}", stage.result(A, request));
            };
            assert_eq!((pinged.primary, pinged.nids.clone()), (at(B, 0), nids(B, &[0, 1])), "seed {seed}");
        }
        assert_eq!(stage.sent("push a"), 1, "seed {seed}");
        check_acquainted(&stage, &[0, 1]);
        check_quiet(&mut stage, 2);
    }
}

/// A ping of two to a node is lost: what the other one has found out counts.
#[test]
fn edge_case_one_of_two_pings_to_a_node_is_lost() {
    for (lost, other) in [(0, 1), (1, 0)] {
        let mut stage = Stage::new(&both());
        let requests = [lost, other].map(|rail| stage.discover(A, at(B, rail), false));
        stage.lose(&format!("ping a{lost}"));
        stage.run();
        stage.pass(Duration::from_secs(20));
        assert!(
            requests.iter().all(|request| stage.result(A, *request).is_some()),
            "a request waits for ever"
        );
        all_talk(&mut stage, 2);
        check_acquainted(&stage, &[0, 1]);
        check_quiet(&mut stage, 2);
    }
}

/// A peer NI is deleted while a message to it is under way: that message ends as it would have, and the next
/// ones go elsewhere.
#[test]
fn edge_case_a_peer_ni_is_deleted_in_use() {
    let mut stage = acquainted();
    let puts = [0, 1].map(|_| stage.put(A, at(B, 0)));
    assert!(stage.under_way().contains(&"put a1>b1"));
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: vec![at(B, 1)], is_forced: false });
    stage.run();
    assert_eq!(puts.map(|put| stage.ended(put)), [Some(true); 2]);
    check_nids(&stage, A, B, &[0]);
    let before = stage.sent("put a1");
    for _ in 0..4 {
        stage.put(A, at(B, 0));
        stage.run();
    }
    assert_eq!(stage.sent("put a1"), before);
    let before = stage.discovery_traffic();
    stage.pass(Duration::from_secs(60));
    stage.check_rest();
    assert_eq!(stage.discovery_traffic(), before);
    // Its message is lost, and so it ends by its time.
    let mut stage = acquainted();
    let puts = [0, 1].map(|_| stage.put(A, at(B, 0)));
    stage.lose("put a1>b1");
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: vec![at(B, 1)], is_forced: false });
    stage.pass(Duration::from_secs(30));
    assert_eq!(puts.map(|put| stage.ended(put)).iter().filter(|ended| **ended == Some(true)).count(), 1);
    stage.check_rest();
}

/// An NI is deleted while messages by it are under way: they are given their time, the request ends, peers
/// hear of it.
#[test]
fn edge_case_an_ni_is_deleted_in_use() {
    for (own, other) in [(A, B), (B, A)] {
        let mut stage = acquainted();
        let puts = [0, 1].map(|_| stage.put(A, at(B, 0)));
        assert!(stage.under_way().contains(&"put a0>b0"));
        let deletion = stage.delete_ni(own, 0);
        stage.pass(Duration::from_secs(30));
        assert_eq!(stage.result(own, deletion), Some(&Ok(Outcome::Changed)));
        assert!(puts.iter().all(|put| stage.ended(*put).is_some()), "a put has no end");
        assert!(puts.iter().any(|put| stage.ended(*put) == Some(true)), "the other rail has it");
        check_knows(&stage, other, own, &[1], MULTI_RAIL);
        check_knows(&stage, own, other, &[1], MULTI_RAIL);
        let put = stage.put(other, at(own, 1));
        stage.run();
        assert_eq!(stage.ended(put), Some(true));
        // The NI comes back.
        stage.add_ni(own, 0);
        stage.run();
        assert_eq!(stage.peer(other, at(own, 0)).unwrap().nis.len(), 2);
        all_talk(&mut stage, 2);
        stage.check_rest();
    }
}

/// A NID goes that messages are under way to and from, the primary one or the other, and the peer tells of it
/// first. Each message arrives once, and is acknowledged; what still comes from the NID makes no peer of it.
#[test]
fn edge_case_a_push_takes_a_nid_away_in_use() {
    for (rail, left, seed) in (0..100).flat_map(|seed| [(0, 1, seed), (1, 0, seed)]) {
        let mut stage = acquainted();
        stage.know_ends();
        let puts = [0; 4].map(|_| [stage.put(A, at(B, rail)), stage.put(B, at(A, rail))]).concat();
        stage.run_some(seed, seed as usize % 6);
        let deletion = stage.delete_ni(B, rail);
        stage.deliver(&["push b"]);
        check_knows(&stage, A, B, &[left], MULTI_RAIL);
        stage.run_in_any_order(seed);
        stage.pass(Duration::from_secs(3));
        assert!(puts.iter().all(|put| stage.ended(*put) == Some(true)), "rail {rail}, seed {seed}");
        assert_eq!(stage.result(B, deletion), Some(&Ok(Outcome::Changed)));
        check_knows(&stage, A, B, &[left], MULTI_RAIL);
        check_quiet(&mut stage, 2);
    }
}

/// The NI by which a peer is pushed to goes while the push is under way, and the peer tells of that first.
#[test]
fn edge_case_the_ni_goes_that_a_push_is_under_way_to() {
    let mut stage = acquainted();
    stage.add_ni(A, 2);
    assert_eq!(stage.under_way(), ["push a0>b0"]);
    stage.delete_ni(B, 0);
    stage.deliver(&["push b1>a"]);
    check_nids(&stage, A, B, &[1]);
    stage.run();
    stage.pass(Duration::from_secs(20));
    check_knows(&stage, A, B, &[1], stage.peer(A, at(B, 1)).unwrap().state);
    all_talk(&mut stage, 2);
    check_knows(&stage, A, B, &[1], MULTI_RAIL);
    check_knows(&stage, B, A, &[0, 1, 2], MULTI_RAIL);
    check_quiet(&mut stage, 2);
}

#[track_caller]
fn check_nids(stage: &Stage, node: usize, other: usize, rails: &[u8]) {
    assert_eq!(stage.peer(node, at(other, rails[0])).map(|peer| peer.nids()), Some(nids(other, rails)));
}

/// The NI goes by which a peer is being pinged for the first time: the discovery fails, and works by the
/// other one.
#[test]
fn edge_case_the_ni_goes_by_which_a_ping_is_under_way() {
    let mut stage = Stage::new(&both());
    let discovery = stage.discover(A, at(B, 0), false);
    stage.delete_ni(A, 0);
    stage.pass(Duration::from_secs(20));
    assert!(stage.result(A, discovery).unwrap().is_err(), "its reply finds no NI");
    stage.put(A, at(B, 1));
    stage.run();
    stage.put(B, at(A, 1));
    stage.run();
    check_nids(&stage, B, A, &[1]);
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    let before = stage.discovery_traffic();
    stage.pass(Duration::from_secs(60));
    stage.check_rest();
    assert_eq!(stage.discovery_traffic(), before);
}

/// A net with two NIs is deleted as a whole while both are in use.
#[test]
fn edge_case_a_net_is_deleted_in_use() {
    let mut stage = acquainted();
    let puts = [0; 6].map(|_| stage.put(A, at(B, 0)));
    let deletion = stage.change(A, NodeChange::DeleteNet { net: at(A, 1).net() });
    // A node that is gone from a net hears no ACK there: such a put ends by its time.
    stage.pass(Duration::from_secs(30));
    assert_eq!(stage.result(A, deletion), Some(&Ok(Outcome::Changed)));
    assert!(puts.iter().all(|put| stage.ended(*put).is_some()));
    check_nids(&stage, B, A, &[0]);
    let before = stage.sent("put a1");
    for _ in 0..4 {
        let put = stage.put(A, at(B, 0));
        stage.run();
        assert_eq!(stage.ended(put), Some(true));
    }
    assert_eq!(stage.sent("put a1"), before);
    let before = stage.discovery_traffic();
    stage.pass(Duration::from_secs(60));
    stage.check_rest();
    assert_eq!(stage.discovery_traffic(), before);
}

/// The net goes on which a peer has its primary NID: it goes by its other NID, and a peer that has none goes.
/// Once the net is back both know all again.
#[test]
fn edge_case_the_net_of_primary_nids_is_deleted_and_comes_back() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0]]);
    for other in [B, C] {
        stage.put(A, at(other, 0));
        stage.run();
    }
    stage.delete_ni(A, 0);
    stage.pass(Duration::from_secs(30));
    check_nids(&stage, A, B, &[1]);
    assert_eq!(stage.peer(A, at(C, 0)), None);
    let put = stage.put(A, at(B, 1));
    stage.run();
    assert_eq!((stage.ended(put), stage.initiator(put)), (Some(true), Some(at(A, 1))));
    stage.add_ni(A, 0);
    stage.run();
    for other in [B, C] {
        stage.put(A, at(other, u8::from(other == B)));
        stage.run();
    }
    all_talk(&mut stage, 3);
    check_nids(&stage, A, B, &[0, 1]);
    check_knows(&stage, A, C, &[0], MULTI_RAIL);
    check_quiet(&mut stage, 3);
}

/// A NID is configured that the peer has not: it is warned of, loses health, and messages go by the other
/// one.
#[test]
fn edge_case_a_peer_is_configured_with_a_nid_that_it_has_not() {
    let mut stage = Stage::new(&[&[0, 1, 2], &[0, 1]]);
    stage.edit(A, configured(B, &[0, 1, 2]));
    for _ in 0..12 {
        stage.put(A, at(B, 0));
        stage.run();
        stage.pass(Duration::from_secs(15));
    }
    let state = MULTI_RAIL | peer_state::CONFIGURED;
    check_knows(&stage, A, B, &[0, 1, 2], state);
    assert!(
        stage.warnings(A).iter().any(|warning| warning.untold == [at(B, 2)] && warning.unknown.is_empty())
    );
    let health = |stage: &Stage| nids(B, &[0, 1, 2]).map_health(stage);
    assert_eq!(health(&stage)[..2], [1000, 1000]);
    assert!(health(&stage)[2] < 1000, "{:?}", health(&stage));
    let before = stage.sent("put a2>b2");
    for _ in 0..4 {
        let put = stage.put(A, at(B, 0));
        stage.run();
        assert_eq!(stage.ended(put), Some(true));
    }
    assert_eq!(stage.sent("put a2>b2"), before, "what is ill comes last");
}

trait Health {
    fn map_health(&self, stage: &Stage) -> Vec<u32>;
}

impl Health for Vec<lnet_wire::Nid> {
    fn map_health(&self, stage: &Stage) -> Vec<u32> {
        let health = |nid| stage.peer(A, nid).and_then(|peer| peer.ni(&nid)).map(|ni| ni.health);
        self.iter().filter_map(|nid| health(*nid)).collect()
    }
}

/// An administrator says that two nodes are one: it stays so, each of them contradicts, and messages arrive
/// where they go.
#[test]
fn edge_case_two_nodes_are_configured_as_one_peer() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0, 1]]);
    let edit = PeerEdit::Add(PeerSpec {
        primary_nid: at(B, 0),
        nids: vec![at(C, 1)],
        multi_rail: true,
        lock_primary: false,
    });
    stage.edit(A, edit);
    for (node, rail) in [(B, 0), (C, 0)] {
        stage.put(node, at(A, rail));
        stage.run();
    }
    let peer = stage.peer(A, at(C, 1)).unwrap();
    assert_eq!((peer.primary, peer.nids()), (at(B, 0), vec![at(B, 0), at(C, 1)]));
    let warnings = stage.warnings(A);
    assert!(warnings.iter().any(|warning| warning.untold == [at(C, 1)] && warning.unknown == [at(B, 1)]));
    // The other one pushes by a NID that is not configured, and claims what is.
    let is_marked = |nid| stage.peer(A, nid).unwrap().is(peer_state::BAD_CONFIG);
    assert!(is_marked(at(C, 1)) && is_marked(at(C, 0)));
    // The other nodes know all as it is.
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    check_knows(&stage, C, A, &[0, 1], MULTI_RAIL);
    // Once the configuration is gone, discovery has it right.
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: vec![], is_forced: false });
    for other in [B, C] {
        stage.discover(A, at(other, 0), true);
        stage.run();
        check_knows(&stage, A, other, &[0, 1], MULTI_RAIL);
    }
    all_talk(&mut stage, 3);
    check_quiet(&mut stage, 3);
}

/// Each administrator has configured less than the other node has: each uses what it knows, and both know of
/// it.
#[test]
fn edge_case_both_nodes_are_configured_with_less_than_there_is() {
    let mut stage = Stage::new(&both());
    stage.edit(A, configured(B, &[0]));
    stage.edit(B, configured(A, &[1]));
    for (node, to) in [(A, at(B, 0)), (B, at(A, 1))] {
        for _ in 0..4 {
            let put = stage.put(node, to);
            stage.run();
            assert_eq!(stage.ended(put), Some(true));
        }
    }
    assert_eq!((stage.sent("put a0>b0"), stage.sent("put b1>a1")), (4, 4));
    // A NID that is not in the configuration is another peer's as far as the node can tell.
    let state = MULTI_RAIL | peer_state::CONFIGURED | peer_state::BAD_CONFIG;
    let of = |stage: &Stage, node, nid| stage.peer(node, nid).map(|peer| (peer.nids(), peer.state));
    assert_eq!(of(&stage, A, at(B, 0)), Some((vec![at(B, 0)], state)));
    assert_eq!(of(&stage, B, at(A, 1)), Some((vec![at(A, 1)], state)));
    assert!(!stage.warnings(A).is_empty() && !stage.warnings(B).is_empty());
    stage.pass(Duration::from_secs(60));
    stage.check_rest();
}
