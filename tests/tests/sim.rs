//! The simulator: some hundred seeds without a violation, and for each bug a seed and a checker that find it.
//!
//! `cargo xtask sim` runs more of them, and faster.

use std::sync::Mutex;

#[cfg(feature = "sabotage")]
use lnet_tests::sim::Bug;
use lnet_tests::sim::{self, Counts, Fault, Options, Tracing};

const RUNS: u64 = 300;

#[test]
fn no_checker_finds_anything_and_every_fault_is_injected() {
    let sums = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let sums = &sums;
            scope.spawn(move || {
                for seed in (1..=RUNS).filter(|seed| seed % 2 == worker) {
                    let outcome = sim::run(seed, &Options::DEFAULT);
                    let violation = outcome.violation;
                    assert!(violation.is_none(), "{violation:?}; `cargo xtask sim --seed {seed} --trace`");
                    *sums.lock().unwrap() += &outcome.counts;
                }
            });
        }
    });
    let counts = sums.into_inner().unwrap();
    assert_eq!(counts.runs, RUNS);
    for fault in Fault::ALL {
        assert!(counts.injected(fault) > 0, "{fault:?} did not happen:\n{counts}");
    }
    assert!(counts.lent > 0 && counts.resumed > 0 && counts.refused > 0 && counts.proven > 0, "{counts}");
}

/// Nothing is lost and no operation fails, with two NIs on one net as with one on each of two.
#[test]
fn a_node_with_a_cut_rail_loses_nothing() {
    let options = Options { cut: true, ..Options::DEFAULT };
    for seed in 1..=50 {
        let outcome = sim::run(seed, &options);
        let violation = outcome.violation;
        assert!(violation.is_none(), "{violation:?}; `cargo xtask sim --cut --seed {seed} --trace`");
        assert_eq!(outcome.counts.injected(Fault::Cut), 1, "seed {seed}");
    }
}

/// The level `unit` of `cargo xtask test` runs it in a build with the feature.
#[cfg(feature = "sabotage")]
#[test]
fn each_bug_is_found_by_a_checker_that_is_there_for_it() {
    // `cargo xtask sim --bugs` shows the first seeds.
    for bug in Bug::ALL {
        let options = Options { bug: Some(bug), ..Options::DEFAULT };
        let finds = |seed| {
            sim::run(seed, &options).violation.is_some_and(|found| bug.checkers().contains(&found.checker))
        };
        assert!((1..=100).any(finds), "{} is not found by: {}", bug.name(), bug.checkers().join(", "));
    }
}

#[test]
fn a_seed_says_all() {
    let lines = |seed| sim::run(seed, &Options { tracing: Tracing::Last(1000), ..Options::DEFAULT }).lines;
    for seed in 5..8 {
        let first = lines(seed);
        assert!(!first.is_empty());
        assert!(first == lines(seed), "two runs of seed {seed} differ");
    }
}
