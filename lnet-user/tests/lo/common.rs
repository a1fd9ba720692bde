//! A node without interfaces whose shards the test drives in turn.

use lnet_core::Limits;
use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle, MeHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_user::Buffer;
use lnet_user::node::{NodeConfig, NodeDriver};
use lnet_user::runtime::{Delivery, Worker};
use lnet_wire::steer::Policy;
use lnet_wire::{Nid, ProcessId};

/// Portals: pinned to a shard each, served by all, and by all and lazy.
pub(crate) const PINNED: [u32; 3] = [4, 5, 6];
pub(crate) const ROTOR: u32 = 7;
pub(crate) const LAZY_ROTOR: u32 = 8;
/// Pinned to the last shard, and lazy.
pub(crate) const LAZY_PINNED: u32 = 9;

/// This node, as it names itself.
pub(crate) const SELF: ProcessId = ProcessId::lustre(Nid::LO);

pub(crate) fn config(shards: u8) -> NodeConfig {
    let pinned = PINNED.iter().enumerate();
    let pinned = pinned.map(|(shard, portal)| (*portal as u8, Policy::Pin((shard as u8).min(shards - 1))));
    let others = [
        (ROTOR as u8, Policy::Rotor),
        (LAZY_ROTOR as u8, Policy::Rotor),
        (LAZY_PINNED as u8, Policy::Pin(shards - 1)),
    ];
    NodeConfig::loopback().shards(u32::from(shards)).policies(pinned.chain(others).collect()).limits(Limits {
        match_entries: 1 << 9,
        memory_descs: 1 << 10,
        event_queues: 8,
        events: 1 << 12,
        unlimited_events: 1 << 6,
        spare_events: 0,
        requests: 1 << 8,
        responses: 1 << 8,
        forwards: 0,
        incoming: 1 << 6,
        delayed: 1 << 7,
        peers: 1 << 4,
        nis: 1,
    })
}

pub(crate) struct Shards {
    pub(crate) workers: Vec<Worker>,
    pub(crate) queues: Vec<EqHandle>,
    _node: NodeDriver,
}

impl Shards {
    pub(crate) fn new(count: u8) -> Self {
        let (node, mut workers) = NodeDriver::start(&config(count)).unwrap();
        for worker in &mut workers {
            worker.set_lazy(LAZY_ROTOR).unwrap();
            worker.set_lazy(LAZY_PINNED).unwrap();
        }
        let queues = workers.iter_mut().map(|worker| worker.create_event_queue(1 << 11).unwrap()).collect();
        Self { workers, queues, _node: node }
    }

    /// Drives all shards until none finds anything to do.
    pub(crate) fn settle(&mut self) {
        let mut busy = true;
        while busy {
            busy = false;
            for worker in &mut self.workers {
                busy |= worker.progress();
            }
        }
    }

    pub(crate) fn spec(&self, shard: usize, length: usize, count: u32, options: MdOptions) -> MdSpec {
        MdSpec::new(length as u64, Threshold::Count(count), options, self.queues[shard])
    }

    /// Posts a descriptor over zeros.
    pub(crate) fn post(
        &mut self,
        shard: usize,
        entry: &EntrySpec,
        length: usize,
        count: u32,
        options: MdOptions,
    ) -> (MeHandle, MdHandle) {
        let spec = self.spec(shard, length, count, options);
        self.workers[shard].attach(entry, &spec, Buffer::zeroed(length)).unwrap()
    }

    pub(crate) fn bind(&mut self, shard: usize, bytes: Vec<u8>, count: u32) -> MdHandle {
        let spec = self.spec(shard, bytes.len(), count, MdOptions::NONE);
        self.workers[shard].bind(&spec, Buffer::from(bytes)).unwrap()
    }

    pub(crate) fn put(&mut self, shard: usize, md: MdHandle, portal: u32, match_bits: u64, ack: bool) {
        self.workers[shard].put(&put_request(md, portal, match_bits, ack)).unwrap();
    }

    pub(crate) fn get(&mut self, shard: usize, md: MdHandle, portal: u32, match_bits: u64) {
        self.workers[shard].get(&get_request(md, portal, match_bits)).unwrap();
    }

    /// Drives all shards and takes what a shard's queue has.
    pub(crate) fn events(&mut self, shard: usize) -> Vec<Delivery> {
        self.settle();
        std::iter::from_fn(|| self.workers[shard].poll_event(self.queues[shard])).collect()
    }

    /// The only event of a shard, and that it went well.
    #[track_caller]
    pub(crate) fn event(&mut self, shard: usize, kind: EventKind) -> Delivery {
        let mut events = self.events(shard);
        assert_eq!(kinds(&events), [kind]);
        events.remove(0)
    }

    /// That nothing is under way or left over.
    pub(crate) fn assert_idle(&mut self) {
        self.settle();
        for (shard, worker) in self.workers.iter().enumerate() {
            let usage = worker.usage();
            assert_eq!((usage.memory_descs, usage.events), (0, 0), "shard {shard}: {usage:?}");
            assert_eq!((usage.messages, usage.delayed), (0, 0), "shard {shard}: {usage:?}");
            assert_eq!(usage.match_entries, 0, "shard {shard}: {usage:?}");
        }
    }
}

pub(crate) fn put_request(md: MdHandle, portal: u32, match_bits: u64, ack: bool) -> PutRequest {
    PutRequest {
        md,
        part: None,
        ack,
        self_nid: None,
        target: SELF,
        portal,
        match_bits,
        offset: 0,
        hdr_data: !match_bits,
    }
}

pub(crate) fn get_request(md: MdHandle, portal: u32, match_bits: u64) -> GetRequest {
    GetRequest { md, part: None, self_nid: None, target: SELF, portal, match_bits, offset: 0 }
}

/// The kinds of events all of which went well.
#[track_caller]
pub(crate) fn kinds(deliveries: &[Delivery]) -> Vec<EventKind> {
    let kind = |event: &Event| {
        assert_eq!(event.status(), Status::Ok, "{event:?}");
        event.kind()
    };
    deliveries.iter().map(|delivery| kind(&delivery.event)).collect()
}

/// Bytes that tell where they come from.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(byte).collect()
}
