//! One client: its requests, one after the other.

use std::future::pending;
use std::io;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lnet_model::request::{PingPurpose, PingReply, PingRequest};
use lnet_model::{Errno, Refusal};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use super::budget::{Budget, Budgets, Room};
use super::handler::answer;
use super::{Handler, ServerContext, ServerLimits};
use crate::protocol::{
    self, CHANGES_BYTES_MAX, HEADER_BYTES, MAGIC, PART_BYTES_MAX, ProtocolError, REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
};
use crate::request::{ControlRequest, Reply, RequestClass};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 8192;
/// What a client may send ahead while its last request is under way.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// Changes of a batch that the log tells one by one.
const LOGGED_CHANGES: usize = 256;
/// NIDs of one request to look something up, or to ping.
const NIDS_MAX: usize = 4096;
/// Bytes of a request that each client may hold beside what all hold together.
const REQUEST_FREE_BYTES: usize = CHUNK_BYTES;
/// Bytes of memory that a byte of a request may become: changes of a few letters are the worst.
const REQUEST_FACTOR: usize = 16;
/// Bytes of a reply that each client may hold beside what all hold together.
const REPLY_FREE_BYTES: usize = 64 << 10;
/// What a handler's ping may take longer than its timeout.
const PING_SLACK: Duration = Duration::from_millis(500);

/// Who a client is, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) pid: Option<i32>,
    /// Whether it is root or the owner.
    pub(super) may_change: bool,
}

/// Why a connection ends.
#[derive(Debug, Error)]
enum EndReason {
    #[error("the client went")]
    Gone,
    #[error("the daemon stops")]
    Closing,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the client was too slow")]
    Slow,
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

pub(super) struct Connection<'a, H> {
    client: ClientStream,
    caller: Caller,
    shared: &'a ServerContext<'a, H>,
    budgets: &'a Budgets,
    closing: watch::Receiver<bool>,
}

/// The client's stream, and what it has sent ahead.
struct ClientStream {
    stream: UnixStream,
    buffer: Vec<u8>,
    limits: ServerLimits,
    /// Most bytes of a request.
    request_bytes_max: usize,
}

/// A part of a request that arrives.
struct RequestPart {
    /// Where it ends in the buffer.
    end: usize,
    has_more: bool,
}

impl<'a, H: Handler> Connection<'a, H> {
    pub(super) fn new(
        stream: UnixStream,
        caller: Caller,
        shared: &'a ServerContext<'a, H>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        let request_bytes_max = if caller.may_change { CHANGES_BYTES_MAX } else { REQUEST_BYTES_MAX };
        let client = ClientStream { stream, buffer: Vec::new(), limits: shared.limits, request_bytes_max };
        Self { client, caller, shared, budgets: shared.budgets_of(&caller), closing }
    }

    /// Serves the client until it goes; returns its user.
    pub(super) async fn run(mut self) -> u32 {
        let Caller { uid, pid, .. } = self.caller;
        let ended = loop {
            if let Err(ended) = self.serve_one().await {
                break ended;
            }
        };
        if let EndReason::Protocol(error) = &ended {
            let refusal = Refusal::new(Errno::INVAL, error.to_string());
            self.client.buffer = Vec::new();
            let _ = self.refuse(refusal).await;
        }
        debug!(uid, pid, %ended, "control socket: connection ends");
        uid
    }

    async fn serve_one(&mut self) -> Result<(), EndReason> {
        let (request, room) = tokio::select! {
            request = self.client.read(self.budgets) => request?,
            () = closed(&mut self.closing) => return Err(EndReason::Closing),
        };
        if request.is_privileged() && !self.caller.may_change {
            // A refusal may wait for its client: what it asked for holds no room meanwhile.
            drop((request, room));
            let refusal = Refusal::new(Errno::PERM, "only root and the owner of the daemon may change it");
            return self.refuse(refusal).await;
        }
        let nid_count = match &request {
            ControlRequest::Ping(request) => request.nids.len(),
            ControlRequest::CptsOf(nids) => nids.len(),
            _ => 0,
        };
        if nid_count > NIDS_MAX {
            drop((request, room));
            let text = format!("{nid_count} nids in a request, expected at most {NIDS_MAX}");
            return self.refuse(Refusal::new(Errno::TOOBIG, text)).await;
        }
        match (request.kind(), request) {
            (RequestClass::Change, request) => self.change(request, room).await,
            (class @ (RequestClass::Order | RequestClass::DryRun), request) => {
                if class == RequestClass::Order {
                    self.log_order(&request);
                }
                let answered = self.answer(request).await?;
                drop(room);
                self.tell(&answered).await
            }
            (RequestClass::Read, request) => {
                // A read is short once it has arrived.
                drop(room);
                match request {
                    ControlRequest::Ping(request) => self.ping(request).await,
                    request => self.read(request).await,
                }
            }
        }
    }

    /// The node's answer. One that is ready goes even to a client that has closed its own side.
    async fn answer(&mut self, request: ControlRequest) -> Result<Reply, EndReason> {
        tokio::select! {
            biased;
            reply = answer(self.shared.handler, request) => Ok(reply),
            () = self.client.gone() => Err(EndReason::Gone),
            () = closed(&mut self.closing) => Err(EndReason::Closing),
        }
    }

    /// Room for so many bytes of a reply.
    async fn take_room(&mut self, bytes: usize) -> Result<Room<'a>, EndReason> {
        tokio::select! {
            biased;
            room = take(&self.budgets.working, bytes) => Ok(room),
            () = self.client.gone() => Err(EndReason::Gone),
            () = closed(&mut self.closing) => Err(EndReason::Closing),
        }
    }

    /// Tells what the node has been asked for. An answer for which there is no room is dropped, and asked for
    /// anew once there is: those that wait hold nothing.
    async fn read(&mut self, request: ControlRequest) -> Result<(), EndReason> {
        let mut room = self.budgets.working.nothing();
        loop {
            let answered = self.answer(request.clone()).await?;
            let message = encode(&answered)?;
            drop(answered);
            let bytes = message.len().saturating_sub(REPLY_FREE_BYTES);
            if bytes > room.bytes() {
                drop(room);
                match self.budgets.working.try_take(bytes) {
                    Some(taken) => room = taken,
                    None => {
                        drop(message);
                        // The next answer may be somewhat longer.
                        room = self.take_room(bytes + REPLY_FREE_BYTES).await?;
                        continue;
                    }
                }
            }
            return self.client.write(&message, &room).await;
        }
    }

    /// Tells what cannot be asked for anew.
    async fn tell(&mut self, reply: &Reply) -> Result<(), EndReason> {
        let message = encode(reply)?;
        let room = self.take_room(message.len().saturating_sub(REPLY_FREE_BYTES)).await?;
        self.client.write(&message, &room).await
    }

    async fn refuse(&mut self, refusal: Refusal) -> Result<(), EndReason> {
        self.tell(&Reply::Refused(refusal)).await
    }

    /// Changes the node: alone, and to the end whatever becomes of the client.
    async fn change(&mut self, request: ControlRequest, room: Room<'a>) -> Result<(), EndReason> {
        let Caller { uid, pid, .. } = self.caller;
        let changing = self.shared.changing.lock().await;
        if *self.closing.borrow() {
            // Its turn has come too late: the node is about to go.
            return Err(EndReason::Closing);
        }
        match &request {
            ControlRequest::Apply(batch) => {
                let logged = batch.changes.iter().take(LOGGED_CHANGES);
                logged.for_each(|change| info!(uid, pid, change = %text(change), "control socket"));
                let more = batch.changes.len().saturating_sub(LOGGED_CHANGES);
                if more != 0 {
                    info!(uid, pid, more, "control socket: further changes of the same batch");
                }
            }
            request => info!(uid, pid, request = %text(request), "control socket"),
        }
        let answered = answer(self.shared.handler, request).await;
        drop((changing, room));
        self.tell(&answered).await
    }

    /// Orders that only ask are given each second, and say nothing of what the node does.
    fn log_order(&self, order: &ControlRequest) {
        let Caller { uid, pid, .. } = self.caller;
        if matches!(order, ControlRequest::Selftest(asked) if asked.command.is_question()) {
            debug!(uid, pid, request = %text(order), "control socket");
        } else {
            info!(uid, pid, request = %text(order), "control socket");
        }
    }

    async fn ping(&mut self, request: PingRequest) -> Result<(), EndReason> {
        let PingRequest { nids, source, timeout_ms, purpose } = request;
        let limits = self.shared.limits;
        let time = timeout_ms.map_or(limits.ping_time, Duration::from_millis).min(limits.ping_time);
        let handler = self.shared.handler;
        let pings = nids.into_iter().map(async |nid| {
            let asked = async {
                match purpose {
                    PingPurpose::Ping => handler.ping(nid, source, time).await,
                    PingPurpose::Discover => handler.discover(nid, false, time).await,
                    PingPurpose::ForceDiscovery => handler.discover(nid, true, time).await,
                }
            };
            let result = timeout(time + PING_SLACK, asked).await;
            let late = |_| Err(Refusal::new(Errno::TIMEDOUT, format!("no answer within {time:?}")));
            PingReply { nid, result: result.unwrap_or_else(late) }
        });
        let mut pings = stream::iter(pings).buffered(limits.pings);
        loop {
            let next = tokio::select! {
                biased;
                next = pings.next() => next,
                () = self.client.gone() => return Err(EndReason::Gone),
                () = closed(&mut self.closing) => return Err(EndReason::Closing),
            };
            match next {
                Some(reply) => self.tell(&Reply::Ping(Some(reply))).await?,
                None => return self.tell(&Reply::Ping(None)).await,
            }
        }
    }
}

/// Room for so many bytes, which may be none.
async fn take(budget: &Budget, bytes: usize) -> Room<'_> {
    match bytes {
        0 => budget.nothing(),
        bytes => budget.take(bytes).await,
    }
}

/// A reply as a message, or the refusal of one that is too long.
fn encode(reply: &Reply) -> Result<Vec<u8>, ProtocolError> {
    protocol::encode(reply, REPLY_BYTES_MAX).or_else(|error| {
        let refusal = Refusal::new(Errno::NOSPC, format!("the answer cannot be sent: {error}"));
        protocol::encode(&Reply::Refused(refusal), REPLY_BYTES_MAX)
    })
}

/// A request as it came, for the log.
fn text(value: &impl Serialize) -> String {
    serde_json::to_value(value).map_or_else(|error| error.to_string(), |value| said(value).to_string())
}

/// What was said, without what was left open.
fn said(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, said(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(said).collect(),
        value => value,
    }
}

/// Ready when the server stops, which it also does by going away.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closed| *closed).await;
}

impl ClientStream {
    /// The next request, with room for what it becomes. A client may take its time to begin one, but not to
    /// complete it.
    async fn read<'b>(&mut self, budgets: &'b Budgets) -> Result<(ControlRequest, Room<'b>), EndReason> {
        let time = self.limits.request_time;
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let limit = self.request_bytes_max;
        let nothing = budgets.arriving.nothing();
        let read = timeout(time, self.read_header(limit, &nothing));
        let mut part = read.await.map_err(|_| EndReason::Slow)??;
        // How long a message in parts becomes is not known: it waits for room once, for all that it may take.
        let end = if part.has_more { HEADER_BYTES + limit } else { part.end };
        let arriving = take(&budgets.arriving, end.saturating_sub(REQUEST_FREE_BYTES)).await;
        let mut former = Vec::new();
        loop {
            self.buffer.reserve_exact(part.end.saturating_sub(self.buffer.len()));
            timeout(time, self.read_rest(part.end, &arriving)).await.map_err(|_| EndReason::Slow)??;
            if !part.has_more {
                break;
            }
            former.extend_from_slice(self.buffer.get(HEADER_BYTES..part.end).unwrap_or_default());
            self.buffer.drain(..part.end);
            let read = timeout(time, self.read_header(limit - former.len(), &arriving));
            part = read.await.map_err(|_| EndReason::Slow)??;
        }
        let bytes = (former.len() + part.end).saturating_sub(REQUEST_FREE_BYTES);
        let room = take(&budgets.working, REQUEST_FACTOR * bytes).await;
        let last = self.buffer.get(HEADER_BYTES..part.end).unwrap_or_default();
        let request = if former.is_empty() {
            protocol::decode(last)?
        } else {
            former.extend_from_slice(last);
            protocol::decode(&former)?
        };
        self.buffer.drain(..part.end);
        self.buffer.shrink_to(CHUNK_BYTES);
        Ok((request, room))
    }

    /// The header of the next part, of which the message may have so many bytes.
    async fn read_header(&mut self, bytes_max: usize, arriving: &Room<'_>) -> Result<RequestPart, EndReason> {
        loop {
            // Rubbish is not waited for to become a header.
            if self.buffer.iter().zip(MAGIC).any(|(found, expected)| *found != expected) {
                let mut magic = [0; MAGIC.len()];
                magic.iter_mut().zip(&self.buffer).for_each(|(to, from)| *to = *from);
                return Err(ProtocolError::Magic(magic).into());
            }
            if let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let length = protocol::read_header(header, bytes_max.min(PART_BYTES_MAX))?;
                return Ok(RequestPart { end: HEADER_BYTES + length, has_more: protocol::has_more(header) });
            }
            self.fill_room(arriving).await?;
        }
    }

    async fn read_rest(&mut self, end: usize, arriving: &Room<'_>) -> Result<(), EndReason> {
        while self.buffer.len() < end {
            self.fill_room(arriving).await?;
        }
        Ok(())
    }

    /// Takes in what comes next, unless the client is silent while others wait for its room.
    async fn fill_room(&mut self, arriving: &Room<'_>) -> Result<(), EndReason> {
        match timeout(self.limits.stall_time, self.fill()).await {
            Ok(filled) => filled,
            Err(_) if arriving.is_waited_for() => Err(EndReason::Slow),
            Err(_) => Ok(()),
        }
    }

    /// Takes in what the client sends next. An `await` of it may be dropped without loss.
    async fn fill(&mut self) -> Result<(), EndReason> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(&mut chunk) {
                Ok(0) => return Err(EndReason::Gone),
                Ok(length) => {
                    self.buffer.extend_from_slice(chunk.get(..length).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ready when the client is gone. What it sends ahead meanwhile is kept, within a bound.
    async fn gone(&mut self) {
        while self.buffer.len() < AHEAD_BYTES_MAX {
            if self.fill().await.is_err() {
                return;
            }
        }
        pending().await
    }

    /// Writes a message. A client that reads some of it now and then has time, unless others wait for its
    /// room.
    async fn write(&mut self, mut message: &[u8], room: &Room<'_>) -> Result<(), EndReason> {
        let ServerLimits { reply_time, stall_time, .. } = self.limits;
        let mut read_at = Instant::now();
        while !message.is_empty() {
            match timeout(stall_time.min(reply_time), self.stream.writable()).await {
                Ok(ready) => ready?,
                Err(_) if room.is_waited_for() || read_at.elapsed() >= reply_time => {
                    return Err(EndReason::Slow);
                }
                Err(_) => continue,
            }
            match self.stream.try_write(message) {
                Ok(length) => {
                    message = message.get(length..).unwrap_or_default();
                    read_at = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
