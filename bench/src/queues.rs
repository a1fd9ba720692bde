//! What the messaging layer costs by itself: many transfer machines with many buffers, pools, and the event
//! ring.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_core::handle::EqHandle;
use lnet_core::limits::Limits;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_messaging::lnet::portal_policy;
use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Attachment, Buffer, BufferEvent, Domain, Handler, LnetTransport, MemTransport, NotAdded, Operation, Pool,
    PoolSpec, QueueType, Reprovision, StopMode, TmState, TransferMachine,
};
use lnet_user::Buffer as Bytes;
use lnet_user::api::{Ack, EventQueue, Lnet, OwnedRequest, ShardHandle, Target};
use lnet_user::node::NodeConfig;
use lnet_wire::Nid;

use crate::measure::PATIENCE;

const PORTAL: u8 = 20;
const BUFFER_BYTES: usize = 8;
/// Event slots of each transfer machine: those of its buffers, two each, and those of what is measured.
const EVENT_SLOTS: u32 = 256;

/// Tells of buffers that have ended.
struct Ends(mpsc::SyncSender<QueueType>);

impl Handler for Ends {
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        // What is aborted at the end has ended with the measurement, which listens no more.
        match event.status {
            Ok(()) => drop(self.0.send(event.queue())),
            Err(errno) if tm.state() == TmState::Started => eprintln!("{errno} of {event:?}"),
            Err(_) => {}
        }
    }
}

/// A transfer machine that has started. Its drop waits until it has stopped: the next measurement finds its
/// address and the CPUs free.
struct Started(TransferMachine);

impl Started {
    fn new(tm: TransferMachine, address: &str) -> anyhow::Result<Self> {
        tm.start(address)?;
        tm.wait(Some(Instant::now() + PATIENCE), |front| {
            front.state() != TmState::Starting && front.callback_count() == 0
        });
        ensure!(tm.state() == TmState::Started, "the transfer machine has not started: {:?}", tm.state());
        Ok(Self(tm))
    }
}

impl Deref for Started {
    type Target = TransferMachine;

    fn deref(&self) -> &TransferMachine {
        &self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A transfer machine that cannot be stopped has failed.
        if self.stop(StopMode::Abort).is_ok() {
            self.wait(Some(Instant::now() + PATIENCE), |front| {
                front.state() != TmState::Stopping && front.callback_count() == 0
            });
        }
    }
}

fn start(domain: &Domain, handler: Arc<dyn Handler>, address: &str) -> anyhow::Result<Started> {
    Started::new(TransferMachine::new(domain, handler)?, address)
}

/// The lnet transport over a node of so many shards that reaches itself alone, each with room for so many
/// buffers of so many transfer machines.
fn loopback(shards: u32, tms: u32, buffers: u32) -> anyhow::Result<(Lnet, Arc<dyn Transport>)> {
    let limits = Limits {
        match_entries: (buffers + 1024).next_power_of_two(),
        memory_descs: (buffers + 1024).next_power_of_two(),
        event_queues: (tms + 8).next_power_of_two(),
        events: ((tms + 8) * (EVENT_SLOTS + 8)).next_power_of_two(),
        unlimited_events: 64,
        ..Limits::DEFAULT
    };
    let config = NodeConfig::loopback().shards(shards).limits(limits);
    let config = config.policies(vec![(PORTAL, portal_policy())]);
    let lnet = Lnet::start(&config)?;
    lnet.open()?;
    let transport = LnetTransport::with_event_slots(&lnet, EVENT_SLOTS).shared();
    Ok((lnet, transport))
}

fn address(tmid: u32) -> String {
    format!("0@lo:12345:{PORTAL}:{tmid}")
}

/// Transfer machines, so many, that have so many passive buffers queued each.
fn loaded(
    domain: &Domain,
    handler: &Arc<dyn Handler>,
    tms: u32,
    buffers_each: u32,
) -> anyhow::Result<Vec<Started>> {
    let machines = (1..=tms).map(|tmid| start(domain, Arc::clone(handler), &address(tmid)));
    let machines: Vec<_> = machines.collect::<Result<_, _>>()?;
    for tm in &machines {
        for _ in 0..buffers_each {
            tm.add(domain.allocate(1, BUFFER_BYTES)?, Operation::PassiveReceive { initiator: None })?;
        }
    }
    Ok(machines)
}

/// Counts buffers that were deleted.
struct Deleted(mpsc::SyncSender<()>);

impl Handler for Deleted {
    fn buffer_event(&self, _: &TransferMachine, event: BufferEvent) {
        drop(event);
        // What is aborted at the end has ended with the measurement, which listens no more.
        let _ = self.0.try_send(());
    }
}

/// Buffers that are added to a transfer machine in one go, and then deleted.
const BATCH: usize = 16;

/// Nanoseconds that the addition of a buffer takes, and that its end takes from its deletion to its event,
/// among so many transfer machines of so many buffers each, spread over so many shards. Ten of them have
/// sixteen buffers added and deleted at a time, in turn.
///
/// # Errors
/// What the layer refused.
pub fn add_and_end_ns(shards: u32, tms: u32, buffers_each: u32, rounds: u32) -> anyhow::Result<[f64; 2]> {
    let (_lnet, transport) = loopback(shards, tms, tms * buffers_each)?;
    let domain = Domain::new(&transport)?;
    let (told, ends) = mpsc::sync_channel(BATCH);
    let handler: Arc<dyn Handler> = Arc::new(Deleted(told));
    let machines = loaded(&domain, &handler, tms, buffers_each)?;
    let mut taken = [Duration::ZERO; 2];
    for round in 0..rounds + rounds / 10 {
        let tm = &machines[round as usize % 10.min(machines.len())];
        let buffers: Vec<Buffer> =
            (0..BATCH).map(|_| domain.allocate(1, BUFFER_BYTES)).collect::<Result<_, _>>()?;
        let begun = Instant::now();
        let mut ids = [None; BATCH];
        for (id, buffer) in ids.iter_mut().zip(buffers) {
            *id = Some(tm.add(buffer, Operation::PassiveReceive { initiator: None })?.id);
        }
        let added = Instant::now();
        for id in ids.iter().flatten() {
            ensure!(tm.del(*id), "a buffer has ended before it was deleted");
        }
        for _ in 0..BATCH {
            ends.recv_timeout(PATIENCE).context("a buffer that was deleted has not ended")?;
        }
        // The first tenth does not count.
        if round >= rounds / 10 {
            let [add, end] = &mut taken;
            *add += added - begun;
            *end += added.elapsed();
        }
    }
    let count = f64::from(rounds) * BATCH as f64;
    Ok(taken.map(|taken| taken.as_nanos() as f64 / count))
}

/// Nanoseconds that a message takes from the addition of its receive buffer until both of its buffers have
/// ended, among so many transfer machines that have so many buffers queued each. Messages go to the first
/// `visited` of them in turn: threads that have slept for long take longer to wake, whatever is queued.
///
/// # Errors
/// What the layer refused.
pub fn message_ns(tms: u32, buffers_each: u32, visited: u32, rounds: u32) -> anyhow::Result<f64> {
    let (_lnet, transport) = loopback(1, tms, tms * buffers_each)?;
    let domain = Domain::new(&transport)?;
    let (told, ends) = mpsc::sync_channel(64);
    let handler: Arc<dyn Handler> = Arc::new(Ends(told));
    let machines = loaded(&domain, &handler, tms, buffers_each)?;
    let receive = || Operation::Receive { min_receive_bytes: BUFFER_BYTES as u64, max_messages: 1 };
    let from = &machines[0];
    let to = |at: usize| from.create_end_point(&address(at as u32 + 1));
    let mut begun = Instant::now();
    for round in 0..rounds + rounds / 10 {
        if round == rounds / 10 {
            begun = Instant::now();
        }
        let at = (round % visited) as usize;
        machines[at].add(domain.allocate(1, BUFFER_BYTES)?, receive())?;
        let send = Operation::Send { to: to(at)?, length_bytes: BUFFER_BYTES as u64 };
        from.add(domain.allocate(1, BUFFER_BYTES)?, send)?;
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE).context("a message has not ended")?;
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(rounds))
}

/// How often a thread that waits for events looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// Nanoseconds that a Put takes from the making of its entry until its SEND and its PUT are there: what
/// [`message_ns`] measures, without the layer. Each of so many event queues has a thread that waits for its
/// events and tells of them; Puts go from the first one to each in turn.
///
/// # Errors
/// The node's refusal.
pub fn put_ns(queues: u32, rounds: u32) -> anyhow::Result<f64> {
    let (lnet, _transport) = loopback(1, queues, queues)?;
    let shard = lnet.shard(0)?;
    let queues = (0..queues).map(|_| shard.create_event_queue(EVENT_SLOTS));
    let queues: Vec<EventQueue> = queues.collect::<Result<_, _>>()?;
    let handles: Vec<EqHandle> = queues.iter().map(EventQueue::handle).collect();
    let (told, ends) = mpsc::sync_channel(64);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mut queue in queues {
            let (told, over) = (told.clone(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // Without a listener the measurement is over.
                    match queue.next_blocking(Some(TICK)) {
                        Ok(Some(queued)) => drop(told.send(queued.into_buffer())),
                        Ok(None) => {}
                        Err(_) => return,
                    }
                }
            });
        }
        let taken = put_in_turn(&shard, &handles, &ends, rounds);
        over.store(true, Ordering::Relaxed);
        taken
    })
}

fn put_in_turn(
    shard: &ShardHandle,
    queues: &[EqHandle],
    ends: &mpsc::Receiver<Option<Bytes>>,
    rounds: u32,
) -> anyhow::Result<f64> {
    let mut begun = Instant::now();
    for round in 0..rounds + rounds / 10 {
        if round == rounds / 10 {
            begun = Instant::now();
        }
        let at = round as usize % queues.len();
        let md = |options, queue| MdSpec::new(BUFFER_BYTES as u64, Threshold::Count(1), options, queue);
        let entry = EntrySpec::new(PORTAL.into(), at as u64 + 1);
        let taken = md(MdOptions::PUT, queues[at]);
        shard.attach(&entry, &taken, Bytes::zeroed(BUFFER_BYTES))?.detach();
        let (sent, to) = (md(MdOptions::NONE, queues[0]), Target::new(Nid::LO, PORTAL.into(), at as u64 + 1));
        shard.start(OwnedRequest::put(&sent, Bytes::zeroed(BUFFER_BYTES), &to, Ack::NotWanted, 0))?.detach();
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE).context("a Put has not ended")?;
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(rounds))
}

/// Messages that a transfer machine has under way, and its receive buffers with the messages of each.
const UNDERWAY: u64 = 16;
const RECEIVE_BUFFERS: usize = 2;
const MESSAGES_EACH: u32 = 64;

/// Sends messages to its own transfer machine, until so many have come.
struct Talks {
    /// Messages that have not left.
    unsent: AtomicU64,
    missing: AtomicU64,
    over: mpsc::SyncSender<()>,
}

impl Talks {
    fn send(&self, tm: &TransferMachine, message: Buffer) -> Result<(), NotAdded> {
        let Some(to) = tm.end_point() else { return Ok(()) };
        let takes = |unsent: u64| unsent.checked_sub(1);
        if self.unsent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, takes).is_err() {
            return Ok(());
        }
        tm.add(message, Operation::Send { to, length_bytes: BUFFER_BYTES as u64 }).map(drop)
    }

    fn receive(tm: &TransferMachine, buffer: Buffer) -> Result<(), NotAdded> {
        let min_receive_bytes = BUFFER_BYTES as u64;
        tm.add(buffer, Operation::Receive { min_receive_bytes, max_messages: MESSAGES_EACH }).map(drop)
    }
}

impl Handler for Talks {
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        if tm.state() != TmState::Started {
            return;
        }
        let (queue, status) = (event.queue(), event.status);
        let Some(buffer) = event.into_buffer() else { return self.count(queue) };
        let added = match (queue, status) {
            (_, Err(errno)) => return eprintln!("{errno} of a message"),
            (QueueType::Receive, Ok(())) => Self::receive(tm, buffer),
            (_, Ok(())) => self.send(tm, buffer),
        };
        if let Err(refused) = added {
            eprintln!("{refused}");
        }
        self.count(queue);
    }
}

impl Talks {
    fn count(&self, queue: QueueType) {
        if queue == QueueType::Receive && self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Without a listener the measurement is over.
            let _ = self.over.send(());
        }
    }
}

/// Messages a second of so many transfer machines, spread over so many shards. Each sends so many to itself,
/// some at a time.
///
/// # Errors
/// What the layer refused.
pub fn messages_per_second(shards: u32, tms: u32, messages_each: u64) -> anyhow::Result<f64> {
    let (_lnet, transport) = loopback(shards, tms, tms * 64)?;
    let domain = Domain::new(&transport)?;
    let (over, all) = mpsc::sync_channel(tms as usize);
    let mut machines = Vec::new();
    for tmid in 1..=tms {
        let [unsent, missing] = [(); 2].map(|()| AtomicU64::new(messages_each));
        let talks = Arc::new(Talks { unsent, missing, over: over.clone() });
        let tm = start(&domain, Arc::clone(&talks) as Arc<dyn Handler>, &address(tmid))?;
        for _ in 0..RECEIVE_BUFFERS {
            Talks::receive(&tm, domain.allocate(1, BUFFER_BYTES * MESSAGES_EACH as usize)?)?;
        }
        machines.push((tm, talks));
    }
    let begun = Instant::now();
    for (tm, talks) in &machines {
        for _ in 0..UNDERWAY {
            talks.send(tm, domain.allocate(1, BUFFER_BYTES)?)?;
        }
    }
    for _ in 0..tms {
        all.recv_timeout(6 * PATIENCE).context("a message has not come")?;
    }
    Ok(messages_each as f64 * f64::from(tms) / begun.elapsed().as_secs_f64())
}

/// Which transport pools are measured over.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    /// Within the process.
    Mem,
    /// The loopback of an LNet node.
    Loopback,
}

/// Buffers a second that a transfer machine takes from a pool for its receive queue, in one pass of so many.
///
/// # Errors
/// What the layer refused.
pub fn provisions_per_second(over: Over, buffers: u32) -> anyhow::Result<f64> {
    let (lnet, transport, address) = match over {
        Over::Mem => (None, MemTransport::default().shared(), "127.0.0.1:1".to_owned()),
        Over::Loopback => {
            let slots = 2 * buffers + 64;
            let limits = Limits {
                match_entries: (buffers + 64).next_power_of_two(),
                memory_descs: (buffers + 64).next_power_of_two(),
                events: (2 * slots).next_power_of_two(),
                ..Limits::DEFAULT
            };
            let config = NodeConfig::loopback().limits(limits).policies(vec![(PORTAL, portal_policy())]);
            let lnet = Lnet::start(&config)?;
            lnet.open()?;
            let transport = LnetTransport::with_event_slots(&lnet, slots).shared();
            (Some(lnet), transport, format!("0@lo:12345:{PORTAL}:1"))
        }
    };
    let domain = Domain::new(&transport)?;
    let spec = PoolSpec { threshold: 0, segments: 1, segment_bytes: BUFFER_BYTES, colours: 1 };
    let pool = Pool::new(&domain, spec, Arc::new(Reprovision))?;
    let made = pool.lock().provision(buffers as usize);
    ensure!(made == buffers as usize, "{made} of {buffers} buffers could be made");
    let (told, _ends) = mpsc::sync_channel(1);
    let tm = TransferMachine::new(&domain, Arc::new(Ends(told)))?;
    let attachment = Attachment { pool, min_receive_bytes: 1, max_messages: 1, callback: None };
    tm.attach_pool(attachment, 2)?;
    let tm = Started::new(tm, &address)?;
    let begun = Instant::now();
    tm.set_receive_queue_length(buffers as usize)?;
    let elapsed = begun.elapsed();
    let queued = tm.queue_length(QueueType::Receive);
    ensure!(queued == buffers as usize, "{queued} of {buffers} buffers were taken");
    drop((tm, lnet));
    Ok(f64::from(buffers - 2) / elapsed.as_secs_f64())
}

/// Bytes of a buffer and number of buffers whose locality is measured: together they are more than what a
/// cache has.
const LOCAL_BYTES: usize = 1 << 18;
const LOCAL_BUFFERS: usize = 256;
const COLOUR: usize = 0;

/// Gives buffers back to their pool, with a colour or without, and tells of what has ended.
struct Returns {
    ends: Ends,
    colour: Option<usize>,
}

impl Handler for Returns {
    fn buffer_event(&self, _: &TransferMachine, event: BufferEvent) {
        let (queue, status) = (event.queue(), event.status);
        // All buffers are the pool's, and the pool knows the colour.
        let _ = event.into_buffer().map(|buffer| buffer.put_back(self.colour));
        if status.is_ok() {
            // Without a listener the measurement is over.
            let _ = self.ends.0.send(queue);
        }
    }
}

/// Hands buffers back that were sent.
struct Sent(mpsc::SyncSender<Buffer>);

impl Handler for Sent {
    fn buffer_event(&self, _: &TransferMachine, event: BufferEvent) {
        if let Some(buffer) = event.into_buffer() {
            let _ = self.0.send(buffer);
        }
    }
}

/// Long messages a second into the buffers of a pool, over mem. By their colour those come back first that
/// were used last and are in the cache still; without a colour each is used in its turn.
///
/// # Errors
/// What the layer refused.
pub fn pooled_messages_per_second(is_coloured: bool, messages: u32) -> anyhow::Result<f64> {
    let transport = MemTransport::default().shared();
    let (domain, from_domain) = (Domain::new(&transport)?, Domain::new(&transport)?);
    let spec = PoolSpec { threshold: 0, segments: 1, segment_bytes: LOCAL_BYTES, colours: COLOUR + 1 };
    let pool = Pool::new(&domain, spec, Arc::new(Reprovision))?;
    let made = pool.lock().provision(LOCAL_BUFFERS);
    ensure!(made == LOCAL_BUFFERS, "{made} of {LOCAL_BUFFERS} buffers could be made");
    let (told, ends) = mpsc::sync_channel(64);
    let colour = is_coloured.then_some(COLOUR);
    let tm = TransferMachine::new(&domain, Arc::new(Returns { ends: Ends(told), colour }))?;
    tm.attach_pool(Attachment { pool, min_receive_bytes: 1, max_messages: 1, callback: None }, 2)?;
    tm.set_colour(colour)?;
    let _tm = Started::new(tm, "127.0.0.1:1")?;
    let (back, sent) = mpsc::sync_channel(1);
    let from = start(&from_domain, Arc::new(Sent(back)), "127.0.0.1:2")?;
    let to = from.create_end_point("127.0.0.1:1")?;
    let mut message = from_domain.allocate(1, LOCAL_BYTES)?;
    let begun = Instant::now();
    for _ in 0..messages {
        from.add(message, Operation::Send { to: to.clone(), length_bytes: LOCAL_BYTES as u64 })?;
        ends.recv_timeout(PATIENCE).context("a message has not come")?;
        message = sent.recv_timeout(PATIENCE).context("a message has not ended")?;
    }
    Ok(f64::from(messages) / begun.elapsed().as_secs_f64())
}

/// An entry of the ring here: as many bytes as an event of a transfer machine has at most.
type RingEvent = [u64; 10];
/// Events that may wait in the ring.
const RING_SLOTS: usize = 1 << 12;

/// Waits for another thread: where that has a CPU of its own, a moment is enough. A look takes the other
/// thread's line of cache from it, and what comes meanwhile comes at once.
fn pause(turns: &mut u32) {
    const SPINS: u32 = 1 << 6;
    const TURNS: u32 = 1 << 4;
    *turns += 1;
    if turns.is_multiple_of(TURNS) {
        std::thread::yield_now();
    } else {
        (0..SPINS).for_each(|_| std::hint::spin_loop());
    }
}

/// Events that go from one thread to another through an event ring, so many of them, in a second.
pub fn events_through_ring_per_second(count: u64) -> anyhow::Result<f64> {
    let (mut producer, mut consumer) = lnet_messaging::ring::ring::<RingEvent>();
    consumer.reserve(RING_SLOTS).map_err(|_| anyhow::anyhow!("no room for {RING_SLOTS} events"))?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut turns = 0;
            for number in 0..count {
                let mut event = std::hint::black_box([number; 10]);
                while let Err(refused) = producer.push(event) {
                    event = refused;
                    pause(&mut turns);
                }
            }
        });
        let (mut turns, mut expected) = (0, 0);
        while expected < count {
            match consumer.pop() {
                Some(event) => {
                    ensure!(event[9] == expected, "event {} in the place of {expected}", event[9]);
                    expected += 1;
                }
                None => pause(&mut turns),
            }
        }
        Ok(())
    })?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_among_many_buffers_and_pools_provide() {
        assert!(message_ns(3, 5, 3, 20).unwrap() > 0.0);
        assert!(put_ns(3, 20).unwrap() > 0.0);
        for shards in [1, 2] {
            let [add, end] = add_and_end_ns(shards, 3, 5, 20).unwrap();
            assert!(add > 0.0 && end > 0.0, "{shards}");
            assert!(messages_per_second(shards, 3, 1000).unwrap() > 0.0, "{shards}");
        }
        assert!(events_through_ring_per_second(100_000).unwrap() > 0.0);
        for over in [Over::Mem, Over::Loopback] {
            assert!(provisions_per_second(over, 100).unwrap() > 0.0, "{over:?}");
        }
        for is_coloured in [true, false] {
            assert!(pooled_messages_per_second(is_coloured, 300).unwrap() > 0.0, "{is_coloured}");
        }
    }
}
