//! The lnet transport's part of a transfer machine: operations are started, and what came of them is taken
//! from the ring.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use lnet_user::locks::{Mutex, MutexGuard};
use lnet_user::{Nid, Target};

use super::LnetTransport;
use super::address::{LnetAddress, join};
use super::core::{Operations, RingEvent, Sender};
use super::descriptor::LnetDescriptor;
use super::network::{Allowed, EntryPlan, MdPlan, NotPosted, Payload, Posted, Poster};
use super::registry::Claim;
use super::worker::Worker;
use crate::end_point::EndPoint;
use crate::errno::{Errno, Error, Status};
use crate::memory::Memory;
use crate::operation::{BulkDescriptor, Operation};
use crate::queue::{BufferId, ByNumber, QueueType};
use crate::ring::Consumer;
use crate::transport::{Completion, Outcome, TmFront, TmLink, TransportTm};

/// A transfer machine that has started.
pub(super) struct Active {
    pub(super) claim: Claim,
    pub(super) transport: LnetTransport,
    pub(super) poster: Box<dyn Poster>,
    pub(super) ring: Consumer<RingEvent>,
    pub(super) operations: Arc<Mutex<Operations>>,
    /// Entries and descriptors that are there, by the number of their buffers' uses.
    pub(super) posted: ByNumber<Box<dyn Posted>>,
}

/// State that the transfer machine and its worker share. Its locks are taken under that of the transfer
/// machine.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) active: Mutex<Option<Active>>,
    /// The worker ends as soon as the transfer machine is quiet.
    pub(super) stops: AtomicBool,
    /// The worker ends at once.
    pub(super) ends: AtomicBool,
    /// Told once of the next pending event.
    pub(super) notified: Mutex<Option<Waker>>,
}

impl Shared {
    pub(super) fn active(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of events that are pending.
    pub(super) fn tell(&self) {
        let waker = self.notified.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The lnet transport's part of a transfer machine.
pub(super) struct LnetTm {
    transport: LnetTransport,
    shared: Arc<Shared>,
    cpus: Vec<usize>,
    worker: Option<JoinHandle<()>>,
}

impl LnetTm {
    pub(super) fn new(transport: LnetTransport) -> Self {
        Self { transport, shared: Arc::default(), cpus: Vec::new(), worker: None }
    }

    fn unpark(&self) {
        if let Some(worker) = &self.worker {
            worker.thread().unpark();
        }
    }
}

impl TransportTm for LnetTm {
    fn confine(&mut self, cpus: &[usize]) -> Result<(), Error> {
        self.cpus = cpus.to_vec();
        Ok(())
    }

    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error> {
        let worker = Worker {
            link: link.clone(),
            address: LnetAddress::parse(address)?,
            transport: self.transport.clone(),
            shared: Arc::clone(&self.shared),
            cpus: self.cpus.clone(),
        };
        let thread = std::thread::Builder::new().name("lnet-tm".to_owned()).spawn(move || worker.run());
        let thread = thread.map_err(|error| Error::new(Errno::NoMemory, format!("no thread: {error}")))?;
        self.worker = Some(thread);
        Ok(())
    }

    fn stop(&mut self, _: &mut TmFront) -> Result<(), Error> {
        self.shared.stops.store(true, Ordering::Release);
        self.unpark();
        Ok(())
    }

    fn wake(&mut self) {
        self.unpark();
    }

    fn canonical_address(&self, address: &str) -> Result<String, Error> {
        let parsed = LnetAddress::parse(address)?;
        if parsed.tmid.is_none() {
            let found =
                format!("address `{address}`: an identifier from 1 to 4095 is expected of an end point");
            return Err(Error::invalid(found));
        }
        if !parsed.process.nid.can_name_an_ni() {
            let found = format!("address `{address}`: a NID by which other hosts reach its NI is expected");
            return Err(Error::invalid(found));
        }
        Ok(parsed.to_string())
    }

    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error> {
        let added = match &mut *self.shared.active() {
            Some(active) => active.add(front, id),
            None => Err(has_stopped()),
        }?;
        if front.queued(id).is_some_and(|queued| queued.deadline().is_some()) {
            self.unpark();
        }
        Ok(added)
    }

    fn add_receives(&mut self, front: &mut TmFront, ids: &[BufferId]) -> Vec<Result<(), Error>> {
        match &mut *self.shared.active() {
            Some(active) => active.add_receives(front, ids),
            None => ids.iter().map(|_| Err(has_stopped())).collect(),
        }
    }

    fn del(&mut self, front: &mut TmFront, id: BufferId) {
        let posted = self.shared.active().as_mut().and_then(|active| active.posted.remove(&id.number));
        // A buffer without one has had its last event.
        let (Some(posted), Some(queued)) = (posted, front.queued(id)) else { return };
        queued.flags.cancelled = !queued.flags.timed_out;
        drop(posted);
    }

    fn messages_max(&self) -> u32 {
        self.transport.messages_max()
    }

    fn deliver_synchronously(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn is_pending(&self) -> bool {
        self.shared.active().as_ref().is_some_and(|active| !active.ring.is_empty())
    }

    fn next_pending(&mut self, front: &mut TmFront) -> Option<Completion> {
        self.shared.active().as_mut()?.next_completion(front)
    }

    fn notify(&mut self, waker: Waker) {
        *self.shared.notified.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        // Events that came before the waker was there have told no other.
        if self.is_pending() {
            self.shared.tell();
        }
    }

    fn event_room(&self) -> Option<(usize, usize)> {
        self.shared.active().as_ref().map(|active| (active.ring.reserved(), active.ring.size()))
    }

    fn finish(self: Box<Self>) {
        self.shared.ends.store(true, Ordering::Release);
        self.unpark();
        if let Some(worker) = self.worker {
            // A panic of a callback has been printed by then.
            let _ = worker.join();
        }
    }
}

fn has_stopped() -> Error {
    Error::new(Errno::NotPermitted, "a transfer machine that has stopped: a started one is expected")
}

/// The NID of the only node that may use a passive buffer, if one is named.
fn initiator_nid(initiator: &Option<EndPoint>) -> Result<Option<Nid>, Error> {
    let named = initiator.as_ref().map(|end_point| LnetAddress::parse(end_point.address()));
    Ok(named.transpose()?.map(|address| address.process.nid))
}

/// A buffer's operation in terms of LNet.
enum Start {
    Attach(EntryPlan),
    Put { to: Target, hdr_data: u64 },
    Get { from: Target },
}

/// All that starts an operation.
struct Begin {
    start: Start,
    md: MdPlan,
    descriptor: Option<BulkDescriptor>,
    /// Events that may come of it.
    events: usize,
}

impl Active {
    fn address(&self) -> LnetAddress {
        self.claim.address()
    }

    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error> {
        let (Begin { start, md, descriptor, events }, memory) = self.begin(front, id)?;
        let operations = Arc::clone(&self.operations);
        // Held until the record is as it shall be: the end of a descriptor whose message was refused may be
        // on its way already.
        let mut operations = operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.begin(id);
        let posted = match start {
            Start::Attach(entry) => self.poster.attach(&entry, &md, memory),
            Start::Put { to, hdr_data } => self.poster.put(&to, hdr_data, &md, memory),
            Start::Get { from } => self.poster.get(&from, &md, memory),
        };
        self.settle(front, &mut operations, id, events, posted)?;
        Ok(descriptor)
    }

    /// Starts the operation of each of these receive buffers, with few calls of the node.
    fn add_receives(&mut self, front: &mut TmFront, ids: &[BufferId]) -> Vec<Result<(), Error>> {
        let operations = Arc::clone(&self.operations);
        let mut operations = operations.lock().unwrap_or_else(PoisonError::into_inner);
        let mut results = Vec::with_capacity(ids.len());
        let (mut mds, mut begun) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for (index, id) in ids.iter().enumerate() {
            results.push(self.begin(front, *id).map(|(begin, memory)| {
                operations.begin(*id);
                mds.push((begin.md, memory));
                begun.push((index, begin.events));
            }));
        }
        let posted = self.poster.attach_all(&self.entry(0, Allowed::Put, None), mds);
        for ((index, events), posted) in begun.into_iter().zip(posted) {
            results[index] = self.settle(front, &mut operations, ids[index], events, posted);
        }
        results
    }

    /// Prepares the operation of a queued buffer, with slots in the ring for its events, and takes its
    /// memory.
    fn begin(&mut self, front: &mut TmFront, id: BufferId) -> Result<(Begin, Memory), Error> {
        let name = if id.queue.is_passive() { front.name(id)? } else { 0 };
        let queued = front.queued(id).ok_or_else(|| Error::invalid("a buffer that is not queued"))?;
        let begin = self.plan(queued.operation(), queued.size_bytes(), id, name)?;
        let events = begin.events;
        let events_max = self.transport.messages_max();
        if events > events_max as usize {
            let found = format!("{events} events: at most {events_max} are expected of a buffer");
            return Err(Error::new(Errno::NoMemory, found));
        }
        self.ring.reserve(events).map_err(|_| {
            Error::new(Errno::NoMemory, format!("{events} more events: the event ring cannot grow so far"))
        })?;
        Ok((begin, queued.take_memory()))
    }

    /// Notes what the node has made of an operation.
    fn settle(
        &mut self,
        front: &mut TmFront,
        operations: &mut Operations,
        id: BufferId,
        events: usize,
        posted: Result<Box<dyn Posted>, NotPosted>,
    ) -> Result<(), Error> {
        match posted {
            Ok(posted) => {
                self.posted.insert(id.number, posted);
            }
            Err(NotPosted { error, memory: None }) => operations.refuse(id, error.errno()),
            Err(NotPosted { error, memory: Some(memory) }) => {
                if let Some(queued) = front.queued(id) {
                    queued.restore_memory(memory);
                }
                operations.abandon(id);
                self.ring.release(events);
                return Err(error);
            }
        }
        Ok(())
    }

    fn plan(&self, operation: &Operation, size_bytes: u64, id: BufferId, name: u64) -> Result<Begin, Error> {
        let own = self.address();
        let md = |length_bytes, threshold| MdPlan {
            length_bytes,
            max_size_bytes: None,
            threshold,
            user_ptr: id.number,
        };
        let begin = |start, md| Begin { start, md, descriptor: None, events: 1 };
        Ok(match operation {
            Operation::Receive { min_receive_bytes, max_messages } => {
                let start = Start::Attach(self.entry(0, Allowed::Put, None));
                let md = MdPlan { max_size_bytes: Some(*min_receive_bytes), ..md(size_bytes, *max_messages) };
                Begin { events: *max_messages as usize, ..begin(start, md) }
            }
            Operation::Send { to, length_bytes } => {
                let to = LnetAddress::parse(to.address())?;
                let hdr_data = join(self.claim.tmid(), own.portal.into());
                let match_bits = join(to.tmid.unwrap_or(0), 0);
                let to = self.destination(&to, match_bits);
                begin(Start::Put { to, hdr_data }, md(*length_bytes, 1))
            }
            Operation::PassiveReceive { initiator } => {
                let entry = self.entry(name, Allowed::Put, initiator_nid(initiator)?);
                self.passive(md(size_bytes, 1), entry, id.queue())?
            }
            Operation::PassiveSend { initiator, length_bytes } => {
                let entry = self.entry(name, Allowed::Get, initiator_nid(initiator)?);
                self.passive(md(*length_bytes, 1), entry, id.queue())?
            }
            Operation::ActiveReceive { from } => {
                let bulk = LnetDescriptor::decode(from)?.bulk(QueueType::ActiveReceive, size_bytes)?;
                let from = self.destination(&bulk.address, bulk.match_bits);
                // A SEND and a REPLY.
                begin(Start::Get { from }, md(bulk.length_bytes, 2))
            }
            Operation::ActiveSend { to, length_bytes } => {
                let bulk = LnetDescriptor::decode(to)?.bulk(QueueType::ActiveSend, *length_bytes)?;
                let to = self.destination(&bulk.address, bulk.match_bits);
                begin(Start::Put { to, hdr_data: 0 }, md(bulk.length_bytes, 1))
            }
        })
    }

    fn passive(&self, md: MdPlan, entry: EntryPlan, queue: QueueType) -> Result<Begin, Error> {
        let match_bits = entry.match_bits;
        let (address, size_bytes) = (self.address(), md.length_bytes);
        let descriptor = LnetDescriptor { match_bits, address, queue, size_bytes }.encode()?;
        Ok(Begin { start: Start::Attach(entry), md, descriptor: Some(descriptor), events: 1 })
    }

    /// An entry of this transfer machine: for messages (0), or for the passive buffer of a name.
    fn entry(&self, name: u64, allowed: Allowed, initiator: Option<Nid>) -> EntryPlan {
        let match_bits = join(self.claim.tmid(), name);
        EntryPlan { portal: self.address().portal, match_bits, allowed, initiator }
    }

    fn destination(&self, to: &LnetAddress, match_bits: u64) -> Target {
        let self_nid = (!self.transport.any_rail).then_some(self.address().process.nid);
        Target { process: to.process, portal: to.portal, match_bits, offset: 0, self_nid }
    }

    /// The next event of the ring that is one of a buffer.
    fn next_completion(&mut self, front: &mut TmFront) -> Option<Completion> {
        loop {
            let event = self.ring.pop()?;
            let id = event.id();
            let Some(queued) = front.queued(id) else {
                debug_assert!(false, "an event of {id:?}, which is not queued");
                continue;
            };
            if event.is_last {
                self.ring.release(match queued.operation() {
                    Operation::Receive { max_messages, .. } => *max_messages as usize,
                    _ => 1,
                });
                if let Some(posted) = self.posted.remove(&id.number) {
                    posted.forget();
                }
            }
            let status = match event.status {
                // The node says so of the end of a GET whose answer was on its way.
                Err(Errno::TimedOut) if queued.flags.cancelled => Err(Errno::Canceled),
                status => status,
            };
            let (status, sender): (Status, _) = match (status, event.sender) {
                (Ok(()), Sender::Nameless) => (Err(Errno::Protocol), None),
                (Ok(()), Sender::Tm(process, portal, tmid)) => {
                    let portal = portal.into();
                    (status, Some(LnetAddress { process, portal, tmid: Some(tmid) }))
                }
                _ => (status, None),
            };
            if status.is_err() && !event.is_last {
                // The message is lost, the buffer goes on.
                front.count_failure(id.queue());
                continue;
            }
            let end_point = sender.map(|address| front.end_point(&address.to_string()));
            let (length_bytes, offset_bytes) = (event.length_bytes.into(), event.offset_bytes.into());
            let outcome = match event.payload {
                Payload::Memory(memory) => Outcome::Last(Some(memory)),
                Payload::Retained(payload) if !event.is_last => Outcome::Retained(payload),
                Payload::None if !event.is_last => Outcome::Retained(Box::new(())),
                // The node has ended with the memory.
                _ => Outcome::Last(Some(Memory::default())),
            };
            return Some(Completion { id, status, length_bytes, offset_bytes, end_point, outcome });
        }
    }
}
