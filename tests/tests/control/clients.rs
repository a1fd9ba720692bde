//! Clients that behave badly, or at the same time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lnet_control::{ControlRequest, protocol};

use crate::run::Daemon;

#[test]
fn two_that_change_at_once_both_succeed() {
    let node = Daemon::alone();
    std::thread::scope(|scope| {
        for client in 0..2_u32 {
            let node = &node;
            scope.spawn(move || {
                for round in 0..15 {
                    // Either document is whole at any time.
                    let value = 60 + client;
                    let document =
                        format!("global:\n    transaction_timeout: {value}\n    recovery_limit: {value}\n");
                    node.good_with("import", &document);
                    node.good(&format!("steering set --portal {} --policy rotor", 10 + client * 20 + round));
                }
            });
        }
        for _ in 0..20 {
            let shown = node.good("global show");
            let value = |name: &str| {
                let line = shown.lines().find_map(|line| line.trim().strip_prefix(name));
                line.unwrap().trim().to_owned()
            };
            let (timeout, limit) = (value("transaction_timeout:"), value("recovery_limit:"));
            assert!(timeout == limit || limit == "0", "half a document: {shown}");
        }
    });
    assert_eq!(node.good("steering show").matches("rotor").count(), 30);
}

#[test]
fn rubbish_and_halves_hurt_nobody() {
    let node = Daemon::alone();
    let connect = || UnixStream::connect(node.directory.socket()).unwrap();
    let mut rubbish = connect();
    rubbish.write_all(&[0x5A; 5000]).unwrap();
    let mut answer = Vec::new();
    // The end of the connection may be the only refusal.
    let _ = rubbish.read_to_end(&mut answer);
    // Half of what a client sends, and then the client is gone.
    let mut half = connect();
    half.write_all(b"LN").unwrap();
    drop(half);
    let _idle = connect();
    let mut ping = node.lnetctl("ping --timeout 60 10.2.3.4@xdp 0@lo").spawn().unwrap();
    ping.kill().unwrap();
    ping.wait().unwrap();
    let begun = Instant::now();
    node.good("net show");
    assert!(begun.elapsed() < Duration::from_secs(2));
    node.stop();
}

#[test]
fn a_client_that_is_killed_in_the_middle_leaves_all_or_nothing() {
    let node = Daemon::alone();
    let document = "global:\n    transaction_timeout: 77\n    recovery_limit: 77\n";
    for pause_us in (0..40).map(|step| step * 150) {
        node.good("set transaction_timeout 150");
        node.good("set recovery_limit 0");
        let path = node.directory.file("document.yaml", document);
        let mut client = node.lnetctl(&format!("import {}", path.display())).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(pause_us));
        client.kill().unwrap();
        client.wait().unwrap();
        let shown = node.good("global show");
        let count = shown.matches(": 77\n").count();
        assert!(count == 0 || count == 2, "{count} of 2: {shown}");
    }
    node.stop();
}

#[test]
fn a_client_that_goes_while_it_is_told_of_loads_takes_none_along() {
    let node = Daemon::alone();
    node.good("load start target");
    node.good("load start initiator --to 0@lo --messages 10");
    // The first request after its end waits for its threads: this client does not wait for the answer.
    std::thread::sleep(Duration::from_secs(1));
    let mut client = UnixStream::connect(node.directory.socket()).unwrap();
    let request = protocol::encode(&ControlRequest::Loads, protocol::REQUEST_BYTES_MAX).unwrap();
    client.write_all(&request).unwrap();
    drop(client);
    std::thread::sleep(Duration::from_millis(200));
    let shown = node.good("load show");
    assert!(shown.contains("id: 2") && shown.contains("messages_total: 10"), "{shown}");
    assert!(node.good("load stop 2").contains("10 messages,"));
    node.stop();
}
