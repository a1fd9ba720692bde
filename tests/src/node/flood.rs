//! Many small Puts from all shards of one node to all shards of another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle, ShardId};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_user::Buffer;
use lnet_user::runtime::{Home, Steering, Worker, entry_home};
use lnet_wire::ProcessId;

use super::drive::{By, Driven};
use super::message::HOSTILE_BIT;
use super::plan::Plan;

/// Portals that the flood goes to, those of [`super::policies`].
pub const FLOOD_PORTALS: std::ops::Range<u32> = 10..17;
/// Match bits that each of them has an entry for.
pub(super) const FLOOD_MATCH_BITS: u64 = 32;
/// Puts that one shard has under way at most.
pub const FLOOD_WINDOW: u64 = 32;
/// What a Put counts as in [`Flood::failures`] that was sent well and never acknowledged.
pub const UNANSWERED: &str = "unanswered";

/// A Put that was sent well is given up after so long without an acknowledgement: its receiver may be gone.
/// A Put that was not is never given up: the stack is to end it.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// How far a flood is; all its shards share it.
#[derive(Debug)]
pub struct Flood {
    /// Whom it goes to.
    pub target: ProcessId,
    /// Puts that are to be started.
    pub count: u64,
    /// Payload of each.
    pub length_bytes: u32,
    /// Number of the first.
    first: u64,
    started: AtomicU64,
    acked: AtomicU64,
    failed: AtomicU64,
    failures: Mutex<BTreeMap<String, u64>>,
    acked_numbers: Mutex<BTreeMap<ShardId, Vec<u64>>>,
    slowest_ns: AtomicU64,
    arrived: AtomicU64,
    stop: AtomicBool,
}

impl Flood {
    /// A flood that has not begun.
    #[must_use]
    pub fn new(target: ProcessId, count: u64, length_bytes: u32) -> Arc<Self> {
        Self::starting_at(0, target, count, length_bytes)
    }

    /// A flood like [`Flood::new`]'s, with Puts that are numbered from `first` on.
    #[must_use]
    pub fn starting_at(first: u64, target: ProcessId, count: u64, length_bytes: u32) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            target,
            count,
            length_bytes,
            first,
            started: zero(),
            acked: zero(),
            failed: zero(),
            failures: Mutex::default(),
            acked_numbers: Mutex::default(),
            slowest_ns: zero(),
            arrived: zero(),
            stop: AtomicBool::new(false),
        })
    }

    /// Puts that were started.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Acquire).min(self.count)
    }

    /// Puts that were acknowledged.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Acquire)
    }

    /// The numbers of those, by the shard that put them and in the order in which it saw that.
    ///
    /// # Panics
    /// When a shard has panicked over one.
    #[must_use]
    pub fn acked_numbers(&self) -> BTreeMap<ShardId, Vec<u64>> {
        self.acked_numbers.lock().expect("the numbers of a flood").clone()
    }

    /// Puts that ended without an acknowledgement.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }

    /// How those ended: by the status of their SEND event, or as [`UNANSWERED`].
    ///
    /// # Panics
    /// When a shard has panicked over one.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<String, u64> {
        self.failures.lock().expect("the failures of a flood").clone()
    }

    /// The longest that a Put which was acknowledged had to wait for that.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        Duration::from_nanos(self.slowest_ns.load(Ordering::Acquire))
    }

    /// Puts that arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Starts no further Put.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn next(&self) -> Option<u64> {
        if self.stop.load(Ordering::Acquire) {
            return None;
        }
        let number = self.started.fetch_add(1, Ordering::AcqRel);
        (number < self.count).then_some(self.first + number)
    }

    fn note_end(&self, shard: ShardId, put: &UnderWay) {
        if put.acked {
            self.slowest_ns.fetch_max(put.put_at.elapsed().as_nanos() as u64, Ordering::AcqRel);
            let mut numbers = self.acked_numbers.lock().expect("the numbers of a flood");
            numbers.entry(shard).or_default().push(put.number);
            self.acked.fetch_add(1, Ordering::AcqRel);
            return;
        }
        let how = match put.sent {
            Some(Status::Ok) => UNANSWERED.to_owned(),
            Some(status) => format!("{status:?}"),
            None => "never sent".to_owned(),
        };
        *self.failures.lock().expect("the failures of a flood").entry(how).or_default() += 1;
        self.failed.fetch_add(1, Ordering::AcqRel);
    }
}

/// A shard that floods.
#[derive(Debug)]
pub struct Flooder {
    flood: Arc<Flood>,
    event_queue: EqHandle,
    free: Vec<Buffer>,
    under_way: Vec<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    md: MdHandle,
    /// What its SEND event said.
    sent: Option<Status>,
    acked: bool,
    put_at: Instant,
}

impl Flooder {
    /// Drives every worker of a node as a source of the flood.
    pub fn start_all(flood: &Arc<Flood>, by: By, workers: Vec<Worker>) -> Vec<Driven<Self>> {
        let start = |mut worker| {
            let flooder = Self::new(flood, &mut worker);
            Driven::start(by, worker, flooder, |worker, flooder: &mut Self| flooder.turn(worker))
        };
        workers.into_iter().map(start).collect()
    }

    /// One shard's part of a flood.
    ///
    /// # Panics
    /// When the shard has no room for an event queue.
    #[must_use]
    pub fn new(flood: &Arc<Flood>, worker: &mut Worker) -> Self {
        let event_queue = worker.create_event_queue(4 * FLOOD_WINDOW as u32).expect("event queue");
        let free = (0..FLOOD_WINDOW).map(|_| Buffer::zeroed(flood.length_bytes as usize)).collect();
        Self { flood: Arc::clone(flood), event_queue, free, under_way: Vec::new() }
    }

    /// Puts that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Takes the events of a turn and starts what there is room for.
    ///
    /// # Panics
    /// When an event is not as it must be.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            let event = &delivery.event;
            let place = self.under_way.iter().position(|put| put.md == event.md()).expect("a Put under way");
            let put = &mut self.under_way[place];
            match event.kind() {
                EventKind::Send => put.sent = Some(event.status()),
                EventKind::Ack => put.acked |= event.status() == Status::Ok,
                EventKind::Unlink => {}
                _ => panic!("{event:?}"),
            }
            if event.unlinked() {
                self.flood.note_end(worker.shard_id(), &self.under_way.swap_remove(place));
                self.free.push(delivery.buffer.expect("the last event brings the buffer"));
            } else if event.kind() == EventKind::Send && event.status() != Status::Ok {
                // No ACK will come that could use the descriptor up.
                let _ = worker.unlink(event.md());
            }
        }
        let is_lost = |put: &&UnderWay| put.sent == Some(Status::Ok) && put.put_at.elapsed() > LOST_AFTER;
        if let Some(oldest) = self.under_way.iter().find(is_lost) {
            // A descriptor that is unlinked already is on its way home.
            let _ = worker.unlink(oldest.md);
        }
        while let Some(buffer) = self.free.pop() {
            let Some(number) = self.flood.next() else {
                self.free.push(buffer);
                return;
            };
            self.put(number, buffer, worker);
        }
    }

    fn put(&mut self, number: u64, mut buffer: Buffer, worker: &mut Worker) {
        Plan::fill(number as usize, &mut buffer);
        let length_bytes = u64::from(self.flood.length_bytes);
        let md = MdSpec {
            user_ptr: number,
            ..MdSpec::new(length_bytes, Threshold::Count(2), MdOptions::NONE, self.event_queue)
        };
        let md = worker.bind(&md, buffer).unwrap_or_else(|refused| panic!("{refused}"));
        let portals = u64::from(FLOOD_PORTALS.end - FLOOD_PORTALS.start);
        let request = PutRequest {
            md,
            part: None,
            ack: true,
            self_nid: None,
            target: self.flood.target,
            portal: FLOOD_PORTALS.start + (number % portals) as u32,
            match_bits: number / portals % FLOOD_MATCH_BITS,
            offset: 0,
            hdr_data: number,
        };
        worker.put(&request).unwrap_or_else(|error| panic!("Put {number}: {error}"));
        self.under_way.push(UnderWay { number, md, sent: None, acked: false, put_at: Instant::now() });
    }
}

/// The entries for a flood that belong to a shard.
pub(super) fn entries_of(steering: &Steering, shard: ShardId) -> impl Iterator<Item = EntrySpec> {
    let bits = |portal| (0..FLOOD_MATCH_BITS).map(move |match_bits| EntrySpec::new(portal, match_bits));
    FLOOD_PORTALS.flat_map(bits).filter(move |entry| {
        let home = entry_home(steering, entry.portal, &entry.source, entry.match_bits, 0).expect("a home");
        !matches!(home, Home::Shard(number) if number != u32::from(shard.0))
    })
}

/// A shard that is flooded.
#[derive(Debug)]
pub struct Flooded {
    flood: Arc<Flood>,
    event_queue: EqHandle,
}

impl Flooded {
    /// Posts the entries of every worker of a node and drives it on a thread of its own.
    pub fn start_all(flood: &Arc<Flood>, steering: &Steering, workers: Vec<Worker>) -> Vec<Driven<Self>> {
        let start = |mut worker| {
            let flooded = Self::post(flood, steering, &mut worker);
            Driven::start(By::ShardThread, worker, flooded, |worker, flooded: &mut Self| flooded.turn(worker))
        };
        workers.into_iter().map(start).collect()
    }

    /// Posts the entries that belong to this shard.
    ///
    /// # Panics
    /// When the shard refuses one.
    #[must_use]
    pub fn post(flood: &Arc<Flood>, steering: &Steering, worker: &mut Worker) -> Self {
        let portal_count = FLOOD_PORTALS.end - FLOOD_PORTALS.start;
        let slots = portal_count * FLOOD_MATCH_BITS as u32 * super::LIMITS.unlimited_events;
        let event_queue = worker.create_event_queue(slots).expect("event queue");
        for entry in entries_of(steering, worker.shard_id()) {
            let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
            let md = MdSpec {
                auto_unlink: false,
                user_ptr: entry.match_bits,
                ..MdSpec::new(u64::from(flood.length_bytes), Threshold::Infinite, options, event_queue)
            };
            let buffer = Buffer::zeroed(flood.length_bytes as usize);
            worker.attach(&entry, &md, buffer).unwrap_or_else(|refused| panic!("{refused}"));
        }
        Self { flood: Arc::clone(flood), event_queue }
    }

    /// Takes the events of a turn. Those of hostile Puts ([`HOSTILE_BIT`]) are none of the flood's.
    ///
    /// # Panics
    /// When another one is not that of a Put of the flood.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            let event = delivery.event;
            let hdr_data = event.hdr_data().unwrap_or_default();
            if hdr_data & HOSTILE_BIT != 0 {
                continue;
            }
            assert_eq!((event.kind(), event.status(), event.unlinked()), (EventKind::Put, Status::Ok, false));
            assert_eq!(event.manipulated_bytes(), self.flood.length_bytes);
            assert!(hdr_data < self.flood.count, "{event:?}");
            self.flood.arrived.fetch_add(1, Ordering::AcqRel);
        }
    }
}
