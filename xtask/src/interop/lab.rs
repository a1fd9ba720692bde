//! The lab: virtual machines with kernel LNet, and our daemon in a network namespace beside them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xtask::command::{output, succeed};

/// Our network namespace, and its addresses.
const NAMESPACE: &str = "lnet-interop";
pub(super) const OURS: &str = "10.77.0.50@tcp";
pub(super) const OURS_LARGE: &str = "fd77::50@tcp";
/// How long a command may take to come true.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a case needs of the kernel nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    /// How many.
    pub(super) nodes: u8,
    /// Whether they have IPv6 NIDs.
    pub(super) large: bool,
    /// MTU of their interfaces.
    pub(super) mtu_bytes: u16,
    /// Options of their modules.
    pub(super) options: &'static str,
    /// The nets of each kernel node and of our daemon, with the interfaces of their NIs.
    pub(super) nets: &'static [(&'static str, &'static str)],
}

pub(super) struct Lab {
    program: PathBuf,
    daemon: PathBuf,
    tool: PathBuf,
    console: PathBuf,
    socket: PathBuf,
    child: Option<Child>,
    has: Option<Needs>,
}

impl Lab {
    pub(super) fn open(directory: &Path, daemon: PathBuf, tool: PathBuf, console: PathBuf) -> Result<Self> {
        let program = directory.join("lab");
        let program = program.canonicalize().with_context(|| format!("no lab at {}", program.display()))?;
        let socket = std::env::temp_dir().join(format!("lnet-interop-{}.sock", std::process::id()));
        let lab = Self { program, daemon, tool, console, socket, child: None, has: None };
        lab.lab(["down"])?;
        Ok(lab)
    }

    fn lab<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        output(&self.program.to_string_lossy(), arguments)
    }

    /// Has the kernel nodes be as they are needed; anew, if they are not.
    pub(super) fn prepare(&mut self, needs: Needs) -> Result<()> {
        if self.has == Some(needs) {
            return Ok(());
        }
        self.lab(["down"])?;
        self.has = None;
        // The lab reads these from its environment.
        let mtu = needs.mtu_bytes.to_string();
        for node in 1..=needs.nodes {
            let mut command = Command::new(&self.program);
            command
                .args(["up", &node.to_string()])
                .args(needs.options.split_whitespace())
                .env("MTU", &mtu)
                .stdin(Stdio::null());
            let told = command.output().context("the lab does not start")?;
            ensure!(told.status.success(), "lab up {node}: {}", String::from_utf8_lossy(&told.stderr).trim());
            self.configure(node, needs)?;
        }
        // Its leg of the bridge has the MTU as well.
        let mut join = Command::new(&self.program);
        join.args(["join", NAMESPACE, "10.77.0.50,fd77::50", "10.78.0.50"]).env("MTU", &mtu);
        succeed(&mut join)?;
        output("ip", ["-n", NAMESPACE, "link", "set", "eth0", "mtu", &mtu])?;
        self.has = Some(needs);
        Ok(())
    }

    fn configure(&self, node: u8, needs: Needs) -> Result<()> {
        let how = if needs.large { " --large" } else { "" };
        let mut words = format!("lnetctl lnet configure{how}");
        for (net, interfaces) in needs.nets {
            let _ = write!(words, " && lnetctl net add --net {net} --if {interfaces}");
        }
        self.on(node, &words).map(drop)
    }

    /// Has the next case begin with nodes that are booted anew.
    pub(super) fn forget(&mut self) {
        self.has = None;
    }

    fn has(&self) -> Result<Needs> {
        self.has.context("no kernel node is up")
    }

    /// Kills a kernel node, and boots it again.
    pub(super) fn reboot(&self, node: u8) -> Result<()> {
        // It has no options and the ordinary MTU where nodes are killed.
        self.lab(["down", &node.to_string()])?;
        self.lab(["up", &node.to_string()])?;
        self.configure(node, self.has()?)
    }

    /// Runs a shell command on a kernel node.
    pub(super) fn on(&self, node: u8, words: &str) -> Result<String> {
        self.lab(["run", &node.to_string(), words])
    }

    /// The same again and again, until it succeeds.
    pub(super) fn until_on(&self, node: u8, words: &str) -> Result<String> {
        self.until(|| self.on(node, words))
    }

    pub(super) fn until<T>(&self, what: impl Fn() -> Result<T>) -> Result<T> {
        self.within(PATIENCE, what)
    }

    /// The same with a limit of its own.
    pub(super) fn within<T>(&self, limit: Duration, what: impl Fn() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            match what() {
                Err(_) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(300)),
                ended => return ended,
            }
        }
    }

    /// Starts our daemon with these options, and gives it its NIs with those.
    pub(super) fn start_daemon(&mut self, options: &[&str], ni: &[&str]) -> Result<()> {
        self.stop_daemon();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", NAMESPACE]).arg(&self.daemon).arg("--socket").arg(&self.socket);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().context("lnetd does not start")?);
        let has = self.has()?;
        let configure: &[&str] = if has.large { &["--large"] } else { &[] };
        self.until(|| self.tool(&[&["lnet", "configure"], configure].concat()))?;
        for (net, interfaces) in has.nets {
            self.tool(&[&["net", "add", "--net", net, "--if", interfaces], ni].concat())?;
        }
        Ok(())
    }

    /// Kills our daemon: it says no farewell.
    pub(super) fn kill_daemon(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the daemon runs")?;
        child.kill().and_then(|()| child.wait()).context("the daemon is not killed")?;
        Ok(())
    }

    /// Ends our daemon, if it runs.
    pub(super) fn stop_daemon(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It is gone if this fails.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs our `lnetctl`.
    pub(super) fn tool(&self, words: &[&str]) -> Result<String> {
        let socket = self.socket.to_string_lossy();
        output(&self.tool.to_string_lossy(), ["--socket", &*socket].iter().chain(words))
    }

    /// The words that begin a command of our console.
    pub(super) fn console(&self) -> String {
        format!("{} --socket {}", self.console.display(), self.socket.display())
    }

    /// Runs a shell command beside our daemon.
    pub(super) fn shell(&self, words: &str) -> Result<String> {
        output("sh", ["-c", words])
    }

    /// Runs a program in our namespace.
    pub(super) fn here(&self, words: &[&str]) -> Result<String> {
        output("ip", ["netns", "exec", NAMESPACE].iter().chain(words))
    }

    /// What the kernel nodes are.
    pub(super) fn kernel_version(&self) -> Result<String> {
        let version = self.on(1, "modinfo -F version lnet 2>/dev/null; uname -r")?;
        Ok(format!("Lustre's LNet, {}", version.split_whitespace().collect::<Vec<_>>().join(", Linux ")))
    }

    /// Whether all kernel nodes live, and none has complained.
    pub(super) fn check(&self) -> Result<()> {
        for node in 1..=self.has.map_or(0, |has| has.nodes) {
            let node = node.to_string();
            self.lab(["alive", &node])?;
            let log = self.lab(["log", &node])?;
            let is_odd =
                |line: &&str| line.contains("LNetError") && !ORDINARY.iter().any(|part| line.contains(part));
            if let Some(line) = log.lines().find(is_odd) {
                bail!("kernel node {node} says: {line}");
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop_daemon();
        // What is left is told by the next run.
        let _ = self.lab(["down"]);
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What kernel nodes say of peers that are killed, as of one another.
const ORDINARY: [&str; 4] = ["Connection to", "closed by", "Unexpected error -1", "recovery NI"];
