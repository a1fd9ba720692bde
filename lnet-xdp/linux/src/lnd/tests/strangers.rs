//! Frames that show no good token: by which way they are answered, and what that costs others.

use lnet_io::netlink::{Asker, Resolution};
use lnet_wire::frame::{Kind, SESSION_OFFSET};

use super::kind_of;
use super::node::{Node, Plan};
use super::refusals::{FRAME, seal, target};

/// Where addresses stand in a packet over IPv4: their last bytes.
const SOURCE_HOST: usize = 29;
const DESTINATION_HOST: usize = 33;

/// A packet under a token that was never given, from this host, by this Ethernet address.
fn forged(packet: &[u8], host: u8, mac: [u8; 6]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[6..12].copy_from_slice(&mac);
    packet[SOURCE_HOST] = host;
    packet[FRAME + SESSION_OFFSET] ^= 1;
    seal(&mut packet);
    packet
}

/// The source of a refused frame may be made up: its answer goes to where the frame came from, and the kernel
/// is not asked.
#[test]
fn a_refused_frame_is_answered_by_the_way_that_it_came() {
    let (mut node, packet) = target();
    node.take_sent(0);
    for host in 50..120 {
        let mac = [2, 0, 0, 0, 9, host];
        assert!(node.deliver(0, 0, &forged(&packet, host, mac)));
        node.settle();
        let sent = node.take_sent(0);
        let [reset] = &sent[..] else { panic!("{} frames", sent.len()) };
        assert_eq!((kind_of(reset), reset[DESTINATION_HOST]), (Kind::Reset as u8, host));
        assert_eq!(reset[..6], mac);
    }
    let let_go = node.shards[0].lnd.counters().frames_let_go;
    assert!(node.deliver(0, 0, &forged(&packet, 49, [0xFF; 6])));
    node.settle();
    assert!(node.take_sent(0).is_empty(), "nothing goes back to a group");
    assert_eq!(node.shards[0].lnd.counters().frames_let_go, let_go + 1);
    // The way that the kernel knows is the better one.
    let known = Plan::new(48);
    node.learn(&known);
    assert!(node.deliver(0, 0, &forged(&packet, 48, [2, 0, 0, 0, 9, 48])));
    node.settle();
    assert_eq!(node.take_sent(0)[0][..6], known.mac());
    node.assert_frames_conserved();
}

/// A token is sent to where the kernel says that its address is, and nowhere else. What the kernel says of a
/// stranger changes no path of others.
#[test]
fn a_stranger_gets_its_token_at_its_address_and_costs_others_no_path() {
    let (mut node, _) = target();
    node.take_sent(0);
    let mut stranger = Node::new(Plan::new(3));
    let plan = stranger.plan;
    stranger.learn(&node.plan);
    let put = stranger.put(1, &node.plan, 9, 64);
    stranger.shards[0].submit(put).unwrap();
    stranger.settle();
    let hello = stranger.take_sent(0).remove(0);
    assert_eq!(kind_of(&hello), Kind::Hello as u8);
    assert!(node.deliver(0, 0, &hello));
    node.settle();
    assert!(node.take_sent(0).is_empty(), "the kernel has not said yet who has the address");
    let epoch = node.neighbours.epoch();
    for mac in [[2, 0, 0, 0, 9, 1], [2, 0, 0, 0, 9, 2]] {
        let generation = node.neighbours.generation();
        node.neighbours.answer(plan.address(), Resolution::Mac(mac));
        assert_ne!(node.neighbours.generation(), generation);
        assert!(node.deliver(0, 0, &hello));
        node.settle();
        let welcome = node.take_sent(0).remove(0);
        assert_eq!((kind_of(&welcome), &welcome[..6]), (Kind::Welcome as u8, &mac[..]));
    }
    node.neighbours.forget(plan.address());
    assert_eq!(node.neighbours.epoch(), epoch);
    // Shards that keep an answer are told once it holds no more.
    node.neighbours.answer(plan.address(), Resolution::Mac([2, 0, 0, 0, 9, 3]));
    let found = node.neighbours.lookup(plan.address(), Asker::Peer);
    assert_eq!(found, Resolution::Mac([2, 0, 0, 0, 9, 3]));
    node.neighbours.forget(plan.address());
    assert_ne!(node.neighbours.epoch(), epoch);
}
