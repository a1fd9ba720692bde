//! What is measured in bulk: long Puts and Gets on application-driven shards, one shard a node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::limits::Limits;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_user::memory::Buffer;
use lnet_user::node::{NiConfig, Node, NodeConfig};
use lnet_user::runtime::Worker;
use lnet_user::xsk::CHUNK_BYTES;
use lnet_wire::{MessageType, Nid, ProcessId};

use crate::node;

const PORTAL: u32 = 21;
const MATCH_BITS: u64 = 9;
/// Messages that are under way at once.
const WINDOW: usize = 8;
const EVENT_SLOTS: u32 = Limits::DEFAULT.unlimited_events;
/// How long the last messages may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Frames of a million that XDP drops for each message type, acknowledgements among them.
const TYPES: [MessageType; 4] = [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];

/// What is sent over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Puts to the far end.
    Put,
    /// Gets from the far end.
    Get,
}

/// A node of one shard: an entry that takes and gives long messages, and descriptors to start them from.
#[derive(Debug)]
pub struct End {
    // The worker's sockets close before the node's program goes.
    worker: Worker,
    _node: Node,
    arrivals: EqHandle,
    ends: EqHandle,
    /// A descriptor for each message that is under way at once: each has a buffer of its own.
    sources: Vec<MdHandle>,
    peer: ProcessId,
}

impl End {
    /// Starts the node on an interface of the calling thread's network namespace, its buffers registered or not.
    /// `loss_per_million` of the frames that it receives are dropped by its XDP program.
    ///
    /// # Errors
    /// What the node refused.
    pub fn open(
        interface: &str,
        nid: Nid,
        peer: Nid,
        bytes: usize,
        loss_per_million: u32,
        registered: bool,
    ) -> anyhow::Result<Self> {
        let buffers = WINDOW as u64 + 1;
        let chunk_bytes = u64::from(CHUNK_BYTES);
        let registered_bytes =
            if registered { buffers * (bytes as u64).next_multiple_of(chunk_bytes) } else { 0 };
        let config = NodeConfig::new(vec![NiConfig::new(nid, interface)]).registered_bytes(registered_bytes);
        let (mut node, mut worker) = node::start(&config)?;
        for program in node.programs_mut() {
            for message_type in TYPES {
                program.set_fault(message_type, loss_per_million, 0)?;
            }
        }
        let arrivals = worker.create_event_queue(EVENT_SLOTS)?;
        let ends = worker.create_event_queue(WINDOW as u32 * EVENT_SLOTS)?;
        let md = |options, queue| MdSpec {
            auto_unlink: false,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, options, queue)
        };
        let buffer = || {
            if !registered {
                return Ok(Buffer::zeroed(bytes));
            }
            node.register(bytes).context("the node has registered memory for all buffers")
        };
        let entry = EntrySpec::new(PORTAL, MATCH_BITS);
        let both = MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE;
        worker.attach(&entry, &md(both, arrivals), buffer()?)?;
        let sources = (0..WINDOW).map(|_| Ok(worker.bind(&md(MdOptions::NONE, ends), buffer()?)?));
        let sources = sources.collect::<anyhow::Result<_>>()?;
        node.open()?;
        let peer = ProcessId::lustre(peer);
        Ok(Self { worker, _node: node, arrivals, ends, sources, peer })
    }

    fn start(&mut self, operation: Operation, md: MdHandle) -> anyhow::Result<()> {
        let (self_nid, target, portal, match_bits, offset) = (None, self.peer, PORTAL, MATCH_BITS, 0);
        match operation {
            Operation::Put => {
                let put =
                    PutRequest { md, ack: true, self_nid, target, portal, match_bits, offset, hdr_data: 0 };
                self.worker.put(&put)?;
            }
            Operation::Get => {
                self.worker.get(&GetRequest { md, self_nid, target, portal, match_bits, offset })?;
            }
        }
        Ok(())
    }

    /// Keeps as many messages under way as there are descriptors, for `time`; how many were answered, and how
    /// long that took.
    ///
    /// # Errors
    /// When a message fails, or never ends.
    pub fn run(&mut self, operation: Operation, time: Duration) -> anyhow::Result<(u64, Duration)> {
        let begun = Instant::now();
        let mut under_way = 0;
        for md in self.sources.clone() {
            self.start(operation, md)?;
            under_way += 1;
        }
        let mut answered = 0;
        let mut last = begun;
        while under_way != 0 {
            self.worker.progress();
            while let Some(delivery) = self.worker.poll_event(self.ends) {
                let event = delivery.event;
                ensure!(event.status() == Status::Ok, "a message ended with {:?}", event.status());
                if !matches!(event.kind(), EventKind::Ack | EventKind::Reply) {
                    continue;
                }
                (answered, under_way, last) = (answered + 1, under_way - 1, Instant::now());
                if last - begun < time {
                    self.start(operation, event.md())?;
                    under_way += 1;
                }
            }
            ensure!(begun.elapsed() < time + PATIENCE, "{under_way} messages have no answer");
        }
        Ok((answered, last - begun))
    }

    /// Answers until told to stop; `served` counts the messages.
    pub fn serve(&mut self, stop: &AtomicBool, served: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            self.worker.progress();
            while self.worker.poll_event(self.arrivals).is_some() {
                served.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
