//! `lst` with daemons over veth, and what it prints.

use std::process::{Command, Output};

use lnet_tests::netns::{NETNS_NODES, require_privilege};

use crate::run::{Daemon, Two, program};

/// Runs `lst` with these words as the console of a daemon: its status and what it prints.
fn lst(daemon: &Daemon, words: &str) -> (i32, String, String) {
    let mut command = Command::new(program("lst"));
    command.arg("--socket").arg(daemon.socket()).args(words.split_whitespace()).env("LST_SESSION", "17");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[track_caller]
fn good(daemon: &Daemon, words: &str) -> String {
    let (status, stdout, stderr) = lst(daemon, words);
    assert!(status == 0 && stderr.is_empty(), "lst {words}: {status}\n{stdout}\n{stderr}");
    stdout
}

#[track_caller]
fn bad(daemon: &Daemon, words: &str, expected: &str) {
    let (status, stdout, stderr) = lst(daemon, words);
    assert!(status != 0 && stderr.contains(expected), "lst {words}: {status}\n{stdout}\n{stderr}");
}

/// A console's words from one session to its end, as those of kernel nodes were captured.
fn session(two: &Two, net: &str) {
    let [near, far] = two.nids(0).map(|nid| nid.replace("@xdp", &format!("@{net}")));
    let a = &two.a;
    let begun = good(a, "new_session --timeout 60 test");
    assert_eq!(begun, "SESSION: test FEATURES: 1 TIMEOUT: 60 FORCE: No\n");
    bad(a, "new_session again", "there is a session");
    assert_eq!(good(a, &format!("add_group servers {far}")), format!("{far} are added to session\n"));
    assert_eq!(good(a, &format!("add_group clients {near}")), format!("{near} are added to session\n"));
    assert_eq!(good(a, "add_batch b1"), "");
    for test in ["ping", "brw read check=full size=4K", "brw write check=full size=1M"] {
        let words = format!(
            "add_test --batch b1 --loop 100000000 --concurrency 2 --from clients --to servers {test}"
        );
        assert_eq!(good(a, &words), "Test was added successfully\n");
    }
    bad(a, "add_test --batch b1 --from clients --to servers brw write size=4097", "multiples of 8");
    bad(a, "add_test --batch b1 --from clients --to nowhere ping", "no group nowhere");
    assert_eq!(good(a, "run b1"), "b1 is running now\n");
    let stat = good(a, "stat --count 1 --delay 1 servers clients");
    let lines: Vec<&str> = stat.lines().collect();
    assert_eq!(lines.len(), 12, "{stat}");
    assert_eq!((lines[0], lines[3]), ("[LNet Rates of servers]", "[LNet Bandwidth of servers]"));
    let rate: f64 = lines[1].split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(rate > 0.0, "{stat}");
    assert_eq!(good(a, "query b1 --all"), format!("12345-{near} [Active]: Running\n"));
    let errors = "servers:\nTotal 0 error nodes in servers\nclients:\nTotal 0 error nodes in clients\n";
    assert_eq!(good(a, "show_error servers clients"), errors);
    assert_eq!(good(a, "show_error --session servers clients"), errors);
    assert!(good(a, "stop b1").ends_with("Batch is stopped\n"));
    assert_eq!(good(a, "query b1 --all"), format!("12345-{near} [Active]: Idle\n"));
    assert_eq!(good(a, "show_error servers clients"), errors);
    good(a, "end_session");
    bad(a, "show_session", "there is no session");
}

#[test]
fn lst_prints_what_the_reference_prints_over_tcp_and_xdp() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "--selftest");
    for daemon in [&two.a, &two.b] {
        daemon.good("lnet configure");
    }
    for net in ["tcp", "xdp"] {
        for (daemon, side) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
            daemon.good(&format!("net add --net {net} --if {}", side.interface().name));
        }
        session(&two, net);
        for daemon in [&two.a, &two.b] {
            daemon.good(&format!("net del --net {net}"));
        }
    }
}

/// Numbers are as they come; columns have one space.
fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn lst_has_the_options_of_the_reference() {
    let one = Daemon::alone_with("--configure --selftest");
    let one = &one;
    let node = "0@lo";
    bad(one, "list_group", "there is no session");
    good(one, "new_session options");
    // A session has a batch from the beginning.
    assert_eq!(good(one, "list_batch"), "batch\n");
    bad(one, "run", "the batch has no test");
    good(one, &format!("add_group g {node}"));
    assert_eq!(good(one, "add_test --from g --to g --loop 3 brw SIZE=16k"), "Test was added successfully\n");
    assert_eq!(good(one, "add_test --from g --to g --concurrency 2 ping"), "Test was added successfully\n");
    let counts = ["ACTIVE BUSY DOWN UNKNOWN TOTAL", "client 1 0 0 0 1", "server 1 0 0 0 1"];
    let first = "Test 1(brw read check=none size=16384) (loop: 3, concurrency: 1), from g to g";
    let second = "Test 2(ping) (loop: 1, concurrency: 2), from g to g";
    let shown = squeezed(&good(one, "list_batch batch"));
    let head = ["Batch: batch Tests: 2 State: Idle"];
    assert_eq!(shown, [&head[..], &counts, &[first], &counts, &[second], &counts].concat());
    let shown = squeezed(&good(one, "list_batch batch --test 2"));
    assert_eq!(shown, [&head[..], &counts, &[second], &counts].concat());
    let active = format!("12345-{node}: Active\n");
    for options in
        ["--active", "--server", "--server --active", "--all", "--test 1 --server", "--active --invalid"]
    {
        assert_eq!(good(one, &format!("list_batch batch {options}")), active, "{options}");
    }
    for options in ["--invalid", "--server --invalid"] {
        assert_eq!(good(one, &format!("list_batch batch {options}")), "", "{options}");
    }
    bad(one, "list_batch batch --test 3", "test 3: the batch batch has 2 tests");
    bad(one, "list_batch nothing", "there is no batch nothing");
    bad(one, "list_batch --server", "NAMES");
    bad(one, "list_batch --test 1", "the name of a batch is expected");

    let running = "Batch is Idle: 0 of 1 nodes are running\n";
    assert_eq!(good(one, "query --loop 2 --delay 1 --timeout 3"), running.repeat(2));
    assert_eq!(good(one, "query batch --server --all"), format!("12345-{node} [Active]: Idle\n"));
    for words in
        ["query --timeout 2", "query --loop 0", "query --delay 0", "stat --timeout 31 g", "stat --count 0 g"]
    {
        bad(one, words, "is not in");
    }
    for words in [
        "ping",
        "ping --session",
        "ping g",
        "ping --group g",
        "ping --batch batch",
        "ping --batch batch --server",
    ] {
        assert_eq!(good(one, &format!("{words} --timeout 5")), active, "{words}");
    }
    assert_eq!(good(one, &format!("ping --nodes {node}")), active);
    bad(one, "ping --server", "--batch");
    bad(one, "ping --session g", "--session");
    bad(one, "ping --batch nothing", "there is no batch nothing");
    good(one, "add_batch empty");
    bad(one, "ping --batch empty", "has no nodes");
    let stat = good(one, "stat --timeout 5 --count 1 --delay 1 --bw --read --max --mbs g");
    let lines = squeezed(&stat);
    assert_eq!((lines.len(), lines[0].as_str()), (2, "[LNet Bandwidth of g]"), "{stat}");
    assert!(lines[1].starts_with("[R] Max: ") && lines[1].ends_with(" MB/s"), "{stat}");

    bad(one, "update_group g --clean ill", "busy, down, unknown, active or invalid is expected");
    bad(one, "update_group g --clean invalid", "group g is part of a test");
    good(one, &format!("add_group other {node}"));
    assert_eq!(good(one, "update_group other --clean invalid"), "Group is updated\n");
    assert_eq!(squeezed(&good(one, "list_group other --all"))[2..], [active.trim(), "Total 1 nodes [other]"]);
    assert_eq!(good(one, "update_group other --clean busy,active"), "Group is updated\n");
    bad(one, "list_group other", "there is no group other");
    good(one, "end_session");
}

#[test]
fn lst_says_what_is_lacking() {
    let without = Daemon::alone();
    bad(&without, "new_session x", "lnetd --selftest");
    let mut command = Command::new(program("lst"));
    let Output { status, stderr, .. } =
        command.arg("show_session").env_remove("LST_SESSION").output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && stderr.contains("LST_SESSION"), "{stderr}");
}
