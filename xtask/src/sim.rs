//! `cargo xtask sim`: whole nodes over a fabric that loses, doubles, delays and damages frames, or over
//! streams that break, stop and come in pieces.
//!
//! The simulator is a program of the tests, which has the options; what it prints and how it ends is passed
//! on.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use xtask::command::succeed;

use crate::cargo;

/// What to simulate.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_help = "Examples:
  cargo xtask sim --runs 10000
  cargo xtask sim --net tcp --runs 10000
  cargo xtask sim --seed 77 --trace
  cargo xtask sim --net tcp --hostile=names --runs 100
  cargo xtask sim --minutes 60 --cpus 1
  cargo xtask sim --minutes 60 --from 123456789
  cargo xtask sim --bug credit-lost
  cargo xtask sim --bugs
  cargo xtask sim --topology examples/topologies/two-rails.yaml --plot target/convergence.svg")]
pub(crate) struct Options {
    /// Options of the simulator; `--help` shows them
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<OsString>,
}

/// Builds the simulator in release and runs it.
///
/// # Errors
/// When the build fails, or a checker finds something (with `--bugs`: when a bug is not found by its own).
pub(crate) fn sim(root: &Path, options: &Options) -> Result<()> {
    let program = cargo::build_binary(root, "lnet-tests", "lnet-sim", &["--features", "sabotage"])?;
    succeed(Command::new(program).args(&options.arguments))
}
