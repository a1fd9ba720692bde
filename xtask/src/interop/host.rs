//! Network namespaces beside the kernel nodes, each with a daemon of ours.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::command::output;

use crate::cargo;

/// How long a command may take to come true.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Our programs.
pub(super) struct Programs {
    pub(super) daemon: PathBuf,
    pub(super) tool: PathBuf,
    pub(super) console: PathBuf,
    /// The workspace's root, for programs that few cases want.
    pub(super) root: PathBuf,
}

impl Programs {
    /// Builds an example, as the other programs are built.
    fn example(&self, package: &str, name: &str) -> Result<PathBuf> {
        cargo::build_example(&self.root, "release", package, name)
    }
}

/// A network namespace that is there already, with a daemon of ours.
pub(super) struct Host {
    namespace: &'static str,
    ours: Rc<Programs>,
    socket: PathBuf,
    /// The log of the daemon.
    log: PathBuf,
    /// Documents for it.
    document: PathBuf,
    child: RefCell<Option<Child>>,
}

impl Host {
    pub(super) fn new(namespace: &'static str, ours: Rc<Programs>) -> Self {
        let socket = std::env::temp_dir().join(format!("{namespace}-{}.sock", std::process::id()));
        let [log, document] = ["log", "yaml"].map(|extension| socket.with_extension(extension));
        Self { namespace, ours, socket, log, document, child: RefCell::new(None) }
    }

    pub(super) const fn namespace(&self) -> &'static str {
        self.namespace
    }

    /// A program that is to run in the namespace.
    fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace]).stdin(Stdio::null());
        command
    }

    /// Starts the daemon with these options, and with no NI but the loopback one.
    pub(super) fn start(&self, options: &[&str], is_large: bool) -> Result<()> {
        self.stop();
        let mut command = self.command();
        command.arg(&self.ours.daemon).arg("--socket").arg(&self.socket).args(options);
        self.spawn(command)?;
        let configure: &[&str] = if is_large { &["--large"] } else { &[] };
        within(PATIENCE, || self.tool(&[&["lnet", "configure"], configure].concat())).map(drop)
    }

    /// Starts a server that is a program of its own, instead of the daemon.
    pub(super) fn serve(&self, words: &[&str]) -> Result<()> {
        self.stop();
        let server = self.ours.example("lnet-selftest", "behind_router")?;
        let mut command = self.command();
        command.arg(server).args(words);
        self.spawn(command)
    }

    fn spawn(&self, mut command: Command) -> Result<()> {
        let log = File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let child =
            command.stdout(Stdio::null()).stderr(log).spawn().context("our program does not start")?;
        self.child.replace(Some(child));
        Ok(())
    }

    /// Starts the daemon with these options, as what a document says.
    pub(super) fn start_as(&self, options: &[&str], is_large: bool, document: &str) -> Result<()> {
        self.start(options, is_large)?;
        fs::write(&self.document, document)
            .with_context(|| format!("cannot write {}", self.document.display()))?;
        self.tool(&["import", &self.document.to_string_lossy()]).map(drop)
    }

    /// Kills the daemon: it says no farewell.
    pub(super) fn kill(&self) -> Result<()> {
        let mut child = self.child.take().context("the daemon runs")?;
        child.kill().and_then(|()| child.wait()).context("the daemon is not killed")?;
        Ok(())
    }

    /// Ends the daemon, if it runs.
    pub(super) fn stop(&self) {
        if let Some(mut child) = self.child.take() {
            // The child is gone if this fails.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs our `lnetctl`.
    pub(super) fn tool(&self, words: &[&str]) -> Result<String> {
        let socket = self.socket.to_string_lossy();
        output(&self.ours.tool.to_string_lossy(), ["--socket", &*socket].iter().chain(words))
    }

    /// A number of `stats show`.
    pub(super) fn counted(&self, key: &str) -> Result<u64> {
        let shown = self.tool(&["stats", "show"])?;
        let value = shown.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
        value
            .with_context(|| format!("`stats show` tells no {key}"))?
            .parse()
            .context("a counter is a number")
    }

    /// Fails unless `routing show` says so.
    pub(super) fn routing_is(&self, enable: &str) -> Result<()> {
        let shown = self.tool(&["routing", "show"])?;
        ensure!(shown.contains(&format!("enable: {enable}\n")), "{enable} expected: {shown}");
        Ok(())
    }

    /// The words that begin a command of our console.
    pub(super) fn console(&self) -> String {
        format!("{} --socket {}", self.ours.console.display(), self.socket.display())
    }

    /// Runs a program in the namespace.
    pub(super) fn here(&self, words: &[&str]) -> Result<String> {
        output("ip", ["netns", "exec", self.namespace].iter().chain(words))
    }

    /// Has a link with another namespace, of a net by itself; each has an address there.
    pub(super) fn link(&self, interface: &str, ours: &str, other: &Self, theirs: &str) -> Result<()> {
        if self.here(&["ip", "link", "show", interface]).is_ok() {
            return Ok(());
        }
        let peer = ["peer", "name", interface, "netns", other.namespace];
        self.here(&[&["ip", "link", "add", interface, "type", "veth"], &peer[..]].concat())?;
        for (host, address) in [(self, ours), (other, theirs)] {
            host.here(&["ip", "address", "add", address, "dev", interface])?;
            host.here(&["ip", "link", "set", interface, "up"])?;
        }
        Ok(())
    }

    /// Starts a node of ours beside no daemon, with an entry at a portal that names a peer by a NID; what it
    /// prints can be read.
    pub(super) fn witness(&self, nid: &str, portal: &str, nis: &[&str]) -> Result<Child> {
        self.stop();
        let witness = self.ours.example("lnet-user", "named_entry")?;
        let mut command = self.command();
        command.arg(witness).args([nid, portal]).args(nis);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("the witness does not start")
    }

    /// The last words of the daemon, and the state of its connections.
    pub(super) fn last_words(&self) -> String {
        let mut words = String::new();
        add_last_lines(&mut words, self.namespace, &fs::read_to_string(&self.log).unwrap_or_default());
        if self.child.borrow().is_some() {
            // A daemon that has ended by itself tells nothing.
            add_last_lines(&mut words, "sockets", &self.here(&["ss", "-tinm"]).unwrap_or_default());
            words += &self.tool(&["frames", "show"]).unwrap_or_default();
        }
        words
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
        for file in [&self.socket, &self.log, &self.document] {
            // A file that was never written cannot be removed.
            let _ = fs::remove_file(file);
        }
    }
}

/// Does something again and again, until it succeeds or this time is over.
pub(super) fn within<T>(limit: Duration, what: impl Fn() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match what() {
            Err(_) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(300)),
            ended => return ended,
        }
    }
}

/// Lines of each log that are shown of a failed case.
const LAST_LINES: usize = 20;

pub(super) fn add_last_lines(words: &mut String, of: &str, log: &str) {
    let lines: Vec<_> = log.lines().collect();
    for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
        let _ = writeln!(words, "  {of}: {line}");
    }
}
