//! Pings on the wire: what answers them, and the GETs that are pings.

use lnet_core::event::EventKind;
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{DriverError, MATCH_BITS, PORTAL};
use lnet_core::portal::EntrySpec;
use lnet_wire::{Nid, ProcessId};

use super::Control;
use super::error::{driver_error, failed_get};
use crate::api::{Entry, Lnet, LnetError, Target};
use crate::memory::Buffer;
use crate::runtime::Home;

/// Events of a GET: SEND, REPLY, and the end.
const GET_EVENTS: u32 = 4;

/// Posts the answer to pings on all shards that are asked for it; it stays while the entries live.
pub(super) fn post(lnet: &Lnet, answer: &[u8]) -> Result<Vec<Entry>, LnetError> {
    let entry = EntrySpec::new(PORTAL, MATCH_BITS);
    let anyone = ProcessId::ANY;
    let home = lnet.steering().home(PORTAL, &anyone, MATCH_BITS, 0);
    let is_home = |shard: u32| match home {
        Ok(Home::Shard(home)) => shard == home,
        Ok(Home::Any) => shard == 0,
        Ok(Home::Each) | Err(_) => true,
    };
    let md = MdSpec {
        length_bytes: answer.len() as u64,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options: MdOptions::GET | MdOptions::MANAGE_REMOTE | MdOptions::TRUNCATE,
        auto_unlink: false,
        // Nobody wants to know who pings.
        event_queue: None,
        user_ptr: 0,
    };
    let shards = lnet.shards().filter(|shard| is_home(shard.id().0.into()));
    shards
        .map(|shard| {
            let buffer = Buffer::from(answer.to_vec());
            shard.attach(&entry, &md, buffer).map_err(|refused| refused.error)
        })
        .collect()
}

impl Control {
    /// Gets a node's answer to a ping, at most so long. Dropping the future gives the GET up.
    pub(super) async fn get(
        &self,
        nid: Nid,
        source: Option<Nid>,
        length_bytes: usize,
    ) -> Result<Vec<u8>, DriverError> {
        // The places are never closed.
        let _place = self.get_places.acquire().await.ok();
        let mut got = self.get_once(nid, source, length_bytes).await;
        if let Ok(Err(Status::Unknown(Cause::Reset))) = got {
            // It has begun a new life since it was last spoken to: that one is asked.
            got = self.get_once(nid, source, length_bytes).await;
        }
        match got {
            Ok(got) => got.map_err(failed_get),
            Err(error) => Err(driver_error(&error)),
        }
    }

    async fn get_once(
        &self,
        nid: Nid,
        source: Option<Nid>,
        length_bytes: usize,
    ) -> Result<Result<Vec<u8>, Status>, LnetError> {
        let shard = self.lnet.shard(0)?;
        let mut events = shard.create_event_queue(GET_EVENTS)?;
        let options = MdOptions::TRUNCATE | MdOptions::TRACK_RESPONSE;
        // One GET, one REPLY.
        let md = MdSpec::new(length_bytes as u64, Threshold::Count(2), options, events.handle());
        let sink = shard.bind(&md, Buffer::zeroed(length_bytes)).map_err(|refused| refused.error)?;
        sink.get(&Target { self_nid: source, ..Target::new(nid, PORTAL, MATCH_BITS) })?;
        let mut answer_bytes = None;
        loop {
            let notice = events.next().await?;
            let event = notice.event;
            match event.kind() {
                EventKind::Reply if event.status() == Status::Ok => {
                    answer_bytes = Some(event.manipulated_bytes() as usize);
                }
                _ if event.status() != Status::Ok => return Ok(Err(event.status())),
                _ => {}
            }
            if event.unlinked() {
                let bytes = notice.into_buffer().zip(answer_bytes);
                let bytes = bytes.and_then(|(buffer, length)| Some(buffer.get(..length)?.to_vec()));
                return Ok(bytes.ok_or(Status::Unknown(Cause::Timeout)));
            }
        }
    }
}
