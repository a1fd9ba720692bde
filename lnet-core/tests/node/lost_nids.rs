//! NIDs that peers lose: what is still on its way to them, and comes from them.

use std::time::Duration;

use lnet_core::node::{Action, DriverError, NodeChange, PeerEdit, Report, Request, RequestError};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Runner, nid, spec};

const MULTI_RAIL: Features = Features(0x1E);
/// How long a NID is remembered, by the default tunables.
const TIME: Duration = lnet_core::tunables::Tunables::DEFAULT.transaction_timeout;

/// A node on two nets, that knows a peer with a NID on each.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))]).unwrap();
    push(&mut runner, 5, nid(1, 9), &[nid(1, 9), nid(2, 9)]);
    assert_eq!(peers(&runner), [vec![nid(1, 9), nid(2, 9)]]);
    runner
}

/// A push, and its NIDs say the same.
fn push(runner: &mut Runner, sequence: u32, from: Nid, nids: &[Nid]) {
    let bytes = say(runner, sequence, from, nids);
    let others: Vec<_> = nids.iter().filter(|nid| **nid != from).copied().collect();
    runner.answer_all(&others, &bytes);
}

fn say(runner: &mut Runner, sequence: u32, from: Nid, nids: &[Nid]) -> Vec<u8> {
    let bytes = told(sequence, nids);
    let report = Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    bytes
}

fn traffic(runner: &mut Runner, nid: Nid, is_incoming: bool) {
    runner.node.handle_report(runner.now, Report::Traffic { nid, is_incoming, first_ni: None });
    runner.run();
}

fn peers(runner: &Runner) -> Vec<Vec<Nid>> {
    runner.node.peers().map(|peer| peer.nids()).collect()
}

/// The shards hear of a NID that its peer has lost, by which NID the peer is known now.
#[track_caller]
fn check_known(runner: &Runner, lost: Nid, other: Nid) {
    assert_eq!(runner.topology.known_as(&lost), other);
    assert!(runner.topology.peer(&lost).is_none(), "it is no peer's");
}

#[test]
fn shards_hear_by_which_nid_a_peer_is_known_that_has_lost_one() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    for (lost, left) in [(second, first), (first, second)] {
        let mut runner = runner();
        push(&mut runner, 6, left, &[left]);
        check_known(&runner, lost, left);
        // Its others go and come as well.
        push(&mut runner, 7, left, &[left, nid(1, 10)]);
        push(&mut runner, 8, nid(1, 10), &[nid(1, 10)]);
        check_known(&runner, lost, nid(1, 10));
        check_known(&runner, left, nid(1, 10));
        push(&mut runner, 9, nid(1, 10), &[nid(1, 10), lost]);
        assert_eq!(runner.topology.known_as(&lost), lost, "it is the peer's again");
    }
    let edits = [
        PeerEdit::Delete { primary: first, nids: vec![second], is_forced: false },
        PeerEdit::Add(PeerSpec {
            primary_nid: first,
            nids: vec![nid(2, 10)],
            multi_rail: false,
            lock_primary: false,
        }),
    ];
    for edit in edits {
        let mut runner = runner();
        runner.batch(&[NodeChange::Peer(edit)]).unwrap();
        check_known(&runner, second, first);
    }
}

/// What comes late was sent before the peer has told that the NID is its own no more.
#[test]
fn late_traffic_makes_no_peer_of_a_nid_that_its_peer_has_taken_away() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    for (lost, left) in [(second, first), (first, second)] {
        let mut runner = runner();
        push(&mut runner, 6, left, &[left]);
        for is_incoming in [true, false] {
            traffic(&mut runner, lost, is_incoming);
            runner.advance(TIME / 3);
        }
        assert_eq!(peers(&runner), [vec![left]]);
        // What comes after that time is another node's.
        runner.advance(TIME / 3 + Duration::from_secs(1));
        traffic(&mut runner, lost, true);
        assert_eq!(peers(&runner).len(), 2);
    }
}

/// Shards hear of that by themselves: nothing else happens.
#[test]
fn shards_forget_a_lost_nid_in_time() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let mut runner = runner();
    push(&mut runner, 6, first, &[first]);
    check_known(&runner, second, first);
    runner.advance(TIME + Duration::from_secs(1));
    assert_eq!(runner.topology.known_as(&second), second);
    // And with all peers.
    push(&mut runner, 7, first, &[first, second]);
    push(&mut runner, 8, first, &[first]);
    check_known(&runner, second, first);
    runner.node.forget_peers();
    runner.run();
    assert_eq!(runner.topology.known_as(&second), second);
}

/// The time is that in which a message may be under way.
#[test]
fn a_nid_is_remembered_for_the_transaction_timeout() {
    let mut runner = runner();
    runner.batch(&[NodeChange::Set { setting: Global::TransactionTimeout, value: 10 }]).unwrap();
    push(&mut runner, 6, nid(1, 9), &[nid(1, 9)]);
    runner.advance(Duration::from_secs(11));
    traffic(&mut runner, nid(2, 9), true);
    assert_eq!(peers(&runner).len(), 2);
}

/// Nothing but the word of the peer says that the NID is out of use: an administrator's does not.
#[test]
fn traffic_makes_a_peer_of_a_nid_that_was_deleted() {
    let mut runner = runner();
    let edit = PeerEdit::Delete { primary: nid(1, 9), nids: vec![nid(2, 9)], is_forced: false };
    runner.batch(&[NodeChange::Peer(edit)]).unwrap();
    traffic(&mut runner, nid(2, 9), true);
    assert_eq!(peers(&runner), [vec![nid(1, 9)], vec![nid(2, 9)]]);
}

/// A request of this node's goes there all the same, and a node that says that the NID is its own is a peer.
#[test]
fn a_nid_that_was_taken_away_may_be_asked_and_may_speak() {
    let mut runner = runner();
    push(&mut runner, 6, nid(1, 9), &[nid(1, 9)]);
    runner.node.handle_report(runner.now, Report::Wanted { nid: nid(2, 9) });
    runner.run();
    assert_eq!(peers(&runner), [vec![nid(1, 9)], vec![nid(2, 9)]]);
    let mut runner = self::runner();
    push(&mut runner, 6, nid(1, 9), &[nid(1, 9)]);
    push(&mut runner, 7, nid(2, 9), &[nid(2, 9)]);
    assert_eq!(peers(&runner), [vec![nid(1, 9)], vec![nid(2, 9)]]);
}

fn answers_refused(runner: &Runner) -> u64 {
    runner.node.discovery_counters().answers_refused
}

fn told(sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, nis).unwrap();
    bytes
}

/// The NI goes, and answers for as long as it is drained: requests for its NID go to the peer that had it.
#[test]
fn a_node_that_has_a_nid_no_more_says_so_there() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    for (lost, left) in [(second, first), (first, second)] {
        let mut runner = runner();
        push(&mut runner, 6, left, &[left]);
        assert_eq!(runner.topology.now_at(&lost), lost, "another node may have it");
        runner.node.handle_report(runner.now, Report::Wanted { nid: lost });
        runner.run();
        runner.answer_all(&[lost], &told(6, &[left]));
        assert_eq!((peers(&runner), answers_refused(&runner)), (vec![vec![left]], 0));
        assert_eq!((runner.topology.now_at(&lost), runner.topology.known_as(&lost)), (left, left));
        assert!(runner.topology.peer(&lost).is_none());
        // The peer may have it again, and what is not known any more is found out about.
        push(&mut runner, 8, left, &[left, lost]);
        assert_eq!(runner.topology.now_at(&lost), lost);
        push(&mut runner, 9, left, &[left]);
        runner.advance(TIME + Duration::from_secs(1));
        assert_eq!(runner.topology.now_at(&lost), lost);
    }
}

/// An answer that does not hold its own NID is no word of another node's.
#[test]
fn an_answer_of_a_stranger_moves_no_nid() {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let mut runner = runner();
    push(&mut runner, 6, first, &[first]);
    runner.node.handle_report(runner.now, Report::Wanted { nid: second });
    runner.run();
    runner.answer_all(&[second], &told(6, &[nid(1, 44)]));
    assert_eq!((peers(&runner), answers_refused(&runner)), (vec![vec![first], vec![second]], 1));
    assert_eq!(runner.topology.now_at(&second), second);
    // An answer by one NID of a peer that holds another one takes none of the two, and is no stranger's.
    let mut runner = self::runner();
    let request = runner.start(Request::Discover { nid: first, is_forced: true });
    runner.answer_all(&[first], &told(6, &[second]));
    assert!(matches!(runner.result(request), Some(Err(RequestError::PingStranger(_)))));
    assert_eq!((peers(&runner), answers_refused(&runner)), (vec![vec![first, second]], 0));
    assert_eq!(runner.topology.now_at(&first), first);
}

/// Silence says that no other node has the NID.
#[test]
fn a_nid_that_was_taken_away_and_is_silent_leads_to_the_peer() {
    let first = nid(1, 9);
    for errno in [110, 111, 112, 113] {
        let (runner, second) = fail_there(errno, true);
        assert_eq!((peers(&runner), runner.topology.now_at(&second)), (vec![vec![first]], first));
    }
}

/// Errors of this node are no silence of the peer: EIO, ENOMEM, EINVAL, ENETDOWN, ECANCELED; EHOSTUNREACH
/// without an NI that leads there.
#[test]
fn a_failure_of_this_node_moves_no_nid() {
    for (errno, is_up) in [(5, true), (12, true), (22, true), (100, true), (125, true), (113, false)] {
        let (runner, second) = fail_there(errno, is_up);
        assert_eq!(runner.topology.now_at(&second), second, "{errno}");
        assert_eq!(peers(&runner), [vec![nid(1, 9)], vec![second]], "{errno}");
    }
}

/// A ping fails so of a NID that its peer has taken away.
fn fail_there(errno: i32, is_up: bool) -> (Runner, Nid) {
    let [first, second] = [nid(1, 9), nid(2, 9)];
    let mut runner = runner();
    push(&mut runner, 6, first, &[first]);
    runner.node.handle_report(runner.now, Report::Wanted { nid: second });
    runner.run();
    let ping = runner.done.iter().find_map(|action| match action {
        Action::Ping { ping, nid, .. } if *nid == second => Some(*ping),
        _ => None,
    });
    let ni = runner.node.ni(&nid(2, 2)).unwrap().ni;
    runner.node.handle_report(runner.now, Report::Link { ni, is_up });
    let error = DriverError { errno, message: "failed".into() };
    runner.node.handle_report(runner.now, Report::Unanswered { ping: ping.unwrap(), error });
    runner.run();
    (runner, second)
}

/// A push from the NID was overtaken by the one that has taken it away.
#[test]
fn an_overtaken_push_from_a_nid_that_was_taken_away_makes_no_peer_of_it() {
    let mut runner = runner();
    push(&mut runner, 7, nid(1, 9), &[nid(1, 9)]);
    say(&mut runner, 6, nid(2, 9), &[nid(1, 9), nid(2, 9)]);
    assert_eq!(peers(&runner), [vec![nid(1, 9)]]);
    // The peer is asked: it may have begun a new life.
    let asked = runner.done.iter().filter_map(|action| match action {
        Action::Ping { nid, .. } => Some(*nid),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [nid(1, 9)]);
    assert_eq!(runner.node.discovery_counters().pinged, 1);
}
