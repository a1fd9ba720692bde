//! Nodes of several rails that know one NID of each other: they find the rest, use all rails, and go on when
//! one is cut.

use std::time::{Duration, Instant};

use lnet_admin::{Control, ControlOptions};
use lnet_control::server::Handler;
use lnet_core::limits::Limits;
use lnet_load::{FaultKind, Initiator, InitiatorReport, LoadPlan, Scheme, Target};
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::config;
use lnet_user::api::Lnet;
use lnet_user::node::NiConfig;
use lnet_user::{Global, Nid, Policy, SockTunables};
use lnet_wire::{Net, NetType};
use lnet_xdp::bpf::{Faults, Object, ObjectKind, XdpProgram};

use crate::privileged;

/// State bits of a Multi-Rail peer that is discovered and up to date.
const DISCOVERED: u32 = 273;
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages of which each rail's share is taken, at least: all that were sent since both nodes knew each
/// other.
const SHARED_MIN: u64 = 20_000;
/// After which a connection without progress is closed.
const SOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// After which an answer over tcp is not waited for.
const ANSWER_TIMEOUT_S: u32 = 1;

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
    let frames = (net_type == NetType::XDP).then(|| base.frames_for(2, 4));
    let config = base.frames(frames).nis(nis).policies(policies).limits(Limits::DEFAULT);
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

/// What a node tells an administrator.
fn ask<R>(lnet: &Lnet, ask: impl AsyncFnOnce(&Control) -> R) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let control = Control::new(lnet, ControlOptions::default()).unwrap();
    runtime.block_on(ask(&control))
}

/// Messages that a node has sent by each NI.
fn sent(lnet: &Lnet) -> Vec<u64> {
    let nets = ask(lnet, async |control| control.nets().await.unwrap());
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
        let plan = LoadPlan { messages, ..LoadPlan::new(self.scheme.clone(), vec![self.nids[1][0]]) };
        Initiator::start(&self.near, &plan).unwrap()
    }

    /// Has each node know all NIDs of the other one.
    #[track_caller]
    fn meet(&self) {
        let few = self.initiate(100);
        self.finish(few, 100);
        await_peer(&self.near, &self.nids[1]);
        await_peer(&self.far, &self.nids[0]);
    }

    /// Sets how long both nodes wait for an answer, and how often they try.
    fn set_timeout(&self, seconds: u32, retry_count: u32) {
        let settings = [
            (Global::RetryCount, 0),
            (Global::TransactionTimeout, seconds),
            (Global::RetryCount, retry_count),
        ];
        for node in [&self.near, &self.far] {
            settings.iter().for_each(|(global, value)| node.set(*global, *value).unwrap());
        }
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
    pair.meet();
    // A machine that is slow enough makes a path silent for a while: then the other one has more, and it
    // takes more messages until that is a small part of all.
    let (begun, before, mut messages) = (Instant::now(), sent(&pair.near), 100);
    loop {
        let load = pair.initiate(4000);
        pair.finish(load, 4000);
        messages += 4000;
        let by_rail: Vec<_> =
            sent(&pair.near).iter().zip(&before).map(|(after, before)| after - before).collect();
        let all: u64 = by_rail.iter().sum();
        let is_shared = by_rail.iter().all(|count| (450..=550).contains(&(1000 * count / all)));
        if is_shared && messages > SHARED_MIN {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{by_rail:?} of {all} messages");
    }
    let seen = pair.target.stop();
    assert_eq!((seen.faults.count, seen.puts.messages + seen.gets.messages), (0, messages));
}

#[test]
fn two_xdp_rails_share_what_is_for_one_nid() {
    rails_share(NetType::XDP);
}

#[test]
fn two_tcp_rails_share_what_is_for_one_nid() {
    rails_share(NetType::TCP);
}

/// How the first rail is cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The far end's link goes down, which both nodes are told.
    Link,
    /// XDP drops all that comes to the near end, to the far end: neither node is told.
    Drop { near: bool, far: bool },
}

impl Cut {
    /// Cuts the rail, or mends it.
    fn set(self, pair: &Pair, is_cut: bool) {
        let rail = |namespace: &Namespace| namespace.interfaces()[0].name.clone();
        let (near, far) = match self {
            Self::Link => {
                let state = if is_cut { "down" } else { "up" };
                ip(pair.netns.b(), &format!("link set {} {state}", rail(pair.netns.b())));
                return;
            }
            Self::Drop { near, far } => (near, far),
        };
        for (namespace, _) in
            [(pair.netns.a(), near), (pair.netns.b(), far)].iter().filter(|(_, drops)| *drops)
        {
            set_loss(namespace, if is_cut { 1_000_000 } else { 0 });
        }
    }
}

/// Has the first rail lose so many of a million frames that come to this end.
fn set_loss(namespace: &Namespace, parts_per_million: u32) {
    let rail = &namespace.interfaces()[0].name;
    let mut faults = enter(namespace, || Faults::attached_to(rail).unwrap());
    faults.set_loss(parts_per_million).unwrap();
}

/// Nothing is lost above, the rail is found to be lossy and carries the smaller part, and it is used again
/// once it is well. Also a silence, which is found where a frame is lost three times, has it left for a
/// while.
#[test]
fn a_rail_that_loses_a_tenth_carries_the_smaller_part() {
    if !privileged() {
        return;
    }
    let pair = Pair::start(NetType::XDP);
    pair.meet();
    set_loss(pair.netns.b(), 100_000);
    let (begun, before, mut messages) = (Instant::now(), sent(&pair.near), 0);
    loop {
        let load = pair.initiate(4000);
        pair.finish(load, 4000);
        messages += 4000;
        let after = sent(&pair.near);
        let (lossy, whole) = (after[0] - before[0], after[1] - before[1]);
        let frames = ask(&pair.near, async |control| control.frames().await.unwrap());
        if messages >= SHARED_MIN && lossy * 2 < whole && frames.recovery["paths lossy"] > 0 {
            eprintln!("{lossy} by the rail that loses a tenth, {whole} by the other one");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{lossy}, {whole} by the other one: {:?}", frames.recovery);
    }
    set_loss(pair.netns.b(), 0);
    pair.use_first_rail();
    assert_eq!(pair.target.stop().faults.count, 0);
}

/// The rail is cut under load, and mended. What became of the load, and the longest time in which no message
/// ended while the rail was cut.
fn cut_under_load(pair: &Pair, plan: &LoadPlan, cut: Cut) -> (InitiatorReport, Duration) {
    let load = Initiator::start(&pair.near, plan).unwrap();
    let ended = || load.progress().ended;
    wait_until("two tenths", 4 * PATIENCE, || ended() >= plan.messages / 5);
    cut.set(pair, true);
    let (begun, mut last, mut standstill) = (Instant::now(), (Instant::now(), ended()), Duration::ZERO);
    // Until much has ended that was sent since, and for long enough that paths are silent.
    while last.1 < plan.messages * 6 / 10 || begun.elapsed() < Duration::from_millis(500) {
        let count = ended();
        standstill = standstill.max(last.0.elapsed());
        if count == plan.messages {
            break;
        }
        assert!(last.0.elapsed() < PATIENCE, "{:?} for long: {:?}", load.progress(), pair.near.peers());
        if count > last.1 {
            last = (Instant::now(), count);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    cut.set(pair, false);
    let done = load.wait();
    eprintln!("{cut:?}: no message ended for {standstill:.2?} at most, {} faults", done.faults.count);
    (done, standstill)
}

/// Traffic flows again soon after a cut.
#[track_caller]
fn assert_flows_again(standstill: Duration, limit: Duration) {
    assert!(standstill < limit, "no message ended for {standstill:?}, more than {limit:?}");
}

fn xdp_rail_is_cut(cut: Cut) {
    if !privileged() {
        return;
    }
    let pair = Pair::start(NetType::XDP);
    pair.meet();
    let plan = LoadPlan { messages: 12_000, ..LoadPlan::new(pair.scheme.clone(), vec![pair.nids[1][0]]) };
    let (done, standstill) = cut_under_load(&pair, &plan, cut);
    pair.use_first_rail();
    assert_eq!(done.faults.count, 0, "{:?}", done.faults);
    assert_eq!(done.puts().messages + done.gets().messages, plan.messages);
    let seen = pair.target.stop();
    assert_eq!(seen.faults.count, 0, "{:?}", seen.faults);
    assert_flows_again(standstill, Duration::from_secs(2));
}

#[test]
fn a_rail_that_is_cut_under_load_loses_and_doubles_nothing() {
    xdp_rail_is_cut(Cut::Link);
}

#[test]
fn a_rail_that_drops_all_requests_loses_and_doubles_nothing() {
    xdp_rail_is_cut(Cut::Drop { near: false, far: true });
}

#[test]
fn a_rail_that_drops_all_answers_loses_and_doubles_nothing() {
    xdp_rail_is_cut(Cut::Drop { near: true, far: false });
}

#[test]
fn a_rail_that_drops_all_in_both_directions_loses_and_doubles_nothing() {
    xdp_rail_is_cut(Cut::Drop { near: true, far: true });
}

/// What TCP had taken by then, or its answer, may have arrived, so it is not sent again: that is all that may
/// be lost, no more than was under way until the rail was known to be dead. All else goes by the other rail.
fn tcp_rail_is_cut(cut: Cut) {
    if !privileged() {
        return;
    }
    let pair = Pair::start(NetType::TCP);
    let _programs = [pair.netns.a(), pair.netns.b()].map(|namespace| {
        let mut program = XdpProgram::load(&Object::of(ObjectKind::Default)).unwrap();
        enter(namespace, || program.attach(&namespace.interfaces()[0].name, None).unwrap());
        program
    });
    pair.meet();
    // What the rail had taken is in the load's window until its answer is not waited for any longer.
    pair.set_timeout(ANSWER_TIMEOUT_S, 1);
    let plan = LoadPlan::new(pair.scheme.clone(), vec![pair.nids[1][0]]);
    let timeout_ms = 4 * SOCK_TIMEOUT.as_millis() as u64;
    let plan = LoadPlan { messages: 12_000, timeout_ms, ..plan };
    let (done, standstill) = cut_under_load(&pair, &plan, cut);
    // Nothing is cut from here on, so a message that a busy machine holds up is no fault.
    pair.set_timeout(60, 2);
    pair.use_first_rail();
    // What was in a connection that was given up is all that is missing, and answers that do not come: what
    // never left would be told as that.
    let may_have_arrived = [FaultKind::Timeout, FaultKind::Reset].map(|kind| done.faults.of(kind));
    assert_eq!(may_have_arrived.iter().sum::<u64>(), done.faults.count, "{:?}", done.faults);
    // A machine that is too busy to find the rail silent before that time has as many more go by it.
    assert!(done.faults.count <= 2 * u64::from(plan.window), "{:?}", done.faults);
    assert_eq!(done.puts().messages + done.gets().messages + done.faults.count, plan.messages);
    // A message that its connection brought in part ends at the target as well, and so does a reply that was
    // tried again by the rail that has its path.
    let seen = pair.target.stop();
    let ended =
        [FaultKind::Reset, FaultKind::Timeout, FaultKind::Unreachable].map(|kind| seen.faults.of(kind));
    assert_eq!(ended.iter().sum::<u64>(), seen.faults.count, "{:?}", seen.faults);
    // The rail is known to be silent after half a second, and the load's window, all of which is on its way
    // by that rail by then, is free after the second for which answers are waited for.
    assert_flows_again(standstill, Duration::from_secs(2));
}

#[test]
fn a_tcp_rail_that_is_cut_under_load_loses_nothing_that_may_be_resent() {
    tcp_rail_is_cut(Cut::Link);
}

#[test]
fn a_tcp_rail_that_drops_all_requests_loses_nothing_that_may_be_resent() {
    tcp_rail_is_cut(Cut::Drop { near: false, far: true });
}

#[test]
fn a_tcp_rail_that_drops_all_answers_loses_nothing_that_may_be_resent() {
    tcp_rail_is_cut(Cut::Drop { near: true, far: false });
}

#[test]
fn a_tcp_rail_that_drops_all_in_both_directions_loses_nothing_that_may_be_resent() {
    tcp_rail_is_cut(Cut::Drop { near: true, far: true });
}
