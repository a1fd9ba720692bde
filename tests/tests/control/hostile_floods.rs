//! Diallers of the tcp LND that come in crowds, say what they say slowly, never read, or claim a peer's name:
//! the daemon stays small, and a peer beside them notices nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, enter, require_privilege, wait_until};
use lnet_wire::socklnd::{ByteOrder, ConnectionType, PORT, Version};

use crate::costs::resident_bytes;
use crate::crowd::make_room_for;
use crate::dialler::{
    Dialler, Greeting, header, message, nid, ping, privileged, put, request, told, waits_for_end,
};
use crate::hostile_tcp::{Stage, load_number, stranger};
use crate::run::PATIENCE;

/// What hostile diallers may cost in all.
const COSTS_BYTES_MAX: u64 = 100 << 20;

fn resident(stage: &Stage) -> u64 {
    resident_bytes(stage.two.a.pid())
}

#[track_caller]
fn check_costs(stage: &Stage, before: u64) {
    let after = resident(stage);
    assert!(after < before + COSTS_BYTES_MAX, "{} MiB more", (after - before) >> 20);
}

/// Connects again and again without a privileged port, from several threads and as fast as the machine makes
/// it; connections that were made, and how many a second that were.
fn flood(stage: &Stage, threads: usize, attempts: usize, at_once: usize) -> (u64, f64) {
    let begun = Instant::now();
    let connect = || {
        let mut made = 0;
        for _ in 0..attempts / at_once {
            // What the kernel has no room for is not made.
            let streams = (0..at_once / threads).filter_map(|_| TcpStream::connect((stage.near, PORT)).ok());
            let streams: Vec<_> = streams.collect();
            made += streams.len() as u64;
            for mut stream in streams {
                // The end that closes first keeps the port for a minute: dialling would be a search for free
                // ones.
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let end = stream.read(&mut [0]);
                let is_late = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
                assert!(!end.is_err_and(is_late), "a connection without a privileged port lasts");
            }
        }
        made
    };
    let made = enter(stage.two.netns.b(), || {
        std::thread::scope(|scope| {
            let diallers: Vec<_> = (0..threads).map(|_| scope.spawn(connect)).collect();
            diallers.into_iter().map(|dialler| dialler.join().unwrap()).sum::<u64>()
        })
    });
    (made, made as f64 / begun.elapsed().as_secs_f64())
}

#[test]
fn crowds_of_diallers_and_slow_ones_are_bounded_and_end_in_time() {
    /// Strangers with privileged ports, and the connections of each.
    const STRANGERS: u8 = 6;
    const EACH: usize = 400;
    /// Attempts of others, the threads that make them, and how many are made before any ends.
    const UNPRIVILEGED: usize = 20_000;
    const THREADS: usize = 8;
    const AT_ONCE: usize = 800;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    make_room_for(AT_ONCE + usize::from(STRANGERS) * EACH);
    let stage = Stage::new("--sock accept_timeout=3 --sock accept_backlog=4096", STRANGERS);
    stage.beside_a_load(|stage| {
        // Behind the flood its dial would wait for as long as others'.
        wait_until("the peer is connected", PATIENCE, || stage.count("established") != 0);
        let before = resident(stage);
        // Diallers come from one address.
        let (made, rate) = flood(stage, THREADS, UNPRIVILEGED, AT_ONCE);
        println!("{made} of {UNPRIVILEGED} attempts by {THREADS} threads, {rate:.0} a second");
        assert!(made * 10 >= UNPRIVILEGED as u64 * 9, "{made}");
        wait_until("all without a privileged port are refused", PATIENCE, || {
            stage.count("unprivileged") >= made
        });
        check_costs(stage, before);
        // Diallers come from several, each of which says its request and then next to nothing.
        let slow = enter(stage.two.netns.b(), || {
            let mut slow = Vec::new();
            for number in 0..STRANGERS {
                let mut below = 1024;
                for index in 0..EACH {
                    let (mut stream, port) = privileged(stranger(number), stage.near, below);
                    let said = request(&nid(stage.near), ByteOrder::Little);
                    // Some stop within the request, others within the HELLO.
                    let _ = stream.write_all(&said[..if index % 2 == 0 { 1 } else { said.len() }]);
                    below = port;
                    slow.push(stream);
                }
            }
            slow
        });
        check_costs(stage, before);
        let mut open = slow;
        let begun = Instant::now();
        while !open.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "{} are open", open.len());
            open.retain(|mut stream| stream.write_all(&[0]).is_ok() && !waits_for_end(stream));
        }
        // More than may wait at once, and those that took too long.
        let (full, late) = (stage.count("handshakes_full"), stage.count("handshake_timeout"));
        let bad = stage.count("bad_request") + stage.count("bad_hello");
        assert!(full + late + bad >= u64::from(STRANGERS) * EACH as u64, "{full}, {late}, {bad}");
        assert!(full != 0, "all find room");
        check_costs(stage, before);
    });
}

#[test]
fn a_connected_peer_keeps_its_name() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 1);
    stage.beside_a_load(|stage| {
        let healthy = nid(stage.far);
        wait_until("the peer is connected", PATIENCE, || stage.count("established") != 0);
        let restarted = stage.count("restarted");
        for (incarnation, version) in [(1, Version::V3), (u64::MAX, Version::V2), (0, Version::V4)] {
            let before = stage.count("impostor");
            let greeting = Greeting { incarnation, version, ..Greeting::new(healthy, nid(stage.near)) };
            let mut dialler = Dialler::greet(stage.dial(0), greeting);
            assert_eq!(dialler.hello().connection, None);
            stage.until_counted("impostor", before);
        }
        assert_eq!(stage.count("restarted"), restarted);
    });
}

#[test]
fn a_peer_that_never_reads_costs_little_and_is_given_up() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("--sock sock_timeout=8", 2);
    stage.beside_a_load(|stage| {
        let before = resident(stage);
        // One is sent to: it takes connections of all types, answers the first ping, and leaves all other
        // bytes where they are.
        let silent = nid(stranger(0));
        let kinds = [ConnectionType::Control, ConnectionType::BulkIn, ConnectionType::BulkOut];
        let connect = |kind| {
            Dialler::connected(stage.dial(0), Greeting { kind, ..Greeting::new(silent, nid(stage.near)) })
        };
        let mut silent_ends = kinds.map(connect);
        // More than fits on the way.
        let scheme = r#"{"puts_percent":100,"sizes":[{"min_bytes":1048576,"max_bytes":1048576,"weight":1}]}"#;
        let scheme = stage.two.a.directory.file("scheme.json", scheme);
        let started = stage.two.a.good(&format!(
            "load start initiator --to {silent} --messages 32 --window 32 --timeout-ms 15000 --scheme {}",
            scheme.display()
        ));
        silent_ends[0].answer(&told(silent));
        // Another one asks without end.
        let curious = Greeting::new(nid(stranger(1)), nid(stage.near));
        let mut asking = Dialler::connected(stage.dial(1), curious);
        let question = message(Version::V3, &header(curious.source, curious.destination, 0, ping()));
        asking.stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let questions = question.repeat(1000);
        for _ in 0..200 {
            match asking.stream.write_all(&questions) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => panic!("{error}"),
            }
        }
        check_costs(stage, before);
        wait_until("the one that is sent to is given up", PATIENCE, || stage.count("stalled") != 0);
        let ended = stage.two.a.run(&format!("load wait {}", load_number(&started)));
        assert_ne!(ended.status, 0, "{ended:?}");
        check_costs(stage, before);
        drop(silent_ends);
    });
}

#[test]
fn a_length_that_lies_and_an_end_within_a_message_harm_none() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 1);
    stage.beside_a_load(|stage| {
        for (payload, number) in [(1 << 20, 1), (5000, 2), (20, 3)] {
            let before = stage.count("closed");
            let name = nid(Ipv4Addr::new(10, 211, 9, number));
            let mut dialler = Dialler::connected(stage.dial(0), Greeting::new(name, nid(stage.near)));
            dialler.say(&message(Version::V3, &header(name, nid(stage.near), payload, put(9, 9))));
            dialler.say(&[1; 10]);
            drop(dialler);
            stage.until_counted("closed", before);
        }
    });
}
