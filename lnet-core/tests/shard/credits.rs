//! Credits, wait queues and deadlines against a naive model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Status, TxId, Uplink};
use lnet_core::md::{MdSpec, Unlinked};
use lnet_core::shard::SubmitError;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_core::{Limits, ShardConfig};
use proptest::prelude::*;

use crate::common::{MESSAGE_TIMEOUT, NI, Node, config, local_ni, nid, put_request};

const NI_CREDITS: u32 = 4;
const PEER_CREDITS: u32 = 2;
const REQUESTS: usize = 12;
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
enum Operation {
    Put { peer: u8 },
    Transmit,
    Sent { which: usize, well: bool },
    Unlink { which: usize },
    Advance { seconds: u64 },
    Timeout,
}

#[derive(Clone, Copy)]
struct ModelMessage {
    peer: u8,
    deadline: Instant,
    aborted: bool,
    /// When it got its NI's credit.
    credited: Instant,
    /// Whether another one has that credit.
    has_passed_on: bool,
}

/// What holds credits, and whose turn is next. Messages are named by their numbers.
struct Model {
    now: Instant,
    messages: Vec<ModelMessage>,
    ni_free: u32,
    ni_waiters: VecDeque<usize>,
    /// When credits are passed on, while messages wait.
    look_at: Instant,
    peers: BTreeMap<u8, (u32, VecDeque<usize>)>,
    ready: VecDeque<usize>,
    /// Ends that are to be dealt with: the message, its status, whether it holds a credit of its peer and
    /// one of the NI.
    ending: VecDeque<(usize, Status, bool, bool)>,
    ended: Vec<(u64, Status)>,
}

impl Model {
    fn put(&mut self, peer: u8) {
        let number = self.messages.len();
        self.messages.push(ModelMessage {
            peer,
            deadline: self.now + MESSAGE_TIMEOUT,
            aborted: false,
            credited: Instant(0),
            has_passed_on: false,
        });
        let (free, waiters) = self.peers.entry(peer).or_insert((PEER_CREDITS, VecDeque::new()));
        if *free == 0 {
            waiters.push_back(number);
        } else {
            *free -= 1;
            self.take_ni(number);
        }
    }

    fn take_ni(&mut self, number: usize) {
        if self.ni_free == 0 {
            if self.ni_waiters.is_empty() {
                self.look_at = self.look_at.max(self.now);
            }
            self.ni_waiters.push_back(number);
        } else {
            self.ni_free -= 1;
            self.credited(number);
        }
    }

    fn credited(&mut self, number: usize) {
        self.messages[number].credited = self.now;
        self.ready.push_back(number);
    }

    /// The credit of an NI has come home.
    fn give_back(&mut self) {
        match self.ni_waiters.pop_front() {
            None => self.ni_free += 1,
            Some(next) => match self.refusal(next) {
                None => self.credited(next),
                Some(cause) => self.ending.push_back((next, Status::NeverSent(cause), true, true)),
            },
        }
    }

    /// Messages that were sent for long pass on their credits.
    fn pass_on(&mut self, sent: &[usize]) {
        if self.ni_waiters.is_empty() || self.look_at > self.now {
            return;
        }
        self.look_at = self.now + LOOK_INTERVAL;
        let mut waiting_count = self.ni_waiters.len();
        for &number in sent {
            let message = &mut self.messages[number];
            let is_long = self.now - message.credited >= Duration::from_secs(1);
            if is_long && !message.has_passed_on && waiting_count > 0 {
                waiting_count -= 1;
                message.has_passed_on = true;
                self.give_back();
            }
        }
        self.settle();
    }

    fn refusal(&self, number: usize) -> Option<Cause> {
        let message = self.messages[number];
        if message.aborted {
            return Some(Cause::Cancelled);
        }
        (self.now >= message.deadline).then_some(Cause::CreditTimeout)
    }

    fn end(&mut self, number: usize, status: Status, peer_held: bool, ni_held: bool) {
        self.ending.push_back((number, status, peer_held, ni_held));
        self.settle();
    }

    fn settle(&mut self) {
        while let Some((number, status, peer_held, ni_held)) = self.ending.pop_front() {
            let ModelMessage { peer, aborted, .. } = self.messages[number];
            let status =
                if aborted && status == Status::Ok { Status::Unknown(Cause::Timeout) } else { status };
            self.ended.push((number as u64, status));
            if ni_held {
                self.give_back();
            }
            if peer_held {
                let (free, waiters) = self.peers.get_mut(&peer).unwrap();
                match waiters.pop_front() {
                    None => *free += 1,
                    Some(next) => match self.refusal(next) {
                        None => self.take_ni(next),
                        Some(cause) => self.ending.push_back((next, Status::NeverSent(cause), true, false)),
                    },
                }
            }
        }
    }

    fn timeout(&mut self) {
        for number in 0..self.messages.len() {
            let ModelMessage { peer, deadline, .. } = self.messages[number];
            if self.now < deadline {
                continue;
            }
            let waiters = &mut self.peers.get_mut(&peer).unwrap().1;
            if let Some(at) = waiters.iter().position(|&waiter| waiter == number) {
                waiters.remove(at);
                self.end(number, Status::NeverSent(Cause::CreditTimeout), false, false);
            } else if let Some(at) = self.ni_waiters.iter().position(|&waiter| waiter == number) {
                self.ni_waiters.remove(at);
                self.end(number, Status::NeverSent(Cause::CreditTimeout), true, false);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.peers.values().flat_map(|(_, waiters)| waiters).chain(&self.ni_waiters);
        let deadlines = waiting.map(|&number| self.messages[number].deadline);
        deadlines.chain((!self.ni_waiters.is_empty()).then_some(self.look_at)).min()
    }
}

struct Run {
    node: Node,
    model: Model,
    mds: Vec<MdHandle>,
    flying: Vec<(usize, TxId)>,
}

impl Run {
    fn new() -> Self {
        let topology = Arc::new(Topology::new(vec![local_ni(nid(1, 1), NI_CREDITS, PEER_CREDITS)]));
        let limits = Limits { requests: REQUESTS as u32, ..config().limits };
        Self {
            node: Node::new(ShardConfig { topology, limits, ..config() }),
            model: Model {
                now: Instant(0),
                messages: Vec::new(),
                ni_free: NI_CREDITS,
                ni_waiters: VecDeque::new(),
                look_at: Instant(0),
                peers: BTreeMap::new(),
                ready: VecDeque::new(),
                ending: VecDeque::new(),
                ended: Vec::new(),
            },
            mds: Vec::new(),
            flying: Vec::new(),
        }
    }

    fn put(&mut self, peer: u8) {
        let user_ptr = self.mds.len() as u64;
        let md = self.node.shard.bind(&MdSpec { user_ptr, ..self.node.md(1) }).unwrap();
        let result = self.node.shard.put(self.model.now, &put_request(md, peer));
        if self.model.messages.len() - self.model.ended.len() == REQUESTS {
            assert_eq!(result, Err(SubmitError::RequestsFull));
            self.node.shard.unlink(md).unwrap();
            self.node.event();
        } else {
            assert_eq!(result, Ok(()));
            self.mds.push(md);
            self.model.put(peer);
        }
    }

    fn transmit(&mut self) {
        let transmit = self.node.transmit();
        let expected = self.model.ready.pop_front();
        let sent = transmit.and_then(|transmit| transmit.payload).and_then(|span| span.buffer.md());
        assert_eq!(sent, expected.map(|number| self.mds[number]), "another message's turn");
        if let (Some(transmit), Some(number)) = (transmit, expected) {
            self.flying.push((number, transmit.tx));
        }
    }

    fn sent(&mut self, which: usize, well: bool) {
        let (number, tx) = self.flying.swap_remove(which);
        let status = if well { Status::Ok } else { Status::Unknown(Cause::Device) };
        let has_ni_credit = !self.model.messages[number].has_passed_on;
        self.model.end(number, status, true, has_ni_credit);
        self.node.shard.sent(self.model.now, tx, status);
    }

    fn unlink(&mut self, number: usize) {
        let ended = self.model.ended.iter().any(|&(other, _)| other == number as u64);
        let message = &mut self.model.messages[number];
        let expected = if ended || message.aborted { Err(self.mds[number]) } else { Ok(Unlinked::Pending) };
        assert_eq!(self.node.shard.unlink(self.mds[number]), expected);
        message.aborted = true;
    }

    fn run(&mut self, operation: &Operation) {
        let seen = self.model.ended.len();
        match *operation {
            Operation::Put { peer } => self.put(peer),
            Operation::Transmit => self.transmit(),
            Operation::Sent { which, well } if !self.flying.is_empty() => {
                self.sent(which % self.flying.len(), well);
            }
            Operation::Unlink { which } if !self.mds.is_empty() => {
                self.unlink(which % self.mds.len());
            }
            Operation::Sent { .. } | Operation::Unlink { .. } => {}
            Operation::Advance { seconds } => {
                self.model.now = self.model.now + Duration::from_secs(seconds);
            }
            Operation::Timeout => {
                self.model.timeout();
                let mut sent = self.flying.clone();
                sent.sort_by_key(|&(_, tx)| tx);
                self.model.pass_on(&sent.iter().map(|&(number, _)| number).collect::<Vec<_>>());
                self.node.shard.handle_timeout(self.model.now);
            }
        }
        let ended: Vec<_> =
            self.node.events().iter().map(|event| (event.user_ptr(), event.status())).collect();
        assert_eq!(ended, self.model.ended[seen..]);
        let passed_on =
            self.flying.iter().filter(|&&(number, _)| self.model.messages[number].has_passed_on).count();
        let without = self.model.ni_waiters.len() + passed_on;
        let available = i64::from(self.model.ni_free) - without as i64;
        assert_eq!(self.node.shard.ni_credits(NI), Some(available));
        for (&peer, (free, waiters)) in &self.model.peers {
            let available = i64::from(*free) - waiters.len() as i64;
            assert_eq!(self.node.shard.peer_credits(&nid(1, peer)), Some(available));
        }
        assert_eq!(self.node.shard.poll_timeout(), self.model.next_deadline());
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (2_u8..5).prop_map(|peer| Operation::Put { peer }),
        5 => Just(Operation::Transmit),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Operation::Sent { which, well }),
        1 => any::<usize>().prop_map(|which| Operation::Unlink { which }),
        2 => (0_u64..30).prop_map(|seconds| Operation::Advance { seconds }),
        1 => Just(Operation::Timeout),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn credits_go_as_in_the_model(operations in proptest::collection::vec(operations(), 1..150)) {
        let mut run = Run::new();
        for operation in &operations {
            run.run(operation);
        }
        while run.model.ended.len() < run.model.messages.len() {
            run.run(&Operation::Transmit);
            run.run(&Operation::Sent { which: 0, well: true });
        }
        prop_assert_eq!(run.node.shard.ni_credits(NI), Some(i64::from(NI_CREDITS)));
        prop_assert_eq!(run.node.shard.usage().memory_descs, 0);
    }
}

/// Peers that take nothing have all credits of an NI: after a second a friend's messages go on, one after
/// the other.
#[test]
fn who_takes_nothing_stops_nobody_else() {
    let Run { mut node, .. } = Run::new();
    let put = |node: &mut Node, now, peer| {
        let md = node.shard.bind(&node.md(1)).unwrap();
        node.shard.put(now, &put_request(md, peer)).unwrap();
    };
    let silent = [10, 10, 11, 11].map(|peer| {
        put(&mut node, Instant(0), peer);
        node.transmit().unwrap().tx
    });
    let friend = 2;
    put(&mut node, Instant(0), friend);
    let early = Instant(0) + Duration::from_millis(999);
    assert_eq!(node.shard.poll_timeout(), Some(Instant(0)), "has one had a credit for long?");
    node.shard.handle_timeout(early);
    assert!(node.transmit().is_none(), "a message may take a second");
    let later = early + LOOK_INTERVAL;
    assert_eq!(node.shard.poll_timeout(), Some(later));
    node.shard.handle_timeout(later);
    for _ in 0..5 {
        let sent = node.transmit().expect("the friend's turn");
        assert_eq!(sent.header.destination.nid, nid(1, friend));
        node.shard.sent(later, sent.tx, Status::Ok);
        put(&mut node, later, friend);
    }
    assert_eq!(node.shard.counters().credits_passed_on, 1);
    let last = node.transmit().expect("the friend's turn").tx;
    for tx in silent.into_iter().chain([last]) {
        node.shard.sent(later, tx, Status::Ok);
    }
    assert_eq!(node.shard.ni_credits(NI), Some(i64::from(NI_CREDITS)), "all are home");
}
