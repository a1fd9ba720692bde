//! NIDs that peers claim: who gets them, when, and what a claim costs others.

use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, DriverError, NodeChange, NodeConfig, PeerEdit, PingId, Report, Request, peer_state,
};
use lnet_core::shard::{HealthNote, PathNote, PathState};
use lnet_core::topology::HEALTH_MAX;
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Runner, config, nid, spec};

/// Multi-Rail, with discovery.
const MULTI_RAIL: Features = Features(0x1E);
/// Multi-Rail, without.
const NO_DISCOVERY: Features = Features(0x0E);
const SECOND: Duration = Duration::from_secs(1);

/// A node on nets 1 and 2.
fn runner() -> Runner {
    with(config(1))
}

fn with(config: NodeConfig) -> Runner {
    let mut runner = Runner::with(config);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 1))]).unwrap();
    runner
}

fn info_of(features: Features, sequence: u32, nis: &[(Nid, NiStatus)]) -> Vec<u8> {
    let nis = nis.iter().map(|(nid, status)| PingNi { nid: *nid, status: *status });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, features, 12345, sequence, nis).unwrap();
    bytes
}

fn told_up<const N: usize>(nids: [Nid; N]) -> impl Iterator<Item = PingNi> + Clone {
    nids.into_iter().map(|nid| PingNi { nid, status: NiStatus::UP })
}

fn info(sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let nis: Vec<_> = nids.iter().map(|nid| (*nid, NiStatus::UP)).collect();
    info_of(MULTI_RAIL, sequence, &nis)
}

fn push(runner: &mut Runner, from: Nid, bytes: &[u8]) {
    let report = Report::Pushed { from, bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
}

/// The pings that were sent since this was asked last.
fn pings(runner: &mut Runner) -> Vec<(PingId, Nid)> {
    let is_ping = |action: &mut Action<u32>| matches!(action, Action::Ping { .. });
    let pings = runner.done.extract_if(.., is_ping).map(|action| match action {
        Action::Ping { ping, nid, .. } => (ping, nid),
        _ => unreachable!(),
    });
    pings.collect()
}

fn asked(runner: &mut Runner) -> Vec<Nid> {
    pings(runner).into_iter().map(|(_, nid)| nid).collect()
}

fn answer(runner: &mut Runner, ping: PingId, bytes: &[u8]) {
    runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
    runner.run();
}

/// The next ping goes to a NID, which answers.
#[track_caller]
fn answer_next(runner: &mut Runner, nid: Nid, bytes: &[u8]) {
    let [(ping, to)] = pings(runner)[..] else { panic!("one ping") };
    assert_eq!(to, nid);
    answer(runner, ping, bytes);
}

fn fail(runner: &mut Runner, ping: PingId) {
    let error = DriverError { errno: 113, message: "no route".into() };
    runner.node.handle_report(runner.now, Report::Unanswered { ping, error });
    runner.run();
}

/// The NIDs of the peer that has a NID, as shards know them: those that messages go to.
fn destinations(runner: &Runner, nid: Nid) -> Vec<Nid> {
    let view = runner.topology.peer(&nid);
    view.map(|view| view.nis.iter().map(|ni| ni.nid).collect()).unwrap_or_default()
}

fn shown(runner: &Runner, nid: Nid) -> (Nid, Vec<Nid>) {
    let peer = runner.node.peer(&nid).unwrap();
    (peer.shown_primary(), peer.nids())
}

/// Proven, contradicted.
fn counters(runner: &Runner) -> (u64, u64) {
    let counters = runner.node.discovery_counters();
    (counters.proven, counters.contradicted)
}

fn discover(runner: &mut Runner, nid: Nid, bytes: &[u8]) {
    let request = runner.start(Request::Discover { nid, is_forced: false });
    let (ping, _) = *pings(runner).iter().find(|(_, to)| *to == nid).expect("a ping");
    answer(runner, ping, bytes);
    assert!(matches!(runner.result(request), Some(Ok(_))), "no discovery waits for a claim");
}

fn is_awaited(runner: &Runner, nid: Nid) -> bool {
    runner.topology.peer(&nid).is_some_and(|view| view.awaits_name)
}

/// NIDs that a push tells are shown, and are no destinations until they have said so.
#[test]
fn a_claimed_nid_is_a_peers_once_it_says_so() {
    for order in [[9, 8], [8, 9]] {
        let mut runner = runner();
        let [spoken, other] = [nid(1, 9), nid(2, 9)];
        let told = order.map(|host| if host == 9 { spoken } else { other });
        push(&mut runner, spoken, &info(7, &told));
        assert_eq!(shown(&runner, other), (told[0], told.to_vec()), "as a kernel node shows it");
        assert_eq!((destinations(&runner, spoken), counters(&runner)), (vec![spoken], (0, 0)));
        assert_eq!(runner.node.peer(&spoken).unwrap().primary, spoken);
        // The order, and the number, of what it says does not matter.
        answer_next(&mut runner, other, &info(3, &[other, nid(1, 77), spoken]));
        assert_eq!(runner.node.peer(&other).unwrap().primary, told[0]);
        let mut known = destinations(&runner, other);
        known.sort();
        assert_eq!((known, counters(&runner)), (vec![spoken, other], (1, 0)));
        assert!(runner.node.poll_proven().is_some_and(|proven| proven.nid == other));
        assert_eq!(runner.node.peer(&spoken).unwrap().state, 273);
    }
}

/// A push that claims a friend's NID before this node has met the friend takes nothing of it, whatever its
/// sequence number, and the friend's own push is no older for that.
#[test]
fn a_friend_is_not_taken_before_it_is_met() {
    let mut runner = runner();
    let (liar, friend) = (nid(1, 66), [nid(1, 9), nid(2, 9)]);
    push(&mut runner, liar, &info(u32::MAX, &[liar, friend[0], friend[1]]));
    let asked = pings(&mut runner);
    assert_eq!(asked.iter().map(|(_, nid)| *nid).collect::<Vec<_>>(), friend);
    assert_eq!(destinations(&runner, liar), [liar]);
    assert!(!runner.topology.is_same_peer(&liar, &friend[0]), "it speaks for none of them");
    push(&mut runner, friend[0], &info(1, &friend));
    assert_eq!(destinations(&runner, friend[0])[0], friend[0]);
    assert_eq!(runner.node.discovery_counters().pinged, 0, "its push is not older than another one's");
    for (ping, _) in asked {
        answer(&mut runner, ping, &info(1, &friend));
    }
    assert_eq!(destinations(&runner, friend[1]), friend);
    assert_eq!((destinations(&runner, liar), counters(&runner)), (vec![liar], (1, 2)));
    assert!(runner.node.peer(&liar).unwrap().is(peer_state::BAD_CONFIG));
    assert!(runner.node.poll_contradicted().is_some_and(|claim| claim.claimant == liar));
    assert_eq!(shown(&runner, friend[1]).1, friend, "it is shown with the friend");
    assert_eq!(shown(&runner, liar).1, [liar]);
}

/// A peer that is discovered keeps what it has, and is not asked for ever.
#[test]
fn a_discovered_friend_keeps_its_nids() {
    let mut runner = runner();
    let (liar, friend) = (nid(1, 66), nid(1, 9));
    discover(&mut runner, friend, &info(1, &[friend]));
    for round in 1..=10 {
        push(&mut runner, liar, &info(round, &[liar, friend]));
        for (ping, to) in pings(&mut runner) {
            assert_eq!(to, friend);
            answer(&mut runner, ping, &info(1, &[friend]));
        }
        assert!(!is_awaited(&runner, friend), "its messages do not wait");
        runner.advance(2 * SECOND);
    }
    assert_eq!((destinations(&runner, friend), destinations(&runner, liar)), (vec![friend], vec![liar]));
    assert_eq!(counters(&runner), (0, 10));
    // No push any more: it is asked after 1, 2, 4 seconds and so on, then once a minute.
    let mut count = 0;
    for _ in 0..600 {
        runner.advance(SECOND);
        for (ping, _) in pings(&mut runner) {
            count += 1;
            answer(&mut runner, ping, &info(1, &[friend]));
        }
    }
    assert!((9..=17).contains(&count), "{count} questions in ten minutes");
    assert_eq!(counters(&runner), (0, 10), "a contradiction counts once for each push");
}

#[test]
fn both_claim_each_others_and_each_keeps_its_own() {
    let mut runner = runner();
    let [one, other] = [8, 9].map(|host| [nid(1, host), nid(2, host)]);
    for own in [one, other] {
        discover(&mut runner, own[0], &info(1, &own));
        answer_next(&mut runner, own[1], &info(1, &own));
    }
    let lies = [[one[0], one[1], other[1]], [other[0], other[1], one[1]]];
    for _ in 0..50 {
        for (own, lie) in [one, other].iter().zip(&lies) {
            push(&mut runner, own[0], &info(2, lie));
        }
        for (ping, to) in pings(&mut runner) {
            let lie = if one.contains(&to) { lies[0] } else { lies[1] };
            answer(&mut runner, ping, &info(2, &lie));
        }
        runner.advance(SECOND);
        for own in [one, other] {
            assert_eq!(destinations(&runner, own[1]), own);
        }
    }
}

/// A NID that is down when it is told, and up later: it is asked again after each push, each change of its
/// status or path, and else at intervals that double.
#[test]
fn a_nid_that_is_down_is_asked_again() {
    let mut runner = runner();
    let [up, down] = [nid(1, 9), nid(2, 9)];
    let told = move |sequence, status| info_of(MULTI_RAIL, sequence, &[(up, NiStatus::UP), (down, status)]);
    push(&mut runner, up, &told(1, NiStatus::DOWN));
    let mut times = Vec::new();
    for second in 0..200 {
        for (ping, to) in pings(&mut runner) {
            assert_eq!(to, down);
            times.push(second);
            fail(&mut runner, ping);
        }
        runner.advance(SECOND);
    }
    assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    assert_eq!(destinations(&runner, up), [up]);
    type Change = Box<dyn Fn(&mut Runner)>;
    let changes: [(&str, Change); 4] = [
        ("a push", Box::new(move |runner| push(runner, up, &told(2, NiStatus::DOWN)))),
        ("a status", Box::new(move |runner| push(runner, up, &told(2, NiStatus::UP)))),
        (
            "a path",
            Box::new(move |runner| {
                let note = PathNote { local: nid(2, 1), peer: down, state: PathState::Answers };
                runner.node.handle_report(runner.now, Report::Path(note));
                runner.run();
            }),
        ),
        (
            "a link",
            Box::new(|runner| {
                for is_up in [false, true] {
                    runner.node.handle_report(runner.now, Report::Link { ni: NiId(2), is_up });
                    runner.run();
                }
            }),
        ),
    ];
    for (what, change) in changes {
        runner.advance(2 * SECOND);
        pings(&mut runner).into_iter().for_each(|(ping, _)| fail(&mut runner, ping));
        runner.advance(2 * SECOND);
        pings(&mut runner).into_iter().for_each(|(ping, _)| fail(&mut runner, ping));
        runner.advance(2 * SECOND);
        pings(&mut runner).into_iter().for_each(|(ping, _)| fail(&mut runner, ping));
        change(&mut runner);
        let asked = pings(&mut runner);
        assert!(asked.iter().any(|(_, to)| *to == down), "{what} has it asked: {asked:?}");
        asked.into_iter().for_each(|(ping, _)| fail(&mut runner, ping));
    }
    runner.advance(5 * SECOND);
    let (ping, _) = *pings(&mut runner).last().expect("it is asked again");
    answer(&mut runner, ping, &info(2, &[up, down]));
    assert_eq!(destinations(&runner, down), [up, down]);
}

#[test]
fn eight_are_asked_at_once_for_one_address() {
    let mut runner = runner();
    let told: Vec<_> = (100..150).map(|host| nid(2, host)).collect();
    let from = |host| nid(1, host);
    push(&mut runner, from(9), &info(1, &[&[from(9)], &told[..]].concat()));
    assert_eq!(asked(&mut runner).len(), 8);
    // Another name from the same address has no share of its own; another address has.
    let report = Report::CameFrom { nid: from(8), address: "10.0.0.9".parse().unwrap() };
    runner.node.handle_report(runner.now, report);
    push(&mut runner, from(8), &info(1, &[from(8), nid(2, 200)]));
    assert_eq!(asked(&mut runner), []);
    push(&mut runner, from(7), &info(1, &[from(7), nid(2, 201)]));
    assert_eq!(asked(&mut runner), [nid(2, 201)]);
    // All have their turn.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..600 {
        runner.advance(SECOND / 10);
        seen.extend(asked(&mut runner));
    }
    assert!(told.iter().filter(|nid| seen.contains(nid)).count() >= 42, "{} of 50", seen.len());
}

/// NIDs of nets that this node is not on are shown and not asked, also a primary one; once it is on the net
/// they are.
#[test]
fn what_is_out_of_reach_is_shown_and_not_asked() {
    let mut runner = runner();
    let [far, near] = [nid(3, 9), nid(1, 9)];
    discover(&mut runner, near, &info(1, &[far, near]));
    assert_eq!(shown(&runner, near), (far, vec![far, near]));
    assert_eq!(runner.node.peer(&far).unwrap().primary, near, "it goes by what is proven");
    assert_eq!(runner.topology.peer(&near).unwrap().primary, near);
    let counted = |runner: &Runner| runner.topology.peer(&near).unwrap().nid_count;
    assert_eq!(counted(&runner), 2, "it is a NID of the peer's all the same");
    // The peer has other NIs than the one that is used, whose failures cost health therefore.
    let note = HealthNote { nid: near, failures: 2, successes: 0 };
    runner.node.handle_report(runner.now, Report::Health(note));
    runner.run();
    assert_eq!(runner.topology.peer_health(&near), HEALTH_MAX - 200);
    runner.node.handle_report(runner.now, Report::Health(HealthNote { failures: 0, successes: 2, ..note }));
    runner.run();
    assert!(pings(&mut runner).is_empty());
    // The first that claims it has it shown.
    let other = nid(2, 9);
    discover(&mut runner, other, &info(1, &[other, far]));
    assert_eq!((counted(&runner), runner.topology.peer(&other).unwrap().nid_count), (2, 1));
    discover(&mut runner, near, &info(2, &[near]));
    assert_eq!((counted(&runner), runner.topology.peer(&other).unwrap().nid_count), (1, 2));
    discover(&mut runner, other, &info(2, &[other]));
    discover(&mut runner, near, &info(3, &[far, near]));
    runner.advance(100 * SECOND);
    assert_eq!((asked(&mut runner), is_awaited(&runner, near)), (vec![], false));
    assert_eq!(runner.node.poll_timeout(), None);
    runner.batch(&[NodeChange::AddNi(spec(3, 1))]).unwrap();
    answer_next(&mut runner, far, &info(3, &[far, near]));
    assert_eq!(destinations(&runner, near), [far, near]);
}

/// Lists that are ignored anyway are not asked about: with discovery off at either end, and in verify mode.
#[test]
fn ignored_lists_are_not_asked_about() {
    let told = [nid(1, 9), nid(2, 9)];
    for (value, features) in [(0, MULTI_RAIL), (2, MULTI_RAIL), (1, NO_DISCOVERY)] {
        let mut runner = runner();
        let setting = Global::Discovery;
        let value = if value == 2 { lnet_wire::Discovery::Verify as i64 } else { value };
        runner.batch(&[NodeChange::Set { setting, value }]).unwrap();
        let nis = told.map(|nid| (nid, NiStatus::UP));
        push(&mut runner, told[0], &info_of(features, 1, &nis));
        runner.advance(100 * SECOND);
        assert!(!asked(&mut runner).contains(&told[1]), "{value}, {features:?}");
        assert_eq!(destinations(&runner, told[0]), told[..1]);
    }
    // Discovery is switched off while a claim is open.
    let mut runner = runner();
    push(&mut runner, told[0], &info(1, &told));
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 0 }]).unwrap();
    let [(ping, _)] = pings(&mut runner)[..] else { panic!("a question") };
    answer(&mut runner, ping, &info(1, &told));
    assert_eq!((destinations(&runner, told[0]), counters(&runner)), (told[..1].to_vec(), (0, 0)));
}

#[test]
fn what_an_administrator_has_given_is_neither_asked_nor_taken() {
    let mut runner = runner();
    let (liar, friend) = (nid(1, 66), [nid(1, 9), nid(2, 9)]);
    let peer =
        PeerSpec { primary_nid: friend[0], nids: vec![friend[1]], multi_rail: true, lock_primary: false };
    runner.batch(&[NodeChange::Peer(PeerEdit::Add(peer))]).unwrap();
    assert_eq!(destinations(&runner, friend[1]), friend, "no question");
    push(&mut runner, liar, &info(9, &[liar, friend[0], friend[1]]));
    runner.advance(100 * SECOND);
    assert_eq!((asked(&mut runner), counters(&runner)), (vec![], (0, 2)));
    assert_eq!(
        (destinations(&runner, friend[1]), destinations(&runner, liar)),
        (friend.to_vec(), vec![liar])
    );
}

/// A program's word of a peer needs no proof.
#[test]
fn what_a_program_has_announced_is_not_asked() {
    let mut runner = runner();
    let nids = [nid(1, 9), nid(2, 9)];
    runner.start(Request::Announce { nids: nids.to_vec() });
    answer_next(&mut runner, nids[1], &info(1, &[nids[1]]));
    assert_eq!(destinations(&runner, nids[0]), nids);
    assert_eq!((asked(&mut runner), counters(&runner)), (vec![], (0, 0)));
}

/// A request from a NID that is claimed waits, has the NID asked, and goes on under the name that is proven,
/// or after a second; the next one does not wait.
#[test]
fn the_first_request_of_a_claimed_nid_has_it_asked() {
    for is_proven in [true, false] {
        let mut runner = runner();
        let [first, second] = [nid(1, 9), nid(1, 8)];
        push(&mut runner, first, &info(1, &[first, second]));
        let [(ping, _)] = pings(&mut runner)[..] else { panic!("a question") };
        fail(&mut runner, ping);
        assert!(is_awaited(&runner, second) && !is_awaited(&runner, first));
        runner.advance(SECOND / 2);
        runner.node.handle_report(runner.now, Report::Waiting { nid: second });
        runner.run();
        let asked = pings(&mut runner);
        assert!(!asked.is_empty() && asked.iter().all(|(_, to)| *to == second), "{asked:?}");
        if is_proven {
            answer(&mut runner, asked[0].0, &info(1, &[first, second]));
            assert_eq!(runner.topology.peer(&second).unwrap().primary, first);
        } else {
            runner.advance(SECOND);
            assert_eq!(runner.topology.peer(&second).unwrap().primary, second);
        }
        assert!(!is_awaited(&runner, second));
        // Pushes do not have the next ones wait, nor do claims that are made anew.
        for round in 2..5 {
            push(&mut runner, first, &info(round, &[first, second]));
            assert!(!is_awaited(&runner, second), "{is_proven}");
            if !is_proven {
                push(&mut runner, first, &info(round, &[first]));
            }
        }
    }
}

/// A push that comes by the second NID: the primary one is asked, and requests of the second wait for that,
/// a second at most, though the primary one does not answer.
#[test]
fn a_peer_that_pushes_by_its_second_nid_goes_by_its_primary_one() {
    for is_reached in [true, false] {
        let mut runner = runner();
        let [first, second] = [nid(1, 9), nid(1, 8)];
        push(&mut runner, second, &info(1, &[first, second]));
        assert!(is_awaited(&runner, second));
        assert_eq!(shown(&runner, second), (first, vec![first, second]));
        runner.node.handle_report(runner.now, Report::Waiting { nid: second });
        runner.run();
        // The way there, and what comes by it before the answer, makes a peer of the primary NID.
        let traffic = Report::Traffic { nid: first, is_incoming: false, first_ni: None };
        runner.node.handle_report(runner.now, traffic);
        runner.run();
        assert!(is_awaited(&runner, second));
        let [(ping, to)] = pings(&mut runner)[..] else { panic!("one question") };
        assert_eq!(to, first);
        if is_reached {
            answer(&mut runner, ping, &info(1, &[first, second]));
        } else {
            runner.advance(SECOND);
        }
        assert!(!is_awaited(&runner, second));
        let primary = runner.topology.peer(&second).unwrap().primary;
        assert_eq!(primary, if is_reached { first } else { second });
        runner.advance(10 * SECOND);
        push(&mut runner, second, &info(2, &[first, second]));
        assert!(!is_awaited(&runner, second), "the next one does not wait");
    }
}

/// A node that has come in a NID's name from elsewhere proves nothing by it; the NID's own address does.
#[test]
fn an_answer_from_elsewhere_proves_nothing() {
    let mut runner = runner();
    let [liar, friend] = [nid(1, 66), nid(1, 9)];
    let speaks = |runner: &mut Runner, address: &str| {
        let report = Report::CameFrom { nid: friend, address: address.parse().unwrap() };
        runner.node.handle_report(runner.now, report);
    };
    speaks(&mut runner, "10.0.0.66");
    push(&mut runner, liar, &info(1, &[liar, friend]));
    answer_next(&mut runner, friend, &info(1, &[friend, liar]));
    assert_eq!((destinations(&runner, liar), counters(&runner)), (vec![liar], (0, 0)));
    speaks(&mut runner, "10.0.0.9");
    runner.advance(SECOND);
    answer_next(&mut runner, friend, &info(1, &[friend]));
    assert_eq!((destinations(&runner, liar), counters(&runner)), (vec![liar], (0, 1)));
}

/// A node that has come in a NID's name from elsewhere takes none of the peer's other NIDs, nor its health.
/// The peer itself gives one up.
#[test]
fn a_word_from_elsewhere_takes_no_proven_nid() {
    let mut runner = runner();
    let [first, second] = [nid(1, 9), nid(1, 10)];
    discover(&mut runner, first, &info(1, &[first, second]));
    answer_next(&mut runner, second, &info(1, &[first, second]));
    let both = [first, second];
    assert_eq!(destinations(&runner, first), both);
    let speaks = |runner: &mut Runner, nid: Nid, address: &str| {
        let report = Report::CameFrom { nid, address: address.parse().unwrap() };
        runner.node.handle_report(runner.now, report);
    };
    let down = both.map(|nid| (nid, NiStatus::DOWN));
    for name in both {
        speaks(&mut runner, name, "10.0.0.66");
        for lie in [
            info(7, &[name]),
            info(8, &[nid(1, 66), name]),
            info_of(MULTI_RAIL, 9, &down),
            info_of(Features::NI_STATUS, 10, &[(name, NiStatus::UP)]),
        ] {
            push(&mut runner, name, &lie);
            for (ping, asked) in pings(&mut runner) {
                if asked == name { answer(&mut runner, ping, &lie) } else { fail(&mut runner, ping) }
            }
            let peer = runner.node.peer(&first).unwrap();
            assert_eq!((peer.primary, destinations(&runner, first)), (first, both.to_vec()), "{name}");
            assert!(peer.nis.iter().all(|ni| ni.health == 1000 && ni.is_up != Some(false)), "{name}");
        }
        speaks(&mut runner, name, &name.ip().unwrap().to_string());
    }
    push(&mut runner, first, &info(20, &[first]));
    assert_eq!(destinations(&runner, first), [first]);
}

/// One address with many names takes room from itself: neither from peers that are discovered nor from those
/// of other addresses.
#[test]
fn many_names_from_one_address_evict_no_others() {
    let max = 64;
    let mut runner = with(NodeConfig { peers_max: max, ..config(1) });
    let friends: Vec<_> = (2..32).map(|host| nid(1, host)).collect();
    for friend in &friends {
        discover(&mut runner, *friend, &info(1, &[*friend]));
    }
    let quiet: Vec<_> = (40..60).map(|host| nid(1, host)).collect();
    let hear = |runner: &mut Runner, nid: Nid| {
        let report = Report::Traffic { nid, is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
    };
    quiet.iter().for_each(|nid| hear(&mut runner, *nid));
    let address = "192.0.2.7".parse().unwrap();
    let name = |number: u32| -> Nid {
        let [.., high, low] = number.to_be_bytes();
        format!("10.7.{high}.{low}@tcp1").parse().unwrap()
    };
    for number in 1..=6000 {
        let name = name(number);
        runner.node.handle_report(runner.now, Report::CameFrom { nid: name, address });
        hear(&mut runner, name);
        push(&mut runner, name, &info(number, &[name, friends[0]]));
        runner.done.clear();
    }
    assert!(runner.node.peers().count() <= max);
    for nid in friends.iter().chain(&quiet) {
        assert!(runner.node.peer(nid).is_some_and(|peer| peer.primary == *nid), "{nid} is forgotten");
    }
    assert_eq!(destinations(&runner, friends[0]), friends[..1]);
}

/// A name that has come from elsewhere is forgotten once its connections are ended: until then no answer in
/// it proves a claim, however many such names have come since.
#[test]
fn a_name_from_elsewhere_is_ended_before_it_is_forgotten() {
    let mut runner = runner();
    let [liar, friend] = [nid(1, 9), nid(2, 5)];
    let address = liar.ip().unwrap();
    runner.node.handle_report(runner.now, Report::CameFrom { nid: friend, address });
    let name = |number: u32| -> Nid {
        let [_, upper, high, low] = number.to_be_bytes();
        format!("10.{upper}.{high}.{low}@tcp3").parse().unwrap()
    };
    let mut ended = Vec::new();
    for number in 1..=40_000 {
        runner.node.handle_report(runner.now, Report::CameFrom { nid: name(number), address });
        while let Some(action) = runner.node.poll_action() {
            if let Action::Disconnect { nid } = action {
                ended.push(nid);
            }
        }
        if number == 12_000 {
            assert_eq!(ended, []);
            push(&mut runner, liar, &info(1, &[liar, friend]));
            answer_next(&mut runner, friend, &info(1, &[friend, liar]));
            assert_eq!((destinations(&runner, liar), counters(&runner)), (vec![liar], (0, 0)));
        }
    }
    assert_eq!(ended[..3], [friend, name(1), name(2)]);
    // Each of those that came in the order in which they came, and the newest not yet.
    assert!(ended.len() > 20_000 && ended.len() < 30_000, "{}", ended.len());
}

/// A name that connects again and again ends no other one.
#[test]
fn a_name_from_elsewhere_that_comes_often_ends_no_other() {
    let mut runner = runner();
    let address = "192.0.2.7".parse().unwrap();
    for number in 0..40_000 {
        let nid = if number == 0 { nid(2, 5) } else { nid(2, 6) };
        runner.node.handle_report(runner.now, Report::CameFrom { nid, address });
    }
    assert!(
        !core::iter::from_fn(|| runner.node.poll_action())
            .any(|action| matches!(action, Action::Disconnect { .. }))
    );
}

/// Peers that were never discovered make room before those that were.
#[test]
fn strangers_evict_strangers() {
    let mut runner = with(NodeConfig { peers_max: 8, ..config(1) });
    let friends: Vec<_> = (2..8).map(|host| nid(1, host)).collect();
    for friend in &friends {
        discover(&mut runner, *friend, &info(1, &[*friend]));
    }
    for host in 100..250 {
        let report = Report::Traffic { nid: nid(1, host), is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
    }
    assert!(friends.iter().all(|nid| runner.node.peer(nid).is_some()));
    assert!(runner.node.peer(&nid(1, 249)).is_some() && runner.node.peers().count() <= 8);
}

/// A NID that is this node's own from now on is no peer's claim.
#[test]
fn a_claimed_nid_that_becomes_this_nodes_own_is_claimed_no_more() {
    let mut runner = runner();
    push(&mut runner, nid(1, 9), &info(1, &[nid(1, 9), nid(2, 5)]));
    assert_eq!(asked(&mut runner), [nid(2, 5)]);
    runner.batch(&[NodeChange::AddNi(spec(2, 5))]).unwrap();
    runner.advance(100 * SECOND);
    assert_eq!(shown(&runner, nid(1, 9)).1, [nid(1, 9)]);
    assert_eq!(asked(&mut runner), []);
}

/// An answer that is cut short has the NID asked once more, and proves then what it still says.
#[test]
fn an_answer_that_is_cut_proves_what_it_says() {
    let mut runner = runner();
    let [spoken, other] = [nid(1, 9), nid(2, 9)];
    push(&mut runner, spoken, &info(1, &[spoken, other]));
    let whole = info(1, &[other, spoken, nid(1, 10), nid(2, 10)]);
    let cut = &whole[..ping::encoded_bytes(told_up([other, spoken])).unwrap()];
    answer_next(&mut runner, other, cut);
    assert_eq!(counters(&runner), (0, 0));
    answer_next(&mut runner, other, cut);
    assert_eq!((destinations(&runner, other).len(), counters(&runner)), (2, (1, 0)));
}

/// Claims of many addresses whose NIDs never answer leave room for the first question about another address.
#[test]
fn silent_claims_of_many_leave_room_for_the_question_of_another() {
    let mut runner = with(NodeConfig { peers_max: 1024, ..config(1) });
    for liar in 10..50_u8 {
        let claimed = (0..16).map(|number| 50 + (u16::from(liar) * 16 + number) % 200);
        let claims: Vec<_> = claimed.map(|host| nid(2, host as u8)).collect();
        push(&mut runner, nid(1, liar), &info(1, &[&[nid(1, liar)], &claims[..]].concat()));
    }
    assert!(asked(&mut runner).len() >= 100);
    let friend = [nid(1, 9), nid(2, 9)];
    push(&mut runner, friend[0], &info(1, &friend));
    answer_next(&mut runner, friend[1], &info(1, &friend));
    assert_eq!(destinations(&runner, friend[0]).len(), 2);
}
