//! LNet messages between application-driven shards, one shard a node: Puts, or Gets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::limits::Limits;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_user::Buffer;
use lnet_user::node::CHUNK_BYTES;
use lnet_user::node::{Carrier, NiConfig, NodeConfig, NodeDriver, ReactorChoice, Switch, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::{MessageType, ProcessId};

use crate::link::Side;
use crate::measure::{Endpoint, flood_for};
use crate::node;
use crate::random::Random;

const PORTAL: u32 = 20;
/// Event slots of one descriptor without a threshold.
const EVENT_SLOTS: u32 = node::LIMITS.unlimited_events;
/// Frames of a million that XDP drops for each message type, acknowledgements among them.
const TYPES: [MessageType; 4] = [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];

/// What is sent over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Puts to the far end; one is over when it was sent, or acknowledged if that is asked for.
    Put {
        /// Whether it is.
        ack: bool,
    },
    /// Gets from the far end.
    Get,
}

impl Operation {
    /// Options of the descriptor at the far end.
    pub(crate) fn served(self) -> MdOptions {
        let what = if matches!(self, Self::Get) { MdOptions::GET } else { MdOptions::PUT };
        what | MdOptions::MANAGE_REMOTE
    }

    /// The event by which a message is over.
    pub(crate) const fn last_event(self) -> EventKind {
        match self {
            Self::Put { ack: false } => EventKind::Send,
            Self::Put { ack: true } => EventKind::Ack,
            Self::Get => EventKind::Reply,
        }
    }
}

/// What a node sends, and what it has for others.
#[derive(Clone, Copy, Debug)]
pub struct EndConfig {
    /// What it sends.
    pub operation: Operation,
    /// Payload bytes of each message.
    pub bytes: usize,
    /// Messages that are under way at once.
    pub window: usize,
    /// Buffers that messages are sent from, in turn.
    pub buffers: usize,
    /// Whether all buffers are registered: rings alone send out of these without a copy.
    pub registered: bool,
    /// Frames of a million that its XDP program drops of those that it receives.
    pub loss_per_million: u32,
    /// Entries that take and give messages, for match bits from 0 on.
    pub entries: u32,
    /// Entries of its peer, to any of which messages go.
    pub peer_entries: u32,
    /// Entries with the node's limits made for them, and without events.
    pub silent: bool,
    /// Whether payloads have checksums.
    pub checksum: Switch,
    /// Whether the thread sleeps when it has nothing to do; else it polls.
    pub sleeps: bool,
    /// Mode of its NI, where that is on an xdp net.
    pub mode: XdpMode,
    /// Carrier of long messages, where its NI is on an xdp net.
    pub carrier: Carrier,
    /// The node's reactor.
    pub reactor: ReactorChoice,
}

impl EndConfig {
    /// Messages that their initiator knows to be over, so many at once: Puts with ACK out of one buffer, Gets
    /// into a buffer each.
    #[must_use]
    pub const fn answered(operation: Operation, bytes: usize, window: usize) -> Self {
        let buffers = if matches!(operation, Operation::Get) { window } else { 1 };
        Self { operation, window, buffers, ..Self::puts(bytes) }
    }

    /// Puts of this length out of one buffer into one.
    #[must_use]
    pub const fn puts(bytes: usize) -> Self {
        Self {
            operation: Operation::Put { ack: false },
            bytes,
            window: 128,
            buffers: 1,
            registered: false,
            loss_per_million: 0,
            entries: 1,
            peer_entries: 1,
            silent: false,
            checksum: Switch::On,
            sleeps: false,
            mode: XdpMode::Auto,
            carrier: Carrier::Auto,
            reactor: ReactorChoice::Auto,
        }
    }
}

/// How long a thread sleeps at most before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// A node of one shard, with its entries posted and descriptors to start messages from.
#[derive(Debug)]
pub struct End {
    // The worker's sockets close before the node's program goes.
    worker: Worker,
    _node: NodeDriver,
    config: EndConfig,
    arrivals: EqHandle,
    ends: EqHandle,
    /// The descriptor of each message that can be under way.
    free: Vec<MdHandle>,
    /// Where messages go to.
    peer: ProcessId,
    random: Random,
}

impl End {
    /// Starts the node of a side, in the calling thread's network namespace.
    ///
    /// # Errors
    /// What the node refused.
    pub fn open(side: Side<'_>, config: EndConfig) -> anyhow::Result<Self> {
        let EndConfig { bytes, buffers, entries, .. } = config;
        // Another LND than xdp has no such option.
        let checksum = Some(config.checksum).filter(|checksum| *checksum == Switch::Off);
        let ni = NiConfig::new(side.nid, side.interface).checksum(checksum);
        let ni = node::with_carrier(ni, config.mode, config.carrier);
        // Each descriptor may have all of its events under way, beside those of arrivals.
        let events = node::LIMITS.events.max((buffers as u32 + 2) * EVENT_SLOTS);
        let limits = Limits { events, ..node::LIMITS };
        let node_config = NodeConfig::new(vec![ni]).limits(limits);
        let mut node_config = node_config.mode(config.mode).reactor(config.reactor);
        if config.registered {
            let chunk_bytes = u64::from(CHUNK_BYTES);
            let count = buffers as u64 + u64::from(entries);
            node_config = node_config.registered_bytes(count * (bytes as u64).next_multiple_of(chunk_bytes));
        }
        if config.silent {
            let memory_descs = entries.max(64);
            node_config = node_config.limits(Limits { match_entries: entries, memory_descs, ..limits });
        }
        let (mut node, mut worker) = node::start(&node_config)?;
        for program in node.programs() {
            let mut program = program.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for message_type in TYPES {
                program.set_fault(message_type, config.loss_per_million, 0)?;
            }
        }
        let arrivals = worker.create_event_queue(EVENT_SLOTS)?;
        let ends = worker.create_event_queue(buffers as u32 * EVENT_SLOTS)?;
        let md = |options, event_queue| MdSpec {
            auto_unlink: false,
            event_queue,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, options, ends)
        };
        let buffer = || match config.registered {
            true => node.register(bytes).context("the node has registered memory for all buffers"),
            false => Ok(Buffer::zeroed(bytes)),
        };
        let target = md(config.operation.served(), (!config.silent).then_some(arrivals));
        for match_bits in 0..u64::from(entries) {
            worker.attach(&EntrySpec::new(PORTAL, match_bits), &target, buffer()?)?;
        }
        let source = md(MdOptions::NONE, Some(ends));
        let sources = (0..buffers).map(|_| Ok(worker.bind(&source, buffer()?)?));
        let sources: Vec<MdHandle> = sources.collect::<anyhow::Result<_>>()?;
        let free = sources.iter().copied().cycle().take(config.window).collect();
        node.open()?;
        let (peer, random) = (side.peer, Random::new());
        Ok(Self { worker, _node: node, config, arrivals, ends, free, peer, random })
    }

    /// One turn, after a sleep if it is to sleep and there is nothing to do.
    fn progress(&mut self) -> bool {
        let busy = self.worker.progress();
        if !busy && self.config.sleeps {
            // A refusal means that it polls.
            let _ = self.worker.wait(Some(TICK));
        }
        busy
    }

    fn start(&mut self, md: MdHandle, hdr_data: u64) -> Result<(), SubmitError> {
        let match_bits = self.random.below(self.config.peer_entries.into());
        let (self_nid, target, portal, offset) = (None, self.peer, PORTAL, 0);
        match self.config.operation {
            Operation::Put { ack } => self.worker.put(&PutRequest {
                md,
                part: None,
                ack,
                self_nid,
                target,
                portal,
                match_bits,
                offset,
                hdr_data,
            }),
            Operation::Get => {
                self.worker.get(&GetRequest { md, part: None, self_nid, target, portal, match_bits, offset })
            }
        }
    }

    /// Takes the events of what was sent; how many messages are over.
    fn take_ends(&mut self) -> anyhow::Result<u64> {
        let mut over = 0;
        while let Some(delivery) = self.worker.poll_event(self.ends) {
            let event = delivery.event;
            ensure!(event.status() == Status::Ok, "a message ended with {:?}", event.status());
            if event.kind() == self.config.operation.last_event() {
                self.free.push(event.md());
                over += 1;
            }
        }
        Ok(over)
    }

    fn take_arrivals(&mut self, mut each: impl FnMut(u64)) {
        while let Some(delivery) = self.worker.poll_event(self.arrivals) {
            if let Event::Put { hdr_data, .. } = delivery.event {
                each(hdr_data);
            }
        }
    }

    /// What a turn costs in which there is nothing to do, in nanoseconds: the least of many rounds.
    pub fn idle_turn_ns(&mut self) -> f64 {
        const ROUNDS: u32 = 200;
        const TURNS: u32 = 1000;
        let rounds = (0..ROUNDS).map(|_| {
            let begun = Instant::now();
            for _ in 0..TURNS {
                self.worker.progress();
            }
            begun.elapsed()
        });
        rounds.min().unwrap_or_default().as_nanos() as f64 / f64::from(TURNS)
    }
}

impl Endpoint for End {
    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        if self.free.is_empty() {
            self.take_ends()?;
        }
        let md = self.free.pop().context("more messages are under way than the window holds")?;
        Ok(self.start(md, number)?)
    }

    fn receive(&mut self, each: impl FnMut(u64)) {
        if self.progress() {
            self.take_arrivals(each);
        }
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.take_ends().map(drop)
    }

    fn echo(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut numbers = Vec::with_capacity(EVENT_SLOTS as usize);
        while !stop.load(Ordering::Relaxed) {
            if !self.progress() {
                std::hint::spin_loop();
                continue;
            }
            self.take_arrivals(|number| numbers.push(number));
            if numbers.is_empty() {
                self.settle()?;
            }
            for number in numbers.drain(..) {
                self.send(number)?;
            }
        }
        Ok(())
    }

    fn flood(&mut self, time: Duration) -> anyhow::Result<u64> {
        let start = |end: &mut Self, number| match end.free.pop() {
            Some(md) => Ok(end.start(md, number).map(|()| true)?),
            None => Ok(false),
        };
        flood_for(self, time, start, |end| {
            end.worker.progress();
            end.take_ends()
        })
    }

    fn sink(&mut self, stop: &AtomicBool, received: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            self.worker.progress();
            self.take_arrivals(|_| {});
            received.store(self.worker.counters().received.messages, Ordering::Relaxed);
        }
    }
}
