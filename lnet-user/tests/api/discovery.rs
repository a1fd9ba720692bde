//! Discovery as programs see it, between two nodes with two NIs each.

use std::time::{Duration, Instant};

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Ack, Buffer, Lnet, MdOptions, Net, NetType, NiConfig, Nid, Target};

use crate::common::{PINNED, config, next, post, spec};

fn nid(net: u16, host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::XDP, net), [10, 9, net as u8, host].into()).unwrap()
}

/// A node on two nets.
fn node(fabric: &str, host: u8) -> Lnet {
    let mut config = config(1);
    config.limits.nis = 4;
    let nis = [0, 1].map(|net| NiConfig::new(nid(net, host), &format!("in-process:{fabric}{net}")));
    let lnet =
        Lnet::start_on(&config.nis(nis.to_vec()), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    lnet.open().unwrap();
    lnet
}

/// How long the first message takes from a node to another one that it does not know. It names the NID that
/// is not the primary one, and both know all of each other when it has arrived.
fn first_message(fabric: &str) -> Duration {
    let (near, far) = (node(fabric, 1), node(fabric, 2));
    let (from, to) = (near.shard(0).unwrap(), far.shard(0).unwrap());
    let (sent, mut arrived) = (from.create_event_queue(8).unwrap(), to.create_event_queue(8).unwrap());
    post(&to, &arrived, PINNED[0], 7, 5);
    let source = from.bind(&spec(&sent, 5, 1, MdOptions::NONE), Buffer::from(b"hello".to_vec())).unwrap();
    let begun = Instant::now();
    source.put(&Target::new(nid(1, 2), PINNED[0], 7), Ack::NotWanted, 0).start().unwrap();
    let put = next(&mut arrived);
    let took = begun.elapsed();
    assert_eq!(put.payload(), Some(&b"hello"[..]));
    assert_eq!(from.counters().unwrap().gated, 1);
    for (lnet, other) in [(&near, 2), (&far, 1)] {
        assert_eq!(lnet.primary_nid(nid(1, other)).unwrap(), nid(0, other));
    }
    took
}

/// The runner learns at once which peer is wanted: not at its next look, which is half a second away.
#[test]
fn the_first_message_to_a_peer_waits_for_discovery_and_not_for_a_tick() {
    let took = ["first", "second", "third", "fourth"].map(first_message);
    assert!(took.iter().min() < Some(&Duration::from_millis(250)), "{took:?}");
}
