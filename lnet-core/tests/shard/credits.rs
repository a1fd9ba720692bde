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
    Put {
        peer: u8,
    },
    Transmit,
    Sent {
        which: usize,
        well: bool,
    },
    Unlink {
        which: usize,
    },
    Advance {
        seconds: u64,
    },
    Timeout,
    /// A snapshot with so many credits of the NI.
    Credits {
        total: u32,
    },
}

#[derive(Clone, Copy)]
struct ModelMessage {
    peer: u8,
    deadline: Instant,
    aborted: bool,
    /// Time at which the LND got it.
    lent: Instant,
    /// The standing in which that credit is held.
    credit_of: usize,
    /// Whether another one has that credit.
    has_passed_on: bool,
    /// Whether it was found to be in flight for long.
    is_stuck: bool,
}

/// How soon a peer takes messages: an index, the best first.
const PROMPT: usize = 0;
const UNKNOWN: usize = 1;
const SILENT: usize = 2;

struct ModelPeer {
    free: u32,
    /// Messages that wait for its credits, and those that have one and wait for the NI's.
    waiters: VecDeque<usize>,
    ni_waiters: VecDeque<usize>,
    standing: usize,
    stuck_count: u32,
}

impl Default for ModelPeer {
    fn default() -> Self {
        let (waiters, ni_waiters) = (VecDeque::new(), VecDeque::new());
        Self { free: PEER_CREDITS, waiters, ni_waiters, standing: UNKNOWN, stuck_count: 0 }
    }
}

/// What holds credits, and whose turn is next. Messages are named by their numbers.
struct Model {
    now: Instant,
    messages: Vec<ModelMessage>,
    ni_total: u32,
    ni_free: u32,
    /// Credits that were lent, or that there are no more.
    ni_lent: u32,
    ni_held: [u32; 3],
    /// Peers whose messages wait for the NI's credits, by standing, in their turns.
    turns: [VecDeque<u8>; 3],
    skipped: [u32; 3],
    /// When credits are passed on, while messages wait.
    look_at: Instant,
    peers: BTreeMap<u8, ModelPeer>,
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
            lent: Instant(0),
            credit_of: UNKNOWN,
            has_passed_on: false,
            is_stuck: false,
        });
        let known = self.peers.entry(peer).or_default();
        if known.free == 0 {
            known.waiters.push_back(number);
        } else {
            known.free -= 1;
            self.take_ni(number);
        }
    }

    fn ni_waiting_count(&self) -> usize {
        self.peers.values().map(|peer| peer.ni_waiters.len()).sum()
    }

    fn may_borrow(&self, standing: usize) -> bool {
        standing != SILENT && self.ni_held[..=standing].iter().sum::<u32>() < (self.ni_total / 4).max(1)
    }

    /// Takes a credit of the NI, which may be had.
    fn hold(&mut self, number: usize, standing: usize) {
        if self.ni_free == 0 {
            self.ni_lent += 1;
        } else {
            self.ni_free -= 1;
        }
        self.ni_held[standing] += 1;
        self.messages[number].credit_of = standing;
    }

    fn take_ni(&mut self, number: usize) {
        let peer = self.messages[number].peer;
        let known = &self.peers[&peer];
        let standing = known.standing;
        if known.ni_waiters.is_empty() && (self.ni_free > 0 || self.may_borrow(standing)) {
            self.hold(number, standing);
            self.credited(number);
            return;
        }
        if self.ni_waiting_count() == 0 {
            self.look_at = self.look_at.max(self.now);
        }
        let known = self.peers.get_mut(&peer).unwrap();
        if known.ni_waiters.is_empty() {
            self.turns[standing].push_back(peer);
        }
        known.ni_waiters.push_back(number);
    }

    fn credited(&mut self, number: usize) {
        self.ready.push_back(number);
    }

    /// The standing whose peers have the next turn, if there is a credit for one.
    fn next_standing(&mut self) -> Option<usize> {
        let waiting: Vec<usize> = (0..3).filter(|it| !self.turns[*it].is_empty()).collect();
        if self.ni_free == 0 {
            return waiting.into_iter().find(|standing| self.may_borrow(*standing));
        }
        let (&best, worse) = waiting.split_first()?;
        worse.iter().for_each(|standing| self.skipped[*standing] += 1);
        let next = worse.iter().copied().find(|standing| self.skipped[*standing] >= 4).unwrap_or(best);
        self.skipped[next] = 0;
        Some(next)
    }

    /// Serves those who wait.
    fn grant(&mut self) {
        while let Some(standing) = self.next_standing() {
            let peer = self.turns[standing].pop_front().unwrap();
            let known = self.peers.get_mut(&peer).unwrap();
            let next = known.ni_waiters.pop_front().unwrap();
            if !known.ni_waiters.is_empty() {
                self.turns[standing].push_back(peer);
            }
            self.hold(next, standing);
            match self.refusal(next) {
                None => self.credited(next),
                Some(cause) => self.ending.push_back((next, Status::NeverSent(cause), true, true)),
            }
        }
    }

    /// The credit of an NI has come home.
    fn give_back(&mut self, standing: usize) {
        self.ni_held[standing] -= 1;
        if self.ni_lent > 0 {
            self.ni_lent -= 1;
        } else {
            self.ni_free += 1;
        }
        self.grant();
    }

    fn set_total(&mut self, total: u32) {
        let taken = self.ni_total - self.ni_free + self.ni_lent;
        self.ni_free = total.saturating_sub(taken);
        self.ni_lent = taken.saturating_sub(total);
        self.ni_total = total;
        self.grant();
        self.settle();
    }

    fn restand(&mut self, peer: u8, standing: usize) {
        let known = self.peers.get_mut(&peer).unwrap();
        let former = std::mem::replace(&mut known.standing, standing);
        if former != standing && !known.ni_waiters.is_empty() {
            self.turns[former].retain(|other| *other != peer);
            self.turns[standing].push_back(peer);
        }
    }

    /// Messages that were sent for long pass on their credits.
    fn pass_on(&mut self, sent: &[usize]) {
        if self.ni_waiting_count() == 0 || self.look_at > self.now {
            return;
        }
        self.look_at = self.now + LOOK_INTERVAL;
        let is_long = |message: &ModelMessage| {
            !message.has_passed_on && self.now - message.lent >= Duration::from_secs(1)
        };
        let long: Vec<_> = sent.iter().copied().filter(|number| is_long(&self.messages[*number])).collect();
        for &number in &long {
            let message = &mut self.messages[number];
            self.ni_held[message.credit_of] -= 1;
            self.ni_held[SILENT] += 1;
            message.credit_of = SILENT;
            if !std::mem::replace(&mut message.is_stuck, true) {
                let peer = message.peer;
                self.peers.get_mut(&peer).unwrap().stuck_count += 1;
                self.restand(peer, SILENT);
            }
        }
        for number in long {
            if self.ni_waiting_count() > 0 || self.ni_lent > 0 {
                self.messages[number].has_passed_on = true;
                self.give_back(SILENT);
            }
        }
        self.grant();
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
            let ModelMessage { peer, aborted, lent, credit_of, is_stuck, .. } = self.messages[number];
            let known = self.peers.get_mut(&peer).unwrap();
            known.stuck_count -= u32::from(is_stuck);
            if status == Status::Ok {
                let is_prompt = known.stuck_count == 0 && self.now - lent <= LOOK_INTERVAL;
                self.restand(peer, if is_prompt { PROMPT } else { UNKNOWN });
                self.grant();
            }
            let status =
                if aborted && status == Status::Ok { Status::Unknown(Cause::Timeout) } else { status };
            self.ended.push((number as u64, status));
            if ni_held {
                self.give_back(credit_of);
            }
            if peer_held {
                let known = self.peers.get_mut(&peer).unwrap();
                match known.waiters.pop_front() {
                    None => known.free += 1,
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
            let known = self.peers.get_mut(&peer).unwrap();
            if let Some(at) = known.waiters.iter().position(|&waiter| waiter == number) {
                known.waiters.remove(at);
                self.end(number, Status::NeverSent(Cause::CreditTimeout), false, false);
            } else if let Some(at) = known.ni_waiters.iter().position(|&waiter| waiter == number) {
                known.ni_waiters.remove(at);
                if at == 0 {
                    let turns = &mut self.turns[known.standing];
                    turns.retain(|other| *other != peer);
                    turns.extend((!known.ni_waiters.is_empty()).then_some(peer));
                }
                self.end(number, Status::NeverSent(Cause::CreditTimeout), true, false);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.peers.values().flat_map(|peer| peer.waiters.iter().chain(&peer.ni_waiters));
        let deadlines = waiting.map(|&number| self.messages[number].deadline);
        deadlines.chain((self.ni_waiting_count() > 0).then_some(self.look_at)).min()
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
                ni_total: NI_CREDITS,
                ni_free: NI_CREDITS,
                ni_lent: 0,
                ni_held: [0; 3],
                turns: Default::default(),
                skipped: [0; 3],
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
        let transmit = self.node.transmit_at(self.model.now);
        let expected = self.model.ready.pop_front();
        let sent = transmit.and_then(|transmit| transmit.payload).and_then(|span| span.buffer.md());
        assert_eq!(sent, expected.map(|number| self.mds[number]), "another message's turn");
        if let (Some(transmit), Some(number)) = (transmit, expected) {
            self.model.messages[number].lent = self.model.now;
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
            Operation::Credits { total } => {
                self.model.set_total(total);
                let generation = self.node.shard.topology().generation() + 1;
                let topology = Topology::new(vec![local_ni(nid(1, 1), total, PEER_CREDITS)]);
                self.node.shard.update(self.model.now, Arc::new(topology.with_generation(generation)));
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
        let without = self.model.ni_waiting_count() + passed_on + self.model.ni_lent as usize;
        let available = i64::from(self.model.ni_free) - without as i64;
        assert_eq!(self.node.shard.ni_credits(NI), Some(available));
        for (&peer, known) in &self.model.peers {
            let available = i64::from(known.free) - known.waiters.len() as i64;
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
        1 => (PEER_CREDITS..3 * NI_CREDITS).prop_map(|total| Operation::Credits { total }),
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
        prop_assert_eq!(run.node.shard.ni_credits(NI), Some(i64::from(run.model.ni_total)));
        prop_assert_eq!(run.node.shard.usage().memory_descs, 0);
    }
}
