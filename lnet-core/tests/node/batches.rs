//! Batches of changes: whole or not at all.

use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, ChangeError, NetOptions, NodeChange, Outcome, Report, Request, RequestError, SettingRange,
};
use lnet_core::topology::NiStatus;
use lnet_wire::ping::{self, Features, PingInfo, PingNi};
use lnet_wire::steer::{Policy, Spread};
use lnet_wire::{Global, Net, NetType, Nid};

use crate::common::{Runner, nid, refused, spec};

fn add(net: u16, host: u8) -> NodeChange<u32> {
    NodeChange::AddNi(spec(net, host))
}

const CHANGED: Result<Outcome, RequestError> = Ok(Outcome::Changed);

/// What the node tells those who ping it, the last time that it said.
fn told(runner: &Runner) -> (u32, Vec<ping::PingNi>) {
    let bytes = runner.done.iter().rev().find_map(|action| match action {
        Action::Publish(bytes) => Some(bytes),
        _ => None,
    });
    let info = PingInfo::parse(bytes.unwrap()).unwrap();
    (info.sequence(), info.interfaces().collect())
}

/// An NI follows the derived time only if it is to.
#[test]
fn lnd_timeouts_are_set_while_an_ni_runs() {
    let mut runner = Runner::new(1);
    runner.batch(&[add(1, 1)]).unwrap();
    let times = |runner: &Runner| {
        let ni = runner.topology.local_nis().nth(1).unwrap().1;
        (ni.lnd_timeout.unwrap().as_secs(), ni.message_timeout.as_secs())
    };
    let set = |timeout_s| {
        let timeout = Duration::from_secs(timeout_s);
        NodeChange::SetLndTimeout { nid: nid(1, 1), timeout }
    };
    assert_eq!(times(&runner), (50, 151));
    let sooner = NodeChange::Set { setting: Global::TransactionTimeout, value: 31 };
    runner.batch(std::slice::from_ref(&sooner)).unwrap();
    assert_eq!(times(&runner), (50, 151), "it has a time of its own");
    runner.batch(&[set(7)]).unwrap();
    assert_eq!(times(&runner), (7, 22));
    runner.batch(&[set(0)]).unwrap();
    assert_eq!(times(&runner), (10, 31));
    runner.batch(&[NodeChange::Set { setting: Global::RetryCount, value: 5 }]).unwrap();
    assert_eq!(times(&runner), (5, 31));
    let unknown = NodeChange::SetLndTimeout { nid: nid(1, 9), timeout: Duration::ZERO };
    assert!(runner.batch(&[unknown]).is_err());
    // One that comes with the same batch has it from the start.
    runner
        .batch(&[add(1, 2), NodeChange::SetLndTimeout { nid: nid(1, 2), timeout: Duration::from_secs(3) }])
        .unwrap();
    assert_eq!(runner.topology.local_nis().nth(2).unwrap().1.lnd_timeout, Some(Duration::from_secs(3)));
}

#[test]
fn nis_come_and_go() {
    let mut runner = Runner::new(2);
    runner.run();
    assert_eq!(told(&runner), (1, vec![]));
    assert_eq!(runner.batch(&[add(1, 1), add(2, 2), add(1, 3)]), CHANGED);
    assert_eq!(runner.nids(), [(1, nid(1, 1)), (2, nid(2, 2)), (3, nid(1, 3))]);
    let nets: Vec<_> = runner.node.nets().iter().map(|net| (net.net, net.nis.len())).collect();
    assert_eq!(nets, [(Net::LO, 0), (nid(1, 0).net(), 2), (nid(2, 0).net(), 1)]);
    let (sequence, nis) = told(&runner);
    assert_eq!(nis.iter().map(|one| one.nid).collect::<Vec<_>>(), [nid(1, 1), nid(1, 3), nid(2, 2)]);
    assert_eq!(sequence, 2);

    assert_eq!(runner.batch(&[NodeChange::DeleteNet { net: nid(1, 0).net() }, add(3, 4)]), CHANGED);
    assert_eq!(runner.nids(), [(1, nid(3, 4)), (2, nid(2, 2))]);
    let moved = [(1, true), (2, true), (3, true), (1, false), (3, false), (1, true)];
    assert_eq!(runner.opened, moved.map(|(ni, opened)| (NiId(ni), opened)));
    let interface = "eth2".into();
    assert_eq!(runner.batch(&[NodeChange::DeleteInterface { net: nid(2, 0).net(), interface }]), CHANGED);
    assert_eq!(runner.batch(&[NodeChange::DeleteNi { nid: nid(3, 4) }]), CHANGED);
    assert_eq!(runner.nids(), []);
    assert_eq!(told(&runner).1, []);
}

#[test]
fn a_wrong_change_spoils_its_batch() {
    let mut runner = Runner::new(1);
    assert_eq!(runner.batch(&[add(1, 1)]), CHANGED);
    let without = |options| NodeChange::AddNi(lnet_core::node::NiSpec { options, ..spec(3, 9) });
    let o2ib = Nid::new_ip(Net::new(NetType::O2IB, 0), [10, 0, 0, 1].into()).unwrap();
    let same_interface = lnet_core::node::NiSpec { interface: "eth1".into(), ..spec(1, 5) };
    let (loopback, net) = (ChangeError::Loopback, nid(1, 0).net());
    let table = Policy::MatchBits { shift: 0, bits: 1, spread: Spread::Table([0, 1, 9, 9, 9, 9, 9, 9]) };
    let cases = [
        (add(1, 1), ChangeError::NidExists(nid(1, 1)), 17),
        (add(2, 7), ChangeError::NidExists(nid(2, 7)), 17),
        (
            NodeChange::AddNi(same_interface),
            ChangeError::InterfaceExists { net, interface: "eth1".into() },
            17,
        ),
        (
            NodeChange::AddNi(lnet_core::node::NiSpec { nid: o2ib, ..spec(1, 1) }),
            ChangeError::NetType(o2ib.net()),
            22,
        ),
        (NodeChange::AddNi(lnet_core::node::NiSpec { nid: Nid::LO, ..spec(1, 1) }), loopback.clone(), 19),
        (NodeChange::DeleteNi { nid: Nid::LO }, loopback.clone(), 19),
        (NodeChange::DeleteNet { net: Net::LO }, loopback.clone(), 19),
        (NodeChange::SetHealth { nid: Some(Nid::LO), value: 0 }, loopback, 19),
        (
            without(NetOptions { credits: Some(0), ..NetOptions::default() }),
            ChangeError::NoCredits(nid(3, 9)),
            22,
        ),
        (NodeChange::DeleteNi { nid: nid(1, 2) }, ChangeError::UnknownNid(nid(1, 2)), 2),
        (NodeChange::DeleteNet { net: nid(9, 0).net() }, ChangeError::UnknownNet(nid(9, 0).net()), 22),
        (
            NodeChange::DeleteInterface { net, interface: "eth9".into() },
            ChangeError::UnknownInterface { net, interface: "eth9".into() },
            19,
        ),
        (NodeChange::SetHealth { nid: Some(nid(1, 9)), value: 5 }, ChangeError::UnknownNid(nid(1, 9)), 2),
        (NodeChange::SetHealth { nid: None, value: 1001 }, ChangeError::Health(1001), 22),
        (NodeChange::SetPolicy { portal: 64, policy: Policy::Rotor }, ChangeError::Portal(64), 22),
        (
            NodeChange::SetPolicy { portal: 4, policy: Policy::Pin(1) },
            ChangeError::PolicyShard { portal: 4, shard: 1, shards: 1 },
            22,
        ),
        (
            NodeChange::SetPolicy { portal: 4, policy: table },
            ChangeError::PolicyShard { portal: 4, shard: 1, shards: 1 },
            22,
        ),
        (
            NodeChange::Set { setting: Global::RetryCount, value: 151 },
            ChangeError::Setting {
                setting: Global::RetryCount,
                value: 151,
                range: SettingRange::Timeout(150),
            },
            22,
        ),
    ];
    let generation = runner.node.generation();
    for (change, error, errno) in cases {
        let batch = [NodeChange::Set { setting: Global::NumaRange, value: 5 }, add(2, 7), change];
        let refusal = RequestError::Change { index: 2, error };
        assert_eq!((refusal.errno(), refusal.index()), (errno, Some(2)), "{refusal}");
        assert_eq!(runner.node.validate(&batch), Err(refusal.clone()));
        assert_eq!(runner.batch(&batch), Err(refusal));
    }
    assert_eq!(runner.node.generation(), generation);
    assert_eq!(runner.node.settings().get(Global::NumaRange), 0);
    assert_eq!(runner.opened.len(), 1);
}

#[test]
fn there_are_so_many_slots() {
    let mut runner = Runner::new(1);
    let all: Vec<_> = (1..7).map(|host| add(1, host)).collect();
    let error = ChangeError::TooMany { max: 6 };
    assert_eq!(error.errno(), 28);
    assert_eq!(runner.batch(&all), Err(RequestError::Change { index: 5, error }));
    assert_eq!(runner.batch(&all[..5]), CHANGED);
    let replaced = [NodeChange::DeleteNi { nid: nid(1, 2) }, add(1, 6)];
    assert_eq!(runner.batch(&replaced), CHANGED, "the order within a batch counts");
    assert_eq!(runner.nids()[1], (2, nid(1, 6)));
}

#[test]
fn a_net_has_the_tunables_of_its_first_ni() {
    let mut runner = Runner::new(1);
    let with = |host, credits, peer_credits| {
        let options = NetOptions { credits, peer_credits, ..NetOptions::default() };
        NodeChange::AddNi(lnet_core::node::NiSpec { options, ..spec(1, host) })
    };
    assert_eq!(runner.batch(&[with(1, Some(4), Some(9)), with(2, Some(100), None), add(2, 3)]), CHANGED);
    let credits: Vec<_> = runner.topology.local_nis().map(|(_, ni)| (ni.credits, ni.peer_credits)).collect();
    assert_eq!(credits[1..], [(4, 4), (4, 4), (256, 8)]);
    assert_eq!(runner.topology.local_nis().nth(1).unwrap().1.message_timeout, Duration::from_secs(151));
}

#[test]
fn what_does_not_open_undoes_the_batch() {
    let mut runner = Runner::new(2);
    assert_eq!(runner.batch(&[add(1, 1), add(1, 2)]), CHANGED);
    let before = runner.nids();
    runner.broken = vec![nid(2, 4)];
    let batch = [
        NodeChange::DeleteNi { nid: nid(1, 1) },
        add(2, 3),
        add(2, 4),
        NodeChange::Set { setting: Global::NumaRange, value: 5 },
    ];
    let failed = RequestError::Open { index: 2, nid: nid(2, 4), error: refused(), lost: vec![] };
    assert_eq!(failed.errno(), 100);
    assert_eq!(runner.batch(&batch), Err(failed));
    assert_eq!(runner.nids(), before);
    let order: Vec<_> = runner.node.nets()[1].nis.iter().map(|config| config.spec.nid).collect();
    assert_eq!(order, [nid(1, 1), nid(1, 2)], "in the order of before");
    assert_eq!(runner.node.settings().get(Global::NumaRange), 0);

    runner.broken = vec![nid(2, 4), nid(1, 1)];
    let failed = RequestError::Open { index: 2, nid: nid(2, 4), error: refused(), lost: vec![nid(1, 1)] };
    assert_eq!(runner.batch(&batch), Err(failed));
    assert_eq!(runner.nids(), [(2, nid(1, 2))]);
}

#[test]
fn an_ni_drains_before_it_is_closed() {
    let mut runner = Runner::new(2);
    assert_eq!(runner.batch(&[add(1, 1), add(1, 2)]), CHANGED);
    runner.is_quiet = false;
    let status = |runner: &Runner| runner.topology.ni(NiId(1)).map(|ni| ni.status);
    let id = runner.start(Request::batch(vec![NodeChange::DeleteNi { nid: nid(1, 1) }]));
    let next = runner.start(Request::batch(vec![add(1, 1)]));
    assert_eq!(status(&runner), Some(NiStatus::Leaving));
    assert_eq!(runner.node.changing(), [nid(1, 1)]);
    assert_eq!(runner.node.nets()[1].nis.len(), 2, "getters answer meanwhile");
    assert_eq!(runner.node.poll_timeout(), Some(runner.now + Duration::from_secs(2)));
    runner.advance(Duration::from_secs(1));
    assert_eq!(status(&runner), Some(NiStatus::Leaving));
    runner.advance(Duration::from_secs(1));
    assert_eq!(status(&runner), Some(NiStatus::Closed), "it may not drain for ever");
    runner.advance(Duration::from_secs(100));
    assert_eq!(
        (status(&runner), runner.result(id)),
        (Some(NiStatus::Closed), None),
        "but it has to be quiet"
    );
    runner.is_quiet = true;
    runner.confirm();
    runner.run();
    assert_eq!(runner.result(id), Some(CHANGED));
    assert_eq!(runner.result(next), Some(CHANGED), "one after the other");
    assert_eq!(status(&runner), Some(NiStatus::Up));
}

/// A peer sends by an NI that goes: it is told first, and what it had sent before arrives.
#[test]
fn an_ni_that_peers_know_goes_when_they_have_been_told_and_nothing_comes_any_more() {
    let mut runner = Runner::new(2);
    assert_eq!(runner.batch(&[add(1, 1), add(1, 2)]), CHANGED);
    let peer = nid(1, 9);
    let told = [PingNi { nid: peer, status: ping::NiStatus::UP }];
    let features = Features::NI_STATUS.with(Features::MULTI_RAIL).with(Features::DISCOVERY);
    let mut bytes = vec![0; ping::encoded_bytes(told).unwrap()];
    ping::write(&mut bytes, features, 12345, 1, told).unwrap();
    let report = Report::Pushed { from: peer, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    assert_eq!(runner.node.peer(&peer).unwrap().acked, 2);

    runner.acknowledges = false;
    let status = |runner: &Runner| runner.topology.ni(NiId(1)).map(|ni| ni.status);
    let id = runner.start(Request::batch(vec![NodeChange::DeleteNi { nid: nid(1, 1) }]));
    runner.confirm();
    runner.advance(Duration::from_millis(500));
    assert_eq!(status(&runner), Some(NiStatus::Leaving), "the peer does not know of it");
    let push = runner.done.iter().find_map(|action| match action {
        Action::Push { ping, .. } => Some(*ping),
        _ => None,
    });
    let ping = push.expect("the peer is told");
    runner.node.handle_report(runner.now, Report::Answered { ping, bytes: &[] });
    for arrived_count in 1..4 {
        runner.arrived_count = arrived_count;
        runner.confirm();
        runner.advance(Duration::from_millis(60));
        assert_eq!(status(&runner), Some(NiStatus::Leaving), "{arrived_count} messages have come");
    }
    assert_eq!(runner.result(id), None);
    runner.advance(Duration::from_millis(60));
    assert_eq!((status(&runner), runner.result(id)), (None, Some(CHANGED)));
}

#[test]
fn a_policy_changes_only_while_its_portal_is_empty() {
    let mut runner = Runner::new(2);
    runner.portals_in_use = 1 << 4;
    let set = |portal| NodeChange::SetPolicy { portal, policy: Policy::Pin(1) };
    let busy = RequestError::PortalBusy { portal: 4, index: 1 };
    assert_eq!(busy.errno(), 16);
    assert_eq!(runner.batch(&[set(5), set(4), add(1, 1)]), Err(busy));
    assert_eq!(runner.frozen_ever, 0, "messages of a portal in use are not dropped between two entries");
    assert_eq!(runner.nids(), []);
    runner.portals_in_use = 1 << 6;
    assert_eq!(runner.batch(&[set(5), set(4)]), CHANGED);
    assert_eq!((runner.frozen_ever, runner.topology.is_frozen(4)), (0b11_0000, false));
    let word = Policy::Pin(1).pack().unwrap();
    assert_eq!(runner.topology.steering().unwrap().policies[4..6], [word; 2]);
    assert_eq!(runner.node.policies()[4], word);
    let steered: Vec<_> =
        runner.done.iter().filter(|action| matches!(action, Action::Steer { .. })).collect();
    assert_eq!(steered.len(), 2);
    runner.portals_in_use = 1 << 4;
    assert_eq!(runner.batch(&[set(4)]), CHANGED, "it is as it was");
}

#[test]
fn links_and_health_take_nis_down() {
    let mut runner = Runner::new(1);
    assert_eq!(runner.batch(&[add(1, 1), add(1, 2)]), CHANGED);
    let serving = |runner: &Runner| {
        let statuses = runner.topology.local_nis().map(|(_, ni)| ni.status == NiStatus::Up);
        statuses.skip(1).collect::<Vec<_>>()
    };
    let up = |runner: &Runner| {
        let (_, told) = told(runner);
        told.iter().map(|one| one.status == ping::NiStatus::UP).collect::<Vec<_>>()
    };
    let link = |runner: &mut Runner, is_up| {
        runner.node.handle_report(runner.now, Report::Link { ni: NiId(1), is_up });
        runner.run();
    };
    link(&mut runner, false);
    assert_eq!((up(&runner), serving(&runner)), (vec![false, true], vec![false, true]));
    let sequence = told(&runner).0;
    link(&mut runner, false);
    assert_eq!(told(&runner).0, sequence, "that is nothing new");
    assert_eq!(runner.batch(&[NodeChange::SetHealth { nid: None, value: 0 }]), CHANGED);
    assert_eq!((up(&runner), serving(&runner)), (vec![false, false], vec![false, true]));
    link(&mut runner, true);
    assert_eq!(up(&runner), [false, false], "its health is still 0");
    assert_eq!(serving(&runner), [true, true], "as the last choice");
    assert_eq!(runner.batch(&[NodeChange::SetHealth { nid: None, value: 500 }]), CHANGED);
    assert_eq!(up(&runner), [false, false]);
    assert_eq!(runner.batch(&[NodeChange::SetHealth { nid: Some(nid(1, 1)), value: 1000 }]), CHANGED);
    assert_eq!(up(&runner), [true, false]);
    assert_eq!(runner.node.ni(&nid(1, 2)).unwrap().health, 500);
    runner.node.handle_report(runner.now, Report::Link { ni: NiId(5), is_up: false });
}

#[test]
fn an_ni_that_is_opened_again_keeps_its_place_and_waits_where_that_fails() {
    let mut runner = Runner::new(2);
    assert_eq!(runner.batch(&[add(1, 1), add(1, 2)]), CHANGED);
    let reopen = [NodeChange::ReopenNi { nid: nid(1, 1) }, NodeChange::ReopenNi { nid: nid(1, 1) }];
    let nids = |runner: &Runner| {
        let nets = runner.node.nets();
        nets.iter().flat_map(|net| net.nis.iter().map(|ni| ni.spec.nid)).collect::<Vec<_>>()
    };
    let told_up = |runner: &Runner| {
        let told = told(runner).1;
        told.iter().map(|one| (one.nid, one.status == ping::NiStatus::UP)).collect::<Vec<_>>()
    };
    runner.opened.clear();
    assert_eq!(runner.batch(&reopen), CHANGED);
    assert_eq!(runner.opened, [(NiId(1), false), (NiId(1), true)]);
    assert_eq!(runner.topology.ni(NiId(1)).map(|ni| ni.status), Some(NiStatus::Up));

    // It is down, is shown and told, and the shards do not have it.
    runner.broken = vec![nid(1, 1)];
    for _ in 0..2 {
        let error = runner.batch(&reopen).unwrap_err();
        assert!(matches!(&error, RequestError::Open { index: 0, lost, .. } if lost.is_empty()), "{error:?}");
        assert!(runner.node.ni(&nid(1, 1)).unwrap().is_absent);
        assert_eq!(nids(&runner), [nid(1, 1), nid(1, 2)]);
        assert_eq!(told_up(&runner), [(nid(1, 1), false), (nid(1, 2), true)]);
        assert!(runner.topology.ni(NiId(1)).is_none());
    }
    assert_eq!(runner.opened[2..], [(NiId(1), false)], "what is closed is not closed again");
    // No other NI gets its slot, and a batch that fails leaves it as it is.
    assert_eq!(runner.batch(&[add(1, 3)]), CHANGED);
    assert_eq!(runner.node.ni(&nid(1, 3)).unwrap().ni, NiId(3));
    runner.broken.push(nid(1, 4));
    assert!(runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }, add(1, 4)]).is_err());
    assert!(runner.node.ni(&nid(1, 1)).unwrap().is_absent);

    runner.broken.clear();
    assert_eq!(runner.batch(&reopen), CHANGED);
    assert_eq!(nids(&runner), [nid(1, 1), nid(1, 2), nid(1, 3)]);
    assert!(told_up(&runner).iter().all(|(_, is_up)| *is_up));
    assert_eq!(runner.topology.ni(NiId(1)).map(|ni| ni.status), Some(NiStatus::Up));

    runner.broken = vec![nid(1, 1)];
    assert!(runner.batch(&reopen).is_err());
    assert_eq!(runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]), CHANGED);
    assert_eq!(nids(&runner), [nid(1, 2), nid(1, 3)]);
    assert!(runner.batch(&reopen).is_err());
}

#[test]
fn an_ni_that_is_renamed_is_found_by_its_new_name() {
    let mut runner = Runner::new(1);
    assert_eq!(runner.batch(&[add(1, 1)]), CHANGED);
    let renamed = Report::Renamed { ni: NiId(1), interface: "lan0".into() };
    runner.node.handle_report(runner.now, renamed);
    assert_eq!(runner.node.ni(&nid(1, 1)).unwrap().spec.interface, "lan0");
    let delete = NodeChange::DeleteInterface { net: nid(1, 1).net(), interface: "lan0".into() };
    assert_eq!(runner.batch(&[delete]), CHANGED);
}

#[test]
fn settings_reach_the_shards() {
    let mut runner = Runner::new(1);
    let set = |setting, value| NodeChange::Set { setting, value };
    assert_eq!(runner.batch(&[set(Global::RetryCount, 0), set(Global::TransactionTimeout, 1)]), CHANGED);
    assert_eq!(runner.topology.tunables().transaction_timeout, Duration::from_secs(1));
}

#[test]
fn requests_are_bounded_and_can_be_given_up() {
    let mut node = lnet_core::node::Node::<u32>::new(lnet_core::node::NodeConfig {
        requests_max: 3,
        ..crate::common::config(1)
    });
    let now = lnet_core::time::Instant(0);
    let ids = [1, 2, 3].map(|host| node.handle_request(now, Request::batch(vec![add(1, host)])).unwrap());
    let refusal = node.handle_request(now, Request::batch(vec![]));
    assert_eq!(refusal, Err(RequestError::TooManyRequests { max: 3 }));
    assert_eq!(node.cancel(ids[0]), Err(RequestError::UnknownRequest(ids[0].0)), "it is being carried out");
    assert_eq!(node.cancel(ids[1]), Ok(()));
    assert_eq!(node.cancel(ids[1]), Err(RequestError::UnknownRequest(ids[1].0)));
    assert_eq!(node.request_count(), 2);
    let done = std::iter::from_fn(|| node.poll_action()).find(|action| matches!(action, Action::Done { .. }));
    assert_eq!(done, Some(Action::Done { request: ids[1], result: Err(RequestError::Cancelled) }));
}

#[test]
#[should_panic(expected = "NiId(3) is closed, but was not to be")]
fn a_runner_closes_what_it_was_asked_to() {
    let mut runner = Runner::new(1);
    runner.node.handle_report(runner.now, Report::Closed { ni: NiId(3) });
}
