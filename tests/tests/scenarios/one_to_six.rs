//! Scenarios 1 to 6.

use lnet_core::node::{PeerEdit, peer_state};
use lnet_tests::fleet::Stage;
use lnet_wire::Discovery;

use crate::common::{
    A, B, MULTI_RAIL, PLAIN, acquainted, all_talk, at, both, check_acquainted, check_knows, check_quiet,
    configured,
};

/// Known with all its NIs, and about to be told of this node's.
const PUSHING: u32 =
    peer_state::MULTI_RAIL | peer_state::NIDS_UP_TO_DATE | peer_state::DISCOVERING | peer_state::PUSH_SENT;

/// The passive node knows the active one by the NID that pings, and answers there.
#[test]
fn scenario_01_the_passive_node_replies_before_it_knows_of_multi_rail() {
    for rail in [0, 1] {
        let mut stage = Stage::without_waiting(&both());
        stage.put(A, at(B, rail));
        let ping = format!("ping a{rail}>b{rail}");
        assert_eq!(stage.under_way(), [ping.clone(), format!("put a{rail}>b{rail}")]);
        stage.deliver(&[&ping]);
        check_knows(&stage, B, A, &[rail], 0);
        let reply = format!("reply b{rail}>a{rail}");
        stage.deliver(&[&reply]);
        // The active node knows all now, and the passive one what it knew.
        check_knows(&stage, A, B, &[0, 1], PUSHING);
        assert_eq!(stage.peer(B, at(A, rail)).unwrap().nids(), [at(A, rail)]);
        stage.deliver(&[&format!("push a{rail}>b{rail}")]);
        stage.run();
        check_acquainted(&stage, &[0, 1]);
        assert_eq!((stage.sent("ping"), stage.sent("push")), (1, 2), "each tells the other once");
        check_quiet(&mut stage, 2);
    }
}

/// Two peers are one node: they are merged at both ends, and the active one pushes once.
#[test]
fn scenario_02_two_nids_of_a_node_are_pinged_at_once_and_merged() {
    for replies in [["reply b0>a0", "reply b1>a1"], ["reply b1>a1", "reply b0>a0"]] {
        let mut stage = Stage::new(&both());
        stage.put(A, at(B, 0));
        stage.put(A, at(B, 1));
        assert_eq!(stage.peers(A).count(), 2);
        stage.deliver(&["ping a0>b0", "ping a1>b1"]);
        assert_eq!(stage.peers(B).count(), 2, "it cannot know yet");
        stage.deliver(&replies);
        assert_eq!(stage.peers(A).count(), 1);
        assert_eq!((stage.sent("push a"), stage.peers(B).count()), (1, 2));
        stage.deliver(&["push a"]);
        assert_eq!(stage.peers(B).count(), 1);
        stage.run();
        check_acquainted(&stage, &[0, 1]);
        assert_eq!((stage.sent("ping"), stage.sent("push a")), (2, 1), "the second reply needs no push");
        check_quiet(&mut stage, 2);
    }
}

/// A peer is configured, or deleted, while it is being discovered: what is configured stays, what is deleted
/// is not made again by a late reply.
#[test]
fn scenario_03_the_administrator_changes_a_peer_that_is_being_discovered() {
    // Configured between ping and reply, with less than there is.
    let mut stage = Stage::without_waiting(&[&[0, 1], &[0, 1, 2]]);
    stage.put(A, at(B, 0));
    stage.deliver(&["ping a0>b0"]);
    stage.edit(A, configured(B, &[0, 1]));
    stage.run();
    // The discovery went with the peer that it was about; that of the new one begins with its first use.
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL | peer_state::CONFIGURED);
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    assert!(stage.warnings(A).iter().any(|warning| warning.unknown == [at(B, 2)]));
    check_quiet(&mut stage, 2);

    // Deleted between ping and reply.
    let mut stage = Stage::without_waiting(&both());
    let discovery = stage.discover(A, at(B, 0), false);
    stage.deliver(&["ping a0>b0"]);
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: Vec::new(), is_forced: false });
    assert!(stage.result(A, discovery).unwrap().is_err(), "what waits for the peer ends");
    stage.run();
    assert_eq!(stage.peers(A).count(), 0, "a late reply makes no peer");
    stage.put(A, at(B, 1));
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    check_quiet(&mut stage, 2);

    // Deleted between push and ACK.
    let mut stage = Stage::without_waiting(&both());
    stage.put(A, at(B, 0));
    stage.deliver(&["put", "done", "ping", "reply", "push a0>b0"]);
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: Vec::new(), is_forced: false });
    stage.deliver(&["ack"]);
    assert_eq!(stage.peers(A).count(), 0);
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    check_quiet(&mut stage, 2);
}

/// An administrator changes a peer that was discovered. A NID that goes comes back with the next word of the
/// peer; a peer that is made stays as it is made.
#[test]
fn scenario_04_the_administrator_changes_a_discovered_peer() {
    let mut stage = acquainted();
    // The turn of the other rail passes.
    stage.put(A, at(B, 1));
    stage.run();
    let put = stage.put(A, at(B, 1));
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: vec![at(B, 1)], is_forced: false });
    check_knows(&stage, A, B, &[0], MULTI_RAIL);
    stage.run();
    assert_eq!(stage.ended(put), Some(true), "what was under way has arrived");
    let discovery = stage.discover(A, at(B, 0), true);
    stage.deliver(&["ping"]);
    // The peer goes a second time, while its node answers the ping.
    stage.edit(A, PeerEdit::Delete { primary: at(B, 0), nids: Vec::new(), is_forced: false });
    assert!(stage.result(A, discovery).unwrap().is_err());
    stage.edit(A, configured(B, &[0]));
    stage.run();
    check_knows(&stage, A, B, &[0], stage.peer(A, at(B, 0)).unwrap().state);
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, A, B, &[0], MULTI_RAIL | peer_state::CONFIGURED);
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    assert!(stage.warnings(A).iter().all(|warning| warning.unknown == [at(B, 1)]));
    check_quiet(&mut stage, 2);
}

/// What is configured stays, whatever a ping or a push says; both are warned of.
#[test]
fn scenario_05_discovery_changes_no_configured_peer() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1, 2]]);
    stage.edit(A, configured(B, &[1, 0]));
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, A, B, &[1, 0], MULTI_RAIL | peer_state::CONFIGURED);
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    let warnings = stage.warnings(A);
    assert!(!warnings.is_empty());
    for warning in warnings {
        let its = (warning.primary, warning.told_primary, warning.unknown.clone(), warning.untold.clone());
        assert_eq!(its, (at(B, 1), Some(at(B, 0)), vec![at(B, 2)], vec![]), "{warning}");
    }
    // A push that says something new, and one that says what is configured.
    stage.add_ni(B, 3);
    stage.run();
    check_knows(&stage, A, B, &[1, 0], MULTI_RAIL | peer_state::CONFIGURED);
    assert_eq!(stage.warnings(A).last().unwrap().unknown, [at(B, 2), at(B, 3)]);
    check_quiet(&mut stage, 2);
}

/// The passive node takes no part: the active one knows a NID and does not push; of what is pushed all the
/// same the passive node takes no NIDs.
#[test]
fn scenario_06_the_passive_node_has_discovery_switched_off() {
    let mut stage = Stage::new(&both());
    stage.set_discovery(B, Discovery::Off);
    stage.put(A, at(B, 1));
    stage.run();
    check_knows(&stage, A, B, &[1], PLAIN);
    check_knows(&stage, B, A, &[1], 0);
    assert_eq!((stage.sent("ping"), stage.sent("push")), (1, 0));
    all_talk(&mut stage, 2);
    check_quiet(&mut stage, 2);
    check_knows(&stage, B, A, &[1], PLAIN);

    // Switched off while a push is under way to it.
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.deliver(&["ping", "reply"]);
    stage.set_discovery(B, Discovery::Off);
    stage.deliver(&["push a0>b0"]);
    check_knows(&stage, B, A, &[0], PLAIN);
    stage.run();
    assert_eq!(stage.peer(B, at(A, 1)), None);
    // There was no node to tell that; the active node finds out when it asks.
    stage.discover(A, at(B, 0), true);
    stage.run();
    check_knows(&stage, A, B, &[0], PLAIN);
    all_talk(&mut stage, 2);
    check_quiet(&mut stage, 2);

    // Switched off at a node that is known: it tells all.
    let mut stage = acquainted();
    stage.set_discovery(B, Discovery::Off);
    stage.run();
    check_knows(&stage, A, B, &[0], PLAIN);
    all_talk(&mut stage, 2);
    check_quiet(&mut stage, 2);
}
