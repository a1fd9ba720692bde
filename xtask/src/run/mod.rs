//! `cargo xtask run`: two `lnetd` in two network namespaces, joined by two veth rails, configured and loaded
//! by `lnetctl`, measured and judged.
//!
//! - Whatever happens (success, failure, a panic, Ctrl-C, SIGTERM, SIGHUP), the daemons are ended and the
//!   namespaces removed, in this order; a second Ctrl-C changes nothing about that. Nothing is pinned
//!   under `/sys/fs/bpf`, so that XDP programs and maps go with the daemons.
//! - Should this process be killed, the kernel ends the daemons (PR_SET_PDEATHSIG).
//! - Without privileges all of this happens in a user namespace, over sockets ([`user_namespace`]).
//! - Nothing here knows the control protocol or links the node: what a user can do with `lnetd` and `lnetctl`
//!   is all that it does. `lnetctl` prints and judges; its words are passed on, and so are its failures.

mod document;
mod kept;
mod nodes;
mod options;
mod progress;
mod script;
mod user_namespace;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use xtask::command::{output, say};
use xtask::netns::{Pair, Wiring, remove_stale};
use xtask::privilege;

use crate::{build_ebpf, cargo};
use nodes::{Events, Role, Said, Session};

pub(crate) use kept::clean;
pub(crate) use nodes::Interrupted;
use options::Mode;
pub(crate) use options::Options;

/// Shards of each node, and queues of each interface.
const SHARDS: u16 = 2;
/// veth pairs, each a net of its own.
const RAILS: u8 = 2;

/// What `lnetctl` has said of what was measured.
struct Report {
    /// Its words by what they are about, where they are JSON; others are printed as they come.
    json: Option<Map<String, Value>>,
    /// Commands that have found something wrong.
    failures: Vec<String>,
}

impl Report {
    fn new(options: &Options) -> Self {
        let json = options.json.then(|| Map::from_iter([("options".to_owned(), json!(options))]));
        Self { json, failures: Vec::new() }
    }

    fn title(&self, text: &str) -> Result<()> {
        if self.json.is_some() { Ok(()) } else { print(&format!("{text}\n\n")) }
    }

    /// Takes the words of a command.
    fn take(&mut self, name: &str, said: &Said) -> Result<()> {
        self.failures.extend(said.fault.clone());
        match &mut self.json {
            Some(parts) => {
                let value = serde_json::from_str(&said.text);
                let value = value.with_context(|| format!("{name}: not JSON: {:?}", said.text))?;
                parts.insert(name.to_owned(), value);
                Ok(())
            }
            None => print(&format!("== {name} ==\n{}", said.text)),
        }
    }

    /// Says whether all held.
    fn conclude(self) -> Result<()> {
        match self.json {
            Some(mut parts) => {
                parts.insert("failures".to_owned(), json!(self.failures));
                print(&format!("{}\n", Value::Object(parts)))?;
            }
            None if self.failures.is_empty() => print("The run holds.\n")?,
            None => {}
        }
        ensure!(self.failures.is_empty(), "the run does not hold:\n  - {}", self.failures.join("\n  - "));
        Ok(())
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("writing the result")
}

/// The programs of a run.
struct Programs {
    lnetd: PathBuf,
    lnetctl: PathBuf,
}

/// What a run works with.
struct Setup<'a> {
    options: &'a Options,
    programs: Programs,
    /// Sockets, logs and documents.
    directory: PathBuf,
}

impl Setup<'_> {
    /// The daemon of a node.
    fn daemon(&self, role: Role, pair: &Pair) -> Command {
        let lnetd = &self.programs.lnetd;
        // A daemon that is to be kept must outlive this process.
        let mut command = if self.options.keep {
            namespace(role, pair).command(lnetd)
        } else {
            let mut command = namespace(role, pair).command(Path::new("setpriv"));
            command.args(["--pdeathsig", "TERM"]).arg(lnetd);
            command
        };
        command.args(["--configure", "--shards", &SHARDS.to_string(), "--socket"]);
        command.arg(self.socket(role)).args(["--mode", self.options.mode.name()]);
        if self.options.loss_per_million() > 0 {
            command.args(["--frame-loss", &self.options.loss_per_million().to_string()]);
        }
        command.current_dir(&self.directory);
        command
    }

    /// `lnetctl` with so many words, separated by spaces.
    fn lnetctl(&self, role: Role, words: &str) -> Command {
        let mut command = Command::new(&self.programs.lnetctl);
        command.arg("--socket").arg(self.socket(role)).args(words.split_whitespace());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.current_dir(&self.directory);
        command
    }

    /// Names the socket by its name alone: the path of a socket has at most 107 bytes, and that of the
    /// directory may have more.
    fn socket(&self, role: Role) -> String {
        format!("{}.sock", role.letter())
    }
}

/// The directory of a run; removed when dropped.
struct Directory {
    path: PathBuf,
    is_kept: bool,
}

impl Directory {
    fn create(root: &Path) -> Result<Self> {
        let path = records(root).join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, is_kept: false })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            say(format_args!("{} was not removed: {error}", self.path.display()));
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
    if let Err(missing) = privilege::require(needs, &privilege::NETNS_NODES) {
        user_namespace::check(options, missing)?;
        let options = Options { mode: Mode::Socket, ..options.clone() };
        return Err(user_namespace::exec(&programs(root, &options)?));
    }
    output("ip", ["-Version"]).context("`cargo xtask run` needs `ip` (Debian: iproute2, Fedora: iproute)")?;
    let programs = programs(root, options)?;

    let events = Events::listen()?;
    remove_and_say_stale()?;
    kept::remove_stale_directories(root)?;
    let mut directory = Directory::create(root)?;
    let setup = Setup { options, programs, directory: directory.path.clone() };
    let pair = Pair::create("", Wiring { rails: RAILS, queues: SHARDS, mtu_bytes: options.mtu })?;
    // Dropped before the namespaces are.
    let mut session = Session::new(&events);
    let mut report = Report::new(options);
    let measured = script::measure(&setup, &pair, &mut session, &mut report);
    let interrupted = measured.as_ref().is_err_and(|error| error.is::<Interrupted>());
    if measured.is_err() && !interrupted {
        say(session.last_words());
    }
    // The result comes first, so that what the user can do next is the last that is said.
    let concluded = measured.and_then(|()| {
        let ended = if options.keep { Ok(()) } else { end(&mut session) };
        report.conclude().and(ended)
    });
    if options.keep && !interrupted {
        kept::keep(&setup, &mut directory, pair, &mut session)?;
    }
    concluded
}

/// Builds the programs, or finds them where the options say.
fn programs(root: &Path, options: &Options) -> Result<Programs> {
    if let Some(directory) = &options.programs {
        let directory = fs::canonicalize(directory).with_context(|| directory.display().to_string())?;
        let [lnetd, lnetctl] = ["lnetd", "lnetctl"].map(|name| directory.join(name));
        return Ok(Programs { lnetd, lnetctl });
    }
    // Over sockets nothing is loaded.
    if options.mode != Mode::Socket {
        build_ebpf::refresh(root)?;
    }
    let [lnetd, lnetctl] = cargo::build_programs(root, "release", ["lnetd", "lnetctl"])?;
    Ok(Programs { lnetd, lnetctl })
}

/// Ends the daemons, the initiator first.
fn end(session: &mut Session) -> Result<()> {
    Role::ALL.into_iter().try_for_each(|role| session.stop(role))
}

fn namespace(role: Role, pair: &Pair) -> &xtask::netns::Namespace {
    match role {
        Role::Initiator => &pair.a,
        Role::Target => &pair.b,
    }
}

/// Where the directories of runs are.
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
