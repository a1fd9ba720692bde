//! The account of frames, after interfaces and NIs have gone under load.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use lnet_model::records::FramesRecord;
use lnet_tests::netns::{NETNS_NODES, enter, ip, require_privilege, wait_until};
use lnet_user::node::DEFAULT_PORT;
use lnet_wire::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};

use crate::hostile_tcp::load_number;
use crate::run::{Daemon, PATIENCE, Two, until_shown};

/// Where the frames went, once the account of `frames check` closes.
fn checked(daemon: &Daemon) -> FramesRecord {
    serde_json::from_str(&daemon.good("frames check --json")).unwrap()
}

/// Frames that XDP has steered.
fn steered(daemon: &Daemon) -> u64 {
    let frames: FramesRecord = serde_json::from_str(&daemon.good("frames show --json")).unwrap();
    frames.steered()
}

/// What sockets have received and what XDP has steered, once the account closes.
fn by_mode(daemon: &Daemon) -> [u64; 2] {
    let frames = checked(daemon);
    [frames.arrived() - frames.steered(), frames.steered()]
}

/// Two daemons with an NI on each of two rails, in these modes.
fn two_in(modes: [&str; 2]) -> Two {
    let two = Two::new(2, "");
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        for ((interface, net), mode) in namespace.interfaces().iter().zip(["xdp", "xdp1"]).zip(modes) {
            daemon.good(&format!("net add --net {net} --if {} --mode {mode}", interface.name));
        }
    }
    two
}

/// Bytes of streams are no frames: `frames check` of a node with a tcp net has nothing to miss.
#[test]
fn tcp_nets_have_no_frames_to_account_for() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "");
    let peer = two.nids(0)[1].replace("@xdp", "@tcp");
    until_shown(&two.a, &format!("ping {peer}"), &peer);
    let frames = checked(&two.a);
    assert_eq!((frames.arrived(), frames.accounted()), (0, 0));
    assert!(frames.connections["stream_bytes_sent"] > 0, "{frames:?}");
}

/// Takes the first rail, or one end of it, away under load, and brings it back; the other one stays. The NIs
/// of the rails are in these modes.
fn check(modes: [&str; 2], takes_away: impl Fn(&Two, &str), comes_back: impl Fn(&Two, &str)) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two_in(modes);
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
            checked(daemon);
        }
        assert!(steered(&two.b) > before + 500, "what came by a program that has gone still counts");
        comes_back(&two, &name);
        until_shown(&two.a, &format!("ping --timeout 5 {peer}"), &peer);
        checked(&two.a);
    }
}

/// Deletes the first interface under load.
fn check_interface(modes: [&str; 2]) {
    check(
        modes,
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

/// Deletes the first NI of a daemon under load.
fn check_ni(modes: [&str; 2]) {
    check(
        modes,
        |two, _| {
            two.b.good("net del --net xdp");
        },
        |two, _| {
            let [mode, _] = modes;
            two.b.good(&format!("net add --net xdp --if {} --mode {mode}", two.netns.b().interface().name));
        },
    );
}

#[test]
fn frames_of_an_interface_that_goes_under_load_are_accounted_for() {
    check_interface(["auto", "auto"]);
}

#[test]
fn frames_of_an_ni_that_is_deleted_under_load_are_accounted_for() {
    check_ni(["auto", "auto"]);
}

#[test]
fn frames_of_an_interface_that_goes_under_load_beside_the_other_mode_are_accounted_for() {
    for modes in [["socket", "auto"], ["auto", "socket"]] {
        check_interface(modes);
    }
}

#[test]
fn frames_of_an_ni_that_is_deleted_under_load_beside_the_other_mode_are_accounted_for() {
    for modes in [["socket", "auto"], ["auto", "socket"]] {
        check_ni(modes);
    }
}

/// The NIs of one daemon go, one after the other: what they had received stays in the account.
#[test]
fn frames_of_sockets_have_an_account_of_their_own() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for modes in [["socket", "auto"], ["auto", "socket"]] {
        let two = two_in(modes);
        for (rail, (net, mode)) in ["xdp", "xdp1"].into_iter().zip(modes).enumerate() {
            let before = by_mode(&two.b);
            let [_, peer] = two.nids(rail);
            for _ in 0..20 {
                two.a.good(&format!("ping --timeout 5 {peer}"));
            }
            let after = by_mode(&two.b);
            let came = [after[0] - before[0], after[1] - before[1]];
            let (its, other) = if mode == "socket" { (0, 1) } else { (1, 0) };
            assert!(came[its] >= 20 && came[other] == 0, "{came:?} by {mode}");
            if rail == 0 {
                two.b.good(&format!("net del --net {net}"));
                let left = by_mode(&two.b);
                assert!(left[its] >= after[its] && left[other] >= after[other], "{left:?} of {after:?}");
            }
        }
    }
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
    let mut gone = 0;
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
        let now = checked(&two.b).lost_with_interfaces;
        println!("{} of {} frames are lost", now - gone, steered(&two.b) - before);
        gone = now;
        if gone != 0 {
            break;
        }
        two.b.good(&format!("net add --net xdp --if {}", far.name));
    }
    assert_ne!(gone, 0, "no frame was in a ring that closed");
}
