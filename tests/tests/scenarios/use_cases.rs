//! The use cases: nodes with and without Multi-Rail, upgraded and downgraded in place, and what changes in a
//! running cluster.

use std::time::Duration;

use lnet_core::node::{NodeChange, peer_state};
use lnet_core::udsp::RuleEdit;
use lnet_model::udsp::UdspRule;
use lnet_tests::fleet::Stage;

use crate::common::{
    A, B, C, MULTI_RAIL, PLAIN, acquainted, all_talk, at, both, check_acquainted, check_knows, check_quiet,
};

/// Clients with two rails, of which none knows of Multi-Rail if `are_old`, and a server.
fn cluster(are_old: [bool; 3]) -> Stage {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0, 1]]);
    for (node, is_old) in are_old.into_iter().enumerate() {
        stage.restart(node, is_old);
    }
    stage
}

/// Eight puts from a node to a NID; the names under which they went, without repetition.
fn paths(stage: &mut Stage, node: usize, to: lnet_wire::Nid) -> Vec<String> {
    let letter = char::from(b'a' + node as u8);
    let all = |stage: &Stage| {
        let ways = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let of_peer = [A, B, C].into_iter().filter(|other| *other != node);
        let names = of_peer.flat_map(|other| {
            let other = char::from(b'a' + other as u8);
            ways.map(|(from, to)| format!("put {letter}{from}>{other}{to}"))
        });
        names.map(|name| (stage.sent(&name), name)).collect::<Vec<_>>()
    };
    let before = all(stage);
    for _ in 0..8 {
        let put = stage.put(node, to);
        stage.run();
        assert_eq!(stage.ended(put), Some(true));
    }
    let used = all(stage).into_iter().zip(before).filter(|((now, _), (before, _))| now > before);
    used.map(|((_, name), _)| name).collect()
}

/// Static 1: it is known by the NID that is used, hears of one source NID, and is not pushed to.
#[test]
fn use_case_1_a_multi_rail_client_and_an_old_server() {
    let mut stage = cluster([false, true, false]);
    assert_eq!(paths(&mut stage, A, at(B, 0)), ["put a0>b0"]);
    check_knows(&stage, A, B, &[0], PLAIN);
    assert_eq!((stage.sent("ping a0>b0"), stage.sent("push")), (1, 0));
    check_quiet(&mut stage, 1);
}

/// Static 2: an old client speaks to a Multi-Rail server, and is answered where it spoke from.
#[test]
fn use_case_2_an_old_client_and_a_multi_rail_server() {
    let mut stage = cluster([true, false, false]);
    for rail in [0, 1] {
        let put = stage.put(A, at(B, rail));
        stage.run();
        assert_eq!((stage.ended(put), stage.sent(&format!("done b{rail}>a{rail}"))), (Some(true), 1));
    }
    // Each of its NIDs is a peer of its own.
    for rail in [0, 1] {
        assert_eq!(paths(&mut stage, B, at(A, rail)), [format!("put b{rail}>a{rail}")]);
        let peer = stage.peer(B, at(A, rail)).unwrap();
        assert_eq!((peer.nids(), peer.state), (vec![at(A, rail)], PLAIN));
    }
    assert_eq!(stage.sent("push"), 0);
    check_quiet(&mut stage, 2);
}

/// Static 3: all rails are used, both ways.
#[test]
fn use_case_3_multi_rail_clients_and_servers() {
    let mut stage = cluster([false; 3]);
    for (node, other) in [(A, B), (C, B)] {
        stage.put(node, at(other, 0));
        stage.run();
        check_knows(&stage, node, other, &[0, 1], MULTI_RAIL);
        check_knows(&stage, other, node, &[0, 1], MULTI_RAIL);
    }
    assert_eq!(paths(&mut stage, A, at(B, 0)), ["put a0>b0", "put a1>b1"]);
    assert_eq!(paths(&mut stage, B, at(C, 1)), ["put b0>c0", "put b1>c1"]);
    check_quiet(&mut stage, 3);
}

/// Change 1: a client is upgraded in place. The server knows it as no more than a NID until it is pushed to.
#[test]
fn use_case_4_a_client_is_upgraded_in_place() {
    let mut stage = cluster([true, false, false]);
    stage.put(A, at(B, 0));
    stage.put(A, at(B, 1));
    stage.run();
    all_talk(&mut stage, 2);
    assert_eq!(stage.peers(B).count(), 2, "a peer for each of its NIDs");
    stage.restart(A, false);
    stage.put(A, at(B, 1));
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    assert_eq!(paths(&mut stage, B, at(A, 0)), ["put b0>a0", "put b1>a1"]);
    check_quiet(&mut stage, 2);
}

/// Change 2: a client is downgraded in place. Once the server asks again it is a NID for each of its NIs.
#[test]
fn use_case_5_a_client_is_downgraded_in_place() {
    let mut stage = acquainted();
    stage.restart(A, true);
    stage.discover(B, at(A, 0), true);
    stage.run();
    check_knows(&stage, B, A, &[0], PLAIN);
    assert_eq!(paths(&mut stage, B, at(A, 0)), ["put b0>a0"]);
    // What it has at the other NI is another peer from now on.
    stage.put(A, at(B, 1));
    stage.run();
    all_talk(&mut stage, 2);
    assert_eq!(stage.peers(B).count(), 2);
    assert!(stage.peers(B).all(|peer| peer.state == PLAIN));
    check_quiet(&mut stage, 2);
}

/// A server that knows a client well sends to a node that has begun a new life, in the same version: its
/// first push is older than what is known, and the server asks.
#[test]
fn use_case_5_a_node_begins_a_new_life_with_less() {
    let mut stage = Stage::new(&both());
    for rail in [2, 3, 4] {
        stage.add_ni(A, rail);
    }
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, B, A, &[0, 1, 2, 3, 4], MULTI_RAIL);
    stage.delete_ni(A, 4);
    stage.run();
    stage.restart(A, false);
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, B, A, &[0, 1, 2, 3], MULTI_RAIL);
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 2);
}

/// Running 1 and 2: a net comes at both nodes, and goes at one of them.
#[test]
fn use_case_6_a_net_is_added_and_deleted_at_running_nodes() {
    let mut stage = acquainted();
    stage.add_ni(A, 2);
    stage.run();
    stage.add_ni(B, 2);
    stage.run();
    check_acquainted(&stage, &[0, 1, 2]);
    let before = stage.sent("put a2>b2");
    for _ in 0..6 {
        stage.put(A, at(B, 0));
        stage.run();
    }
    assert!(stage.sent("put a2>b2") > before, "it is used");
    stage.delete_ni(B, 2);
    stage.run();
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    check_knows(&stage, B, A, &[0, 1, 2], MULTI_RAIL);
    // The NI goes when nothing has come by it for a while.
    stage.pass(Duration::from_millis(100));
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    let before = stage.sent("put a2>b2");
    for _ in 0..6 {
        stage.put(A, at(B, 0));
        stage.run();
    }
    assert_eq!(stage.sent("put a2>b2"), before, "it is not used any more");
    check_quiet(&mut stage, 2);
}

/// Running 5 and 6: a selection policy comes, and goes.
#[test]
fn use_case_7_selection_policies_are_added_and_deleted_at_a_running_node() {
    let mut stage = acquainted();
    assert_eq!(paths(&mut stage, A, at(B, 0)), ["put a0>b0", "put a1>b1"]);
    let rule = UdspRule::new(Some("xdp1".parse().unwrap()), None, None, Some(0));
    stage.change(A, NodeChange::Udsp(RuleEdit::Add { index: None, rule }));
    stage.run();
    assert_eq!(paths(&mut stage, A, at(B, 0)), ["put a1>b1"]);
    stage.change(A, NodeChange::Udsp(RuleEdit::Delete { index: Some(0) }));
    stage.run();
    assert_eq!(paths(&mut stage, A, at(B, 0)), ["put a0>b0", "put a1>b1"]);
    assert!(stage.peer(A, at(B, 0)).unwrap().is(peer_state::MULTI_RAIL));
    check_quiet(&mut stage, 2);
}
