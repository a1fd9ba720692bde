//! Routing goes on and off, and others are told in time.

use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, NetOptions, NodeChange, NodeConfig, Outcome, POOL_BUFFERS, ROUTER_WAIT, Report, RequestError,
    RouterState,
};
use lnet_core::topology::Forwarding;
use lnet_model::pool::PoolKind;
use lnet_wire::ping::{self, Features, NiStatus, PingInfo, PingNi};
use lnet_wire::{Nid, Parameter};

use crate::common::{Lnd, Runner, config, nid, spec};

const ON: NodeChange<Lnd> = NodeChange::SetRouting { on: true };
const OFF: NodeChange<Lnd> = NodeChange::SetRouting { on: false };
const SECOND: Duration = Duration::from_secs(1);

fn pool(pool: PoolKind, buffer_count: u32) -> NodeChange<Lnd> {
    NodeChange::SetPool { pool, buffer_count }
}

/// A node on `tcp1` and `tcp2` that may have so many router buffers.
fn runner_with(router_buffers_max: u32) -> Runner {
    let mut runner = Runner::with(NodeConfig { router_buffers_max, ..config(2) });
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))]).unwrap();
    runner
}

fn runner() -> Runner {
    runner_with(1 << 20)
}

/// Whether others are told that it routes, and which NIs they are told to be up.
fn told(runner: &Runner) -> (bool, Vec<Nid>) {
    let published = runner.done.iter().rev().find_map(|action| match action {
        Action::Publish(bytes) => Some(bytes),
        _ => None,
    });
    let info = PingInfo::parse(published.unwrap()).unwrap();
    let up = info.interfaces().filter(|ni| ni.status == NiStatus::UP).map(|ni| ni.nid);
    (!info.features().contains(Features::ROUTING_DISABLED), up.collect())
}

/// Its state, what its shards do, and whether others are told that it routes.
fn state(runner: &Runner) -> (RouterState, Forwarding, bool) {
    (runner.node.router_state(), runner.topology.forwarding(), told(runner).0)
}

/// Another node has pinged the NIs.
fn pinged(runner: &mut Runner, nis: &[u16]) {
    for ni in nis {
        runner.node.handle_report(runner.now, Report::Pinged { ni: NiId(*ni) });
        runner.run();
    }
}

/// So much time passes, in which both nets are pinged.
fn pass(runner: &mut Runner, time: Duration) {
    for _ in 0..time.as_secs() {
        pinged(runner, &[1, 2]);
        runner.advance(SECOND);
    }
}

#[test]
fn it_goes_on_and_off_in_time() {
    let mut runner = runner();
    assert_eq!(state(&runner), (RouterState::Off, Forwarding::Off, false));
    runner.batch(&[ON]).unwrap();
    assert_eq!(runner.pools, [POOL_BUFFERS]);
    assert_eq!(state(&runner), (RouterState::Starting, Forwarding::On, false), "others do not know of it");
    pass(&mut runner, ROUTER_WAIT - SECOND);
    assert_eq!(runner.node.router_state(), RouterState::Starting);
    pass(&mut runner, SECOND);
    assert_eq!(state(&runner), (RouterState::On, Forwarding::On, true));
    assert_eq!(runner.batch(&[ON]), Ok(Outcome::Changed), "it is on");
    assert_eq!(state(&runner), (RouterState::On, Forwarding::On, true));
    runner.batch(&[OFF]).unwrap();
    assert_eq!(state(&runner), (RouterState::Stopping, Forwarding::Ending, false), "they know at once");
    for change in [ON, pool(PoolKind::Tiny, 5)] {
        assert_eq!(runner.batch(&[change]).unwrap_err().errno(), 16);
    }
    runner.batch(&[OFF]).unwrap();
    pass(&mut runner, ROUTER_WAIT - SECOND);
    assert_eq!(runner.node.router_state(), RouterState::Stopping);
    assert!(!runner.done.contains(&Action::DropPools));
    pass(&mut runner, SECOND);
    assert_eq!(state(&runner), (RouterState::Off, Forwarding::Off, false));
    assert_eq!(runner.done.iter().filter(|action| **action == Action::DropPools).count(), 1);
    runner.batch(&[ON]).unwrap();
    assert_eq!(state(&runner), (RouterState::Starting, Forwarding::On, false));
    assert_eq!(runner.pools.len(), 2);
}

/// Routing ends at once where a node is unconfigured, so that the node can be configured anew.
#[test]
fn it_ends_with_the_configuration() {
    for change in [ON, OFF] {
        let mut runner = runner();
        assert!(!runner.node.was_router());
        runner.batch(&[ON, pool(PoolKind::Tiny, 5)]).unwrap();
        runner.batch(&[change]).unwrap();
        assert!(runner.node.was_router());
        runner.node.forget_peers();
        runner.run();
        assert_eq!(state(&runner), (RouterState::Off, Forwarding::Off, false));
        assert_eq!((runner.node.was_router(), runner.node.router_buffers()), (false, POOL_BUFFERS));
        assert_eq!(runner.done.iter().filter(|action| **action == Action::DropPools).count(), 1);
        runner.batch(&[ON]).unwrap();
        assert_eq!(state(&runner), (RouterState::Starting, Forwarding::On, false));
    }
}

/// Parameters say how long others may take to look again.
#[test]
fn the_waits_follow_the_parameters() {
    let mut runner = runner();
    let waits = [(Parameter::AliveRouterCheckInterval, 2), (Parameter::RouterPingTimeout, 3)];
    let set = |(parameter, value)| NodeChange::SetParameter { parameter, value };
    runner.batch(&[waits.map(set).as_slice(), &[ON]].concat()).unwrap();
    runner.advance(4 * SECOND);
    assert_eq!((runner.node.router_state(), told(&runner).1.len()), (RouterState::Starting, 2));
    runner.advance(SECOND);
    assert_eq!((state(&runner), told(&runner).1), ((RouterState::On, Forwarding::On, true), Vec::new()));
    runner.batch(&[OFF]).unwrap();
    runner.is_forwarding = true;
    runner.confirm();
    runner.advance(14 * SECOND);
    assert_eq!(runner.node.router_state(), RouterState::Stopping);
    runner.advance(SECOND);
    assert_eq!(runner.node.router_state(), RouterState::Off);
}

/// A node that comes with all of its NIs as a router says so from the beginning.
#[test]
fn a_new_node_is_on_at_once() {
    let mut runner = Runner::with(NodeConfig { router_buffers_max: 1 << 20, ..config(2) });
    runner.batch(&[ON, NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 2))]).unwrap();
    assert_eq!(state(&runner), (RouterState::On, Forwarding::On, true));
    runner.batch(&[OFF]).unwrap();
    assert_eq!(state(&runner), (RouterState::Stopping, Forwarding::Ending, false));
    let mut runner = runner_with(1 << 20);
    runner.batch(&[ON, NodeChange::AddNi(spec(3, 3))]).unwrap();
    assert_eq!(state(&runner), (RouterState::Starting, Forwarding::On, false), "others know it");
}

/// Messages under way keep the buffers, for three times the wait at most.
#[test]
fn it_stops_when_nothing_is_under_way() {
    for idle_after in [150, 1000] {
        let mut runner = runner();
        runner.batch(&[ON]).unwrap();
        runner.batch(&[OFF]).unwrap();
        assert_eq!(runner.node.router_state(), RouterState::Stopping, "as it started");
        runner.is_forwarding = true;
        runner.confirm();
        let mut seconds = 0;
        while runner.node.router_state() == RouterState::Stopping {
            if seconds == idle_after {
                runner.is_forwarding = false;
                runner.confirm();
                runner.run();
                break;
            }
            pass(&mut runner, SECOND);
            seconds += 1;
        }
        assert_eq!(state(&runner), (RouterState::Off, Forwarding::Off, false));
        assert_eq!(seconds, idle_after.min(3 * ROUTER_WAIT.as_secs()));
    }
}

#[test]
fn peers_are_told_when_it_is_on() {
    let mut runner = runner();
    let peer = nid(1, 7);
    let nis = [PingNi { nid: peer, status: NiStatus::UP }];
    let mut bytes = vec![0; ping::encoded_bytes(nis.iter().copied()).unwrap()];
    ping::write(&mut bytes, Features(0x1E), 12345, 1, nis.iter().copied()).unwrap();
    let report = Report::Pushed { from: peer, bytes: &bytes, length_bytes: bytes.len() };
    runner.node.handle_report(runner.now, report);
    runner.run();
    runner.answer_all(&[peer], &bytes);
    runner.acknowledges = false;
    runner.batch(&[ON]).unwrap();
    let pushes = |runner: &mut Runner| {
        let is_push = |action: &mut Action<Lnd>| matches!(action, Action::Push { .. });
        let pushes: Vec<_> = runner.done.extract_if(.., is_push).collect();
        for push in &pushes {
            let Action::Push { ping, .. } = push else { unreachable!() };
            runner.node.handle_report(runner.now, Report::Answered { ping: *ping, bytes: &[] });
            runner.run();
        }
        pushes.len()
    };
    assert_eq!(pushes(&mut runner), 0);
    pass(&mut runner, ROUTER_WAIT);
    assert_eq!((state(&runner).2, pushes(&mut runner)), (true, 1));
    runner.batch(&[OFF]).unwrap();
    assert_eq!((state(&runner).2, pushes(&mut runner)), (false, 1));
}

#[test]
fn each_refusal_has_its_number() {
    let mut none = runner_with(0);
    assert_eq!(none.batch(&[ON]).unwrap_err().errno(), 95);
    assert_eq!(none.batch(&[OFF, pool(PoolKind::Small, 1 << 30)]), Ok(Outcome::Changed), "it is off");
    let mut few = runner_with(100);
    assert_eq!(few.batch(&[ON]).unwrap_err().errno(), 12);
    assert_eq!(few.node.router_state(), RouterState::Off);
    let sizes = PoolKind::ALL.iter().map(|kind| pool(*kind, 30));
    // The default numbers alone would be too many.
    let changes: Vec<_> = [ON].into_iter().chain(sizes).collect();
    assert_eq!(few.batch(&changes), Ok(Outcome::Changed));
    assert_eq!((few.node.router_buffers(), few.pools.last()), ([30; 3], Some(&[30; 3])));
    assert_eq!(few.batch(&[pool(PoolKind::Large, 41)]).unwrap_err().errno(), 12);
    assert_eq!(few.batch(&[pool(PoolKind::Large, 40)]), Ok(Outcome::Changed));
}

/// A batch is carried out as a whole or not at all.
#[test]
fn without_memory_nothing_changes() {
    let mut runner = runner();
    runner.has_memory = false;
    let result = runner.batch(&[NodeChange::AddNi(spec(3, 3)), ON]);
    let Err(RequestError::Pools { index: 1, error }) = result else { panic!("{result:?}") };
    assert_eq!(error.errno, 12);
    assert_eq!(state(&runner), (RouterState::Off, Forwarding::Off, false));
    assert_eq!((runner.nids().len(), runner.opened.last()), (2, Some(&(NiId(3), false))), "it is closed");
    runner.has_memory = true;
    runner.batch(&[ON]).unwrap();
    runner.has_memory = false;
    assert!(runner.batch(&[pool(PoolKind::Large, 2000)]).is_err());
    assert_eq!(runner.node.router_buffers(), POOL_BUFFERS);
    assert_eq!(state(&runner), (RouterState::Starting, Forwarding::On, false));
}

/// LNet forgets numbers that are set while routing is off (`router.c: lnet_rtrpools_adjust`), and keeps
/// others.
#[test]
fn numbers_of_buffers_survive() {
    let mut runner = runner();
    runner.batch(&[pool(PoolKind::Tiny, 5)]).unwrap();
    runner.batch(&[ON, pool(PoolKind::Small, 9)]).unwrap();
    assert_eq!(runner.pools, [[POOL_BUFFERS[0], 9, POOL_BUFFERS[2]]]);
    runner.batch(&[pool(PoolKind::Tiny, 6)]).unwrap();
    runner.batch(&[pool(PoolKind::Tiny, 6)]).unwrap();
    assert_eq!(runner.pools[1..], [[6, 9, POOL_BUFFERS[2]]], "once for a number");
    runner.batch(&[OFF]).unwrap();
    pass(&mut runner, ROUTER_WAIT);
    runner.batch(&[ON]).unwrap();
    assert_eq!(runner.pools[2..], [[6, 9, POOL_BUFFERS[2]]]);
    runner.batch(&[pool(PoolKind::Tiny, 0)]).unwrap();
    assert_eq!(runner.node.router_buffers(), [POOL_BUFFERS[0], 9, POOL_BUFFERS[2]], "0 is the default");
}

/// LNet tells that its NIs of a net are down on which no node has pinged it for long (`router.c:
/// lnet_update_ni_status_locked`).
#[test]
fn nis_on_idle_nets_are_told_as_down() {
    let mut runner = runner();
    runner.batch(&[NodeChange::AddNi(spec(2, 3))]).unwrap();
    let all = vec![nid(1, 1), nid(2, 2), nid(2, 3)];
    let only = |hosts: &[usize]| hosts.iter().map(|host| all[host - 1]).collect::<Vec<_>>();
    runner.advance(3 * ROUTER_WAIT);
    assert_eq!(told(&runner).1, all, "a node that is no router is up");
    runner.batch(&[ON]).unwrap();
    runner.advance(60 * SECOND);
    pinged(&mut runner, &[1]);
    runner.advance(50 * SECOND);
    assert_eq!(told(&runner), (true, only(&[1])));
    let forwards = runner.topology.local_nis().all(|(_, ni)| ni.status == lnet_core::topology::NiStatus::Up);
    assert!(forwards, "they serve");
    pinged(&mut runner, &[3]);
    assert_eq!(told(&runner).1, only(&[1, 3]), "the NI that was pinged is up at once");
    runner.advance(60 * SECOND);
    assert_eq!(told(&runner).1, only(&[3]));
    // A net that comes has its time.
    runner.batch(&[NodeChange::AddNi(spec(3, 4))]).unwrap();
    runner.advance(50 * SECOND);
    assert_eq!(told(&runner).1, [nid(3, 4)]);
    runner.advance(60 * SECOND);
    assert_eq!(told(&runner).1, []);
    runner.batch(&[OFF]).unwrap();
    runner.advance(ROUTER_WAIT);
    assert_eq!(told(&runner).1.len(), 4, "it is no router any more");
    assert_eq!(runner.node.poll_timeout(), None);
}

#[test]
fn router_credits_are_those_of_the_net() {
    let mut runner = Runner::new(1);
    for (host, peer_buffer_credits, expected) in [(1, None, 8), (2, Some(0), 8), (3, Some(30), 30)] {
        let options = NetOptions { peer_buffer_credits, ..NetOptions::default() };
        let mut ni = spec(host.into(), host);
        ni.options = options;
        runner.batch(&[NodeChange::AddNi(ni)]).unwrap();
        let (_, local) = runner.topology.local_nis().last().unwrap();
        assert_eq!(local.router_credits, expected);
    }
    // A parameter of the node counts where the net says nothing.
    let parameter = Parameter::PeerBufferCredits;
    runner.batch(&[NodeChange::SetParameter { parameter, value: 77 }]).unwrap();
    let credits: Vec<_> =
        runner.topology.local_nis().skip(1).map(|(_, local)| local.router_credits).collect();
    assert_eq!(credits, [77, 77, 30]);
}
