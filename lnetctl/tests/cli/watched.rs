//! `check`, `watch` and `top`: files without a node, what changes on one, and what goes by it.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::commands::configured;
use crate::run::{Node, ran};
use crate::schema;

#[test]
fn documents_are_checked_without_a_daemon() {
    let check = |words: &[&str], text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lnetctl"));
        command.arg("check").args(words).env("LNET_SOCKET", "/no/such/socket");
        ran(&mut command, text)
    };
    let good = check(&[], "global:\n    retry_count: 3\n    transaction_timeout: 60\n");
    assert_eq!((good.status, good.stderr.as_str()), (0, ""), "{good:?}");
    assert_eq!(good.stdout, "check:\n      file: standard input\n      items: 2\n");
    // Files that ask for nothing.
    for blank in ["", "---\n", "# nothing\n"] {
        assert!(check(&[], blank).stdout.contains("items: 0\n"), "{blank}");
    }
    let bad = check(&["--json"], "global:\n    retry_count: much\nnets:\n");
    assert_eq!((bad.status, bad.stdout.as_str()), (234, ""), "{bad:?}");
    schema::check(&bad.stderr);
    let said: Value = serde_json::from_str(&bad.stderr).unwrap();
    let errors = said["check"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "{said}");
    let descr = errors[0]["check"]["descr"].as_str().unwrap();
    assert!(descr.starts_with("line 2, column 18: "), "{said}");
    let missing = check(&["/no/such/file"], "");
    assert!(missing.status == 255 && missing.stderr.contains("cannot open /no/such/file"), "{missing:?}");
}

/// A running `lnetctl watch`, ended when dropped.
struct Watch(Child);

impl Watch {
    fn start(node: &Node, words: &str) -> (Self, Lines<BufReader<ChildStdout>>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lnetctl"));
        command.args(["watch", "--interval", "10", "--seconds", "20"]).args(words.split_ascii_whitespace());
        let mut child = command.env("LNET_SOCKET", &node.socket).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (Self(child), lines)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_changes_is_told() {
    let node = configured();
    let (_watch, mut lines) = Watch::start(&node, "--count 8");
    let (_other, mut json) = Watch::start(&node, "--json --count 1");
    // Both have looked once.
    std::thread::sleep(std::time::Duration::from_millis(500));
    node.good("set retry_count 5");
    let mut next = || lines.next().unwrap().unwrap();
    // The timeout of LNDs follows.
    let told = [next(), next()].join("\n");
    assert!(told.contains("~ global retry_count: 2 -> 5"), "{told}");
    let line = json.next().unwrap().unwrap();
    schema::check(&line);
    let change: Value = serde_json::from_str(&line).unwrap();
    let change = &change["change"];
    assert!(change["of"].as_str().unwrap().starts_with("global "), "{change}");
    assert!(change["at_ms"].as_u64().unwrap() > 1 << 40, "{change}");
    assert!(json.next().is_none(), "one is enough");
    node.good("net add --net tcp --if eth0");
    let told = [next(), next(), next()].join("\n");
    assert!(told.contains(" status: up") && told.contains(" interface: eth0"), "{told}");
    node.good("fault delay add --source * --dest * --rate 1 --latency 2");
    assert!(next().starts_with("+ fault delay 0: "));
    node.good("fault delay del --all");
    assert!(next().starts_with("- fault delay 0: "));
    // The last of eight.
    node.good("net set --nid 10.77.0.11@tcp --health 700");
    assert_eq!(next(), "~ ni 10.77.0.11@tcp health: 1000 -> 700");
    assert!(lines.next().is_none());
    node.bad("watch --interval 1", 234, &["10 to 86400000"]);
    assert_eq!(node.good("watch --seconds 1 --interval 10"), "");
}

#[test]
fn top_prints_a_picture_for_scripts() {
    let node = configured();
    node.good("net add --net tcp --if eth0");
    node.good("peer add --prim_nid 10.77.0.12@tcp");
    node.good("route add --net tcp7 --gateway 10.77.0.12@tcp");
    let shown = node.good("top --once --interval 10");
    let lines: Vec<_> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "LNet: 2 NIs, 1 NIDs of peers, 1 routes; payload out 0B/s, in 0B/s",
        "local NI state health credits sent/s recv/s out B/s in B/s drops/s",
        "0@lo up 1000 0 0 0 0 0",
        "10.77.0.11@tcp up 1000 256/256 0 0 0 0 0",
        "route to by gateway state hops priority",
        "tcp7 10.77.0.12@tcp down 1 0",
        "peer NI state health credits sent/s recv/s out B/s in B/s queued",
    ];
    assert_eq!(lines[..7], expected, "{shown}");
    assert!(lines.len() == 8 && lines[7].starts_with("10.77.0.12@tcp down "), "{shown}");
    node.good("top --interval 10 --json");
    node.bad("top", 255, &["no terminal", "--once"]);
    node.good("lnet unconfigure");
    node.bad("top --once", 234, &["errno: -100"]);
}

#[test]
fn what_is_no_capture_is_told() {
    let node = configured();
    let file = node.file("text", "no capture at all, but some text that is longer than a block's head");
    node.bad(&format!("capture show {}", file.display()), 255, &["it is no pcapng file"]);
    node.bad("capture show /no/such/file", 255, &["cannot open /no/such/file"]);
}
