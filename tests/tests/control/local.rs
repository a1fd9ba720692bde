//! A daemon without interfaces: nothing here needs privileges.

use std::fs::File;
use std::io::{Write, pipe};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run::{Daemon, Directory, ended};

#[test]
fn a_node_begins_unconfigured_and_ends_so() {
    let node = Daemon::start(Directory::new(), None, "--shards 2");
    for words in ["net show", "peer show", "stats show", "global show", "ping 0@lo", "net del --net xdp"] {
        node.bad(words, &["LNet is not configured on this node"]);
    }
    node.bad("net add --net xdp --if lo", &["errno: -108"]);
    node.good("lnet configure");
    node.good("lnet configure");
    let shown = node.good("net show -v");
    assert!(shown.contains("nid: 0@lo") && shown.contains("CPT: \"[0,1]\""), "{shown}");
    assert!(node.good("ping 0@lo").contains("primary nid: 0@lo"));
    let statistics = node.good("stats show");
    assert!(statistics.contains("send_count: 2") && statistics.contains("recv_count: 2"), "{statistics}");
    node.good("stats reset");
    assert!(node.good("stats show").contains("send_count: 0"));
    node.good("lnet unconfigure");
    node.good("lnet unconfigure");
    node.bad("net show", &["errno: -100"]);
    let log = node.stop();
    let who = format!("uid={}", rustix::process::geteuid().as_raw());
    assert!(log.lines().any(|line| line.contains(&who) && line.contains("unconfigure")), "{log}");
}

#[test]
fn what_is_exported_is_imported_again() {
    let node = Daemon::start(Directory::new(), None, "--shards 2 --configure");
    node.good("set transaction_timeout 60");
    node.good("set health_sensitivity 50");
    node.good("fault drop add --source *@xdp --dest 10.0.0.1@xdp --rate 3");
    node.good("fault drop add --source 10.0.0.2@xdp --dest * --interval 2 --random");
    node.good("steering set --portal 7 --policy match_bits --shift 3 --bits 2 --table 0,1,1,0");
    node.good("steering set --portal 9 --policy rotor");
    let exported = node.good("export --backup");
    assert!(exported.contains("transaction_timeout: 60") && exported.contains("match_bits"), "{exported}");
    node.good("lnet unconfigure");
    node.good("lnet configure");
    node.good("set transaction_timeout 150");
    assert!(!node.good("export --backup").contains("match_bits"), "policies are the first ones again");
    node.good_with("import", &exported);
    assert_eq!(node.good("export --backup"), exported);
    // Once more changes nothing.
    assert_eq!(node.good_with("import --dry-run", &exported), "");
    node.stop();
}

#[test]
fn refusals_name_the_way_out() {
    let node = Daemon::start(Directory::new(), None, "--configure");
    node.bad(
        "set retry_count 151",
        &["retry_count 151: 0 to 150 is expected, since transaction_timeout is 150"],
    );
    for few in ["0", "2"] {
        let said = format!("transaction_timeout {few}: 3 to 4294967295 is expected, since retry_count is 2");
        node.bad(&format!("set transaction_timeout {few}"), &[&said]);
    }
    let ran = node.run("ping 10.0.0.1@tcp");
    assert!(ran.stdout.contains("no NI here is on tcp, there are NIs on lo alone"), "{ran:?}");
    // Two targets have all the event slots that there are.
    node.good("load start target");
    node.good("load start target");
    node.bad("load start target", &["running already: load 1 (target), load 2 (target)"]);
    node.good("load stop 1");
    node.good("load start target");
    node.stop();
}

/// The error of a node that cannot end names all that uses it.
#[test]
fn a_node_in_use_names_what_uses_it() {
    let node = Daemon::start(Directory::new(), None, "--shards 2 --configure --selftest");
    // Test servers without a session use nothing.
    node.good("lnet unconfigure");
    node.stop();
    let node = Daemon::start(Directory::new(), None, "--shards 2 --configure");
    node.good("load start target");
    node.good("load start initiator --to 0@lo --messages 5");
    node.good("load wait 2");
    node.bad("lnet unconfigure", &["errno: -16", "in use by load 1 (target): stop that first"]);
    node.good("load stop 1");
    node.good("lnet unconfigure");
    node.stop();
}

#[test]
fn drop_rules_drop_and_count() {
    let node = Daemon::start(Directory::new(), None, "--shards 2 --configure");
    node.good("fault drop add --source 0@lo --dest * --rate 1 --message GET");
    node.bad("ping --timeout 1 0@lo", &["errno: -110"]);
    let shown = node.good("fault drop show");
    assert!(shown.contains("fs_get: 1") && shown.contains("fs_put: 0"), "{shown}");
    assert!(node.good("stats show").contains("drop_count: 1"));
    node.good("fault drop reset");
    assert!(node.good("fault drop show").contains("fs_get: 0"));
    node.bad("fault drop del --source 10.9.9.9@xdp --dest *", &["errno: -2"]);
    node.good("fault drop del --source 0@lo --dest *");
    assert_eq!(node.good("fault drop show"), "");
    node.good("ping --timeout 5 0@lo");
}

/// Messages that a delay rule holds up arrive later, and those that no rule is about any more at once.
#[test]
fn delay_rules_hold_up_and_count() {
    let node = Daemon::start(Directory::new(), None, "--shards 2 --configure");
    node.good("fault delay add --source 0@lo --dest * --rate 1 --latency 2 --message GET");
    node.bad("ping --timeout 1 0@lo", &["errno: -110"]);
    let shown = node.good("fault delay show");
    assert!(shown.contains("ls_delayed: 1\n") && shown.contains("fs_get: 1\n"), "{shown}");
    let begun = Instant::now();
    node.good("ping --timeout 10 0@lo");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    node.good("fault delay reset");
    assert!(node.good("fault delay show").contains("ls_delayed: 0\n"));
    assert!(node.good("export --backup").contains("la_latency: 2\n"));
    node.good("fault delay del --all");
    assert_eq!(node.good("fault delay show"), "");
    let begun = Instant::now();
    node.good("ping --timeout 5 0@lo");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    node.stop();
}

#[test]
fn globals_keep_their_order_and_go_together() {
    let node = Daemon::alone();
    node.bad("set retry_count 151", &["retry_count"]);
    node.good("set retry_count 5");
    assert!(node.good("global show").contains("lnd_timeout: 24"));
    node.good("set health_sensitivity 0");
    assert!(node.good("global show").contains("retry_count: 0"));
    node.good("lnet unconfigure");
    node.good("lnet configure");
    assert!(node.good("global show").contains("retry_count: 0"), "tunables stay");
}

#[test]
fn what_this_node_has_not_is_refused_by_name() {
    let node = Daemon::alone();
    node.bad("net add --net tcp --if lo", &["errno: -"]);
    node.bad("net add --net xdp --if no-such-if", &["errno: -100", "no-such-if"]);
    node.bad("net add --net xdp --if no-such-if[0]", &["errno: -100", "in brackets are CPTs"]);
    node.bad("net set --net elan --lnd-timeout 7", &["errno: -"]);
    node.bad("net set --all --conns-per-peer 3", &["errno: -95", "conns_per_peer"]);
    node.bad("steering set --portal 0 --policy rotor", &["errno: -16", "portal 0"]);
    node.bad("net del --net xdp", &["errno: -22"]);
    node.bad("ping 10.1.1.1@xdp", &["errno: -113"]);
    node.bad("ping --source 10.1.1.1@xdp 0@lo", &["errno: -22"]);
    assert_eq!(node.good("net show").matches("nid:").count(), 1);
}

#[test]
fn a_second_signal_is_not_needed_and_the_first_is_enough() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Daemon::alone();
        node.signal(signal);
        let status = node.wait();
        assert!(status.success(), "{status}:\n{}", node.directory.log());
        assert!(!node.directory.socket().exists());
    }
}

#[test]
fn a_log_that_is_as_long_as_a_limit_has_it_ends_nothing() {
    let directory = Directory::new();
    let log = File::create(directory.0.join("limited.log")).unwrap();
    let command = directory.command(None, "--configure");
    let node = Daemon::unheard(directory, command, log.into());
    let pid = rustix::process::Pid::from_raw(node.pid().cast_signed());
    let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::prlimit(pid, rustix::process::Resource::Fsize, limit).unwrap();
    for _ in 0..10 {
        node.good("stats reset");
    }
    assert!(node.good("ping 0@lo").contains("primary nid: 0@lo"));
    node.stop();
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (_, without_reader) = pipe().unwrap();
    let (unread, held_up) = pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&held_up, 4096).unwrap();
    for (what, log) in [("full", full.into()), ("gone", without_reader.into()), ("unread", held_up.into())] {
        let directory = Directory::new();
        let command = directory.command(None, "--configure");
        let node = Daemon::unheard(directory, command, log);
        for _ in 0..60 {
            node.good("stats reset");
        }
        assert!(node.good("ping 0@lo").contains("primary nid: 0@lo"), "{what}");
        node.stop();
    }
    // A daemon that fails ends, too.
    let directory = Directory::new();
    let (_full, mut held_up) = pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&held_up, 4096).unwrap();
    held_up.write_all(&[b'x'; 4096]).unwrap();
    let mut failing = directory.command(None, "--cpus 8191");
    let mut child = failing.stderr(held_up).spawn().unwrap();
    assert_eq!(ended(&mut child).and_then(|status| status.code()), Some(1), "it is held up, or did not fail");
    drop(unread);
}
