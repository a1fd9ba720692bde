//! `lst` with daemons over veth, and what it prints.

use std::process::{Command, Output};

use lnet_tests::netns::{NETNS_NODES, require_privilege};

use crate::hostile_tcp::load_number;
use crate::run::{Daemon, PATIENCE, Two, program};

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
    bad(a, "add_test --batch b1 --distribute 1:2 --from clients --to servers ping", "has 1 active nodes");
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
    assert_eq!(good(a, "end_session"), "", "there is nothing to end");
    bad(a, "show_session", "there is no session");
}

#[test]
fn a_session_has_both_nodes_work_over_tcp_and_xdp() {
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
    assert_eq!(good(one, "list_batch"), "1) batch\nTotal 1 batches\n");
    good(one, &format!("add_group g {node}"));
    assert_eq!(good(one, "add_test --from g --to g --loop 3 brw SIZE=16k"), "Test was added successfully\n");
    assert_eq!(good(one, "add_test --from g --to g --concurrency 2 ping"), "Test was added successfully\n");
    let counts = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\nclient\t1\t0\t0\t0\t1\nserver\t1\t0\t0\t0\t1\n";
    let first = format!("\tTest 1(brw) (loop: 3, concurrency: 1)\n{counts}");
    let second = format!("\tTest 2(ping) (loop: -1, concurrency: 2)\n{counts}");
    let shown = good(one, "list_batch batch");
    assert_eq!(shown, format!("Batch: batch Tests: 2 State: 176\n{counts}{first}{second}"));
    assert_eq!(good(one, "list_batch batch --test 2"), second);
    let active = format!("\t12345-{node}: Active\nTotal 1 nodes\n");
    for options in ["--active", "--server -a", "--all", "--test 1 --server -l", "-a -i"] {
        assert_eq!(good(one, &format!("list_batch batch {options}")), active, "{options}");
    }
    for options in ["--invalid", "--server -i"] {
        assert_eq!(good(one, &format!("list_batch batch {options}")), "Total 0 nodes\n", "{options}");
    }
    bad(one, "list_batch batch --test 3", "test 3: the batch batch has 2 tests");
    bad(one, "list_batch nothing", "there is no batch nothing");

    let stopped = "batch [0] is stopped\n";
    assert_eq!(good(one, "query --loop 2 --delay 1 --timeout 3"), stopped.repeat(2));
    let idle = format!("12345-{node} [Active]: Idle\n");
    for words in ["batch --server --all", "-i", "-l -t 1"] {
        assert_eq!(good(one, &format!("query {words}")), idle, "{words}");
    }
    for words in ["-e", "-a"] {
        assert_eq!(good(one, &format!("query {words}")), "", "{words}");
    }
    for words in ["query --timeout 2", "query --loop 0", "query --delay 0", "stat --timeout 31 g"] {
        bad(one, words, "is not in");
    }
    let pinged = format!("\t12345-{node}: Active [session: options id: 0@lo]\n");
    for words in
        ["ping", "ping --session", "ping g", "ping -g g", "ping --batch batch", "ping --batch batch --server"]
    {
        assert_eq!(good(one, &format!("{words} --timeout 5")), pinged, "{words}");
    }
    assert_eq!(good(one, &format!("ping --nodes {node}")), pinged);
    bad(one, "ping --server", "--batch");
    bad(one, "ping --session g", "--session");
    bad(one, "ping --batch nothing", "there is no batch nothing");
    good(one, "add_batch empty");
    assert_eq!(good(one, "ping --batch empty"), "Target batch is empty\n");
    let stat = good(one, "stat --timeout 5 --count 1 --delay 1 --bw --read --max --mbs g");
    let lines = squeezed(&stat);
    assert_eq!((lines.len(), lines[0].as_str()), (2, "[LNet Bandwidth of g]"), "{stat}");
    assert!(lines[1].starts_with("[W] Max: ") && lines[1].ends_with(" MB/s"), "{stat}");

    bad(one, "update_group g --clean ill", "possible values: busy, down, unknown, active, invalid");
    bad(one, "update_group g --clean invalid", "group g is part of a test");
    good(one, &format!("add_group other {node}"));
    assert_eq!(good(one, "update_group other --clean invalid"), "");
    let head = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\nGroup [ other ]\n";
    let listed = good(one, "list_group other --all");
    assert_eq!(listed, format!("{head}\t12345-{node}: Active\nTotal 1 nodes [ other ]\n"));
    assert_eq!(good(one, "list_group other --busy"), format!("{head}No nodes found [ other ]\n"));
    assert_eq!(good(one, "list_group other"), "\t1\t0\t0\t0\t1\tother\n");
    assert_eq!(good(one, "update_group other --clean busy,active"), "");
    assert_eq!(good(one, "list_group other"), "");
    // Messages have no room for these: they would go to each node.
    bad(one, "add_group large fd00::1@tcp", "NIDs of 8 bytes");
    // A group may have more nodes than other lists of NIDs.
    bad(one, "add_group many 10.0.0.[1-200]@tcp", "200 of 200 nodes have failed");
    bad(one, "ping --nodes 10.0.[0-16].[0-255]@tcp", "at most 4096 nids");
    assert_eq!(good(one, "list_group"), "1) g\nTotal 1 groups\n");
    // A kernel client panics at these sizes: bulk data has more pages with the offset than without.
    for words in ["size=4K off=8", "size=8 off=4K", "size=1020K off=4K", "size=4000 off=8288"] {
        bad(one, &format!("add_test --from g --to g brw read {words}"), "pages");
    }
    good(one, "add_test --from g --to g brw read size=4000 off=96");
    good(one, "end_session");
}

#[test]
fn batches_run_over_the_loopback_net() {
    let one = Daemon::alone_with("--configure --selftest");
    good(&one, "new_session lo");
    good(&one, "add_group g 0@lo");
    for test in ["ping", "brw read check=full size=4K", "brw write check=full size=1M"] {
        let words = format!("add_test --from g --to g --loop 50 --concurrency 2 {test}");
        assert_eq!(good(&one, &words), "Test was added successfully\n");
    }
    assert_eq!(good(&one, "run"), "batch is running now\n");
    let begun = std::time::Instant::now();
    while good(&one, "query --all") != "12345-0@lo [Active]: Idle\n" {
        assert!(begun.elapsed() < PATIENCE, "the batch does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(good(&one, "show_error g"), "g:\nTotal 0 error nodes in g\n");
    // Each of the 100 transfers of a test was a message each way, and its bulk data.
    let counted = one.good("stats show");
    let value = |name: &str| -> u64 {
        let line = counted.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(value("recv_count:") >= 3 * 2 * 100, "{counted}");
    assert!(value("recv_length:") >= 100 * (1 << 20) + 100 * 4096, "{counted}");
    good(&one, "end_session");
}

/// The event slots of a daemon are enough for all of them at once.
#[test]
fn a_node_takes_part_in_tests_and_has_loads_beside() {
    for shards in [1, 2] {
        let one = Daemon::alone_with(&format!("--shards {shards} --configure --selftest"));
        good(&one, "new_session beside");
        good(&one, "add_group g 0@lo");
        good(&one, "add_test --from g --to g --concurrency 8 brw write check=full size=64K");
        good(&one, "run");
        one.good("load start target");
        let load = load_number(&one.good("load start initiator --to 0@lo --messages 1000 --window 256"));
        one.good(&format!("load wait {load}"));
        assert_eq!(good(&one, "show_error g"), "g:\nTotal 0 error nodes in g\n");
        good(&one, "end_session");
    }
}

/// A node that only waits for sessions is free to be unconfigured, and serves again when it is configured.
#[test]
fn a_session_keeps_a_node_configured_and_a_test_server_does_not() {
    let node = Daemon::alone_with("--configure --selftest");
    for session in ["one", "two"] {
        node.good("lnet unconfigure");
        node.good("lnet configure");
        good(&node, &format!("new_session {session}"));
        node.bad(
            "lnet unconfigure",
            &["errno: -16", &format!("the LNet selftest session {session}: stop that")],
        );
        good(&node, "add_group g 0@lo");
        good(&node, "ping g");
        node.bad("lnet unconfigure", &[&format!("the LNet selftest session {session}, ")]);
        good(&node, "end_session");
    }
    node.good("lnet unconfigure");
}

/// Hosts are looked up wherever nodes are named, and what can be no node's NID is refused at once.
#[test]
fn nodes_are_named_by_hosts_and_by_nids_that_others_reach() {
    let node = Daemon::alone_with("--configure --selftest");
    good(&node, "new_session names");
    good(&node, "add_group g 0@lo");
    let local = "127.0.0.1@tcp: the nid of one NI is expected";
    for host in ["localhost@tcp", "localhost", "127.0.0.1@tcp", "127.0.0.1"] {
        bad(&node, &format!("add_group h {host}"), local);
        for words in ["ping", "ping --nodes", "stat --count 1 --delay 1", "show_error", "show_error g"] {
            bad(&node, &format!("{words} {host}"), local);
        }
    }
    bad(&node, "add_group h fe80::1@tcp", "fe80::1@tcp: the nid of one NI is expected");
    bad(&node, "ping nowhere", "a group of the session or NIDs are expected");
    bad(&node, "ping no-such-host.invalid@tcp", "cannot look the host up");
    good(&node, "update_group --remove localhost@tcp g");
    good(&node, "ping g");
    good(&node, "end_session");
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
