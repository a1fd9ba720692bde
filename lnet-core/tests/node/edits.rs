//! NIDs that the administrator adds to peers that were found.

use lnet_core::node::{Node, NodeChange, Peer, PeerEdit, Report, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Lnd, Runner, nid, spec};

const MULTI_RAIL: Features = Features(0x1E);

/// A node that has found a peer with these NIDs, the first of which pushed them.
fn knowing(nids: &[Nid]) -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))]).unwrap();
    tell(&mut runner, 1, nids);
    assert_eq!(peer(&runner, nids[0]).proven_nids(), nids);
    runner
}

/// A push by the first of these NIDs; the others say the same.
fn tell(runner: &mut Runner, sequence: u32, nids: &[Nid]) {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, nis).unwrap();
    let report = Report::Pushed { from: nids[0], bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    runner.answer_all(&nids[1..], &bytes);
}

fn add(runner: &mut Runner, primary_nid: Nid, nids: &[Nid], multi_rail: bool) {
    let spec = PeerSpec { primary_nid, nids: nids.to_vec(), multi_rail, lock_primary: false };
    runner.batch(&[NodeChange::Peer(PeerEdit::Add(spec))]).unwrap();
}

fn peer(runner: &Runner, nid: Nid) -> &Peer {
    let node: &Node<Lnd> = &runner.node;
    node.peer(&nid).unwrap()
}

/// The NIDs of a peer, and those of them that are configured.
fn nids(runner: &Runner, nid: Nid) -> [Vec<Nid>; 2] {
    let peer = peer(runner, nid);
    let configured = peer.nis.iter().filter(|ni| ni.is_configured).map(|ni| ni.nid);
    [peer.nids(), configured.collect()]
}

#[test]
fn a_found_peer_keeps_its_nids_beside_those_that_are_configured() {
    let [first, second, added] = [nid(1, 9), nid(2, 9), nid(2, 8)];
    let mut runner = knowing(&[first, second]);
    runner.batch(&[NodeChange::Peer(PeerEdit::SetHealth { nid: Some(second), value: 700 })]).unwrap();
    add(&mut runner, first, &[added], true);
    assert_eq!(nids(&runner, first), [vec![first, second, added], vec![first, added]]);
    let state = peer_state::MULTI_RAIL | peer_state::CONFIGURED | peer_state::DISCOVERED;
    assert!(peer(&runner, first).is(state));
    assert_eq!(peer(&runner, first).ni(&second).unwrap().health, 700, "what is known of it is not forgotten");
    assert!(runner.topology.peer(&added).is_some_and(|peer| peer.primary == first));

    // Told are all that were found: nothing goes.
    tell(&mut runner, 2, &[first, second]);
    assert_eq!(nids(&runner, first), [vec![first, second, added], vec![first, added]]);
    // A NID that was found and is told no more goes, one that is configured stays. What is new is not taken.
    tell(&mut runner, 3, &[first, nid(1, 7)]);
    assert_eq!(nids(&runner, first), [vec![first, added], vec![first, added]]);
    assert!(runner.topology.peer(&second).is_none());
    assert_eq!(runner.topology.known_as(&second), first, "what is under way to it finds its peer");
    let warnings: Vec<_> = core::iter::from_fn(|| runner.node.poll_difference()).collect();
    let last = warnings.last().unwrap();
    assert_eq!((&last.unknown[..], &last.untold[..]), (&[nid(1, 7)][..], &[added][..]));
}

#[test]
fn a_found_peer_goes_by_the_nid_that_is_configured_as_its_primary_one() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let mut runner = knowing(&[first, second]);
    add(&mut runner, second, &[], true);
    assert_eq!(nids(&runner, first), [vec![second, first], vec![second]]);
    assert_eq!(peer(&runner, first).primary, second);
    tell(&mut runner, 2, &[first, second]);
    assert_eq!(peer(&runner, first).primary, second, "the administrator's word stands");
    // A second time a NID that was found is made a configured one.
    add(&mut runner, second, &[first], true);
    tell(&mut runner, 3, &[second]);
    assert_eq!(nids(&runner, first), [vec![second, first], vec![second, first]]);
}

#[test]
fn a_found_peer_that_is_to_be_no_multi_rail_one_is_made_anew() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let mut runner = knowing(&[first, second]);
    add(&mut runner, first, &[], false);
    assert_eq!(nids(&runner, first), [vec![first], vec![first]]);
    assert!(runner.node.peer(&second).is_none() && !peer(&runner, first).is_multi_rail());
}

/// NIDs that were found leave a peer for another one that is configured with them; configured ones do not.
#[test]
fn a_nid_that_was_found_moves_to_the_peer_that_it_is_configured_for() {
    let [first, second, added, other] = [nid(1, 9), nid(2, 9), nid(2, 8), nid(1, 6)];
    let mut runner = knowing(&[first, second]);
    add(&mut runner, first, &[added], true);
    add(&mut runner, other, &[second], true);
    assert_eq!(nids(&runner, first), [vec![first, added], vec![first, added]]);
    assert_eq!(nids(&runner, other), [vec![other, second], vec![other, second]]);
    let nids = vec![added];
    let spec = PeerSpec { primary_nid: other, nids, multi_rail: true, lock_primary: false };
    let refused = runner.batch(&[NodeChange::Peer(PeerEdit::Add(spec))]).unwrap_err();
    assert!(refused.to_string().contains("belongs to the configured peer"), "{refused}");
}

/// A NID that the peer claims is its own by the administrator's word; other claims go on.
#[test]
fn a_claimed_nid_is_the_peers_once_it_is_configured() {
    let [first, claimed, other] = [nid(1, 9), nid(2, 9), nid(2, 8)];
    let mut runner = knowing(&[first]);
    let nis = [first, claimed, other].map(|nid| PingNi { nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.into_iter()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, 2, nis).unwrap();
    let report = Report::Pushed { from: first, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    assert_eq!(peer(&runner, first).proven_nids(), [first], "nothing has answered");
    add(&mut runner, first, &[claimed], true);
    assert_eq!(peer(&runner, first).proven_nids(), [first, claimed]);
    runner.answer_all(&[claimed, other], &bytes);
    assert_eq!(nids(&runner, first), [vec![first, claimed, other], vec![first, claimed]]);
    tell(&mut runner, 3, &[first]);
    assert_eq!(nids(&runner, first), [vec![first, claimed], vec![first, claimed]]);
}

/// A peer that loses the net of its primary NID goes by one that is configured, if there is one; the NID
/// that it goes by stays even where the peer does not tell it.
#[test]
fn a_configured_peer_goes_by_a_configured_nid_when_a_net_goes() {
    let [first, second, added] = [nid(1, 9), nid(2, 9), nid(2, 8)];
    for (nids, expected) in [(vec![added], added), (vec![], second)] {
        let mut runner = knowing(&[first, second]);
        add(&mut runner, first, &nids, true);
        runner.batch(&[NodeChange::DeleteNet { net: first.net() }]).unwrap();
        assert_eq!(peer(&runner, second).primary, expected);
        tell(&mut runner, 2, &[nid(2, 7), expected]);
        assert!(peer(&runner, expected).ni(&expected).is_some());
        let nis = [first, expected].map(|nid| PingNi { nid, status: NiStatus::UP });
        let mut bytes = vec![0; ping::encoded_bytes(nis.into_iter()).unwrap()];
        ping::write(&mut bytes, MULTI_RAIL, 12345, 3, nis).unwrap();
        let report = Report::Pushed { from: expected, bytes: &bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
        assert_eq!(peer(&runner, expected).primary, expected);
    }
}

/// The state bit stands for all NIDs when it is set or cleared by hand.
#[test]
fn the_configured_bit_that_is_cleared_by_hand_leaves_no_configured_nid() {
    let [first, added] = [nid(1, 9), nid(2, 8)];
    let mut runner = knowing(&[first]);
    add(&mut runner, first, &[added], true);
    let state = peer(&runner, first).state & !peer_state::CONFIGURED;
    runner.batch(&[NodeChange::Peer(PeerEdit::SetState { nid: first, state })]).unwrap();
    tell(&mut runner, 2, &[first]);
    assert_eq!(nids(&runner, first), [vec![first], vec![]]);
}

/// Where what peers tell is only compared, nothing that was found goes.
#[test]
fn verification_takes_no_nid_away() {
    let [first, second, added] = [nid(1, 9), nid(2, 9), nid(2, 8)];
    let mut runner = knowing(&[first, second]);
    add(&mut runner, first, &[added], true);
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 2 }]).unwrap();
    tell(&mut runner, 2, &[first]);
    assert_eq!(nids(&runner, first)[0], [first, second, added]);
}
