//! The simulator: some hundred seeds without a violation, and for each bug a seed and a checker that find it.
//!
//! `cargo xtask sim` runs more of them, and faster.

use std::sync::Mutex;

use lnet_core::stats::DropReason;
use lnet_tcp_proto::SocklndEvent;
#[cfg(feature = "sabotage")]
use lnet_tests::sim::Bug;
use lnet_tests::sim::{self, Counts, Fault, Hostile, Hostility, NetKind, Options, Tracing};

const CUT: Options = Options { cut: true, ..Options::DEFAULT };
const NARROW: Options = Options { narrow: Some(true), ..Options::DEFAULT };
/// Options under which seeds are what they were before there were narrow links.
const WIDE: Options = Options { narrow: Some(false), ..Options::DEFAULT };

/// Runs seeds in which no checker finds anything and every fault of the net is injected.
fn run_all(net: NetKind, runs: u64) -> Counts {
    let options = Options { net, ..Options::DEFAULT };
    let sums = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let sums = &sums;
            scope.spawn(move || {
                for seed in (1..=runs).filter(|seed| seed % 2 == worker) {
                    let outcome = sim::run(seed, &options);
                    let (violation, net) = (outcome.violation, net.name());
                    let again = format!("`cargo xtask sim --net {net} --seed {seed} --trace`");
                    assert!(violation.is_none(), "{violation:?}; {again}");
                    *sums.lock().expect("no seed has failed") += &outcome.counts;
                }
            });
        }
    });
    let counts = sums.into_inner().expect("no seed has failed");
    assert_eq!(counts.runs, runs);
    for fault in Fault::ALL.into_iter().filter(|fault| fault.can_happen(net)) {
        assert!(counts.injected(fault) > 0, "{fault:?} did not happen:\n{counts}");
    }
    assert!(counts.lent > 0 && counts.resumed > 0 && counts.proven > 0, "{counts}");
    counts
}

#[test]
fn frames_that_are_lost_doubled_and_damaged_harm_nothing() {
    let counts = run_all(NetKind::Xdp, 300);
    assert!(counts.refused > 0 && counts.unserved > 0, "{counts}");
}

#[test]
fn streams_that_break_and_stop_and_come_in_pieces_harm_nothing() {
    let counts = run_all(NetKind::Tcp, 80);
    use SocklndEvent::{
        Closed, DialFailed, Duplicate, HandshakeTimeout, RaceLost, Refused, Restarted, Stalled,
    };
    for event in [Closed, DialFailed, Duplicate, HandshakeTimeout, RaceLost, Refused, Restarted, Stalled] {
        assert!(counts.connections(event) > 0, "{event:?} did not happen:\n{counts}");
    }
}

/// Nothing is lost and no operation fails, with two NIs on one net as with one on each of two.
#[test]
fn a_node_with_a_cut_rail_loses_nothing() {
    for seed in 1..=50 {
        let outcome = sim::run(seed, &CUT);
        let violation = outcome.violation;
        assert!(violation.is_none(), "{violation:?}; `cargo xtask sim --cut --seed {seed} --trace`");
        assert_eq!(outcome.counts.injected(Fault::Cut), 1, "seed {seed}");
    }
}

/// Long messages and short ones pass, and no operation fails: nothing tells a sender but what is lost.
#[test]
fn a_link_that_drops_long_frames_loses_no_message() {
    let mut sums = Counts::default();
    for seed in 1..=20 {
        let outcome = sim::run(seed, &NARROW);
        let violation = outcome.violation;
        assert!(violation.is_none(), "{violation:?}; `cargo xtask sim --narrow --seed {seed} --trace`");
        sums += &outcome.counts;
    }
    assert!(sums.injected(Fault::Narrow) > 0 && sums.paths_narrowed > 0, "{sums}");
}

/// Nodes on two nets, with routers between them that are slow, die and return, and have little room: what can
/// arrive does, and all that a router has for messages is there again in the end.
fn behind_routers(net: NetKind, seeds: impl IntoIterator<Item = u64>) {
    let options = Options { net, routers: true, ..Options::DEFAULT };
    let mut sums = Counts::default();
    for seed in seeds {
        let outcome = sim::run(seed, &options);
        let (violation, net) = (outcome.violation, net.name());
        assert!(
            violation.is_none(),
            "{violation:?}; `cargo xtask sim --net {net} --routers --seed {seed} --trace`"
        );
        sums += &outcome.counts;
    }
    assert!(sums.injected(Fault::RouterDead) > 0 && sums.proven > 0, "{sums}");
    assert!(sums.forwarded > 0 && sums.awaited_buffers > 0, "{sums}");
    // Frames alone carry parts of messages.
    assert_eq!(sums.cuts > 0, net == NetKind::Xdp, "{sums}");
}

#[test]
fn nodes_behind_routers_lose_nothing_that_can_arrive_over_frames() {
    // The last one gave up a message that lasted too long, and acknowledged it.
    behind_routers(NetKind::Xdp, (1..=60).chain([234]));
}

#[test]
fn nodes_behind_routers_lose_nothing_that_can_arrive_over_streams() {
    behind_routers(NetKind::Tcp, 1..=30);
}

/// Seeds that were drawn at random and failed once.
const FOUND: [(Options, &str, u64); 15] = [
    (Options::DEFAULT, "", 77_121_785),
    (Options::DEFAULT, "", 610_005_624),
    (Options::DEFAULT, "", 64_048_766_567),
    (Options::DEFAULT, "", 605_377_988_241),
    (Options::DEFAULT, "", 605_377_989_557),
    (Options::DEFAULT, "", 605_377_990_936),
    (Options::DEFAULT, "", 605_377_990_970),
    (Options::DEFAULT, "", 605_378_000_640),
    (WIDE, "--narrow=false ", 76_985_291_534),
    (Options::DEFAULT, "", 170_435_718_845),
    (Options::DEFAULT, "", 170_435_721_411),
    (Options::DEFAULT, "", 924_440_143_786),
    (CUT, "--cut ", 777_000_115_819),
    (CUT, "--cut ", 777_000_116_701),
    (CUT, "--cut ", 777_000_118_529),
];

#[test]
fn what_was_found_by_chance_stays_mended() {
    for (options, words, seed) in &FOUND {
        let violation = sim::run(*seed, options).violation;
        assert!(violation.is_none(), "{violation:?}; `cargo xtask sim {words}--seed {seed} --trace`");
    }
}

/// Seeds of each kind of hostile node, on each net.
const ATTACKS: u64 = 10;

/// Fails unless the mechanisms that a kind of hostile node is to come up against have had to do with it, in
/// some of the seeds.
fn expect_felt(net: NetKind, hostility: Hostility, sums: &Counts) {
    let responses = ("too many responses", sums.dropped(DropReason::ResponsesFull));
    let evicted = ("responses evicted", sums.evicted_responses);
    let waiting = ("too many messages that wait", sums.dropped(DropReason::DelayedFull));
    let short = ("NIs without a credit for a message", sums.short_interfaces);
    let passed_on = ("credits passed on", sums.passed_on);
    let visits = ("visits evicted", sums.evicted_visits);
    let stalled = ("messages that stop", sums.connections(SocklndEvent::Stalled));
    let felt: &[(&str, u64)] = match (hostility, net) {
        (Hostility::Deaf, NetKind::Xdp) => &[responses],
        (Hostility::Deaf, NetKind::Tcp) => &[responses, waiting, stalled],
        (Hostility::Halving, NetKind::Xdp) => &[responses, waiting],
        (Hostility::Halving, NetKind::Tcp) => &[stalled],
        (Hostility::Names, _) => &[short, passed_on, responses, evicted],
        (Hostility::Lies, _) => &[short, passed_on, visits],
        (Hostility::Silence, NetKind::Xdp) => &[short, passed_on, responses],
        (Hostility::Silence, NetKind::Tcp) => &[stalled],
    };
    for (what, count) in felt.iter().chain(&[("messages delayed", sums.delayed)]) {
        assert!(*count > 0, "{net:?}, {hostility:?}: {what} did not happen:\n{sums}");
    }
}

/// Hostile nodes of each kind ask for as much as they can.
fn beside_hostile_nodes(net: NetKind) {
    std::thread::scope(|scope| {
        for hostility in Hostility::ALL {
            scope.spawn(move || {
                let options = Options { net, hostile: Some(Hostile::Each(hostility)), ..Options::DEFAULT };
                let mut sums = Counts::default();
                for seed in 1..=ATTACKS {
                    let outcome = sim::run(seed, &options);
                    let (violation, net, class) = (outcome.violation, net.name(), hostility.name());
                    let again =
                        format!("`cargo xtask sim --net {net} --hostile={class} --seed {seed} --trace`");
                    assert!(violation.is_none(), "{violation:?}; {again}");
                    assert_eq!(outcome.counts.injected(Fault::Attack), 1, "{again}");
                    sums += &outcome.counts;
                }
                let has_names = matches!(hostility, Hostility::Names | Hostility::Lies | Hostility::Silence);
                assert_eq!(sums.injected(Fault::Spoken) > 0, has_names, "{hostility:?}: {sums}");
                assert_eq!(sums.pushes > 0, hostility == Hostility::Lies, "{hostility:?}: {sums}");
                expect_felt(net, hostility, &sums);
            });
        }
    });
}

#[test]
fn friends_are_answered_while_others_are_hostile_over_frames() {
    beside_hostile_nodes(NetKind::Xdp);
}

#[test]
fn friends_are_answered_while_others_are_hostile_over_streams() {
    beside_hostile_nodes(NetKind::Tcp);
}

/// The level `unit` of `cargo xtask test` runs it in a build with the feature.
#[cfg(feature = "sabotage")]
#[test]
fn each_bug_is_found_by_a_checker_that_is_there_for_it() {
    // `cargo xtask sim --bugs` shows the first seeds.
    for bug in Bug::ALL {
        let finds = |seed| {
            sim::run(seed, &bug.options())
                .violation
                .is_some_and(|found| bug.checkers().contains(&found.checker))
        };
        assert!((1..=400).any(finds), "{} is not found by: {}", bug.name(), bug.checkers().join(", "));
    }
}

#[test]
fn a_seed_says_all() {
    for net in [NetKind::Xdp, NetKind::Tcp] {
        let options = Options { net, tracing: Tracing::Last(1000), ..Options::DEFAULT };
        for seed in 5..8 {
            let first = sim::run(seed, &options).lines;
            assert!(!first.is_empty());
            assert!(first == sim::run(seed, &options).lines, "two runs of seed {seed} differ");
        }
    }
}
