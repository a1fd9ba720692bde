//! The client of tests: so many exchanges at the same time, until there were enough.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lnet_messaging::{Added, Addition, Buffer, BufferEvent, BufferId, EndPoint, Errno, Operation, QueueType};

use crate::options::{Kind, Test};
use crate::place::{Place, Station};
use crate::report::Counts;
use crate::wire::{self, Exchange, HEADER_BYTES, Message};

/// How often the client looks for exchanges that are lost.
const LOOK: Duration = Duration::from_millis(20);

/// The state of a test that others may see while it goes on, and the order to end it.
#[derive(Default)]
pub(crate) struct Watch {
    ended: AtomicU64,
    stops: AtomicBool,
}

impl Watch {
    /// Exchanges that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// No more exchanges begin.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// Tests these servers, one behind the other, and returns what came of it.
pub(crate) fn run(place: &Place, servers: &[String], test: &Test, watch: &Watch) -> Result<Counts> {
    let mut counts = Counts::new();
    for server in servers {
        if test.kind == Kind::Stub || watch.stops.load(Ordering::Relaxed) {
            break;
        }
        let mut station = Station::start(place)?;
        let of_this = exchange(&mut station, server, test, watch);
        // Whatever came of it, the address is free for the next test.
        let stopped = station.stop();
        counts.merge(&of_this?);
        stopped?;
    }
    Ok(counts)
}

fn exchange(station: &mut Station, server: &str, test: &Test, watch: &Watch) -> Result<Counts> {
    let to = station.tm.create_end_point(server)?;
    let before = watch.ended();
    let mut client = Client::new(station, to, test, watch)?;
    client.prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut had_ended = 0;
    let await_ends = |client: &mut Client<'_>| {
        client.send_descriptors()?;
        let next = client.station.next();
        if let Ok(event) = runtime.block_on(async { tokio::time::timeout(LOOK, next).await }) {
            client.handle(event?)?;
        }
        client.look();
        let ended = client.counts.tally.ended();
        watch.ended.store(before + ended, Ordering::Relaxed);
        Ok(ended - std::mem::replace(&mut had_ended, ended))
    };
    let goes_on = |client: &Client<'_>, _| anyhow::Ok(client.wants_more());
    lnet_load::keep_full(&mut client, goes_on, |client, _| client.begin(), await_ends)?;
    Ok(client.counts)
}

/// An exchange that is under way.
struct Underway {
    begun: Instant,
    /// Buffers that are queued for it: 0 of a ping whose message has left.
    queued: Vec<BufferId>,
    /// The first thing that went wrong.
    failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Failed(Errno),
    Bad,
    Lost,
}

struct Client<'a> {
    station: &'a mut Station,
    to: EndPoint,
    test: &'a Test,
    watch: &'a Watch,
    counts: Counts,
    /// Exchanges begin until then.
    end: Option<Instant>,
    begun: u64,
    /// Exchanges under way, by the sequence number, which their buffers have as `user_data`.
    underway: HashMap<u64, Underway>,
    messages: Vec<Buffer>,
    /// Buffers to be read by the server, and to be written.
    bulk: Vec<[Buffer; 2]>,
    /// Bulk buffers of exchanges that are not over.
    halves: HashMap<u64, Buffer>,
    /// Bulk exchanges that the server is still to be told of, by their numbers.
    untold: VecDeque<(u64, Exchange)>,
    /// Exchanges that a message on its way tells of, by its buffer.
    told: HashMap<BufferId, Vec<u64>>,
}

impl<'a> Client<'a> {
    fn new(station: &'a mut Station, to: EndPoint, test: &'a Test, watch: &'a Watch) -> Result<Self> {
        let end = test.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        Ok(Self {
            station,
            to,
            test,
            watch,
            counts: Counts::new(),
            end,
            begun: 0,
            underway: HashMap::new(),
            messages: Vec::new(),
            bulk: Vec::new(),
            halves: HashMap::new(),
            untold: VecDeque::new(),
            told: HashMap::new(),
        })
    }

    fn prepare(&mut self) -> Result<()> {
        let size = self.test.size;
        let (message, what) = match self.test.kind {
            Kind::Ping | Kind::Stub => (size, "message"),
            Kind::Bulk => (self.test.descriptor_buffers.buffer_size, "bulk buffer"),
        };
        let refused = || format!("no {what} of {size} bytes");
        for _ in 0..self.test.messages() {
            let buffer = self.station.allocate(message);
            self.messages.push(buffer.with_context(|| format!("no message of {message} bytes"))?);
        }
        for _ in 0..self.test.concurrency {
            match self.test.kind {
                // One more for what comes late.
                Kind::Ping => {
                    for _ in 0..2 {
                        self.station.receive(self.station.allocate(size)?)?;
                    }
                }
                Kind::Stub => {}
                Kind::Bulk => {
                    let pair = [self.station.allocate(size), self.station.allocate(size)];
                    let [first, second] = pair;
                    self.bulk.push([first.with_context(refused)?, second.with_context(refused)?]);
                }
            }
        }
        Ok(())
    }

    fn wants_more(&self) -> bool {
        self.begun < self.test.count()
            && self.end.is_none_or(|end| Instant::now() < end)
            && !self.watch.stops.load(Ordering::Relaxed)
    }

    /// Begins an exchange, if there is to be one more, and its buffers are free.
    fn begin(&mut self) -> Result<bool> {
        let is_bulk = self.test.kind == Kind::Bulk;
        if !self.wants_more()
            || self.underway.len() >= self.test.concurrency as usize
            || (is_bulk && self.bulk.is_empty())
        {
            return Ok(false);
        }
        if is_bulk {
            self.begin_bulk()?;
            return Ok(true);
        }
        let Some(message) = self.messages.pop() else { return Ok(false) };
        self.begun += 1;
        self.begin_ping(message);
        Ok(true)
    }

    fn add(&self, buffer: Buffer, operation: Operation) -> Result<Added, (Buffer, Errno)> {
        let deadline = Instant::now() + self.test.timeout();
        let addition = Addition::from(operation).deadline(deadline);
        self.station.tm.add(buffer, addition).map_err(|refused| (refused.buffer, refused.error.errno()))
    }

    /// Sends the message of an exchange. One that is refused has failed.
    fn send(&mut self, mut message: Buffer, length_bytes: u64, mut underway: Underway) {
        let sequence = self.begun;
        message.user_data = sequence;
        match self.add(message, Operation::Send { to: self.to.clone(), length_bytes }) {
            Ok(added) => underway.queued.push(added.id),
            Err((message, errno)) => {
                self.messages.push(message);
                underway.failure = Some(Failure::Failed(errno));
                self.cancel(&underway);
            }
        }
        self.underway.insert(sequence, underway);
        self.settle(sequence);
    }

    fn begin_ping(&mut self, mut message: Buffer) {
        wire::fill(message.memory_mut(), self.begun);
        message.fill(&wire::ping_header(self.begun));
        let underway = Underway { begun: Instant::now(), queued: Vec::new(), failure: None };
        self.send(message, self.test.size, underway);
    }

    /// Queues the buffers of an exchange, of which the server is told with others.
    fn begin_bulk(&mut self) -> Result<()> {
        let Some([mut source, mut target]) = self.bulk.pop() else { return Ok(()) };
        self.begun += 1;
        let (sequence, length_bytes) = (self.begun, self.test.size);
        wire::fill(source.memory_mut(), sequence);
        (source.user_data, target.user_data) = (sequence, sequence);
        let begun = Instant::now();
        let refused = |(_, errno): (Buffer, Errno)| anyhow!("a passive buffer is refused: {errno}");
        let send = Operation::PassiveSend { initiator: None, length_bytes };
        let source = self.add(source, send).map_err(refused)?;
        let room = Operation::PassiveReceive { initiator: None };
        let target = self.add(target, room).map_err(refused)?;
        let queued = vec![source.id, target.id];
        let from = source.descriptor.context("a passive buffer has a descriptor")?;
        let to = target.descriptor.context("a passive buffer has a descriptor")?;
        self.untold.push_back((sequence, Exchange { length_bytes, from, to }));
        self.underway.insert(sequence, Underway { begun, queued, failure: None });
        Ok(())
    }

    /// Tells the server of exchanges, in as few messages as have room for their descriptors.
    fn send_descriptors(&mut self) -> Result<()> {
        let most = self.test.descriptor_buffers.descriptors as usize;
        while !self.messages.is_empty() && self.drop_ended() {
            let room = self.test.descriptor_buffers.buffer_size;
            let (mut bytes, mut count) = (wire::bulk_message(&[]).len() as u64, 0);
            for (_, exchange) in self.untold.iter().take(most) {
                bytes += exchange.encode().len() as u64;
                if bytes > room {
                    break;
                }
                count += 1;
            }
            if count == 0 {
                bail!(
                    "--buffer-size {room}: {bytes} at least is expected, for the descriptors of an exchange"
                );
            }
            let Some(mut message) = self.messages.pop() else { return Ok(()) };
            let (sequences, exchanges): (Vec<_>, Vec<_>) = self.untold.drain(..count).unzip();
            let bytes = wire::bulk_message(&exchanges);
            message.fill(&bytes);
            let send = Operation::Send { to: self.to.clone(), length_bytes: bytes.len() as u64 };
            match self.add(message, send) {
                Ok(added) => {
                    for sequence in &sequences {
                        if let Some(underway) = self.underway.get_mut(sequence) {
                            underway.queued.push(added.id);
                        }
                    }
                    self.told.insert(added.id, sequences);
                }
                Err((message, errno)) => {
                    self.messages.push(message);
                    sequences.into_iter().for_each(|sequence| self.fail(sequence, Failure::Failed(errno)));
                }
            }
        }
        Ok(())
    }

    /// Forgets exchanges at the front that have failed before the server was told of them; whether there are
    /// others.
    fn drop_ended(&mut self) -> bool {
        let is_open = |sequence: &u64| self.underway.get(sequence).is_some_and(|one| one.failure.is_none());
        self.untold.retain(|(sequence, _)| is_open(sequence));
        !self.untold.is_empty()
    }

    /// Ends an exchange for what has gone wrong first, once its buffers are back.
    fn fail(&mut self, sequence: u64, failure: Failure) {
        let Some(underway) = self.underway.get_mut(&sequence) else { return };
        underway.failure.get_or_insert(failure);
        for id in underway.queued.iter().filter(|id| !self.told.contains_key(id)) {
            self.station.tm.del(*id);
        }
        self.settle(sequence);
    }

    fn cancel(&self, underway: &Underway) {
        for id in &underway.queued {
            self.station.tm.del(*id);
        }
    }

    fn handle(&mut self, event: BufferEvent) -> Result<()> {
        if event.queue() == QueueType::Receive {
            return self.handle_reply(event);
        }
        let (id, status) = (event.id, event.status);
        let size = self.test.size;
        let is_bad = id.queue() == QueueType::PassiveReceive && status.is_ok() && {
            let sequence = event.buffer().map_or(0, |buffer| buffer.user_data);
            event.length_bytes != size || !wire::is_pattern(event.payload(), 0, sequence)
        };
        let Some(buffer) = event.into_buffer() else { return Ok(()) };
        let sequence = buffer.user_data;
        let sequences = match id.queue() {
            QueueType::Send => {
                self.messages.push(buffer);
                self.told.remove(&id).unwrap_or_else(|| vec![sequence])
            }
            _ => {
                match self.halves.remove(&sequence) {
                    Some(half) => self.bulk.push([half, buffer]),
                    None => drop(self.halves.insert(sequence, buffer)),
                }
                vec![sequence]
            }
        };
        let failure = match status {
            Ok(()) => is_bad.then_some(Failure::Bad),
            Err(Errno::TimedOut) => Some(Failure::Lost),
            Err(errno) => Some(Failure::Failed(errno)),
        };
        for sequence in sequences {
            let Some(underway) = self.underway.get_mut(&sequence) else { continue };
            underway.queued.retain(|queued| *queued != id);
            match failure {
                Some(failure) => self.fail(sequence, failure),
                None => self.settle(sequence),
            }
        }
        Ok(())
    }

    /// A ping has come back.
    fn handle_reply(&mut self, event: BufferEvent) -> Result<()> {
        let header: Vec<u8> = event.payload().flatten().take(HEADER_BYTES).copied().collect();
        if let Some(Message::Ping { sequence }) = Message::decode(&header)
            && let Some(underway) = self.underway.remove(&sequence)
        {
            let is_right = wire::is_pattern(event.payload(), HEADER_BYTES, sequence);
            if event.length_bytes == self.test.size && is_right {
                self.counts.succeed(underway.begun.elapsed());
            } else {
                self.counts.tally.bad += 1;
            }
        }
        match event.into_buffer() {
            Some(buffer) => self.station.receive(buffer),
            None => Ok(()),
        }
    }

    /// Counts an exchange that has ended. A ping ends with the reply, unless the message has failed.
    fn settle(&mut self, sequence: u64) {
        let Some(underway) = self.underway.get(&sequence) else { return };
        let is_open = self.test.kind == Kind::Ping && underway.failure.is_none();
        if !underway.queued.is_empty() || is_open {
            return;
        }
        match underway.failure {
            None => self.counts.succeed(underway.begun.elapsed()),
            Some(Failure::Failed(errno)) => self.counts.tally.fail(errno),
            Some(Failure::Bad) => self.counts.tally.bad += 1,
            Some(Failure::Lost) => self.counts.tally.lost += 1,
        }
        self.underway.remove(&sequence);
    }

    /// Gives up pings that did not come back. Bulk buffers have their deadlines.
    fn look(&mut self) {
        self.counts.look();
        if self.test.kind == Kind::Ping {
            let timeout = self.test.timeout();
            let before = self.underway.len();
            self.underway
                .retain(|_, underway| underway.begun.elapsed() < timeout || !underway.queued.is_empty());
            self.counts.tally.lost += (before - self.underway.len()) as u64;
        }
        debug_assert_eq!(self.counts.tally.ended() + self.underway.len() as u64, self.begun);
    }
}
