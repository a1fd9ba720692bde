//! The node that puts: each shard driven by a thread of the application.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_user::memory::Buffer;
use lnet_user::runtime::{Delivery, Worker};
use lnet_wire::ProcessId;

use super::plan::{INITIATOR_SHARDS_MAX, LND_TIMEOUT, PLACES, PUT_MAX_BYTES, Put, WINDOW};
use crate::report::{self, Puts};

/// A Put without an ACK for so long is lost.
const LOST_AFTER: Duration = LND_TIMEOUT;

/// How long a shard sleeps at most, so that it sees what is lost and when to stop.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// What all shards of the initiator are to do.
#[derive(Debug)]
pub struct Load {
    /// Whom to put to.
    pub target: ProcessId,
    /// Puts of all shards together.
    pub count: u64,
    /// Payload length of every Put; any up to [`PUT_MAX_BYTES`] if none is given.
    pub fixed_bytes: Option<u32>,
    /// Number of the next Put to start.
    pub next: AtomicU64,
    /// Puts that have ended, for the progress bar.
    pub ended: AtomicU64,
    /// Set to stop early.
    pub stop: AtomicBool,
    /// Shards whose Puts have not all ended.
    pub running: AtomicUsize,
    /// Whether any Put has been acknowledged.
    pub answered: AtomicBool,
}

impl Load {
    /// Whether no further Put is to be started.
    fn is_started(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.next.load(Ordering::Relaxed) >= self.count
    }
}

/// A shard whose Puts have not all ended: counted out however that comes, also by a panic, so that no sibling
/// waits for it for ever.
struct Running<'a>(&'a Load);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one shard of the initiator has done.
#[derive(Debug)]
pub struct Done {
    /// Its Puts.
    pub puts: Puts,
    /// From the call of Put to its ACK event.
    pub latency_ns: Histogram<u64>,
}

/// A place for one Put under way.
enum Place {
    Free(Buffer),
    Busy { md: MdHandle, put_at: Instant, length_bytes: u32, acked: bool },
}

struct Driver<'a> {
    load: &'a Load,
    worker: &'a mut Worker,
    event_queue: EqHandle,
    places: Vec<Place>,
    busy: usize,
    done: Done,
}

/// Puts until the load is done, driving the shard on the calling thread.
///
/// # Errors
/// When the shard refuses what the load needs, the kernel refuses to wait, or nobody answers.
pub fn run(load: &Load, worker: &mut Worker) -> anyhow::Result<Done> {
    let running = Running(load);
    let shard = usize::from(worker.shard_id().0);
    anyhow::ensure!(
        shard < INITIATOR_SHARDS_MAX,
        "shard {shard}: the load runs on at most {INITIATOR_SHARDS_MAX} shards"
    );
    // Threshold 2 and the unlink event, for each place.
    let event_queue = worker.create_event_queue(3 * WINDOW as u32).context("cannot make an event queue")?;
    let places = (0..WINDOW).map(|_| Place::Free(Buffer::zeroed(PUT_MAX_BYTES as usize))).collect();
    let done = Done { puts: Puts::default(), latency_ns: report::histogram() };
    let mut driver = Driver { load, worker, event_queue, places, busy: 0, done };
    if let Err(error) = driver.put_all() {
        // The siblings' Puts are of no use without this shard's.
        load.stop.store(true, Ordering::Relaxed);
        return Err(error);
    }
    drop(running);
    // Siblings count on this shard for the frames of the queues that it owns.
    while load.running.load(Ordering::Relaxed) != 0 {
        if !driver.worker.progress() {
            driver.worker.wait(Some(IDLE_WAIT))?;
        }
    }
    Ok(driver.done)
}

impl Driver<'_> {
    fn put_all(&mut self) -> anyhow::Result<()> {
        loop {
            let started = self.fill_window()?;
            let progress = self.worker.progress();
            let mut events = false;
            while let Some(delivery) = self.worker.poll_event(self.event_queue) {
                self.take(delivery)?;
                events = true;
            }
            if self.busy == 0 && self.load.is_started() {
                return Ok(());
            }
            if !started && !progress && !events {
                self.worker.wait(Some(IDLE_WAIT))?;
                self.give_up_lost();
            }
        }
    }

    /// Starts Puts while there are places and numbers left; whether it started any.
    fn fill_window(&mut self) -> anyhow::Result<bool> {
        let mut started = false;
        if self.load.is_started() {
            return Ok(false);
        }
        for place in 0..self.places.len() {
            if self.busy == self.places.len() || !matches!(self.places[place], Place::Free(_)) {
                continue;
            }
            let number = self.load.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.load.count {
                break;
            }
            self.start(place, &Put::new(number))?;
            started = true;
        }
        Ok(started)
    }

    fn start(&mut self, place: usize, put: &Put) -> anyhow::Result<()> {
        let length_bytes = put.length_bytes(self.load.fixed_bytes, PUT_MAX_BYTES);
        let now = self.worker.clock().now();
        let Place::Free(buffer) = &mut self.places[place] else { unreachable!("the place is free") };
        let mut buffer = std::mem::take(buffer);
        put.fill(&mut buffer[..length_bytes as usize]);
        let md = MdSpec {
            length_bytes: u64::from(length_bytes),
            max_size_bytes: None,
            threshold: Threshold::Count(2),
            options: MdOptions::NONE,
            auto_unlink: true,
            event_queue: Some(self.event_queue),
            user_ptr: place as u64,
        };
        let md = self.worker.bind(&md, buffer).context("cannot bind")?;
        let slot = usize::from(self.worker.shard_id().0) * WINDOW + place;
        debug_assert!(slot < PLACES);
        self.worker
            .put(&PutRequest {
                md,
                ack: true,
                self_nid: None,
                target: self.load.target,
                portal: put.portal,
                match_bits: put.match_bits,
                offset: slot as u32 * PUT_MAX_BYTES,
                hdr_data: put.number,
            })
            .context("cannot put")?;
        self.places[place] = Place::Busy { md, put_at: now, length_bytes, acked: false };
        self.busy += 1;
        self.done.puts.sent += 1;
        Ok(())
    }

    fn take(&mut self, delivery: Delivery) -> anyhow::Result<()> {
        let event = &delivery.event;
        let place = &mut self.places[event.user_ptr as usize];
        let Place::Busy { md, put_at, length_bytes, acked } = place else {
            unreachable!("the event of a place that is free")
        };
        if event.kind == EventKind::Send && event.status != Status::Ok && !event.unlinked {
            // No ACK comes of it. Unlinked already means that its last event is on the way.
            let _ = self.worker.unlink(*md);
        }
        if event.kind == EventKind::Ack && event.status == Status::Ok {
            let latency = self.worker.clock().now() - *put_at;
            self.done.latency_ns.saturating_record(latency.as_nanos() as u64);
            self.load.answered.store(true, Ordering::Relaxed);
            *acked = true;
            self.done.puts.acked_bytes += u64::from(*length_bytes);
        }
        if event.unlinked {
            self.done.puts.acked += u64::from(*acked);
            self.done.puts.lost += u64::from(!*acked);
            self.busy -= 1;
            self.load.ended.fetch_add(1, Ordering::Relaxed);
            let Some(buffer) = delivery.buffer else { unreachable!("the last event brings the buffer") };
            *place = Place::Free(buffer);
        }
        // A whole window without a single answer: more of the same would be of no use.
        if self.done.puts.lost >= WINDOW as u64 && !self.load.answered.load(Ordering::Relaxed) {
            bail!(
                "{} does not answer: is a target running there, in this network, on the same UDP port?",
                self.load.target.nid
            );
        }
        Ok(())
    }

    /// Unlinks what has waited too long for its ACK; the unlink event frees its place.
    fn give_up_lost(&mut self) {
        let now = self.worker.clock().now();
        for place in &mut self.places {
            if let Place::Busy { md, put_at, .. } = place
                && now - *put_at > LOST_AFTER
            {
                // Unlinked already means that its last event is on the way.
                let _ = self.worker.unlink(*md);
            }
        }
    }
}
