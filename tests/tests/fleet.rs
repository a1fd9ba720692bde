//! Fleets: many nodes that discover each other, talk, and lose rails, links and all they knew.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use lnet_tests::fleet::{Fleet, FleetReport, run};

fn small() -> Fleet {
    Fleet::parse(include_str!("../data/fleets/small.yaml")).unwrap()
}

fn measure(of: &mut dyn FnMut()) -> i64 {
    allocation_counter::measure(of).bytes_current
}

#[track_caller]
fn good(fleet: &Fleet, seed: u64) -> FleetReport {
    let report = run(fleet, seed, measure, |_| {});
    assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}\n{report}");
    assert!(report.converged_s.is_some(), "seed {seed}\n{report}");
    report
}

#[test]
fn all_come_to_know_each_other_and_lose_nothing_twice() {
    let fleet = small();
    for seed in 1..=6 {
        let report = good(&fleet, seed);
        assert!(report.resends > 0 && report.recovery_pings > 0, "nothing was cut\n{report}");
        assert!(report.retransmissions > 0 && report.restarts == 2, "{report}");
        assert_eq!(report.acked + report.failed, report.puts, "{report}");
    }
}

/// Without faults nothing fails, and once all know each other discovery is quiet.
#[test]
fn discovery_is_quiet_once_nothing_changes() {
    let mut fleet = small();
    fleet.faults.clear();
    for seed in 1..=6 {
        let report = good(&fleet, seed);
        assert_eq!((report.failed, report.late_traffic, report.resends), (0, 0, 0), "seed {seed}\n{report}");
        assert!(report.converged_s < Some(20.0), "seed {seed}\n{report}");
    }
}

#[test]
fn a_run_follows_from_its_seed() {
    let told = |seed| run(&small(), seed, measure, |_| {}).to_string();
    assert_eq!(told(3), told(3));
    assert_ne!(told(3), told(4));
}

/// A message that goes by a slow link takes longer.
#[test]
fn links_have_their_own_latency() {
    let text = "rails: [{name: one, latency_us: 100}]
groups:
- {name: near, nodes: 2, nis: [{net: xdp, rail: one}]}
workload: {peers_per_node: 1, puts_per_second: 1, seconds: 20}
";
    let far = text.replace("rail: one}]", "rail: one, latency_us: 400000}]");
    let known_at = |text: &str| good(&Fleet::parse(text).unwrap(), 1).converged_s.unwrap();
    // A ping, its reply, a push and its acknowledgement cross two links each.
    assert!(known_at(&far) > known_at(text) + 2.0, "{} {}", known_at(&far), known_at(text));
}

/// Peers of two NIDs each, and more of them: the measure is of a peer, and not of the run.
#[test]
fn what_a_peer_takes_is_measured() {
    let of = |peers: u32| {
        let text = format!(
            "rails: [{{name: one}}]
groups:
- {{name: all, nodes: 40, nis: [{{net: xdp, rail: one}}, {{net: xdp1, rail: one}}]}}
workload: {{peers_per_node: {peers}, puts_per_second: 8, seconds: 20}}
"
        );
        let report = good(&Fleet::parse(&text).unwrap(), 1);
        assert!((300.0..1400.0).contains(&report.peer_bytes), "{report}");
        assert!((300.0..1024.0).contains(&report.shard_bytes), "{report}");
        report.peer_bytes
    };
    let (few, many) = (of(5), of(15));
    assert!((few - many).abs() < 300.0, "{few} {many}");
}

/// The topologies that are there as examples are ones.
#[test]
fn examples_are_understood() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/topologies");
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let fleets: Vec<_> =
        names.map(|path| Fleet::parse(&std::fs::read_to_string(path).unwrap()).unwrap()).collect();
    assert!(fleets.len() >= 4, "{}", fleets.len());
}
