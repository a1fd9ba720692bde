//! Transfer machines that have threads of their own, and find each other in the process: what mem and rpc
//! have in common.
//!
//! Invariants: an operation runs on a worker of the transfer machine that asked for it, and its events come
//! on workers of those that they are about, one behind the other for each buffer. A buffer whose data is
//! being moved belongs to one operation (`in_use`). A message is copied into a receive buffer under the lock
//! of its transfer machine, since the next message goes behind it. Of several locks of transfer machines one
//! is taken at a time.

pub(crate) mod directory;
pub(crate) mod work;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::errno::{Errno, Error, Status};
use crate::memory::Memory;
use crate::operation::{BulkDescriptor, Operation};
use crate::queue::{BufferId, QueueType};
use crate::transport::{Completion, Outcome, RetainedPayload, TmFront, TmLink, TmState, TransportTm};

use directory::{Directory, Listed};
use work::{Item, Work, Worker};

/// The particulars of a transport whose transfer machines have crews. Called without any lock, but for what
/// is a matter of addresses and descriptors alone.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// Where a transfer machine is found; its text is the canonical form.
    type Address: Copy + Eq + Hash + fmt::Display + Send + Sync;

    /// The transfer machines of the process.
    fn directory() -> &'static Directory<Self::Address>;

    /// The address of this text.
    ///
    /// # Errors
    /// `EINVAL` for what is no address.
    fn parse(text: &str) -> Result<Self::Address, Error>;

    /// The bytes of a descriptor.
    fn encode(descriptor: &Descriptor<Self::Address>) -> BulkDescriptor;

    /// The descriptor of these bytes.
    ///
    /// # Errors
    /// `EINVAL` for what is none.
    fn decode(descriptor: &BulkDescriptor) -> Result<Descriptor<Self::Address>, Errno>;

    /// Gets what a transfer machine needs beyond its threads.
    ///
    /// # Errors
    /// Why there is none: the start has failed.
    fn open(&self, own: &Listed<Self::Address>) -> Result<(), Errno> {
        let _ = own;
        Ok(())
    }

    /// Gives back what [`Carrier::open`] got.
    fn close(&self, own: &Listed<Self::Address>) {
        let _ = own;
    }

    /// Sends a message.
    fn send(
        &self,
        own: &Listed<Self::Address>,
        to: Self::Address,
        memory: &Memory,
        length_bytes: u64,
    ) -> Status;

    /// Fills memory with the bytes of a passive buffer, and returns how many there were.
    fn read(
        &self,
        own: &Listed<Self::Address>,
        from: &Descriptor<Self::Address>,
        memory: &mut Memory,
    ) -> Result<u64, Errno>;

    /// Writes the first bytes of memory to a passive buffer.
    fn write(
        &self,
        own: &Listed<Self::Address>,
        to: &Descriptor<Self::Address>,
        memory: &Memory,
        length_bytes: u64,
    ) -> Status;
}

/// The contents of a bulk descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor<A> {
    /// Queue of the passive buffer.
    pub(crate) queue: QueueType,
    /// Name of the passive buffer, which no peer can guess.
    pub(crate) name: u64,
    /// Bytes to be read, or 0: of what is written, the other end says how many bytes there are.
    pub(crate) length_bytes: u64,
    pub(crate) passive: A,
    /// The only one that may use it.
    pub(crate) initiator: Option<A>,
}

/// The threads of a transfer machine, and what they are to do.
pub(crate) struct Crew<C: Carrier> {
    carrier: Arc<C>,
    work: Arc<Work>,
    count: usize,
    threads: Vec<JoinHandle<()>>,
    address: Option<C::Address>,
}

impl<C: Carrier> Crew<C> {
    /// A crew of so many threads, which do not run yet.
    pub(crate) fn new(carrier: Arc<C>, count: usize) -> Self {
        Self { carrier, work: Arc::default(), count, threads: Vec::new(), address: None }
    }
}

impl<C: Carrier> TransportTm for Crew<C> {
    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error> {
        let address = C::parse(address)?;
        let own = Listed { address, link: link.clone(), work: Arc::clone(&self.work) };
        C::directory().enlist(&own)?;
        self.address = Some(address);
        for number in 0..self.count {
            let worker = Worker { own: own.clone(), carrier: Arc::clone(&self.carrier) };
            let thread = std::thread::Builder::new().name(format!("tm-{number}"));
            match thread.spawn(move || worker.run()) {
                Ok(thread) => self.threads.push(thread),
                // One is enough.
                Err(_) if number > 0 => break,
                Err(error) => return Err(Error::new(Errno::NoMemory, format!("no thread: {error}"))),
            }
        }
        self.work.push(Item::Started);
        Ok(())
    }

    fn stop(&mut self, _: &mut TmFront) -> Result<(), Error> {
        self.work.stop();
        Ok(())
    }

    fn wake(&mut self) {
        self.work.wake();
    }

    fn canonical_address(&self, address: &str) -> Result<String, Error> {
        C::parse(address).map(|address| address.to_string())
    }

    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error> {
        let (Some(passive), Some(queued)) = (self.address, front.queued(id)) else { return Ok(None) };
        let has_deadline = queued.deadline().is_some();
        let mut descriptor = None;
        if id.queue.is_passive() {
            let initiator = queued.operation().end_point();
            let initiator = initiator.map(|end_point| C::parse(end_point.address())).transpose()?;
            let length_bytes = queued.operation().length_bytes().unwrap_or(0);
            let (queue, name) = (id.queue, front.name(id)?);
            descriptor = Some(C::encode(&Descriptor { queue, name, length_bytes, passive, initiator }));
        } else if id.queue != QueueType::Receive {
            self.work.push(Item::Operate(id));
        }
        // An item has woken a worker already; a buffer that waits for others concerns workers by its deadline
        // alone.
        if has_deadline {
            self.work.wake();
        }
        Ok(descriptor)
    }

    fn del(&mut self, front: &mut TmFront, id: BufferId) {
        let Some(queued) = front.queued(id) else { return };
        if queued.flags.in_use || queued.flags.cancelled {
            return;
        }
        queued.flags.cancelled = !queued.flags.timed_out;
        // A buffer that sends or is active is on its way to a worker already.
        if id.queue == QueueType::Receive || id.queue.is_passive() {
            queued.flags.in_use = true;
            self.work.push(Item::Cancelled(id));
        }
    }

    fn finish(self: Box<Self>) {
        if let Some(address) = self.address {
            C::directory().delist(address, &self.work);
        }
        self.work.end();
        for thread in self.threads {
            // A panic of a callback has been printed by then.
            let _ = thread.join();
        }
    }
}

/// An operation as a worker knows it, without the lock of its transfer machine.
enum Task {
    Send { to: Box<str>, length_bytes: u64 },
    Read { from: BulkDescriptor },
    Write { to: BulkDescriptor, length_bytes: u64 },
}

/// Carries out the operation of a buffer that sends or is active, unless its end was asked for meanwhile.
fn operate<C: Carrier>(carrier: &C, own: &Listed<C::Address>, id: BufferId) {
    let Some((task, mut memory)) = take_task(&own.link, id) else {
        return own.link.post(Completion::new(id, Err(Errno::Canceled), 0));
    };
    let done = match task {
        Task::Send { to, length_bytes } => C::parse(&to)
            .map_err(|error| error.errno())
            .and_then(|to| carrier.send(own, to, &memory, length_bytes))
            .map(|()| 0),
        Task::Read { from } => {
            descriptor::<C>(own, &from, id.queue).and_then(|from| carrier.read(own, &from, &mut memory))
        }
        Task::Write { to, length_bytes } => descriptor::<C>(own, &to, id.queue)
            .and_then(|to| carrier.write(own, &to, &memory, length_bytes))
            .map(|()| 0),
    };
    let length_bytes = *done.as_ref().unwrap_or(&0);
    own.link.post(Completion::new(id, done.map(drop), length_bytes).memory(memory));
}

/// Begins the operation of a buffer, with its memory.
fn take_task(link: &TmLink, id: BufferId) -> Option<(Task, Memory)> {
    link.with_front(|front| {
        let queued = front.queued(id).filter(|queued| queued.is_usable())?;
        let task = match queued.operation() {
            Operation::Send { to, length_bytes } => {
                Task::Send { to: to.address().into(), length_bytes: *length_bytes }
            }
            Operation::ActiveReceive { from } => Task::Read { from: from.clone() },
            Operation::ActiveSend { to, length_bytes } => {
                Task::Write { to: to.clone(), length_bytes: *length_bytes }
            }
            _ => return None,
        };
        queued.flags.in_use = true;
        Some((task, queued.take_memory()))
    })
}

/// The descriptor of an operation in this direction that this transfer machine may carry out.
fn descriptor<C: Carrier>(
    own: &Listed<C::Address>,
    bytes: &BulkDescriptor,
    active: QueueType,
) -> Result<Descriptor<C::Address>, Errno> {
    let descriptor = C::decode(bytes)?;
    if descriptor.queue.inverse() != Some(active) {
        return Err(Errno::NotPermitted);
    }
    match descriptor.initiator {
        Some(initiator) if initiator != own.address => Err(Errno::AccessDenied),
        _ => Ok(descriptor),
    }
}

/// Has a message arrive behind those that the first receive buffer with room for it has. Where there is no
/// such buffer, the transfer machine is told.
///
/// # Errors
/// `ENETUNREACH` unless the target is started, `ENOBUFS` where no buffer has the room, `EMSGSIZE` where one
/// is shorter as a whole: that one ends.
pub(crate) fn receive<'a, A: fmt::Display>(
    target: &Listed<A>,
    from: &A,
    length_bytes: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Status {
    target.link.with_front(|front| {
        if front.state() != TmState::Started {
            return Err(Errno::NetworkUnreachable);
        }
        let (mut roomy, mut short) = (None, None);
        for (id, queued) in front.queue(QueueType::Receive).filter(|(_, queued)| queued.is_usable()) {
            if queued.room_bytes() >= length_bytes {
                roomy = Some(id);
                break;
            }
            if queued.size_bytes() < length_bytes {
                short.get_or_insert(id);
            }
        }
        let completion = if let Some(id) = roomy {
            let end_point = Some(front.end_point(&from.to_string()));
            Completion { end_point, ..take(front, id, length_bytes, pieces) }
        } else if let Some(id) = short {
            end_short(front, id, length_bytes)
        } else {
            front.count_failure(QueueType::Receive);
            target.work.push(Item::Error(Errno::NoBuffers));
            return Err(Errno::NoBuffers);
        };
        let status = completion.status;
        // Under the lock: the next message into this buffer has its event behind this one.
        target.work.push(Item::Done(completion));
        status
    })
}

/// Puts a message behind those that a receive buffer has. The buffer leaves with its last message, or when
/// less room is left than messages are given.
fn take<'a>(
    front: &mut TmFront,
    id: BufferId,
    length_bytes: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Completion {
    let queued = front.queued(id).expect("the buffer was found in the queue");
    let offset_bytes = queued.received_bytes;
    for piece in pieces {
        queued.received_bytes += queued.memory.fill_at(queued.received_bytes, piece) as u64;
    }
    queued.messages_taken += 1;
    let is_over = match queued.operation() {
        Operation::Receive { min_receive_bytes, max_messages } => {
            queued.messages_taken >= *max_messages || queued.room_bytes() < *min_receive_bytes
        }
        _ => true,
    };
    let outcome = if is_over {
        queued.flags.in_use = true;
        Outcome::Last(Some(queued.take_memory()))
    } else {
        Outcome::Retained(Box::new(Copied(queued.memory.bytes(offset_bytes, length_bytes))))
    };
    Completion { offset_bytes, outcome, ..Completion::new(id, Ok(()), length_bytes) }
}

/// Ends a receive buffer that is shorter than a message.
fn end_short(front: &mut TmFront, id: BufferId, length_bytes: u64) -> Completion {
    let queued = front.queued(id).expect("the buffer was found in the queue");
    queued.flags.in_use = true;
    Completion::new(id, Err(Errno::MessageSize), length_bytes).memory(queued.take_memory())
}

/// A message in a buffer that goes on receiving: a copy, since the next message may come at any moment.
#[derive(Debug)]
struct Copied(Vec<u8>);

impl RetainedPayload for Copied {
    fn pieces(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        Box::new(std::iter::once(&self.0[..]))
    }
}
