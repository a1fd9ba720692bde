//! Strangers that begin messages over xdp and do not go on with them, beside a peer that notices nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use lnet_core::lnd::{PING_MATCH_BITS, PING_PORTAL};
use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};
use lnet_tests::node::Stranger;
use lnet_tests::node::message::Message;
use lnet_wire::Nid;

use crate::hostile_tcp::{Stage, Stop, stranger};
use crate::run::PATIENCE;

const STRANGERS: u8 = 24;
/// Messages that each of them begins in a round: all begin more than a shard has places for.
const BEGUN: usize = 64;
const CLAIMED_BYTES: usize = 1 << 20;
/// Messages that arrive at once on a shard at most.
const MESSAGES_MAX: u64 = 1024;
/// Payload of a first frame.
const FIRST_BYTES: usize = 1024;

/// The first frame of a push of 1 MiB.
fn begun(source: Nid, target: Nid) -> Message {
    let mut message = Message::put(source, target, PING_PORTAL, PING_MATCH_BITS, CLAIMED_BYTES);
    message.payload.truncate(FIRST_BYTES);
    message
}

fn beside_first_frames(options: &str) {
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
                            let message = stranger.sign(begun(*nid, near));
                            stranger.send(&message.datagram());
                        }
                        stranger.stay_silent();
                    }
                }
            });
            let _stop = Stop(&is_over);
            let begun = || stage.count("forgotten") + stage.count("refused");
            wait_until("many messages have begun", PATIENCE, || begun() > 4 * MESSAGES_MAX);
            for _ in 0..10 {
                stage.two.b.good(&format!("ping {near}"));
                stage.two.a.good(&format!("ping {far}"));
            }
        });
    });
    stage.two.a.good("frames check");
}

#[test]
fn first_frames_of_many_messages_hold_up_no_peer_over_rings() {
    beside_first_frames("");
}

#[test]
fn first_frames_of_many_messages_hold_up_no_peer_over_sockets() {
    beside_first_frames("--mode socket");
}
