//! Net routes that the administrator makes.

use std::time::Duration;

use lnet_core::node::{
    Action, GATEWAY_NIS_MAX, Node, NodeChange, PeerEdit, PingKind, Report, Request, RequestError, peer_state,
};
use lnet_core::topology::{GatewayNi, HEALTH_MAX, PRIORITY_NONE};
use lnet_model::peer::PeerSpec;
use lnet_model::route::RouteSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Net, Nid};

use crate::common::{Lnd, Runner, nid, spec, word};

const ROUTER: Features = Features(0x1A);

fn far() -> Net {
    nid(9, 1).net()
}

fn route(net: Net, gateway: Nid) -> NodeChange<Lnd> {
    NodeChange::AddRoute(RouteSpec::new(net, gateway))
}

fn delete(net: Net, gateway: Nid) -> NodeChange<Lnd> {
    NodeChange::DeleteRoute { net, gateway }
}

/// A node on `tcp1` and `tcp2`.
fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))]).unwrap();
    runner
}

/// Why a change is refused, by its errno.
fn errno(runner: &mut Runner, change: NodeChange<Lnd>) -> i32 {
    let result = runner.batch(&[change]);
    result.map_or_else(|error| error.errno(), |_| 0)
}

/// NIDs of gateways that lead to a net, in their order.
fn to(runner: &Runner, net: Net) -> Vec<Nid> {
    let routes = runner.topology.net_routes();
    routes.map_or(Vec::new(), |routes| routes.to(net).iter().map(|ni| ni.nid).collect())
}

fn specs(runner: &Runner) -> Vec<RouteSpec> {
    let node: &Node<Lnd> = &runner.node;
    node.net_routes().map(|route| route.spec).collect()
}

/// A push by the first of these NIDs, which are one peer; the others say the same.
fn tell(runner: &mut Runner, features: Features, nids: &[Nid]) {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, features, 12345, 1, nis).unwrap();
    let report = Report::Pushed { from: nids[0], bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    runner.answer_all(nids, &bytes);
}

#[test]
fn a_route_comes_and_goes() {
    let mut runner = runner();
    assert!(runner.topology.net_routes().is_none(), "nothing to look at without routes");
    let gateway = nid(1, 7);
    let asked = RouteSpec { hops: Some(2), priority: 3, ..RouteSpec::new(far(), gateway) };
    runner.batch(&[NodeChange::AddRoute(asked)]).unwrap();
    assert_eq!(specs(&runner), [asked]);
    let expected = GatewayNi {
        nid: gateway,
        gateway,
        awaits_link: false,
        priority: 3,
        hops: 2,
        health: HEALTH_MAX,
        ni_priority: PRIORITY_NONE,
    };
    let routes = runner.topology.net_routes().unwrap();
    assert_eq!((routes.to(far()), routes.is_gateway(&gateway)), (&[expected][..], true));
    let peer = runner.node.peer(&gateway).unwrap();
    assert!(peer.is_gateway() && !peer.is_multi_rail(), "a gateway is a peer");
    runner.batch(&[delete(far(), gateway)]).unwrap();
    assert!(runner.topology.net_routes().is_none());
    assert_eq!(specs(&runner), []);
    assert!(runner.node.peer(&gateway).is_some_and(|peer| !peer.is_gateway()));
}

#[test]
fn each_refusal_has_its_number() {
    let mut runner = runner();
    let gateway = nid(1, 7);
    runner.batch(&[route(far(), gateway)]).unwrap();
    let hops = |hops| NodeChange::AddRoute(RouteSpec { hops, ..RouteSpec::new(nid(8, 1).net(), gateway) });
    for (change, expected) in [
        (route(Net::LO, gateway), 13),
        (route(Net::ANY, gateway), 6),
        (route(far(), Nid::LO), 22),
        (route(far(), Nid::ANY), 22),
        (route(far(), nid(9, 7)), 22),
        (route(far(), nid(1, 1)), 22),
        (route(nid(1, 1).net(), nid(2, 7)), 22),
        (hops(Some(0)), 22),
        (route(far(), nid(3, 7)), 113),
        (route(far(), gateway), 17),
        (delete(nid(8, 1).net(), gateway), 2),
        (delete(far(), nid(1, 8)), 2),
        (NodeChange::AddNi(spec(9, 9)), 87),
    ] {
        assert_eq!(errno(&mut runner, change.clone()), expected, "{change:?}");
    }
    // A gateway is neither made nor deleted as a peer.
    let spec = |primary_nid, nids: &[Nid]| {
        let spec = PeerSpec { primary_nid, nids: nids.to_vec(), multi_rail: true, lock_primary: false };
        NodeChange::Peer(PeerEdit::Add(spec))
    };
    let gone = PeerEdit::Delete { primary: gateway, nids: Vec::new(), is_forced: true };
    for change in [spec(gateway, &[]), spec(nid(1, 8), &[gateway]), NodeChange::Peer(gone.clone())] {
        assert_eq!(errno(&mut runner, change), 16);
    }
    assert_eq!(specs(&runner), [RouteSpec::new(far(), gateway)], "nothing has come of it");
    assert_eq!(errno(&mut runner, hops(Some(255))), 0);
    // Within a batch each change goes by those before it.
    let changes = [delete(far(), gateway), hops(Some(1)), spec(gateway, &[])];
    let error = runner.batch(&changes).unwrap_err();
    assert_eq!((error.errno(), error.index()), (17, Some(1)));
    let changes = [delete(far(), gateway), delete(nid(8, 1).net(), gateway), NodeChange::Peer(gone)];
    runner.batch(&changes).unwrap();
    assert_eq!((specs(&runner), runner.node.peer(&gateway).is_none()), (vec![], true));
    // A net that comes with the batch is as good as one that was there.
    let changes = [NodeChange::AddNi(spec_of(3)), route(far(), nid(3, 7))];
    runner.batch(&changes).unwrap();
    assert_eq!(to(&runner, far()), [nid(3, 7)]);
}

fn spec_of(net: u16) -> lnet_core::node::NiSpec<Lnd> {
    spec(net, 30)
}

#[test]
fn all_nids_of_a_peer_are_one_gateway() {
    let mut runner = runner();
    let nids = [nid(1, 7), nid(2, 7), nid(9, 7)];
    tell(&mut runner, ROUTER, &nids[..2]);
    assert!(runner.node.peer(&nids[0]).unwrap().is(peer_state::MULTI_RAIL | peer_state::ROUTER_ENABLED));
    runner.batch(&[route(far(), nids[1])]).unwrap();
    assert_eq!(to(&runner, far()), nids[..2], "it forwards what comes by any of its NIs");
    let routes = runner.topology.net_routes().unwrap();
    assert!(routes.to(far()).iter().all(|ni| ni.gateway == nids[0]));
    assert!(nids[..2].iter().all(|nid| routes.is_gateway(nid)));
    assert_eq!(errno(&mut runner, route(far(), nids[0])), 17);
    // Its health, and that of the way to it, is what shards know.
    let health = PeerEdit::SetHealth { nid: Some(nids[1]), value: 700 };
    runner.batch(&[NodeChange::Peer(health)]).unwrap();
    let healths: Vec<_> =
        runner.topology.net_routes().unwrap().to(far()).iter().map(|ni| (ni.nid, ni.health)).collect();
    assert_eq!(healths, [(nids[0], HEALTH_MAX), (nids[1], 700)]);
    runner.batch(&[delete(far(), nids[0])]).unwrap();
    assert_eq!(specs(&runner), []);
}

#[test]
fn a_gateway_with_many_nis_makes_no_large_table() {
    let mut runner = runner();
    let nids: Vec<_> = (7..47).map(|host| nid(1, host)).collect();
    tell(&mut runner, ROUTER, &nids);
    runner.batch(&[route(far(), nids[30])]).unwrap();
    let used = to(&runner, far());
    assert_eq!(used.len(), GATEWAY_NIS_MAX);
    assert!(used.contains(&nids[30]), "the one that was named is among them");
    let routes = runner.topology.net_routes().unwrap();
    assert!(nids.iter().all(|nid| routes.is_gateway(nid)), "each may bring what is from far");
}

#[test]
fn routes_go_with_the_net_of_their_gateways() {
    let mut runner = runner();
    runner.batch(&[route(far(), nid(1, 7)), route(far(), nid(2, 7)), route(far(), nid(2, 8))]).unwrap();
    assert_eq!(to(&runner, far()), [nid(1, 7), nid(2, 7), nid(2, 8)]);
    runner.batch(&[NodeChange::DeleteNi { nid: nid(2, 2) }]).unwrap();
    assert_eq!(to(&runner, far()), [nid(1, 7)]);
    assert_eq!(specs(&runner), [RouteSpec::new(far(), nid(1, 7))]);
    runner.node.forget_peers();
    runner.run();
    assert!(runner.topology.net_routes().is_none());
}

#[test]
fn a_route_is_up_as_it_is_told_and_its_gateway_is_near() {
    let mut runner = runner();
    runner.batch(&[route(far(), nid(1, 7)), route(far(), nid(2, 7))]).unwrap();
    runner.fail(&nid(1, 7));
    assert_eq!(to(&runner, far()), [nid(2, 7)]);
    assert!(runner.topology.net_routes().unwrap().is_gateway(&nid(1, 7)), "what comes by it counts");
    let states: Vec<_> = runner.node.net_routes().map(|route| route.is_up).collect();
    assert_eq!(states, [false, true]);
    // Another batch leaves it as it is.
    runner.batch(&[route(nid(8, 1).net(), nid(1, 7))]).unwrap();
    assert_eq!((to(&runner, far()), to(&runner, nid(8, 1).net())), (vec![nid(2, 7)], vec![]));
    runner.advance(Duration::from_secs(10));
    runner.answer_all(&[nid(1, 7)], &word(ROUTER, 1, &[(nid(1, 7), true)]));
    assert_eq!(to(&runner, far()), [nid(1, 7), nid(2, 7)]);
    // Without a link nothing goes by a gateway, or it waits.
    let link = |runner: &mut Runner, nid: Nid, is_up| {
        let ni = runner.node.ni(&nid).unwrap().ni;
        runner.node.handle_report(runner.now, Report::Link { ni, is_up });
        runner.run();
    };
    link(&mut runner, nid(1, 1), false);
    assert_eq!(to(&runner, far()), [nid(2, 7)]);
    let ni = runner.node.ni(&nid(1, 1)).unwrap().ni;
    runner.node.handle_report(runner.now, Report::Carrier { ni, is_awaited: true });
    runner.run();
    let waiting: Vec<_> =
        runner.topology.net_routes().unwrap().to(far()).iter().map(|ni| ni.awaits_link).collect();
    assert_eq!((to(&runner, far()), waiting), (vec![nid(2, 7), nid(1, 7)], vec![false, true]));
    link(&mut runner, nid(1, 1), true);
    assert_eq!(to(&runner, far()), [nid(1, 7), nid(2, 7)]);
}

/// The table is made anew only when it is to be another one: health of others changes often.
#[test]
fn the_table_stays_as_it_is_while_nothing_of_it_changes() {
    let mut runner = runner();
    let other = nid(1, 8);
    runner.batch(&[route(far(), nid(1, 7))]).unwrap();
    let former = runner.topology.clone();
    runner.node.handle_report(runner.now, Report::Traffic { nid: other, is_incoming: true, first_ni: None });
    runner.run();
    let health = PeerEdit::SetHealth { nid: Some(other), value: 700 };
    runner.batch(&[NodeChange::Peer(health)]).unwrap();
    let same =
        |runner: &Runner| std::ptr::eq(former.net_routes().unwrap(), runner.topology.net_routes().unwrap());
    assert!(same(&runner) && runner.topology.generation() > former.generation());
    let health = PeerEdit::SetHealth { nid: Some(nid(1, 7)), value: 700 };
    runner.batch(&[NodeChange::Peer(health)]).unwrap();
    assert!(!same(&runner));
}

#[test]
fn how_far_a_net_is_shows_once_the_gateway_has_told_its_nids() {
    let mut runner = runner();
    let is_multi_hop = |runner: &Runner| runner.node.net_routes().next().unwrap().is_multi_hop;
    let gateway = nid(1, 7);
    runner.batch(&[route(far(), gateway)]).unwrap();
    assert!(!is_multi_hop(&runner), "nothing is known of it");
    tell(&mut runner, ROUTER, &[gateway, nid(9, 7)]);
    assert!(runner.node.peer(&gateway).unwrap().is(peer_state::DISCOVERED));
    assert!(!is_multi_hop(&runner));
    runner.batch(&[delete(far(), gateway), route(nid(8, 1).net(), gateway)]).unwrap();
    assert!(is_multi_hop(&runner), "it has no NI on that net");
    let hops = |hops| NodeChange::AddRoute(RouteSpec { hops: Some(hops), ..RouteSpec::new(far(), gateway) });
    for (count, expected) in [(1, false), (2, true)] {
        runner.batch(&[hops(count)]).unwrap();
        let far_one = runner.node.net_routes().find(|route| route.spec.net == far()).unwrap();
        assert_eq!(far_one.is_multi_hop, expected);
        runner.batch(&[delete(far(), gateway)]).unwrap();
    }
}

/// Peers behind gateways are pinged and discovered as others are.
#[test]
fn who_is_behind_a_gateway_is_asked_by_it() {
    let mut runner = runner();
    let behind = nid(9, 5);
    let ping = |source| Request::Ping { nid: behind, source, timeout: None };
    let refused = runner.start(ping(None));
    assert_eq!(runner.result(refused), Some(Err(RequestError::PingUnreachable(behind))));
    runner.batch(&[route(far(), nid(1, 7))]).unwrap();
    let refused = runner.start(ping(Some(nid(2, 2))));
    assert_eq!(runner.result(refused), Some(Err(RequestError::PingUnreachable(behind))), "no gateway there");
    runner.start(ping(Some(nid(1, 1))));
    let is_ping = |action: &Action<Lnd>| matches!(action, Action::Ping { nid, kind: PingKind::Ordinary, .. } if *nid == behind);
    assert_eq!(runner.done.iter().filter(|action| is_ping(action)).count(), 1);
    runner.fail(&nid(1, 7));
    let refused = runner.start(ping(None));
    assert_eq!(runner.result(refused), Some(Err(RequestError::PingUnreachable(behind))), "the route is down");
    runner.advance(Duration::from_secs(10));
    runner.answer_all(&[nid(1, 7)], &word(ROUTER, 1, &[(nid(1, 7), true)]));
    // NIDs that no route leads to are none that it is reached by.
    let nids = [behind, nid(9, 6), nid(8, 5)];
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, Features(0x1E), 12345, 1, nis).unwrap();
    runner.node.handle_report(runner.now, Report::Wanted { nid: behind });
    runner.run();
    runner.answer_all(&nids, &bytes);
    assert_eq!(runner.node.peer(&behind).unwrap().proven_nids(), nids[..2]);
    assert!(runner.topology.peer(&behind).is_some_and(|peer| peer.is_multi_rail && peer.nis.len() == 2));
    // A gateway that says who speaks makes no peers by that.
    let stranger = nid(9, 99);
    runner
        .node
        .handle_report(runner.now, Report::Traffic { nid: stranger, is_incoming: true, first_ni: None });
    assert!(runner.node.peer(&stranger).is_none());
}

#[test]
fn a_gateway_makes_no_room_and_is_well_when_it_speaks() {
    let mut config = crate::common::config(1);
    config.peers_max = 4;
    let mut runner = Runner::with(config);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), route(far(), nid(1, 7))]).unwrap();
    for host in 20..40 {
        let report = Report::Traffic { nid: nid(1, host), is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
    }
    assert!(runner.node.peer(&nid(1, 7)).is_some());
    assert_eq!(runner.node.peers().count(), 5, "four others");
    let note = |failures, successes| lnet_core::shard::HealthNote { nid: nid(1, 7), failures, successes };
    runner.node.handle_report(runner.now, Report::Health(note(3, 0)));
    let health = |runner: &Runner| runner.node.peer(&nid(1, 7)).unwrap().ni(&nid(1, 7)).unwrap().health;
    assert_eq!(health(&runner), 700, "it has one NID, and is not the only gateway that there may be");
    runner.node.handle_report(runner.now, Report::Health(note(0, 1)));
    assert_eq!(health(&runner), HEALTH_MAX);
    runner.batch(&[delete(far(), nid(1, 7))]).unwrap();
    for host in 40..60 {
        let report = Report::Traffic { nid: nid(1, host), is_incoming: true, first_ni: None };
        runner.node.handle_report(runner.now, report);
    }
    assert!(runner.node.peer(&nid(1, 7)).is_none(), "it makes room as any other");
}

/// A peer behind gateways that is not Multi-Rail sees one source of this node's, whichever gateway is taken.
#[test]
fn the_source_to_who_is_behind_gateways_is_recorded() {
    let mut runner = runner();
    runner.batch(&[route(far(), nid(1, 7)), route(far(), nid(2, 7))]).unwrap();
    let behind = nid(9, 5);
    runner.node.handle_report(runner.now, Report::Wanted { nid: behind });
    runner.run();
    runner.answer_all(&[behind], &word(Features(0x16), 1, &[(behind, true)]));
    let peer = |runner: &Runner| runner.node.peer(&behind).unwrap().clone();
    assert!(!peer(&runner).is_multi_rail());
    let source = **peer(&runner).nis[0].source.as_ref().unwrap();
    assert!([nid(1, 1), nid(2, 2)].contains(&source));
    let preferred = runner.topology.peer(&behind).unwrap().nis[0].preferred.clone();
    assert_eq!(preferred.nids().collect::<Vec<_>>(), [source], "all shards know it");
    // The record stays while a gateway is on its net, and goes with that.
    let [own, other] = if source == nid(1, 1) { [nid(1, 7), nid(2, 7)] } else { [nid(2, 7), nid(1, 7)] };
    runner.batch(&[delete(far(), other)]).unwrap();
    assert_eq!(peer(&runner).nis[0].source.as_deref(), Some(&source));
    runner.batch(&[route(far(), other), delete(far(), own)]).unwrap();
    assert_ne!(peer(&runner).nis[0].source.as_deref(), Some(&source));
}

/// NIs of peers behind gateways recover: they are pinged by an NI that leads there, and gain by the answer.
#[test]
fn an_ni_behind_a_gateway_recovers() {
    let mut runner = runner();
    runner.batch(&[route(far(), nid(2, 7))]).unwrap();
    let nids = [nid(9, 5), nid(9, 6)];
    let bytes = word(Features(0x1E), 1, &nids.map(|nid| (nid, true)));
    runner.node.handle_report(runner.now, Report::Wanted { nid: nids[0] });
    runner.run();
    runner.answer_all(&nids, &bytes);
    assert_eq!(runner.node.peer(&nids[0]).unwrap().proven_nids(), nids);
    let health = PeerEdit::SetHealth { nid: Some(nids[1]), value: 900 };
    runner.batch(&[NodeChange::Peer(health)]).unwrap();
    runner.done.clear();
    runner.advance(Duration::from_secs(1));
    let pings: Vec<_> = runner
        .done
        .iter()
        .filter_map(|action| match action {
            Action::Ping { nid, source, kind: PingKind::Recovery, .. } => Some((*nid, *source)),
            _ => None,
        })
        .collect();
    assert_eq!(pings, [(nids[1], Some(nid(2, 2)))]);
    runner.answer_all(&nids[1..], &bytes);
    let peer = runner.node.peer(&nids[0]).unwrap();
    assert_eq!(peer.ni(&nids[1]).unwrap().health, HEALTH_MAX);
    assert_eq!(runner.node.recovering().1, []);
}
