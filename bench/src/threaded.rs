//! LNet messages between nodes whose shards have threads of their own, by the interface for applications.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_core::event::Event;
use lnet_core::limits::Limits;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::api::{Ack, Descriptor, Entry, EventQueue, Lnet, Target, Threads};
use lnet_user::node::{Carrier, NiConfig, NodeConfig, XdpMode};
use lnet_user::runtime::Idle;
use lnet_wire::Nid;
use lnet_wire::header::PAYLOAD_BYTES_MAX;

use crate::link::Side;
use crate::measure::{Endpoint, PATIENCE, flood_for};
use crate::messages::Operation;
use crate::node;

const PORTAL: u32 = 20;
/// Limits of a node that says nothing of them.
const LIMITS: Limits = Limits::DEFAULT;
/// Slots of an event queue.
const EVENT_SLOTS: u32 = 1 << 10;
/// Descriptors that messages may start from.
const SOURCES_MAX: u32 = 128;
/// How long a thread waits before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// Sources of messages that are under way at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sources {
    /// One descriptor. Puts send the whole of it. Gets fetch into parts of their own, as far as a bound
    /// descriptor has room for them: into the whole, if they are that long.
    One,
    /// A descriptor each.
    Each,
}

/// Messages of a node, and its options; of all others it has those of a program that says nothing.
#[derive(Clone, Copy, Debug)]
pub struct ThreadedConfig {
    /// Kind of the messages.
    pub operation: Operation,
    /// Payload bytes of each message.
    pub bytes: usize,
    /// Messages that are under way at once.
    pub window: usize,
    /// Sources of these.
    pub sources: Sources,
    /// Whether threads sleep at once when they have nothing to do.
    pub sleeps: bool,
    /// Mode of its NIs, where they are on an xdp net.
    pub mode: XdpMode,
    /// Carrier of long messages, where its NIs are on an xdp net.
    pub carrier: Carrier,
    /// Frames of a million that its XDP program drops of those that it receives.
    pub loss_per_million: u32,
}

impl ThreadedConfig {
    /// Messages out of one descriptor, or into one.
    #[must_use]
    pub const fn new(operation: Operation, bytes: usize, window: usize) -> Self {
        Self {
            operation,
            bytes,
            window,
            sources: Sources::One,
            sleeps: false,
            mode: XdpMode::Auto,
            carrier: Carrier::Auto,
            loss_per_million: 0,
        }
    }
}

/// A node of one shard, with an entry that takes and gives messages, and what it starts them from.
#[derive(Debug)]
pub struct End {
    arrivals: EventQueue,
    ends: EventQueue,
    sources: Vec<Descriptor>,
    target: Target,
    config: ThreadedConfig,
    /// Sources, or parts of the only one, for the messages that may be under way besides those that are.
    free: Vec<usize>,
    lnet: Lnet,
}

impl End {
    /// Starts the node of a side, in the calling thread's network namespace and on its CPU.
    ///
    /// # Errors
    /// What the node refused.
    pub fn open(side: Side<'_>, config: ThreadedConfig) -> anyhow::Result<Self> {
        Self::open_with(vec![NiConfig::new(side.nid, side.interface)], side.peer.nid, config)
    }

    /// Opens an end with these NIs, and a peer that has this NID.
    ///
    /// # Errors
    /// The errors of [`End::open`].
    pub fn open_with(nis: Vec<NiConfig>, peer: Nid, config: ThreadedConfig) -> anyhow::Result<Self> {
        let ThreadedConfig { operation, bytes, window, sources, .. } = config;
        let nis = nis.into_iter().map(|ni| node::with_carrier(ni, config.mode, config.carrier)).collect();
        let node_config = NodeConfig::new(nis).frame_loss_per_million(config.loss_per_million);
        let threads =
            if config.sleeps { Threads::new().idle(Idle::new(Duration::ZERO)) } else { Threads::new() };
        let lnet = Lnet::start_on(&node_config, &threads)?;
        let shard = lnet.shard(0)?;
        let arrivals = shard.create_event_queue(EVENT_SLOTS)?;
        let ends = shard.create_event_queue(SOURCES_MAX * LIMITS.unlimited_events)?;
        let md = |bytes: usize, options, queue: &EventQueue| MdSpec {
            auto_unlink: false,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, options, queue.handle())
        };
        let taken = md(bytes, operation.served(), &arrivals);
        shard.attach(&EntrySpec::new(PORTAL, 0), &taken, Buffer::zeroed(bytes))?.detach();
        let (count, parts) = match (sources, operation) {
            (Sources::Each, _) => (window, 1),
            (Sources::One, Operation::Put { .. }) => (1, 1),
            (Sources::One, Operation::Get) => {
                (1, (PAYLOAD_BYTES_MAX as usize / bytes.max(1)).clamp(1, window))
            }
        };
        let bytes = bytes * parts;
        let source = |number: usize| {
            let source = MdSpec { user_ptr: number as u64, ..md(bytes, MdOptions::NONE, &ends) };
            anyhow::Ok(shard.bind(&source, Buffer::zeroed(bytes))?)
        };
        let sources = (0..count).map(source).collect::<anyhow::Result<_>>()?;
        lnet.open()?;
        let target = Target::new(peer, PORTAL, 0);
        let free = (0..window).map(|number| number % (count * parts)).collect();
        Ok(Self { arrivals, ends, sources, target, config, free, lnet })
    }

    /// Its node.
    #[must_use]
    pub const fn lnet(&self) -> &Lnet {
        &self.lnet
    }

    /// Keeps the window full for `time`, and calls `each` whenever messages have ended; how many there were.
    ///
    /// # Errors
    /// What was refused, or a message that does not end.
    pub fn flood_watched(
        &mut self,
        time: Duration,
        each: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let start = |end: &mut Self, number| {
            if end.free.is_empty() { Ok(false) } else { end.send(number).map(|()| true) }
        };
        flood_for(self, time, start, |end| {
            let over = end.take_ends(true)?;
            each()?;
            Ok(over)
        })
    }

    /// The source, or the part of the only one, of the message that an event is the last one of.
    fn source_of(&self, event: &Event) -> usize {
        match (self.config.sources, event) {
            (Sources::Each, event) => event.user_ptr() as usize,
            (Sources::One, Event::Reply { offset_bytes, .. }) => {
                *offset_bytes as usize / self.config.bytes.max(1)
            }
            (Sources::One, _) => 0,
        }
    }

    /// Takes the ends of messages, and waits for one if that is asked for; how many there were.
    fn take_ends(&mut self, wait: bool) -> anyhow::Result<u64> {
        let mut over = 0;
        let mut next = if wait { self.ends.next_blocking(Some(PATIENCE))? } else { self.ends.try_next()? };
        ensure!(!wait || next.is_some(), "no message has ended for {PATIENCE:?}");
        while let Some(queued) = next {
            let event = queued.event;
            ensure!(event.status() == Status::Ok, "a message ended with {:?}", event.status());
            if event.kind() == self.config.operation.last_event() {
                self.free.push(self.source_of(&event));
                over += 1;
            }
            next = self.ends.try_next()?;
        }
        Ok(over)
    }

    /// Takes what has arrived, and waits a while for the first.
    fn take_arrivals(&mut self, mut each: impl FnMut(u64)) -> anyhow::Result<()> {
        let mut next = self.arrivals.next_blocking(Some(TICK))?;
        while let Some(queued) = next {
            if let Event::Put { hdr_data, .. } = queued.event {
                each(hdr_data);
            }
            next = self.arrivals.try_next()?;
        }
        Ok(())
    }
}

/// Entries that a node of one shard posts a second, of so many: one after the other, or by one list.
///
/// # Errors
/// The node's refusal.
pub fn posted_per_second(by_list: bool, count: u32) -> anyhow::Result<f64> {
    let limits = Limits { match_entries: count, memory_descs: count, events: 2 * count, ..LIMITS };
    let lnet = Lnet::start(&NodeConfig::loopback().limits(limits))?;
    let queue = lnet.create_event_queue(2 * count)?;
    let md = MdSpec::new(1, Threshold::Count(1), MdOptions::PUT, queue.handle());
    let entries = (0..count.into()).map(|number| (EntrySpec::new(PORTAL, number), md, Buffer::zeroed(1)));
    let entries: Vec<_> = entries.collect();
    let begun = Instant::now();
    let made = if by_list {
        lnet.attach_all(entries).into_iter().collect::<Result<Vec<_>, _>>()?
    } else {
        let one = |(entry, md, buffer)| lnet.attach(&entry, &md, buffer);
        entries.into_iter().map(one).collect::<Result<Vec<_>, _>>()?
    };
    let took = begun.elapsed();
    ensure!(made.len() == count as usize, "{} of {count} entries were made", made.len());
    made.into_iter().for_each(Entry::detach);
    Ok(f64::from(count) / took.as_secs_f64())
}

impl Endpoint for End {
    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        if self.free.is_empty() {
            self.take_ends(true)?;
        }
        let own = self.free.pop().context("more messages are under way than the window holds")?;
        let source = self.sources.get(own).unwrap_or(&self.sources[0]);
        let request = match self.config.operation {
            Operation::Put { ack } => {
                source.put(&self.target, if ack { Ack::Wanted } else { Ack::NotWanted }, number)
            }
            Operation::Get => source.get(&self.target),
        };
        let bytes = self.config.bytes;
        let is_part = self.config.sources == Sources::One && self.config.operation == Operation::Get;
        let request = if is_part { request.part((own * bytes) as u32, bytes as u32) } else { request };
        Ok(request.queue()?)
    }

    fn receive(&mut self, each: impl FnMut(u64)) {
        // A shard that has ended answers no message, and the measurement says so.
        let _ = self.take_arrivals(each);
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.take_ends(false).map(drop)
    }

    fn echo(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut numbers = Vec::with_capacity(EVENT_SLOTS as usize);
        while !stop.load(Ordering::Relaxed) {
            self.take_arrivals(|number| numbers.push(number))?;
            self.settle()?;
            for number in numbers.drain(..) {
                self.send(number)?;
            }
        }
        Ok(())
    }

    fn flood(&mut self, time: Duration) -> anyhow::Result<u64> {
        self.flood_watched(time, || Ok(()))
    }

    fn sink(&mut self, stop: &AtomicBool, received: &AtomicU64) {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) && self.take_arrivals(|_| count += 1).is_ok() {
            received.store(count, Ordering::Relaxed);
        }
    }
}
