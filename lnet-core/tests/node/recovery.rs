//! Recovery: who is pinged and when, what takes health and gives it back. Numbers are those of the cases that
//! LNet's own tools are tested by.

use std::time::Duration;

use lnet_core::node::{Action, NodeChange, PeerEdit, PeerNi, PingId, Report};
use lnet_core::shard::{HealthNote, PathNote, PathState};
use lnet_core::topology::{HEALTH_MAX, NiStatus};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Runner, nid, refused, spec};

const MULTI_RAIL: Features = Features(0x1E);
const UP: ping::NiStatus = ping::NiStatus::UP;
const DOWN: ping::NiStatus = ping::NiStatus::DOWN;
const PEER: u8 = 9;

/// A node with an NI on each of two nets, and a Multi-Rail peer with NIs there, from which messages have
/// come.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 1))]).unwrap();
    let add = PeerEdit::Add(PeerSpec {
        primary_nid: nid(1, PEER),
        nids: vec![nid(2, PEER)],
        multi_rail: true,
        lock_primary: false,
    });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    hear(&mut runner, nid(1, PEER));
    hear(&mut runner, nid(2, PEER));
    runner
}

fn hear(runner: &mut Runner, nid: Nid) {
    runner.node.handle_report(runner.now, Report::Traffic { nid, is_incoming: true, first_ni: None });
    runner.run();
}

fn note(runner: &mut Runner, nid: Nid, failures: u32, successes: u32) {
    runner.node.handle_report(runner.now, Report::Health(HealthNote { nid, failures, successes }));
    runner.run();
}

fn set(runner: &mut Runner, setting: Global, value: i64) {
    runner.batch(&[NodeChange::Set { setting, value }]).unwrap();
}

fn set_peer_health(runner: &mut Runner, nid: Nid, value: u32) {
    runner.batch(&[NodeChange::Peer(PeerEdit::SetHealth { nid: Some(nid), value })]).unwrap();
}

fn set_local_health(runner: &mut Runner, nid: Nid, value: u32) {
    runner.batch(&[NodeChange::SetHealth { nid: Some(nid), value }]).unwrap();
}

fn peer_ni(runner: &Runner, nid: Nid) -> &PeerNi {
    runner.node.peer(&nid).unwrap().ni(&nid).unwrap()
}

fn local_health(runner: &Runner, nid: Nid) -> u32 {
    runner.node.ni(&nid).unwrap().health
}

/// Pings that were sent since the last call.
fn pings(runner: &mut Runner) -> Vec<(PingId, Nid, Option<Nid>)> {
    let mut pings = Vec::new();
    runner.done.retain(|action| match action {
        Action::Ping { ping, nid, source, .. } => {
            pings.push((*ping, *nid, *source));
            false
        }
        _ => true,
    });
    pings
}

/// Lets seconds pass; at which of them an NI was pinged. What is pinged fails or is answered.
fn pinged_at(runner: &mut Runner, to: Nid, seconds: u64, is_answered: bool) -> Vec<u64> {
    let mut pinged_at = Vec::new();
    for second in 1..=seconds {
        runner.advance(Duration::from_secs(1));
        for (ping, nid, _) in pings(runner) {
            let report = match is_answered {
                true => Report::Answered { ping, bytes: &[] },
                false => Report::Unanswered { ping, error: refused() },
            };
            runner.node.handle_report(runner.now, report);
            runner.run();
            pinged_at.extend((nid == to).then_some(second));
        }
    }
    pinged_at
}

#[test]
fn pauses_between_pings_double_up_to_the_limit() {
    let mut runner = runner();
    set_local_health(&mut runner, nid(1, 1), 0);
    let pinged = pinged_at(&mut runner, nid(1, 1), 600, false);
    assert_eq!(pinged, [1, 3, 7, 15, 31, 63, 127, 255, 511]);
    for (max_s, expected) in [(4, [1, 3, 7, 11]), (1, [1, 2, 3, 4]), (7, [1, 3, 7, 11])] {
        set_local_health(&mut runner, nid(1, 1), 1000);
        set(&mut runner, Global::MaxRecoveryPingInterval, max_s);
        set_local_health(&mut runner, nid(1, 1), 0);
        let pinged = pinged_at(&mut runner, nid(1, 1), 11, false);
        assert_eq!(pinged[..4], expected, "at most {max_s} s");
    }
}

#[test]
fn an_answer_gives_a_local_ni_a_step_and_begins_the_pauses_anew() {
    let mut runner = runner();
    set_local_health(&mut runner, nid(1, 1), 700);
    assert_eq!(pinged_at(&mut runner, nid(1, 1), 7, false), [1, 3, 7]);
    assert_eq!(local_health(&runner, nid(1, 1)), 700, "a ping that fails costs what its message costs");
    assert_eq!(pinged_at(&mut runner, nid(1, 1), 8, true), [8]);
    assert_eq!(local_health(&runner, nid(1, 1)), 800);
    assert_eq!(runner.node.ni(&nid(1, 1)).unwrap().recovery.ping_count, 0);
    assert_eq!(pinged_at(&mut runner, nid(1, 1), 9, true), [1, 2]);
    assert_eq!(local_health(&runner, nid(1, 1)), HEALTH_MAX);
    assert_eq!(runner.node.recovering(), (vec![], vec![]));
}

/// Catalogue case 210.
#[test]
fn case_210_a_local_ni_at_0_is_pinged_by_the_schedule() {
    let mut runner = runner();
    set_local_health(&mut runner, nid(1, 1), 0);
    let count = |runner: &Runner| runner.node.recovering().0.first().map(|its| its.recovery.ping_count);
    pinged_at(&mut runner, nid(1, 1), 4, false);
    assert_eq!(count(&runner), Some(2));
    pinged_at(&mut runner, nid(1, 1), 4, false);
    assert_eq!(count(&runner), Some(3));
    set_local_health(&mut runner, nid(1, 1), 1000);
    set(&mut runner, Global::MaxRecoveryPingInterval, 4);
    set_local_health(&mut runner, nid(1, 1), 0);
    pinged_at(&mut runner, nid(1, 1), 12, false);
    assert_eq!(count(&runner), Some(4));
    let local = nid(1, 1);
    runner.advance(Duration::from_secs(4));
    let [(_, to, source)] = pings(&mut runner)[..] else { panic!("one ping") };
    assert_eq!((to, source), (local, Some(local)), "to its own NID, from that");
}

/// Catalogue case 211.
#[test]
fn case_211_a_peer_ni_is_given_up_after_the_limit_and_taken_up_again() {
    let mut runner = runner();
    let ill = nid(2, PEER);
    set(&mut runner, Global::RecoveryLimit, 10);
    set_peer_health(&mut runner, ill, 0);
    let pinged = pinged_at(&mut runner, ill, 9, false);
    assert_eq!(pinged, [1, 3, 7]);
    pinged_at(&mut runner, ill, 11, false);
    assert_eq!(runner.node.recovering(), (vec![], vec![]));
    assert_eq!(peer_ni(&runner, ill).recovery.ping_count, 0);
    set_peer_health(&mut runner, ill, 500);
    assert_eq!(runner.node.recovering().1, [], "its last message is too long ago");
    note(&mut runner, ill, 1, 0);
    assert_eq!(runner.node.recovering().1, []);
    // What comes from it begins anew.
    note(&mut runner, ill, 0, 1);
    assert_eq!(runner.node.recovering().1.len(), 1);
    set(&mut runner, Global::RecoveryLimit, 0);
    set(&mut runner, Global::MaxRecoveryPingInterval, 4);
    assert_eq!(pinged_at(&mut runner, ill, 15, false), [1, 3, 7, 11, 15]);
    for _ in 0..5 {
        note(&mut runner, ill, 0, 1);
    }
    assert_eq!((peer_ni(&runner, ill).health, runner.node.recovering().1), (HEALTH_MAX, vec![]));
}

#[test]
fn a_peer_ni_that_was_never_heard_from_is_not_pinged() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let ill = nid(1, PEER);
    let nids = vec![nid(1, 8)];
    let add = PeerEdit::Add(PeerSpec { primary_nid: ill, nids, multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    note(&mut runner, ill, 3, 0);
    assert_eq!((peer_ni(&runner, ill).health, runner.node.recovering().1), (700, vec![]));
    runner.node.handle_report(runner.now, Report::Traffic { nid: ill, is_incoming: false, first_ni: None });
    assert_eq!(runner.node.recovering().1, [], "it was sent to");
    hear(&mut runner, ill);
    assert_eq!(pinged_at(&mut runner, ill, 3, false), [1, 3]);
    // The REPLY is noted by the shard as any message.
    note(&mut runner, ill, 0, 1);
    assert_eq!((peer_ni(&runner, ill).health, peer_ni(&runner, ill).recovery.ping_count), (800, 0));
    assert_eq!(pinged_at(&mut runner, ill, 3, false), [1, 3]);
}

/// Catalogue cases 206 and 209.
#[test]
fn case_206_the_only_ni_of_a_peer_loses_nothing() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    hear(&mut runner, nid(1, PEER));
    note(&mut runner, nid(1, PEER), 3, 0);
    assert_eq!(peer_ni(&runner, nid(1, PEER)).health, HEALTH_MAX);
    assert_eq!(runner.node.recovering(), (vec![], vec![]));
    note(&mut runner, nid(1, 1), 1, 0);
    assert_eq!(local_health(&runner, nid(1, 1)), 900, "a network timeout blames the local NI as well");
}

/// Catalogue case 207.
#[test]
fn case_207_an_ni_of_several_loses_health_and_the_local_one_does_not() {
    let mut runner = runner();
    note(&mut runner, nid(2, PEER), 2, 0);
    assert_eq!((peer_ni(&runner, nid(2, PEER)).health, local_health(&runner, nid(2, 1))), (800, HEALTH_MAX));
    assert_eq!(peer_ni(&runner, nid(1, PEER)).health, HEALTH_MAX);
}

/// Catalogue case 234.
#[test]
fn case_234_health_that_is_set_takes_an_ni_down_and_up_without_sensitivity() {
    let mut runner = runner();
    set(&mut runner, Global::HealthSensitivity, 0);
    let seen = |runner: &Runner| {
        let ni = runner.node.ni(&nid(1, 1)).unwrap();
        (ni.health, ni.is_told_up())
    };
    for (value, is_up) in [(0, false), (500, false), (1000, true), (500, true)] {
        set_local_health(&mut runner, nid(1, 1), value);
        assert_eq!(seen(&runner), (value, is_up));
    }
    note(&mut runner, nid(1, 1), 3, 0);
    note(&mut runner, nid(2, PEER), 3, 0);
    assert_eq!(seen(&runner).0, 500, "messages change nothing");
    assert_eq!(peer_ni(&runner, nid(2, PEER)).health, HEALTH_MAX);
}

/// Catalogue case 235.
#[test]
fn case_235_a_ping_that_fails_takes_an_ni_down_and_answers_bring_it_back() {
    let mut runner = runner();
    let is_up = |runner: &Runner, net| runner.node.ni(&nid(net, 1)).unwrap().is_told_up();
    set_local_health(&mut runner, nid(1, 1), 100);
    assert_eq!(pinged_at(&mut runner, nid(1, 1), 1, false), [1]);
    // What its shard notes of the message.
    note(&mut runner, nid(1, 1), 1, 0);
    assert_eq!((local_health(&runner, nid(1, 1)), is_up(&runner, 1), is_up(&runner, 2)), (0, false, true));
    set_local_health(&mut runner, nid(1, 1), 900);
    pinged_at(&mut runner, nid(1, 1), 4, true);
    assert_eq!((local_health(&runner, nid(1, 1)), is_up(&runner, 1)), (HEALTH_MAX, true));
    assert_eq!(local_health(&runner, nid(2, 1)), HEALTH_MAX);
}

/// With one NI requests go on, whether messages or the administrator have taken it to 0.
#[test]
fn an_ni_at_health_0_is_the_last_choice_and_a_choice() {
    for is_set in [true, false] {
        let mut runner = Runner::new(1);
        runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
        match is_set {
            true => set_local_health(&mut runner, nid(1, 1), 0),
            false => note(&mut runner, nid(1, 1), 10, 0),
        }
        let (_, local) = runner.topology.local_nis().nth(1).unwrap();
        assert_eq!((local.health, local.status), (0, NiStatus::Up), "set: {is_set}");
        assert!(!runner.node.ni(&nid(1, 1)).unwrap().is_told_up());
    }
}

fn push(runner: &mut Runner, from: Nid, sequence: u32, told: &[(Nid, ping::NiStatus)]) {
    let nis = told.iter().map(|(nid, status)| PingNi { nid: *nid, status: *status });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, nis).unwrap();
    let report = Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
}

/// NIDs say that they are one node's.
fn prove(runner: &mut Runner, nids: &[Nid]) {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, 1, nis).unwrap();
    runner.answer_all(nids, &bytes);
}

#[test]
fn a_peer_has_no_say_in_the_health_of_another_ones_nis() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let victim = [nid(1, PEER), nid(1, 8)];
    push(&mut runner, victim[0], 1, &victim.map(|nid| (nid, UP)));
    prove(&mut runner, &victim);
    for sequence in 1..20 {
        let status = if sequence % 2 == 0 { DOWN } else { UP };
        let told = [(nid(1, 66), UP), (victim[0], status), (victim[1], status)];
        push(&mut runner, nid(1, 66), sequence, &told);
    }
    let nis = &runner.node.peer(&victim[0]).unwrap().nis;
    assert_eq!(
        nis.iter().map(|ni| (ni.nid, ni.health)).collect::<Vec<_>>(),
        victim.map(|nid| (nid, HEALTH_MAX))
    );
    assert!(nis.iter().all(|ni| ni.is_up == Some(true)));
    // A peer has a say in the health of its own NIs, once a change. A NID that is told twice counts as it is
    // told first.
    push(
        &mut runner,
        victim[0],
        2,
        &[(victim[0], UP), (victim[1], DOWN), (victim[1], UP), (victim[1], DOWN)],
    );
    assert_eq!((peer_ni(&runner, victim[1]).health, peer_ni(&runner, victim[1]).is_up), (900, Some(false)));
}

#[test]
fn a_message_that_comes_says_that_a_peer_ni_is_up() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let nids = [nid(1, PEER), nid(1, 8)];
    let told = |status| [(nids[0], UP), (nids[1], status)];
    push(&mut runner, nids[0], 1, &told(UP));
    prove(&mut runner, &nids);
    push(&mut runner, nids[0], 2, &told(DOWN));
    assert_eq!((peer_ni(&runner, nids[1]).health, peer_ni(&runner, nids[1]).is_up), (900, Some(false)));
    note(&mut runner, nids[1], 0, 1);
    assert_eq!((peer_ni(&runner, nids[1]).health, peer_ni(&runner, nids[1]).is_up), (1000, Some(true)));
    // Also one that is in full health, of which shards note nothing.
    push(&mut runner, nids[0], 3, &told(DOWN));
    set_peer_health(&mut runner, nids[1], 1000);
    assert_eq!(peer_ni(&runner, nids[1]).is_up, Some(false));
    hear(&mut runner, nids[1]);
    assert_eq!(peer_ni(&runner, nids[1]).is_up, Some(true));
}

/// What was lost before its node was known is of no account once that says that it is up.
#[test]
fn an_ni_that_is_told_as_up_first_is_in_full_health() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let nids = vec![nid(1, 8)];
    let add =
        PeerEdit::Add(PeerSpec { primary_nid: nid(1, PEER), nids, multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    note(&mut runner, nid(1, 8), 4, 0);
    push(&mut runner, nid(1, PEER), 1, &[(nid(1, PEER), UP), (nid(1, 8), UP)]);
    assert_eq!(peer_ni(&runner, nid(1, 8)).health, HEALTH_MAX);
}

fn note_path(runner: &mut Runner, (local, peer): (Nid, Nid), state: PathState) {
    runner.node.handle_report(runner.now, Report::Path(PathNote { local, peer, state }));
    runner.run();
}

#[test]
fn a_silent_path_costs_the_peer_ni_a_step_a_second_and_it_recovers() {
    let mut runner = runner();
    let path = (nid(2, 1), nid(2, PEER));
    // Each of the shards tells of it.
    for _shard in 0..4 {
        note_path(&mut runner, path, PathState::Silent);
    }
    assert_eq!((peer_ni(&runner, path.1).health, local_health(&runner, path.0)), (900, HEALTH_MAX));
    assert_eq!(runner.topology.peer_health(&path.1), 900, "the shards know, before a message has timed out");
    assert_eq!(pinged_at(&mut runner, path.1, 1, false), [1]);
    note_path(&mut runner, path, PathState::Silent);
    assert_eq!(peer_ni(&runner, path.1).health, 800);
    note_path(&mut runner, path, PathState::Answers);
    note(&mut runner, path.1, 0, 2);
    assert_eq!((peer_ni(&runner, path.1).health, runner.node.recovering().1), (HEALTH_MAX, vec![]));
    // The only NI of a peer loses nothing.
    hear(&mut runner, nid(2, 40));
    note_path(&mut runner, (nid(2, 1), nid(2, 40)), PathState::Silent);
    assert_eq!(peer_ni(&runner, nid(2, 40)).health, HEALTH_MAX);
    set(&mut runner, Global::HealthSensitivity, 0);
    runner.advance(Duration::from_secs(2));
    note_path(&mut runner, path, PathState::Silent);
    assert_eq!(peer_ni(&runner, path.1).health, HEALTH_MAX);
}

#[test]
fn a_local_ni_that_reaches_no_peer_while_another_does_is_to_blame() {
    let mut runner = runner();
    let add = PeerEdit::Add(PeerSpec {
        primary_nid: nid(1, 8),
        nids: vec![nid(2, 8)],
        multi_rail: true,
        lock_primary: false,
    });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    let (cut, whole) = (nid(2, 1), nid(1, 1));
    note_path(&mut runner, (cut, nid(2, 8)), PathState::Answers);
    note_path(&mut runner, (cut, nid(2, PEER)), PathState::Silent);
    assert_eq!((peer_ni(&runner, nid(2, PEER)).health, local_health(&runner, cut)), (900, HEALTH_MAX));
    // No NID answers by this NI, but no other NI is known to do better.
    note_path(&mut runner, (cut, nid(2, 8)), PathState::Silent);
    assert_eq!((peer_ni(&runner, nid(2, 8)).health, local_health(&runner, cut)), (900, HEALTH_MAX));
    note_path(&mut runner, (whole, nid(1, 8)), PathState::Answers);
    runner.advance(Duration::from_secs(1));
    note_path(&mut runner, (cut, nid(2, 8)), PathState::Silent);
    assert_eq!((peer_ni(&runner, nid(2, 8)).health, local_health(&runner, cut)), (900, 900));
    assert_eq!(runner.node.recovering().0[0].nid, cut, "it is pinged");
}

#[test]
fn a_poor_path_costs_the_peer_ni_a_step_a_second_and_never_a_sole_one() {
    let mut runner = runner();
    let path = (nid(2, 1), nid(2, PEER));
    for _window in 0..40 {
        note_path(&mut runner, path, PathState::Poor);
    }
    assert_eq!((peer_ni(&runner, path.1).health, local_health(&runner, path.0)), (900, HEALTH_MAX));
    assert_eq!(pinged_at(&mut runner, path.1, 1, true), [1]);
    note(&mut runner, path.1, 0, 1);
    assert_eq!(peer_ni(&runner, path.1).health, HEALTH_MAX, "the answer brings it back");
    note_path(&mut runner, path, PathState::Poor);
    assert_eq!(peer_ni(&runner, path.1).health, 900);
    // It has answered all the time.
    note_path(&mut runner, path, PathState::Answers);
    assert_eq!(peer_ni(&runner, path.1).health, 900);
    hear(&mut runner, nid(2, 40));
    note_path(&mut runner, (nid(2, 1), nid(2, 40)), PathState::Poor);
    assert_eq!(peer_ni(&runner, nid(2, 40)).health, HEALTH_MAX, "it is the only one");
    set(&mut runner, Global::HealthSensitivity, 0);
    runner.advance(Duration::from_secs(2));
    note_path(&mut runner, path, PathState::Poor);
    assert_eq!(peer_ni(&runner, path.1).health, 900, "it stays as it is");
}

/// Two NIs on a net, and a peer that has two there.
fn two_by_two_on_one_net() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))]).unwrap();
    let nids = vec![nid(1, 8)];
    let add =
        PeerEdit::Add(PeerSpec { primary_nid: nid(1, PEER), nids, multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    runner
}

/// Two NIs on one net: what is poor by one of them only is that one's matter.
#[test]
fn a_local_ni_that_alone_does_badly_to_a_peer_ni_is_to_blame() {
    let mut runner = two_by_two_on_one_net();
    let (bad, good) = (nid(1, 1), nid(1, 2));
    for peer in [nid(1, PEER), nid(1, 8)] {
        note_path(&mut runner, (good, peer), PathState::Answers);
    }
    let healths = |runner: &Runner| {
        let peers = [PEER, 8].map(|host| peer_ni(runner, nid(1, host)).health);
        (local_health(runner, bad), local_health(runner, good), peers)
    };
    note_path(&mut runner, (bad, nid(1, PEER)), PathState::Answers);
    note_path(&mut runner, (bad, nid(1, 8)), PathState::Poor);
    assert_eq!(healths(&runner), (HEALTH_MAX, HEALTH_MAX, [HEALTH_MAX, 900]), "it may be the peer's");
    note_path(&mut runner, (bad, nid(1, PEER)), PathState::Poor);
    assert_eq!(healths(&runner), (900, HEALTH_MAX, [HEALTH_MAX, 900]));
    runner.advance(Duration::from_secs(1));
    for peer in [nid(1, PEER), nid(1, 8)] {
        note_path(&mut runner, (bad, peer), PathState::Poor);
    }
    let (local, _, peers) = healths(&runner);
    assert!((800..=900).contains(&local) && peers[0] == HEALTH_MAX, "once a second: {local} {peers:?}");
}

/// A path that is poor and silent in turn costs no more than one that is either: shards avoid a silent one at
/// once, whatever its health is.
#[test]
fn a_path_costs_a_step_a_second_whether_it_is_silent_or_poor() {
    for states in [[PathState::Poor, PathState::Silent], [PathState::Silent, PathState::Poor]] {
        let mut runner = runner();
        let path = (nid(2, 1), nid(2, PEER));
        for state in states {
            note_path(&mut runner, path, state);
            assert_eq!(peer_ni(&runner, path.1).health, 900, "{states:?}");
        }
        runner.advance(Duration::from_secs(1));
        note_path(&mut runner, path, states[1]);
        note_path(&mut runner, path, states[0]);
        assert_eq!(peer_ni(&runner, path.1).health, 800, "{states:?}");
    }
}

/// A sole peer that does badly by one local NI and well by another one costs the first one health; another
/// peer that does well by it ends that.
#[test]
fn the_word_of_one_peer_counts_against_a_local_ni_until_another_peer_does_well() {
    let mut runner = two_by_two_on_one_net();
    hear(&mut runner, nid(1, 40));
    let (blamed, good) = (nid(1, 1), nid(1, 2));
    note_path(&mut runner, (good, nid(1, PEER)), PathState::Answers);
    note_path(&mut runner, (blamed, nid(1, PEER)), PathState::Poor);
    assert_eq!((local_health(&runner, blamed), peer_ni(&runner, nid(1, PEER)).health), (900, HEALTH_MAX));
    note_path(&mut runner, (blamed, nid(1, 40)), PathState::Answers);
    runner.advance(Duration::from_secs(1));
    let before = local_health(&runner, blamed);
    note_path(&mut runner, (blamed, nid(1, PEER)), PathState::Poor);
    assert_eq!((local_health(&runner, blamed), peer_ni(&runner, nid(1, PEER)).health), (before, 900));
    assert_eq!(runner.node.recovering().0[0].nid, blamed, "it is pinged, and comes back");
}
