//! What a node costs that has nothing to do: one test, in a process of its own. Needs root, and the objects
//! that `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_io::xsk::{CHUNK_BYTES, RingSizes};
use lnet_tests::netns::{NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege};
use lnet_tests::node::{config, nid_v4};
use lnet_user::Buffer;
use lnet_user::api::{Ack, Lnet, Target, Threads};
use lnet_user::node::{DAEMON_LIMITS, NiConfig, XdpMode};
use lnet_user::runtime::Idle;

const PORTAL: u32 = 9;

/// Times that all threads of an idle node sleep in three seconds, at most: those that control it do so 30
/// times a second, and shards hardly ever, however many there are.
const MOST_SLEEPS: u64 = 90;

/// Kibibytes that this process has in memory, but for what lies in its file.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    Duration::from_millis(10) * (fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap())
}

/// Times that the threads of this process went to sleep.
fn sleeps() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let statuses = threads.map(|thread| std::fs::read_to_string(thread.path().join("status")).unwrap());
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    statuses.map(count).sum()
}

/// A node with the limits of a daemon: shards that sleep as soon as there is nothing to do, an NI over rings
/// and one over sockets.
fn start(namespace: &Namespace, shards: u32) -> Lnet {
    let modes = [XdpMode::Native, XdpMode::Socket];
    let nis = namespace.interfaces().iter().zip(0..).zip(modes).map(|((interface, rail), mode)| {
        NiConfig::new(nid_v4(interface, rail), &interface.name).mode(Some(mode))
    });
    let base = config(namespace, nid_v4(namespace.interface(), 0));
    let mut config = base.limits(DAEMON_LIMITS).rings(RingSizes::default()).nis(nis.collect());
    config.shards = shards;
    let threads = Threads::new().idle(Idle::new(Duration::ZERO));
    let lnet = enter(namespace, || Lnet::start_on(&config, &threads).unwrap());
    lnet.open().unwrap();
    lnet
}

/// The times of single Puts after a rest, from the call to the acknowledgement, in order.
fn after_rests(near: &Lnet, far: &Lnet, rail: u16, namespace: &Namespace) -> Vec<Duration> {
    let (source, sink) = (near.shard(0).unwrap(), far.shard(0).unwrap());
    let mut events = source.create_event_queue(16).unwrap();
    let arrivals = sink.create_event_queue(256).unwrap();
    let to = nid_v4(&namespace.interfaces()[usize::from(rail)], rail);
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let target = MdSpec::new(64, Threshold::Count(200), options, arrivals.handle());
    let entry = EntrySpec::new(PORTAL, rail.into());
    sink.attach(&entry, &target, Buffer::zeroed(64)).unwrap().detach();
    let mut times: Vec<Duration> = (0..41)
        .map(|_| {
            let md = MdSpec::new(64, Threshold::Count(2), MdOptions::NONE, events.handle());
            let md = source.bind(&md, Buffer::zeroed(64)).unwrap();
            std::thread::sleep(Duration::from_millis(25));
            let begun = Instant::now();
            md.put(&Target::new(to, PORTAL, rail.into()), Ack::Wanted, 0).start().unwrap();
            while events.next_blocking(None).unwrap().unwrap().event.kind() != EventKind::Ack {}
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

/// Three seconds in which nothing is to be done: the processor time of this process, its share of a CPU, and
/// how often its threads went to sleep.
fn rest() -> (Duration, f64, u64) {
    std::thread::sleep(Duration::from_millis(300));
    let (begun, used, slept) = (Instant::now(), processor_time(), sleeps());
    std::thread::sleep(Duration::from_secs(3));
    let used = processor_time() - used;
    (used, used.as_secs_f64() / begun.elapsed().as_secs_f64(), sleeps() - slept)
}

#[test]
fn a_node_that_is_idle_costs_little() {
    const MOST_KIB: u64 = 12 << 10;
    if !require_privilege("nodes over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let before_kib = resident_kib();
    let near = start(netns.a(), 2);
    let (used, share, slept) = rest();
    let census = near.with_node(|node| node.frames()).unwrap();
    let umem_kib = u64::from(census.user + census.kernel) * u64::from(CHUNK_BYTES) / 1024;
    let resident_kib = resident_kib();
    let besides_kib = resident_kib.saturating_sub(umem_kib);
    println!(
        "resident: {before_kib} KiB before, {resident_kib} KiB with the node, {umem_kib} KiB of these its UMEM"
    );
    println!("idle: {slept} sleeps, {:.2} % of a CPU", share * 100.0);
    assert!(slept <= MOST_SLEEPS, "{slept} sleeps in 3 s");
    // The kernel counts in steps of 10 ms, and a build that is not optimised takes its time.
    assert!(share < 0.05, "{used:?} of processor time in 3 s");
    assert!(besides_kib < MOST_KIB, "{besides_kib} KiB besides the UMEM");

    let far = start(netns.b(), 2);
    for rail in [0, 1] {
        let times = after_rests(&near, &far, rail, netns.b());
        let (p50, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("after a rest, with acknowledgement, by rail {rail}: p50 {p50:?}, most {most:?}");
        // There and back, in a build that is not optimised, on a machine that others use.
        assert!(p50 < Duration::from_millis(5), "{times:?}");
    }
    drop((near, far));
    let _many = start(netns.a(), 8);
    let (_, _, slept) = rest();
    println!("idle, with eight shards: {slept} sleeps");
    assert!(slept <= MOST_SLEEPS, "{slept} sleeps in 3 s");
}
