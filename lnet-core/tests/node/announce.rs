//! Peers that a program announces, and the primary NIDs that it asks for.

use lnet_core::node::{
    Action, ChangeError, NodeChange, Outcome, PeerEdit, PeerError, PingId, Pinged, Report, Request,
    RequestError, peer_state,
};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Runner, nid, refused, spec};

const MULTI_RAIL: Features = Features(0x1E);
const PLAIN: Features = Features(0x06);

/// A node on nets 1 and 2.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 1))]).unwrap();
    runner
}

fn info(features: Features, nids: &[Nid]) -> Vec<u8> {
    numbered(features, 1, nids)
}

fn numbered(features: Features, sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, features, 12345, sequence, nis).unwrap();
    bytes
}

/// The pings that were sent since this was called last.
fn pings(runner: &mut Runner) -> Vec<(PingId, Nid)> {
    let pings = runner.done.extract_if(.., |action| matches!(action, Action::Ping { .. }));
    let pings = pings.filter_map(|action| match action {
        Action::Ping { ping, nid, .. } => Some((ping, nid)),
        _ => None,
    });
    pings.collect()
}

/// All that are pinged answer so.
fn answer(runner: &mut Runner, features: Features, nids: &[Nid]) -> Vec<Nid> {
    let asked = pings(runner);
    for (ping, _) in &asked {
        runner.node.handle_report(runner.now, Report::Answered { ping: *ping, bytes: &info(features, nids) });
        runner.run();
    }
    // The NIDs that it has told say the same of themselves.
    runner.answer_all(nids, &info(features, nids));
    asked.into_iter().map(|(_, nid)| nid).collect()
}

fn pinged(result: Option<Result<Outcome, RequestError>>) -> Pinged {
    match result {
        Some(Ok(Outcome::Pinged(pinged))) => pinged,
        other => panic!("{other:?}"),
    }
}

fn announce(runner: &mut Runner, nids: &[Nid]) -> Result<Outcome, RequestError> {
    let id = runner.start(Request::Announce { nids: nids.to_vec() });
    runner.result(id).expect("an announcement ends at once")
}

/// The primary NID of a NID, if that is known at once.
fn primary(runner: &mut Runner, nid: Nid) -> Option<Nid> {
    let id = runner.start(Request::PrimaryNid { nid });
    runner.result(id).map(|result| pinged(Some(result)).primary)
}

/// What is known of the peer with a NID: its primary NID, the others, and whether it is locked.
#[track_caller]
fn check(runner: &Runner, of: Nid, nids: &[Nid], is_locked: bool) {
    let peer = runner.node.peer(&of).unwrap();
    let mut expected = nids.to_vec();
    expected.sort_by_key(|nid| (nid.net() != nids[0].net(), *nid != nids[0]));
    assert_eq!((peer.nids(), peer.is(peer_state::LOCK_PRIMARY)), (expected, is_locked));
}

#[test]
fn an_announced_peer_goes_by_its_first_usable_nid_whatever_it_tells() {
    let mut runner = runner();
    let [far, first, second] = [nid(7, 9), nid(2, 9), nid(1, 9)];
    let known = pinged(Some(announce(&mut runner, &[far, Nid::LO, nid(1, 1), first, second, second])));
    assert_eq!((known.primary, known.nids, known.is_multi_rail), (first, vec![first], true));
    // The peer tells another NID as its first one.
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[second, first, nid(1, 8)]), [second]);
    check(&runner, second, &[first, second, nid(1, 8)], true);
    assert_eq!(runner.node.peers().count(), 1);
    let state = runner.node.peer(&first).unwrap().state;
    assert_eq!(state, peer_state::LOCK_PRIMARY | 273);
    // It stays when it tells less.
    let push = info(MULTI_RAIL, &[second]);
    let report = Report::Pushed { from: second, bytes: &push, length_bytes: push.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    check(&runner, second, &[first, second], true);
}

/// A peer whose primary NID is locked tells of another one, in its answer and then by push, each time another
/// order: it goes by the locked one, and an administrator who would make a peer of the other one is told so.
#[test]
fn a_locked_peer_that_tells_another_primary_nid_keeps_the_locked_one() {
    let mut runner = runner();
    let [locked, told, third] = [nid(1, 9), nid(2, 9), nid(1, 8)];
    announce(&mut runner, &[locked]).unwrap();
    assert_eq!(primary(&mut runner, locked), Some(locked));
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[told, locked]), [locked]);
    check(&runner, told, &[locked, told], true);
    let orders = [[told, locked, third], [third, told, locked], [told, third, locked]];
    for (sequence, nids) in (2..).zip(orders) {
        let push = numbered(MULTI_RAIL, sequence, &nids);
        let report = Report::Pushed { from: told, bytes: &push, length_bytes: push.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
        runner.answer_all(&[third], &push);
        check(&runner, told, &[locked, told, third], true);
        assert_eq!(runner.node.discovery_counters().taken, u64::from(sequence) - 1);
    }
    assert_eq!((runner.node.peers().count(), primary(&mut runner, third)), (1, Some(locked)));
    let add = |primary| {
        NodeChange::Peer(PeerEdit::Add(PeerSpec {
            primary_nid: primary,
            nids: vec![],
            multi_rail: true,
            lock_primary: true,
        }))
    };
    for (nid, errno, expected) in [
        (told, 114, PeerError::LockedAs { nid: told, primary: locked }),
        (third, 114, PeerError::LockedAs { nid: third, primary: locked }),
        (locked, 17, PeerError::Locked(locked)),
    ] {
        let error = runner.batch(&[add(nid)]).unwrap_err();
        let expected = RequestError::Change { index: 0, error: ChangeError::Peer(expected) };
        assert_eq!((error.errno(), error), (errno, expected));
    }
    check(&runner, told, &[locked, told, third], true);
}

#[test]
fn a_node_that_does_not_tell_of_an_announced_nid_has_it_all_the_same() {
    let mut runner = runner();
    let [first, second] = [nid(1, 9), nid(2, 9)];
    announce(&mut runner, &[first, second]).unwrap();
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[second]), [second]);
    check(&runner, second, &[first, second], true);
}

#[test]
fn a_node_without_multi_rail_is_a_peer_for_each_nid() {
    let mut runner = runner();
    let [first, second] = [nid(1, 9), nid(2, 9)];
    announce(&mut runner, &[first, second]).unwrap();
    answer(&mut runner, PLAIN, &[second]);
    check(&runner, first, &[first], true);
    check(&runner, second, &[second], false);
}

/// What was discovered before becomes a part of what is announced (LNet sanity test 40).
#[test]
fn a_peer_that_is_known_by_its_second_nid_goes_by_the_announced_one() {
    let mut runner = runner();
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let id = runner.start(Request::Discover { nid: second, is_forced: false });
    answer(&mut runner, MULTI_RAIL, &[second, first]);
    assert_eq!(pinged(runner.result(id)).primary, second);
    let known = pinged(Some(announce(&mut runner, &[first, second])));
    assert_eq!((known.primary, known.nids), (first, vec![first, second]));
    assert_eq!(pings(&mut runner), [], "nothing is to be found out");
    check(&runner, second, &[first, second], true);
    // And one that was known by that alone.
    let [first, second] = [nid(1, 8), nid(2, 8)];
    let id = runner.start(Request::Discover { nid: second, is_forced: false });
    answer(&mut runner, MULTI_RAIL, &[second]);
    pinged(runner.result(id));
    announce(&mut runner, &[first, second]).unwrap();
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[second, first]), [second]);
    check(&runner, second, &[first, second], true);
}

#[test]
fn without_discovery_each_announced_nid_is_a_peer() {
    let mut runner = runner();
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 0 }]).unwrap();
    let nids = [nid(1, 9), nid(2, 9), nid(7, 9)];
    let known = pinged(Some(announce(&mut runner, &nids)));
    assert_eq!((known.primary, known.is_multi_rail), (nids[0], false));
    for nid in &nids[..2] {
        check(&runner, *nid, &[*nid], true);
        assert_eq!(primary(&mut runner, *nid), Some(*nid));
    }
    assert_eq!(runner.node.peers().count(), 2);
    assert_eq!(primary(&mut runner, nids[2]), Some(nids[2]), "what is not known stands for itself");
    assert_eq!(pings(&mut runner), []);
}

#[test]
fn what_an_administrator_has_made_stays_and_the_first_lock_wins() {
    let mut runner = runner();
    let nids = [nid(1, 9), nid(2, 9)];
    let add = |primary, locks_primary| {
        NodeChange::Peer(PeerEdit::Add(PeerSpec {
            primary_nid: primary,
            nids: vec![],
            multi_rail: true,
            lock_primary: locks_primary,
        }))
    };
    runner.batch(&[add(nids[1], false)]).unwrap();
    assert_eq!(pinged(Some(announce(&mut runner, &nids))).primary, nids[0]);
    check(&runner, nids[0], &nids[..1], true);
    check(&runner, nids[1], &nids[1..], false);
    assert_eq!(pinged(Some(announce(&mut runner, &[nids[1], nids[0]]))).primary, nids[1]);
    assert_eq!(pings(&mut runner), []);

    let nids = [nid(1, 8), nid(2, 8)];
    announce(&mut runner, &nids[1..]).unwrap();
    announce(&mut runner, &nids).unwrap();
    answer(&mut runner, MULTI_RAIL, &nids);
    check(&runner, nids[0], &[nids[1], nids[0]], true);
}

/// A lock that was set by hand outlives the merge with the peer that was discovered (LNet sanity test 304).
#[test]
fn a_locked_nid_stays_primary_when_its_node_is_found_by_another() {
    for is_first in [true, false] {
        let mut runner = runner();
        let [locked, other] = [nid(1, 9), nid(2, 9)];
        let add = PeerEdit::Add(PeerSpec {
            primary_nid: locked,
            nids: vec![],
            multi_rail: true,
            lock_primary: true,
        });
        runner.batch(&[NodeChange::Peer(add)]).unwrap();
        assert_eq!(runner.node.peer(&locked).unwrap().state, 1_048_585);
        let state = 1_048_577;
        runner.batch(&[NodeChange::Peer(PeerEdit::SetState { nid: locked, state })]).unwrap();
        let id = runner.start(Request::Discover { nid: other, is_forced: false });
        let told = if is_first { [locked, other] } else { [other, locked] };
        answer(&mut runner, MULTI_RAIL, &told);
        pinged(runner.result(id));
        // The NID that was found is shown first, though it is not the primary one.
        check(&runner, other, &[other, locked], true);
        assert_eq!(runner.node.peer(&other).unwrap().primary, locked);
        assert_eq!((runner.node.peer(&other).unwrap().state, runner.node.peers().count()), (1_048_849, 1));
    }
}

#[test]
fn primary_nids_are_found_out_where_they_are_not_known() {
    let mut runner = runner();
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let waiting = runner.start(Request::PrimaryNid { nid: second });
    assert_eq!(runner.result(waiting), None, "it waits for its discovery");
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[first, second]), [second]);
    assert_eq!(pinged(runner.result(waiting)).primary, first);
    assert_eq!(primary(&mut runner, second), Some(first));
    assert_eq!(pings(&mut runner), [], "it is up to date");
    // This node itself.
    assert_eq!(primary(&mut runner, nid(2, 1)), Some(nid(1, 1)));
    assert_eq!(primary(&mut runner, Nid::LO), Some(Nid::LO));
    // One whose discovery fails.
    let waiting = runner.start(Request::PrimaryNid { nid: nid(1, 7) });
    let asked = pings(&mut runner);
    runner.node.handle_report(runner.now, Report::Unanswered { ping: asked[0].0, error: refused() });
    runner.run();
    assert!(matches!(runner.result(waiting), Some(Err(RequestError::Ping { .. }))));
}

#[test]
fn a_locked_primary_nid_is_known_at_once_and_looked_up_besides() {
    let mut runner = runner();
    announce(&mut runner, &[nid(1, 9)]).unwrap();
    assert_eq!(pings(&mut runner), []);
    assert_eq!(primary(&mut runner, nid(1, 9)), Some(nid(1, 9)));
    assert_eq!(answer(&mut runner, MULTI_RAIL, &[nid(2, 9), nid(1, 9)]), [nid(1, 9)]);
    check(&runner, nid(2, 9), &[nid(1, 9), nid(2, 9)], true);
    assert_eq!(primary(&mut runner, nid(2, 9)), Some(nid(1, 9)));
    assert_eq!(pings(&mut runner), []);
}

#[test]
fn what_cannot_be_announced_or_asked_is_refused() {
    let mut runner = runner();
    for nids in [vec![], vec![nid(7, 9), Nid::LO, Nid::ANY]] {
        let refused = announce(&mut runner, &nids).unwrap_err();
        assert_eq!((refused.clone(), refused.errno()), (RequestError::AnnouncedNone, 113));
    }
    for (nid, errno) in [(Nid::ANY, 22), (nid(7, 9), 113)] {
        let id = runner.start(Request::PrimaryNid { nid });
        assert_eq!(runner.result(id).unwrap().unwrap_err().errno(), errno);
    }
    assert_eq!(runner.node.peers().count(), 0);
}

/// Traffic of others takes no place from what a program relies on.
#[test]
fn announced_peers_make_no_room() {
    let mut runner = runner();
    announce(&mut runner, &[nid(1, 9)]).unwrap();
    for number in 0..5000_u32 {
        let nid = Nid::from_small(2 << 48 | 1 << 32 | 11 << 24 | u64::from(number)).unwrap();
        runner.node.handle_report(runner.now, Report::Traffic { nid, is_incoming: true, first_ni: None });
    }
    check(&runner, nid(1, 9), &[nid(1, 9)], true);
    assert_eq!(runner.node.peers().count(), (1 << 12) + 1);
}
