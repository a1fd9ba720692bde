//! Strangers that begin messages over xdp and do not go on with them, or ask and acknowledge no answer,
//! beside a peer that notices nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use lnet_core::lnd::{PING_MATCH_BITS, PING_PORTAL};
use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};
use lnet_tests::node::Stranger;
use lnet_tests::node::message::Message;
use lnet_wire::{Body, Nid, WireHandle};

use crate::hostile_pushes::counter;
use crate::hostile_tcp::{Stage, Stop, stranger};
use crate::run::PATIENCE;

const STRANGERS: u8 = 24;
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
