//! The server of tests: pings are sent back, bulk buffers are read and written back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lnet_messaging::{Addition, Buffer, BufferEvent, BulkDescriptor, Operation, QueueType};

use crate::options::Service;
use crate::place::{Place, Station};
use crate::report::Served;
use crate::wire::{Exchange, Message};

/// Longest time that an operation of the server may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often a server looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// A server, on a thread of its own.
pub(crate) struct Server {
    address: String,
    watch: Arc<Watch>,
    thread: JoinHandle<Result<()>>,
}

/// The state that a server's thread shares: whether it is to end, and what it has counted.
#[derive(Default)]
struct Watch {
    ends: AtomicBool,
    served: Mutex<Served>,
}

impl Watch {
    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The counts until now.
    pub(crate) fn served(&self) -> Served {
        *self.watch.served()
    }

    /// Waits until it ends by itself, which it does when it fails.
    pub(crate) fn join(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow!("the server has panicked"))?
    }

    /// Ends it. What it has counted.
    pub(crate) fn stop(self) -> Result<Served> {
        self.watch.ends.store(true, Ordering::Relaxed);
        let watch = Arc::clone(&self.watch);
        self.join()?;
        Ok(*watch.served())
    }
}

pub(crate) fn start(place: &Place, service: &Service) -> Result<Server> {
    let station = Station::start(place)?;
    let address = station.address.clone();
    let watch = Arc::new(Watch::default());
    let (exchanges, counts) = (HashMap::new(), Arc::clone(&watch));
    let mut serving = Serving { station, spare: Vec::new(), exchanges, next: 0, watch: counts };
    let Service { message_max, bulk_max, .. } = *service;
    for _ in 0..service.buffers() {
        let message = serving.station.allocate(message_max);
        serving.station.receive(message.with_context(|| format!("no message of {message_max} bytes"))?)?;
    }
    for _ in 0..service.depth {
        let bulk = serving.station.allocate(bulk_max);
        serving.spare.push(bulk.with_context(|| format!("no bulk buffer of {bulk_max} bytes"))?);
    }
    let thread = std::thread::Builder::new().name("nettest-server".to_owned());
    let thread = thread.spawn(move || serving.run())?;
    Ok(Server { address, watch, thread })
}

struct Serving {
    station: Station,
    /// Bulk buffers that no exchange has.
    spare: Vec<Buffer>,
    /// Descriptors and lengths of what is written back when it has been read, by the number of the buffer.
    exchanges: HashMap<u64, (BulkDescriptor, u64)>,
    next: u64,
    watch: Arc<Watch>,
}

impl Serving {
    fn run(mut self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        while !self.watch.ends.load(Ordering::Relaxed) {
            let next = self.station.next();
            if let Ok(event) = runtime.block_on(async { tokio::time::timeout(LOOK, next).await }) {
                self.handle(event?)?;
            }
        }
        self.station.stop()
    }

    fn handle(&mut self, event: BufferEvent) -> Result<()> {
        let (status, length_bytes, sender) = (event.status, event.length_bytes, event.end_point.clone());
        let message = match event.queue() {
            QueueType::Receive if status.is_ok() => Message::decode(&event.payload_bytes()),
            _ => None,
        };
        let queue = event.queue();
        let Some(buffer) = event.into_buffer() else { return Ok(()) };
        if status.is_err() {
            self.watch.served().failed += 1;
        }
        match (queue, message, sender) {
            (QueueType::Receive, Some(Message::Ping { .. }), Some(to)) => {
                self.watch.served().received += 1;
                let send = Operation::Send { to, length_bytes };
                if let Err(buffer) = self.begin(buffer, send) {
                    self.station.receive(buffer)?;
                }
                Ok(())
            }
            (QueueType::Receive, Some(Message::Bulk(exchanges)), _) => {
                self.watch.served().received += 1;
                exchanges.into_iter().for_each(|exchange| self.exchange(exchange));
                self.station.receive(buffer)
            }
            (QueueType::Receive, ..) => {
                if status.is_ok() {
                    self.watch.served().bad += 1;
                }
                self.station.receive(buffer)
            }
            (QueueType::Send, ..) => {
                if status.is_ok() {
                    self.watch.served().sent += 1;
                }
                self.station.receive(buffer)
            }
            (QueueType::ActiveReceive, ..) => {
                self.write_back(buffer, status.is_ok(), length_bytes);
                Ok(())
            }
            _ => {
                if status.is_ok() {
                    self.watch.served().written += 1;
                }
                self.spare.push(buffer);
                Ok(())
            }
        }
    }

    /// Begins to read a client's buffer. Without one of its own, or with one that is too short, the client's
    /// buffers time out.
    fn exchange(&mut self, exchange: Exchange) {
        let is_long = |buffer: &Buffer| exchange.length_bytes > buffer.size_bytes();
        if exchange.length_bytes == 0 || self.spare.last().is_some_and(is_long) {
            self.watch.served().bad += 1;
            return;
        }
        let Some(mut buffer) = self.spare.pop() else {
            self.watch.served().failed += 1;
            return;
        };
        self.next += 1;
        buffer.user_data = self.next;
        self.exchanges.insert(self.next, (exchange.to, exchange.length_bytes));
        if let Err(buffer) = self.begin(buffer, Operation::ActiveReceive { from: exchange.from }) {
            self.exchanges.remove(&buffer.user_data);
            self.spare.push(buffer);
        }
    }

    /// Writes back what was read.
    fn write_back(&mut self, buffer: Buffer, is_good: bool, length_bytes: u64) {
        let written = match self.exchanges.remove(&buffer.user_data) {
            Some((to, length)) if is_good && length == length_bytes => {
                self.watch.served().read += 1;
                self.begin(buffer, Operation::ActiveSend { to, length_bytes })
            }
            _ => Err(buffer),
        };
        if let Err(buffer) = written {
            self.spare.push(buffer);
        }
    }

    /// Begins an operation. What is refused, such as by a client's descriptor, comes back.
    fn begin(&self, buffer: Buffer, operation: Operation) -> Result<(), Buffer> {
        let addition = Addition::from(operation).deadline(Instant::now() + TIMEOUT);
        self.station.tm.add(buffer, addition).map(drop).map_err(|refused| {
            self.watch.served().failed += 1;
            refused.buffer
        })
    }
}
