//! Daemons for one test, and commands to them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lnet_tests::confined::REACTOR;
use lnet_tests::netns::{Namespace, Netns, Wiring, wait_until};
use lnet_tests::node::nid_v4;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The UDP port of those that may not have 988.
pub(crate) const PORT: u16 = 10988;

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A running `lnetd`, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// The directory of its socket and its log.
    pub(crate) directory: Directory,
}

/// A directory for one test.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lnetd-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("node.sock")
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// The daemon with the socket of this directory and these further options, and its log.
    pub(crate) fn command(&self, inside: Option<&Namespace>, options: &str) -> Command {
        let program = program("lnetd");
        let command = match inside {
            Some(namespace) => namespace.command(&program),
            None => Command::new(program),
        };
        self.complete(command, options)
    }

    fn complete(&self, mut command: Command, options: &str) -> Command {
        let log = File::options().create(true).append(true).open(self.0.join("log")).unwrap();
        command.arg("--socket").arg(self.socket()).args(options.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Runs a daemon that is to end by itself, and gives its status with what it said.
    pub(crate) fn ends(&self, options: &str) -> (i32, String) {
        let mut child = self.command(None, options).spawn().unwrap();
        let status = ended(&mut child).unwrap_or_else(|| {
            child.kill().unwrap();
            panic!("lnetd {options} goes on:\n{}", self.log())
        });
        (status.code().unwrap_or(-1), self.log())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Daemon {
    /// Not configured, in this process's namespace.
    pub(crate) fn alone() -> Self {
        Self::alone_with("--configure")
    }

    /// Starts it in this process's namespace, with these options.
    pub(crate) fn alone_with(options: &str) -> Self {
        Self::start(Directory::new(), None, options)
    }

    pub(crate) fn start(directory: Directory, inside: Option<&Namespace>, options: &str) -> Self {
        let command = directory.command(inside, options);
        Self::spawn(directory, command)
    }

    /// The daemon that a command starts, which lacks options alone.
    pub(crate) fn start_as(directory: Directory, command: Command, options: &str) -> Self {
        let command = directory.complete(command, options);
        Self::spawn(directory, command)
    }

    pub(crate) fn spawn(directory: Directory, mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        let mut daemon = Self { child, directory };
        let begun = Instant::now();
        while !daemon.directory.log().contains("ready") {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("{command:?}: {status}:\n{}", daemon.directory.log());
            }
            assert!(begun.elapsed() < PATIENCE, "{}", daemon.directory.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Ok(expected) = std::env::var(REACTOR) {
            let log = daemon.directory.log();
            assert!(log.contains(&format!("reactor {expected}")), "{log}");
        }
        daemon
    }

    /// The daemon that a command starts, with a log that is not read.
    pub(crate) fn unheard(directory: Directory, mut command: Command, log: Stdio) -> Self {
        let child = command.stderr(log).spawn().unwrap();
        let daemon = Self { child, directory };
        wait_until("the daemon serves", PATIENCE, || UnixStream::connect(daemon.socket()).is_ok());
        daemon
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    /// Has it read another start-up document at this path, and returns what it tells, up to this end.
    pub(crate) fn reload(&self, path: &Path, document: &str, end: &str) -> String {
        fs::write(path, document).unwrap();
        let before = self.directory.log().len();
        self.signal(Signal::HUP);
        wait_until("the reload is told", PATIENCE, || self.directory.log()[before..].contains(end));
        self.directory.log()[before..].to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `lnetctl` with these words.
    pub(crate) fn run(&self, words: &str) -> Ran {
        self.run_with(words, "")
    }

    pub(crate) fn run_with(&self, words: &str, stdin: &str) -> Ran {
        let mut command = self.lnetctl(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read its input may be gone by now.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { status: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    pub(crate) fn lnetctl(&self, words: &str) -> Command {
        let mut command = Command::new(program("lnetctl"));
        command.arg("--socket").arg(self.directory.socket()).args(words.split_whitespace());
        command
    }

    /// Runs it; it must succeed and say nothing of errors. Returns what it prints.
    #[track_caller]
    pub(crate) fn good(&self, words: &str) -> String {
        self.good_with(words, "")
    }

    #[track_caller]
    pub(crate) fn good_with(&self, words: &str, stdin: &str) -> String {
        let ran = self.run_with(words, stdin);
        assert!(
            ran.status == 0 && ran.stderr.is_empty(),
            "lnetctl {words}: {ran:?}\n{}",
            self.directory.log()
        );
        ran.stdout
    }

    /// Runs it; it must fail, and say these words.
    #[track_caller]
    pub(crate) fn bad(&self, words: &str, expected: &[&str]) {
        self.bad_with(words, "", expected);
    }

    #[track_caller]
    pub(crate) fn bad_with(&self, words: &str, stdin: &str, expected: &[&str]) {
        let ran = self.run_with(words, stdin);
        // What became of each ping is shown, also if that is an error.
        let said = if words.starts_with("ping") { &ran.stdout } else { &ran.stderr };
        let is_all = said.len() == ran.stdout.len() + ran.stderr.len();
        let fits = expected.iter().all(|expected| said.contains(expected));
        assert!(ran.status != 0 && is_all && fits, "lnetctl {words}: {ran:?}\n{}", self.directory.log());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        ended(&mut self.child).unwrap_or_else(|| panic!("lnetd goes on:\n{}", self.directory.log()))
    }

    /// Ends it in order, and gives its directory back.
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.wait();
        let log = self.directory.log();
        assert!(status.success(), "{status}:\n{log}");
        assert!(!self.directory.socket().exists(), "the socket is left:\n{log}");
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two daemons of two shards that are not configured, over veth rails of two queues.
pub(crate) struct Two {
    pub(crate) a: Daemon,
    pub(crate) b: Daemon,
    // Last, so that no process is inside when it is removed.
    pub(crate) netns: Netns,
}

impl Two {
    pub(crate) fn new(rails: u8, options: &str) -> Self {
        let netns = Netns::new(Wiring { rails, queues: 2, ..Wiring::default() });
        let options = format!("--shards 2 --spin 0 {options}");
        let start = |inside| Daemon::start(Directory::new(), Some(inside), &options);
        let (a, b) = (start(netns.a()), start(netns.b()));
        Self { a, b, netns }
    }

    /// Two configured daemons, with an NI on each rail, on a net of its own: `xdp`, `xdp1`.
    pub(crate) fn configured(rails: u8, options: &str) -> Self {
        let nets: Vec<_> = (0..rails).map(|rail| format!("xdp{rail}")).collect();
        Self::on(&nets.iter().map(String::as_str).collect::<Vec<_>>(), options)
    }

    /// Two configured daemons, with an NI on each of these nets, each on a rail of its own.
    pub(crate) fn on(nets: &[&str], options: &str) -> Self {
        let two = Self::new(nets.len() as u8, options);
        for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
            daemon.good("lnet configure");
            for (interface, net) in namespace.interfaces().iter().zip(nets) {
                daemon.good(&format!("net add --net {net} --if {}", interface.name));
            }
        }
        two
    }

    /// The NIDs of the ends of a rail.
    pub(crate) fn nids(&self, rail: usize) -> [String; 2] {
        [self.netns.a(), self.netns.b()].map(|namespace| {
            let nid = nid_v4(&namespace.interfaces()[rail], rail as u16);
            nid.to_string()
        })
    }
}

/// A program of this workspace, built once as this test was; `cargo xtask test` has built it with the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let directory = BUILT.get_or_init(|| {
        // The test lies in `deps` beside the programs.
        let test = std::env::current_exe().unwrap();
        let directory = test.ancestors().nth(2).map(Path::to_owned).unwrap();
        if std::env::var_os("LNET_TESTS_PROGRAMS_BUILT").is_some() {
            return directory;
        }
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--package",
            "lnetd",
            "--package",
            "lnetctl",
            "--package",
            "lst",
            "--package",
            "lnet-nettest",
        ]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(built.success(), "{build:?}: {built}");
        directory
    });
    directory.join(name)
}

/// The status of a program that ends by itself in time.
pub(crate) fn ended(child: &mut Child) -> Option<ExitStatus> {
    let mut status = None;
    let begun = Instant::now();
    while status.is_none() && begun.elapsed() < PATIENCE {
        status = child.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    status
}

/// Waits until a command prints something.
#[track_caller]
pub(crate) fn until_shown(daemon: &Daemon, words: &str, part: &str) {
    wait_until(&format!("lnetctl {words} shows {part:?}"), PATIENCE, || {
        daemon.run(words).stdout.contains(part)
    });
}
