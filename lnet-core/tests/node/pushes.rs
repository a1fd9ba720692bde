//! What a node says of itself, and what peers push.

use std::path::Path;
use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, DiscoveryCounters, DriverError, NodeChange, NodeConfig, PeerEdit, PingId, Report, Request,
    TOLD_MAX,
};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, Features, NiStatus, PingInfo, PingNi};
use lnet_wire::{Global, Nid};
use proptest::prelude::*;

use crate::common::{Runner, config, nid, spec};

const MULTI_RAIL: Features = Features(0x1E);

fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    runner
}

fn info(features: Features, nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, features, 12345, 1, nis).unwrap();
    bytes
}

/// A push as it arrives: cut to the room that there is.
fn push(runner: &mut Runner, from: Nid, bytes: &[u8]) {
    let room = runner.node.push_room_bytes().min(bytes.len());
    let report = Report::Pushed { from, bytes: &bytes[..room], length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
}

fn counters(runner: &Runner) -> (u64, u64, u64) {
    let DiscoveryCounters { taken, refused, pinged, .. } = *runner.node.discovery_counters();
    (taken, refused, pinged)
}

/// The newest answer to pings.
fn answer(runner: &Runner) -> Vec<u8> {
    let published = runner.done.iter().rev().find_map(|action| match action {
        Action::Publish(bytes) => Some(bytes.to_vec()),
        _ => None,
    });
    published.expect("nothing was published")
}

fn pings(runner: &mut Runner) -> Vec<(PingId, Nid, usize)> {
    let mut pings = Vec::new();
    runner.done.retain(|action| match action {
        Action::Ping { ping, nid, length_bytes, .. } => {
            pings.push((*ping, *nid, *length_bytes));
            false
        }
        _ => true,
    });
    pings
}

#[track_caller]
fn check_captured(capture: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/captures").join(capture);
    let captured = std::fs::read(&path).unwrap();
    let is_there = captured.windows(bytes.len()).any(|window| window == bytes);
    assert!(is_there, "no kernel node has said {bytes:02x?} in {capture}");
}

#[test]
fn a_node_says_what_kernel_nodes_say() {
    let add = |nids: &[&str]| {
        let mut runner = Runner::new(1);
        for (host, nid) in (1..).zip(nids) {
            runner
                .batch(&[NodeChange::AddNi(lnet_core::node::NiSpec {
                    nid: nid.parse().unwrap(),
                    ..spec(1, host)
                })])
                .unwrap();
        }
        runner
    };
    check_captured("a_single_ping.pcap", &answer(&add(&["10.77.0.12@tcp"])));
    let mut runner = add(&["10.77.0.12@tcp", "10.78.0.12@tcp"]);
    for is_up in [false, true] {
        runner.node.handle_report(runner.now, Report::Link { ni: NiId(2), is_up });
        runner.run();
    }
    check_captured("b_multirail.pcap", &answer(&runner));
}

#[test]
fn features_follow_discovery_and_large_nids() {
    let mut runner = runner();
    let told = |runner: &Runner| {
        let bytes = answer(runner);
        let info = PingInfo::parse(&bytes).unwrap();
        (info.features().0, info.sequence())
    };
    assert_eq!(told(&runner), (0x1E, 2));
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 0 }]).unwrap();
    assert_eq!(told(&runner), (0x0E, 2), "its NIs are the same");
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 1 }]).unwrap();
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]).unwrap();
    let large = lnet_core::node::NiSpec { nid: "fd80::1@tcp".parse().unwrap(), ..spec(1, 1) };
    runner.batch(&[NodeChange::AddNi(large)]).unwrap();
    let (features, _) = told(&runner);
    assert_eq!(features, 0x7E);
}

#[test]
fn nis_are_told_by_net() {
    let mut runner = runner();
    for (net, host) in [(2, 2), (1, 3)] {
        runner.batch(&[NodeChange::AddNi(spec(net, host))]).unwrap();
    }
    let bytes = answer(&runner);
    let nids: Vec<_> = PingInfo::parse(&bytes).unwrap().interfaces().map(|one| one.nid).collect();
    assert_eq!(nids, [nid(1, 1), nid(1, 3), nid(2, 2)]);
}

#[test]
fn a_push_makes_a_peer_with_all_its_nids() {
    let mut runner = runner();
    let nids = [nid(1, 9), nid(2, 9), nid(1, 8), nid(1, 1)];
    push(&mut runner, nid(2, 9), &info(MULTI_RAIL, &nids));
    let peer = runner.node.peer(&nid(1, 8)).unwrap();
    assert_eq!(peer.nids(), [nid(1, 9), nid(1, 8), nid(2, 9)], "by net, and none of this node");
    assert_eq!((peer.primary, peer.shown_primary()), (nid(2, 9), nid(1, 9)));
    runner.answer_all(&nids, &info(MULTI_RAIL, &nids));
    let peer = runner.node.peer(&nid(1, 8)).unwrap();
    assert_eq!((peer.primary, peer.is_multi_rail(), peer.state), (nid(1, 9), true, 273));
    push(&mut runner, nid(1, 9), &info(MULTI_RAIL, &nids[..1]));
    assert_eq!(runner.node.peer(&nid(1, 9)).unwrap().nids(), nids[..1]);
    assert_eq!((runner.node.peers().count(), counters(&runner)), (1, (2, 0, 0)));
    // Routers say so by a bit that is not set.
    push(&mut runner, nid(1, 7), &info(Features(0x1A), &[nid(1, 7)]));
    assert_eq!(runner.node.peer(&nid(1, 7)).unwrap().state, 277);
    // Without discovery, theirs or ours, a peer is no more than the NID that speaks.
    push(&mut runner, nid(1, 6), &info(Features(0x0E), &[nid(1, 6), nid(1, 5)]));
    let peer = runner.node.peer(&nid(1, 6)).unwrap();
    assert_eq!((peer.nids(), peer.is_multi_rail(), peer.state), (vec![nid(1, 6)], false, 274));
    assert_eq!(pings(&mut runner), []);
}

/// A peer that was discovered gets an NI, and speaks by that first.
#[test]
fn a_new_ni_of_a_known_peer_may_speak_first() {
    let mut runner = runner();
    let nids = [nid(1, 9), nid(2, 9)];
    push(&mut runner, nids[0], &info(MULTI_RAIL, &nids[..1]));
    push(&mut runner, nids[1], &info(MULTI_RAIL, &nids));
    // The one that is known is asked, and says the same.
    let asked = pings(&mut runner);
    assert!(asked.iter().all(|(_, to, _)| *to == nids[0]) && asked.len() == 1, "{asked:?}");
    let answered = Report::Answered { ping: asked[0].0, bytes: &info(MULTI_RAIL, &nids) };
    runner.node.handle_report(runner.now, answered);
    runner.run();
    let peer = runner.node.peer(&nids[1]).unwrap();
    assert_eq!((peer.primary, peer.nids(), peer.state), (nids[0], nids.to_vec(), 273));
    assert_eq!(runner.node.peers().count(), 1);
    // Another node that claims them has said nothing that they do not deny.
    let claimed = [nid(1, 66), nids[0], nids[1]];
    push(&mut runner, claimed[0], &info(MULTI_RAIL, &claimed));
    runner.answer_all(&nids, &info(MULTI_RAIL, &nids));
    assert_eq!(runner.node.peer(&nids[1]).unwrap().nids(), nids);
    assert_eq!(runner.node.peer(&claimed[0]).unwrap().nids(), claimed[..1]);
    assert_eq!(runner.node.discovery_counters().contradicted, 1, "of those that can be asked");
}

/// A peer waits for its turn while others are pinged, and loses the NID that it waits by.
#[test]
fn a_peer_that_changes_its_nids_keeps_its_turn() {
    let mut runner = runner();
    let nids = [nid(1, 9), nid(1, 8)];
    let told = |sequence, nids: &[Nid]| {
        let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
        let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
        ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, nis).unwrap();
        bytes
    };
    push(&mut runner, nids[0], &told(1, &nids));
    runner.answer_all(&nids, &told(1, &nids));
    for host in 100..164 {
        runner.start(Request::Discover { nid: nid(1, host), is_forced: false });
    }
    let request = runner.start(Request::Discover { nid: nids[0], is_forced: true });
    let others = pings(&mut runner);
    assert!(others.len() == 64 && others.iter().all(|(_, to, _)| !nids.contains(to)), "{others:?}");
    push(&mut runner, nids[1], &told(2, &nids[1..]));
    let error = DriverError { errno: 110, message: "no answer".into() };
    runner.node.handle_report(runner.now, Report::Unanswered { ping: others[0].0, error });
    runner.run();
    let [(own, to, _)] = pings(&mut runner)[..] else { panic!("its turn has not come") };
    assert_eq!(to, nids[1]);
    let bytes = told(2, &nids[1..]);
    runner.node.handle_report(runner.now, Report::Answered { ping: own, bytes: &bytes });
    runner.run();
    assert!(runner.result(request).is_some_and(|result| result.is_ok()));
}

#[test]
fn a_push_that_is_cut_or_says_too_little_has_its_sender_pinged() {
    let mut runner = runner();
    let nids: Vec<_> = (2..=40).map(|host| nid(1, host)).collect();
    let bytes = info(MULTI_RAIL, &nids);
    push(&mut runner, nid(1, 9), &bytes);
    assert_eq!(runner.node.push_room_bytes(), bytes.len());
    let [(first, to, room)] = pings(&mut runner)[..] else { panic!("one ping") };
    assert_eq!((to, room, counters(&runner)), (nid(1, 9), BUFFER_BYTES_MIN, (0, 0, 1)));
    assert_eq!(runner.node.request_count(), 0, "it is the node's own");
    let answered = Report::Answered { ping: first, bytes: &bytes[..room] };
    runner.node.handle_report(runner.now, answered);
    runner.run();
    let (second, _, room) = pings(&mut runner)[0];
    assert_eq!(room, bytes.len());
    runner.node.handle_report(runner.now, Report::Answered { ping: second, bytes: &bytes });
    runner.run();
    runner.answer_all(&nids, &bytes);
    let mut known = runner.node.peer(&nid(1, 9)).unwrap().nids();
    assert_eq!(known[..2], [nid(1, 2), nid(1, 3)], "in the order in which they are told");
    known.sort();
    assert_eq!(known, nids);
    assert!(!runner.done.iter().any(|action| matches!(action, Action::Done { .. })), "it was not asked for");
    // The next one has room.
    push(&mut runner, nid(1, 9), &bytes);
    assert_eq!(counters(&runner), (1, 0, 1));
    push(&mut runner, nid(1, 9), &info(Features(0x06), &nids[..8]));
    push(&mut runner, nid(1, 9), &info(Features(0x06), &nids[..8]));
    let asked = pings(&mut runner);
    assert_eq!(asked.iter().filter(|(_, nid, _)| *nid == nids[0]).count(), 1, "one at once: {asked:?}");
    runner.advance(Duration::from_secs(150));
    assert_eq!(runner.node.poll_timeout(), None);
}

/// A peer has as many NIDs as are kept of one; of more it is warned.
#[test]
fn what_a_peer_tells_beyond_the_limit_is_cut_with_a_warning() {
    for (count, expected) in [(TOLD_MAX, None), (TOLD_MAX + 72, Some(72))] {
        let mut runner = runner();
        let nids: Vec<_> =
            (0..count).map(|index| nid(1 + (index / 200) as u16, (index % 200 + 2) as u8)).collect();
        let bytes = info(MULTI_RAIL, &nids);
        let from = *nids.last().unwrap();
        push(&mut runner, from, &bytes);
        for (ping, _, length_bytes) in pings(&mut runner) {
            let bytes = &bytes[..bytes.len().min(length_bytes)];
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
            runner.run();
        }
        for (ping, ..) in pings(&mut runner) {
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &bytes });
            runner.run();
        }
        let peer = runner.node.peer(&from).unwrap();
        assert_eq!(
            (peer.shown_primary(), peer.nids().len()),
            (nids[0], TOLD_MAX),
            "the NID that it spoke by is among them"
        );
        let cut =
            std::iter::from_fn(|| runner.node.poll_difference()).map(|told| (told.primary, told.cut_count));
        assert_eq!(cut.last(), expected.map(|count| (nids[0], count)));
    }
}

/// A peer that pushes for ever costs a ping or push at a time, and none of the others anything.
#[test]
fn a_peer_that_pushes_for_ever_keeps_no_other_waiting() {
    let mut runner = runner();
    let (good, bad) = (nid(1, 8), nid(1, 9));
    let mut most = 0;
    let mut discovered = 0;
    for round in 0..3000_u32 {
        // Older, newer, cut, without Multi-Rail, and with other NIDs each time.
        let nids = [bad, nid(2, (round % 250 + 2) as u8), nid(3, (round % 7 + 2) as u8)];
        let mut bytes = info(if round % 5 == 0 { Features(0x06) } else { MULTI_RAIL }, &nids);
        if round % 3 == 0 {
            bytes.truncate(40);
        }
        push(&mut runner, bad, &bytes);
        let asked = pings(&mut runner);
        assert!(asked.iter().filter(|(_, nid, _)| *nid == bad).count() <= 1, "one at a time: {asked:?}");
        if round % 100 == 0 {
            let nid = good;
            let request = runner.start(Request::Discover { nid, is_forced: true });
            let (ping, ..) =
                pings(&mut runner).into_iter().find(|(_, to, _)| *to == good).expect("its turn comes");
            let bytes = info(MULTI_RAIL, &[good]);
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &bytes });
            runner.run();
            discovered += u32::from(matches!(runner.result(request), Some(Ok(_))));
        }
        // It answers some of what it is asked.
        for (ping, ..) in asked.into_iter().filter(|(_, nid, _)| *nid == bad && round % 2 == 0) {
            let bytes = info(MULTI_RAIL, &nids);
            runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &bytes });
            runner.run();
        }
        most = most.max(runner.node.peers().count());
        assert!(runner.node.request_count() == 0 && runner.done.len() < 8, "{:?}", runner.done);
    }
    assert_eq!((discovered, most), (30, 2));
    assert_eq!(runner.node.peer(&good).unwrap().nids(), [good]);
}

/// A link that is back is told to all that take part, also to those who have acknowledged what this node
/// tells.
#[test]
fn a_link_that_comes_back_is_pushed_to_all() {
    let mut runner = runner();
    runner.batch(&[NodeChange::AddNi(spec(2, 1))]).unwrap();
    push(&mut runner, nid(1, 9), &info(MULTI_RAIL, &[nid(1, 9)]));
    runner.acknowledges = false;
    let mut link = |is_up| {
        runner.node.handle_report(runner.now, Report::Link { ni: NiId(2), is_up });
        runner.run();
        let mut pushes = Vec::new();
        runner.done.retain(|action| match action {
            Action::Push { ping, nid, .. } => {
                pushes.push((*ping, *nid));
                false
            }
            _ => true,
        });
        for (ping, _) in &pushes {
            runner.node.handle_report(runner.now, Report::Answered { ping: *ping, bytes: &[] });
        }
        runner.run();
        pushes.len()
    };
    assert_eq!([link(false), link(true), link(true)], [1, 1, 0]);
    // It is told as down whatever its link does, and so nothing new is told.
    let down = NodeChange::SetHealth { nid: Some(nid(2, 1)), value: 0 };
    runner.acknowledges = true;
    runner.batch(&[down]).unwrap();
    runner.acknowledges = false;
    let mut link = |is_up| {
        runner.node.handle_report(runner.now, Report::Link { ni: NiId(2), is_up });
        runner.run();
        runner.done.extract_if(.., |action| matches!(action, Action::Push { .. })).count()
    };
    assert_eq!([link(false), link(true)], [0, 1]);
}

#[test]
fn bad_pushes_are_counted_and_no_more() {
    let mut runner = runner();
    let good = info(MULTI_RAIL, &[nid(1, 9)]);
    push(&mut runner, nid(1, 9), &[]);
    push(&mut runner, nid(1, 9), &good[..31]);
    push(&mut runner, nid(1, 9), &[7; 48]);
    push(&mut runner, nid(1, 8), &good);
    push(&mut runner, nid(1, 1), &good);
    push(&mut runner, Nid::ANY, &good);
    assert_eq!((counters(&runner), runner.node.peers().count()), ((0, 6, 0), 0));
    runner.node.reset_discovery_counters();
    assert_eq!(counters(&runner), (0, 0, 0));
    // Many that want to be pinged.
    for host in 2..200 {
        push(&mut runner, nid(1, host), &info(Features(0x06), &[nid(1, host)]));
    }
    assert_eq!(pings(&mut runner).len(), 32, "the rest waits");
}

proptest! {
    #[test]
    fn hostile_pushes_grow_nothing(
        pushes in proptest::collection::vec((
            2u8..12,
            proptest::collection::vec(0u8..255, 1..150),
            proptest::collection::vec((0usize..64, any::<u8>()), 0..4),
        ), 1..12),
    ) {
        let mut runner = runner();
        for (from, hosts, changes) in pushes {
            let nids: Vec<_> =
                std::iter::once(from).chain(hosts).map(|host| nid(1 + u16::from(host) % 3, host)).collect();
            let mut bytes = info(MULTI_RAIL, &nids);
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            push(&mut runner, nids[0], &bytes);
            let mut seen = std::collections::BTreeSet::new();
            for peer in runner.node.peers() {
                prop_assert!(peer.nids().len() <= TOLD_MAX);
                prop_assert_eq!(peer.nids().first().copied(), Some(peer.shown_primary()));
                prop_assert!(peer.ni(&peer.primary).is_some());
                for one in &peer.nids() {
                    prop_assert!(seen.insert(*one), "{} twice", one);
                    prop_assert_eq!(runner.node.peer(one).map(|found| found.primary), Some(peer.primary));
                    prop_assert!(*one != nid(1, 1) && !one.is_any() && !one.is_loopback());
                }
            }
            prop_assert!(runner.node.push_room_bytes() <= BUFFER_BYTES_MAX);
        }
        // Twelve senders, and eight questions for each.
        prop_assert!(pings(&mut runner).len() <= 12 + 12 * 8);
    }
}

/// Nets of types that are not known here, and what can be no NI's name.
#[test]
fn what_is_told_of_unknown_nets_is_kept_and_what_names_no_ni_is_left_out() {
    let mut runner = runner();
    let [unknown, long]: [Nid; 2] = ["a000001@<200:3>", "1:2:3:4@<77:0>"].map(|text| text.parse().unwrap());
    let [nobody, all]: [Nid; 2] = ["0.0.0.0@tcp", "255.255.255.255@tcp"].map(|text| text.parse().unwrap());
    let told = [unknown, nid(1, 9), nobody, long, all, nid(2, 9)];
    push(&mut runner, nid(1, 9), &info(MULTI_RAIL, &told));
    let peer = runner.node.peer(&nid(1, 9)).unwrap();
    assert_eq!((peer.shown_primary(), peer.nids().len()), (unknown, 4), "{:?}", peer.nids());
    assert_eq!(peer.proven_nids(), [nid(1, 9)], "none of the others can be asked");
    assert!([unknown, long, nid(2, 9)].iter().all(|nid| peer.nids().contains(nid)), "{:?}", peer.nids());
    // A primary NID that names no NI: the next one stands for it.
    push(&mut runner, nid(1, 8), &info(MULTI_RAIL, &[nobody, nid(1, 8), nid(1, 7)]));
    let peer = runner.node.peer(&nid(1, 7)).unwrap();
    assert_eq!((peer.primary, peer.nids()), (nid(1, 8), vec![nid(1, 8), nid(1, 7)]));
    let spec = PeerSpec { primary_nid: nobody, nids: Vec::new(), multi_rail: true, lock_primary: false };
    let refused = runner.batch(&[NodeChange::Peer(PeerEdit::Add(spec))]).unwrap_err();
    assert!(refused.to_string().contains("0.0.0.0@tcp"), "{refused}");
}

/// Peers that each tell as many NIDs as they may hold no more than their share of the node's memory.
#[test]
fn the_nids_of_all_peers_together_are_bounded() {
    let max = 64;
    let mut runner = Runner::with(NodeConfig { peers_max: max, ..config(1) });
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let host = |number: usize| -> Nid {
        let [high, low] = u16::try_from(number).unwrap().to_be_bytes();
        format!("10.9.{high}.{low}@tcp1").parse().unwrap()
    };
    for peer in 0..max {
        let nids: Vec<Nid> = (0..TOLD_MAX).map(|number| host(peer * TOLD_MAX + number)).collect();
        push(&mut runner, nids[0], &info(MULTI_RAIL, &nids));
        let held: usize = runner.node.peers().map(|peer| peer.nids().len()).sum();
        assert!(held <= 4 * max || runner.node.peers().count() == 1, "{held} NIDs of {max} peers");
        assert!(runner.node.peer(&nids[0]).is_some(), "who has told last stays");
    }
}
