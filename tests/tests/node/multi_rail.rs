//! Nodes of several rails that know one NID of each other: they find the rest, use all rails, and go on when one is cut.

use std::time::{Duration, Instant};

use lnet_control::server::Handler;
use lnet_core::limits::Limits;
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::config;
use lnet_user::api::Lnet;
use lnet_user::control::{Control, ControlOptions};
use lnet_user::load::{FaultKind, Initiator, Plan, Scheme, Target};
use lnet_user::node::NiConfig;
use lnet_user::{Global, Nid, Policy, SockTunables};
use lnet_wire::{Net, NetType};

use crate::privileged;

/// State bits of a Multi-Rail peer that is discovered and up to date.
const DISCOVERED: u32 = 273;
const PATIENCE: Duration = Duration::from_secs(30);
/// After which a connection without progress is closed.
const SOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The NIDs of a namespace, a net for each rail.
fn nids(namespace: &Namespace, net_type: NetType) -> Vec<Nid> {
    let nid = |(interface, rail): (&Interface, u16)| {
        Nid::new_ip(Net::new(net_type, rail), interface.ipv4.into()).unwrap()
    };
    namespace.interfaces().iter().zip(0..).map(nid).collect()
}

fn start(namespace: &Namespace, net_type: NetType) -> Lnet {
    let nis = nids(namespace, net_type).into_iter().zip(namespace.interfaces());
    let nis: Vec<_> = nis.map(|(nid, interface)| NiConfig::new(nid, &interface.name)).collect();
    let base = config(namespace, Nid::LO);
    let mut policies = base.policies.clone();
    policies.push((17, Policy::Pin(0)));
    let limits = Limits { unlimited_events: 1 << 9, ..Limits::DEFAULT };
    let frames = (net_type == NetType::XDP).then(|| base.frames_for(2, 4));
    let config = base.frames(frames).nis(nis).policies(policies).limits(limits);
    // A rail that has come back is dialled soon.
    let max_reconnect = Duration::from_secs(2);
    let sock = SockTunables { timeout: SOCK_TIMEOUT, max_reconnect, ..SockTunables::DEFAULT };
    let config = config.lnd_timeout(Duration::from_secs(10)).sock(sock);
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.open().unwrap();
    lnet
}

/// Waits until a node knows its peer by these NIDs.
#[track_caller]
fn await_peer(lnet: &Lnet, nids: &[Nid]) {
    let begun = Instant::now();
    loop {
        let peers = lnet.peers().unwrap();
        if let [peer] = &peers[..]
            && peer.nids() == nids
            && peer.state == DISCOVERED
        {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{peers:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Messages that a node has sent by each NI.
fn sent(lnet: &Lnet) -> Vec<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let control = Control::new(lnet, ControlOptions::default()).unwrap();
    let nets = runtime.block_on(control.nets()).unwrap();
    let nis = nets.iter().flat_map(|net| &net.nis).filter(|ni| !ni.nid.is_loopback());
    nis.map(|ni| ni.traffic.sent.put + ni.traffic.sent.get).collect()
}

struct Pair {
    netns: Netns,
    near: Lnet,
    far: Lnet,
    /// The NIDs of either.
    nids: [Vec<Nid>; 2],
    scheme: Scheme,
    target: Target,
}

impl Pair {
    /// Two nodes of two rails, each a net; the far one is a target.
    fn start(net_type: NetType) -> Self {
        let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
        let nids = [netns.a(), netns.b()].map(|namespace| nids(namespace, net_type));
        let [near, far] = [netns.a(), netns.b()].map(|namespace| start(namespace, net_type));
        let scheme = Scheme { seed: 4, ..Scheme::default() };
        let target = Target::start(&far, &scheme).unwrap();
        Self { netns, near, far, nids, scheme, target }
    }

    /// Messages to the far node's first NID.
    fn initiate(&self, messages: u64) -> Initiator {
        let plan = Plan { messages, ..Plan::new(self.scheme.clone(), vec![self.nids[1][0]]) };
        Initiator::start(&self.near, &plan).unwrap()
    }

    #[track_caller]
    fn finish(&self, load: Initiator, messages: u64) {
        let done = load.wait();
        assert_eq!(done.faults.count, 0, "{:?}", done.faults);
        assert_eq!(done.puts().messages + done.gets().messages, messages);
    }

    /// Sends messages until the first rail is used, as it is once it is in health; none is lost.
    #[track_caller]
    fn use_first_rail(&self) {
        let begun = Instant::now();
        let mut before = sent(&self.near)[0];
        loop {
            let load = self.initiate(200);
            self.finish(load, 200);
            let after = sent(&self.near)[0];
            if after > before + 50 {
                return;
            }
            assert!(begun.elapsed() < 2 * PATIENCE, "the rail is not used again: {:?}", self.near.peers());
            before = after;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn rails_share(net_type: NetType) {
    if !privileged() {
        return;
    }
    let pair = Pair::start(net_type);
    let few = pair.initiate(100);
    pair.finish(few, 100);
    await_peer(&pair.near, &pair.nids[1]);
    await_peer(&pair.far, &pair.nids[0]);
    let before = sent(&pair.near);
    let load = pair.initiate(4000);
    pair.finish(load, 4000);
    let by_rail: Vec<_> = sent(&pair.near).iter().zip(before).map(|(after, before)| after - before).collect();
    // A machine that is slow enough makes a path silent for a while.
    assert!(by_rail.iter().all(|count| *count > 4000 / 4), "{by_rail:?}");
    let seen = pair.target.stop();
    assert_eq!((seen.faults.count, seen.puts.messages + seen.gets.messages), (0, 4100));
}

#[test]
fn two_xdp_rails_share_what_is_for_one_nid() {
    rails_share(NetType::XDP);
}

#[test]
fn two_tcp_rails_share_what_is_for_one_nid() {
    rails_share(NetType::TCP);
}

/// A rail goes down at the far end under load, and comes back.
#[test]
fn a_rail_that_is_cut_under_load_loses_and_doubles_nothing() {
    if !privileged() {
        return;
    }
    const MESSAGES: u64 = 12_000;
    let pair = Pair::start(NetType::XDP);
    let few = pair.initiate(100);
    pair.finish(few, 100);
    await_peer(&pair.near, &pair.nids[1]);
    let load = pair.initiate(MESSAGES);
    let rail = &pair.netns.b().interfaces()[0].name;
    let is_past = |share: u64| load.progress().ended >= MESSAGES * share / 10;
    let wait_for = |share: u64| {
        let begun = Instant::now();
        while !is_past(share) {
            assert!(begun.elapsed() < 2 * PATIENCE, "{:?} before {share} tenths", load.progress());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    wait_for(2);
    ip(pair.netns.b(), &format!("link set {rail} down"));
    wait_for(6);
    ip(pair.netns.b(), &format!("link set {rail} up"));
    pair.finish(load, MESSAGES);
    pair.use_first_rail();
    let seen = pair.target.stop();
    assert_eq!(seen.faults.count, 0, "{:?}", seen.faults);
}

/// A rail of a tcp net goes down at the far end under load, and comes back. What TCP had taken by then, or its answer, may have
/// arrived, so it is not sent again: that is all that may be lost, no more than was under way. All else goes by the other rail.
#[test]
fn a_tcp_rail_that_is_cut_under_load_loses_nothing_that_may_be_resent() {
    if !privileged() {
        return;
    }
    const MESSAGES: u64 = 12_000;
    let pair = Pair::start(NetType::TCP);
    // The answer of a ping that the rail had taken is not waited for any longer either.
    let timeout_s = 3 * SOCK_TIMEOUT.as_secs() as u32;
    for node in [&pair.near, &pair.far] {
        node.set(Global::TransactionTimeout, timeout_s).unwrap();
    }
    let few = pair.initiate(100);
    pair.finish(few, 100);
    await_peer(&pair.near, &pair.nids[1]);
    let plan = Plan::new(pair.scheme.clone(), vec![pair.nids[1][0]]);
    let plan = Plan { messages: MESSAGES, timeout_ms: 4 * SOCK_TIMEOUT.as_millis() as u64, ..plan };
    let load = Initiator::start(&pair.near, &plan).unwrap();
    let wait_for = |share: u64| {
        let is_past = || load.progress().ended >= MESSAGES * share / 10;
        wait_until(&format!("{share} tenths"), 4 * PATIENCE, is_past);
    };
    let rail = &pair.netns.b().interfaces()[0].name;
    wait_for(2);
    ip(pair.netns.b(), &format!("link set {rail} down"));
    wait_for(6);
    ip(pair.netns.b(), &format!("link set {rail} up"));
    let done = load.wait();
    // Answers that do not come are all that is missing: what never left would be told as that.
    assert_eq!(done.faults.of(FaultKind::Timeout), done.faults.count, "{:?}", done.faults);
    assert!(done.faults.count <= u64::from(plan.window), "{:?}", done.faults);
    assert_eq!(done.puts().messages + done.gets().messages + done.faults.count, MESSAGES);
    pair.use_first_rail();
    let seen = pair.target.stop();
    assert_eq!(seen.faults.count, 0, "{:?}", seen.faults);
}
