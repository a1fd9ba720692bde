//! What the threads of a transfer machine do, of mem and of what works like it: a list of items, and
//! deadlines.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lnet_user::locks::{Condvar, Mutex, MutexGuard};

use super::directory::Listed;
use crate::buffer::{BulkDescriptor, Memory, Operation};
use crate::end_point::EndPoint;
use crate::errno::{Errno, Error};
use crate::queue::{BufferId, QueueType};
use crate::transport::Completion;
use crate::{tm::TmState, transport::TmFront};

/// Something to be done.
pub(crate) enum Item {
    /// The start is over.
    Started,
    /// A buffer is sent, or its bulk operation done.
    Operate(BufferId),
    /// An operation of another transfer machine has ended with a buffer of this one.
    Done(Completion),
    /// A buffer's end was asked for.
    Cancelled(BufferId),
    /// Trouble is told.
    Error(Errno),
    /// Everything has ended.
    Stopped,
}

/// What is to be done by a transfer machine's workers.
#[derive(Default)]
pub(crate) struct Work {
    list: Mutex<List>,
    wakes: Condvar,
}

#[derive(Default)]
struct List {
    items: VecDeque<Item>,
    /// Items that workers are at.
    running: usize,
    /// Changes that workers look for.
    wake_count: u64,
    stops: bool,
    /// Workers end behind the last item.
    ends: bool,
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut List)) {
        let mut list = self.lock();
        change(&mut list);
        list.wake_count += 1;
        drop(list);
        self.wakes.notify_all();
    }

    pub(crate) fn push(&self, item: Item) {
        self.change(|list| list.items.push_back(item));
    }

    pub(crate) fn wake(&self) {
        self.change(|_| ());
    }

    pub(crate) fn stop(&self) {
        self.change(|list| list.stops = true);
    }

    pub(crate) fn end(&self) {
        self.change(|list| list.ends = true);
    }
}

/// What is particular to a transport in the work of one transfer machine. Called on its workers, without any
/// lock.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// Tells what came of the start.
    fn start(&self, own: &Listed);

    /// Carries out the operation of a buffer that sends or is active.
    fn operate(&self, own: &Listed, id: BufferId);

    /// All is quiet: no other transfer machine finds this one any more.
    fn stop(&self, own: &Listed);
}

/// A buffer that waits for the operation of another transfer machine.
pub(crate) struct Passive<'a> {
    pub(crate) id: BufferId,
    /// Bytes to be read. Of what is written, the other end says how many there are.
    pub(crate) length_bytes: u64,
    /// The only one that may.
    pub(crate) initiator: Option<&'a EndPoint>,
}

/// The threads of a transfer machine, and what they are to do.
pub(crate) struct Crew {
    pub(crate) work: Arc<Work>,
    count: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// One of so many threads, which do not run yet.
    pub(crate) fn new(count: usize) -> Self {
        Self { work: Arc::default(), count, threads: Vec::new() }
    }

    /// Has the threads run.
    ///
    /// # Errors
    /// `ENOMEM` where there is not one.
    pub(crate) fn start(&mut self, own: &Listed, carrier: &Arc<dyn Carrier>) -> Result<(), Error> {
        for number in 0..self.count {
            let worker = Worker { own: own.clone(), carrier: Arc::clone(carrier) };
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

    /// Begins the operation of a buffer that was added: what sends or is active is left for a worker, and of
    /// a passive one `describe` makes the descriptor.
    ///
    /// # Errors
    /// Those of `describe`.
    pub(crate) fn add(
        &self,
        front: &mut TmFront,
        id: BufferId,
        describe: impl FnOnce(&Passive<'_>) -> Result<BulkDescriptor, Error>,
    ) -> Result<Option<BulkDescriptor>, Error> {
        let Some(queued) = front.queued(id) else { return Ok(None) };
        let passive = match queued.operation() {
            Operation::Receive { .. } => None,
            Operation::Send { .. } | Operation::ActiveReceive { .. } | Operation::ActiveSend { .. } => {
                self.work.push(Item::Operate(id));
                None
            }
            Operation::PassiveReceive { initiator } => {
                Some(Passive { id, length_bytes: 0, initiator: initiator.as_ref() })
            }
            Operation::PassiveSend { initiator, length_bytes } => {
                Some(Passive { id, length_bytes: *length_bytes, initiator: initiator.as_ref() })
            }
        };
        let descriptor = passive.map(|passive| describe(&passive)).transpose()?;
        // What has an item has woken a worker already; what waits for others concerns them by its deadline
        // alone.
        if queued.deadline().is_some() {
            self.work.wake();
        }
        Ok(descriptor)
    }

    /// Asks for the end of a buffer's operation, unless data is being moved.
    pub(crate) fn del(&self, front: &mut TmFront, id: BufferId) {
        let Some(queued) = front.queued(id) else { return };
        if queued.flags.in_use || queued.flags.cancelled {
            return;
        }
        queued.flags.cancelled = !queued.flags.timed_out;
        // What sends or is active is on its way to a worker already.
        if id.queue == QueueType::Receive || id.queue.is_passive() {
            queued.flags.in_use = true;
            self.work.push(Item::Cancelled(id));
        }
    }

    /// Ends the threads.
    pub(crate) fn finish(self) {
        self.work.end();
        for thread in self.threads {
            // A panic of a callback has been printed by then.
            let _ = thread.join();
        }
    }
}

/// What an operation needs to know, without the lock of its transfer machine.
pub(crate) enum Task {
    Send { to: Box<str>, length_bytes: u64 },
    Read { from: BulkDescriptor },
    Write { to: BulkDescriptor, length_bytes: u64 },
}

/// Begins the operation of a buffer that sends or is active, with its memory. `None` where its end was asked
/// for meanwhile, and posted.
pub(crate) fn take_task(own: &Listed, id: BufferId) -> Option<(Task, Memory)> {
    let taken = own.link.with_front(|front| {
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
    });
    if taken.is_none() {
        own.link.post(Completion::new(id, Err(Errno::Canceled), 0));
    }
    taken
}

/// The first receive buffer that a message may take, which belongs to that message from now on. Where there
/// is none, the transfer machine is told.
///
/// # Errors
/// `ENETUNREACH` unless it is started, `ENOBUFS` without a buffer.
pub(crate) fn take_receive(target: &Listed) -> Result<(BufferId, Memory), Errno> {
    let taken = target.link.with_front(|front| {
        if front.state() != TmState::Started {
            return Err(Errno::NetworkUnreachable);
        }
        let mut queue = front.queue(QueueType::Receive);
        match queue.find(|(_, queued)| queued.is_usable()) {
            Some((id, queued)) => {
                queued.flags.in_use = true;
                Ok((id, queued.take_memory()))
            }
            None => {
                drop(queue);
                front.count_failure(QueueType::Receive);
                Err(Errno::NoBuffers)
            }
        }
    });
    if taken.as_ref().is_err_and(|errno| *errno == Errno::NoBuffers) {
        target.work.push(Item::Error(Errno::NoBuffers));
    }
    taken
}

/// One thread of a transfer machine.
struct Worker {
    own: Listed,
    carrier: Arc<dyn Carrier>,
}

impl Worker {
    fn run(self) {
        let work = Arc::clone(&self.own.work);
        while let Some(item) = self.next() {
            self.carry_out(item);
            work.change(|list| list.running -= 1);
        }
    }

    /// The next item; `None` at the end.
    fn next(&self) -> Option<Item> {
        let Listed { link, work } = &self.own;
        loop {
            let seen = work.lock().wake_count;
            link.expire(Instant::now());
            let (deadline, has_ended) = link.with_front(|front| {
                (front.next_deadline(), front.state() == TmState::Stopping && front.is_quiet())
            });
            let mut list = work.lock();
            if let Some(item) = list.items.pop_front() {
                list.running += 1;
                return Some(item);
            }
            if list.ends {
                return None;
            }
            if list.wake_count != seen {
                continue;
            }
            if list.stops && has_ended && list.running == 0 {
                list.running += 1;
                list.stops = false;
                return Some(Item::Stopped);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // Whether the time is over or there is something to do, the next turn finds out.
            match left {
                Some(left) => {
                    drop(work.wakes.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner));
                }
                None => drop(work.wakes.wait(list).unwrap_or_else(PoisonError::into_inner)),
            }
        }
    }

    fn carry_out(&self, item: Item) {
        let Listed { link, work } = &self.own;
        match item {
            Item::Started => self.carrier.start(&self.own),
            Item::Operate(id) => self.carrier.operate(&self.own, id),
            Item::Done(completion) => link.post(completion),
            Item::Cancelled(id) => link.post(Completion::new(id, Err(Errno::Canceled), 0)),
            Item::Error(errno) => link.post_error(errno),
            Item::Stopped => {
                self.carrier.stop(&self.own);
                link.post_stopped();
                work.end();
            }
        }
    }
}
