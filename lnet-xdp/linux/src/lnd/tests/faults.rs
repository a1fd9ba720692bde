//! A wire that loses, doubles, reorders and changes packets, messages that are delayed, and the faults that a
//! sender makes on purpose.

use std::collections::BTreeMap;

use lnet_core::lnd::{Status, TxId};
use lnet_io::driver::Driver;
use lnet_io::xsk::RingSizes;
use lnet_wire::frame::{FRAME_NUMBER_OFFSET, Kind, SESSION_OFFSET, SHARD_OFFSET};
use proptest::prelude::*;

use super::node::{Node, Plan};
use super::wire::Wire;
use super::{acquainted, kind_of, pattern};
use crate::lnd::{SendFault, XdpDrop};

/// What goes wrong, each once in so many packets.
#[derive(Clone, Copy, Debug)]
struct Odds {
    loss: u32,
    doubling: u32,
    reordering: u32,
    corruption: u32,
}

/// A wire on which things go wrong.
struct Trouble {
    odds: Odds,
    state: u64,
    late: Vec<Vec<u8>>,
    /// The last frame number of each session and shard that sends; it tells the order where one shard
    /// receives.
    newest: BTreeMap<[u8; 9], u32>,
    /// Frames that came to the wire wrapped later ones.
    overtaken_count: u32,
}

impl Trouble {
    fn happens(&mut self, once_in: u32) -> bool {
        self.state = self.state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        once_in != 0 && (self.state >> 33).is_multiple_of(u64::from(once_in))
    }

    /// Looks whether its sender has sent a frame late; one that is sent again has another number.
    fn note_order(&mut self, packet: &[u8]) {
        if kind_of(packet) != Kind::Data as u8 {
            return;
        }
        let frame = &packet[UDP_PAYLOAD..];
        let mut flow = [frame[SHARD_OFFSET]; 9];
        flow[..8].copy_from_slice(&frame[SESSION_OFFSET..][..8]);
        let number = u32::from_le_bytes(*frame[FRAME_NUMBER_OFFSET..].first_chunk().unwrap());
        let newest = self.newest.entry(flow).or_insert(number);
        self.overtaken_count += u32::from(number < *newest);
        *newest = number.max(*newest);
    }

    fn pass(&mut self, mut packet: Vec<u8>) -> Vec<Vec<u8>> {
        self.note_order(&packet);
        if self.happens(self.odds.loss) {
            return Vec::new();
        }
        if self.happens(self.odds.corruption) {
            // InPlaceUplink what XDP steers by, so that it still arrives.
            let place = 100 + (self.state >> 20) as usize % (packet.len() - 100);
            packet[place] ^= 1 << (self.state >> 60 & 7);
        }
        if self.happens(self.odds.reordering) {
            self.late.push(packet);
            return Vec::new();
        }
        let mut packets = vec![packet];
        if self.happens(self.odds.doubling) {
            packets.push(packets[0].clone());
        }
        if self.happens(4) {
            packets.append(&mut self.late);
        }
        packets
    }
}

const PLACE_BYTES: u32 = 70_000;
/// InPlaceUplink the headers of Ethernet, IPv4 and UDP.
const UDP_PAYLOAD: usize = 42;

/// Messages both ways over all shards of two nodes: each arrives once, with every byte, and its sender knows.
/// Returns how many frames their senders have sent wrapped later ones, too.
fn all_arrive(plan: impl Fn(u8) -> Plan, odds: Odds, lengths: &[u32], seed: u64) -> (Wire, u32) {
    let mut wire = Wire::new(plan(1), plan(2));
    let shards = wire.nodes[0].shards.len();
    for node in 0..2 {
        for shard in 0..shards {
            pattern(&mut wire.nodes[node], shard, (node * 16 + shard) as u8);
        }
    }
    for (index, length) in lengths.iter().enumerate() {
        let (node, shard, tx) = (index % 2, index / 2 % shards, index as u32);
        let peer = wire.nodes[1 - node].plan;
        let put = wire.nodes[node].put_at(tx, &peer, tx.into(), tx * PLACE_BYTES, *length);
        wire.submit(node, shard, put);
    }
    let mut troubles = [0, 1].map(|node| Trouble {
        odds,
        state: seed + node,
        late: Vec::new(),
        newest: BTreeMap::new(),
        overtaken_count: 0,
    });
    wire.run_with(&mut |sender, packet| troubles[sender].pass(packet));
    wire.assert_frames_conserved();
    for node in 0..2 {
        let mut sent: Vec<_> = ends(&wire.nodes[node]);
        sent.sort_unstable_by_key(|(tx, _)| *tx);
        let own = (0..lengths.len() as u32).filter(|tx| *tx as usize % 2 == node);
        assert_eq!(sent, own.map(|tx| (TxId(tx), Status::Ok)).collect::<Vec<_>>());
        let mut arrived: Vec<_> =
            wire.nodes[1 - node].shards.iter().flat_map(|shard| shard.up.arrived.clone()).collect();
        arrived.sort_unstable();
        let meant = lengths.iter().enumerate().filter(|(index, _)| index % 2 == node);
        let meant: Vec<_> = meant.map(|(index, length)| (index as u64, *length)).collect();
        assert_eq!(arrived, meant, "each once");
        for (tx, length) in meant {
            let place = tx as usize * PLACE_BYTES as usize;
            let range = place..place + length as usize;
            let meant = wire.nodes[node].shards[tx as usize / 2 % shards].buffer()[range.clone()].to_vec();
            let takers = wire.nodes[1 - node].shards.iter_mut();
            let mut taker = takers.filter(|shard| shard.up.arrived.contains(&(tx, length)));
            assert!(taker.next().unwrap().buffer()[range] == meant[..], "bytes of message {tx}");
        }
    }
    let overtaken_count = troubles.iter().map(|trouble| trouble.overtaken_count).sum();
    (wire, overtaken_count)
}

fn ends(node: &Node) -> Vec<(TxId, Status)> {
    node.shards.iter().flat_map(|shard| shard.up.sent.clone()).collect()
}

fn two_shards(host: u8) -> Plan {
    let rings = RingSizes { fill: 256, completion: 256, rx: 256, tx: 128 };
    Plan { shards: 2, queues: 2, mtu_bytes: 1500, rings, ..Plan::new(host) }
}

#[test]
fn a_tenth_is_lost() {
    let lengths: Vec<u32> = (0..40).map(|index| [0, 64, 1000, 5000, 66_000][index % 5]).collect();
    let odds = Odds { loss: 10, doubling: 0, reordering: 0, corruption: 0 };
    let (wire, _) = all_arrive(two_shards, odds, &lengths, 1);
    let resent: u64 =
        wire.nodes[0].shards.iter().map(|shard| shard.lnd.transfer_counters().frames_resent).sum();
    assert_ne!(resent, 0);
}

#[test]
fn fragments_that_overtake_the_first_one_are_kept() {
    let mut wire =
        acquainted(Plan { mtu_bytes: 1500, ..Plan::new(1) }, Plan { mtu_bytes: 1500, ..Plan::new(2) });
    pattern(&mut wire.nodes[0], 0, 9);
    let put = wire.nodes[0].put(1, &Plan::new(2), 9, 20_000);
    wire.submit(0, 0, put);
    let mut first = Vec::new();
    let mut count = 0;
    wire.run_with(&mut |sender, packet| {
        if sender == 1 || kind_of(&packet) != Kind::Data as u8 {
            return vec![packet];
        }
        count += 1;
        match count {
            1 => {
                first = packet;
                Vec::new()
            }
            4 => vec![packet, std::mem::take(&mut first)],
            _ => vec![packet],
        }
    });
    let [a, b] = &mut wire.nodes;
    assert!(a.shards[0].buffer()[..20_000] == b.shards[0].buffer()[..20_000]);
    assert_eq!(b.shards[0].lnd.transfer_counters().frames_buffered, 3);
    assert_eq!(b.shards[0].lnd.early.chunks_count(), 0);
    assert_eq!(a.shards[0].lnd.transfer_counters().frames_resent, 0, "what was kept was not sent again");
    wire.assert_frames_conserved();
}

/// More packets than may be kept: the others are lost, and come again.
#[test]
fn packets_beyond_those_that_may_be_kept_come_again() {
    let rings = RingSizes { fill: 512, completion: 256, rx: 256, tx: 256 };
    let plan = |host| Plan { mtu_bytes: 9000, rings, ..Plan::new(host) };
    let mut wire = acquainted(plan(1), plan(2));
    pattern(&mut wire.nodes[0], 0, 9);
    let put = wire.nodes[0].put(1, &Plan::new(2), 9, 1 << 20);
    wire.submit(0, 0, put);
    let mut lost = false;
    let mut kept = 0;
    wire.run_with(&mut |sender, packet| {
        let is_first =
            sender == 0 && kind_of(&packet) == Kind::Data as u8 && !std::mem::replace(&mut lost, true);
        kept += 1;
        if is_first { Vec::new() } else { vec![packet] }
    });
    let [a, b] = &mut wire.nodes;
    assert!(a.shards[0].buffer()[..1 << 20] == b.shards[0].buffer()[..1 << 20]);
    assert_ne!(b.shards[0].lnd.counters().frames_forgotten, 0);
    wire.assert_frames_conserved();
}

/// A message that its receiver delays is buffered, then deferred to its sender, and comes when it is wanted.
#[test]
fn a_delayed_message_arrives_when_it_is_wanted() {
    for (length_bytes, pause_ns) in [(64, 100_000), (64, 50_000_000), (50_000, 100_000), (50_000, 50_000_000)]
    {
        let plan = |host| Plan { mtu_bytes: 1500, ..Plan::new(host) };
        let mut wire = acquainted(plan(1), plan(2));
        pattern(&mut wire.nodes[0], 0, 9);
        wire.nodes[1].shards[0].buffer().fill(0);
        wire.nodes[1].shards[0].up.lazy = Some(9);
        let put = wire.nodes[0].put(1, &Plan::new(2), 9, length_bytes);
        wire.submit(0, 0, put);
        let until = wire.now.0 + pause_ns;
        while wire.now.0 < until {
            wire.step(&mut |_, packet| vec![packet]);
        }
        assert_eq!((wire.nodes[0].under_way(), wire.nodes[1].shards[0].up.received), (1, 0));
        let now = wire.now;
        let shard = &mut wire.nodes[1].shards[0];
        shard.resume(now);
        assert!(shard.lnd.has_work());
        wire.run();
        let [a, b] = &mut wire.nodes;
        assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::Ok)]);
        assert_eq!(b.shards[0].up.received, 1);
        let length = length_bytes as usize;
        assert!(a.shards[0].buffer()[..length] == b.shards[0].buffer()[..length]);
        wire.assert_frames_conserved();
    }
}

#[test]
fn a_sender_doubles_and_delays_frames_when_told_to() {
    let lengths: Vec<u32> = (0..40).map(|index| [0, 64, 1000, 5000, 66_000][index % 5]).collect();
    let odds = Odds { loss: 0, doubling: 0, reordering: 0, corruption: 0 };
    let send_fault = SendFault { double_every: 3, delay_every: 7, delay_frames: 5 };
    let (wire, _) = all_arrive(|host| Plan { send_fault, ..two_shards(host) }, odds, &lengths, 3);
    let duplicates: u64 = wire.nodes[0]
        .shards
        .iter()
        .map(|shard| shard.lnd.transfer_counters().dropped(lnet_xdp_proto::XferDrop::Duplicate))
        .sum();
    assert_ne!(duplicates, 0);
    assert_ne!(frames_overtaken(&wire), 0);

    // Between single shards frame numbers tell in which order frames were made.
    let one_shard = |host| Plan { shards: 1, queues: 1, ..two_shards(host) };
    let (wire, overtaken_count) = all_arrive(one_shard, odds, &lengths, 3);
    assert_eq!((frames_overtaken(&wire), overtaken_count), (0, 0));
    let (wire, overtaken_count) =
        all_arrive(|host| Plan { send_fault, ..one_shard(host) }, odds, &lengths, 3);
    let late = frames_overtaken(&wire);
    assert!(overtaken_count != 0 && u64::from(overtaken_count) <= late, "{overtaken_count} of {late}");
}

fn frames_overtaken(wire: &Wire) -> u64 {
    let shards = wire.nodes.iter().flat_map(|node| &node.shards);
    shards.map(|shard| shard.lnd.counters().frames_overtaken).sum()
}

#[test]
fn a_changed_payload_is_lost_and_comes_again() {
    let plan = |host| Plan { mtu_bytes: 9000, ..Plan::new(host) };
    let mut wire = acquainted(plan(1), plan(2));
    pattern(&mut wire.nodes[0], 0, 9);
    let put = wire.nodes[0].put(1, &Plan::new(2), 9, 100_000);
    wire.submit(0, 0, put);
    let mut count = 0;
    wire.run_with(&mut |sender, mut packet| {
        count += 1;
        if sender == 0 && count < 20 && count % 3 == 1 {
            let last = packet.len() - 1;
            packet[last] ^= 0x80;
        }
        vec![packet]
    });
    let [a, b] = &mut wire.nodes;
    assert!(a.shards[0].buffer()[..100_000] == b.shards[0].buffer()[..100_000]);
    assert_ne!(b.shards[0].lnd.counters().dropped(XdpDrop::PayloadCorrupt), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_once_whatever_the_wire_does(
        seed in any::<u32>(),
        odds in (0..3_u32, 0..3_u32, 0..3_u32, 0..3_u32),
        lengths in prop::collection::vec(
            prop_oneof![3 => 0..200_u32, 1 => 0..20_000_u32, 1 => 0..PLACE_BYTES], 1..40,
        ),
    ) {
        let once_in = |odds: u32| [0, 30, 6][odds as usize];
        let odds = Odds {
            loss: once_in(odds.0),
            doubling: once_in(odds.1),
            reordering: once_in(odds.2),
            corruption: once_in(odds.3),
        };
        all_arrive(two_shards, odds, &lengths, seed.into());
    }
}
