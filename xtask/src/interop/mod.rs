//! `cargo xtask interop`: our daemon and kernel nodes, in virtual machines, as peers; without these, what
//! kernel nodes said once.

mod checksums;
mod claims;
mod hostile;
mod lab;
mod ledger;
mod matrix;
mod rails;
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
use lab::{Lab, Programs};
use matrix::{CASES, Case};

/// What is to be run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask interop
  cargo xtask interop --lab ../lab
  cargo xtask interop --lab ../lab --only killed
  cargo xtask interop --lab ../lab --out docs/interop.md")]
pub(crate) struct Options {
    /// Directory of the lab: its program `lab` boots kernel nodes (needs root and QEMU); without it captures
    /// of kernel nodes are played to the protocol, and to a live daemon in namespaces (needs root)
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
    /// Only the cases whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "", requires = "lab")]
    only: String,
    /// Where the report goes, besides standard output
    #[arg(long, value_name = "FILE", requires = "lab")]
    out: Option<PathBuf>,
}

/// What came of a case.
struct Outcome {
    case: &'static Case,
    result: Result<String>,
    took: Duration,
}

/// Boots the nodes, runs the cases, and reports; without a lab, plays the captures.
///
/// # Errors
/// When the lab does not work, a build fails, or a case does.
pub(crate) fn interop(root: &Path, options: &Options) -> Result<()> {
    let Some(directory) = &options.lab else {
        let test = ["test", "--package", "lnet-tests", "--test"];
        succeed(cargo::cargo(root).args(test).arg("replay"))?;
        return succeed(cargo::cargo(root).args(test).args(["control", "replay::"]));
    };
    let cases: Vec<_> = CASES.iter().filter(|case| case.name.contains(&options.only)).collect();
    ensure!(!cases.is_empty(), "no case has {:?} in its name", options.only);
    let [daemon, tool, console] = cargo::build_programs(root, "release", ["lnetd", "lnetctl", "lst"])?;
    let witness = cargo::build_example(root, "lnet-user", "named_entry")?;
    let mut lab = Lab::open(directory, Programs { daemon, tool, console, witness })?;
    let mut outcomes = Vec::new();
    for case in cases {
        say(format_args!("{}: {}", case.name, case.what));
        let begun = Instant::now();
        let result = lab.prepare(case.needs).and_then(|()| (case.run)(&mut lab));
        let result = result.and_then(|found| lab.check().map(|()| found));
        if let Err(error) = &result {
            say(format_args!("  failed: {error:#}\n{}", lab.last_words()));
            lab.forget();
        }
        lab.stop_daemon();
        outcomes.push(Outcome { case, result, took: begun.elapsed() });
    }
    let report = report(&lab, &outcomes)?;
    print!("{report}");
    if let Some(path) = &options.out {
        fs::write(path, &report).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    ensure!(failed == 0, "{failed} of {} cases failed", outcomes.len());
    Ok(())
}

fn report(lab: &Lab, outcomes: &[Outcome]) -> Result<String> {
    let date = output("date", ["-u", "+%Y-%m-%d"])?;
    let mut text = String::from("# Interoperation with kernel nodes\n");
    let _ = writeln!(
        text,
        "\nWritten by `cargo xtask interop --lab DIR` on {}, with lnetd {}. The peers are virtual machines of {} CPUs with {}.\n",
        date.trim(),
        env!("CARGO_PKG_VERSION"),
        lab::CPUS,
        lab.kernel_version()?
    );
    text += "| case | what happens | result | seconds |\n|---|---|---|---|\n";
    for Outcome { case, result, took } in outcomes {
        let result = match result {
            Ok(found) if found.is_empty() => "passed".to_owned(),
            Ok(found) => format!("passed: {found}"),
            Err(error) => {
                format!("**failed**: {}", format!("{error:#}").replace('\n', " ").replace('|', "/"))
            }
        };
        let _ = writeln!(text, "| {} | {} | {result} | {:.0} |", case.name, case.what, took.as_secs_f64());
    }
    if outcomes.iter().all(|outcome| outcome.result.is_ok()) {
        text += "\nAfter each of these cases, and before each kill, the kernel nodes are alive, and have said nothing that is not ordinary.\n\n";
    }
    let _ = writeln!(
        text,
        "Kernel nodes' requests of LNet selftest have {} s, {} s in the cases of kills: one that expires ends its unit of the test, and what comes \
         for it later is not counted. While a link is down all units may wait for it, since a kernel node may go on choosing a rail whose far link is \
         down ([multi-rail.md](multi-rail.md), *With kernel nodes*): what the other rail carries is bulk data that begins meanwhile.\n",
        selftest::PATIENT.as_secs(),
        selftest::HASTY.as_secs()
    );
    text += "LNet selftest (`lst`) has no case with large NIDs: its messages name nodes by NIDs of 8 bytes, and kernel nodes \
             run no tests between IPv6 NIDs among themselves either.\n";
    Ok(text)
}
