//! Pushes, by which a peer says what it is, over the in-process LND.

use std::time::Instant;

use lnet_user::{
    Ack, Buffer, EventKind, EventQueue, Lnet, MdOptions, Net, NetType, NiConfig, Nid, Policy, ShardHandle,
    Status, Target,
};
use lnet_wire::Global;
use lnet_wire::ping::{self, BUFFER_BYTES_MIN, Features, NiStatus, PingNi};

use crate::common::{PATIENCE, config, spec};

const MULTI_RAIL: Features = Features(0x1E);

fn nid(net: u16, host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::XDP, net), [10, 9, 7, host].into()).unwrap()
}

fn node(fabric: &str, host: u8, shards: u32, portal: Policy) -> Lnet {
    let ni = NiConfig::new(nid(0, host), &format!("in-process:{fabric}"));
    let lnet = Lnet::start(&config(shards).nis(vec![ni]).policies(vec![(0, portal)])).unwrap();
    lnet.open().unwrap();
    lnet
}

fn info(features: Features, nids: &[Nid]) -> Vec<u8> {
    let interfaces = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(interfaces.clone()).unwrap()];
    // A number behind all that the node itself gives.
    ping::write(&mut bytes, features, 12345, 1000, interfaces).unwrap();
    bytes
}

/// Pushes, and waits for the ACK: how many bytes it says were taken.
fn push(shard: &ShardHandle, queue: &mut EventQueue, to: Nid, bytes: &[u8]) -> u32 {
    let md = spec(queue, bytes.len(), 2, MdOptions::NONE);
    let source = shard.bind(&md, Buffer::from(bytes.to_vec())).unwrap();
    source.put(&Target::new(to, 0, 1 << 63), Ack::Wanted, 0).start().unwrap();
    loop {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("a push is acknowledged");
        assert_eq!(queued.event.status(), Status::Ok);
        if queued.event.kind() == EventKind::Ack {
            return queued.event.manipulated_bytes();
        }
    }
}

/// Waits until a node knows its peer by these NIDs, of which the first is the primary one.
#[track_caller]
fn await_peer(lnet: &Lnet, nids: &[Nid]) {
    let begun = Instant::now();
    loop {
        let peers = lnet.peers().unwrap();
        let peer = peers.iter().find(|peer| peer.primary == nids[0]);
        if peer.is_some_and(|peer| {
            let mut known = peer.nids();
            known.sort_by_key(|nid| nids.iter().position(|its| its == nid));
            known == nids && peer.is_multi_rail() && peer.state == 273
        }) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{peers:?}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn pushes_are_taken_and_acknowledged_one_after_the_other() {
    for (fabric, policy) in [("push-pin", Policy::Pin(1)), ("push-each", Policy::Initiator)] {
        let near = node(fabric, 1, 1, Policy::Pin(0));
        // It does not push what it really is.
        near.set(Global::Discovery, 0).unwrap();
        let far = node(fabric, 2, 2, policy);
        let shard = near.shard(0).unwrap();
        let mut queue = shard.create_event_queue(64).unwrap();
        let before: Vec<_> = far.shards().map(|shard| shard.usage().unwrap()).collect();
        for round in 1..50 {
            let nids = [nid(0, 1), nid(1, round), nid(2, round)];
            let bytes = info(MULTI_RAIL, &nids);
            assert_eq!(push(&shard, &mut queue, nid(0, 2), &bytes), bytes.len() as u32);
            // Those of one node may overtake each other between the shards.
            await_peer(&far, &nids);
        }
        await_peer(&far, &[nid(0, 1), nid(1, 49), nid(2, 49)]);
        assert_eq!(far.peers().unwrap().len(), 1);
        // Rubbish is acknowledged as well, and changes nothing.
        assert_eq!(push(&shard, &mut queue, nid(0, 2), &[7; 100]), 100);
        await_peer(&far, &[nid(0, 1), nid(1, 49), nid(2, 49)]);
        let usage = far.shards().map(|shard| shard.usage().unwrap());
        assert!(usage.map(|usage| usage.match_entries).eq(before.iter().map(|usage| usage.match_entries)));
    }
}

#[test]
fn a_push_that_is_too_long_is_cut_and_its_sender_pinged() {
    let [near, far] = [1, 2].map(|host| node("push-long", host, 1, Policy::Pin(0)));
    let shard = near.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let nids: Vec<_> = (1..=40).map(|host| nid(0, host)).filter(|one| *one != nid(0, 2)).collect();
    let bytes = info(MULTI_RAIL, &nids);
    assert_eq!(push(&shard, &mut queue, nid(0, 2), &bytes), BUFFER_BYTES_MIN as u32);
    // The ping finds what the node really has.
    await_peer(&far, &[nid(0, 1)]);
    // It has pushed that as well by now.
    await_peer(&near, &[nid(0, 2)]);
    assert_eq!(push(&shard, &mut queue, nid(0, 2), &bytes), bytes.len() as u32);
    await_peer(&far, &nids);
}
