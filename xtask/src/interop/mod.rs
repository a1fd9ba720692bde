//! `cargo xtask interop`: our daemon and kernel nodes, in virtual machines, as peers; without these, what
//! kernel nodes said once.

mod bridge;
mod checksums;
mod claims;
mod filesystem;
mod gateways;
mod host;
mod hostile;
mod lab;
mod ledger;
mod matrix;
mod rails;
mod reference;
mod routing;
mod selftest;
mod trees;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::command::{output, say, succeed};

use crate::cargo;
use filesystem::FileSystem;
use host::Programs;
use lab::Lab;
use matrix::CASES;

/// What is to be run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask interop
  cargo xtask interop --lab ../lab
  cargo xtask interop --lab ../lab --only killed
  cargo xtask interop --lab ../lab --out docs/interop.md
  cargo xtask interop --fslab ../fslab")]
pub(crate) struct Options {
    /// Directory of the lab: its program `lab` boots kernel nodes (needs root and QEMU); without it captures
    /// of kernel nodes are played to the protocol, and to a live daemon in namespaces (needs root)
    #[arg(long, value_name = "DIR", group = "site")]
    lab: Option<PathBuf>,
    /// Directory of a lab with a file system: its program `fs` boots a Lustre server and clients, which our
    /// daemons route between (needs root and QEMU)
    #[arg(long, value_name = "DIR", group = "site")]
    fslab: Option<PathBuf>,
    /// Only the cases whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "", requires = "site")]
    only: String,
    /// Where the report goes, besides standard output
    #[arg(long, value_name = "FILE", requires = "site")]
    out: Option<PathBuf>,
}

/// Kernel nodes, and our daemons beside them.
trait Site {
    /// The kernel nodes and settings that a case needs.
    type Needs: Copy;

    /// Has the kernel nodes be as they are needed; anew, if they are not.
    fn prepare(&mut self, needs: Self::Needs) -> Result<()>;

    /// Fails unless all kernel nodes live, and none has complained.
    fn check(&self) -> Result<()>;

    /// The last words of all nodes, and the state of our daemons' connections.
    fn last_words(&self) -> String;

    /// Has the next case begin with nodes that are booted anew.
    fn forget(&mut self);

    /// Ends our daemons.
    fn stop(&self);

    /// Names the kernel nodes and their release.
    fn peers(&self) -> Result<String>;

    /// Notes for the readers of the report.
    fn notes() -> String;
}

/// One case.
struct Case<S: Site> {
    name: &'static str,
    what: &'static str,
    needs: S::Needs,
    /// Runs the case; gives words on what was found.
    run: fn(&mut S) -> Result<String>,
}

/// What came of a case.
struct Outcome {
    name: &'static str,
    what: &'static str,
    result: Result<String>,
    took: Duration,
}

/// Boots the nodes, runs the cases, and reports; without a lab, plays the captures.
///
/// # Errors
/// When the lab does not work, a build fails, or a case does.
pub(crate) fn interop(root: &Path, options: &Options) -> Result<()> {
    if let Some(directory) = &options.lab {
        play(options, CASES, || Lab::open(directory, programs(root)?))
    } else if let Some(directory) = &options.fslab {
        play(options, filesystem::CASES, || FileSystem::open(directory, programs(root)?))
    } else {
        let test = ["test", "--package", "lnet-tests", "--test"];
        succeed(cargo::cargo(root).args(test).arg("replay"))?;
        succeed(cargo::cargo(root).args(test).args(["control", "replay::"]))
    }
}

fn programs(root: &Path) -> Result<Programs> {
    let [daemon, tool, console] = cargo::build_programs(root, "release", ["lnetd", "lnetctl", "lst"])?;
    Ok(Programs { daemon, tool, console, root: root.to_owned() })
}

/// Runs the cases that are asked for, one after the other, and reports.
fn play<S: Site>(
    options: &Options,
    cases: &'static [Case<S>],
    open: impl FnOnce() -> Result<S>,
) -> Result<()> {
    let cases: Vec<_> = cases.iter().filter(|case| case.name.contains(&options.only)).collect();
    ensure!(!cases.is_empty(), "no case has {:?} in its name", options.only);
    let mut site = open()?;
    let mut outcomes = Vec::new();
    for &Case { name, what, needs, run } in cases {
        say(format_args!("{name}: {what}"));
        let begun = Instant::now();
        let result = site.prepare(needs).and_then(|()| run(&mut site));
        let result = result.and_then(|found| site.check().map(|()| found));
        match &result {
            Ok(found) => say(format_args!("  passed: {found}")),
            Err(error) => {
                say(format_args!("  failed: {error:#}\n{}", site.last_words()));
                site.forget();
            }
        }
        site.stop();
        outcomes.push(Outcome { name, what, result, took: begun.elapsed() });
    }
    let report = report(&site, &outcomes)?;
    print!("{report}");
    if let Some(path) = &options.out {
        fs::write(path, &report).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    ensure!(failed == 0, "{failed} of {} cases failed", outcomes.len());
    Ok(())
}

fn report<S: Site>(site: &S, outcomes: &[Outcome]) -> Result<String> {
    let date = output("date", ["-u", "+%Y-%m-%d"])?;
    let mut text = String::from("# Interoperation with kernel nodes\n");
    let _ = writeln!(
        text,
        "\nWritten by `cargo xtask interop` on {}, with lnetd {}. The peers are {}.\n",
        date.trim(),
        env!("CARGO_PKG_VERSION"),
        site.peers()?
    );
    text += "| case | what happens | result | seconds |\n|---|---|---|---|\n";
    for Outcome { name, what, result, took } in outcomes {
        let result = match result {
            Ok(found) if found.is_empty() => "passed".to_owned(),
            Ok(found) => format!("passed: {found}"),
            Err(error) => {
                format!("**failed**: {}", format!("{error:#}").replace('\n', " ").replace('|', "/"))
            }
        };
        let _ = writeln!(text, "| {name} | {what} | {result} | {:.0} |", took.as_secs_f64());
    }
    if outcomes.iter().all(|outcome| outcome.result.is_ok()) {
        text += "\nAfter each of these cases, and before each kill, the kernel nodes are alive, and have said nothing that is not ordinary.\n";
    }
    text += &S::notes();
    Ok(text)
}
