//! What sources of bulk data send: each word of it is the same (`bulk`), so one buffer has the data of all of
//! them. It stays in the CPU's caches, where a buffer for each transfer would not.
//!
//! Invariant: what peers reach of an [`Offer`] is this pattern alone, and no message changes it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use lnet_user::api::{Ack, Descriptor, Entry, LnetError, ShardHandle, Target};
use lnet_user::runtime::{LendError, entry_home};
use lnet_user::{Buffer, EntrySpec, EqHandle, Event, Lnet, MdOptions, MdSpec, ProcessId, Status, Threshold};
use lnet_wire::selftest::{BULK_BYTES_MAX, REPLY_PORTAL};
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::bulk;
use crate::failure::{CallError, not_sent};

/// Data that is sent at once; more waits. The descriptor has event slots for it (`Limits::unlimited_events`).
const SENDING_MAX: usize = 64;

type Senders = VecDeque<oneshot::Sender<Status>>;

/// A node's source, whose descriptor is made when data is sent first.
pub(crate) struct Source {
    shard: ShardHandle,
    events: EqHandle,
    descriptor: OnceCell<Descriptor>,
    places: Semaphore,
    /// Who waits for its SEND, by where data goes: a process and match bits. What goes to the same place is
    /// not told apart.
    sending: RefCell<HashMap<(ProcessId, u64), Senders>>,
}

impl Source {
    /// A source on this shard, whose events are given to [`Source::sent`].
    pub(crate) fn new(shard: &ShardHandle, events: EqHandle) -> Self {
        Self {
            shard: shard.clone(),
            events,
            descriptor: OnceCell::new(),
            places: Semaphore::new(SENDING_MAX),
            sending: RefCell::default(),
        }
    }

    async fn bind(&self) -> Result<Descriptor, LnetError> {
        let buffer = pattern();
        let md =
            MdSpec { auto_unlink: false, ..buffer.spec(Threshold::Infinite, MdOptions::NONE, self.events) };
        self.shard.bind_async(&md, buffer).await.map_err(|refused| refused.error)
    }

    /// Puts so many bytes of data to a node.
    pub(crate) async fn put(&self, to: &Target, bytes: u32, deadline: Instant) -> Result<(), CallError> {
        let descriptor = self.descriptor.get_or_try_init(|| self.bind()).await?;
        let _place = self.places.acquire().await.map_err(|_| CallError::Expired)?;
        let (tell, sent) = oneshot::channel();
        descriptor.put(to, Ack::NotWanted, 0).part(0, bytes).queue()?;
        self.sending.borrow_mut().entry((to.process, to.match_bits)).or_default().push_back(tell);
        let sent = timeout_at(deadline, sent).await.map_err(|_| CallError::Expired)?;
        match sent.map_err(|_| CallError::Expired)? {
            Status::Ok => Ok(()),
            status => Err(not_sent(to.process.nid, status)),
        }
    }

    /// Takes an event, if it is of this source.
    pub(crate) fn sent(&self, event: &Event) {
        let Event::Send { target, match_bits, .. } = *event else { return };
        if self.descriptor.get().is_none_or(|descriptor| descriptor.handle() != event.md()) {
            return;
        }
        let (place, mut sending) = ((target, match_bits), self.sending.borrow_mut());
        let Some(waiting) = sending.get_mut(&place) else { return };
        // The transfer may have been given up.
        let _ = waiting.pop_front().map(|tell| tell.send(event.status()));
        if waiting.is_empty() {
            sending.remove(&place);
        }
    }
}

fn pattern() -> Buffer {
    let mut buffer = Buffer::zeroed(BULK_BYTES_MAX as usize);
    bulk::fill_source(&mut buffer);
    buffer
}

/// Match bits that are drawn for each shard, so that one is missed once in ten million times.
const DRAWS: usize = 16;

/// Data for servers to get: an entry on each shard that has any of its portal, under match bits that cannot
/// be guessed. Any number of servers reads it at once, and no event tells of that: a write has been made when
/// its reply says so. Dropping it unlinks the entries.
pub(crate) struct Offer {
    entries: Vec<(u64, Entry)>,
    next: Cell<usize>,
}

impl Offer {
    /// Posts the entries, under match bits that are drawn.
    pub(crate) async fn post(lnet: &Lnet, mut draw: impl FnMut() -> u64) -> Result<Self, LnetError> {
        let (steering, mut homes, mut entries) = (lnet.steering(), Vec::new(), Vec::new());
        for match_bits in (0..DRAWS * lnet.shard_count()).map(|_| draw()) {
            let home = entry_home(&steering, REPLY_PORTAL, &ProcessId::ANY, match_bits, 0);
            let home = home.map_err(LendError::from)?;
            if homes.contains(&home) {
                continue;
            }
            homes.push(home);
            let buffer = pattern();
            // Servers choose where they begin to read: without that, each read would begin behind the last.
            let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
            let md = MdSpec {
                length_bytes: buffer.len() as u64,
                max_size_bytes: None,
                threshold: Threshold::Infinite,
                options,
                auto_unlink: false,
                event_queue: None,
                user_ptr: 0,
            };
            let spec = EntrySpec::new(REPLY_PORTAL, match_bits).of_node();
            let entry = lnet.attach_async(&spec, &md, buffer).await;
            entries.push((match_bits, entry.map_err(|refused| refused.error)?));
        }
        Ok(Self { entries, next: Cell::new(0) })
    }

    /// The match bits for a write: those of the shards in turn.
    pub(crate) fn match_bits(&self) -> u64 {
        let next = self.next.get();
        self.next.set((next + 1) % self.entries.len());
        self.entries[next].0
    }
}
