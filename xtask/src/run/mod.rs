//! `cargo xtask run`: two nodes over veth in two network namespaces, measured and judged.
//!
//! - Whatever happens (success, failure, a panic, Ctrl-C, SIGTERM, SIGHUP), the nodes are ended and the
//!   namespaces removed, in this order; a second Ctrl-C changes nothing about that. Nothing is pinned
//!   under `/sys/fs/bpf`, so that XDP programs and maps go with the nodes.
//! - The nodes end when their standard input closes: should this process be killed, they end as well.
//! - Readiness and reports are lines that the nodes print: nothing here sleeps and hopes.

mod judge;
mod kept;
mod nodes;
mod options;
mod print;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use xtask::command::{output, say};
use xtask::netns::{Namespace, Pair, Wiring, remove_stale};
use xtask::privilege;

use crate::{build_ebpf, cargo, setup};
use judge::{Verdict, judge};
use nodes::{Events, Role, Session};
use report::Report;

pub(crate) use kept::clean;
pub(crate) use nodes::Interrupted;
pub(crate) use options::Options;

/// Shards of each node, and queues of each interface.
const SHARDS: u16 = 2;
/// How long a node may take until it is ready: it loads its XDP program and registers its memory.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a node may take to report and to exit after it was told to end.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// What a run found.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    options: &'a Options,
    initiator: Report,
    target: Report,
    verdict: Verdict,
}

/// How the nodes are started.
struct Setup<'a> {
    options: &'a Options,
    load_program: PathBuf,
    bpf_object: PathBuf,
}

impl Setup<'_> {
    fn target(&self, pair: &Pair) -> Command {
        let mut command = pair.b.command(&self.load_program);
        command.arg("target");
        self.node(&mut command, &pair.b);
        command
    }

    fn initiator(&self, pair: &Pair) -> Command {
        let mut command = pair.a.command(&self.load_program);
        command.arg("put").args(["--target", &nid(&pair.b)]);
        command.args(["--count", &self.options.count.to_string()]);
        if let Some(size) = self.options.size {
            command.args(["--size", &size.to_string()]);
        }
        self.node(&mut command, &pair.a);
        command
    }

    fn node(&self, command: &mut Command, namespace: &Namespace) {
        command.args(["--interface", &namespace.interface().name, "--nid", &nid(namespace)]);
        command.args(["--shards", &SHARDS.to_string(), "--mode", self.options.mode.name()]);
        command.arg("--bpf-object").arg(&self.bpf_object);
        if self.options.log {
            command.arg("--log");
        }
    }
}

/// Builds, runs, prints and judges.
///
/// # Errors
/// When an option is out of range, a capability or `ip` is missing, a build or a node fails, the run is
/// interrupted ([`Interrupted`]), or the judge finds fault with the result.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    options.check()?;
    let needs = "`cargo xtask run` makes network namespaces and loads XDP programs; it";
    privilege::require(needs, &privilege::NETNS_NODES)?;
    output("ip", ["-Version"]).context("`cargo xtask run` needs `ip` (Debian: iproute2, Fedora: iproute)")?;
    let setup = match &options.load_program {
        Some(path) => Setup { options, load_program: path.clone(), bpf_object: PathBuf::from("none") },
        None => build(root, options)?,
    };

    let events = Events::listen()?;
    remove_and_say_stale()?;
    let wiring = Wiring { rails: 1, queues: SHARDS, mtu_bytes: options.mtu };
    let pair = Pair::create("", wiring)?;
    let measured = measure(&setup, &pair, &events);
    let nodes_work = measured.is_ok();
    let interrupted = measured.as_ref().is_err_and(|error| error.is::<Interrupted>());
    // Dropped here, and so removed, unless it is kept.
    let kept = (options.keep && !interrupted).then_some(pair);
    // The result comes first, so that what the user can do next is the last that is said.
    let concluded = measured.and_then(|(initiator, target)| {
        let verdict = judge(options.count, SHARDS, &initiator, &target);
        conclude(&Outcome { options, initiator, target, verdict })
    });
    if let Some(pair) = kept {
        kept::keep(root, &setup, pair, nodes_work)?;
    }
    concluded
}

fn build<'a>(root: &Path, options: &'a Options) -> Result<Setup<'a>> {
    let objects = build_ebpf::build(root, &setup::ensure(root)?)?;
    let bpf_object = if options.log { objects.log } else { objects.default };
    let load_program = cargo::build_binary(root, "lnet-bench", "lnet-load")?;
    Ok(Setup { options, load_program, bpf_object })
}

fn conclude(outcome: &Outcome) -> Result<()> {
    let text = if outcome.options.json {
        serde_json::to_string(outcome).context("the result as JSON")? + "\n"
    } else {
        print::render(outcome)
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing the result")?;
    let failures = &outcome.verdict.failures;
    if failures.is_empty() {
        return Ok(());
    }
    bail!("the run does not hold:\n  - {}", failures.join("\n  - "))
}

/// The reports of initiator and target.
fn measure(setup: &Setup, pair: &Pair, events: &Events) -> Result<(Report, Report)> {
    let mut session = Session::new(events);
    session.start(Role::Target, setup.target(pair))?;
    session
        .wait(Role::Target, "it was ready", Instant::now() + READY_TIMEOUT, |node| node.ready.is_some())?;
    session.start(Role::Initiator, setup.initiator(pair))?;
    session
        .wait(Role::Initiator, "it was ready", Instant::now() + READY_TIMEOUT, |node| node.ready.is_some())?;
    let end = Instant::now() + setup.options.timeout();
    session.wait(Role::Initiator, "its report", end, |node| node.report.is_some())?;
    let initiator = session.finish(Role::Initiator)?;
    let target = session.finish(Role::Target)?;
    Ok((initiator, target))
}

fn nid(namespace: &Namespace) -> String {
    format!("{}@xdp", namespace.interface().ipv4)
}

/// Where the records of kept runs are.
fn records(root: &Path) -> PathBuf {
    root.join("target/xtask")
}

/// Removes what killed runs left and says so; gives the namespaces that were kept on purpose.
pub(crate) fn remove_and_say_stale() -> Result<Vec<String>> {
    let stale = remove_stale()?;
    for name in stale.removed {
        say(format_args!("removed the network namespace {name}, left by a run that was killed"));
    }
    for (name, inside) in stale.in_use {
        say(format_args!(
            "left alone: the network namespace {name} of a run that was killed, with processes {inside:?}"
        ));
    }
    Ok(stale.kept)
}
