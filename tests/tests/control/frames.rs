//! The account of frames, after interfaces and NIs have gone under load.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use lnet_tests::netns::{NETNS_NODES, enter, ip, require_privilege, wait_until};
use lnet_user::node::DEFAULT_PORT;
use lnet_wire::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};

use crate::hostile_tcp::load_number;
use crate::run::{Daemon, PATIENCE, Two, until_shown};

/// The number that `frames check` shows for a key, once its account closes.
fn checked(daemon: &Daemon, key: &str) -> u64 {
    let shown = daemon.good("frames check");
    let mut values = shown.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    values.next().unwrap_or_else(|| panic!("{key} is not in {shown}")).parse().unwrap()
}

/// Frames that XDP has steered, by what `frames show` prints of queues and shards.
fn steered(daemon: &Daemon) -> u64 {
    let shown = daemon.good("frames show");
    shown
        .lines()
        .filter_map(|line| line.trim().strip_prefix("frames: "))
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

/// Takes the first rail, or one end of it, away under load, and brings it back; the other one stays.
fn check(takes_away: impl Fn(&Two, &str), comes_back: impl Fn(&Two, &str)) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "");
    let [_, peer] = two.nids(0);
    two.a.good(&format!("discover {peer}"));
    let name = two.netns.a().interface().name.clone();
    for _ in 0..3 {
        let target = load_number(&two.b.good("load start target"));
        let load = format!("load start initiator --to {peer} --messages 4000 --window 64 --timeout-ms 20000");
        let load = load_number(&two.a.good(&load));
        let before = steered(&two.b);
        wait_until("the load is under way", PATIENCE, || steered(&two.b) > before + 500);
        takes_away(&two, &name);
        // Messages may fail with their rail: the account of frames is what is looked at.
        two.a.run(&format!("load wait {load}"));
        two.a.run(&format!("load stop {load}"));
        two.b.run(&format!("load stop {target}"));
        for daemon in [&two.a, &two.b] {
            checked(daemon, "lost with interfaces");
        }
        assert!(steered(&two.b) > before + 500, "what came by a program that has gone still counts");
        comes_back(&two, &name);
        until_shown(&two.a, &format!("ping --timeout 5 {peer}"), &peer);
        checked(&two.a, "lost with interfaces");
    }
}

#[test]
fn frames_of_an_interface_that_goes_under_load_are_accounted_for() {
    check(
        |two, name| {
            ip(two.netns.a(), &format!("link delete dev {name}"));
            for daemon in [&two.a, &two.b] {
                until_shown(daemon, "net show --net xdp", "status: down");
            }
        },
        |two, _| {
            two.netns.restore_rail([2, 2], [2, 2]);
            for daemon in [&two.a, &two.b] {
                until_shown(daemon, "net show --net xdp", "status: up");
            }
        },
    );
}

#[test]
fn frames_of_an_ni_that_is_deleted_under_load_are_accounted_for() {
    check(
        |two, _| {
            two.b.good("net del --net xdp");
        },
        |two, _| {
            two.b.good(&format!("net add --net xdp --if {}", two.netns.b().interface().name));
        },
    );
}

/// Frames that XDP steers come without a pause, so that some are in the rings when these close.
#[test]
fn frames_that_are_lost_with_an_interface_are_named() {
    const ROUNDS: usize = 10;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "");
    let far = two.netns.b().interface();
    let mut frame = [0; FRAME_HEADER_BYTES];
    FrameHeader::other(Kind::Ack, 0, 0).encode(&mut frame);
    let mut lost = 0;
    for _ in 0..ROUNDS {
        let (before, ends) = (steered(&two.b), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = enter(two.netns.a(), || UdpSocket::bind("0.0.0.0:0").unwrap());
                while !ends.load(Ordering::Relaxed) {
                    // Nothing takes them once the NI has gone, and the far kernel says so.
                    let _ = socket.send_to(&frame, (far.ipv4, DEFAULT_PORT));
                }
            });
            wait_until("frames are steered", PATIENCE, || steered(&two.b) > before + 500);
            two.b.good("net del --net xdp");
            ends.store(true, Ordering::Relaxed);
        });
        let now = checked(&two.b, "lost with interfaces");
        println!("{} of {} frames are lost", now - lost, steered(&two.b) - before);
        lost = now;
        if lost != 0 {
            break;
        }
        two.b.good(&format!("net add --net xdp --if {}", far.name));
    }
    assert_ne!(lost, 0, "no frame was in a ring that closed");
}
