//! What the tests of scenarios have in common: node `a` is 0, `b` is 1, `c` is 2.

use std::time::Duration;

use lnet_core::node::{PeerEdit, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_tests::fleet::{Stage, nid};
use lnet_wire::Nid;

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;

/// Multi-Rail, discovered, up to date.
pub(crate) const MULTI_RAIL: u32 =
    peer_state::MULTI_RAIL | peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE;
/// Discovered, up to date, and no more than a NID.
pub(crate) const PLAIN: u32 = peer_state::NO_DISCOVERY | peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE;

pub(crate) const fn both() -> [&'static [u8]; 2] {
    [&[0, 1], &[0, 1]]
}

/// The NID of a node on a rail.
pub(crate) fn at(node: usize, rail: u8) -> Nid {
    nid(node as u32, rail)
}

pub(crate) fn nids(node: usize, rails: &[u8]) -> Vec<Nid> {
    rails.iter().map(|rail| at(node, *rail)).collect()
}

/// A node has one peer for another node: it has the NIDs of these rails, the first is the primary one.
#[track_caller]
pub(crate) fn check_knows(stage: &Stage, node: usize, other: usize, rails: &[u8], state: u32) {
    let is_of = |nid: &Nid| (0..16).any(|rail| at(other, rail) == *nid);
    let found: Vec<_> = stage.peers(node).filter(|peer| peer.nids().iter().any(is_of)).collect();
    let told: Vec<_> = found.iter().map(|peer| (peer.shown_primary(), peer.nids(), peer.state)).collect();
    assert_eq!(told, [(at(other, rails[0]), nids(other, rails), state)], "node {node} of node {other}");
}

/// Two nodes know each other with all NIs on these rails.
#[track_caller]
pub(crate) fn check_acquainted(stage: &Stage, rails: &[u8]) {
    check_knows(stage, A, B, rails, MULTI_RAIL);
    check_knows(stage, B, A, rails, MULTI_RAIL);
}

/// Nothing is under way, and what is said from now on has no discovery: to each known NID something is put,
/// and ten minutes pass.
#[track_caller]
pub(crate) fn check_quiet(stage: &mut Stage, nodes: usize) {
    stage.run();
    let before = stage.discovery_traffic();
    for node in 0..nodes {
        let known: Vec<Nid> = stage.peers(node).flat_map(|peer| peer.nids()).collect();
        for nid in known {
            stage.put(node, nid);
            stage.run();
        }
    }
    stage.pass(Duration::from_secs(600));
    stage.check_rest();
    assert_eq!(stage.discovery_traffic(), before, "pings and pushes though nothing has changed");
}

/// Each of so many nodes puts something to each NID that it knows, and so finds out what there is to be found
/// out: also of those that it knows by that alone.
pub(crate) fn all_talk(stage: &mut Stage, nodes: usize) {
    for node in (0..nodes).cycle().take(3 * nodes) {
        let known: Vec<Nid> = stage.peers(node).flat_map(|peer| peer.nids()).collect();
        for nid in known {
            stage.put(node, nid);
        }
        stage.run();
    }
}

/// Two nodes with two rails that know each other.
pub(crate) fn acquainted() -> Stage {
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    stage
}

/// The administrator makes a Multi-Rail peer of these NIDs of a node.
pub(crate) fn configured(node: usize, rails: &[u8]) -> PeerEdit {
    let (primary, nids) = (at(node, rails[0]), nids(node, &rails[1..]));
    PeerEdit::Add(PeerSpec { primary_nid: primary, nids, multi_rail: true, lock_primary: false })
}
