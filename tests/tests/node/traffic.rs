//! Puts and Gets of every size, policy and family, each byte and event field checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_io::xsk::{CHUNK_BYTES, RECEIVE_BYTES};
use lnet_tests::netns::{Netns, Wiring};
use lnet_tests::node::{
    Account, By, Driven, PINNED_PORTALS, Plan, Putter, Sink, Source, config, losses, nid_v4, nid_v6, process,
    settle_both, start, stop_all,
};
use lnet_user::node::{NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::frame::FIRST_HEADERS_BYTES;
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};

use crate::wakeups::Joined;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of headers in front of the payload of a first frame, over IPv4 and over IPv6.
const HEADERS_BYTES: [usize; 2] = [
    ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + FIRST_HEADERS_BYTES,
    ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + FIRST_HEADERS_BYTES,
];
/// What a chunk takes when sending and when receiving.
const CHUNKS_BYTES: [u32; 2] = [CHUNK_BYTES, RECEIVE_BYTES];

/// A node and what its shards are driven with.
pub(crate) struct Ended {
    pub(crate) node: NodeDriver,
    pub(crate) workers: Vec<Worker>,
}

/// Carries a plan out from a node to another one and checks that nothing is lost or left over. `by` says
/// who drives each shard, of the initiator and then of the target, and is repeated.
pub(crate) fn carry_out(
    plan: Plan,
    source: (NodeDriver, Vec<Worker>),
    target: (NodeDriver, Vec<Worker>),
    by: &[By],
) -> (Ended, Ended) {
    carry_out_over(&[], plan, source, target, by)
}

/// Carries out a plan ([`carry_out`]); what is counted under one of `forgiven` is no loss.
pub(crate) fn carry_out_over(
    forgiven: &[&str],
    plan: Plan,
    source: (NodeDriver, Vec<Worker>),
    target: (NodeDriver, Vec<Worker>),
    by: &[By],
) -> (Ended, Ended) {
    let (ended, mut losses) = carry_out_with_losses(plan, source, target, by);
    losses.retain(|(name, _)| !forgiven.contains(&name.as_str()));
    assert_eq!(losses, []);
    ended
}

/// Carries out a plan ([`carry_out`]); the caller judges what either node has counted as lost.
pub(crate) fn carry_out_with_losses(
    plan: Plan,
    (source, mut source_workers): (NodeDriver, Vec<Worker>),
    (target, target_workers): (NodeDriver, Vec<Worker>),
    by: &[By],
) -> ((Ended, Ended), Vec<(String, u64)>) {
    let plan = Arc::new(plan);
    let shards = source_workers.len();
    let mut by = by.iter().copied().cycle();
    let sources: Vec<_> =
        source_workers.iter_mut().map(|worker| Source::new(&plan, shards, worker)).collect();
    let sinks: Vec<Driven<Sink>> = target_workers
        .into_iter()
        .map(|mut worker| {
            let sink = Sink::post(&plan, target.steering(), &mut worker);
            Driven::start(by.next().unwrap(), worker, sink, |worker, sink| sink.turn(worker))
        })
        .collect();
    let sources: Vec<Driven<Source>> = source_workers
        .into_iter()
        .zip(sources)
        .map(|(worker, source)| {
            Driven::start(by.next().unwrap(), worker, source, |worker, source| source.turn(worker))
        })
        .collect();
    let begun = std::time::Instant::now();
    while !plan.is_done() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut source_workers, _) = stop_all(sources);
    let (mut target_workers, sinks) = stop_all(sinks);
    settle_both(&mut source_workers, &mut target_workers, PATIENCE);
    let all = plan.operations.len();
    let losses = [losses(&source_workers), losses(&target_workers)].concat();
    let (arrived, ended) = (plan.arrived(), plan.ended());
    assert!(plan.is_done(), "of {all} operations {arrived} arrived, {ended} ended; {losses:?}");
    let detours = plan.detours();
    assert!(detours <= all / 2, "{detours} events of {all} operations told of another rail than theirs");
    for (worker, mut sink) in target_workers.iter_mut().zip(sinks) {
        sink.unlink_rest(worker);
    }
    for worker in source_workers.iter().chain(&target_workers) {
        let usage = worker.usage();
        let left = (usage.match_entries, usage.memory_descs, usage.events, usage.messages);
        assert_eq!(left, (0, 0, 0, 0), "{:?} {usage:?}", worker.shard_id());
    }
    let source = Ended { node: source, workers: source_workers };
    ((source, Ended { node: target, workers: target_workers }), losses)
}

/// Payload lengths: the ends, and those of first frames that fill so many chunks to send or to receive, one
/// byte less and one more. The longest IP packet takes 16 to send and 17 to receive, and not all of the last
/// one.
pub(crate) fn sizes() -> Vec<u32> {
    let mut sizes = vec![0, 1, 2, 7, 64, 1000, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX];
    for chunk_bytes in CHUNKS_BYTES {
        for headers_bytes in HEADERS_BYTES {
            for chunks in [1, 2, 3, 9, 16, 17] {
                let boundary = chunk_bytes * chunks - headers_bytes as u32;
                sizes.extend([boundary - 1, boundary, boundary + 1]);
            }
        }
    }
    sizes.extend([4095, 4096, 4097, 8192]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

const PORTALS: [u32; 8] = [9, 10, 11, 12, 13, 14, 15, 16];

struct Case {
    mtu_bytes: u16,
    ipv6: bool,
    /// Modes of the initiator and the target.
    modes: [XdpMode; 2],
    by: [By; 4],
}

impl Case {
    const NATIVE: Self = Self {
        mtu_bytes: 1500,
        ipv6: false,
        modes: [XdpMode::Native; 2],
        by: [By::Application, By::ShardThread, By::ShardThread, By::Application],
    };

    fn check(self) {
        if !crate::privileged() {
            return;
        }
        let netns = Netns::new(Wiring { mtu_bytes: self.mtu_bytes, ..Wiring::default() });
        let [a, b] = [netns.a(), netns.b()].map(|namespace| {
            let interface = namespace.interface();
            if self.ipv6 { nid_v6(interface) } else { nid_v4(interface, 0) }
        });
        let config = |namespace, nid, mode| config(namespace, nid).mode(mode);
        let source = start(netns.a(), &config(netns.a(), a, self.modes[0]));
        let target = start(netns.b(), &config(netns.b(), b, self.modes[1]));
        let plan = Plan::of_sizes(vec![(process(a), process(b))], &PORTALS, &sizes());
        let (source, target) = carry_out(plan, source, target, &self.by);
        for (ended, mode) in [(&source, self.modes[0]), (&target, self.modes[1])] {
            assert_eq!(ended.node.mode(), mode);
            let frames = ended.node.xdp_frames().unwrap();
            for shard in 0..2 {
                let of_shard = frames.slots.iter().filter(|slot| slot.shard == shard);
                assert_ne!(of_shard.map(|slot| slot.frames).sum::<u64>(), 0, "shard {shard}: {frames:?}");
            }
            Account::of(&ended.node, &ended.workers).check();
        }
    }
}

#[test]
fn native_ipv4() {
    Case::NATIVE.check();
}

#[test]
fn native_ipv6() {
    Case { ipv6: true, by: [By::ShardThread; 4], ..Case::NATIVE }.check();
}

#[test]
fn native_ipv4_of_several_buffers() {
    Case { mtu_bytes: 9000, by: [By::Application; 4], ..Case::NATIVE }.check();
}

#[test]
fn native_ipv6_of_several_buffers() {
    Case { mtu_bytes: 9000, ipv6: true, ..Case::NATIVE }.check();
}

#[test]
fn native_ipv4_of_the_largest_mtu() {
    Case { mtu_bytes: 65535, ..Case::NATIVE }.check();
}

#[test]
fn native_ipv6_of_the_largest_mtu() {
    Case { mtu_bytes: 65535, ipv6: true, ..Case::NATIVE }.check();
}

#[test]
fn generic_ipv4() {
    Case { modes: [XdpMode::Generic; 2], ..Case::NATIVE }.check();
}

#[test]
fn generic_ipv6_of_several_buffers() {
    Case { mtu_bytes: 9000, ipv6: true, modes: [XdpMode::Generic; 2], ..Case::NATIVE }.check();
}

#[test]
fn native_and_generic() {
    Case { modes: [XdpMode::Native, XdpMode::Generic], ..Case::NATIVE }.check();
}

#[test]
fn generic_and_native() {
    Case { modes: [XdpMode::Generic, XdpMode::Native], mtu_bytes: 9000, ..Case::NATIVE }.check();
}

/// How often the kernel has taken the CPU from this thread.
fn preemptions() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

/// What arrives while a turn sends has not arrived before it was sent.
#[test]
fn a_round_trip_takes_as_long_as_it_takes() {
    const ROUNDS: usize = 500;
    if !crate::privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    let mut putter = Putter::new(joined.target, &mut worker);
    let counted_ns =
        |worker: &Worker| worker.shard().peers().map(|peer| peer.counters.put_ack.total_ns).sum::<u64>();
    let mut short = Vec::new();
    for _ in 0..ROUNDS {
        let before_ns = counted_ns(&worker);
        let preempted_before = preemptions();
        let begun = Instant::now();
        putter.put(&mut worker, PINNED_PORTALS[0], true);
        while putter.acked < putter.started {
            worker.progress();
            putter.turn(&mut worker);
            assert!(begun.elapsed() < PATIENCE);
        }
        let measured_ns = begun.elapsed().as_nanos() as u64;
        let counted_ns = counted_ns(&worker) - before_ns;
        assert!((1..=measured_ns).contains(&counted_ns), "{counted_ns} of {measured_ns}");
        // A thread that has no CPU sees late what was there in time.
        if counted_ns < measured_ns / 2 && preemptions() == preempted_before {
            short.push((counted_ns, measured_ns));
        }
    }
    assert!(short.len() < ROUNDS / 20, "{} of {ROUNDS}: {:?}", short.len(), &short[..short.len().min(10)]);
}
