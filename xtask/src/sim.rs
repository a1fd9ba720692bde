//! `cargo xtask sim`: whole nodes over a fabric that loses, doubles, delays and damages frames.
//!
//! The simulator is a program of the tests; what it prints and how it ends is passed on.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use xtask::command::succeed;

use crate::cargo;

/// What to simulate.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask sim --runs 10000
  cargo xtask sim --seed 77 --trace
  cargo xtask sim --bug credit-lost
  cargo xtask sim --bugs")]
pub(crate) struct Options {
    /// The first seed; each run takes the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Nodes, instead of as many as the seed says
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=4))]
    nodes: Option<u8>,
    /// Only runs in which a rail is cut and nothing may be lost, which are a sixth of all
    #[arg(long)]
    cut: bool,
    /// Switch on a bug that a checker is to find; a wrong name shows all
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// Switch on each bug in turn, and show which seed and checker find it
    #[arg(long, conflicts_with = "bug")]
    bugs: bool,
    /// Print all that happens in the run of the first seed
    #[arg(long)]
    trace: bool,
}

/// Builds the simulator in release and runs it.
///
/// # Errors
/// When the build fails, or a checker finds something (with `--bugs`: when a bug is not found by its own).
pub(crate) fn sim(root: &Path, options: &Options) -> Result<()> {
    let program = cargo::build_binary_with(root, "lnet-tests", "lnet-sim", &["--features", "sabotage"])?;
    let mut command = Command::new(program);
    command.args(["--seed", &options.seed.to_string(), "--runs", &options.runs.to_string()]);
    if let Some(nodes) = options.nodes {
        command.args(["--nodes", &nodes.to_string()]);
    }
    command.args(options.cut.then_some("--cut"));
    if let Some(bug) = &options.bug {
        command.args(["--bug", bug]);
    }
    command.args(options.bugs.then_some("--bugs")).args(options.trace.then_some("--trace"));
    succeed(&mut command)
}
