//! What sources of bulk data send: each word of it is the same (`bulk`), so one buffer has the data of all of
//! them. It stays in the CPU's caches, where a buffer for each transfer would not.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use lnet_user::api::{Ack, Descriptor, LnetError, ShardHandle, Target};
use lnet_user::{Buffer, EqHandle, Event, MdOptions, MdSpec, ProcessId, Status, Threshold};
use lnet_wire::selftest::BULK_MAX_BYTES;
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::bulk;
use crate::exchange::{CallError, not_sent};

/// Data that is sent at once; more waits. The descriptor has event slots for it (`Limits::unlimited_events`).
const SENDING_MAX: usize = 64;

type Senders = VecDeque<oneshot::Sender<Status>>;

/// A node's source, whose descriptor is made when data is sent first.
pub(crate) struct Source {
    shard: ShardHandle,
    events: EqHandle,
    descriptor: OnceCell<Descriptor>,
    places: Semaphore,
    /// By where data goes, a process and match bits: who waits for its SEND. What goes to the same place is
    /// not told apart.
    sending: RefCell<HashMap<(ProcessId, u64), Senders>>,
}

impl Source {
    /// One on this shard, whose events are given to [`Source::sent`].
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
        let mut buffer = Buffer::zeroed(BULK_MAX_BYTES as usize);
        bulk::fill_source(&mut buffer);
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
        // It may have been given up.
        let _ = waiting.pop_front().map(|tell| tell.send(event.status()));
        if waiting.is_empty() {
            sending.remove(&place);
        }
    }
}
