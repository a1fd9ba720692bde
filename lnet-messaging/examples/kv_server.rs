//! A small key-value server: requests and replies are messages, values go as bulk data. One thread takes the
//! events of a transfer machine.
//!
//! ```text
//! cargo run -p lnet-messaging --example kv_server -- rpc 127.0.0.1:9000:1
//! cargo run -p lnet-messaging --example kv_server -- lnet eth0 10.0.0.1@tcp:12345:34:1
//! ```
//!
//! Its client is `kv_client`. What both have in common is the directory `kv`.

mod kv;

use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, Buffer, BufferEvent, BufferId, Domain, EndPoint, Event, Events, Operation, QueueType, TmEvent,
    TransferMachine,
};

use kv::protocol::{Action, MESSAGE_BYTES, Outcome, Reply, Request};
use kv::{start, transports};

/// Requests that there is room for at the same time.
const REQUESTS: usize = 16;
/// Values that the server has at most.
const VALUES_MAX: usize = 1024;
/// How long a client may hold up what the server does for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that runs. It stops when this is dropped.
pub(crate) struct Server {
    tm: TransferMachine,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(transport: &Arc<dyn Transport>, address: &str) -> Result<Self, Box<dyn Error>> {
        let (domain, tm, events) = start(transport, address)?;
        let store = Store { domain, tm: tm.clone(), values: HashMap::new(), underway: HashMap::new() };
        for _ in 0..REQUESTS {
            store.receive(store.domain.allocate(1, MESSAGE_BYTES as usize)?);
        }
        let thread = std::thread::spawn(move || store.run(events));
        Ok(Self { tm, thread: Some(thread) })
    }

    /// Waits until the transfer machine stops or fails.
    #[allow(dead_code, reason = "the tests stop it instead")]
    pub(crate) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.tm.stop(lnet_messaging::StopMode::Abort);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A bulk operation that is under way, and who waits for it.
struct Underway {
    client: EndPoint,
    number: u64,
    /// Where the value goes when it is there.
    key: Option<String>,
    length_bytes: u64,
}

struct Store {
    domain: Domain,
    tm: TransferMachine,
    values: HashMap<String, Vec<u8>>,
    underway: HashMap<BufferId, Underway>,
}

impl Store {
    fn run(mut self, mut events: Events) {
        while let Some(event) = events.next_blocking() {
            match event {
                Event::Tm(TmEvent::StateChange { state, status, .. }) => {
                    if let Err(errno) = status {
                        eprintln!("kv: the transfer machine is {state:?}: {errno}");
                    }
                    return;
                }
                // A request was lost for want of a buffer: its client asks again.
                Event::Tm(_) => {}
                Event::Buffer(event) => self.handle(event),
            }
        }
    }

    /// Makes room for a request. Refused while the transfer machine stops.
    fn receive(&self, buffer: Buffer) {
        let room = Operation::Receive { min_receive_bytes: MESSAGE_BYTES, max_messages: 1 };
        let _ = self.tm.add(buffer, room);
    }

    fn handle(&mut self, event: BufferEvent) {
        match event.queue() {
            QueueType::Receive => {
                let request = Request::decode(&event.payload_bytes());
                if let (Some(request), Some(client)) = (request, event.end_point.clone()) {
                    self.begin(request, client);
                }
                if let Some(buffer) = event.into_buffer() {
                    self.receive(buffer);
                }
            }
            QueueType::ActiveReceive | QueueType::ActiveSend => self.conclude(&event),
            // A reply has left, or has not: its buffer goes with the event.
            _ => {}
        }
    }

    /// Begins the bulk operation of a request, or says why not.
    fn begin(&mut self, request: Request, client: EndPoint) {
        let Request { number, action, key, length_bytes, descriptor } = request;
        let begun = match action {
            Action::Put if self.is_full_for(&key) => Err(Outcome::NoRoom),
            Action::Put => self.allocate(length_bytes).map(|buffer| {
                let underway = Underway { client: client.clone(), number, key: Some(key), length_bytes };
                (buffer, Operation::ActiveReceive { from: descriptor }, underway)
            }),
            Action::Get => match self.values.get(&key) {
                None => Err(Outcome::Absent),
                Some(value) if value.len() as u64 > length_bytes => Err(Outcome::NoRoom),
                Some(value) => self.allocate(value.len() as u64).map(|mut buffer| {
                    buffer.fill(value);
                    let length_bytes = value.len() as u64;
                    let underway = Underway { client: client.clone(), number, key: None, length_bytes };
                    (buffer, Operation::ActiveSend { to: descriptor, length_bytes }, underway)
                }),
            },
        };
        let outcome = match begun {
            Err(outcome) => outcome,
            Ok((buffer, operation, underway)) => {
                let addition = Addition::from(operation).deadline(Instant::now() + PATIENCE);
                match self.tm.add(buffer, addition) {
                    Ok(added) => {
                        self.underway.insert(added.id, underway);
                        return;
                    }
                    // What a client calls a descriptor may be anything.
                    Err(_) => Outcome::Failed,
                }
            }
        };
        self.reply(client, Reply { number, outcome, length_bytes: 0 });
    }

    /// Whether there are as many values as may be, with those that are under way. A value that is to be
    /// replaced makes room for one.
    fn is_full_for(&self, key: &str) -> bool {
        let replaced = usize::from(self.values.contains_key(key));
        self.values.len() - replaced + self.underway.len() >= VALUES_MAX
    }

    /// A buffer for a value, in segments that the transport takes.
    fn allocate(&self, length_bytes: u64) -> Result<Buffer, Outcome> {
        let segment = length_bytes.min(self.domain.limits().segment_bytes).max(1);
        let segments = length_bytes.div_ceil(segment);
        self.domain.allocate(segments as usize, segment as usize).map_err(|_| Outcome::NoRoom)
    }

    fn conclude(&mut self, event: &BufferEvent) {
        let Some(Underway { client, number, key, length_bytes }) = self.underway.remove(&event.id) else {
            return;
        };
        let mut outcome = if event.status.is_ok() { Outcome::Done } else { Outcome::Failed };
        if let (Outcome::Done, Some(key)) = (outcome, key) {
            let value = event.payload_bytes();
            if value.len() as u64 == length_bytes {
                self.values.insert(key, value);
            } else {
                outcome = Outcome::Failed;
            }
        }
        self.reply(client, Reply { number, outcome, length_bytes });
    }

    fn reply(&self, to: EndPoint, reply: Reply) {
        let bytes = reply.encode();
        let Ok(mut buffer) = self.domain.allocate(1, bytes.len()) else { return };
        buffer.fill(&bytes);
        let send = Operation::Send { to, length_bytes: bytes.len() as u64 };
        // Refused while the transfer machine stops; a client that hears nothing gives up.
        let _ = self.tm.add(buffer, Addition::from(send).deadline(Instant::now() + PATIENCE));
    }
}

const USAGE: &str = "usage: kv_server TRANSPORT ADDRESS
       a TRANSPORT is rpc or lnet INTERFACE";

fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let (transport, rest) = transports::of(words).ok_or(USAGE)?;
    let [address] = rest else { return Err(USAGE.into()) };
    Server::start(&transport.open(address)?, address)?.join();
    Ok(())
}

#[allow(dead_code, reason = "tests have this file as a module")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    kv::conclude("kv_server", run(&words))
}
