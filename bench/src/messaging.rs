//! Transfer machines over a link: round trips of messages, and buffers that are fetched, all by callbacks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use lnet_core::limits::Limits;
use lnet_load::Distribution;
use lnet_messaging::lnet::portal_policy;
use lnet_messaging::{
    Buffer, BufferEvent, BulkDescriptor, Domain, EndPoint, Handler, LnetTransport, Operation, QueueType,
    StopMode, TmState, TransferMachine,
};
use lnet_user::api::Lnet;
use lnet_user::node::{Carrier, NiConfig, NodeConfig, XdpMode};

use crate::link::{Link, Side};
use crate::measure::PATIENCE;
use crate::node;

const PORTAL: u8 = 20;
const TMID: u16 = 1;
/// Messages of a receive buffer, and how many of those are queued.
const MESSAGES: u32 = 64;
const RECEIVE_BUFFERS: usize = 4;
/// Event slots of a transfer machine.
const EVENT_SLOTS: u32 = 1 << 10;
const TICK: Duration = Duration::from_millis(10);
/// Bytes of a message that carries a descriptor, at most.
const DESCRIPTOR_BYTES: usize = 64;

/// What a transfer machine does with what comes.
enum Role {
    /// Each message is sent back.
    Echo,
    /// Each answer is followed by the next message, until so many have come.
    Ping { begun: Mutex<(Instant, u64)>, count: u64, half_ns: Mutex<Distribution> },
    /// Buffers are offered, and each that was fetched is offered anew.
    Offer,
    /// What is offered is fetched.
    Fetch { fetched: AtomicU64 },
}

/// A transfer machine's handler, with the buffers that it sends from or fetches into.
struct Station {
    role: Role,
    message_bytes: usize,
    spare: Mutex<Vec<Buffer>>,
    peer: Mutex<Option<EndPoint>>,
    /// What has gone wrong, or that all has come.
    over: Mutex<mpsc::Sender<anyhow::Result<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Station {
    fn tell(&self, result: anyhow::Result<()>) {
        // Without a listener the measurement is over.
        let _ = lock(&self.over).send(result);
    }

    fn send(
        &self,
        tm: &TransferMachine,
        to: &EndPoint,
        bytes: impl Iterator<Item = u8>,
    ) -> anyhow::Result<()> {
        let mut buffer = match lock(&self.spare).pop() {
            Some(buffer) => buffer,
            None => tm.domain().allocate(1, self.message_bytes)?,
        };
        let mut length_bytes = 0;
        for (place, byte) in buffer.memory_mut().segments_mut().flatten().zip(bytes) {
            *place = byte;
            length_bytes += 1;
        }
        tm.add(buffer, Operation::Send { to: to.clone(), length_bytes })?;
        Ok(())
    }

    /// Offers a buffer, of which the bytes do not matter.
    fn offer(&self, tm: &TransferMachine, buffer: Buffer) -> anyhow::Result<()> {
        let length_bytes = buffer.size_bytes();
        let offered = tm.add(buffer, Operation::PassiveSend { initiator: None, length_bytes })?;
        let descriptor = offered.descriptor.context("a passive buffer has a descriptor")?;
        let to = lock(&self.peer).clone().context("an offer goes to a peer")?;
        self.send(tm, &to, descriptor.as_bytes().iter().copied())
    }

    fn received(&self, tm: &TransferMachine, event: BufferEvent) -> anyhow::Result<()> {
        let from = event.end_point.clone().context("a message has a sender")?;
        match &self.role {
            Role::Echo => self.send(tm, &from, event.payload().flatten().copied())?,
            Role::Ping { begun, count, half_ns } => {
                let (at, number) = *lock(begun);
                // The first tenth does not count.
                if number >= count / 10 {
                    lock(half_ns).record_time(at.elapsed() / 2);
                }
                if number < *count {
                    *lock(begun) = (Instant::now(), number + 1);
                    self.send(tm, &from, event.payload().flatten().copied())?;
                } else {
                    self.tell(Ok(()));
                }
            }
            Role::Fetch { .. } => {
                let from = BulkDescriptor::from_bytes(&event.payload_bytes());
                let buffer = lock(&self.spare).pop().context("as many are offered as there is room for")?;
                tm.add(buffer, Operation::ActiveReceive { from })?;
            }
            Role::Offer => return Err(anyhow!("what offers is sent nothing")),
        }
        match event.into_buffer() {
            Some(buffer) => self.post(tm, buffer),
            None => Ok(()),
        }
    }

    fn post(&self, tm: &TransferMachine, buffer: Buffer) -> anyhow::Result<()> {
        let min_receive_bytes = self.message_bytes as u64;
        tm.add(buffer, Operation::Receive { min_receive_bytes, max_messages: MESSAGES })?;
        Ok(())
    }

    fn take(&self, tm: &TransferMachine, event: BufferEvent) -> anyhow::Result<()> {
        if let Err(errno) = event.status {
            // What is queued at the end is aborted.
            return if tm.state() == TmState::Started {
                Err(anyhow!("{errno} of {event:?}"))
            } else {
                Ok(())
            };
        }
        match event.queue() {
            QueueType::Receive => self.received(tm, event),
            QueueType::PassiveSend => event.into_buffer().map_or(Ok(()), |buffer| self.offer(tm, buffer)),
            _ => {
                if let (Role::Fetch { fetched }, QueueType::ActiveReceive) = (&self.role, event.queue()) {
                    fetched.fetch_add(1, Ordering::Relaxed);
                }
                lock(&self.spare).extend(event.into_buffer());
                Ok(())
            }
        }
    }
}

impl Handler for Station {
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        if let Err(error) = self.take(tm, event)
            && tm.state() == TmState::Started
        {
            self.tell(Err(error));
        }
    }
}

/// A started transfer machine on a node of its own.
struct End {
    station: Arc<Station>,
    over: mpsc::Receiver<anyhow::Result<()>>,
    tm: TransferMachine,
    _lnet: Lnet,
}

fn address(nid: &lnet_wire::Nid) -> String {
    format!("{nid}:12345:{PORTAL}:{TMID}")
}

impl End {
    fn open(
        side: Side<'_>,
        role: Role,
        message_bytes: usize,
        (carrier, registered_bytes): (Carrier, u64),
    ) -> anyhow::Result<Self> {
        let limits = Limits { unlimited_events: EVENT_SLOTS, ..Limits::DEFAULT };
        let ni = NiConfig::new(side.nid, side.interface);
        let config = NodeConfig::new(vec![node::with_carrier(ni, XdpMode::Auto, carrier)])
            .limits(limits)
            .registered_bytes(registered_bytes);
        let lnet = Lnet::start(&config.policies(vec![(PORTAL, portal_policy())]))?;
        let transport = LnetTransport::with_event_slots(&lnet, EVENT_SLOTS).shared();
        let domain = Domain::new(&transport)?;
        let (told, over) = mpsc::channel();
        let (spare, peer) = (Mutex::default(), Mutex::default());
        let station = Arc::new(Station { role, message_bytes, spare, peer, over: Mutex::new(told) });
        let tm = TransferMachine::new(&domain, Arc::clone(&station) as Arc<dyn Handler>)?;
        tm.start(&address(&side.nid))?;
        let deadline = Instant::now() + PATIENCE;
        tm.wait(Some(deadline), |front| front.state() != TmState::Starting && front.callback_count() == 0);
        ensure!(tm.state() == TmState::Started, "the transfer machine has not started: {:?}", tm.state());
        *lock(&station.peer) = Some(tm.create_end_point(&address(&side.peer.nid))?);
        for _ in 0..RECEIVE_BUFFERS {
            station.post(&tm, domain.allocate(1, message_bytes * MESSAGES as usize)?)?;
        }
        lnet.open()?;
        Ok(Self { station, over, tm, _lnet: lnet })
    }

    /// Serves until told to stop.
    fn serve(&self, stop: &AtomicBool) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if let Ok(result) = self.over.recv_timeout(TICK) {
                result?;
            }
        }
        Ok(())
    }
}

/// The next node of this address finds the port free. The end that is opened first is dropped first: what it
/// still sends then ends well.
impl Drop for End {
    fn drop(&mut self) {
        *lock(&self.station.peer) = None;
        // A transfer machine that does not stop says so by the port that it keeps.
        let _ = self.tm.stop(StopMode::Abort);
        let deadline = Some(Instant::now() + PATIENCE);
        self.tm.wait(deadline, |front| front.state() == TmState::Stopped && front.callback_count() == 0);
        // Its buffers know their domain, and that knows the node.
        lock(&self.station.spare).clear();
        if let Err(errno) = self.tm.finish() {
            eprintln!("a transfer machine stays, and its node's port with it: {errno}");
        }
    }
}

/// Half round trips of messages between two transfer machines, one after the other, in nanoseconds.
///
/// # Errors
/// What either end fails with.
pub fn ping(link: &Link, message_bytes: usize, count: u64) -> anyhow::Result<Distribution> {
    let (_near, half_ns) = link.pair(
        |ready, stop| {
            let end = End::open(link.far(), Role::Echo, message_bytes, (Carrier::Auto, 0))?;
            ready();
            end.serve(stop)
        },
        || {
            let (begun, half_ns) = (Mutex::new((Instant::now(), 1)), Mutex::new(Distribution::measured()));
            let role = Role::Ping { begun, count, half_ns };
            let end = End::open(link.near(), role, message_bytes, (Carrier::Auto, 0))?;
            let to = lock(&end.station.peer).clone().context("there is a peer")?;
            end.station.send(&end.tm, &to, std::iter::repeat_n(7, message_bytes))?;
            end.over.recv_timeout(6 * PATIENCE).context("a message was not answered")??;
            let Role::Ping { half_ns, .. } = &end.station.role else { return Err(anyhow!("it pings")) };
            let half_ns = lock(half_ns).clone();
            Ok((end, half_ns))
        },
    )?;
    Ok(half_ns)
}

/// Whether the bytes that are offered lie in registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// Bytes elsewhere, which are copied into frames.
    Ordinary,
    /// Bytes in registered memory, which rings send as they lie.
    Registered,
}

/// Buffers of so many bytes that are fetched a second, `window` at once, by nodes with this carrier of long
/// messages. Each is offered by a message.
///
/// # Errors
/// What either end fails with.
pub fn fetches_per_second(
    link: &Link,
    bytes: usize,
    window: usize,
    time: Duration,
    (offered, carrier): (Offered, Carrier),
) -> anyhow::Result<f64> {
    // Whole pages, and some for what finds no place between others.
    let room = |buffers: usize| (buffers * (bytes.next_multiple_of(1 << 12) + (1 << 16))) as u64;
    let registered_bytes = if offered == Offered::Registered { room(2 * window) } else { 0 };
    let goes = AtomicBool::new(false);
    let (_near, rate) = link.pair(
        |ready, stop| {
            let end = End::open(link.far(), Role::Offer, DESCRIPTOR_BYTES, (carrier, registered_bytes))?;
            ready();
            while !goes.load(Ordering::Acquire) && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
            }
            for _ in 0..window {
                end.station.offer(&end.tm, end.tm.domain().allocate(1, bytes)?)?;
            }
            end.serve(stop)
        },
        || {
            let role = Role::Fetch { fetched: AtomicU64::new(0) };
            let end = End::open(link.near(), role, DESCRIPTOR_BYTES, (carrier, 0))?;
            for _ in 0..2 * window {
                lock(&end.station.spare).push(end.tm.domain().allocate(1, bytes)?);
            }
            let Role::Fetch { fetched } = &end.station.role else { return Err(anyhow!("it fetches")) };
            goes.store(true, Ordering::Release);
            let begun = Instant::now();
            while begun.elapsed() < time {
                if let Ok(result) = end.over.recv_timeout(TICK) {
                    result?;
                }
            }
            let rate = fetched.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
            Ok((end, rate))
        },
    )?;
    Ok(rate)
}
