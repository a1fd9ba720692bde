//! The load program as a user runs it: what it prints, how it ends, what it says when it cannot. Needs root,
//! and the objects that `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use lnet_bench::load::plan;
use lnet_tests::netns::{NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege};
use lnet_tests::node::Stranger;
use lnet_tests::node::message::Message;
use lnet_wire::{Body, Nid};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lnet-load");
const A: &str = "10.211.0.1@xdp";
const B: &str = "10.211.0.2@xdp";
const PATIENCE: Duration = Duration::from_secs(30);

fn privileged() -> bool {
    require_privilege("the load program over veth", &NETNS_NODES)
}

fn load(namespace: &Namespace, arguments: &str) -> Command {
    let mut command = namespace.command(Path::new(PROGRAM));
    command.args(arguments.split_whitespace()).env("RUST_BACKTRACE", "1").env("NO_COLOR", "1");
    command
}

/// Runs to the end with nothing on standard input.
fn run(namespace: &Namespace, arguments: &str) -> Output {
    load(namespace, arguments).stdin(Stdio::null()).output().unwrap()
}

/// A target, up to its end by this value's.
struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Target {
    fn start(namespace: &Namespace, more: &str) -> (Self, Value) {
        let arguments = format!("target --interface veth-b --nid {B} {more}");
        let mut command = load(namespace, &arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut target = Self { stdin: child.stdin.take(), child, lines };
        let ready = target.line();
        (target, ready["ready"].clone())
    }

    fn line(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a line").unwrap()).unwrap()
    }

    /// Bytes of memory that the process has had at most.
    fn memory_peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Closes its standard input; its report, what it said on standard error, how it ended.
    fn end(mut self) -> (Value, String, ExitStatus) {
        drop(self.stdin.take());
        let report = self.line();
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        (report["report"].clone(), words, self.child.wait().unwrap())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail when it has ended already, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn help_has_examples() {
    for arguments in [vec!["--help"], vec!["target", "--help"], vec!["put", "--help"]] {
        let output = Command::new(PROGRAM).args(&arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        assert!(text.contains("Examples") && text.contains("lnet-load put --interface"), "{text}");
    }
}

#[test]
fn wrong_options_are_answered_in_a_line() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let put = |more: &str| format!("put --interface veth-a --nid {A} {more}");
    for (arguments, parts) in [
        (put(&format!("--target {B} --size 20000")), ["--size 20000", "at most 16384 bytes"]),
        (put(&format!("--target {B} --count 0")), ["0", "1..=268435456"]),
        (put(&format!("--target {B} --count 268435457")), ["268435457", "1..=268435456"]),
        (put(&format!("--target {B} --shards 5")), ["--shards 5", "at most 4 shards"]),
        (put(&format!("--target {B} --shards 65")), ["65", "1..=64"]),
        (put(&format!("--target {B} --queues 3")), ["veth-a has 2 receive", "3 of each"]),
        (put(&format!("--target {B} --queues 0")), ["0", "1..=64"]),
        (put(&format!("--target {B} --mode fast")), ["\"fast\"", "auto, native, generic or socket"]),
        (put(&format!("--target {B} --port 0")), ["0", "1..=65535"]),
        (put(&format!("--target {A}")), [A, "own NID"]),
        (put("--target 10.211.0.2@xdp1"), ["10.211.0.2@xdp1", "another net"]),
        (put("--target 10.211.0.2@tcp"), ["10.211.0.2@tcp", "another net"]),
        (put("--target fd00:211::2@xdp"), ["fd00:211::2@xdp", "same family"]),
        (put("--target nobody"), ["--target", "nobody"]),
        (put("--target 10.211.0.77@xdp"), ["10.211.0.77@xdp does not answer", "running"]),
        (put(""), ["--target", "required"]),
        (put(&format!("--target {B} --bpf-object no/such/file.o")), ["no/such/file.o", "build-ebpf"]),
        (format!("target --interface nosuch0 --nid {A}"), ["\"nosuch0\"", "veth-a"]),
        (format!("target --interface lo --nid {A}"), ["\"lo\"", "Ethernet"]),
        (format!("target --interface veth-a --nid {B}"), [B, "10.211.0.1"]),
        ("target --interface veth-a --nid 10.211.0.1@tcp".to_owned(), ["10.211.0.1@tcp", "xdp"]),
    ] {
        let output = run(netns.a(), &arguments);
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments}");
        // Its own words are one line; clap adds how to use it. A log line may come before.
        let errors: Vec<_> = words.lines().filter(|line| line.starts_with("error: ")).collect();
        let [error] = errors[..] else { panic!("{arguments}: {words}") };
        assert!(parts.iter().all(|part| words.contains(part)), "{arguments}: {parts:?} not in {words}");
        assert!(!words.contains("backtrace") && !words.contains("panicked"), "{arguments}: {words}");
        assert!(error.len() < 400 && words.lines().count() < 10, "{words}");
        // What a node said before the error is all that may be on standard output.
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.lines().all(|line| line.starts_with("{\"ready\":")), "{out}");
    }
}

#[test]
fn a_run_prints_what_was_counted() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let (target, ready) = Target::start(netns.b(), "");
    assert_eq!(ready["nid"], B);
    assert_eq!((&ready["queues"], &ready["shards"]), (&Value::from(2), &Value::from(2)));
    assert_eq!(ready["mode"], "native");
    // With nothing on standard input, as in the background of a script.
    let output = run(netns.a(), &format!("put --interface veth-a --nid {A} --target {B} --count 3000"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [ready, report] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(ready["ready"]["nid"], A);
    let puts = &report["report"]["puts"];
    assert_eq!((&puts["sent"], &puts["acked"], &puts["lost"]), (&3000.into(), &3000.into(), &0.into()));
    assert!(report["report"]["latency_ns"]["p50"].as_u64().unwrap() > 0);
    assert!(report["report"]["seconds"].as_f64().unwrap() > 0.0);
    let (report, _, status) = target.end();
    assert!(status.success());
    let puts = &report["puts"];
    assert_eq!(
        (&puts["received"], &puts["verified"], &puts["corrupt"]),
        (&3000.into(), &3000.into(), &0.into())
    );
    for key in ["nid", "mode", "slots", "misdirected", "reasons", "handled", "recovery", "drops", "rings"] {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
    let shards: Vec<u64> = (0..2)
        .map(|shard| {
            let slots = report["slots"].as_array().unwrap().iter().filter(|slot| slot["shard"] == shard);
            slots.map(|slot| slot["frames"].as_u64().unwrap()).sum()
        })
        .collect();
    let handled: u64 =
        report["handled"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(shards[0] + shards[1], handled, "each frame is accounted for");
    assert!(shards.iter().all(|frames| *frames > 300), "{shards:?}");
}

/// Puts that no load sends are counted as corrupt; the target goes on, and its memory does not grow.
#[test]
fn a_target_survives_hostile_puts() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let (target, _) = Target::start(netns.b(), "");
    let [source, nid]: [Nid; 2] = [A, B].map(|nid| nid.parse().unwrap());
    let mut stranger = Stranger::new(netns.a(), source, nid);
    stranger.greet(|| {});
    let before = target.memory_peak_bytes();
    let mut sent = 0;
    for number in (0..64).map(|bit| u64::MAX << bit).chain((0..64).map(|bit| 1 << bit)).chain([0, 7]) {
        for (match_bits, offset) in [(0, 0), (3, 1), (15, 80_000), (16, 0), (1, u32::MAX)] {
            let mut put = Message::put(source, nid, 10 + (number % 8) as u32, match_bits, 100);
            let Body::Put { hdr_data, offset: at, .. } = &mut put.header.body else { panic!("a PUT") };
            (*hdr_data, *at) = (number, offset);
            let signed = stranger.sign(put.clone()).datagram();
            stranger.send(&signed);
            stranger.send(&put.datagram()[..150]);
            sent += 1;
            if sent % 10 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    // As a load would send them, if it had so many: a target that took them would keep a bit of each below.
    for number in [u64::from(u32::MAX), 1 << 31, plan::NUMBERS_MAX] {
        let plan::Put { portal, match_bits, .. } = plan::Put::new(number);
        let mut put = Message::put(source, nid, portal, match_bits, 0);
        let Body::Put { hdr_data, .. } = &mut put.header.body else { panic!("a PUT") };
        *hdr_data = number;
        let signed = stranger.sign(put).datagram();
        stranger.send(&signed);
    }
    // Its port is the next node's.
    drop(stranger);
    let output = run(netns.a(), &format!("put --interface veth-a --nid {A} --target {B} --count 2000"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What the Puts are written to was not there before either.
    assert!(target.memory_peak_bytes() < before + (96 << 20), "{before} {}", target.memory_peak_bytes());
    let (report, words, status) = target.end();
    assert!(status.success(), "{words}");
    let puts = &report["puts"];
    assert_eq!(puts["verified"], 2000, "{report}");
    // Of five places three exist.
    assert_eq!(puts["corrupt"], sent / 5 * 3 + 3, "{report}");
    assert_eq!(report["reasons"]["bad_length"], sent, "{report}");
}

#[test]
fn refused_frames_are_logged_on_standard_error() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let (mut target, _) = Target::start(netns.b(), "--log");
    let source: Nid = A.parse().unwrap();
    let socket = enter(netns.a(), || UdpSocket::bind((source.ip().unwrap(), 0)).unwrap());
    let mut datagram = Message::put(source, B.parse().unwrap(), 10, 0, 0).datagram();
    datagram[0] ^= 1;
    socket.send_to(&datagram, (B.parse::<Nid>().unwrap().ip().unwrap(), 988)).unwrap();
    // While the target runs, not only at its end.
    let (sender, lines) = std::sync::mpsc::channel();
    let words = BufReader::new(target.child.stderr.take().unwrap());
    std::thread::spawn(move || words.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let begun = Instant::now();
    loop {
        let line = lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())).expect("a line of the log");
        if line.contains("lnet_xdp") {
            assert!(line.contains("BadMagic") && line.contains("10.211.0.1"), "{line}");
            break;
        }
    }
}
