//! Two nodes back to back: a network in a struct, without sockets and without a clock.
//!
//! The fake LND moves one message at a time; which one, and when its sender hears of it, is up to the
//! caller. Payload really moves, so a wrong span shows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{MdHandle, ShardId};
use lnet_core::lnd::{Cause, Full, RxId, Span, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_core::time::Instant;
use lnet_core::topology::{Steering, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::Header;
use lnet_wire::steer::{PORTALS, Policy};

use crate::common::{NI, Node, config, entry, host, local_ni, nid, poll_mesh};

/// One of the two: a node of one shard or more. What arrives may reach any of them.
pub(crate) struct Side {
    pub(crate) nodes: Vec<Node>,
    /// Payload of its descriptors.
    pub(crate) memory: BTreeMap<MdHandle, Vec<u8>>,
    /// Messages to it that are under way.
    pub(crate) wire: Vec<(Header, Vec<u8>)>,
    /// Messages whose header a shard has taken.
    pub(crate) arriving: Vec<(usize, RxId, Span, Vec<u8>)>,
    /// Payload of messages that are delayed.
    pub(crate) delayed: BTreeMap<(usize, RxId), Vec<u8>>,
    /// Messages that a shard has sent and whose end its LND has not reported.
    pub(crate) flying: Vec<(usize, Transmit)>,
    /// What its shards say to each other.
    pub(crate) mesh: BTreeMap<(usize, usize), VecDeque<MeshMessage>>,
    idle: Vec<Vec<RxId>>,
}

/// What became of a message that reached a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    Taken,
    Delayed,
    Dropped,
}

pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Instant,
}

impl Pair {
    /// Hosts 1 and 2.
    pub(crate) fn new() -> Self {
        Self::with_shards(1, [Policy::Pin(0); PORTALS], 8)
    }

    /// Hosts 1 and 2 with so many shards each, on each of which so many messages may wait.
    pub(crate) fn with_shards(count: u8, policies: [Policy; PORTALS], delayed: u32) -> Self {
        let limits = Limits { delayed, ..config().limits };
        let steering =
            Steering { shard_count: count, policies: policies.map(|policy| policy.pack().unwrap()) };
        let side = |last| {
            let topology =
                Topology::new(vec![local_ni(nid(1, last), 4 * u32::from(count), 3 * u32::from(count))]);
            let topology = Arc::new(topology.with_steering(steering));
            let seal_key = [u64::from(last), 0];
            let node = |shard| {
                let topology = Arc::clone(&topology);
                let (shard, shard_count) = (ShardId(shard), count);
                Node::new(ShardConfig { topology, seal_key, shard, shard_count, limits, ..config() })
            };
            let names = || (0..config().limits.incoming).rev().map(RxId).collect();
            Side {
                nodes: (0..count).map(node).collect(),
                memory: BTreeMap::new(),
                wire: Vec::new(),
                arriving: Vec::new(),
                delayed: BTreeMap::new(),
                flying: Vec::new(),
                mesh: BTreeMap::new(),
                idle: (0..count).map(|_| names()).collect(),
            }
        };
        Self { sides: [side(1), side(2)], now: Instant(0) }
    }

    /// The LND of a shard takes the next message, or finds its device full.
    pub(crate) fn transmit(&mut self, side: usize, shard: usize, device_full: bool) -> bool {
        let Some(transmit) = self.sides[side].nodes[shard].transmit() else { return false };
        if device_full {
            self.sides[side].nodes[shard].shard.give_back(Full(transmit.tx));
            return false;
        }
        let payload = transmit.payload.map_or(Vec::new(), |span| {
            let first = usize::try_from(span.offset_bytes).unwrap();
            self.sides[side].memory[&span.buffer.md().unwrap()][first..first + span.length_bytes as usize]
                .to_vec()
        });
        assert_eq!(payload.len(), transmit.header.payload_length as usize);
        self.sides[side].flying.push((shard, transmit));
        self.sides[1 - side].wire.push((transmit.header, payload));
        true
    }

    /// A message reaches a shard; what that does with it. `None` if it cannot receive one more.
    pub(crate) fn header(&mut self, side: usize, shard: usize, which: usize) -> Option<Reached> {
        let now = self.now;
        let side = &mut self.sides[side];
        let rx = *side.idle[shard].last()?;
        let (header, payload) = side.wire.swap_remove(which);
        match side.nodes[shard].shard.header(now, NI, &header.source.nid, rx, &header) {
            Verdict::Drop => return Some(Reached::Dropped),
            Verdict::Delay => {
                side.idle[shard].pop();
                side.delayed.insert((shard, rx), payload);
                return Some(Reached::Delayed);
            }
            Verdict::Deliver(span) => {
                side.idle[shard].pop();
                side.deliver(shard, rx, span, payload);
            }
        }
        Some(Reached::Taken)
    }

    /// A shard lets a delayed message go on; what it does with it.
    pub(crate) fn resume(&mut self, side: usize, shard: usize) -> Option<Reached> {
        let side = &mut self.sides[side];
        let (_, rx, verdict) = side.nodes[shard].shard.poll_resume()?;
        let payload = side.delayed.remove(&(shard, rx)).expect("a message that is delayed is resumed");
        match verdict {
            Verdict::Deliver(span) => side.deliver(shard, rx, span, payload),
            Verdict::Drop => {
                side.idle[shard].push(rx);
                return Some(Reached::Dropped);
            }
            Verdict::Delay => panic!("resumed to be delayed"),
        }
        Some(Reached::Taken)
    }

    /// The LND of a shard gives up a delayed message.
    pub(crate) fn give_up(&mut self, side: usize, which: usize) {
        let now = self.now;
        let side = &mut self.sides[side];
        let (shard, rx) = *side.delayed.keys().nth(which).unwrap();
        side.delayed.remove(&(shard, rx));
        side.nodes[shard].shard.received(now, rx, Status::Unknown(Cause::Reset));
        side.idle[shard].push(rx);
    }

    /// A shard says something to a sibling, which does not hear it yet.
    pub(crate) fn say(&mut self, side: usize, shard: usize) -> bool {
        let side = &mut self.sides[side];
        let Some((ShardId(to), message)) = poll_mesh(&mut side.nodes[shard].shard) else { return false };
        assert_ne!(usize::from(to), shard);
        side.mesh.entry((shard, to.into())).or_default().push_back(message);
        true
    }

    /// A shard hears what a sibling has said.
    pub(crate) fn hear(&mut self, side: usize, from: usize, to: usize) -> bool {
        let now = self.now;
        let side = &mut self.sides[side];
        let Some(message) = side.mesh.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        side.nodes[to].shard.handle_mesh(now, ShardId(from as u8), message);
        true
    }

    /// The payload of a message is in place, or will never be.
    pub(crate) fn received(&mut self, side: usize, which: usize, status: Status) {
        let now = self.now;
        let side = &mut self.sides[side];
        let (shard, rx, span, payload) = side.arriving.swap_remove(which);
        let first = usize::try_from(span.offset_bytes).unwrap();
        let length = span.length_bytes as usize;
        side.memory.get_mut(&span.buffer.md().unwrap()).expect("the buffer is still there")
            [first..first + length]
            .copy_from_slice(&payload[..length]);
        side.nodes[shard].shard.received(now, rx, status);
        side.idle[shard].push(rx);
    }

    /// The LND of a shard reports the end of a message.
    pub(crate) fn sent(&mut self, side: usize, which: usize, status: Status) {
        let now = self.now;
        let side = &mut self.sides[side];
        let (shard, transmit) = side.flying.swap_remove(which);
        side.nodes[shard].shard.sent(now, transmit.tx, status);
    }

    /// Carries what shards say to each other, and resumes messages; whether there was any. A shard that was
    /// given up on may come to an end unseen.
    pub(crate) fn mesh(&mut self, side: usize) -> bool {
        let count = self.sides[side].nodes.len();
        let mut moved = false;
        for from in 0..count {
            while self.say(side, from) {
                moved = true;
            }
            for to in 0..count {
                while self.hear(side, from, to) {
                    moved = true;
                }
            }
        }
        moved
    }

    /// Moves everything, in order, until nothing moves any more; what arrives reaches the last shard.
    pub(crate) fn settle(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for side in 0..2 {
                let last = self.sides[side].nodes.len() - 1;
                for shard in 0..=last {
                    while self.transmit(side, shard, false) {
                        moved = true;
                    }
                    while self.resume(side, shard).is_some() {
                        moved = true;
                    }
                }
                while !self.sides[side].wire.is_empty() && self.header(side, last, 0).is_some() {
                    moved = true;
                }
                moved |= self.mesh(side);
                while !self.sides[side].arriving.is_empty() {
                    self.received(side, 0, Status::Ok);
                    moved = true;
                }
                while !self.sides[side].flying.is_empty() {
                    self.sent(side, 0, Status::Ok);
                    moved = true;
                }
            }
        }
    }

    /// Makes a bound descriptor of a shard with this content.
    pub(crate) fn bind(&mut self, side: usize, shard: usize, spec: &MdSpec, content: Vec<u8>) -> MdHandle {
        let side = &mut self.sides[side];
        let md = side.nodes[shard].shard.bind(spec).unwrap();
        side.memory.insert(md, content);
        md
    }

    /// Posts a descriptor of a shard, full of zeros.
    pub(crate) fn post(&mut self, side: usize, shard: usize, entry: &EntrySpec, spec: &MdSpec) -> MdHandle {
        let side = &mut self.sides[side];
        let entry = side.nodes[shard].shard.attach_entry(entry).unwrap();
        let md = side.nodes[shard].shard.attach(entry, spec).unwrap();
        side.memory.insert(md, vec![0; spec.length_bytes as usize]);
        md
    }

    /// The events of a shard; buffers whose descriptor has ended are gone afterwards.
    pub(crate) fn events(&mut self, side: usize, shard: usize) -> Vec<Event> {
        let side = &mut self.sides[side];
        let events = side.nodes[shard].events();
        for event in events.iter().filter(|event| event.unlinked()) {
            side.memory.remove(&event.md()).expect("a descriptor ends once");
        }
        events
    }
}

impl Side {
    /// A shard has given a message its place, in which no other shard writes at the same time.
    fn deliver(&mut self, shard: usize, rx: RxId, span: Span, payload: Vec<u8>) {
        let end = |span: &Span| span.offset_bytes + u64::from(span.length_bytes);
        assert!(self.memory.contains_key(&span.buffer.md().unwrap()), "the buffer is gone");
        for (other_shard, _, other, _) in &self.arriving {
            let apart = other.buffer != span.buffer
                || [other.length_bytes, span.length_bytes].contains(&0)
                || end(other) <= span.offset_bytes
                || end(&span) <= other.offset_bytes;
            assert!(apart || *other_shard == shard, "{shard} writes to {span:?}, {other_shard} to {other:?}");
        }
        self.arriving.push((shard, rx, span, payload));
    }
}

fn kinds(events: &[Event]) -> Vec<(EventKind, bool)> {
    events.iter().map(|event| (event.kind(), event.unlinked())).collect()
}

#[test]
fn a_put_with_ack_there_and_back() {
    let mut pair = Pair::new();
    let spec = MdSpec { options: MdOptions::PUT, auto_unlink: false, ..pair.sides[1].nodes[0].md(8) };
    let target = pair.post(1, 0, &entry(5), &spec);
    let spec = MdSpec { threshold: Threshold::Count(2), ..pair.sides[0].nodes[0].md(3) };
    let md = pair.bind(0, 0, &spec, vec![1, 2, 3]);
    let put = PutRequest { ack: true, target: host(2), ..crate::common::put_request(md, 2) };
    pair.sides[0].nodes[0].shard.put(pair.now, &put).unwrap();
    pair.settle();
    assert_eq!(pair.sides[1].memory[&target], [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(kinds(&pair.events(0, 0)), [(EventKind::Send, false), (EventKind::Ack, true)]);
    assert_eq!(kinds(&pair.events(1, 0)), [(EventKind::Put, false)]);
}

#[test]
fn a_get_brings_what_the_target_has() {
    let mut pair = Pair::new();
    let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { options, ..pair.sides[1].nodes[0].md(8) };
    let target = pair.post(1, 0, &entry(5), &spec);
    pair.sides[1].memory.insert(target, (0..8).collect());
    let spec = MdSpec { threshold: Threshold::Count(2), auto_unlink: false, ..pair.sides[0].nodes[0].md(3) };
    let md = pair.bind(0, 0, &spec, vec![99; 3]);
    let get =
        GetRequest { md, part: None, self_nid: None, target: host(2), portal: 4, match_bits: 5, offset: 4 };
    pair.sides[0].nodes[0].shard.get(pair.now, &get).unwrap();
    pair.settle();
    assert_eq!(pair.sides[0].memory[&md], [4, 5, 6]);
    assert_eq!(kinds(&pair.events(0, 0)), [(EventKind::Send, false), (EventKind::Reply, false)]);
    assert_eq!(kinds(&pair.events(1, 0)), [(EventKind::Get, true)]);
}
