//! NIs that come and go while nodes run.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lnet_core::lnd::NiId;
use lnet_tests::netns::{Interface, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::{Outcome, Serving, Steady, config, nid_v4};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NodeConfig, XdpMode};
use lnet_wire::Nid;

use crate::privileged;
use crate::traffic::PATIENCE;

/// How long a message of these tests may be under way.
const LND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a message may take before its initiator gives it up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);
const ROUNDS: u32 = 50;

/// Two nodes on two rails, a net each, with a load by both.
struct Rails {
    netns: Netns,
    near: Lnet,
    far: Lnet,
    serving: Serving,
    loads: Vec<Steady>,
}

/// The NI of a rail on its own net, in a mode.
fn ni(interface: &Interface, rail: u16, mode: XdpMode) -> NiConfig {
    NiConfig { mode: Some(mode), ..NiConfig::new(nid_v4(interface, rail), &interface.name) }
}

/// A configuration with room for both rails over rings.
fn config_of(netns: &lnet_tests::netns::Namespace, nis: Vec<NiConfig>) -> NodeConfig {
    let config = config(netns, Nid::LO);
    NodeConfig { frames: Some(config.frames_for(2, 4)), lnd_timeout: LND_TIMEOUT, nis, ..config }
}

impl Rails {
    fn start(modes: [XdpMode; 2]) -> Self {
        let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
        let start = |namespace| {
            let nis = |namespace: &lnet_tests::netns::Namespace| -> Vec<NiConfig> {
                let rails = namespace.interfaces().iter().zip(0..).zip(modes);
                rails.map(|((interface, rail), mode)| ni(interface, rail, mode)).collect()
            };
            enter(namespace, || Lnet::start(&config_of(namespace, nis(namespace))).unwrap())
        };
        let (near, far) = (start(netns.a()), start(netns.b()));
        let serving = Serving::start(&far, 2);
        near.open().unwrap();
        far.open().unwrap();
        let load =
            |(rail, interface)| Steady::start(&near, rail, nid_v4(interface, rail as u16), GIVEN_UP_AFTER);
        let loads: Vec<Steady> = netns.b().interfaces().iter().enumerate().map(load).collect();
        for load in &loads {
            wait_until("the load runs", PATIENCE, || load.ok() > 100);
        }
        Self { netns, near, far, serving, loads }
    }

    /// Ends the loads: rail 1 has lost nothing and doubled nothing, and on rail 0 everything has ended.
    fn end(self) -> (Netns, [Lnet; 2], Outcome) {
        let mut outcomes: Vec<Outcome> = self.loads.into_iter().map(|load| load.stop(PATIENCE)).collect();
        let arrived = self.serving.stop();
        let (steady, changing) = (outcomes.pop().unwrap(), outcomes.pop().unwrap());
        assert_eq!(steady.failed, 0, "by the rail that nothing happened to");
        let lost: HashSet<&u64> =
            changing.acked.union(&steady.acked).filter(|put| !arrived.contains(put)).collect();
        assert!(lost.is_empty(), "acknowledged and not there: {lost:?}");
        let by_steady = arrived.iter().filter(|number| *number >> 48 == 1).count();
        assert_eq!(by_steady, steady.acked.len(), "each Put of rail 1 was acknowledged");
        (self.netns, [self.near, self.far], changing)
    }
}

/// Waits until every frame is with a shard or the kernel.
fn assert_frames_conserved(lnet: &Lnet) {
    let missing = || {
        let Some(census) = lnet.with_node(|node| node.frames()) else { return 0 };
        let shards = (0..lnet.shard_count()).map(|shard| lnet.shard(shard).unwrap());
        let count = |shard: lnet_user::api::ShardHandle| {
            shard.run(|worker| worker.lnds().map(|lnd| lnd.frames_count()).sum::<usize>()).unwrap()
        };
        i64::from(census.user) - shards.map(count).sum::<usize>() as i64
    };
    // Frames on their way home between shards are with none.
    wait_until("all frames are home", PATIENCE, || missing() == 0);
}

fn add_and_remove(modes: [XdpMode; 2], at_near: bool) {
    if !privileged() {
        return;
    }
    let rails = Rails::start(modes);
    let (lnet, namespace) =
        if at_near { (&rails.near, rails.netns.a()) } else { (&rails.far, rails.netns.b()) };
    let config = ni(namespace.interface(), 0, modes[0]);
    let mut number = NiId(1);
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let patience = Duration::from_millis([0, 20, 2][round as usize % 3]);
        enter(namespace, || lnet.remove_ni(number, patience)).unwrap();
        assert_eq!(lnet.nis().len(), 1);
        number = enter(namespace, || lnet.add_ni(&config)).unwrap();
        let before = rails.loads.iter().map(Steady::ok).collect::<Vec<_>>();
        for (load, before) in rails.loads.iter().zip(before) {
            wait_until("the load goes on", PATIENCE, || load.ok() > before + 5);
        }
    }
    eprintln!("{ROUNDS} rounds in {:?}", begun.elapsed());
    let (_netns, [near, far], _) = rails.end();
    for lnet in [&near, &far] {
        assert_frames_conserved(lnet);
    }
}

#[test]
fn rings_beside_rings_come_and_go_at_the_initiator() {
    add_and_remove([XdpMode::Native; 2], true);
}

#[test]
fn rings_beside_rings_come_and_go_at_the_target() {
    add_and_remove([XdpMode::Native; 2], false);
}
