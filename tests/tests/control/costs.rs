//! What an idle daemon costs, and how soon it answers.

use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, require_privilege};

use crate::run::{Daemon, Directory, Two, program};

/// Processor time that a process has taken.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // The kernel tells hundredths of seconds.
    Duration::from_millis(10) * (fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap())
}

/// Bytes of its own that a process has in memory: pages of its program are not counted, of which a build that
/// is not optimised has many.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (kib("RssAnon:") + kib("RssShmem:")) << 10
}

fn resident_kib(pid: u32) -> u64 {
    resident_bytes(pid) >> 10
}

/// Times of a command, in order.
fn times(daemon: &Daemon, words: &str, count: usize, rest: Duration) -> Vec<Duration> {
    program("lnetctl");
    let mut times: Vec<_> = (0..count)
        .map(|_| {
            std::thread::sleep(rest);
            let begun = Instant::now();
            daemon.good(words);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

/// What a shard may become is in its limits; what it takes follows from what it has had to do.
#[test]
fn shards_without_work_take_little_memory() {
    const OF_TWO_KIB: u64 = 16 << 10;
    const OF_ONE_MORE_KIB: u64 = 5 << 10;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let resident_kib = [2, 8, 16].map(|shards| {
        let options = format!("--shards {shards} --mode socket --configure");
        let daemon = Daemon::start(Directory::new(), Some(netns.a()), &options);
        daemon.good(&format!("net add --net xdp --if {}", netns.a().interface().name));
        (shards, resident_kib(daemon.pid()))
    });
    println!("shards and their KiB, with an NI over sockets: {resident_kib:?}");
    let (_, of_two) = resident_kib[0];
    assert!(of_two <= OF_TWO_KIB, "{resident_kib:?}");
    for (shards, resident) in &resident_kib[1..] {
        assert!((resident - of_two) / (shards - 2) <= OF_ONE_MORE_KIB, "{resident_kib:?}");
    }
}

/// Frames for rings are in memory from the start, as many as `--memory` says. What many shards take besides
/// follows from their use.
#[test]
fn many_shards_with_rings_take_little_memory_besides_their_frames() {
    const SHARDS: u64 = 64;
    const FRAMES_BYTES: u64 = 720 << 20;
    const OF_EACH_BYTES: u64 = 8 << 20;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { queues: 2, ..Wiring::default() });
    let options = format!("--shards {SHARDS} --memory {FRAMES_BYTES} --configure");
    let daemon = Daemon::start(Directory::new(), Some(netns.a()), &options);
    daemon.good(&format!("net add --net xdp --if {}", netns.a().interface().name));
    assert!(daemon.good("net show -v").contains("active mode: native"));
    let besides_bytes = resident_bytes(daemon.pid()).saturating_sub(FRAMES_BYTES);
    println!("{SHARDS} shards with rings: {} MiB besides their frames", besides_bytes >> 20);
    assert!(besides_bytes < SHARDS * OF_EACH_BYTES, "{besides_bytes} bytes");
    daemon.stop();
}

#[test]
fn an_idle_daemon_costs_little_and_answers_soon() {
    const MEMORY_KIB: u64 = 68 << 10;
    const REST: Duration = Duration::from_secs(4);
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "--memory 68M");
    two.a.good("lnet configure");
    let unconfigured_kib = resident_kib(two.a.pid());
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        for interface in namespace.interfaces() {
            daemon.good(&format!("net add --net xdp --if {} --mode native", interface.name));
        }
    }
    let [_, b] = two.nids(0);
    two.a.good(&format!("ping {b}"));
    let before = processor_time(two.a.pid());
    std::thread::sleep(REST);
    let share = (processor_time(two.a.pid()) - before).as_secs_f64() / REST.as_secs_f64();
    let besides_kib = resident_kib(two.a.pid()).saturating_sub(MEMORY_KIB);
    let shows = times(&two.a, "net show", 41, Duration::from_millis(5));
    let pings = times(&two.a, &format!("ping {b}"), 41, Duration::from_millis(25));
    println!(
        "idle: {:.2} % of a CPU, {besides_kib} KiB besides the frames, {unconfigured_kib} KiB without NIs; \
         `lnetctl net show` p50 {:?} max {:?}; `lnetctl ping` after a rest p50 {:?} max {:?}",
        share * 100.0,
        shows[20],
        shows[40],
        pings[20],
        pings[40]
    );
    // Other programs run here, and this one is not optimised.
    assert!(share < 0.05, "{share}");
    assert!(besides_kib < 64 << 10, "{besides_kib} KiB");
    assert!(shows[20] < Duration::from_millis(200), "{shows:?}");
    assert!(pings[20] < Duration::from_millis(500), "{pings:?}");
}
