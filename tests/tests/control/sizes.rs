//! Nodes of many peers and of many NIs, and what commands take there.

use std::fmt::Write;
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, require_privilege};

use crate::run::{Daemon, Directory, program};

const PEERS: u32 = 10_000;
const NIS: u32 = 100;

fn nid(number: u32, net: &str) -> String {
    format!("10.{}.{}.{}@{net}", 100 + number / 40_000, number / 200 % 200, 1 + number % 200)
}

/// How long a command takes.
fn timed(node: &Daemon, words: &str, stdin: &str) -> (Duration, String) {
    let begun = Instant::now();
    let shown = node.good_with(words, stdin);
    (begun.elapsed(), shown)
}

/// Commands that name a peer take no longer where there are thousands of others.
#[test]
fn ten_thousand_peers_are_imported_shown_and_named() {
    program("lnetctl");
    let node = Daemon::alone();
    let mut document = "peer:\n".to_owned();
    for number in 0..PEERS {
        let [primary, other] = ["tcp", "tcp1"].map(|net| nid(number, net));
        let _ =
            write!(document, "- primary nid: {primary}\n  peer ni:\n  - nid: {primary}\n  - nid: {other}\n");
    }
    let (import, _) = timed(&node, "import", &document);
    let (again, _) = timed(&node, "import", &document);
    let (whole, shown) = timed(&node, "peer show", "");
    assert_eq!(shown.matches("primary nid: ").count(), PEERS as usize);
    let (listed, _) = timed(&node, "peer list", "");
    let (export, _) = timed(&node, "export --backup", "");
    let other = nid(PEERS / 2, "tcp1");
    let (one, shown) = timed(&node, &format!("peer show -v 4 --nid {other}"), "");
    assert!(shown.contains(&format!("primary nid: {}\n", nid(PEERS / 2, "tcp"))), "{shown}");
    let new = format!("peer:\n- primary nid: {}\n", nid(PEERS, "tcp"));
    let (import_one, _) = timed(&node, "import", &new);
    println!(
        "{PEERS} peers of two NIDs: import {import:?}, once more {again:?}; peer show {whole:?}, peer list {listed:?}, \
         export --backup {export:?}; peer show --nid {one:?}, import of one peer {import_one:?}"
    );
    assert!(one * 4 < whole && import_one * 4 < again, "{one:?}, {import_one:?}");
    // The aim is 2 s, of programs that are optimised.
    assert!(import < Duration::from_secs(30), "{import:?}");
    node.stop();
}

#[test]
fn a_hundred_nis_are_shown_soon() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let options = format!("--configure --limit nis={}", NIS + 1);
    let node = Daemon::start(Directory::new(), Some(netns.a()), &options);
    let name = &netns.a().interface().name;
    let mut document = "net:\n".to_owned();
    for number in 0..NIS {
        let _ = write!(document, "- net type: tcp{number}\n  local NI(s):\n  - interfaces: {{0: {name}}}\n");
    }
    let (import, _) = timed(&node, "import", &document);
    let mut times: Vec<_> = (0..21).map(|_| timed(&node, "net show", "").0).collect();
    times.sort_unstable();
    let (details, shown) = timed(&node, "net show -v 4", "");
    assert_eq!(shown.matches("-     nid: ").count(), NIS as usize + 1);
    println!(
        "{NIS} NIs: import {import:?}; net show p50 {:?} max {:?}, -v 4 {details:?}",
        times[10], times[20]
    );
    // The aim is 20 ms, of programs that are optimised and alone.
    assert!(times[10] < Duration::from_millis(250), "{times:?}");
    node.stop();
}
