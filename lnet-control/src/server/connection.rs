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
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::{debug, info};

use super::handler::answer;
use super::{Handler, ServerContext};
use crate::protocol::{self, HEADER_BYTES, MAGIC, ProtocolError, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::request::{ControlRequest, Reply, RequestClass};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 8192;
/// What a client may send ahead while its last request is under way.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// NIDs of one ping request.
const PING_NIDS_MAX: usize = 4096;
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
    Slow(#[from] Elapsed),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

pub(super) struct Connection<'a, H> {
    client: ClientStream,
    caller: Caller,
    shared: &'a ServerContext<'a, H>,
    closing: watch::Receiver<bool>,
}

/// The client's stream, and what it has sent ahead.
struct ClientStream {
    stream: UnixStream,
    buffer: Vec<u8>,
    reply_time: Duration,
}

impl<'a, H: Handler> Connection<'a, H> {
    pub(super) fn new(
        stream: UnixStream,
        caller: Caller,
        shared: &'a ServerContext<'a, H>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        let client = ClientStream { stream, buffer: Vec::new(), reply_time: shared.limits.reply_time };
        Self { client, caller, shared, closing }
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
            let _ = self.client.write(&Reply::Refused(refusal)).await;
        }
        debug!(uid, pid, %ended, "control socket: connection ends");
        uid
    }

    async fn serve_one(&mut self) -> Result<(), EndReason> {
        let request_time = self.shared.limits.request_time;
        let request = tokio::select! {
            request = self.client.read(request_time) => request?,
            () = closed(&mut self.closing) => return Err(EndReason::Closing),
        };
        if request.is_privileged() && !self.caller.may_change {
            let refusal = Refusal::new(Errno::PERM, "only root and the owner of the daemon may change it");
            return self.client.write(&Reply::Refused(refusal)).await;
        }
        match request {
            request if request.kind() == RequestClass::Change => self.change(request).await,
            ControlRequest::Ping(request) => self.ping(request).await,
            other => {
                if other.kind() == RequestClass::Order {
                    self.log_order(&other);
                }
                // An answer that is ready goes even to a client that has closed its own side.
                let answered = tokio::select! {
                    biased;
                    reply = answer(self.shared.handler, other) => reply,
                    () = self.client.gone() => return Err(EndReason::Gone),
                    () = closed(&mut self.closing) => return Err(EndReason::Closing),
                };
                self.client.write(&answered).await
            }
        }
    }

    /// Changes the node: alone, and to the end whatever becomes of the client.
    async fn change(&mut self, request: ControlRequest) -> Result<(), EndReason> {
        let Caller { uid, pid, .. } = self.caller;
        let changing = self.shared.changing.lock().await;
        if *self.closing.borrow() {
            // Its turn has come too late: the node is about to go.
            return Err(EndReason::Closing);
        }
        match &request {
            ControlRequest::Apply(batch) if batch.dry_run => {}
            ControlRequest::Apply(batch) => {
                batch
                    .changes
                    .iter()
                    .for_each(|change| info!(uid, pid, change = %text(change), "control socket"));
            }
            request => info!(uid, pid, request = %text(request), "control socket"),
        }
        let answered = answer(self.shared.handler, request).await;
        drop(changing);
        self.client.write(&answered).await
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
        if nids.len() > PING_NIDS_MAX {
            let text = format!("{} nids to ping, expected at most {PING_NIDS_MAX}", nids.len());
            return self.client.write(&Reply::Refused(Refusal::new(Errno::TOOBIG, text))).await;
        }
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
                Some(reply) => self.client.write(&Reply::Ping(Some(reply))).await?,
                None => return self.client.write(&Reply::Ping(None)).await,
            }
        }
    }
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
    /// The next request. A client may take its time to begin one, and `time` to complete it.
    async fn read(&mut self, time: Duration) -> Result<ControlRequest, EndReason> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        timeout(time, self.read_rest()).await?
    }

    async fn read_rest(&mut self) -> Result<ControlRequest, EndReason> {
        loop {
            // Rubbish is not waited for to become a header.
            if self.buffer.iter().zip(MAGIC).any(|(found, expected)| *found != expected) {
                let mut magic = [0; MAGIC.len()];
                magic.iter_mut().zip(&self.buffer).for_each(|(to, from)| *to = *from);
                return Err(ProtocolError::Magic(magic).into());
            }
            if let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let end = HEADER_BYTES + protocol::read_header(header, REQUEST_BYTES_MAX)?;
                if let Some(json) = self.buffer.get(HEADER_BYTES..end) {
                    let request = protocol::decode(json)?;
                    self.buffer.drain(..end);
                    return Ok(request);
                }
            }
            self.fill().await?;
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

    async fn write(&mut self, reply: &Reply) -> Result<(), EndReason> {
        let message = match protocol::encode(reply, REPLY_BYTES_MAX) {
            Ok(message) => message,
            Err(error) => {
                let refusal = Refusal::new(Errno::NOSPC, format!("the answer cannot be sent: {error}"));
                protocol::encode(&Reply::Refused(refusal), REPLY_BYTES_MAX)?
            }
        };
        timeout(self.reply_time, self.write_all(&message)).await?
    }

    async fn write_all(&mut self, mut message: &[u8]) -> Result<(), EndReason> {
        while !message.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(message) {
                Ok(length) => message = message.get(length..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
