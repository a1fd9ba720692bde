//! Rings by which nothing ever comes: mode `auto` tries what is next, and says so.
//!
//! Rings are made deaf from outside, as a bond makes native ones: the program steers frames to a socket that
//! never gets them.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use lnet_io::netlink::Interface;
use lnet_tests::bpf::idle_socket;
use lnet_tests::netns::{NETNS_NODES, Namespace, enter, ip, require_privilege, wait_until};
use lnet_wire::steer::slot_of;
use rustix::process::Signal;

use crate::run::{Daemon, PATIENCE, Two, until_shown};

/// Queues and shards of the daemons here.
const QUEUES: u32 = 2;
const SHARDS: u32 = 2;

/// Has the program of an interface steer all frames to a socket that receives none. The program's id, if
/// there is one other than the former.
fn make_deaf(namespace: &Namespace, former: Option<u32>) -> Option<u32> {
    let name = namespace.interface().name.clone();
    let id = enter(namespace, || Interface::by_name(&name).ok())?
        .xdp_program_id
        .filter(|id| Some(*id) != former)?;
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == id)?;
    let maps = program.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    let sockets = maps.into_iter().find(|map| map.name() == "XSKS")?;
    let socket = idle_socket();
    for slot in (0..QUEUES).flat_map(|queue| (0..SHARDS).map(move |shard| slot_of(queue, shard))) {
        let descriptor = socket.as_fd().as_raw_fd();
        sockets.update(&slot.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY).ok()?;
    }
    // The map does not keep a socket that is closed.
    std::mem::forget(socket);
    Some(id)
}

/// Adds a net on the first interface of each namespace, with these words for the first.
fn add(two: &Two, words: &str) {
    for (daemon, namespace, words) in [(&two.a, two.netns.a(), words), (&two.b, two.netns.b(), "")] {
        daemon.good("lnet configure");
        daemon.good(&format!("net add --net xdp --if {} {words}", namespace.interface().name));
    }
}

fn lines(log: &str, part: &str) -> usize {
    log.lines().filter(|line| line.contains(part)).count()
}

/// Native rings that are deaf are followed by generic ones: a message that waits arrives by these.
#[test]
fn deaf_native_rings_are_followed_by_generic_ones() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    add(&two, "");
    make_deaf(two.netns.a(), None).unwrap();
    let [a, b] = two.nids(0);
    two.a.good(&format!("ping --timeout 30 {b}"));
    two.b.good(&format!("ping --timeout 10 {a}"));
    until_shown(&two.a, "net show -v", "active mode: generic");
    until_shown(&two.a, "net show -v", "native rings were deaf: frames are steered and none is received");
    assert!(two.b.good("net show -v").contains("active mode: native"), "that one hears");
    for daemon in [&two.a, &two.b] {
        daemon.good("frames check");
        assert!(!daemon.good("net show").contains("alarm"));
    }
    // NIs that are added again begin anew.
    two.a.good("net del --net xdp");
    two.a.good(&format!("net add --net xdp --if {}", two.netns.a().interface().name));
    let shown = two.a.good("net show -v");
    assert!(shown.contains("active mode: native") && !shown.contains("were deaf"), "{shown}");
    let log = two.a.stop();
    assert_eq!(lines(&log, "the next mode is tried"), 1, "{log}");
}

/// All rings are deaf, and two NIs share them: both go by sockets then, and stay there.
#[test]
fn nis_whose_rings_are_all_deaf_go_by_sockets() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    add(&two, "");
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good(&format!("net add --net xdp1 --if {} --port 4988", namespace.interface().name));
    }
    let [_, b] = two.nids(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut former = None;
            while !is_over.load(Ordering::Relaxed) {
                former = make_deaf(two.netns.a(), former).or(former);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let sockets = |daemon: &Daemon| daemon.good("net show -v").matches("active mode: socket").count();
        let pinged = two.a.run(&format!("ping --timeout 40 {b} {b}1"));
        wait_until("both NIs go by sockets", PATIENCE, || sockets(&two.a) == 2);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(pinged.status, 0, "{pinged:?}\n{}", two.a.directory.log());
    });
    until_shown(&two.a, "net show", "generic rings were deaf");
    let [a, _] = two.nids(0);
    two.b.good(&format!("ping --timeout 10 {a} {a}1"));
    // The former rings have gone with what they had lost.
    two.a.good("frames check");
    let log = two.a.stop();
    assert_eq!(lines(&log, "the next mode is tried"), 2, "{log}");
    let after = two.b.good("net show -v");
    assert_eq!(after.matches("active mode: native").count(), 2, "{after}");
}

/// A mode that was asked for stays, and raises an alarm.
#[test]
fn deaf_rings_stay_in_a_mode_that_was_asked_for() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    add(&two, "--mode native");
    make_deaf(two.netns.a(), None).unwrap();
    let [_, b] = two.nids(0);
    wait_until("deaf rings raise an alarm", PATIENCE, || {
        two.a.bad(&format!("ping --timeout 3 {b}"), &["failed to ping"]);
        two.a.good("net show").contains("frames are steered and none is received")
    });
    // Longer than rings of mode auto would have stayed.
    std::thread::sleep(Duration::from_secs(4));
    let shown = two.a.good("net show -v");
    assert!(shown.contains("active mode: native") && !shown.contains("were deaf"), "{shown}");
    assert_eq!(lines(&two.a.stop(), "the next mode is tried"), 0);
}

/// A peer that is silent makes no rings deaf, however often it is called.
#[test]
fn rings_stay_while_a_peer_is_silent() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    add(&two, "");
    let [_, b] = two.nids(0);
    two.b.signal(Signal::STOP);
    for _ in 0..3 {
        two.a.bad(&format!("ping --timeout 4 {b}"), &["failed to ping"]);
    }
    let shown = two.a.good("net show -v");
    assert!(shown.contains("active mode: native") && !shown.contains("deaf"), "{shown}");
    two.b.signal(Signal::CONT);
    two.a.good(&format!("ping --timeout 20 {b}"));
    assert_eq!(lines(&two.a.stop(), "the next mode is tried"), 0);
}

/// An interface by which nothing at all comes is told of, once. Its rings stay: they may be sound.
#[test]
fn total_silence_is_told_and_rings_stay() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    add(&two, "");
    let [_, b] = two.nids(0);
    two.a.good("net del --net xdp");
    // The far host says nothing, and is known.
    let [near, far] = [two.netns.a(), two.netns.b()].map(Namespace::interface);
    two.b.signal(Signal::STOP);
    let off = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
    enter(two.netns.b(), || std::fs::write(off, "1")).unwrap();
    let mac = enter(two.netns.b(), || Interface::by_name(&far.name).unwrap()).mac.unwrap();
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let known = format!("neigh replace {} lladdr {mac} dev {} nud permanent", far.ipv4, near.name);
    ip(two.netns.a(), &known);
    two.a.good(&format!("net add --net xdp --if {}", near.name));
    let told = "nothing has come since they were opened";
    wait_until("silence is told", PATIENCE, || {
        two.a.bad(&format!("ping --timeout 3 {b}"), &["failed to ping"]);
        two.a.directory.log().contains(told)
    });
    let shown = two.a.good("net show -v");
    assert!(shown.contains("active mode: native") && !shown.contains("deaf"), "{shown}");
    assert!(!shown.contains("alarm"), "{shown}");
    two.b.signal(Signal::CONT);
    two.a.good(&format!("ping --timeout 20 {b}"));
    assert_eq!(lines(&two.a.stop(), told), 1);
}
