//! Single Puts, for tests that look at when something happens.

use std::time::{Duration, Instant};

use lnet_core::event::EventKind;
use lnet_core::handle::EqHandle;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_user::Buffer;
use lnet_user::runtime::Worker;
use lnet_wire::ProcessId;

use super::LIMITS;

/// Portals of [`super::policies`] whose Puts all arrive at one shard, by shard.
pub const PINNED_PORTALS: [u32; 2] = [9, 14];
/// Puts that a [`Putter`] may have under way.
const UNDER_WAY_MAX: u32 = 256;
/// Payload of each Put.
pub const PUT_BYTES: u32 = 64;

/// A shard that puts, and what has come of it.
#[derive(Debug)]
pub struct Putter {
    event_queue: EqHandle,
    target: ProcessId,
    /// Puts that were started.
    pub started: u32,
    /// SEND events of status Ok.
    pub sent: u32,
    /// ACK events of status Ok.
    pub acked: u32,
    /// Events of another status.
    pub failed: u32,
    /// Puts whose buffer is home.
    pub ended: u32,
}

impl Putter {
    /// A putter to `target` that has put nothing.
    ///
    /// # Panics
    /// When the shard has no room for an event queue.
    #[must_use]
    pub fn new(target: ProcessId, worker: &mut Worker) -> Self {
        let event_queue = worker.create_event_queue(3 * UNDER_WAY_MAX).expect("event queue");
        Self { event_queue, target, started: 0, sent: 0, acked: 0, failed: 0, ended: 0 }
    }

    /// Puts that have not ended.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.started - self.ended
    }

    /// Starts a Put whose bytes are all its number.
    ///
    /// # Panics
    /// When the shard refuses it.
    pub fn put(&mut self, worker: &mut Worker, portal: u32, ack: bool) {
        let events = 1 + u32::from(ack);
        let spec =
            MdSpec::new(u64::from(PUT_BYTES), Threshold::Count(events), MdOptions::NONE, self.event_queue);
        let bytes = vec![self.started as u8; PUT_BYTES as usize];
        let md = worker.bind(&spec, Buffer::from(bytes)).unwrap_or_else(|refused| panic!("{refused}"));
        let request = PutRequest {
            md,
            part: None,
            ack,
            self_nid: None,
            target: self.target,
            portal,
            match_bits: 0,
            offset: 0,
            hdr_data: u64::from(self.started),
        };
        worker.put(&request).unwrap_or_else(|error| panic!("Put {}: {error}", self.started));
        self.started += 1;
    }

    /// Takes the events that wait.
    ///
    /// # Panics
    /// When one is not of a Put.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            let event = delivery.event;
            match (event.kind(), event.status()) {
                (EventKind::Send, Status::Ok) => self.sent += 1,
                (EventKind::Ack, Status::Ok) => self.acked += 1,
                (EventKind::Send | EventKind::Ack, _) => self.failed += 1,
                _ => panic!("{event:?}"),
            }
            self.ended += u32::from(event.unlinked());
        }
    }

    /// Drives `worker` on the calling thread, which sleeps whenever it may, until `done`; whether that was
    /// within `patience`.
    ///
    /// # Panics
    /// When the shard cannot sleep.
    pub fn drive_until(
        &mut self,
        worker: &mut Worker,
        patience: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        let begun = Instant::now();
        while !done(self) {
            let Some(left) = patience.checked_sub(begun.elapsed()) else { return false };
            let busy = worker.progress();
            self.turn(worker);
            if !busy && !done(self) {
                worker.wait(Some(left)).expect("a shard that can sleep");
            }
        }
        true
    }

    /// Drives until every Put has ended ([`Putter::drive_until`]).
    pub fn drive_to_end(&mut self, worker: &mut Worker, patience: Duration) -> bool {
        self.drive_until(worker, patience, |putter| putter.under_way() == 0)
    }
}

/// A shard that takes Puts for ever.
#[derive(Debug)]
pub struct Receiver {
    event_queue: EqHandle,
    /// Puts that arrived.
    pub arrived: u32,
}

impl Receiver {
    /// Posts an entry for all Puts to `portal`.
    ///
    /// # Panics
    /// When the shard refuses it.
    #[must_use]
    pub fn post(worker: &mut Worker, portal: u32) -> Self {
        let event_queue = worker.create_event_queue(LIMITS.unlimited_events).expect("event queue");
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        let spec = MdSpec::new(u64::from(PUT_BYTES), Threshold::Infinite, options, event_queue);
        let buffer = Buffer::zeroed(PUT_BYTES as usize);
        worker
            .attach(&EntrySpec::new(portal, 0), &spec, buffer)
            .unwrap_or_else(|refused| panic!("{refused}"));
        Self { event_queue, arrived: 0 }
    }

    /// Takes the events that wait.
    ///
    /// # Panics
    /// When one is not that of a Put that arrived.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            assert_eq!((delivery.event.kind(), delivery.event.status()), (EventKind::Put, Status::Ok));
            self.arrived += 1;
        }
    }
}
