//! Fleets: many nodes that discover each other, talk, and lose rails.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use lnet_tests::fleet::{Fleet, FleetReport, run};

fn small() -> Fleet {
    Fleet::parse(include_str!("../data/fleets/small.yaml")).unwrap()
}

fn good(fleet: &Fleet, seed: u64) -> FleetReport {
    let report = run(fleet, seed, |_| {});
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
    let told = |seed| run(&small(), seed, |_| {}).to_string();
    assert_eq!(told(3), told(3));
    assert_ne!(told(3), told(4));
}
