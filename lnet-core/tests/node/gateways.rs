//! Checks of gateways, and which routes are up by what is known of these.

use std::time::Duration;

use lnet_core::node::{Action, NodeChange, Report, Request, peer_state};
use lnet_core::shard::{HealthNote, PathNote, PathState};
use lnet_model::route::RouteSpec;
use lnet_wire::ping::Features;
use lnet_wire::{Global, Net, Nid, Parameter};

use crate::common::{Lnd, Runner, nid, spec, word};

const SECOND: Duration = Duration::from_secs(1);
/// Words of a router, of one that forwards nothing now, and of one without discovery.
const ROUTER: Features = Features(0x1A);
const OFF: Features = Features(0x1E);
const PLAIN: Features = Features(0x0A);

fn far() -> Net {
    nid(9, 1).net()
}

/// The NIDs of a gateway: on two nets of the node, and on the net behind it.
fn gateway() -> [Nid; 3] {
    [nid(1, 7), nid(2, 7), nid(9, 7)]
}

fn route(gateway: Nid, hops: Option<u8>) -> NodeChange<Lnd> {
    NodeChange::AddRoute(RouteSpec { hops, ..RouteSpec::new(far(), gateway) })
}

fn set(parameter: Parameter, value: u32) -> NodeChange<Lnd> {
    NodeChange::SetParameter { parameter, value }
}

/// A node on `tcp1` and `tcp2`.
fn runner(changes: &[NodeChange<Lnd>]) -> Runner {
    let mut runner = Runner::new(1);
    let nis = [NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))];
    runner.batch(&[&nis, changes].concat()).unwrap();
    runner
}

/// All pings and pushes since this was asked last: where they go, and where they come from. They are answered
/// with these bytes, and what follows from that as well.
fn answer(runner: &mut Runner, bytes: &[u8]) -> Vec<(Nid, Option<Nid>)> {
    let mut asked = Vec::new();
    runner.acknowledges = false;
    while let Some(at) =
        runner.done.iter().position(|action| matches!(action, Action::Ping { .. } | Action::Push { .. }))
    {
        let (ping, to, bytes) = match runner.done.remove(at) {
            Action::Ping { ping, nid, source, .. } => (ping, (nid, source), bytes),
            Action::Push { ping, nid, source, .. } => (ping, (nid, source), &[][..]),
            _ => unreachable!(),
        };
        asked.push(to);
        runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
        runner.run();
    }
    asked
}

/// All pings that wait are refused, and those that follow from that; where they went.
fn refuse(runner: &mut Runner) -> Vec<Nid> {
    let mut asked = Vec::new();
    let waiting = |runner: &Runner| {
        runner.done.iter().find_map(|action| match action {
            Action::Ping { nid, .. } => Some(*nid),
            _ => None,
        })
    };
    while let Some(nid) = waiting(runner) {
        asked.push(nid);
        runner.fail(&nid);
    }
    asked
}

fn is_up(runner: &Runner) -> bool {
    let mut states = runner.node.net_routes().map(|route| route.is_up);
    let state = states.next().unwrap();
    let routes = runner.topology.net_routes().unwrap();
    assert_eq!(!routes.to(far()).is_empty(), state || states.any(|is_up| is_up), "shards know it");
    state
}

/// A word of the gateway, with whether its NIs are up.
fn told(features: Features, sequence: u32, are_up: [bool; 3]) -> Vec<u8> {
    let nis: Vec<_> = gateway().into_iter().zip(are_up).collect();
    word(features, sequence, &nis)
}

fn tell(runner: &mut Runner, bytes: &[u8]) {
    let report = Report::Pushed { from: nid(1, 7), bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    answer(runner, bytes);
}

#[test]
fn a_gateway_is_pinged_and_pushed_to_by_one_net_after_the_other() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    assert!(runner.node.awaits_gateways() && is_up(&runner), "nothing is known of it");
    let peer = |runner: &Runner| runner.node.peer(&nid(1, 7)).unwrap().clone();
    assert!(peer(&runner).is(peer_state::ROUTER_DISCOVERY));
    let all = told(ROUTER, 1, [true; 3]);
    let by = |net: u16| (nid(net, 7), Some(nid(net, net as u8)));
    let first = answer(&mut runner, &all);
    assert_eq!(first.iter().filter(|asked| **asked == by(1)).count(), 2, "{first:?}");
    // The other net is known by that, and it is asked there as soon as it has proven that it is there.
    runner.advance(Duration::ZERO);
    let second = [first, answer(&mut runner, &all)].concat();
    assert_eq!(second.iter().filter(|asked| **asked == by(2)).count(), 2, "{second:?}");
    assert!(!runner.node.awaits_gateways() && is_up(&runner));
    assert!(peer(&runner).is(peer_state::ROUTER_DISCOVERED | peer_state::ROUTER_ENABLED));
    assert!(!peer(&runner).is(peer_state::ROUTER_DISCOVERY));
    runner.advance(SECOND * 59);
    assert_eq!(answer(&mut runner, &all), []);
    runner.advance(SECOND);
    assert_eq!(answer(&mut runner, &all), [by(1), by(1), by(2), by(2)]);
    // By a net without a link there is nothing to be asked, and at once when that is back.
    let ni = runner.node.ni(&nid(1, 1)).unwrap().ni;
    runner.node.handle_report(runner.now, Report::Link { ni, is_up: false });
    runner.advance(SECOND * 60);
    let asked = answer(&mut runner, &all);
    assert!(asked.contains(&by(2)) && !asked.contains(&by(1)), "{asked:?}");
    runner.node.handle_report(runner.now, Report::Link { ni, is_up: true });
    runner.run();
    let asked = answer(&mut runner, &all);
    assert!(asked.contains(&by(1)) && !asked.contains(&by(2)), "{asked:?}");
}

/// The word of a gateway makes its routes up or down, by all of: whether it forwards, its NI on the near net,
/// and that on the far net if that is the next one.
#[test]
fn a_route_is_up_by_the_word_of_its_gateway() {
    let [is_far_up, is_far_down, is_near_down] = [[true; 3], [true, true, false], [false, true, true]];
    let without_far = [(nid(1, 7), true), (nid(2, 7), true)];
    for (features, are_up, hops, avoids, expected) in [
        (ROUTER, is_far_up, None, 1, true),
        (OFF, is_far_up, None, 1, false),
        (ROUTER, is_far_down, None, 1, false),
        (ROUTER, is_far_down, Some(1), 1, false),
        (ROUTER, is_far_down, Some(2), 1, false),
        (ROUTER, is_far_down, None, 0, true),
        (ROUTER, is_near_down, None, 0, false),
        (PLAIN, is_far_up, None, 1, true),
        (PLAIN, is_far_down, None, 1, false),
        (PLAIN.with(Features::ROUTING_DISABLED), is_far_up, None, 1, false),
    ] {
        let mut runner = runner(&[set(Parameter::AvoidAsymRouterFailure, avoids), route(nid(1, 7), hops)]);
        answer(&mut runner, &told(features, 1, is_far_up));
        // The answer to a check by an NI proves that one to be up; the rest is its word.
        tell(&mut runner, &told(features, 2, are_up));
        let scene = (features, are_up, hops, avoids);
        if are_up == is_near_down {
            let report = word(features, 3, &gateway().into_iter().zip(are_up).collect::<Vec<_>>());
            runner.node.handle_report(
                runner.now,
                Report::Pushed { from: nid(2, 7), bytes: &report, length_bytes: report.len() },
            );
            runner.run();
        }
        assert_eq!(is_up(&runner), expected, "{scene:?}");
    }
    for (hops, expected) in [(None, true), (Some(1), false), (Some(2), true)] {
        let mut runner = runner(&[route(nid(1, 7), hops)]);
        answer(&mut runner, &word(ROUTER, 1, &without_far));
        assert_eq!(is_up(&runner), expected, "the far net is not the next one: hops {hops:?}");
    }
}

#[test]
fn health_of_a_gateway_makes_no_route_go_down() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    answer(&mut runner, &told(ROUTER, 1, [true; 3]));
    for at in [nid(1, 7), nid(2, 7)] {
        let note = HealthNote { nid: at, failures: 20, successes: 0 };
        runner.node.handle_report(runner.now, Report::Health(note));
    }
    runner.run();
    assert_eq!(runner.node.peer(&nid(1, 7)).unwrap().ni(&nid(1, 7)).unwrap().health, 0);
    assert!(is_up(&runner));
}

#[test]
fn a_gateway_that_does_not_answer_is_dead_until_it_does() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    let all = told(ROUTER, 1, [true; 3]);
    answer(&mut runner, &all);
    runner.advance(Duration::ZERO);
    answer(&mut runner, &all);
    runner.advance(SECOND * 60);
    assert!(is_up(&runner));
    runner.advance(SECOND * 49);
    assert!(is_up(&runner), "it has 50 seconds");
    runner.advance(SECOND);
    assert!(!is_up(&runner));
    assert!(runner.topology.net_routes().unwrap().is_dead(&nid(2, 7)), "by whichever NID");
    let nis = &runner.node.peer(&nid(1, 7)).unwrap().nis;
    assert!(nis.iter().all(|ni| ni.is_up == Some(false)), "{nis:?}");
    // The next check begins at once, since the last one took so long; it answers.
    answer(&mut runner, &told(ROUTER, 2, [true; 3]));
    assert!(is_up(&runner));
    // A check that is refused is repeated far sooner than others: by the other net at once.
    runner.advance(SECOND * 60);
    let mut asked = refuse(&mut runner);
    asked.sort();
    assert_eq!(asked, [nid(1, 7), nid(2, 7)]);
    assert!(!is_up(&runner));
    runner.advance(SECOND * 9);
    assert_eq!(refuse(&mut runner), []);
    runner.advance(SECOND);
    answer(&mut runner, &told(ROUTER, 3, [true; 3]));
    assert!(is_up(&runner));
}

#[test]
fn what_comes_from_a_dead_gateway_has_it_checked_at_once() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    runner.fail(&nid(1, 7));
    assert!(!is_up(&runner));
    runner.advance(SECOND * 2);
    assert!(answer(&mut runner, &[]).is_empty());
    let traffic = Report::Traffic { nid: nid(1, 7), is_incoming: true, first_ni: None };
    runner.node.handle_report(runner.now, traffic);
    runner.run();
    answer(&mut runner, &told(ROUTER, 1, [true; 3]));
    assert!(is_up(&runner));
}

#[test]
fn a_check_without_a_link_says_nothing() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    answer(&mut runner, &told(ROUTER, 1, [true; 3]));
    runner.advance(SECOND * 60);
    let ni = runner.node.ni(&nid(1, 1)).unwrap().ni;
    runner.node.handle_report(runner.now, Report::Link { ni, is_up: false });
    runner.run();
    runner.fail(&nid(1, 7));
    assert!(runner.node.net_routes().all(|route| route.is_up), "the gateway is not to blame");
}

#[test]
fn a_message_from_behind_a_dead_gateway_makes_it_alive() {
    for features in [ROUTER, PLAIN] {
        let mut runner = runner(&[
            route(nid(1, 7), None),
            NodeChange::AddRoute(RouteSpec::new(nid(8, 1).net(), nid(1, 7))),
        ]);
        let nis = [(nid(1, 7), true), (nid(9, 7), true), (nid(8, 7), true)];
        answer(&mut runner, &word(features, 1, &nis));
        runner.advance(SECOND * 60);
        runner.fail(&nid(1, 7));
        runner.done.clear();
        let up = |runner: &Runner| {
            runner.node.net_routes().map(|route| (route.spec.net, route.is_up)).collect::<Vec<_>>()
        };
        let other = nid(8, 1).net();
        assert_eq!(up(&runner), [(other, false), (far(), false)]);
        runner.node.handle_report(runner.now, Report::Foreign { by: nid(1, 7), net: far() });
        runner.run();
        assert_eq!(up(&runner), [(other, false), (far(), true)], "{features:?}");
        assert!(!runner.topology.net_routes().unwrap().is_dead(&nid(1, 7)));
        // A message by a gateway that is alive says nothing.
        runner.node.handle_report(runner.now, Report::Foreign { by: nid(1, 7), net: other });
        runner.run();
        assert_eq!(up(&runner), [(other, false), (far(), true)], "{features:?}");
    }
}

/// LNet's tests 221 and 550: without discovery the LND says which routes are up, unless another local NI
/// would be used.
#[test]
fn without_discovery_the_word_of_an_lnd_counts() {
    let off = NodeChange::Set { setting: Global::Discovery, value: 0 };
    let mut runner = runner(&[off, NodeChange::AddNi(spec(1, 3)), route(nid(1, 7), None)]);
    let path = |runner: &mut Runner, local, state| {
        let note = PathNote { local, peer: nid(1, 7), state };
        runner.node.handle_report(runner.now, Report::Path(note));
        runner.run();
    };
    let only = word(ROUTER, 1, &[(nid(1, 7), true), (nid(9, 7), true)]);
    answer(&mut runner, &only);
    assert!(is_up(&runner));
    path(&mut runner, nid(1, 1), PathState::Silent);
    assert!(is_up(&runner), "the other rail is not silent");
    path(&mut runner, nid(1, 3), PathState::Poor);
    assert!(is_up(&runner));
    path(&mut runner, nid(1, 3), PathState::Silent);
    assert!(!is_up(&runner));
    path(&mut runner, nid(1, 3), PathState::Answers);
    assert!(is_up(&runner));
    // With discovery the gateway's word counts, which is asked for.
    runner.done.clear();
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 1 }]).unwrap();
    runner.advance(SECOND * 120);
    answer(&mut runner, &only);
    assert!(runner.node.peer(&nid(1, 7)).unwrap().is_multi_rail());
    for local in [nid(1, 1), nid(1, 3)] {
        path(&mut runner, local, PathState::Silent);
    }
    assert!(is_up(&runner));
    runner.advance(SECOND);
    assert!(!answer(&mut runner, &only).is_empty());
}

#[test]
fn routes_that_wait_for_a_check_start_down() {
    let mut runner = runner(&[set(Parameter::CheckRoutersBeforeUse, 1), route(nid(1, 7), None)]);
    assert!(!is_up(&runner) && runner.node.awaits_gateways());
    answer(&mut runner, &told(ROUTER, 1, [true; 3]));
    assert!(is_up(&runner) && !runner.node.awaits_gateways());
}

#[test]
fn a_gateway_that_is_known_not_to_forward_has_no_routes_that_are_up() {
    for features in [OFF, PLAIN.with(Features::ROUTING_DISABLED)] {
        let mut runner = runner(&[]);
        let bytes = told(features, 1, [true; 3]);
        runner.start(Request::Discover { nid: nid(1, 7), is_forced: false });
        answer(&mut runner, &bytes);
        assert!(runner.node.peer(&nid(1, 7)).unwrap().is(peer_state::DISCOVERED));
        runner.batch(&[route(nid(1, 7), None)]).unwrap();
        assert!(!is_up(&runner));
    }
}

#[test]
fn without_an_interval_a_gateway_is_checked_until_that_goes_well() {
    let mut runner = runner(&[set(Parameter::AliveRouterCheckInterval, 0), route(nid(1, 7), None)]);
    runner.fail(&nid(1, 7));
    assert!(!is_up(&runner));
    runner.advance(SECOND * 10);
    let only = word(ROUTER, 1, &[(nid(1, 7), true), (nid(9, 7), true)]);
    assert!(!answer(&mut runner, &only).is_empty());
    assert!(is_up(&runner));
    // The NI behind it was not asked yet: nothing led there.
    runner.advance(SECOND);
    answer(&mut runner, &only);
    runner.advance(SECOND * 1000);
    assert_eq!(answer(&mut runner, &only), []);
    assert_eq!(runner.node.poll_timeout(), None);
    runner.batch(&[set(Parameter::AliveRouterCheckInterval, 5)]).unwrap();
    runner.advance(Duration::ZERO);
    assert!(!answer(&mut runner, &only).is_empty());
    runner.advance(SECOND * 5);
    assert!(!answer(&mut runner, &only).is_empty());
}

#[test]
fn an_interval_that_gets_shorter_counts_from_the_last_check() {
    let mut runner = runner(&[set(Parameter::AliveRouterCheckInterval, 3600), route(nid(1, 7), None)]);
    let only = word(ROUTER, 1, &[(nid(1, 7), true), (nid(9, 7), true)]);
    while !answer(&mut runner, &only).is_empty() {
        runner.advance(SECOND);
    }
    runner.advance(SECOND * 20);
    assert_eq!(answer(&mut runner, &only), []);
    runner.batch(&[set(Parameter::AliveRouterCheckInterval, 30)]).unwrap();
    runner.advance(SECOND * 10);
    assert!(!answer(&mut runner, &only).is_empty());
}

#[test]
fn the_patience_with_a_gateway_is_a_parameter() {
    let mut runner = runner(&[set(Parameter::RouterPingTimeout, 3), route(nid(1, 7), None)]);
    runner.advance(SECOND * 2);
    assert!(is_up(&runner));
    runner.advance(SECOND);
    assert!(!is_up(&runner));
}

/// Routes may name one peer by several NIDs.
#[test]
fn one_peer_is_checked_once_whatever_its_routes_name_it() {
    let mut runner = runner(&[]);
    let bytes = told(ROUTER, 1, [true; 3]);
    runner.start(Request::Discover { nid: nid(1, 7), is_forced: false });
    answer(&mut runner, &bytes);
    let other = NodeChange::AddRoute(RouteSpec::new(nid(8, 1).net(), nid(2, 7)));
    runner.batch(&[route(nid(1, 7), None), other]).unwrap();
    answer(&mut runner, &bytes);
    runner.advance(SECOND * 60);
    let asked = answer(&mut runner, &bytes);
    assert_eq!(asked.len(), 4, "a ping and a push by each net: {asked:?}");
    runner.advance(SECOND * 60);
    runner.fail(&nid(1, 7));
    assert!(runner.node.net_routes().all(|route| !route.is_up));
}

#[test]
fn a_parameter_has_its_range() {
    let mut runner = runner(&[]);
    let error = runner.batch(&[set(Parameter::CheckRoutersBeforeUse, 2)]).unwrap_err();
    assert_eq!(
        (error.errno(), error.to_string()),
        (22, "check_routers_before_use 2: 0 to 1 is expected".into())
    );
}

/// A gateway's NIDs on nets behind it are not asked by itself: LNet ends the connection that brings a message
/// for another NI.
#[test]
fn a_gateway_is_not_asked_by_itself_as_another() {
    let mut runner = runner(&[route(nid(1, 7), None)]);
    let word = word(ROUTER, 1, &gateway().map(|nid| (nid, true)));
    for _ in 0..200 {
        let asked = answer(&mut runner, &word);
        assert!(asked.iter().all(|(nid, _)| nid.net() != far()), "{asked:?}");
        runner.advance(SECOND);
    }
    assert!(runner.node.net_routes().all(|route| route.is_up));
}
