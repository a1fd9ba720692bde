//! `cargo xtask run` with stand-ins for `lnetd` and `lnetctl`: however a run ends, no namespace and no
//! daemon is left, and the exit status says how it ended. Needs root.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, end by panics")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use xtask::privilege::NETNS_NODES;
use xtask::testing::{require_privilege, wait_until};

const TIMEOUT: Duration = Duration::from_secs(30);
const ROLES: [&str; 2] = ["initiator", "target"];

/// A daemon as a shell script. `BEHAVIOUR` is how it behaves: `<role>=<manner>`, or `good`.
const LNETD: &str = r#"#!/bin/sh
while [ "$1" != --socket ]; do shift; done
case "$2" in a.sock) role=initiator ;; b.sock) role=target ;; esac
echo $$ > "$DIRECTORY/$role.pid"
case "$BEHAVIOUR" in
    $role=no-start) echo "words of the $role"; exit 9 ;;
    $role=stubborn*) trap '' TERM INT HUP ;;
    $role=bad-end) trap 'exit 3' TERM ;;
    *) trap 'exit 0' TERM ;;
esac
touch "$2"
while :; do sleep 0.05; done
"#;

/// `lnetctl` as a shell script: everything works, and every message arrives.
const LNETCTL: &str = r#"#!/bin/sh
case "$2" in a.sock) role=initiator ;; b.sock) role=target ;; esac
shift 2
say() { case "$words" in *--json*) echo "$2" ;; *) echo "$1" ;; esac; }
words="$*"
case "$words" in
    "import "*) [ "$BEHAVIOUR" != "$role=fail" ] || { echo "words of lnetctl"; exit 234; } ;;
    "ping "*) echo "- primary nid: 10.211.0.2@xdp" ;;
    "load start "*) echo 1 ;;
    "load wait "*)
        touch "$DIRECTORY/load.ready"
        case "$BEHAVIOUR" in *hang) exec sleep 600 ;; esac
        echo "1000 of 1000 messages" >&2
        say "table of the $role" '[{"sent":1000}]' ;;
    "load stop "*"--sent sent.json"*)
        [ "$(cat sent.json)" = '[{"sent":1000}]' ] || exit 9
        say "table of the $role" '[{"seen":1000}]' ;;
    "load stop "*) echo '[{"sent":1000}]' ;;
    "frames check "*)
        say "frames of the $role" '{"misdirected":0}'
        [ "$BEHAVIOUR" != "$role=misdirect" ] || { echo "3 frames went astray" >&2; exit 1; } ;;
esac
"#;

/// A run of xtask in a directory of its own, which stands for the workspace.
struct Run {
    directory: PathBuf,
    child: Option<Child>,
    pid: u32,
}

impl Run {
    fn start(behaviour: &str, arguments: &[&str]) -> Self {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("cleanup-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for (name, script) in [("lnetd", LNETD), ("lnetctl", LNETCTL)] {
            let program = directory.join(name);
            fs::write(&program, script).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = xtask(&directory);
        command.args(["run", "--count", "1000", "--programs"]).arg(&directory).args(arguments);
        command.env("DIRECTORY", &directory).env("BEHAVIOUR", behaviour);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        Self { directory, child: Some(child), pid }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), signal).unwrap();
    }

    fn wait_for_file(&self, name: &str) {
        wait_until(&format!("{name} exists"), TIMEOUT, || self.directory.join(name).exists());
    }

    /// The exit status and what was said on standard output and standard error.
    fn end(&mut self) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.child.take().unwrap().wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap_or(-1), text(stdout), text(stderr))
    }

    fn namespaces(&self) -> Vec<String> {
        let prefix = format!("lnet-{}-", self.pid);
        let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(&prefix)).collect()
    }

    fn node(&self, role: &str) -> Option<PathBuf> {
        let pid = fs::read_to_string(self.directory.join(format!("{role}.pid"))).ok()?;
        Some(Path::new("/proc").join(pid.trim()))
    }

    /// Sockets, logs and documents of the run.
    fn records(&self) -> PathBuf {
        self.directory.join(format!("target/xtask/run-{}", self.pid))
    }

    fn assert_nothing_is_left(&self) {
        assert!(!self.records().exists());
        assert_eq!(self.namespaces(), [""; 0]);
        for node in ROLES.iter().filter_map(|role| self.node(role)) {
            assert!(!node.exists(), "{} is still there", node.display());
        }
    }
}

impl Drop for Run {
    /// After a failed test too, nothing may stay: ends the run as a user would, and removes its directory.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
        let _ = xtask(&self.directory).arg("clean").output();
        for name in self.namespaces() {
            let _ = xtask::netns::remove(&name);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn xtask(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("--root").arg(root).stdin(Stdio::null());
    command
}

fn privileged() -> bool {
    require_privilege("cargo xtask run", &NETNS_NODES)
}

/// Lets a run end by itself; `said` must be part of its standard error.
fn check(behaviour: &str, arguments: &[&str], status: i32, said: &str) -> String {
    let mut run = Run::start(behaviour, arguments);
    let (found, stdout, stderr) = run.end();
    assert_eq!(found, status, "{behaviour}: {stderr}");
    assert!(stderr.contains(said), "{said:?} is not in {stderr}");
    run.assert_nothing_is_left();
    stdout
}

#[test]
fn a_good_run_prints_tables_or_json() {
    if !privileged() {
        return;
    }
    let tables = check("good", &[], 0, "");
    for part in [
        "== one message in flight ==\ntable of the initiator\n",
        "== target ==\ntable of the target\n",
        "== frames of the initiator ==\nframes of the initiator\n",
    ] {
        assert!(tables.contains(part), "{tables}");
    }
    assert!(tables.ends_with("The run holds.\n"), "{tables}");
    let json: serde_json::Value = serde_json::from_str(&check("good", &["--json"], 0, "")).unwrap();
    assert_eq!(json["initiator"][0]["sent"], 1000);
    assert_eq!(json["target"][0]["seen"], 1000);
    assert_eq!(json["failures"], serde_json::json!([]));
}

#[test]
fn a_run_that_does_not_hold_fails_and_says_why() {
    if !privileged() {
        return;
    }
    let tables = check("target=misdirect", &[], 1, "3 frames went astray");
    assert!(tables.contains("frames of the target") && !tables.contains("holds"), "{tables}");
    let json = check("initiator=misdirect", &["--json"], 1, "3 frames went astray");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["failures"].as_array().unwrap().len(), 1);
}

#[test]
fn a_daemon_or_a_command_that_fails_fails_the_run() {
    if !privileged() {
        return;
    }
    check("target=no-start", &[], 1, "the target ended too early, exit status: 9");
    check("initiator=no-start", &[], 1, "words of the initiator");
    check("initiator=fail", &[], 1, "words of lnetctl");
    check("target=bad-end", &[], 1, "the target did not end well after SIGTERM, exit status: 3");
    check("hang", &["--timeout", "1"], 1, "load wait 1 --progress` did not end in time");
}

#[test]
fn each_signal_that_asks_to_end_cleans_up() {
    if !privileged() {
        return;
    }
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = Run::start("hang", &[]);
        run.wait_for_file("load.ready");
        assert_eq!(run.namespaces().len(), 2);
        run.signal(signal);
        let (found, _, stderr) = run.end();
        assert_eq!(found, status, "{stderr}");
        run.assert_nothing_is_left();
    }
}

#[test]
fn a_second_ctrl_c_does_not_stop_the_cleanup_of_daemons_that_must_be_killed() {
    if !privileged() {
        return;
    }
    for behaviour in ["initiator=stubborn hang", "target=stubborn hang"] {
        let mut run = Run::start(behaviour, &["--keep"]);
        run.wait_for_file("load.ready");
        run.signal(Signal::INT);
        let mut said = Vec::new();
        while !said.ends_with(b"namespaces\n") {
            let mut byte = [0];
            let stderr = run.child.as_mut().unwrap().stderr.as_mut().unwrap();
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        run.signal(Signal::INT);
        let (status, _, stderr) = run.end();
        assert_eq!(status, 130, "{stderr}");
        assert!(stderr.contains("already at it") && stderr.contains("killing it"), "{stderr}");
        run.assert_nothing_is_left();
    }
}

#[test]
fn what_a_killed_run_leaves_ends_by_itself_or_with_the_next_run() {
    if !privileged() {
        return;
    }
    let mut killed = Run::start("hang", &[]);
    killed.wait_for_file("load.ready");
    killed.signal(Signal::KILL);
    killed.end();
    assert_eq!(killed.namespaces().len(), 2);
    wait_until("the daemons ended with the run", TIMEOUT, || {
        ROLES.iter().all(|role| killed.node(role).is_some_and(|node| !node.exists()))
    });
    // Another program may do the same at this moment, so that nothing is said by this one.
    check("good", &[], 0, "");
    assert!(xtask(&killed.directory).arg("clean").status().unwrap().success());
    killed.assert_nothing_is_left();
}

#[test]
fn a_kept_run_stays_until_clean() {
    if !privileged() {
        return;
    }
    let mut run = Run::start("good", &["--keep"]);
    let (status, stdout, stderr) = run.end();
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.ends_with("The run holds.\n"), "{stdout}");
    for part in ["ping -c 3 10.211.0.2", "tcpdump", "initiator --to 10.211.0.2@xdp,", "cargo xtask clean"] {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }
    let nodes = ROLES.map(|role| run.node(role).unwrap());
    let is_there = |run: &Run| {
        run.namespaces().len() == 2
            && nodes.iter().all(|node| node.exists())
            && run.records().join("a.log").exists()
    };
    assert!(is_there(&run));
    // A run that follows does not take it for what a killed one left.
    check("good", &[], 0, "");
    assert!(is_there(&run));

    let cleaned = xtask(&run.directory).arg("clean").output().unwrap();
    let said = String::from_utf8_lossy(&cleaned.stderr);
    assert!(cleaned.status.success() && said.contains("kept runs removed: 1"), "{said}");
    wait_until("the kept daemons have ended", TIMEOUT, || nodes.iter().all(|node| !node.exists()));
    run.assert_nothing_is_left();
}

#[test]
fn a_failed_run_can_be_kept() {
    if !privileged() {
        return;
    }
    let mut run = Run::start("initiator=no-start", &["--keep"]);
    let (status, _, stderr) = run.end();
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("Not both daemons are up"), "{stderr}");
    assert_eq!(run.namespaces().len(), 2);
    let cleaned = xtask(&run.directory).arg("clean").status().unwrap();
    assert!(cleaned.success());
    let node = run.node("target").unwrap();
    wait_until("the kept daemon has ended", TIMEOUT, || !node.exists());
    run.assert_nothing_is_left();
}

#[test]
fn without_capabilities_it_says_what_it_needs_before_it_builds_anything() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--inh-caps=-all", "--bounding-set=-all", env!("CARGO_BIN_EXE_xtask")]);
        command.args(["--root", "/nonexistent"]).args(arguments);
        command.output().unwrap()
    };
    if !privileged() {
        return;
    }
    let output = run(&["run", "--mode", "native"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_BPF", "root"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}
