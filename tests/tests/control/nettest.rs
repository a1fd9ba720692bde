//! `lnet-nettest` in processes of their own over veth: rings, sockets and tcp.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use lnet_tests::netns::{NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege};
use lnet_tests::node::nid_v4;

use crate::run::program;

/// A server of tests, which serves until this is dropped.
struct Serving(Child);

impl Serving {
    fn start(inside: &Namespace, words: &str) -> Self {
        let mut command = nettest(words);
        let mut child = enter(inside, move || command.stderr(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("serving at ") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "lnet-nettest {words} has ended");
        }
        // What it says later goes somewhere.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nettest(words: &str) -> Command {
    let mut command = Command::new(program("lnet-nettest"));
    command.args(words.split_whitespace());
    command
}

/// Runs a test that goes well: what it has measured.
#[track_caller]
fn good(inside: &Namespace, words: &str) -> serde_json::Value {
    let mut command = nettest(words);
    let Output { status, stdout, stderr } = enter(inside, move || command.output().unwrap());
    let report: serde_json::Value = serde_json::from_slice(&stdout).unwrap_or_default();
    assert!(status.success(), "lnet-nettest {words}: {report} {}", String::from_utf8_lossy(&stderr));
    report
}

#[test]
fn nt_08_pings_and_bulk_over_veth() {
    if !require_privilege("load tool over veth", &NETNS_NODES) {
        return;
    }
    for (net, options) in [("xdp", "--mode native --registered 4m"), ("xdp", "--mode socket"), ("tcp", "")] {
        let netns = Netns::new(Wiring::default());
        let [near, far] = [netns.a(), netns.b()].map(|side| {
            let nid = nid_v4(side.interface(), 0).to_string().replace("@xdp", &format!("@{net}"));
            let place = format!("--transport lnet --interface {} {options}", side.interface().name);
            (format!("{place} --address {nid}:12345:34:1"), format!("{nid}:12345:34:1"))
        });
        let _serving = Serving::start(netns.b(), &format!("server {}", far.0));
        for (test, count) in [("ping --size 4096", 200), ("ping --size 519", 200), ("bulk --size 1m", 20)] {
            let words =
                format!("client {} --server {} --test {test} --count {count} --timeout 60", near.0, far.1);
            let report = good(netns.a(), &words);
            assert_eq!(
                (&report["done"], &report["lost"]),
                (&count.into(), &0.into()),
                "{net} {options}: {report}"
            );
        }
    }
}
