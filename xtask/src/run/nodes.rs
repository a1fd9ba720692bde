//! The two nodes as child processes, and what they and the user make happen.
//!
//! A node is always ended: by its standard input, which closes; after a grace time by SIGTERM; then by
//! SIGKILL. Nothing here panics while it does so, for it also runs while a panic unwinds.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use xtask::command::{say, words};

use super::END_TIMEOUT;
use super::report::{Line, Ready, Report};

/// How long a node may take to end by itself once its standard input is closed.
const GRACE: Duration = Duration::from_secs(3);
/// How long a node may take to end after SIGTERM.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Which node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Sends the Puts.
    Initiator,
    /// Receives them.
    Target,
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
    /// A node printed a line.
    Line(Role, String),
    /// A node closed its standard output: it has ended, or is about to.
    Closed(Role),
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
        let (sender, receiver) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signal handlers")?;
        let signalled = sender.clone();
        thread::spawn(move || {
            for (count, signal) in signals.forever().enumerate() {
                say(if count == 0 { "ending the nodes, removing the namespaces" } else { "already at it" });
                // Nobody listens once the run is over and its cleanup goes on.
                let _ = signalled.send(Event::Signal(signal));
            }
        });
        Ok(Self { sender, receiver })
    }

    /// Reads the lines of a node until it closes its standard output.
    fn follow(&self, role: Role, stdout: impl std::io::Read + Send + 'static) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(Event::Line(role, line));
            }
            let _ = sender.send(Event::Closed(role));
        });
    }
}

/// A node, and what it has said so far. Ends when dropped.
pub(crate) struct Node {
    role: Role,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Set once it can be sent to.
    pub(crate) ready: Option<Ready>,
    /// Set once it is done.
    pub(crate) report: Option<Report>,
}

impl Node {
    fn hear(&mut self, line: &str) -> Result<()> {
        match Line::parse(line).with_context(|| format!("the {}", self.role))? {
            Line::Ready(ready) => self.ready = Some(ready),
            Line::Report(report) => self.report = Some(*report),
        }
        Ok(())
    }

    /// Waits for its end, `None` if it does not come in time.
    fn ended_within(&mut self, timeout: Duration) -> Option<ExitStatus> {
        wait_exit(Pid::from_child(&self.child), timeout);
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.ended_within(GRACE).is_some() {
            return;
        }
        say(format_args!("the {} (process {}) does not end, terminating it", self.role, self.child.id()));
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if self.ended_within(TERMINATE_TIMEOUT).is_none() {
            say(format_args!("the {} (process {}) does not end, killing it", self.role, self.child.id()));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The nodes of a run. Dropped, it ends the initiator first, so that nobody sends to a node that is gone.
pub(crate) struct Session<'a> {
    initiator: Option<Node>,
    target: Option<Node>,
    events: &'a Events,
}

impl<'a> Session<'a> {
    /// A session without nodes.
    pub(crate) fn new(events: &'a Events) -> Self {
        Self { initiator: None, target: None, events }
    }

    /// Starts a node.
    ///
    /// # Errors
    /// When the program does not start.
    pub(crate) fn start(&mut self, role: Role, mut command: Command) -> Result<()> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("`{}` did not start", words(&command)))?;
        if let Some(stdout) = child.stdout.take() {
            self.events.follow(role, stdout);
        }
        let stdin = child.stdin.take();
        *self.slot(role) = Some(Node { role, child, stdin, ready: None, report: None });
        Ok(())
    }

    /// Waits until a node has said what `reached` looks for; `what` completes "ended before ..".
    ///
    /// # Errors
    /// When `deadline` passes, either node ends without a report, prints something else, or a signal
    /// comes ([`Interrupted`]).
    pub(crate) fn wait(
        &mut self,
        role: Role,
        what: &str,
        deadline: Instant,
        reached: impl Fn(&Node) -> bool,
    ) -> Result<()> {
        while !self.slot(role).as_ref().is_some_and(&reached) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.receiver.recv_timeout(left) {
                Ok(event) => self.handle(event, what)?,
                Err(RecvTimeoutError::Timeout) => bail!("waited in vain for the {role} until {what}"),
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left to wait for"),
            }
        }
        Ok(())
    }

    /// Ends a node and gives its report.
    ///
    /// # Errors
    /// As [`Session::wait`]; also when it does not exit, or not successfully.
    pub(crate) fn finish(&mut self, role: Role) -> Result<Report> {
        if let Some(node) = self.slot(role) {
            drop(node.stdin.take());
        }
        self.wait(role, "its report", Instant::now() + END_TIMEOUT, |node| node.report.is_some())?;
        let Some(mut node) = self.slot(role).take() else { bail!("there is no {role}") };
        let Some(status) = node.ended_within(END_TIMEOUT) else {
            bail!("the {role} did not exit within {} s after its report", END_TIMEOUT.as_secs())
        };
        ensure!(status.success(), "the {role} reported and then failed, {status}; its words are above");
        node.report.take().with_context(|| format!("the {role} has no report"))
    }

    fn handle(&mut self, event: Event, what: &str) -> Result<()> {
        match event {
            Event::Signal(signal) => Err(Interrupted { signal }.into()),
            Event::Line(role, line) => self.slot(role).as_mut().map_or(Ok(()), |node| node.hear(&line)),
            Event::Closed(role) => match self.slot(role).as_mut() {
                Some(node) if node.report.is_none() => {
                    let status = node.ended_within(GRACE);
                    let status = status.map_or("still running".to_owned(), |status| status.to_string());
                    bail!("the {role} ended before {what}, {status}; its words are above")
                }
                _ => Ok(()),
            },
        }
    }

    fn slot(&mut self, role: Role) -> &mut Option<Node> {
        match role {
            Role::Initiator => &mut self.initiator,
            Role::Target => &mut self.target,
        }
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

    const READY: &str = r#"echo '{"ready":{"nid":"n","mode":"native"}}'; "#;

    /// A session whose target is a shell that runs `script`.
    fn session<'a>(events: &'a Events, script: &str) -> Session<'a> {
        let mut session = Session::new(events);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        session.start(Role::Target, command).unwrap();
        session
    }

    fn events() -> Events {
        let (sender, receiver) = channel();
        Events { sender, receiver }
    }

    fn wait_ready(session: &mut Session<'_>) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        session.wait(Role::Target, "it was ready", deadline, |node| node.ready.is_some())
    }

    #[test]
    fn a_node_is_heard_and_finished() {
        let events = events();
        let script = format!(r#"{READY} cat; echo '{{"report":{{"misdirected":4}}}}'"#);
        let mut session = session(&events, &script);
        wait_ready(&mut session).unwrap();
        assert_eq!(session.finish(Role::Target).unwrap().misdirected, 4);
    }

    #[test]
    fn a_node_that_fails_or_talks_nonsense_is_an_error_that_says_so() {
        let check = |script: &str, part: &str| {
            let events = events();
            let mut session = session(&events, script);
            let error = wait_ready(&mut session).and_then(|()| session.finish(Role::Target)).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{script}: {error:#}");
        };
        check("exit 3", "the target ended before it was ready, exit status: 3");
        check(&format!("{READY} cat"), "the target ended before its report, exit status: 0");
        check(&format!(r#"{READY} cat; echo '{{"report":{{}}}}'; exit 4"#), "reported and then failed");
        check("echo nonsense; cat", "not a line of the load program: \"nonsense\"");
    }

    #[test]
    fn a_node_that_says_nothing_is_waited_for_until_the_deadline() {
        let events = events();
        let mut session = session(&events, "cat");
        let deadline = Instant::now() + Duration::from_millis(50);
        let error =
            session.wait(Role::Target, "it was ready", deadline, |node| node.ready.is_some()).unwrap_err();
        assert_eq!(error.to_string(), "waited in vain for the target until it was ready");
    }

    #[test]
    fn a_panic_ends_the_nodes_also_those_that_do_not_want_to() {
        for script in ["cat", "trap '' TERM INT; while :; do sleep 0.1; done"] {
            let mut pid = None;
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let events = events();
                let mut session = session(&events, &format!("{READY} {script}"));
                wait_ready(&mut session).unwrap();
                pid = session.target.as_ref().map(|node| node.child.id());
                panic!("on purpose");
            }));
            assert!(panic.is_err());
            let process = format!("/proc/{}", pid.unwrap());
            assert!(!std::path::Path::new(&process).exists(), "{process} is still there");
        }
    }
}
