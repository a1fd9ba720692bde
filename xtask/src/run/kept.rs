//! Runs that were kept: their record, what to try with them, and their removal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use xtask::command::say;
use xtask::netns::{Pair, remove};
use xtask::privilege;

use super::nodes::{Role, Session, wait_exit};
use super::{Directory, Setup, document, records, remove_and_say_stale, user_namespace};

/// How long a kept daemon may take to end after SIGTERM before it is killed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);
/// The record's name, in the directory of its run.
const RECORD: &str = "kept.json";

/// What a kept run left behind: `target/xtask/run-<pid>/kept.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The namespaces' names: the initiator's, the target's.
    namespaces: [String; 2],
    /// The processes of the daemons that are up.
    daemons: Vec<i32>,
}

/// Leaves the namespaces and the daemons behind, and says what to try.
///
/// # Errors
/// When the record cannot be written, in which case nothing is kept.
pub(super) fn keep(
    setup: &Setup,
    directory: &mut Directory,
    pair: Pair,
    session: &mut Session,
) -> Result<()> {
    let daemons = session.running();
    let namespaces = [pair.a.name().to_owned(), pair.b.name().to_owned()];
    let record = Record { namespaces, daemons };
    let path = directory.path.join(RECORD);
    let text = serde_json::to_string(&record).context("the record of a kept run")?;
    fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
    let hints = hints(setup, &pair, &record.daemons);
    pair.keep()?;
    session.keep();
    directory.is_kept = true;
    say(format_args!("Kept: the network namespaces {}.", record.namespaces.join(" and ")));
    let path = directory.path.display();
    match record.daemons.as_slice() {
        [_, _] => say(format_args!("Both daemons are up; their sockets and logs are in {path}.")),
        _ => say(format_args!("Not both daemons are up, since the run failed; their logs are in {path}.")),
    }
    say(hints);
    Ok(())
}

fn hints(setup: &Setup, pair: &Pair, daemons: &[i32]) -> String {
    let lnetctl = |role: Role| {
        let socket = setup.directory.join(setup.socket(role));
        format!("{} --socket {}", setup.programs.lnetctl.display(), socket.display())
    };
    let (ours, theirs) = (lnetctl(Role::Initiator), lnetctl(Role::Target));
    let to = document::nids(&pair.b).join(",");
    let interface = pair.b.interface();
    let mut hints = vec![
        format!("{ours} net show -v"),
        format!("{ours} ping {to}"),
        format!("{theirs} load start target"),
        format!("{ours} load start initiator --to {to}"),
        format!("{ours} load wait 3"),
        format!("{ours} frames show"),
    ];
    if user_namespace::is_inside() {
        let enter = |pid| format!("nsenter --preserve-credentials -U -n -t {pid} ip -s link");
        hints.extend(daemons.iter().map(enter));
    } else {
        let [in_a, in_b] = [&pair.a, &pair.b].map(|one| format!("ip netns exec {}", one.name()));
        hints.push(format!("{in_a} ping -c 3 {}", interface.ipv4));
        let what = "(what XDP passes up: ARP, ping; LNet frames go past it)";
        hints.push(format!("{in_b} tcpdump -n -i {}    {what}", interface.name));
    }
    format!("Try:\n  {}\nRemove all this with: cargo xtask clean", hints.join("\n  "))
}

/// `cargo xtask clean`: removes kept runs, and what killed ones left.
///
/// # Errors
/// When a record cannot be read or something cannot be removed; the record then stays.
pub(crate) fn clean(root: &Path) -> Result<()> {
    let mut cleaned = 0;
    for directory in directories(root)? {
        if directory.join(RECORD).exists() {
            remove_kept(&directory).with_context(|| directory.display().to_string())?;
            cleaned += 1;
        }
    }
    remove_stale_directories(root)?;
    for name in remove_and_say_stale()? {
        say(format_args!(
            "left alone: {name}, kept by another workspace; `ip netns delete {name}` removes it"
        ));
    }
    say(format_args!("kept runs removed: {cleaned}"));
    Ok(())
}

/// Removes the directories of runs that were killed.
///
/// # Errors
/// When one cannot be removed.
pub(super) fn remove_stale_directories(root: &Path) -> Result<()> {
    for directory in directories(root)? {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(pid) = name.strip_prefix("run-").and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let is_alive = Path::new("/proc").join(pid.to_string()).exists();
        if !is_alive && !directory.join(RECORD).exists() {
            fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
        }
    }
    Ok(())
}

/// The directories of runs.
fn directories(root: &Path) -> Result<Vec<PathBuf>> {
    let records = records(root);
    if !records.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&records).with_context(|| records.display().to_string())?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.is_dir()).collect())
}

fn remove_kept(directory: &Path) -> Result<()> {
    let text = fs::read_to_string(directory.join(RECORD)).context("reading")?;
    let record: Record = serde_json::from_str(&text).context("not the record of a kept run")?;
    let exist = |name: &String| Path::new("/run/netns").join(name).exists();
    if record.namespaces.iter().any(exist) {
        privilege::require("removing network namespaces", &[privilege::NET_ADMIN, privilege::SYS_ADMIN])?;
    }
    for pid in record.daemons {
        end(pid, directory)?;
    }
    record.namespaces.iter().try_for_each(|name| remove(name))?;
    fs::remove_dir_all(directory).context("removing the directory")
}

/// Ends a daemon, if the process of that number is still the one that works in `directory`.
fn end(pid: i32, directory: &Path) -> Result<()> {
    let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok();
    if works_in.is_none() || works_in != fs::canonicalize(directory).ok() {
        return Ok(());
    }
    let Some(pid) = Pid::from_raw(pid) else { bail!("{pid} is no process") };
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = kill_process(pid, signal);
        if wait_exit(pid, TERMINATE_TIMEOUT) {
            return Ok(());
        }
    }
    bail!("the daemon (process {pid:?}) does not end")
}
