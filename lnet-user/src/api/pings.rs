//! Pings on the wire: what answers them, and the GETs that are pings.
//!
//! A ping is repeated once when the peer turns out to have begun a new life. Pinging twice does no harm.

use std::time::Duration;

use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::{Cause, PING_MATCH_BITS, PING_PORTAL, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{DriverError, PingKind};
use lnet_core::portal::EntrySpec;
use lnet_io::memory::Buffer;
use lnet_wire::{Nid, ProcessId};
use tokio::time::sleep;

use super::calls::Command;
use super::errno::{driver_error, failed_get};
use super::{Ack, Core, Lnet, LnetError, Target};
use crate::runtime::{Home, entry_home};

/// How soon what found no room is tried again.
const ROOM_INTERVAL: Duration = Duration::from_millis(10);
/// Events of a GET: SEND, REPLY, and the end.
const GET_EVENTS: u32 = 4;

/// An entry that answers pings.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) shard: usize,
    entry: MeHandle,
    md: MdHandle,
}

impl Core {
    /// Posts the answer to pings on all shards that are asked for it.
    pub(super) fn post(&self, answer: &[u8]) -> Result<Vec<Posted>, LnetError> {
        let entry = EntrySpec::new(PING_PORTAL, PING_MATCH_BITS).of_node();
        let md = MdSpec {
            length_bytes: answer.len() as u64,
            max_size_bytes: None,
            threshold: Threshold::Infinite,
            options: MdOptions::GET | MdOptions::MANAGE_REMOTE | MdOptions::TRUNCATE,
            auto_unlink: false,
            // The events of pings are of no interest.
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
        self.own_homes().map(post).collect()
    }

    /// The shards that pings and pushes are to be awaited on.
    pub(super) fn own_homes(&self) -> impl Iterator<Item = usize> {
        let home = entry_home(&self.steering(), PING_PORTAL, &ProcessId::ANY, PING_MATCH_BITS, 0);
        (0..self.shards.len()).filter(move |shard| match home {
            Ok(Home::Shard(home)) => *shard == home as usize,
            Ok(Home::Any) => *shard == 0,
            Ok(Home::Each) | Err(_) => true,
        })
    }

    /// Takes entries away that answer pings.
    pub(super) fn withdraw(&self, posted: Vec<Posted>) {
        for Posted { shard, entry, md } in posted {
            // A shard that has ended has unlinked everything.
            let _ = self.shards[shard].enqueue(Command::UnlinkEntry(entry, md));
        }
    }
}

/// Gets a node's answer to a ping. One that is to find out whether an NI has recovered is sent again to a
/// node that has begun anew, and else not. Dropping the future gives the GET up.
pub(super) async fn get(
    lnet: &Lnet,
    nid: Nid,
    source: Option<Nid>,
    length_bytes: usize,
    kind: PingKind,
) -> Result<Vec<u8>, DriverError> {
    let get = async || get_once(lnet, nid, source, length_bytes, kind).await;
    let mut got = once_there_is_room(&get).await;
    if let Ok(Err(Status::Unknown(Cause::Reset))) = got {
        // The node has begun a new life since it was last spoken to: that one is asked.
        got = once_there_is_room(&get).await;
    }
    match got {
        Ok(got) => got.map_err(failed_get),
        Err(error) => Err(driver_error(&error)),
    }
}

/// Tells a node what this one says of itself, and waits for its acknowledgement. Dropping the future gives
/// the PUT up.
pub(super) async fn push(
    lnet: &Lnet,
    nid: Nid,
    self_nid: Option<Nid>,
    bytes: &[u8],
) -> Result<(), DriverError> {
    let pushed = async || {
        let events = lnet.shard(0)?.create_event_queue(GET_EVENTS)?;
        // One PUT, one ACK.
        let md =
            MdSpec::new(bytes.len() as u64, Threshold::Count(2), MdOptions::TRACK_RESPONSE, events.handle());
        let source =
            lnet.shard(0)?.bind(&md, Buffer::from(bytes.to_vec())).map_err(|refused| refused.error)?;
        let target = Target { self_nid, ..Target::new(nid, PING_PORTAL, PING_MATCH_BITS) };
        source.put(&target, Ack::Wanted, 0).await
    };
    let queued = once_there_is_room(pushed).await.map_err(|error| driver_error(&error))?;
    match queued.event.status() {
        Status::Ok => Ok(()),
        failed => Err(failed_get(failed)),
    }
}

/// Does something again as long as the shard has no room for it: the state machine gives it up in its time.
async fn once_there_is_room<T>(what: impl AsyncFn() -> Result<T, LnetError>) -> Result<T, LnetError> {
    loop {
        match what().await {
            Err(error) if error.is_busy() => sleep(ROOM_INTERVAL).await,
            done => return done,
        }
    }
}

async fn get_once(
    lnet: &Lnet,
    nid: Nid,
    source: Option<Nid>,
    length_bytes: usize,
    kind: PingKind,
) -> Result<Result<Vec<u8>, Status>, LnetError> {
    let shard = lnet.shard(0)?;
    let events = shard.create_event_queue(GET_EVENTS)?;
    let resend = if kind == PingKind::Recovery { MdOptions::NO_RESEND } else { MdOptions::NONE };
    let options = MdOptions::TRUNCATE | MdOptions::TRACK_RESPONSE | resend;
    // One GET, one REPLY.
    let md = MdSpec::new(length_bytes as u64, Threshold::Count(2), options, events.handle());
    let sink = shard.bind(&md, Buffer::zeroed(length_bytes)).map_err(|refused| refused.error)?;
    let source = Target { self_nid: source, ..Target::new(nid, PING_PORTAL, PING_MATCH_BITS) };
    let queued = sink.get(&source).await?;
    Ok(match queued.event.status() {
        Status::Ok => queued.payload().map(<[u8]>::to_vec).ok_or(Status::Unknown(Cause::Timeout)),
        failed => Err(failed),
    })
}
