//! What the tcp LNDs of a node's shards give each other: messages for peers of other shards, the ends of
//! these, and connections.
//!
//! Invariants: each message is answered by its end, once; a queue that is full delays, and loses nothing.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{Cause, Full, Status, Transmit, TxId, Uplink};
use lnet_core::time::Instant;
use lnet_io::mailbox::{Mailbox, Sender, Unsent};
use lnet_io::memory::Memory;
use lnet_io::reactor::Waker;
use lnet_io::reactor::tcp::StreamId;
use lnet_tcp_proto::{ConnId, HandedOver};

use super::transmit::{LEND_BYTES_MIN, Payload};
use super::{ConnectionStream, TcpLnd};

/// Letters that wait for one shard at most.
const QUEUE_MAX: usize = 256;

/// What one shard sends another.
enum Letter {
    /// A message for a peer of the receiver's.
    Message { from: u8, transmit: Transmit, payload: Option<Payload> },
    /// The end of a message that the receiver has sent here.
    Ended { tx: TxId, status: Status },
    /// A connection with a peer of the receiver's, with what has arrived on it.
    Connection { socket: OwnedFd, handed: HandedOver, arrived: Vec<u8> },
}

/// A message of another shard.
struct Foreign {
    from: u8,
    tx: TxId,
    payload: Option<Payload>,
}

/// One shard's part of the exchange.
pub(super) struct Exchange {
    shard: u8,
    letters: Mailbox<Letter>,
    /// Senders to the shards, by shard.
    to: Vec<Sender<Letter>>,
    /// Messages whose payload is still to be got at.
    submitted: VecDeque<(ShardId, Transmit)>,
    /// Letters for which there was no room.
    undelivered: VecDeque<(u8, Letter)>,
    foreign: Vec<Option<Foreign>>,
    free: Vec<u32>,
    /// Names of foreign messages begin here.
    first_foreign: u32,
    /// Connections that are being detached, and what has arrived on them.
    leaving: HashMap<StreamId, (ShardId, HandedOver, Vec<u8>)>,
}

impl Exchange {
    /// The ends of all shards, whose own messages are named from 0 to `own_max`.
    pub(super) fn all(wakers: &[Waker], own_max: u32) -> Vec<Self> {
        let (to, mailboxes): (Vec<_>, Vec<_>) =
            wakers.iter().map(|waker| Mailbox::new(QUEUE_MAX, waker)).unzip();
        let make = |(shard, letters): (usize, Mailbox<Letter>)| Self {
            shard: shard as u8,
            letters,
            to: to.clone(),
            submitted: VecDeque::new(),
            undelivered: VecDeque::new(),
            foreign: Vec::new(),
            free: Vec::new(),
            first_foreign: own_max,
            leaving: HashMap::new(),
        };
        mailboxes.into_iter().enumerate().map(make).collect()
    }

    /// Takes a message for a peer of another shard.
    pub(super) fn submit(&mut self, home: ShardId, transmit: &Transmit) {
        self.submitted.push_back((home, *transmit));
    }

    pub(super) fn has_work(&self) -> bool {
        !self.submitted.is_empty() || self.has_arrivals()
    }

    pub(super) fn has_arrivals(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Whether it waits for room in a sibling's queue, of which nothing tells.
    pub(super) fn is_blocked(&self) -> bool {
        !self.undelivered.is_empty() || !self.submitted.is_empty()
    }

    fn post(&mut self, to: u8, letter: Letter) {
        self.undelivered.push_back((to, letter));
    }

    /// Delivers what there is room for, in order.
    fn deliver(&mut self) {
        for _ in 0..self.undelivered.len() {
            let Some((to, letter)) = self.undelivered.pop_front() else { return };
            let sender = &self.to[usize::from(to)];
            match sender.send(letter) {
                Ok(()) => {
                    sender.wake();
                }
                Err(Unsent::Full(letter)) => self.undelivered.push_back((to, letter)),
                // The shard has ended, and its messages with it.
                Err(Unsent::Gone(_)) => {}
            }
        }
    }

    /// Names a message of another shard.
    fn adopt(&mut self, foreign: Foreign) -> TxId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.foreign.push(None);
            self.foreign.len() as u32 - 1
        });
        self.foreign[slot as usize] = Some(foreign);
        TxId(self.first_foreign + slot)
    }

    /// The payload of a message of another shard.
    pub(super) fn payload(&mut self, tx: TxId) -> Option<Payload> {
        let slot = tx.0.checked_sub(self.first_foreign)?;
        self.foreign[slot as usize].as_mut()?.payload.take()
    }

    /// Tells the shard of a message that it has ended; false if it is this shard's own.
    pub(super) fn end(&mut self, tx: TxId, status: Status) -> bool {
        let Some(slot) = tx.0.checked_sub(self.first_foreign) else { return false };
        if let Some(Foreign { from, tx, .. }) = self.foreign[slot as usize].take() {
            self.free.push(slot);
            self.post(from, Letter::Ended { tx, status });
        }
        true
    }

    /// A connection begins to go to another shard.
    pub(super) fn detach(&mut self, stream: StreamId, to: ShardId, handed: HandedOver, arrived: Vec<u8>) {
        self.leaving.insert(stream, (to, handed, arrived));
    }

    /// Whether bytes of a connection that goes to another shard were noted.
    pub(super) fn arrived(&mut self, stream: StreamId, bytes: &[u8]) {
        if let Some((_, _, arrived)) = self.leaving.get_mut(&stream) {
            arrived.extend_from_slice(bytes);
        }
    }

    /// A connection can go.
    pub(super) fn detached(&mut self, stream: StreamId, socket: OwnedFd) {
        if let Some((to, handed, arrived)) = self.leaving.remove(&stream) {
            self.post(to.0, Letter::Connection { socket, handed, arrived });
        }
    }
}

impl TcpLnd {
    /// Sends siblings what is for them.
    pub(super) fn send_letters(&mut self, memory: &mut Memory) {
        for _ in 0..self.exchange.submitted.len() {
            let Some((home, transmit)) = self.exchange.submitted.pop_front() else { break };
            let payload = match transmit.payload {
                None => Some(None),
                Some(span) if span.length_bytes < LEND_BYTES_MIN => Payload::copy(memory, &span).map(Some),
                Some(span) => match memory.lend_to_device(&span) {
                    Some(lease) => Some(Some(Payload::Lease(lease))),
                    None => Payload::copy(memory, &span).map(Some),
                },
            };
            match payload {
                Some(payload) => {
                    let from = self.exchange.shard;
                    self.exchange.post(home.0, Letter::Message { from, transmit, payload });
                }
                // The descriptor is being written to at this moment.
                None => self.exchange.submitted.push_back((home, transmit)),
            }
        }
        self.exchange.deliver();
    }

    /// Takes what siblings have sent; how many letters.
    pub(super) fn take_letters(&mut self, now: Instant, up: &mut impl Uplink, memory: &mut Memory) -> u32 {
        let mut count = 0;
        while count < QUEUE_MAX as u32
            && let Some(letter) = self.exchange.letters.take()
        {
            count += 1;
            match letter {
                Letter::Message { from, transmit, payload } => {
                    let tx = self.exchange.adopt(Foreign { from, tx: transmit.tx, payload });
                    if let Err(Full(tx)) = self.sock.submit(now, &Transmit { tx, ..transmit }) {
                        self.exchange.end(tx, Status::NeverSent(Cause::Device));
                    }
                }
                Letter::Ended { tx, status } => up.sent(now, tx, status),
                Letter::Connection { socket, handed, arrived } => {
                    self.adopt(now, socket, &handed, &arrived, up, memory);
                }
            }
        }
        count
    }

    /// Gives a connection to the shard that its peer belongs to.
    pub(super) fn hand_over(&mut self, conn: ConnId, to: ShardId, handed: HandedOver) {
        let link = self.unlink(conn);
        let Some(stream) = link.stream else { return };
        let mut arrived = Vec::new();
        for (bytes, used) in &link.pending {
            arrived.extend_from_slice(&self.streams.bytes(bytes)[*used..]);
        }
        self.drop_pending(link);
        self.exchange.detach(stream, to, handed, arrived);
        self.streams.detach(stream);
    }

    fn adopt(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        handed: &HandedOver,
        arrived: &[u8],
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        let Ok(stream) = self.streams.adopt(socket) else { return };
        let Some(conn) = self.sock.adopt(now, handed, up) else { return self.streams.close(stream) };
        // The connections that it has replaced end.
        self.act(now, up);
        let mut link = ConnectionStream::new(Some(stream), None);
        link.early.extend(arrived);
        self.early_bytes += arrived.len();
        self.link(conn, link);
        self.feed(now, stream, up, memory);
    }
}
