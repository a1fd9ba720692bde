//! Match entries and descriptors are made: a buffer is lent to a shard.
//!
//! Invariant: a buffer that is not lent comes back, with the error, the future or the event that says so.
//! What is made for a future that was dropped is unlinked.

use lnet_core::md::MdSpec;
use lnet_core::portal::EntrySpec;
use lnet_core::shard::MdPart;
use lnet_io::memory::Buffer;
use tokio::sync::oneshot;

use super::calls::Command;
use super::error::{LnetError, NotLent};
use super::queue::RefusedRequest;
use super::request::{NO_MD, Outcome, PutOrGet, RefusalSlot};
use super::service::Queues;
use super::waits::Answered;
use super::{Ack, Descriptor, Entry, Lnet, ShardHandle, Target};
use crate::runtime::wakes::Awaited;
use crate::runtime::{Home, LendError, Refused, Worker, entry_home};

/// Entries and messages that a shard makes between two turns: those of long lists do not hold its frames up.
const BURST: usize = 64;

/// A PUT or a GET with a descriptor of its own ([`ShardHandle::start`], [`ShardHandle::start_all`]).
#[derive(Debug)]
pub struct OwnedRequest {
    pub(super) md: MdSpec,
    pub(super) buffer: Buffer,
    /// The message, which has no descriptor yet.
    pub(super) message: PutOrGet,
}

impl OwnedRequest {
    /// The bytes of `buffer`, as [`Descriptor::put`] puts them.
    #[must_use]
    pub fn put(md: &MdSpec, buffer: Buffer, to: &Target, ack: Ack, hdr_data: u64) -> Self {
        Self { md: *md, buffer, message: PutOrGet::put(NO_MD, to, ack, hdr_data) }
    }

    /// Bytes for `buffer`, as [`Descriptor::get`] gets them.
    ///
    /// # Kernel nodes
    /// A kernel node dies of a GET for a portal that has never had an entry, as [`Descriptor::get`] says.
    #[must_use]
    pub fn get(md: &MdSpec, buffer: Buffer, from: &Target) -> Self {
        Self { md: *md, buffer, message: PutOrGet::get(NO_MD, from) }
    }

    /// A request for a part of the buffer, as [`UnsentRequest::part`](super::UnsentRequest::part) has it.
    /// Requests for other parts may follow.
    #[must_use]
    pub fn part(self, offset_bytes: u32, length_bytes: u32) -> Self {
        let message = self.message.of_part(MdPart { offset_bytes, length_bytes });
        Self { message, ..self }
    }
}

impl ShardHandle {
    /// Posts a match entry with a memory descriptor, which borrows `buffer` until its last event. Where
    /// another thread drives the shard, and does not sleep, this one waits for it: of many entries at once
    /// [`attach_all`](Self::attach_all) makes few such waits.
    ///
    /// # Errors
    /// [`NotLent`] says why, and hands the buffer back.
    pub fn attach(&self, entry: &EntrySpec, md: &MdSpec, buffer: Buffer) -> Result<Entry, NotLent> {
        let (entry, md) = (*entry, *md);
        let run = move |worker: &mut Worker, queues: &mut Queues| queues.attach(worker, &entry, &md, buffer);
        let (entry, md) = outcome(self.end().run_soon(run))?;
        Ok(Entry::new(entry, md, self.clone()))
    }

    /// [`ShardHandle::attach`] for a caller that has other things to do meanwhile, in whatever runtime. It
    /// begins at once; dropping the future unlinks the entry.
    ///
    /// # Errors
    /// As [`ShardHandle::attach`].
    pub fn attach_async(
        &self,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Entry, NotLent>> + Send + use<> {
        let (entry, md) = (*entry, *md);
        let run = move |worker: &mut Worker, queues: &mut Queues| queues.attach(worker, &entry, &md, buffer);
        let made = self.lend(run, |(entry, md)| Command::UnlinkEntry(entry, md));
        async move {
            let mut made = made?;
            let (entry, md) = made.outcome().await?;
            Ok(Entry::new(entry, md, made.shard.clone()))
        }
    }

    /// [`ShardHandle::attach`] without a handle, as for one that is detached: leaves it for the shard and
    /// returns. Should the shard refuse it, an UNLINK event with the status
    /// [`Cause::Refused`](lnet_core::lnd::Cause::Refused) and the spec's `user_ptr` says so:
    /// [`QueuedEvent::refusal`](super::QueuedEvent::refusal) why, and
    /// [`QueuedEvent::into_buffer`](super::QueuedEvent::into_buffer) gives the buffer back. It comes before
    /// requests that this thread queues later.
    ///
    /// # Errors
    /// [`NotLent`] hands the buffer back: [`LnetError::NoEventQueue`], where the refusal could not be told,
    /// and an error that [is busy](LnetError::is_busy) while 256 calls of this kind are on their way to the
    /// shard, or refused and still in the event queue.
    pub fn attach_queued(&self, entry: &EntrySpec, md: &MdSpec, buffer: Buffer) -> Result<(), NotLent> {
        let end = self.end();
        let slot = match md.event_queue {
            Some(_) => RefusalSlot::reserve(&end.refusals).map_err(LnetError::from),
            None => Err(LnetError::NoEventQueue),
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return Err(NotLent { error, buffer: Some(buffer) }),
        };
        let (entry, md) = (*entry, *md);
        let run = move |worker: &mut Worker, queues: &mut Queues| {
            if let Err(Refused { error, buffer }) = queues.attach(worker, &entry, &md, buffer) {
                let (event, error) = (slot.end_event(&md), error.into());
                queues.refuse(md.event_queue, event, RefusedRequest { error, buffer: Some(buffer), slot });
            }
        };
        end.enqueue(Command::Run(Box::new(run))).map_err(|error| NotLent { error, buffer: None })
    }

    /// Makes a descriptor to put from or get into; it borrows `buffer` until its last event. Where another
    /// thread drives the shard, and does not sleep, this one waits for it.
    ///
    /// # Errors
    /// [`NotLent`] says why, and hands the buffer back.
    pub fn bind(&self, md: &MdSpec, buffer: Buffer) -> Result<Descriptor, NotLent> {
        let md = *md;
        let handle = outcome(self.end().run_soon(move |worker, queues| queues.bind(worker, &md, buffer)))?;
        Ok(Descriptor::new(handle, &md, self.clone()))
    }

    /// [`ShardHandle::bind`] for a caller that has other things to do meanwhile, in whatever runtime. It
    /// begins at once; dropping the future unlinks the descriptor.
    ///
    /// # Errors
    /// As [`ShardHandle::bind`].
    pub fn bind_async(
        &self,
        md: &MdSpec,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Descriptor, NotLent>> + Send + use<> {
        let md = *md;
        let made = self.lend(move |worker, queues| queues.bind(worker, &md, buffer), Command::Unlink);
        async move {
            let mut made = made?;
            let handle = made.outcome().await?;
            Ok(Descriptor::new(handle, &md, made.shard.clone()))
        }
    }

    /// [`ShardHandle::attach`] for each of these, up to 64 between two turns of the shard: a burst costs the
    /// caller few waits for a thread that drives it. The results stand in their order; one that is refused
    /// does not keep the others from being made. Where it is to be all or none, collect them into a `Result`:
    /// the handles of those that were made are dropped then, which unlinks them. Messages may find them until
    /// that.
    ///
    /// # Errors
    /// [`NotLent`] for each entry that was not made, as [`ShardHandle::attach`].
    #[must_use]
    pub fn attach_all(&self, entries: Vec<(EntrySpec, MdSpec, Buffer)>) -> Vec<Result<Entry, NotLent>> {
        let attach = |worker: &mut Worker, queues: &mut Queues, (entry, md, buffer)| {
            queues.attach(worker, &entry, &md, buffer).map_err(NotLent::from)
        };
        let made = self.run_all(entries, attach);
        let entry = |(entry, md)| Entry::new(entry, md, self.clone());
        made.into_iter().map(|made| made.map(entry)).collect()
    }

    /// Makes a descriptor for a message and starts it, by one call.
    ///
    /// # Errors
    /// [`NotLent`]: without the buffer where the descriptor was made; then that comes with an UNLINK event.
    pub fn start(&self, message: OwnedRequest) -> Result<Descriptor, NotLent> {
        let md = message.md;
        let start = move |worker: &mut Worker, queues: &mut Queues| queues.start_outgoing(worker, message);
        let started = self.end().run_soon(start).map_err(|error| NotLent { error, buffer: None })?;
        Ok(Descriptor::new(started?, &md, self.clone()))
    }

    /// [`ShardHandle::start`] for each of these messages, up to 64 by one call: a burst costs the caller few
    /// waits for a thread that drives the shard. The results stand in their order.
    ///
    /// # Errors
    /// [`NotLent`] for each message that was not started, as [`ShardHandle::start`].
    #[must_use]
    pub fn start_all(&self, messages: Vec<OwnedRequest>) -> Vec<Result<Descriptor, NotLent>> {
        let specs: Vec<MdSpec> = messages.iter().map(|outgoing| outgoing.md).collect();
        let start =
            |worker: &mut Worker, queues: &mut Queues, message| queues.start_outgoing(worker, message);
        let started = self.run_all(messages, start);
        let made = |(md, handle)| Descriptor::new(handle, md, self.clone());
        specs.iter().zip(started).map(|(md, started)| Ok(made((md, started?)))).collect()
    }

    /// Makes a descriptor for a message, starts it and brings its outcome, as that of a request that is
    /// [awaited](super::UnsentRequest): all by one call, which no thread waits for. It begins at once and
    /// goes on without the future.
    ///
    /// # Errors
    /// Errors come by the future, as in [`ShardHandle::start`]; the buffer has gone then.
    pub fn send(&self, message: OwnedRequest) -> Outcome {
        let (sender, outcome) = oneshot::channel();
        let left = match message.md.event_queue {
            Some(_) => {
                let send = |worker: &mut Worker, queues: &mut Queues| {
                    queues.send_outgoing(worker, message, sender);
                };
                self.end().enqueue(Command::Run(Box::new(send)))
            }
            None => Err(LnetError::NoEventQueue),
        };
        Outcome { outcome: Answered::new(self.end().thread.shared(), outcome), refused: left.err() }
    }

    /// Has `run` deal with these, between few turns.
    fn run_all<A: Send + 'static, R: Send + 'static>(
        &self,
        all: Vec<A>,
        run: impl Fn(&mut Worker, &mut Queues, A) -> Result<R, NotLent> + Copy + Send + 'static,
    ) -> Vec<Result<R, NotLent>> {
        let mut results = Vec::with_capacity(all.len());
        let mut rest = all.into_iter();
        while rest.len() != 0 {
            let burst: Vec<A> = rest.by_ref().take(BURST).collect();
            let count = burst.len();
            let run = move |worker: &mut Worker, queues: &mut Queues| {
                burst.into_iter().map(|one| run(worker, queues, one)).collect::<Vec<_>>()
            };
            let refused = || Err(NotLent { error: self.end().caller.ended(), buffer: None });
            match self.end().run_soon(run) {
                Ok(done) => results.extend(done),
                Err(_) => results.extend((0..count).map(|_| refused())),
            }
        }
        results
    }

    fn lend<T: Send + 'static>(
        &self,
        lend: impl FnOnce(&mut Worker, &mut Queues) -> Result<T, Refused> + Send + 'static,
        undo: fn(T) -> Command,
    ) -> Result<Making<T>, NotLent> {
        let lost = move |made, worker: &mut Worker, queues: &mut Queues| {
            if let Ok(made) = made {
                queues.answer(undo(made), worker);
            }
        };
        let made = self.end().run_async(lend, lost).map_err(|error| NotLent { error, buffer: None })?;
        Ok(Making { shard: self.clone(), made, undo })
    }
}

/// An entry or a descriptor that a shard is asked for.
struct Making<T> {
    shard: ShardHandle,
    made: Awaited<oneshot::Receiver<Result<T, Refused>>>,
    /// What takes it away again.
    undo: fn(T) -> Command,
}

impl<T> Making<T> {
    async fn outcome(&mut self) -> Result<T, NotLent> {
        let made = (&mut self.made).await;
        outcome(made.map_err(|_| self.shard.end().caller.ended()))
    }
}

impl<T> Drop for Making<T> {
    fn drop(&mut self) {
        let made = self.made.get();
        made.close();
        if let Ok(Ok(made)) = made.try_recv() {
            // A shard that has ended has unlinked everything.
            let _ = self.shard.end().enqueue((self.undo)(made));
        }
    }
}

impl From<Refused> for NotLent {
    fn from(Refused { error, buffer }: Refused) -> Self {
        Self { error: LnetError::Lend(error), buffer: Some(buffer) }
    }
}

fn outcome<T>(made: Result<Result<T, Refused>, LnetError>) -> Result<T, NotLent> {
    match made {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(refused)) => Err(refused.into()),
        Err(error) => Err(NotLent { error, buffer: None }),
    }
}

impl Lnet {
    /// Posts a match entry with a memory descriptor on the shard that the portal's policy sends its messages
    /// to; [`Entry::shard`] says which. Where every shard will do (`Rotor`), it is the one of the event
    /// queue.
    ///
    /// # Errors
    /// [`NotLent`] says why, and hands the buffer back: as [`ShardHandle::attach`], and where senders decide
    /// the shard ([`LnetError::EachShard`]), or the event queue is not on that shard.
    pub fn attach(&self, entry: &EntrySpec, md: &MdSpec, buffer: Buffer) -> Result<Entry, NotLent> {
        match self.shard_of_entry(entry, md) {
            Ok(shard) => shard.attach(entry, md, buffer),
            Err(error) => Err(NotLent { error, buffer: Some(buffer) }),
        }
    }

    /// [`ShardHandle::attach_all`] on the shards where [`Lnet::attach`] posts: those of each shard in their
    /// order, shard by shard. The results stand in the order of the entries.
    ///
    /// # Errors
    /// [`NotLent`] for each entry that was not made, as [`Lnet::attach`].
    #[must_use]
    pub fn attach_all(&self, entries: Vec<(EntrySpec, MdSpec, Buffer)>) -> Vec<Result<Entry, NotLent>> {
        let mut results: Vec<_> = std::iter::repeat_with(|| None).take(entries.len()).collect();
        let mut by_shard: Vec<(Vec<usize>, Vec<_>)> = self.shards().map(|_| Default::default()).collect();
        for (index, (entry, md, buffer)) in entries.into_iter().enumerate() {
            match self.shard_of_entry(&entry, &md) {
                Ok(ShardHandle { shard, .. }) => {
                    let (indices, list) = &mut by_shard[shard];
                    indices.push(index);
                    list.push((entry, md, buffer));
                }
                Err(error) => results[index] = Some(Err(NotLent { error, buffer: Some(buffer) })),
            }
        }
        for (shard, (indices, list)) in self.shards().zip(by_shard) {
            for (index, made) in indices.into_iter().zip(shard.attach_all(list)) {
                results[index] = Some(made);
            }
        }
        // Each entry was refused above, or is in the list of one shard.
        results.into_iter().flatten().collect()
    }

    /// [`ShardHandle::attach_async`] on the shard where [`Lnet::attach`] posts.
    ///
    /// # Errors
    /// As [`Lnet::attach`].
    pub fn attach_async(
        &self,
        entry: &EntrySpec,
        md: &MdSpec,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Entry, NotLent>> + Send + use<> {
        let made = match self.shard_of_entry(entry, md) {
            Ok(shard) => Ok(shard.attach_async(entry, md, buffer)),
            Err(error) => Err(NotLent { error, buffer: Some(buffer) }),
        };
        async move { made?.await }
    }

    /// [`ShardHandle::attach_queued`] on the shard where [`Lnet::attach`] posts.
    ///
    /// # Errors
    /// As [`ShardHandle::attach_queued`], and where there is no such shard.
    pub fn attach_queued(&self, entry: &EntrySpec, md: &MdSpec, buffer: Buffer) -> Result<(), NotLent> {
        match self.shard_of_entry(entry, md) {
            Ok(shard) => shard.attach_queued(entry, md, buffer),
            Err(error) => Err(NotLent { error, buffer: Some(buffer) }),
        }
    }

    /// Makes a descriptor to put from or get into, on the shard of its event queue ([`ShardHandle::bind`]).
    ///
    /// # Errors
    /// [`NotLent`] says why, and hands the buffer back.
    pub fn bind(&self, md: &MdSpec, buffer: Buffer) -> Result<Descriptor, NotLent> {
        match self.shard_of_queue(md) {
            Ok(shard) => shard.bind(md, buffer),
            Err(error) => Err(NotLent { error, buffer: Some(buffer) }),
        }
    }

    /// [`ShardHandle::bind_async`] on the shard of its event queue.
    ///
    /// # Errors
    /// As [`Lnet::bind`].
    pub fn bind_async(
        &self,
        md: &MdSpec,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Descriptor, NotLent>> + Send + use<> {
        let made = match self.shard_of_queue(md) {
            Ok(shard) => Ok(shard.bind_async(md, buffer)),
            Err(error) => Err(NotLent { error, buffer: Some(buffer) }),
        };
        async move { made?.await }
    }

    fn shard_of_entry(&self, entry: &EntrySpec, md: &MdSpec) -> Result<ShardHandle, LnetError> {
        let home =
            entry_home(&self.steering(), entry.portal, &entry.source, entry.match_bits, entry.ignore_bits);
        match home.map_err(LendError::from)? {
            Home::Shard(shard) => self.shard(shard as usize),
            Home::Any => self.shard_of_queue(md),
            Home::Each => Err(LnetError::EachShard(entry.portal)),
        }
    }

    fn shard_of_queue(&self, md: &MdSpec) -> Result<ShardHandle, LnetError> {
        self.shard(md.event_queue.map_or(0, |queue| queue.0.shard().0.into()))
    }
}
