//! The two daemons and the commands to them as child processes, and what they and the user make happen.
//!
//! A daemon is always ended: by SIGTERM, and after a grace time by SIGKILL. Nothing here panics while it does
//! so, for it also runs while a panic unwinds.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use xtask::command::{say, words};

/// How long a daemon may take to end in order: it drains first.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a daemon may take to end where something else has gone wrong.
const GRACE: Duration = Duration::from_secs(5);
/// A process that is watched for its whole life.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
/// Lines of a daemon's log that are shown when something went wrong.
const LOG_LINES: usize = 12;

/// Which node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Sends the messages.
    Initiator,
    /// Is sent to.
    Target,
}

impl Role {
    /// Both, in the order in which they end: no node shall send to one that is gone.
    pub(crate) const ALL: [Self; 2] = [Self::Initiator, Self::Target];

    /// What its files begin with.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Initiator => 'a',
            Self::Target => 'b',
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initiator => "initiator",
            Self::Target => "target",
        })
    }
}

/// The user or the system wants this process to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interrupted {
    /// The signal's number.
    pub(crate) signal: i32,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}; nodes and namespaces are removed", self.signal)
    }
}

impl std::error::Error for Interrupted {}

/// What happens during a run.
enum Event {
    /// The command that runs has said a line on standard error.
    Line(String),
    /// The command that ran has closed both its outputs; what it said on standard output.
    Said(String),
    /// A daemon has ended.
    Ended(Role),
    /// This process got a signal that asks it to end.
    Signal(i32),
}

/// Where events come from.
pub(crate) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    /// Makes SIGINT, SIGTERM and SIGHUP events from here on. They no longer end this process, neither the
    /// first one nor any that follows.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub(crate) fn listen() -> Result<Self> {
        let events = Self::silent();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signal handlers")?;
        let signalled = events.sender.clone();
        thread::spawn(move || {
            for (count, signal) in signals.forever().enumerate() {
                say(if count == 0 { "ending the nodes, removing the namespaces" } else { "already at it" });
                // The receiver is gone once the run is over and its cleanup goes on.
                let _ = signalled.send(Event::Signal(signal));
            }
        });
        Ok(events)
    }

    fn silent() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    /// Tells when a daemon ends.
    fn watch(&self, role: Role, pid: Pid) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            wait_exit(pid, FOR_EVER);
            let _ = sender.send(Event::Ended(role));
        });
    }

    /// Tells what a command says.
    fn follow(&self, mut stdout: ChildStdout, stderr: ChildStderr) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            let lines = sender.clone();
            let errors = thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let _ = lines.send(Event::Line(line));
                }
            });
            let mut said = String::new();
            let _ = stdout.read_to_string(&mut said);
            let _ = errors.join();
            let _ = sender.send(Event::Said(said));
        });
    }
}

/// A daemon. Ends when dropped.
struct Node {
    role: Role,
    child: Child,
    log: PathBuf,
    is_kept: bool,
}

impl Node {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for its end, `None` if it does not come in time.
    fn ended_within(&mut self, timeout: Duration) -> Option<ExitStatus> {
        wait_exit(self.pid(), timeout);
        self.child.try_wait().ok().flatten()
    }

    /// The end of what it has logged.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_kept || self.ended_within(Duration::ZERO).is_some() {
            return;
        }
        let _ = kill_process(self.pid(), Signal::TERM);
        if self.ended_within(GRACE).is_none() {
            say(format_args!("the {} (process {}) does not end, killing it", self.role, self.child.id()));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a command has said.
#[derive(Debug)]
pub(crate) struct Said {
    /// Text on standard output.
    pub(crate) text: String,
    /// Why it ended with the status by which `lnetctl` says that what was measured is not as it should be.
    pub(crate) fault: Option<String>,
}

impl Said {
    /// The text of a command that has found nothing wrong.
    ///
    /// # Errors
    /// What it has found wrong.
    pub(crate) fn done(self) -> Result<String> {
        self.fault.map_or(Ok(self.text), |fault| bail!(fault))
    }
}

/// A command to a daemon, while it runs. Killed when dropped.
struct Call(Child);

impl Drop for Call {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemons of a run. Dropped, it ends them, the initiator first.
pub(crate) struct Session<'a> {
    /// The initiator first.
    nodes: Vec<Node>,
    events: &'a Events,
}

impl<'a> Session<'a> {
    /// A session without daemons.
    pub(crate) fn new(events: &'a Events) -> Self {
        Self { nodes: Vec::new(), events }
    }

    /// Starts a daemon, which logs to `log`.
    ///
    /// # Errors
    /// When the program does not start.
    pub(crate) fn start(&mut self, role: Role, mut command: Command, log: &Path) -> Result<()> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let stdout = file.try_clone().with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(file);
        let child = command.spawn().with_context(|| format!("`{}` did not start", words(&command)))?;
        let node = Node { role, child, log: log.to_owned(), is_kept: false };
        self.events.watch(role, node.pid());
        self.nodes.push(node);
        Ok(())
    }

    /// Runs a command to its end; `on_line` gets each line of its standard error, and says
    /// whether it is progress and no error.
    ///
    /// # Errors
    /// When it does not start, fails, or does not end before `deadline`; when a daemon ends meanwhile, or a
    /// signal comes ([`Interrupted`]).
    pub(crate) fn call(
        &mut self,
        mut command: Command,
        deadline: Instant,
        mut on_line: impl FnMut(&str) -> bool,
    ) -> Result<Said> {
        let words = words(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut call = Call(command.spawn().with_context(|| format!("`{words}` did not start"))?);
        if let (Some(stdout), Some(stderr)) = (call.0.stdout.take(), call.0.stderr.take()) {
            self.events.follow(stdout, stderr);
        }
        let mut lines = Vec::new();
        loop {
            match self.next(deadline)? {
                None => bail!("`{words}` did not end in time"),
                Some(Event::Line(line)) => {
                    if !on_line(&line) {
                        lines.push(line);
                    }
                }
                Some(Event::Said(said)) => {
                    let status = call.0.wait().with_context(|| words.clone())?;
                    let lines = lines.join("\n");
                    return match status.code() {
                        Some(0) => Ok(Said { text: said, fault: None }),
                        Some(1) => Ok(Said { text: said, fault: Some(format!("`{words}`:\n{lines}")) }),
                        _ => bail!("`{words}` failed, {status}\n{}\n{lines}", said.trim()),
                    };
                }
                Some(Event::Ended(_) | Event::Signal(_)) => {}
            }
        }
    }

    /// Lets so much time pass.
    ///
    /// # Errors
    /// When a daemon ends meanwhile, or a signal comes ([`Interrupted`]).
    pub(crate) fn pause(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        while self.next(deadline)?.is_some() {}
        Ok(())
    }

    /// The next event that is none of those that end a run; `None` at the deadline.
    fn next(&mut self, deadline: Instant) -> Result<Option<Event>> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.events.receiver.recv_timeout(left) {
            Ok(Event::Signal(signal)) => Err(Interrupted { signal }.into()),
            Ok(Event::Ended(role)) => {
                let ended = self.node(role).and_then(|node| node.ended_within(GRACE));
                let status = ended.map_or("no status".to_owned(), |status| status.to_string());
                bail!("the {role} ended too early, {status}")
            }
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to wait for"),
        }
    }

    /// Ends a daemon as a service manager would.
    ///
    /// # Errors
    /// When it does not end in time, or not successfully.
    pub(crate) fn stop(&mut self, role: Role) -> Result<()> {
        let Some(node) = self.node(role) else { bail!("there is no {role}") };
        kill_process(node.pid(), Signal::TERM).with_context(|| format!("SIGTERM to the {role}"))?;
        let Some(status) = node.ended_within(END_TIMEOUT) else {
            bail!("the {role} did not end within {} s of SIGTERM", END_TIMEOUT.as_secs())
        };
        ensure!(status.success(), "the {role} did not end well after SIGTERM, {status}");
        Ok(())
    }

    /// The processes of the daemons that run.
    pub(crate) fn running(&mut self) -> Vec<i32> {
        let running = self.nodes.iter_mut().filter_map(|node| {
            let has_ended = node.ended_within(Duration::ZERO).is_some();
            (!has_ended).then(|| node.pid().as_raw_nonzero().get())
        });
        running.collect()
    }

    /// Leaves the daemons running.
    pub(crate) fn keep(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.is_kept = true);
    }

    /// What the daemons logged last, for a user who must find out what went wrong.
    pub(crate) fn last_words(&self) -> String {
        let said = self
            .nodes
            .iter()
            .map(|node| format!("the log of the {} ends:\n{}", node.role, node.last_words()));
        said.collect::<Vec<_>>().join("\n")
    }

    fn node(&mut self, role: Role) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.role == role)
    }
}

/// Waits until a process has ended, at most `timeout`; whether it has. It need not be a child.
pub(crate) fn wait_exit(pid: Pid, timeout: Duration) -> bool {
    // No such process: it has ended, and its parent knows.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.is_ok_and(|count| count == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A session whose target is a shell that runs `script`.
    fn session<'a>(events: &'a Events, script: &str) -> Session<'a> {
        let mut session = Session::new(events);
        session.start(Role::Target, shell(script), Path::new("/dev/null")).unwrap();
        session
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn commands_are_heard_and_a_daemon_is_stopped() {
        let events = Events::silent();
        let mut session = session(&events, "trap 'exit 0' TERM; while :; do sleep 0.01; done");
        let mut lines = Vec::new();
        let said = session.call(shell("echo one >&2; echo out; echo two >&2"), soon(), |line| {
            lines.push(line.to_owned());
            true
        });
        assert_eq!(
            (said.unwrap().done().unwrap().as_str(), lines),
            ("out\n", vec!["one".to_owned(), "two".to_owned()])
        );
        session.pause(Duration::from_millis(100)).unwrap();
        session.stop(Role::Target).unwrap();
    }

    #[test]
    fn what_fails_is_an_error_that_says_so() {
        let events = Events::silent();
        let mut session = session(&events, "sleep 60");
        let mut check = |script: &str, timeout_ms, parts: &[&str]| {
            let deadline = Instant::now() + Duration::from_millis(timeout_ms);
            let error = session.call(shell(script), deadline, |_| false).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        check("echo out; echo err >&2; exit 3", 10_000, &["exit status: 3", "out", "err"]);
        check("exec sleep 60", 50, &["`sh -c exec sleep 60` did not end in time"]);
        let error = session.stop(Role::Target).unwrap_err().to_string();
        assert!(error.contains("did not end well after SIGTERM, signal: 15"), "{error}");
    }

    #[test]
    fn a_daemon_that_ends_by_itself_ends_what_waits() {
        let events = Events::silent();
        let mut session = session(&events, "sleep 0.1; exit 4");
        let error = session.call(shell("sleep 60"), soon(), |_| false).unwrap_err();
        assert_eq!(error.to_string(), "the target ended too early, exit status: 4");
    }

    #[test]
    fn a_panic_ends_the_daemons_also_those_that_do_not_want_to() {
        for script in ["sleep 60", "trap '' TERM INT; while :; do sleep 0.1; done"] {
            let mut pid = None;
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let events = Events::silent();
                let mut session = session(&events, script);
                session.pause(Duration::from_millis(100)).unwrap();
                pid = session.node(Role::Target).map(|node| node.child.id());
                panic!("on purpose");
            }));
            assert!(panic.is_err());
            let process = format!("/proc/{}", pid.unwrap());
            assert!(!Path::new(&process).exists(), "{process} is still there");
        }
    }
}
