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
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_wire::Nid;

use crate::link::Side;
use crate::measure::{Endpoint, PATIENCE, flood_for};
use crate::messages::Operation;

const PORTAL: u32 = 20;
/// Limits of a node that says nothing of them.
const LIMITS: Limits = Limits::DEFAULT;
/// Places of an event queue.
const EVENT_SLOTS: u32 = 1 << 10;
/// Descriptors that messages may start from.
const SOURCES_MAX: u32 = 128;
/// How long a thread waits before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// A node of one shard, with an entry that takes and gives messages, and a descriptor to start them from.
#[derive(Debug)]
pub struct End {
    arrivals: EventQueue,
    ends: EventQueue,
    source: MdSpec,
    /// The descriptors that messages start from in turn: one, as of a program that binds once, or more.
    sources: Vec<Descriptor>,
    target: Target,
    operation: Operation,
    /// Puts that may be under way besides those that are.
    free: usize,
    lnet: Lnet,
}

impl End {
    /// Starts the node of a side, in the calling thread's network namespace and on its CPU.
    ///
    /// # Errors
    /// What the node refused.
    pub fn open(side: Side<'_>, operation: Operation, bytes: usize, window: usize) -> anyhow::Result<Self> {
        Self::open_on(side, operation, (bytes, window), &Threads::new())
    }

    /// Opens an end on such threads.
    ///
    /// # Errors
    /// The errors of [`End::open`].
    pub fn open_on(
        side: Side<'_>,
        operation: Operation,
        sizes: (usize, usize),
        threads: &Threads,
    ) -> anyhow::Result<Self> {
        Self::open_with(
            vec![NiConfig::new(side.nid, side.interface)],
            side.peer.nid,
            operation,
            sizes,
            threads,
        )
    }

    /// Opens an end with these NIs, and a peer that has this NID.
    ///
    /// # Errors
    /// The errors of [`End::open`].
    pub fn open_with(
        nis: Vec<NiConfig>,
        peer: Nid,
        operation: Operation,
        (bytes, window): (usize, usize),
        threads: &Threads,
    ) -> anyhow::Result<Self> {
        let lnet = Lnet::start_on(&NodeConfig::new(nis), threads)?;
        let shard = lnet.shard(0)?;
        let arrivals = shard.create_event_queue(EVENT_SLOTS)?;
        let ends = shard.create_event_queue(SOURCES_MAX * LIMITS.unlimited_events)?;
        let md = |options, queue: &EventQueue| MdSpec {
            auto_unlink: false,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, options, queue.handle())
        };
        let taken = md(operation.served(), &arrivals);
        shard.attach(&EntrySpec::new(PORTAL, 0), &taken, Buffer::zeroed(bytes))?.detach();
        let source = md(MdOptions::NONE, &ends);
        let sources = vec![shard.bind(&source, Buffer::zeroed(bytes))?];
        lnet.open()?;
        let target = Target::new(peer, PORTAL, 0);
        Ok(Self { arrivals, ends, source, sources, target, operation, free: window, lnet })
    }

    /// The end with so many descriptors in all, of which the messages start in turn.
    ///
    /// # Errors
    /// The node's refusal.
    pub fn spread(mut self, sources: usize) -> anyhow::Result<Self> {
        let shard = self.lnet.shard(0)?;
        while self.sources.len() < sources {
            let buffer = Buffer::zeroed(self.source.length_bytes as usize);
            self.sources.push(shard.bind(&self.source, buffer)?);
        }
        Ok(self)
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
        let start =
            |end: &mut Self, number| if end.free > 0 { end.send(number).map(|()| true) } else { Ok(false) };
        flood_for(self, time, start, |end| {
            let over = end.take_ends(true)?;
            each()?;
            Ok(over)
        })
    }

    /// Takes the ends of Puts, and waits for one if that is asked for; how many there were.
    fn take_ends(&mut self, wait: bool) -> anyhow::Result<u64> {
        let mut over = 0;
        let mut next = if wait { self.ends.next_blocking(Some(PATIENCE))? } else { self.ends.try_next()? };
        ensure!(!wait || next.is_some(), "no Put has ended for {PATIENCE:?}");
        while let Some(queued) = next {
            let event = queued.event;
            ensure!(event.status() == Status::Ok, "a message ended with {:?}", event.status());
            over += u64::from(event.kind() == self.operation.last_event());
            next = self.ends.try_next()?;
        }
        self.free += over as usize;
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

/// Entries that a node of one shard posts a second: one after the other, or by one list.
///
/// # Errors
/// The node's refusal.
pub fn posted_per_second(by_list: bool) -> anyhow::Result<f64> {
    const COUNT: u32 = 100_000;
    let limits = Limits { match_entries: COUNT, memory_descs: COUNT, events: 2 * COUNT, ..LIMITS };
    let lnet = Lnet::start(&NodeConfig::loopback().limits(limits))?;
    let queue = lnet.create_event_queue(2 * COUNT)?;
    let md = MdSpec::new(1, Threshold::Count(1), MdOptions::PUT, queue.handle());
    let entries = (0..COUNT.into()).map(|number| (EntrySpec::new(PORTAL, number), md, Buffer::zeroed(1)));
    let entries: Vec<_> = entries.collect();
    let begun = Instant::now();
    let made = if by_list {
        lnet.attach_all(entries).into_iter().collect::<Result<Vec<_>, _>>()?
    } else {
        let one = |(entry, md, buffer)| lnet.attach(&entry, &md, buffer);
        entries.into_iter().map(one).collect::<Result<Vec<_>, _>>()?
    };
    let took = begun.elapsed();
    ensure!(made.len() == COUNT as usize, "{} of {COUNT} entries were made", made.len());
    made.into_iter().for_each(Entry::detach);
    Ok(f64::from(COUNT) / took.as_secs_f64())
}

impl Endpoint for End {
    fn send(&mut self, number: u64) -> anyhow::Result<()> {
        if self.free == 0 {
            self.take_ends(true)?;
        }
        self.free = self.free.checked_sub(1).context("more messages are under way than the window holds")?;
        let source = &self.sources[number as usize % self.sources.len()];
        let request = match self.operation {
            Operation::Put { ack } => {
                source.put(&self.target, if ack { Ack::Wanted } else { Ack::NotWanted }, number)
            }
            Operation::Get => source.get(&self.target),
        };
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
