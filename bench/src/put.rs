//! What is measured: LNet Puts on application-driven shards, one shard a node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use lnet_core::event::Event;
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::limits::Limits;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{PutRequest, RequestError};
use lnet_user::memory::Buffer;
use lnet_user::node::{NiConfig, Node, NodeConfig};
use lnet_user::runtime::Worker;
use lnet_wire::{Nid, ProcessId};

use crate::{node, report};

const PORTAL: u32 = 20;
const MATCH_BITS: u64 = 7;
/// Of one descriptor without a threshold, hence of each event queue here.
const EVENT_SLOTS: u32 = Limits::DEFAULT.unlimited_events;
const PUT_TIMEOUT: Duration = Duration::from_secs(2);

/// A node of one shard, with one entry posted and one descriptor to put from.
#[derive(Debug)]
pub struct End {
    // The worker's sockets close before the node's program goes.
    worker: Worker,
    _node: Node,
    arrivals: EqHandle,
    sends: EqHandle,
    source: MdHandle,
    peer: ProcessId,
}

impl End {
    /// Starts the node on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// What the node refused.
    pub fn open(interface: &str, nid: Nid, peer: Nid, bytes: usize) -> anyhow::Result<Self> {
        let (mut node, mut worker) = node::start(&NodeConfig::new(vec![NiConfig::new(nid, interface)]))?;
        let arrivals = worker.create_event_queue(EVENT_SLOTS)?;
        let sends = worker.create_event_queue(EVENT_SLOTS)?;
        let md = |options, queue| MdSpec {
            auto_unlink: false,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, options, queue)
        };
        let entry = EntrySpec::new(PORTAL, MATCH_BITS);
        let sink = md(MdOptions::PUT | MdOptions::MANAGE_REMOTE, arrivals);
        worker.attach(&entry, &sink, Buffer::zeroed(bytes))?;
        let source = worker.bind(&md(MdOptions::NONE, sends), Buffer::zeroed(bytes))?;
        node.open()?;
        let peer = ProcessId::lustre(peer);
        Ok(Self { worker, _node: node, arrivals, sends, source, peer })
    }

    fn put(&mut self, number: u64) -> Result<(), RequestError> {
        self.worker.put(&PutRequest {
            md: self.source,
            ack: false,
            self_nid: None,
            target: self.peer,
            portal: PORTAL,
            match_bits: MATCH_BITS,
            offset: 0,
            hdr_data: number,
        })
    }

    /// Takes the events of what was sent; how many there were.
    fn take_sends(&mut self) -> anyhow::Result<u64> {
        let mut taken = 0;
        while let Some(delivery) = self.worker.poll_event(self.sends) {
            let event = delivery.event;
            ensure!(event.status() == Status::Ok, "a Put ended with {:?}", event.status());
            taken += 1;
        }
        Ok(taken)
    }

    fn take_arrivals(&mut self, mut each: impl FnMut(u64)) -> u64 {
        let mut taken = 0;
        while let Some(delivery) = self.worker.poll_event(self.arrivals) {
            if let Event::Put { hdr_data, .. } = delivery.event {
                each(hdr_data);
                taken += 1;
            }
        }
        taken
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

    /// Answers every Put with one until told to stop.
    ///
    /// # Errors
    /// When a Put fails.
    pub fn echo(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut numbers = Vec::with_capacity(EVENT_SLOTS as usize);
        while !stop.load(Ordering::Relaxed) {
            if !self.worker.progress() {
                std::hint::spin_loop();
                continue;
            }
            self.take_arrivals(|number| numbers.push(number));
            if numbers.is_empty() {
                self.take_sends()?;
                continue;
            }
            for number in numbers.drain(..) {
                self.put(number)?;
            }
        }
        Ok(())
    }

    /// Half round trips of one Put after the other, in nanoseconds; the first `warm_up` do not count.
    ///
    /// # Errors
    /// When a Put does not come back.
    pub fn ping(&mut self, count: u64, warm_up: u64) -> anyhow::Result<Histogram<u64>> {
        let mut half_ns = report::histogram();
        for round in 0..count + warm_up {
            let begun = Instant::now();
            self.put(round)?;
            let mut back = false;
            while !back {
                if self.worker.progress() {
                    self.take_arrivals(|number| back |= number == round);
                }
                ensure!(begun.elapsed() < PUT_TIMEOUT, "Put {round} was not answered");
            }
            let elapsed = begun.elapsed();
            self.take_sends()?;
            if round >= warm_up {
                half_ns.record(elapsed.as_nanos() as u64 / 2).context("a round trip of over a minute")?;
            }
        }
        Ok(half_ns)
    }

    /// Puts as fast as the credits allow for `time`; Puts sent.
    ///
    /// # Errors
    /// When a Put fails.
    pub fn flood(&mut self, time: Duration) -> anyhow::Result<u64> {
        const WINDOW: u64 = 128;
        let (begun, mut started, mut ended) = (Instant::now(), 0, 0);
        while begun.elapsed() < time {
            while started - ended < WINDOW {
                self.put(started)?;
                started += 1;
            }
            self.worker.progress();
            ended += self.take_sends()?;
        }
        while ended < started && begun.elapsed() < time + PUT_TIMEOUT {
            self.worker.progress();
            ended += self.take_sends()?;
        }
        ensure!(ended == started, "{} Puts never ended", started - ended);
        Ok(ended)
    }

    /// Takes Puts until told to stop, and counts them.
    pub fn sink(&mut self, stop: &AtomicBool, received: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            self.worker.progress();
            let taken = self.take_arrivals(|_| {});
            if taken != 0 {
                received.fetch_add(taken, Ordering::Relaxed);
            }
        }
    }
}
