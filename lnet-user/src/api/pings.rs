//! Pings on the wire: what answers them, and the GETs that are pings.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::task::AtomicWaker;
use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle, MeHandle};
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{DriverError, MATCH_BITS, PORTAL};
use lnet_core::portal::EntrySpec;
use lnet_wire::{Nid, ProcessId};
use rtrb::Consumer;
use tracing::error;

use super::calls::Call;
use super::errno::{driver_error, failed_get};
use super::queue::{QueueEnd, QueuedEvent};
use super::service::Queues;
use super::{Core, Lnet, LnetError, Target};
use crate::memory::Buffer;
use crate::runtime::{Home, Worker, entry_home};

/// Events of a GET: SEND, REPLY, and the end.
const GET_EVENTS: u32 = 4;

/// An entry that answers pings.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) shard: usize,
    entry: MeHandle,
    md: MdHandle,
}

/// Bytes of a push that are looked at: 256 NIDs.
const PUSH_MAX_BYTES: usize = 8192;
/// Events of one push: PUT with UNLINK, and room for the next.
const PUSH_EVENTS: u32 = 4;

/// Where peers put what they would answer to a ping, on one shard: one entry that takes one message, posted again after
/// each.
pub(super) struct PushTarget {
    shard: usize,
    queue: EqHandle,
    events: Consumer<QueuedEvent>,
    news: Arc<AtomicWaker>,
}

impl PushTarget {
    /// What was pushed next, and by which NID; `None` once the shard has ended.
    pub(super) async fn next(&mut self) -> Option<QueuedEvent> {
        poll_fn(|context| {
            // Looked at first: what came before the end is found after it.
            let is_over = self.events.is_abandoned();
            self.news.register(context.waker());
            match self.events.pop() {
                Ok(event) => Poll::Ready(Some(event)),
                Err(_) if is_over => Poll::Ready(None),
                Err(_) => Poll::Pending,
            }
        })
        .await
    }
}

impl Core {
    /// Makes the targets of pushes, on all shards that pushes come to.
    pub(super) fn push_targets(&self) -> Result<Vec<PushTarget>, LnetError> {
        let shards: Vec<_> = self.ping_shards().collect();
        let make = |shard: usize| {
            let news = Arc::new(AtomicWaker::new());
            let (end, events) = QueueEnd::new(PUSH_EVENTS, Arc::clone(&news));
            let create = move |worker: &mut Worker, queues: &mut Queues| {
                // Pushes that come before the next entry is there wait for it.
                worker.set_lazy(PORTAL)?;
                Ok::<_, LnetError>(queues.create(worker, PUSH_EVENTS, end, None)?)
            };
            let queue = self.shards[shard].run(create)??;
            self.post_push(shard, queue, Buffer::zeroed(PUSH_MAX_BYTES))?;
            Ok(PushTarget { shard, queue, events, news })
        };
        shards.into_iter().map(make).collect()
    }

    /// Posts the entry that takes the next push.
    fn post_push(&self, shard: usize, queue: EqHandle, buffer: Buffer) -> Result<(), LnetError> {
        let entry = EntrySpec::new(PORTAL, MATCH_BITS);
        let options = MdOptions::PUT | MdOptions::TRUNCATE;
        let md = MdSpec::new(PUSH_MAX_BYTES as u64, Threshold::Count(1), options, queue);
        self.shards[shard]
            .run(move |worker, queues| queues.attach(worker, &entry, &md, buffer))?
            .map(drop)
            .map_err(|refused| refused.error.into())
    }

    /// Takes a push in, and makes room for the next.
    pub(super) fn pushed(&self, target: &PushTarget, event: QueuedEvent) {
        if let (EventKind::Put, Status::Ok) = (event.event.kind(), event.event.status())
            && let (Some(origin), Some(bytes)) = (event.event.origin(), event.payload())
        {
            self.runner.pushed(origin.source, bytes);
        }
        if event.event.unlinked()
            && let Some(buffer) = event.into_buffer()
            && let Err(error) = self.post_push(target.shard, target.queue, buffer)
        {
            error!(%error, "peers cannot push any more what their interfaces are");
        }
    }

    /// The shards that messages of the portal of pings come to.
    fn ping_shards(&self) -> impl Iterator<Item = usize> + use<> {
        let home = entry_home(&self.steering(), PORTAL, &ProcessId::ANY, MATCH_BITS, 0);
        let is_home = move |shard: &usize| match home {
            Ok(Home::Shard(home)) => *shard == home as usize,
            Ok(Home::Any) => *shard == 0,
            Ok(Home::Each) | Err(_) => true,
        };
        (0..self.shards.len()).filter(is_home)
    }

    /// Posts the answer to pings on all shards that are asked for it.
    pub(super) fn post(&self, answer: &[u8]) -> Result<Vec<Posted>, LnetError> {
        let entry = EntrySpec::new(PORTAL, MATCH_BITS);
        let md = MdSpec {
            length_bytes: answer.len() as u64,
            max_size_bytes: None,
            threshold: Threshold::Infinite,
            options: MdOptions::GET | MdOptions::MANAGE_REMOTE | MdOptions::TRUNCATE,
            auto_unlink: false,
            // It is of no interest who pings.
            event_queue: None,
            user_ptr: 0,
        };
        let post = |shard: usize| {
            let buffer = Buffer::from(answer.to_vec());
            let posted =
                self.shards[shard].run(move |worker, queues| queues.attach(worker, &entry, &md, buffer))?;
            let (entry, md) = posted.map_err(|refused| refused.error)?;
            Ok(Posted { shard, entry, md })
        };
        self.ping_shards().map(post).collect()
    }

    /// Takes entries away that answer pings.
    pub(super) fn withdraw(&self, posted: Vec<Posted>) {
        for Posted { shard, entry, md } in posted {
            // A shard that has ended has unlinked everything.
            let _ = self.shards[shard].enqueue(Call::UnlinkEntry(entry, md));
        }
    }
}

/// Gets a node's answer to a ping. Dropping the future gives the GET up.
pub(super) async fn get(
    lnet: &Lnet,
    nid: Nid,
    source: Option<Nid>,
    length_bytes: usize,
) -> Result<Vec<u8>, DriverError> {
    let mut got = get_once(lnet, nid, source, length_bytes).await;
    if let Ok(Err(Status::Unknown(Cause::Reset))) = got {
        // It has begun a new life since it was last spoken to: that one is asked.
        got = get_once(lnet, nid, source, length_bytes).await;
    }
    match got {
        Ok(got) => got.map_err(failed_get),
        Err(error) => Err(driver_error(&error)),
    }
}

async fn get_once(
    lnet: &Lnet,
    nid: Nid,
    source: Option<Nid>,
    length_bytes: usize,
) -> Result<Result<Vec<u8>, Status>, LnetError> {
    let shard = lnet.shard(0)?;
    let events = shard.create_event_queue(GET_EVENTS)?;
    let options = MdOptions::TRUNCATE | MdOptions::TRACK_RESPONSE;
    // One GET, one REPLY.
    let md = MdSpec::new(length_bytes as u64, Threshold::Count(2), options, events.handle());
    let sink = shard.bind(&md, Buffer::zeroed(length_bytes)).map_err(|refused| refused.error)?;
    let source = Target { self_nid: source, ..Target::new(nid, PORTAL, MATCH_BITS) };
    let queued = sink.get(&source).await?;
    Ok(match queued.event.status() {
        Status::Ok => queued.payload().map(<[u8]>::to_vec).ok_or(Status::Unknown(Cause::Timeout)),
        failed => Err(failed),
    })
}
