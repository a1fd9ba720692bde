//! Two shards back to back: a network in a struct, without sockets and without a clock.
//!
//! The fake LND moves one message at a time; which one, and when its sender hears of it, is up to the
//! caller. Payload really moves, so a wrong span shows.

use std::collections::BTreeMap;

use lnet_core::ShardConfig;
use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Full, RxId, Span, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_wire::Header;

use crate::common::{NI, Node, config, entry, host, interface, nid};

/// One of the two.
pub(crate) struct Side {
    pub(crate) node: Node,
    /// Payload of its descriptors.
    pub(crate) memory: BTreeMap<MdHandle, Vec<u8>>,
    /// Messages to it that are under way.
    pub(crate) wire: Vec<(Header, Vec<u8>)>,
    /// Messages whose header it has taken.
    pub(crate) arriving: Vec<(RxId, Span, Vec<u8>)>,
    /// Messages that it has sent and whose end its LND has not reported.
    pub(crate) flying: Vec<Transmit>,
    idle: Vec<RxId>,
}

pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Instant,
}

impl Pair {
    /// Hosts 1 and 2.
    pub(crate) fn new() -> Self {
        let side = |last| {
            let topology = Topology::new(vec![interface(nid(1, last), 4, 3)]);
            let interface_cookie = u64::from(last) * 0x1111;
            let config = ShardConfig { topology: topology.into(), interface_cookie, ..config() };
            Side {
                idle: (0..config.limits.incoming).rev().map(RxId).collect(),
                node: Node::new(config),
                memory: BTreeMap::new(),
                wire: Vec::new(),
                arriving: Vec::new(),
                flying: Vec::new(),
            }
        };
        Self { sides: [side(1), side(2)], now: Instant(0) }
    }

    /// The LND of a side takes the next message, or finds its device full.
    pub(crate) fn transmit(&mut self, side: usize, device_full: bool) -> bool {
        let Some(transmit) = self.sides[side].node.transmit() else { return false };
        if device_full {
            self.sides[side].node.shard.give_back(Full(transmit));
            return false;
        }
        let payload = transmit.payload.map_or(Vec::new(), |span| {
            let first = usize::try_from(span.offset_bytes).unwrap();
            self.sides[side].memory[&span.md][first..first + span.length_bytes as usize].to_vec()
        });
        assert_eq!(payload.len(), transmit.header.payload_length as usize);
        self.sides[side].flying.push(transmit);
        self.sides[1 - side].wire.push((transmit.header, payload));
        true
    }

    /// A message reaches a side; whether that takes it. `None` if it cannot receive one more.
    pub(crate) fn header(&mut self, side: usize, which: usize) -> Option<bool> {
        let now = self.now;
        let side = &mut self.sides[side];
        let rx = *side.idle.last()?;
        let (header, payload) = side.wire.swap_remove(which);
        let Verdict::Deliver(span) = side.node.shard.header(now, NI, rx, &header) else { return Some(false) };
        side.idle.pop();
        side.arriving.push((rx, span, payload));
        Some(true)
    }

    /// The payload of a message is in place, or will never be.
    pub(crate) fn received(&mut self, side: usize, which: usize, status: Status) {
        let now = self.now;
        let side = &mut self.sides[side];
        let (rx, span, payload) = side.arriving.swap_remove(which);
        let first = usize::try_from(span.offset_bytes).unwrap();
        let length = span.length_bytes as usize;
        side.memory.get_mut(&span.md).expect("the buffer is still there")[first..first + length]
            .copy_from_slice(&payload[..length]);
        side.node.shard.received(now, rx, status);
        side.idle.push(rx);
    }

    /// The LND of a side reports the end of a message.
    pub(crate) fn sent(&mut self, side: usize, which: usize, status: Status) {
        let now = self.now;
        let side = &mut self.sides[side];
        let transmit = side.flying.swap_remove(which);
        side.node.shard.sent(now, transmit.tx, status);
    }

    /// Moves everything, in order, until nothing moves any more.
    pub(crate) fn settle(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for side in 0..2 {
                while self.transmit(side, false) {
                    moved = true;
                }
                while !self.sides[1 - side].wire.is_empty() && self.header(1 - side, 0).is_some() {
                    moved = true;
                }
                while !self.sides[1 - side].arriving.is_empty() {
                    self.received(1 - side, 0, Status::Ok);
                    moved = true;
                }
                while !self.sides[side].flying.is_empty() {
                    self.sent(side, 0, Status::Ok);
                    moved = true;
                }
            }
        }
    }

    /// Makes a bound descriptor with this content.
    pub(crate) fn bind(&mut self, side: usize, spec: &MdSpec, content: Vec<u8>) -> MdHandle {
        let side = &mut self.sides[side];
        let md = side.node.shard.bind(spec).unwrap();
        side.memory.insert(md, content);
        md
    }

    /// The events of a side; buffers whose descriptor has ended are gone afterwards.
    pub(crate) fn events(&mut self, side: usize) -> Vec<Event> {
        let side = &mut self.sides[side];
        let events = side.node.events();
        for event in events.iter().filter(|event| event.unlinked) {
            side.memory.remove(&event.md).expect("a descriptor ends once");
        }
        events
    }
}

fn kinds(events: &[Event]) -> Vec<(EventKind, bool)> {
    events.iter().map(|event| (event.kind, event.unlinked)).collect()
}

#[test]
fn a_put_with_ack_there_and_back() {
    let mut pair = Pair::new();
    let me = pair.sides[1].node.shard.attach_entry(&entry(5)).unwrap();
    let spec = MdSpec { options: MdOptions::PUT, auto_unlink: false, ..pair.sides[1].node.md(8) };
    let target = pair.sides[1].node.shard.attach(me, &spec).unwrap();
    pair.sides[1].memory.insert(target, vec![0; 8]);
    let spec = MdSpec { threshold: Threshold::Count(2), ..pair.sides[0].node.md(3) };
    let md = pair.bind(0, &spec, vec![1, 2, 3]);
    let put = PutRequest { ack: true, target: host(2), ..crate::common::put_request(md, 2) };
    pair.sides[0].node.shard.put(pair.now, &put).unwrap();
    pair.settle();
    assert_eq!(pair.sides[1].memory[&target], [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(kinds(&pair.events(0)), [(EventKind::Send, false), (EventKind::Ack, true)]);
    assert_eq!(kinds(&pair.events(1)), [(EventKind::Put, false)]);
}

#[test]
fn a_get_brings_what_the_target_has() {
    let mut pair = Pair::new();
    let me = pair.sides[1].node.shard.attach_entry(&entry(5)).unwrap();
    let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { options, ..pair.sides[1].node.md(8) };
    let target = pair.sides[1].node.shard.attach(me, &spec).unwrap();
    pair.sides[1].memory.insert(target, (0..8).collect());
    let spec = MdSpec { threshold: Threshold::Count(2), auto_unlink: false, ..pair.sides[0].node.md(3) };
    let md = pair.bind(0, &spec, vec![99; 3]);
    let get = GetRequest { md, self_nid: None, target: host(2), portal: 4, match_bits: 5, offset: 4 };
    pair.sides[0].node.shard.get(pair.now, &get).unwrap();
    pair.settle();
    assert_eq!(pair.sides[0].memory[&md], [4, 5, 6]);
    assert_eq!(kinds(&pair.events(0)), [(EventKind::Send, false), (EventKind::Reply, false)]);
    assert_eq!(kinds(&pair.events(1)), [(EventKind::Get, true)]);
}
