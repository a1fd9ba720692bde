//! Whose turn it is to be discovered, while many do not answer.

use std::time::Duration;

use lnet_core::node::{Action, NodeChange, PingId, Report, Request};
use lnet_wire::Nid;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};

use crate::common::{Runner, nid, spec};

const MULTI_RAIL: Features = Features(0x1E);

fn told(nid: Nid) -> Vec<u8> {
    let nis = [PingNi { nid, status: NiStatus::UP }].into_iter();
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, 1, nis).unwrap();
    bytes
}

fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    runner.node.gate_requests();
    runner.acknowledges = false;
    runner.run();
    runner
}

/// Many names that push, and never acknowledge what they are pushed.
fn push_by_names(runner: &mut Runner, names: u8) {
    for host in 0..names {
        let from = nid(1, 100 + host);
        let bytes = told(from);
        let report = Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
    }
}

fn want(runner: &mut Runner, nid: Nid) {
    runner.node.handle_report(runner.now, Report::Wanted { nid });
    runner.run();
}

/// The pings and pushes that a peer was sent and that have not been looked at.
fn sent_to(runner: &mut Runner, to: Nid) -> Vec<PingId> {
    let mut sent = Vec::new();
    runner.done.retain(|action| match action {
        Action::Ping { ping, nid, .. } | Action::Push { ping, nid, .. } if *nid == to => {
            sent.push(*ping);
            false
        }
        _ => true,
    });
    sent
}

/// Answers what a peer was sent, until it is discovered; after how long the first was sent.
#[track_caller]
fn discover(runner: &mut Runner, friend: Nid) -> Duration {
    want(runner, friend);
    let (since, step) = (runner.now, Duration::from_millis(100));
    let mut first = None;
    for _ in 0..50 {
        for ping in sent_to(runner, friend) {
            first.get_or_insert(runner.now - since);
            let bytes = told(friend);
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &bytes });
            runner.run();
        }
        if runner.topology.peer(&friend).is_some_and(|peer| !peer.is_gated) {
            return first.unwrap();
        }
        runner.advance(step);
    }
    panic!("{friend} is not discovered: {:?}", runner.node.peer(&friend));
}

#[test]
fn names_that_acknowledge_no_push_keep_no_message_waiting() {
    let mut runner = runner();
    push_by_names(&mut runner, 150);
    assert_eq!(discover(&mut runner, nid(1, 9)), Duration::ZERO);
    // A peer that has spoken waits with the others until something here wants it.
    let friend = nid(1, 10);
    let bytes = told(friend);
    runner
        .node
        .handle_report(runner.now, Report::Pushed { from: friend, bytes: &bytes, length_bytes: bytes.len() });
    runner.run();
    assert_eq!(sent_to(&mut runner, friend), []);
    assert!(runner.topology.peer(&friend).unwrap().is_wanted, "shards are to say so");
    assert_eq!(discover(&mut runner, friend), Duration::ZERO);
}

#[test]
fn peers_that_answer_nothing_give_their_places_up() {
    let mut runner = runner();
    (100..=255).for_each(|host| want(&mut runner, nid(1, host)));
    for friend in 9..12 {
        // Earlier ones have their turns first.
        assert!(discover(&mut runner, nid(1, friend)) <= Duration::from_secs(3));
    }
    assert!(runner.node.discovery_counters().evicted > 0);
    // Each has its turns until its time is over.
    let request = runner.start(Request::Discover { nid: nid(1, 200), is_forced: false });
    (0..320).for_each(|_| runner.advance(Duration::from_secs(1)));
    for host in 100..=255 {
        assert!(sent_to(&mut runner, nid(1, host)).len() > 1, "host {host}");
        assert!(runner.topology.peer(&nid(1, host)).unwrap().failed.is_some(), "host {host}");
    }
    assert!(runner.result(request).is_some_and(|result| result.is_err()));
    assert_eq!(runner.node.poll_timeout(), None);
}

#[test]
fn a_stranger_that_answers_nothing_is_given_up_soon() {
    let mut runner = runner();
    push_by_names(&mut runner, 1);
    assert_eq!(sent_to(&mut runner, nid(1, 100)).len(), 1);
    runner.advance(Duration::from_secs(10));
    assert_eq!(runner.node.poll_timeout(), None);
}

/// Many names that come from one address, as `Report::CameFrom` says.
fn come_from_one_address(runner: &mut Runner, hosts: core::ops::RangeInclusive<u8>) {
    for host in hosts {
        let address = nid(1, 77).ip().unwrap();
        runner.node.handle_report(runner.now, Report::CameFrom { nid: nid(1, host), address });
        let report = Report::Traffic { nid: nid(1, host), is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
    }
    runner.run();
}

/// How many of these have been sent something that was not looked at.
fn count_sent(runner: &mut Runner, hosts: core::ops::RangeInclusive<u8>) -> usize {
    hosts.filter(|host| !sent_to(runner, nid(1, *host)).is_empty()).count()
}

/// The names of one address wait behind each other, not others behind them: in each rank.
#[test]
fn many_names_of_one_address_have_the_share_of_one() {
    // Strangers.
    let mut runner = runner();
    come_from_one_address(&mut runner, 100..=255);
    push_by_names(&mut runner, 156);
    assert_eq!(count_sent(&mut runner, 100..=255), 16);
    for host in 9..14 {
        let friend = nid(1, host);
        let bytes = told(friend);
        let report = Report::Pushed { from: friend, bytes: &bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
        assert_eq!(sent_to(&mut runner, friend).len(), 1, "{friend}");
    }
    // All of the names have their turns nevertheless.
    (0..180).for_each(|_| runner.advance(Duration::from_secs(1)));
    assert_eq!(count_sent(&mut runner, 100..=255), 140);
    assert_eq!(runner.node.poll_timeout(), None);

    // Peers that something here waits for.
    let mut runner = self::runner();
    come_from_one_address(&mut runner, 100..=255);
    (100..=255).for_each(|host| want(&mut runner, nid(1, host)));
    assert_eq!(count_sent(&mut runner, 100..=255), 32);
    for host in 9..40 {
        assert_eq!(discover(&mut runner, nid(1, host)), Duration::ZERO, "host {host}");
    }

    // Peers that have acknowledged a push, and do so no more.
    let mut runner = self::runner();
    come_from_one_address(&mut runner, 100..=255);
    runner.acknowledges = true;
    push_by_names(&mut runner, 156);
    discover(&mut runner, nid(1, 9));
    runner.done.clear();
    runner.acknowledges = false;
    runner.batch(&[NodeChange::AddNi(spec(1, 2))]).unwrap();
    assert_eq!(count_sent(&mut runner, 100..=255), 32);
    assert_eq!(sent_to(&mut runner, nid(1, 9)).len(), 1);
}

/// Peers that have acknowledged a push, and do so no more, keep no message waiting.
#[test]
fn what_something_waits_for_has_room_of_its_own() {
    let mut runner = runner();
    runner.acknowledges = true;
    push_by_names(&mut runner, 156);
    runner.done.clear();
    runner.acknowledges = false;
    runner.batch(&[NodeChange::AddNi(spec(1, 2))]).unwrap();
    assert_eq!(count_sent(&mut runner, 100..=255), 48);
    for host in 9..25 {
        want(&mut runner, nid(1, host));
        assert_eq!(sent_to(&mut runner, nid(1, host)).len(), 1, "host {host}");
    }
    // The others have their turns nevertheless.
    (0..600).for_each(|_| runner.advance(Duration::from_secs(1)));
    assert_eq!(count_sent(&mut runner, 100..=255), 156 - 48);
    assert_eq!(runner.node.poll_timeout(), None);
}

/// A peer speaks; how many pings and pushes it is sent for that.
fn speak(runner: &mut Runner, from: Nid) -> usize {
    let bytes = told(from);
    runner.node.handle_report(runner.now, Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() });
    runner.run();
    sent_to(runner, from).len()
}

/// The names of one address that wait stop no peer of a worse rank while there is room.
#[test]
fn a_crowd_of_a_better_rank_leaves_free_places_to_others() {
    // Peers that something here waits for, and a peer that has acknowledged a push.
    let mut runner = runner();
    runner.acknowledges = true;
    discover(&mut runner, nid(1, 9));
    runner.acknowledges = false;
    come_from_one_address(&mut runner, 100..=255);
    (100..=255).for_each(|host| want(&mut runner, nid(1, host)));
    assert_eq!(count_sent(&mut runner, 100..=255), 32);
    runner.batch(&[NodeChange::AddNi(spec(1, 2))]).unwrap();
    assert_eq!(sent_to(&mut runner, nid(1, 9)).len(), 1);
    assert_eq!(speak(&mut runner, nid(1, 10)), 1);
    // A place that is given up in a second is told, whatever waits before.
    assert_eq!(runner.node.poll_timeout(), Some(runner.now + Duration::from_secs(1)));

    // Peers that have acknowledged a push, and a stranger.
    let mut runner = self::runner();
    come_from_one_address(&mut runner, 100..=255);
    runner.acknowledges = true;
    push_by_names(&mut runner, 156);
    runner.done.clear();
    runner.acknowledges = false;
    runner.batch(&[NodeChange::AddNi(spec(1, 2))]).unwrap();
    assert_eq!(count_sent(&mut runner, 100..=255), 32);
    assert_eq!(speak(&mut runner, nid(1, 9)), 1);
}

/// The visits of an address go on where their ends let none of its others begin.
#[test]
fn no_visit_ends_for_nobody() {
    let mut runner = runner();
    come_from_one_address(&mut runner, 100..=255);
    (100..=255).for_each(|host| want(&mut runner, nid(1, host)));
    assert_eq!(count_sent(&mut runner, 100..=255), 32);
    (20..44).for_each(|host| want(&mut runner, nid(1, host)));
    assert_eq!(count_sent(&mut runner, 20..=43), 24);
    (0..3).for_each(|_| runner.advance(Duration::from_secs(1)));
    assert_eq!(runner.node.discovery_counters().evicted, 0, "an eighth of the room is left");
    // Their places are for addresses without any.
    (44..52).for_each(|host| want(&mut runner, nid(1, host)));
    assert_eq!(count_sent(&mut runner, 44..=51), 8);
    assert_eq!(runner.node.discovery_counters().evicted, 0);
    want(&mut runner, nid(1, 52));
    assert_eq!(count_sent(&mut runner, 52..=52), 1, "the room is full, and visits have been silent");
    assert_eq!(runner.node.discovery_counters().evicted, 1);
}

/// Messages that wait for the name of a stranger have no turn before what something here waits for.
#[test]
fn names_that_are_claimed_are_not_awaited_by_this_node() {
    let mut runner = runner();
    for host in 100..=200 {
        // Each claims a NID, and speaks by it before that is proven.
        let (first, second) =
            (nid(1, host), Nid::from_small(nid(1, host).to_small().unwrap() + 256).unwrap());
        let nis = [first, second].map(|nid| PingNi { nid, status: NiStatus::UP }).into_iter();
        let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
        ping::write(&mut bytes, MULTI_RAIL, 12345, 1, nis).unwrap();
        let report = Report::Pushed { from: first, bytes: &bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.node.handle_report(runner.now, Report::Waiting { nid: second });
        runner.run();
    }
    for host in 9..14 {
        assert_eq!(discover(&mut runner, nid(1, host)), Duration::ZERO, "host {host}");
    }
}
