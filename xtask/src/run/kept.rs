//! Runs that were kept: their record, what to try with them, and their removal.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use xtask::command::{say, words};
use xtask::netns::{Pair, processes, remove};
use xtask::privilege;

use super::nodes::wait_exit;
use super::report::Line;
use super::{READY_TIMEOUT, Setup, nid, records, remove_and_say_stale};

/// How long a kept node may take to end after SIGTERM before it is killed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a kept run left behind: `target/xtask/run-<pid>.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The namespaces' names: the initiator's, the target's.
    namespaces: [String; 2],
    /// The process of the target node, if one is up.
    target: Option<i32>,
    /// What the target node prints.
    log: PathBuf,
}

/// Leaves the namespaces behind, starts a target node that stays (the measured one has ended with its
/// report) unless the run failed, and says what to try.
///
/// # Errors
/// When the record cannot be written, in which case nothing is kept, or the node does not become ready.
pub(super) fn keep(root: &Path, setup: &Setup, pair: Pair, with_target: bool) -> Result<()> {
    let pid = std::process::id();
    fs::create_dir_all(records(root)).context("target/xtask")?;
    let path = records(root).join(format!("run-{pid}.json"));
    let log = path.with_extension("log");
    let namespaces = [pair.a.name().to_owned(), pair.b.name().to_owned()];
    let mut record = Record { namespaces, target: None, log };
    write(&path, &record)?;
    let target = setup.target(&pair);
    let hints = hints(setup, &pair);
    pair.keep()?;
    if with_target {
        record.target = Some(start(target, &record.log)?);
        write(&path, &record)?;
        await_ready(&record)?;
    }
    say(format_args!("Kept: the network namespaces {}.", record.namespaces.join(" and ")));
    match record.target {
        Some(pid) => say(format_args!("A target node is up again: process {pid}, {}.", record.log.display())),
        None => say("No target node is up, since the run failed."),
    }
    say(hints);
    Ok(())
}

/// Starts a node that outlives this process: its standard input is a pipe that it holds open itself.
fn start(mut command: Command, log: &Path) -> Result<i32> {
    let (reader, _writer) = std::io::pipe().context("a pipe")?;
    let both_ends = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let stdin = File::options().read(true).write(true).open(both_ends).context("both ends of a pipe")?;
    let stdout = File::create(log).with_context(|| log.display().to_string())?;
    let stderr = stdout.try_clone().with_context(|| log.display().to_string())?;
    command.stdin(Stdio::from(stdin)).stdout(stdout).stderr(stderr);
    let child = command.spawn().with_context(|| format!("`{}` did not start", words(&command)))?;
    Ok(Pid::from_child(&child).as_raw_nonzero().get())
}

/// Waits until the node's log has its `ready` line.
fn await_ready(record: &Record) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let Some(pid) = record.target.and_then(Pid::from_raw) else { bail!("no target node was started") };
    loop {
        // Look at the log after the process: what it said before its end counts.
        let ended = wait_exit(pid, Duration::from_millis(20));
        let log = File::open(&record.log).context("the log of the kept target node")?;
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        if lines.any(|line| matches!(Line::parse(&line), Ok(Line::Ready(_)))) {
            return Ok(());
        }
        if ended || Instant::now() > deadline {
            bail!("the kept target node did not become ready, see {}", record.log.display());
        }
    }
}

fn hints(setup: &Setup, pair: &Pair) -> String {
    let in_a = format!("ip netns exec {}", pair.a.name());
    let in_b = format!("ip netns exec {}", pair.b.name());
    format!(
        "Try:\n  \
           {in_a} ping -c 3 {address}\n  \
           {in_b} tcpdump -n -i {interface}    (what XDP passes up: ARP, ping; LNet frames go past it)\n  \
           {put}    (sends to {target}; ends on Ctrl-D)\n\
         Remove all this with: cargo xtask clean",
        address = pair.b.interface().ipv4,
        interface = pair.b.interface().name,
        put = words(&setup.initiator(pair)),
        target = nid(&pair.b),
    )
}

fn write(path: &Path, record: &Record) -> Result<()> {
    let text = serde_json::to_string(record).context("the record of a kept run")?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

/// `cargo xtask clean`: removes kept runs, and what killed ones left.
///
/// # Errors
/// When a record cannot be read or something cannot be removed; the record then stays.
pub(crate) fn clean(root: &Path) -> Result<()> {
    let mut cleaned = 0;
    if records(root).exists() {
        for entry in fs::read_dir(records(root)).context("target/xtask")? {
            let path = entry.context("target/xtask")?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                remove_kept(&path).with_context(|| path.display().to_string())?;
                cleaned += 1;
            }
        }
    }
    for name in remove_and_say_stale()? {
        say(format_args!(
            "left alone: {name}, kept by another workspace; `ip netns delete {name}` removes it"
        ));
    }
    say(format_args!("kept runs removed: {cleaned}"));
    Ok(())
}

fn remove_kept(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).context("reading")?;
    let record: Record = serde_json::from_str(&text).context("not the record of a kept run")?;
    let [initiators, targets] = &record.namespaces;
    if [initiators, targets].iter().any(|name| Path::new("/run/netns").join(name).exists()) {
        privilege::require("removing network namespaces", &[privilege::NET_ADMIN, privilege::SYS_ADMIN])?;
        if let Some(pid) = record.target {
            end(pid, targets)?;
        }
        remove(initiators)?;
        remove(targets)?;
    }
    if record.log.exists() {
        fs::remove_file(&record.log).with_context(|| record.log.display().to_string())?;
    }
    fs::remove_file(path).context("removing the record")
}

/// Ends a node, if the process of that number is still the one inside `namespace`.
fn end(pid: i32, namespace: &str) -> Result<()> {
    if !processes(namespace).unwrap_or_default().contains(&pid) {
        return Ok(());
    }
    let Some(pid) = Pid::from_raw(pid) else { bail!("{pid} is no process") };
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = kill_process(pid, signal);
        if wait_exit(pid, TERMINATE_TIMEOUT) {
            return Ok(());
        }
    }
    bail!("the target node (process {pid:?}) does not end")
}
