//! Discovery that verifies: it asks and tells as ever, compares, warns, and changes nothing.

use std::time::Duration;

use lnet_core::node::{Difference, PeerEdit, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_tests::fleet::Stage;
use lnet_wire::Discovery;

use crate::common::{
    A, B, MULTI_RAIL, acquainted, all_talk, at, both, check_knows, check_quiet, configured, nids,
};

fn verifying() -> Stage {
    let mut stage = Stage::new(&both());
    stage.set_discovery(A, Discovery::Verify);
    stage
}

const CONFIGURED: u32 = MULTI_RAIL | peer_state::CONFIGURED;

#[test]
fn verification_says_nothing_of_a_configuration_that_is_right() {
    let mut stage = verifying();
    stage.edit(A, configured(B, &[0, 1]));
    stage.put(A, at(B, 0));
    stage.run();
    check_knows(&stage, A, B, &[0, 1], CONFIGURED);
    assert_eq!(stage.warnings(A), []);
    // The verifying node tells what it is, and the other one, which only discovers, takes it over.
    assert_eq!((stage.sent("ping a"), stage.sent("push a")), (1, 1));
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 2);
}

#[test]
fn verification_warns_of_every_difference_and_changes_nothing() {
    let mut stage = verifying();
    let edit = PeerEdit::Add(PeerSpec {
        primary_nid: at(B, 1),
        nids: vec![at(B, 5)],
        multi_rail: true,
        lock_primary: false,
    });
    stage.edit(A, edit);
    stage.discover(A, at(B, 1), false);
    stage.run();
    let expected = Difference {
        primary: at(B, 1),
        told_primary: Some(at(B, 0)),
        unknown: vec![at(B, 0)],
        untold: vec![at(B, 5)],
        is_multi_rail: None,
        own: vec![],
        cut_count: 0,
    };
    let warnings = stage.warnings(A);
    assert!(warnings.contains(&expected), "{warnings:?}");
    assert_eq!(
        expected.to_string(),
        "it tells, and is not known by, 10.0.0.2@xdp; it does not tell 10.0.0.2@xdp5; its primary nid is 10.0.0.2@xdp"
    );
    let peer = stage.peer(A, at(B, 5)).unwrap();
    assert_eq!((peer.nids(), peer.state), (nids(B, &[1, 5]), CONFIGURED | peer_state::BAD_CONFIG));
    check_quiet_once_used(&mut stage);
    // The configuration is put right: the mark goes with the next word of the peer.
    stage.edit(A, PeerEdit::Delete { primary: at(B, 1), nids: vec![], is_forced: false });
    stage.edit(A, configured(B, &[0, 1]));
    stage.warnings(A);
    stage.discover(A, at(B, 0), true);
    stage.run();
    check_knows(&stage, A, B, &[0, 1], CONFIGURED);
    assert_eq!(stage.warnings(A), []);
}

/// Nothing is put to a NID that is not there.
fn check_quiet_once_used(stage: &mut Stage) {
    stage.run();
    let before = stage.discovery_traffic();
    stage.put(B, at(A, 0));
    stage.run();
    stage.pass(Duration::from_secs(300));
    assert_eq!(stage.discovery_traffic(), before);
}

#[test]
fn verification_warns_of_another_kind_of_peer() {
    let mut stage = verifying();
    let edit = PeerEdit::Add(PeerSpec {
        primary_nid: at(B, 0),
        nids: vec![at(B, 1)],
        multi_rail: false,
        lock_primary: false,
    });
    stage.edit(A, edit);
    stage.put(A, at(B, 0));
    stage.run();
    let warnings = stage.warnings(A);
    assert!(warnings.iter().all(|one| one.is_multi_rail == Some(true) && one.unknown.is_empty()));
    assert!(warnings[0].to_string().ends_with("it is Multi-Rail"), "{}", warnings[0]);
    assert!(!stage.peer(A, at(B, 0)).unwrap().is_multi_rail());
    assert_eq!(stage.sent("push a"), 0, "nor is it treated as one");
}

/// A push with several NIDs merits a warning where none is configured, one with a single NID does not.
#[test]
fn verification_takes_no_nids_of_a_push() {
    for (rails, warns) in [(&[0, 1][..], true), (&[0][..], false)] {
        let mut stage = Stage::new(&[&[0, 1], rails]);
        stage.set_discovery(A, Discovery::Verify);
        stage.put(B, at(A, 0));
        stage.run();
        assert!(stage.sent("push b0>a0") > 0);
        let peer = stage.peer(A, at(B, 0)).unwrap();
        let bit = if warns { peer_state::BAD_CONFIG } else { 0 };
        let state = MULTI_RAIL & !peer_state::MULTI_RAIL | bit;
        assert_eq!((peer.nids(), peer.state), (vec![at(B, 0)], state));
        assert_eq!(!stage.warnings(A).is_empty(), warns);
        all_talk(&mut stage, 2);
        check_quiet(&mut stage, 2);
    }
}

/// What was discovered before stays as it was, and is compared with what its node tells from then on.
#[test]
fn verification_begins_and_ends_among_discovered_peers() {
    let mut stage = acquainted();
    stage.set_discovery(A, Discovery::Verify);
    stage.pass(Duration::from_secs(60));
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    stage.add_ni(B, 2);
    stage.run();
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL | peer_state::BAD_CONFIG);
    assert_eq!(stage.warnings(A)[0].unknown, [at(B, 2)]);
    stage.delete_ni(B, 1);
    stage.run();
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL | peer_state::BAD_CONFIG);
    assert_eq!(stage.warnings(A)[0].untold, [at(B, 1)]);
    stage.set_discovery(A, Discovery::On);
    stage.discover(A, at(B, 0), true);
    stage.run();
    check_knows(&stage, A, B, &[0, 2], MULTI_RAIL);
    all_talk(&mut stage, 2);
    check_quiet(&mut stage, 2);
}
