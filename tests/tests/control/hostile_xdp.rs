//! Strangers that begin messages over xdp and do not go on with them, or ask and acknowledge no answer,
//! beside a peer that notices nothing.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lnet_core::lnd::{PING_MATCH_BITS, PING_PORTAL};
use lnet_tests::netns::{NETNS_NODES, enter, ip, require_privilege, wait_until};
use lnet_tests::node::message::Message;
use lnet_tests::node::{Stranger, Voice};
use lnet_wire::frame::Kind;
use lnet_wire::{Body, Nid, WireHandle};

use crate::hostile_pushes::counter;
use crate::hostile_tcp::{Stage, Stop, stranger};
use crate::run::PATIENCE;

const STRANGERS: u8 = 24;
/// Addresses that one stranger makes up: many more than the kernel is asked for at once.
const MADE_UP: u32 = 2000;
/// Messages that each of them begins in a round: all begin more than a shard has places for.
const BEGUN: usize = 64;
const CLAIMED_BYTES: usize = 1 << 20;
/// Messages that arrive at once on a shard at most.
const MESSAGES_MAX: u64 = 1024;
/// Credits of the NI that messages without an acknowledgement have passed on by the time of the first ping.
const CREDITS_PASSED_ON: u64 = 100;
/// Payload of a first frame.
const FIRST_BYTES: usize = 1024;

/// The first frame of a push of 1 MiB.
fn begun(source: Nid, target: Nid) -> Message {
    let mut message = Message::put(source, target, PING_PORTAL, PING_MATCH_BITS, CLAIMED_BYTES);
    message.payload.truncate(FIRST_BYTES);
    message
}

/// A ping.
fn ping(source: Nid, target: Nid) -> Message {
    let return_md = WireHandle { interface_cookie: 1, object_cookie: 5 };
    let (match_bits, portal, offset, sink_length) = (PING_MATCH_BITS, PING_PORTAL, 0, 256);
    Message::new(source, target, Body::Get { return_md, match_bits, portal, offset, sink_length }, Vec::new())
}

/// Has strangers say `said` to the first daemon again and again, and acknowledge nothing. A healthy peer
/// loses no message meanwhile, and pings both ways are answered, once `attacked` counts more than `enough`.
fn beside_strangers(
    options: &str,
    said: impl Fn(Nid, Nid) -> Message + Sync,
    attacked: impl Fn(&Stage) -> u64,
    enough: u64,
) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::on("xdp", options, STRANGERS);
    let (near, far) = (stage.nid(stage.near), stage.nid(stage.far));
    stage.two.a.good(&format!("discover {far}"));
    stage.two.b.good(&format!("discover {near}"));
    let is_over = AtomicBool::new(false);
    let mut strangers: Vec<_> = (0..STRANGERS)
        .map(|number| {
            let nid = stage.nid(stranger(number));
            (nid, Stranger::new(stage.two.netns.b(), nid, near))
        })
        .collect();
    strangers.iter_mut().for_each(|(_, stranger)| stranger.greet(|| {}));
    stage.beside_a_load(|stage| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    for (nid, stranger) in &mut strangers {
                        for _ in 0..BEGUN {
                            let message = stranger.sign(said(*nid, near));
                            stranger.send(&message.datagram());
                        }
                        stranger.stay_silent();
                    }
                }
            });
            let _stop = Stop(&is_over);
            wait_until("the attack has its effect", PATIENCE, || attacked(stage) > enough);
            for _ in 0..10 {
                stage.two.b.good(&format!("ping {near}"));
                stage.two.a.good(&format!("ping {far}"));
            }
        });
    });
    stage.two.a.good("frames check");
}

fn beside_first_frames(options: &str) {
    let begun_count = |stage: &Stage| stage.count("forgotten") + stage.count("refused");
    beside_strangers(options, begun, begun_count, 4 * MESSAGES_MAX);
}

/// Answers to pings that their askers do not acknowledge use up the credits of the NI: those of the ones that
/// are longest with the LND are passed on then.
#[test]
fn names_that_acknowledge_nothing_hold_up_no_peer() {
    let passed_on = |stage: &Stage| counter(&stage.two.a.good("stats show"), "credits_passed_on");
    beside_strangers("", ping, passed_on, CREDITS_PASSED_ON);
}

#[test]
fn first_frames_of_many_messages_hold_up_no_peer_over_rings() {
    beside_first_frames("");
}

#[test]
fn first_frames_of_many_messages_hold_up_no_peer_over_sockets() {
    beside_first_frames("--mode socket");
}

/// Has one stranger send datagrams to the first daemon from one address of a subnet after the other, which it
/// has made up: nothing answers for them there. A healthy peer loses no message meanwhile, and pings both
/// ways are answered, once `attacked` counts more than `enough`. Returns how many of these addresses the
/// kernel follows then.
fn beside_made_up_addresses(
    said: impl Fn(Nid, Nid) -> Vec<u8>,
    attacked: &str,
    enough: u64,
) -> Option<usize> {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return None;
    }
    let stage = Stage::on("xdp", "", 0);
    let (near, far) = (stage.nid(stage.near), stage.nid(stage.far));
    let [a, b] = [stage.two.netns.a(), stage.two.netns.b()];
    ip(a, &format!("route add 10.212.0.0/16 dev {}", a.interface().name));
    // Datagrams may have each of them as their source, and questions for it have no answer.
    ip(b, "link set dev lo up");
    ip(b, "route add local 10.212.0.0/16 dev lo");
    enter(b, || std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1")).unwrap();
    stage.two.a.good(&format!("discover {far}"));
    stage.two.b.good(&format!("discover {near}"));
    let addresses =
        (1..=MADE_UP).map(|number| Ipv4Addr::from_bits(Ipv4Addr::new(10, 212, 0, 0).to_bits() + number));
    let datagrams: Vec<_> = addresses.map(|address| (address, said(stage.nid(address), near))).collect();
    let is_over = AtomicBool::new(false);
    stage.beside_a_load(|stage| {
        std::thread::scope(|scope| {
            let flood = || {
                while !is_over.load(Ordering::Acquire) {
                    for (address, datagram) in &datagrams {
                        let socket = UdpSocket::bind((*address, 0)).unwrap();
                        // Datagrams that find no room in a queue of the kernel are lost.
                        let _ = socket.send_to(datagram, (stage.near, 988));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            scope.spawn(move || enter(b, flood));
            let _stop = Stop(&is_over);
            wait_until("the attack has its effect", PATIENCE, || stage.count(attacked) > enough);
            for _ in 0..10 {
                stage.two.b.good(&format!("ping {near}"));
                stage.two.a.good(&format!("ping {far}"));
            }
        });
    });
    stage.two.a.good("frames check");
    Some(ip(a, "neigh show").lines().filter(|line| line.starts_with("10.212.")).count())
}

/// Each frame is answered by a RESET, for which the kernel is not asked.
#[test]
fn frames_without_a_session_from_made_up_addresses_cost_a_peer_nothing() {
    let said = |source: Nid, target: Nid| Voice::new(source).sign(ping(source, target)).datagram();
    if let Some(followed) = beside_made_up_addresses(said, "resets", 2000) {
        assert_eq!(followed, 0);
    }
}

/// Each HELLO has a good certificate: any incarnation can sign any address. The kernel is asked for few of
/// these.
#[test]
fn hellos_from_made_up_addresses_cost_a_peer_nothing() {
    let said = |source: Nid, _: Nid| Voice::new(source).other(Kind::Hello);
    if let Some(followed) = beside_made_up_addresses(said, "next hops unasked", 100) {
        assert!((1..=256).contains(&followed), "{followed} are followed");
    }
}
