//! The server of tests: pings are sent back, bulk buffers are read and written back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lnet_messaging::{
    Addition, Buffer, BufferEvent, BulkDescriptor, Event, Operation, QueueType, TmEvent, TmState,
};

use crate::options::Service;
use crate::place::{Place, Station};
use crate::wire::Message;

/// Longest time that an operation of the server may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often a server looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// A server, on a thread of its own.
pub(crate) struct Server {
    address: String,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Server {
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until it ends by itself, which it does when it fails.
    pub(crate) fn join(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow!("the server has panicked"))?
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        self.join()
    }
}

pub(crate) fn start(place: &Place, service: &Service) -> Result<Server> {
    let station = Station::start(place)?;
    let mut serving = Serving { station, spare: Vec::new(), exchanges: HashMap::new(), next: 0 };
    for _ in 0..service.depth {
        serving.station.receive(serving.station.allocate(service.message_max)?)?;
        serving.spare.push(serving.station.allocate(service.bulk_max)?);
    }
    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    let thread = std::thread::Builder::new().name("nettest-server".to_owned());
    let thread = thread.spawn(move || serving.run(&ended))?;
    Ok(Server { address: place.address.clone(), ends, thread })
}

struct Serving {
    station: Station,
    /// Bulk buffers that no exchange has.
    spare: Vec<Buffer>,
    /// What is written back when it has been read, by the number that the buffer has.
    exchanges: HashMap<u64, (BulkDescriptor, u64)>,
    next: u64,
}

impl Serving {
    fn run(mut self, ends: &AtomicBool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        while !ends.load(Ordering::Relaxed) {
            let next =
                runtime.block_on(async { tokio::time::timeout(LOOK, self.station.events.next()).await });
            match next {
                Err(_) => {}
                Ok(None) => break,
                Ok(Some(Event::Tm(TmEvent::StateChange { state, status, .. })))
                    if state != TmState::Started =>
                {
                    return Err(anyhow!("the transfer machine is {state:?}: {status:?}"));
                }
                // Messages without a buffer are lost, which the client counts.
                Ok(Some(Event::Tm(_))) => {}
                Ok(Some(Event::Buffer(event))) => self.handle(event)?,
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
        let deadline = Instant::now() + TIMEOUT;
        match (queue, message, sender) {
            (QueueType::Receive, Some(Message::Ping { .. }), Some(to)) => {
                let send = Addition::from(Operation::Send { to, length_bytes }).deadline(deadline);
                match self.station.tm.add(buffer, send) {
                    Ok(_) => Ok(()),
                    Err(refused) => self.station.receive(refused.buffer),
                }
            }
            (QueueType::Receive, Some(Message::Bulk(exchange)), _) => {
                self.station.receive(buffer)?;
                // Without a buffer, or with one that is too short, the client's buffers time out.
                let Some(mut buffer) = self.spare.pop() else { return Ok(()) };
                if exchange.length_bytes == 0 || exchange.length_bytes > buffer.size_bytes() {
                    self.spare.push(buffer);
                    return Ok(());
                }
                self.next += 1;
                buffer.user_data = self.next;
                self.exchanges.insert(self.next, (exchange.to, exchange.length_bytes));
                let read = Operation::ActiveReceive { from: exchange.from };
                self.begin(buffer, Addition::from(read).deadline(deadline));
                Ok(())
            }
            (QueueType::Receive | QueueType::Send, ..) => self.station.receive(buffer),
            (QueueType::ActiveReceive, ..) => {
                match self.exchanges.remove(&buffer.user_data) {
                    Some((to, length)) if status.is_ok() && length == length_bytes => {
                        let write = Operation::ActiveSend { to, length_bytes };
                        self.begin(buffer, Addition::from(write).deadline(deadline));
                    }
                    _ => self.spare.push(buffer),
                }
                Ok(())
            }
            _ => {
                self.spare.push(buffer);
                Ok(())
            }
        }
    }

    /// Begins a bulk operation. One that is refused, by what a client's descriptor says, is over.
    fn begin(&mut self, buffer: Buffer, addition: Addition) {
        if let Err(refused) = self.station.tm.add(buffer, addition) {
            self.exchanges.remove(&refused.buffer.user_data);
            self.spare.push(refused.buffer);
        }
    }
}
