//! Fleets: many nodes that discover each other, talk, and lose rails, links and all they knew.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use std::time::Duration;

use lnet_tests::fleet::{Fleet, FleetReport, TwoRails, run};

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

fn behind_routers() -> Fleet {
    Fleet::parse(include_str!("../data/fleets/routers.yaml")).unwrap()
}

/// Each Put and each ACK meets one router, and none is lost.
#[test]
fn nodes_behind_routers_lose_nothing_without_faults() {
    let mut fleet = behind_routers();
    fleet.faults.clear();
    let report = good(&fleet, 1);
    assert_eq!((report.failed, report.dropped_at_routers, report.hops_max), (0, 0, 1), "{report}");
    assert_eq!((report.routes, report.routes_up), (60 * 3 + 6 * 6, report.routes), "{report}");
    assert!(report.forwarded >= 2 * 60 * 60 * 4, "{report}");
}

/// A router that dies is left, and used again when it is back.
#[test]
fn nodes_leave_routers_that_fail_and_come_back_to_them() {
    let fleet = behind_routers();
    for seed in 1..=2 {
        let report = good(&fleet, seed);
        assert!(report.lost_at_routers > 0 && report.routes_down_max > 0, "{report}");
        assert_eq!((report.routes_up, report.looped), (report.routes, 0), "{report}");
        assert_eq!(report.acked + report.failed, report.puts, "{report}");
    }
}

/// Messages that three routers send round and round end soon, and are counted.
#[test]
fn messages_that_go_round_end() {
    let fleet = Fleet::parse(include_str!("../../examples/topologies/router-loops.yaml")).unwrap();
    let report = run(&fleet, 1, measure, |_| {});
    assert_eq!(report.violations, Vec::<String>::new(), "{report}");
    assert_eq!((report.acked, report.failed), (0, report.puts), "{report}");
    assert!(report.looped > 0 && report.hops_max <= 16, "{report}");
}

/// The plot has a line from the first sample to the last one, and a ground for each fault.
#[test]
fn convergence_is_drawn() {
    let path = std::env::temp_dir().join(format!("lnet-fleet-{}.svg", std::process::id()));
    good(&small(), 1).plot(&path).unwrap();
    let drawn = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("42 nodes that discover each other"), "{drawn}");
    let points = drawn.split("<polyline").filter_map(|line| line.split("points=\"").nth(1));
    let most =
        points.map(|points| points.split('"').next().unwrap_or_default().split_whitespace().count()).max();
    assert!(most > Some(20), "{most:?} points");
    assert!(drawn.matches("#E1E1E1").count() >= small().faults.len(), "{drawn}");
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

/// Nodes that share a net with too few others talk to these; what is rare comes once.
#[test]
fn nodes_talk_to_as_many_as_they_reach() {
    let text = "rails: [{name: one}]
groups:
- {name: few, nodes: 3, nis: [{net: xdp, rail: one}]}
- {name: many, nodes: 5, nis: [{net: xdp1, rail: one}]}
- {name: alone, nodes: 1, nis: [{net: xdp2, rail: one}]}
workload: {peers_per_node: 4, puts_per_second: 4, seconds: 20}
";
    let report = good(&Fleet::parse(text).unwrap(), 1);
    assert_eq!((report.pairs, report.failed), (3 * 2 + 5 * 4, 0), "{report}");
    let rare = text.replace("puts_per_second: 4", "puts_per_second: 1e-300");
    let report = run(&Fleet::parse(&rare).unwrap(), 1, measure, |_| {});
    assert_eq!((report.puts, report.acked), (8, 8), "{report}");
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
        // A record of some 1,020 bytes (`lnet-core --test memory`), and what nodes with so few peers have
        // tables for besides.
        assert!((300.0..2000.0).contains(&report.peer_bytes), "{report}");
        assert!((300.0..1024.0).contains(&report.shard_bytes), "{report}");
        report.peer_bytes
    };
    let (few, many) = (of(5), of(15));
    // Few peers share tables of the least size with fewer others.
    assert!((few - many).abs() < 600.0, "{few} {many}");
}

/// More hostile nodes than there are places for discoveries, and friends that come to know each other beside
/// them.
#[test]
fn friends_find_each_other_while_others_answer_nothing() {
    let mut fleet = Fleet::parse(include_str!("../../examples/topologies/hostile.yaml")).unwrap();
    // Fewer nodes than in the example, for a shorter time.
    for (group, nodes) in fleet.groups.iter_mut().zip([20, 80, 40, 20]) {
        group.nodes = nodes;
    }
    fleet.workload.seconds = 12.0;
    let report = run(&fleet, 1, measure, |_| {});
    assert_eq!(report.violations, Vec::<String>::new(), "{report}");
    assert!(report.acked > 0, "{report}");
}

/// Hostile nodes that tell NIDs of others as their own, before these have met and after, and push in names
/// that they make up.
#[test]
fn friends_keep_their_names_while_others_claim_them() {
    for (hostile, seed) in [("lying", 1), ("naming", 2), ("naming", 3)] {
        let text = format!(
            "
rails:
- {{name: one}}
- {{name: two}}
groups:
- name: friends
  nodes: 8
  nis:
  - {{net: tcp, rail: one}}
  - {{net: tcp1, rail: two}}
- name: hostile
  nodes: 12
  hostile: {hostile}
  nis:
  - {{net: tcp, rail: one}}
  - {{net: tcp1, rail: two}}
workload: {{peers_per_node: 5, puts_per_second: 4, seconds: 6}}
"
        );
        let report = run(&Fleet::parse(&text).unwrap(), seed, measure, |_| {});
        assert_eq!(report.violations, Vec::<String>::new(), "{hostile}: {report}");
        assert!(report.acked > 0 && report.answered > 0, "{report}");
    }
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

/// A rail fails, which nodes see, and links that nothing tells of: all is well between them and afterwards.
/// With this seed every pair has talked before the rail fails: else a first message to a NID on it ends.
#[test]
fn a_thousand_nodes_come_to_know_each_other() {
    let fleet = Fleet::parse(include_str!("../../examples/topologies/two-rails.yaml")).unwrap();
    let report = good(&fleet, 2);
    assert_eq!((report.nodes, report.failed, report.late_traffic), (1000, 0, 0), "{report}");
    assert!(report.converged_s < Some(30.0) && report.resends > 0, "{report}");
}

const SECOND: Duration = Duration::from_secs(1);

/// Nothing is lost; the lossy rail carries the smaller part, and its half once it is well again.
#[test]
fn a_rail_that_loses_a_tenth_carries_the_smaller_part_until_it_is_well() {
    for seed in 1..=50 {
        let mut nodes = TwoRails::new(seed);
        nodes.run(SECOND);
        nodes.sent = [0; 2];
        nodes.run(SECOND / 2);
        assert_eq!(nodes.sent[0], nodes.sent[1], "seed {seed}");
        let counters = nodes.counters();
        assert_eq!((counters.paths_lossy, counters.paths_slow), (0, 0), "seed {seed}");
        nodes.lost_percent = [10, 0];
        nodes.sent = [0; 2];
        nodes.run(SECOND * 3);
        let [lossy, whole] = nodes.sent;
        assert!(lossy * 2 < whole, "seed {seed}: {lossy} by the lossy rail, {whole} by the other one");
        assert!(nodes.counters().paths_lossy > 0, "seed {seed}");
        nodes.lost_percent = [0; 2];
        nodes.run(SECOND * 2);
        nodes.sent = [0; 2];
        nodes.run(SECOND);
        let [mended, whole] = nodes.sent;
        assert_eq!(mended, whole, "seed {seed}: by the mended rail, by the other one");
        assert_eq!((nodes.health(0), nodes.health(1)), (1000, 1000), "seed {seed}");
        nodes.finish();
        assert_eq!(nodes.failed, 0, "seed {seed}");
    }
}

/// A rail that takes longer and longer, and loses nothing, is left, and carries its half once it is well
/// again. At once it counts as silent, bit by bit as slow.
#[test]
fn a_rail_that_lags_is_left_until_it_is_well() {
    const LAG_NS: u64 = 8_000_000;
    for seed in 1..=20 {
        let mut nodes = TwoRails::new(seed);
        nodes.run(SECOND);
        let [well, _] = nodes.latency_ns;
        let steps = if seed % 2 == 0 { 1 } else { 80 };
        for step in 1..=steps {
            nodes.latency_ns[0] = LAG_NS * step / steps;
            nodes.run(SECOND / 20);
        }
        nodes.sent = [0; 2];
        nodes.run(SECOND * 3);
        let [slow, fast] = nodes.sent;
        assert!(slow * 2 < fast, "seed {seed}: {slow} by the slow rail, {fast} by the other one");
        assert!(steps == 1 || nodes.counters().paths_slow > 0, "seed {seed}");
        nodes.latency_ns[0] = well;
        nodes.run(SECOND * 3);
        nodes.sent = [0; 2];
        nodes.run(SECOND);
        let [mended, other] = nodes.sent;
        assert!(
            mended.abs_diff(other) < 2,
            "seed {seed}: {mended} by the mended rail, {other} by the other one"
        );
        nodes.finish();
        assert_eq!(nodes.failed, 0, "seed {seed}");
    }
}

/// Neither is left for what both lose; each may be silent for a moment.
#[test]
fn rails_that_lose_alike_are_both_used() {
    let mut found_lossy = 0;
    for seed in 1..=20 {
        let mut nodes = TwoRails::new(seed);
        nodes.run(SECOND);
        nodes.sent = [0; 2];
        nodes.lost_percent = [10; 2];
        nodes.run(SECOND * 3);
        found_lossy += nodes.counters().paths_lossy;
        let [one, other] = nodes.sent;
        assert!(one.min(other) * 8 > one + other, "seed {seed}: {one}, {other}");
        nodes.finish();
        assert_eq!(nodes.failed, 0, "seed {seed}");
    }
    assert!(found_lossy < 8, "in a minute one looked worse {found_lossy} times");
}

/// The other rail is cut, and comes back: until then there is no better one, although messages look whether
/// it answers.
#[test]
fn a_lossy_rail_is_used_while_it_is_the_only_one() {
    for seed in 1..=20 {
        let mut nodes = TwoRails::new(seed);
        nodes.run(SECOND);
        nodes.lost_percent = [10, 100];
        nodes.run(SECOND / 2);
        nodes.sent = [0; 2];
        nodes.run(SECOND * 4);
        let [lossy, cut] = nodes.sent;
        assert!(cut * 20 < lossy, "seed {seed}: {lossy} by the lossy rail, {cut} by the one that is cut");
        nodes.lost_percent = [10, 0];
        nodes.run(SECOND * 3);
        nodes.sent = [0; 2];
        nodes.run(SECOND * 2);
        let [lossy, whole] = nodes.sent;
        assert!(lossy * 2 < whole, "seed {seed}: {lossy} by the lossy rail, {whole} by the other one");
        nodes.finish();
        assert!(nodes.failed < 64, "seed {seed}: {} failed", nodes.failed);
    }
}

/// Two NIs of each node on one net, one of which is slower, and more to send than they carry: what is under
/// way by the slower one holds its credits for longer, so each carries what it can. An acknowledgement comes
/// back by the faster one.
#[test]
fn rails_of_unequal_speed_carry_their_share() {
    const FAST_NS: u64 = 1_000_000;
    for (times, seed) in (1..=4).flat_map(|times| (1..=2).map(move |seed| (times, seed))) {
        let mut nodes = TwoRails::on_one_net(seed);
        nodes.is_busy = true;
        nodes.latency_ns = [FAST_NS; 2];
        nodes.run(SECOND);
        let slow = usize::from(seed % 2 == 0);
        nodes.latency_ns[slow] *= times;
        nodes.run(SECOND);
        nodes.sent = [0; 2];
        nodes.run(SECOND * 2);
        let [by_slow, by_fast] = [nodes.sent[slow], nodes.sent[1 - slow]];
        // There and back by the fast one takes twice its time, by the slow one that and the own.
        let (share, expected) = (by_slow * 1000 / (by_slow + by_fast), 2000 / (3 + times));
        assert!(
            share.abs_diff(expected) < 30,
            "seed {seed}, {times} times slower: {by_slow} by the slow rail, {by_fast} by the fast one"
        );
        assert_eq!((nodes.health(0), nodes.health(1)), (1000, 1000), "seed {seed}");
        nodes.finish();
        assert_eq!(nodes.failed, 0, "seed {seed}");
    }
}
