//! A client of the key-value server: one request at a time. Values go as bulk data, which the server reads
//! and writes.
//!
//! ```text
//! cargo run -p lnet-messaging --example kv_client -- rpc 127.0.0.2:9001:1 127.0.0.1:9000:1 put colour green
//! cargo run -p lnet-messaging --example kv_client -- rpc 127.0.0.2:9001:1 127.0.0.1:9000:1 get colour
//! cargo run -p lnet-messaging --example kv_client -- lnet eth0 10.0.0.2@tcp:12345:34:1 10.0.0.1@tcp:12345:34:1 get colour
//! ```

pub(crate) mod kv;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, Buffer, BufferId, BulkDescriptor, Domain, EndPoint, Event, Events, Operation, QueueType,
    TransferMachine,
};

use kv::protocol::{Action, MESSAGE_BYTES, Outcome, Reply, Request};
use kv::{start, transports};

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A client of one server.
pub(crate) struct Client {
    domain: Domain,
    tm: TransferMachine,
    events: Events,
    server: EndPoint,
    number: u64,
}

impl Client {
    pub(crate) fn connect(transport: &Arc<dyn Transport>, address: &str, server: &str) -> Result<Self> {
        let (domain, tm, events) = start(transport, address)?;
        let server = tm.create_end_point(server)?;
        let client = Self { domain, tm, events, server, number: 0 };
        client.receive(client.domain.allocate(1, MESSAGE_BYTES as usize)?)?;
        Ok(client)
    }

    /// Stores a value.
    pub(crate) fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        if value.is_empty() {
            return Err("a value of 0 bytes: one at least is expected".into());
        }
        // A passive buffer that the server reads. Its segments are as the transport takes them.
        let mut buffer = self.allocate(value.len() as u64)?;
        buffer.fill(value);
        let length_bytes = value.len() as u64;
        let passive = Operation::PassiveSend { initiator: None, length_bytes };
        match self.ask(Action::Put, key, buffer, passive, length_bytes)?.0.outcome {
            Outcome::Done => Ok(()),
            outcome => Err(format!("the value of `{key}` is not stored: {outcome:?}").into()),
        }
    }

    /// A value, if there is one.
    pub(crate) fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        // A passive buffer that the server writes to, as large as may be.
        let buffer = self.allocate(self.domain.limits().buffer_bytes)?;
        let room_bytes = buffer.size_bytes();
        let passive = Operation::PassiveReceive { initiator: None };
        let (reply, value) = self.ask(Action::Get, key, buffer, passive, room_bytes)?;
        match reply.outcome {
            Outcome::Done if value.len() as u64 == reply.length_bytes => Ok(Some(value)),
            Outcome::Absent => Ok(None),
            outcome => Err(format!("the value of `{key}` is not read: {outcome:?}").into()),
        }
    }

    fn allocate(&self, length_bytes: u64) -> Result<Buffer> {
        let segment = length_bytes.min(self.domain.limits().segment_bytes).max(1);
        let segments = length_bytes.div_ceil(segment);
        Ok(self.domain.allocate(segments as usize, segment as usize)?)
    }

    fn receive(&self, buffer: Buffer) -> Result<()> {
        self.tm.add(buffer, Operation::Receive { min_receive_bytes: MESSAGE_BYTES, max_messages: 1 })?;
        Ok(())
    }

    /// Queues a passive buffer, sends a request with its descriptor, and waits for the reply, and for what
    /// came of the buffer. Returns what was written to it.
    fn ask(
        &mut self,
        action: Action,
        key: &str,
        buffer: Buffer,
        passive: Operation,
        length_bytes: u64,
    ) -> Result<(Reply, Vec<u8>)> {
        self.number += 1;
        let deadline = Instant::now() + PATIENCE;
        let added = self.tm.add(buffer, Addition::from(passive).deadline(deadline))?;
        let descriptor: BulkDescriptor = added.descriptor.ok_or("a passive buffer has a descriptor")?;
        let request = Request { number: self.number, action, key: key.to_owned(), length_bytes, descriptor };
        let sent = self.send(&request, deadline).inspect_err(|_| {
            self.tm.del(added.id);
        })?;
        let (mut reply, mut value) = (None, None);
        while reply.is_none() || value.is_none() {
            let event = match self.events.next_blocking().ok_or("the transfer machine is gone")? {
                Event::Buffer(event) => event,
                Event::Tm(event) => return Err(format!("{event:?}").into()),
            };
            match event.queue() {
                QueueType::Receive => {
                    let received =
                        Reply::decode(&event.payload_bytes()).filter(|reply| reply.number == self.number);
                    if let Some(received) = received {
                        reply = Some(received);
                        // Without the operation the passive buffer would wait for it until the deadline.
                        if received.outcome != Outcome::Done {
                            self.tm.del(added.id);
                        }
                    }
                    if let Some(buffer) = event.into_buffer() {
                        self.receive(buffer)?;
                    }
                }
                QueueType::Send if event.id == sent => event.status.map_err(|errno| {
                    self.tm.del(added.id);
                    format!("{} is not reached: {errno}", self.server.address())
                })?,
                _ if event.id == added.id => {
                    if event.status == Err(lnet_messaging::Errno::TimedOut) {
                        return Err(format!("{} does not answer", self.server.address()).into());
                    }
                    value = Some(event.payload_bytes());
                }
                // An answer to an earlier request.
                _ => {}
            }
        }
        Ok((reply.ok_or("no reply")?, value.unwrap_or_default()))
    }

    fn send(&self, request: &Request, deadline: Instant) -> Result<BufferId> {
        let bytes = request.encode().ok_or("a key of more than 255 bytes")?;
        let mut message = self.domain.allocate(1, bytes.len())?;
        message.fill(&bytes);
        let send = Operation::Send { to: self.server.clone(), length_bytes: bytes.len() as u64 };
        Ok(self.tm.add(message, Addition::from(send).deadline(deadline))?.id)
    }
}

const USAGE: &str = "usage: kv_client TRANSPORT ADDRESS SERVER put KEY VALUE
       kv_client TRANSPORT ADDRESS SERVER get KEY
       a TRANSPORT is rpc or lnet INTERFACE";

/// Does what is asked for; the value, where that is what was asked for.
pub(crate) fn command(client: &mut Client, words: &[&str]) -> Result<Option<Vec<u8>>> {
    match words {
        ["put", key, value] => client.put(key, value.as_bytes()).map(|()| None),
        ["get", key] => match client.get(key)? {
            Some(value) => Ok(Some(value)),
            None => Err(format!("there is no value of `{key}`").into()),
        },
        _ => Err(USAGE.into()),
    }
}

pub(crate) fn run(words: &[&str]) -> Result<Option<Vec<u8>>> {
    let (transport, rest) = transports::of(words).ok_or(USAGE)?;
    let [address, server, rest @ ..] = rest else { return Err(USAGE.into()) };
    let mut client = Client::connect(&transport.open(address)?, address, server)?;
    command(&mut client, rest)
}

#[allow(dead_code, reason = "tests have this file as a module")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let print = |value: Vec<u8>| println!("{}", String::from_utf8_lossy(&value));
    kv::conclude("kv_client", run(&words).map(|value| value.into_iter().for_each(print)))
}
