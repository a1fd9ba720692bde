//! The node that is put to and got from.
//!
//! Invariants: a thread for each shard takes the events of its entries, reads what has arrived, and posts
//! used-up buffers again; the portals are lazy, so that Puts wait meanwhile. The number of entries and of
//! their buffers never changes. A Put is counted as right only if portal, match bits, length and every byte
//! follow from its number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_user::Buffer;
use lnet_user::EntrySpec;
use lnet_user::Status;
use lnet_user::api::{Entry, EventQueue, Lnet, QueuedEvent, ShardHandle};
use lnet_user::locks::{Mutex, MutexGuard};
use lnet_user::runtime::{Home, entry_home};
use lnet_user::{Event, EventKind};
use lnet_user::{MdOptions, MdSpec, Threshold};

use super::Kind;
use super::error::LoadError;
use super::pattern::Difference;
use super::plan::{PROBE_FLAG, Posting, Scheme};
use super::report::{Fault, FaultKind, TargetReport};

/// How often a thread without events looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// After so long without an event nothing is under way any more.
const QUIET: Duration = Duration::from_millis(100);
/// How long a stop waits for messages that are just arriving.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Entries on a node that take Puts and serve Gets of a [`Scheme`]. Dropping it stops it.
#[derive(Debug)]
pub struct Target {
    lnet: Lnet,
    scheme: Arc<Scheme>,
    shards: Vec<Serving>,
}

#[derive(Debug)]
struct Serving {
    shared: Arc<TargetState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct TargetState {
    stop: AtomicBool,
    report: Mutex<TargetReport>,
}

impl TargetState {
    fn report(&self) -> MutexGuard<'_, TargetReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target {
    /// Posts the entries on all shards, as the node's steering has it, and serves them on threads of its own.
    /// The scheme's portals become lazy; no other program may have entries there.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays posted then.
    pub fn start(lnet: &Lnet, scheme: &Scheme) -> Result<Self, LoadError> {
        scheme.validate()?;
        let mut target = Self { lnet: lnet.clone(), scheme: Arc::new(scheme.clone()), shards: Vec::new() };
        // From here on, dropping it takes back what is there.
        for portal in scheme.portals() {
            lnet.set_lazy(portal, true)?;
        }
        for shard in 0..lnet.shard_count() {
            target.start_shard(shard)?;
        }
        Ok(target)
    }

    fn start_shard(&mut self, shard: usize) -> Result<(), LoadError> {
        let postings = postings_of(&self.lnet, &self.scheme, shard)?;
        let by_shard = vec![0; self.lnet.shard_count()];
        let report = Mutex::new(TargetReport { by_shard, ..TargetReport::default() });
        let shared = Arc::new(TargetState { stop: AtomicBool::new(false), report });
        let server = Server::post(&self.lnet, &self.scheme, shard, &postings, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new().name(format!("load-target-{shard}"));
        let thread = Some(thread.spawn(move || server.run())?);
        self.shards.push(Serving { shared, thread });
        Ok(())
    }

    /// What it has seen so far.
    #[must_use]
    pub fn report(&self) -> TargetReport {
        let mut sum = TargetReport::default();
        self.shards.iter().for_each(|shard| sum.merge(&shard.shared.report()));
        sum
    }

    /// Unlinks its entries, takes what is just arriving, and says what it has seen. What is sent to it from
    /// now on finds no entry. May take some seconds if a message stopped in the middle.
    #[must_use]
    pub fn stop(mut self) -> TargetReport {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        for shard in &self.shards {
            shard.shared.stop.store(true, Ordering::Release);
        }
        for shard in &mut self.shards {
            // A thread that has panicked has said so on standard error; its queue took its entries along.
            shard.thread.take().map(JoinHandle::join);
        }
        for portal in self.scheme.portals() {
            // A shard that has ended has nothing left to be changed.
            let _ = self.lnet.set_lazy(portal, false);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// The entries that belong on a shard.
fn postings_of(lnet: &Lnet, scheme: &Scheme, shard: usize) -> Result<Vec<Posting>, LoadError> {
    let steering = lnet.steering();
    let mut postings = Vec::new();
    for posting in scheme.postings() {
        let entry = EntrySpec::new(posting.portal, posting.match_bits);
        let home = entry_home(&steering, posting.portal, &entry.source, posting.match_bits, 0)?;
        let is_here = match home {
            Home::Shard(home) => home as usize == shard,
            Home::Each => true,
            // One is enough, on whichever shard.
            Home::Any => posting.match_bits as usize % lnet.shard_count() == shard,
        };
        if is_here {
            postings.push(posting);
        }
    }
    Ok(postings)
}

/// Serves the entries of a shard.
struct Server {
    scheme: Arc<Scheme>,
    shard: ShardHandle,
    queue: EventQueue,
    /// Entries by user pointer, with their posting; `None` where one could not be posted again.
    posted: Vec<(Posting, Option<Entry>)>,
    shared: Arc<TargetState>,
}

impl Server {
    fn post(
        lnet: &Lnet,
        scheme: &Arc<Scheme>,
        shard: usize,
        postings: &[Posting],
        shared: Arc<TargetState>,
    ) -> Result<Self, LoadError> {
        let unlimited = lnet.limits().unlimited_events;
        let slots = postings.iter().map(|posting| posting.count.map_or(unlimited, |count| count + 1)).sum();
        let shard = lnet.shard(shard)?;
        let queue = shard.create_event_queue(slots)?;
        let posted = Vec::with_capacity(postings.len());
        let mut server = Self { scheme: Arc::clone(scheme), shard, queue, posted, shared };
        for posting in postings {
            let mut buffer = Buffer::zeroed(posting.room_bytes as usize);
            if posting.kind == Kind::Get {
                server.scheme.source(posting.portal, posting.match_bits).fill(0, &mut buffer);
            }
            let entry = server.attach(server.posted.len(), posting, buffer);
            let Posting { portal, match_bits, .. } = *posting;
            let entry = entry.map_err(|not| LoadError::Entry { portal, match_bits, error: not.error })?;
            server.posted.push((*posting, Some(entry)));
        }
        Ok(server)
    }

    fn attach(
        &self,
        slot: usize,
        posting: &Posting,
        buffer: Buffer,
    ) -> Result<Entry, lnet_user::api::NotLent> {
        let options = match posting.kind {
            Kind::Put => MdOptions::PUT,
            Kind::Get => MdOptions::GET | MdOptions::MANAGE_REMOTE,
        };
        let md = MdSpec {
            length_bytes: posting.room_bytes,
            max_size_bytes: (posting.kind == Kind::Put).then_some(posting.max_bytes),
            threshold: posting.count.map_or(Threshold::Infinite, Threshold::Count),
            options,
            auto_unlink: true,
            event_queue: Some(self.queue.handle()),
            user_ptr: slot as u64,
        };
        self.shard.attach(&EntrySpec::new(posting.portal, posting.match_bits), &md, buffer)
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.queue.next_blocking(Some(TICK)) {
                Ok(Some(queued)) => self.take(queued, true),
                Ok(None) => {}
                // The shard has ended, and its entries with it.
                Err(_) => return self.tell_lost(),
            }
        }
        self.stop();
    }

    /// Unlinks what is posted and waits for it to come home. What was answered a moment ago is to be counted:
    /// its initiator may know the answer before the event is here.
    fn stop(&mut self) {
        let until = Instant::now() + STOP_PATIENCE;
        while Instant::now() < until
            && let Ok(Some(queued)) = self.queue.next_blocking(Some(QUIET))
        {
            self.take(queued, true);
        }
        let mut out = self.posted.iter_mut().filter_map(|(_, entry)| entry.take()).count();
        let until = Instant::now() + STOP_PATIENCE;
        while out > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(Some(queued)) = self.queue.next_blocking(Some(left)) else { break };
            out -= usize::from(queued.event.unlinked());
            self.take(queued, false);
        }
        self.shared.report().lost_entries += out as u64;
    }

    fn tell_lost(&mut self) {
        let lost = self.posted.iter_mut().filter_map(|(_, entry)| entry.take().map(Entry::detach)).count();
        self.shared.report().lost_entries += lost as u64;
    }

    fn take(&mut self, queued: QueuedEvent, post_again: bool) {
        let event = queued.event;
        match event.kind() {
            EventKind::Put | EventKind::Get if !post_again && event.status() != Status::Ok => {
                self.shared.report().interrupted += 1;
            }
            EventKind::Put | EventKind::Get => self.count(&event, queued.payload()),
            // Explicitly unlinked.
            _ => {}
        }
        if event.unlinked() && post_again {
            self.post_again(event.user_ptr() as usize, queued.into_buffer());
        }
    }

    fn post_again(&mut self, slot: usize, buffer: Option<Buffer>) {
        let posting = self.posted[slot].0;
        // The former entry is gone already.
        if let Some(former) = self.posted[slot].1.take() {
            former.detach();
        }
        let entry = buffer.and_then(|buffer| self.attach(slot, &posting, buffer).ok());
        let mut report = self.shared.report();
        match &entry {
            Some(_) => report.reposted += 1,
            None => report.lost_entries += 1,
        }
        drop(report);
        self.posted[slot].1 = entry;
    }

    /// Counts a message that has arrived or was fetched, unless something is wrong with it. A probe is no
    /// message of the load.
    fn count(&self, event: &Event, payload: Option<&[u8]>) {
        if event.match_bits() == Some(PROBE_FLAG) {
            return;
        }
        let fault = self.judge(event, payload);
        let mut report = self.shared.report();
        report.by_shard[usize::from(self.shard.id().0)] += 1;
        match (fault, event.kind()) {
            (Some(fault), _) => report.faults.add(fault),
            (None, EventKind::Put) => report.puts.count(event.manipulated_bytes()),
            (None, _) => report.gets.count(event.manipulated_bytes()),
        }
    }

    /// What is wrong with a Put. Its number may be anything.
    fn judge(&self, event: &Event, payload: Option<&[u8]>) -> Option<Fault> {
        let Event::Put { portal, match_bits, hdr_data, requested_bytes, .. } = *event else {
            return fault_of(event, FaultKind::of(event.status())?, None);
        };
        let message = self.scheme.message(hdr_data);
        let differs = |expected: u64, found: u64| {
            (expected != found).then_some(Difference { offset_bytes: 0, expected, found })
        };
        let (fault, difference) = if let Some(fault) = FaultKind::of(event.status()) {
            (fault, None)
        } else if message.kind != Kind::Put {
            (FaultKind::Number, None)
        } else if let Some(difference) = differs(message.portal.into(), portal.into()) {
            (FaultKind::Portal, Some(difference))
        } else if let Some(difference) = differs(message.match_bits, match_bits) {
            (FaultKind::MatchBits, Some(difference))
        } else if let Some(length) = differs(message.length_bytes.into(), requested_bytes.into()) {
            (FaultKind::Length, Some(length))
        } else {
            // One without a payload to read counts as empty.
            let payload = payload.unwrap_or_default();
            match differs(message.length_bytes.into(), payload.len() as u64) {
                Some(length) => (FaultKind::Length, Some(length)),
                None => (FaultKind::Byte, Some(message.check(payload)?)),
            }
        };
        fault_of(event, fault, difference)
    }
}

/// The fault of a message that arrived.
fn fault_of(event: &Event, fault: FaultKind, difference: Option<Difference>) -> Option<Fault> {
    let (kind, number, length_bytes) = match *event {
        Event::Put { hdr_data, requested_bytes, .. } => (Kind::Put, hdr_data, requested_bytes),
        _ => (Kind::Get, 0, 0),
    };
    let (Event::Put { origin, portal, match_bits, .. } | Event::Get { origin, portal, match_bits, .. }) =
        *event
    else {
        return None;
    };
    let peer = origin.initiator.nid;
    Some(Fault { fault, kind, number, peer, portal, match_bits, length_bytes, difference })
}

impl FaultKind {
    /// What the status of an event says, unless that is good.
    pub(super) fn of(status: Status) -> Option<Self> {
        use lnet_model::Errno;
        use lnet_user::Cause;
        let (Status::NeverSent(cause) | Status::Unknown(cause)) = status else { return None };
        Some(match cause {
            Cause::Unreachable => Self::Unreachable,
            Cause::Timeout | Cause::CreditTimeout => Self::Timeout,
            Cause::Cancelled => Self::Cancelled,
            Cause::TooLong => Self::TooLong,
            Cause::Device => Self::Device,
            Cause::Reset => Self::Reset,
            Cause::Simulated(_) => Self::Simulated,
            Cause::System(errno) | Cause::Undiscovered(errno) => match Errno(errno) {
                Errno::TIMEDOUT => Self::Timeout,
                Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::NETUNREACH => Self::Unreachable,
                Errno::CONNRESET => Self::Reset,
                _ => Self::Other,
            },
            _ => Self::Other,
        })
    }
}
