//! Credits, wait queues and deadlines against a naive model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Full, Status, TxId, Uplink};
use lnet_core::md::{MdSpec, Unlinked};
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, NiStatus, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Nid, ProcessId};
use proptest::prelude::*;

use crate::common::{MESSAGE_TIMEOUT, NI, Node, PID, config, local_ni, nid, put_request};

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
    /// When the LND got it.
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
    ni_free: u32,
    /// Credits that were lent.
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
        standing != SILENT && self.ni_held[..=standing].iter().sum::<u32>() < NI_CREDITS / 4
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
        self.node.shard.note_time(self.model.now);
        let transmit = self.node.transmit();
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

/// A shard whose NI has this many credits, 8 for each peer.
fn crowded(credits: u32, shard_count: u8) -> Node {
    let topology = Arc::new(Topology::new(vec![local_ni(nid(1, 1), credits, 8)]));
    let limits = Limits { requests: 1 << 13, memory_descs: 1 << 14, peers: 1 << 12, ..config().limits };
    Node::new(ShardConfig { topology, limits, shard_count, ..config() })
}

/// Sends `count` messages to a peer; the numbers of hosts go on in the next octet.
fn send(node: &mut Node, now: Instant, peer: u32, count: usize) {
    for _ in 0..count {
        let md = node.shard.bind(&MdSpec { event_queue: None, ..node.md(1) }).unwrap();
        let nid = Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(peer)).unwrap();
        let target = ProcessId { nid, pid: PID };
        node.shard.put(now, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    }
}

/// Takes all messages that may leave; the last octets of their destinations, and those to the friend end
/// well.
fn drain(node: &mut Node, now: Instant, friend: u32) -> (usize, usize) {
    let (mut of_friend, mut of_others) = (0, 0);
    while let Some(sent) = node.transmit() {
        if sent.header.destination.nid.to_small().unwrap() as u32 == 10 << 24 | friend {
            of_friend += 1;
            node.shard.sent(now, sent.tx, Status::Ok);
        } else {
            of_others += 1;
        }
    }
    (of_friend, of_others)
}

const FRIEND: u32 = 2;

/// A friend's messages leave at once from the first moment on, while many others have messages that they do
/// not take, with this share of the credits.
fn friends_messages_leave_at_once(credits: u32, shard_count: u8, silent_count: u32, each: usize) {
    let mut node = crowded(credits, shard_count);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
    (0..silent_count).for_each(|host| send(&mut node, now, 1_000 + host, each));
    drain(&mut node, now, FRIEND);
    for round in 0..100 {
        send(&mut node, now, FRIEND, 8);
        let (of_friend, _) = drain(&mut node, now, FRIEND);
        assert_eq!(of_friend, 8, "{silent_count} of {shard_count} shards, round {round}");
        now = now + Duration::from_millis(50);
        if node.shard.poll_timeout().is_some_and(|at| at <= now) {
            node.shard.handle_timeout(now);
        }
    }
    assert!(node.shard.counters().credits_passed_on > 0 || silent_count * each as u32 <= credits);
}

#[test]
fn who_answers_does_not_wait_for_who_does_not() {
    for (shard_count, silent_count, each) in [(1, 33, 8), (1, 700, 8), (2, 700, 8), (64, 40, 8), (1, 700, 1)]
    {
        friends_messages_leave_at_once(256, shard_count, silent_count, each);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn friends_do_not_wait_for_any_crowd(
        credits in 1_u32..300,
        shard_count in 1_u8..=64,
        silent_count in 32_u32..700,
        each in 1_usize..=8,
    ) {
        friends_messages_leave_at_once(credits, shard_count, silent_count, each);
    }
}

/// A message to a peer that nothing is known of yet goes at once where the silent have been found out. Before
/// that it has its turn after one message of each: with 700 of them and 256 credits in three times 1.25 s.
#[test]
fn who_is_new_waits_for_one_round_of_others_at_most() {
    for (shard_count, rounds) in [(1, 3), (2, 6)] {
        let mut node = crowded(256, shard_count);
        let mut now = Instant(0);
        (0..700).for_each(|host| send(&mut node, now, 1_000 + host, 8));
        send(&mut node, now, FRIEND, 1);
        let mut looks = 0;
        while drain(&mut node, now, FRIEND).0 == 0 {
            now = node.shard.poll_timeout().unwrap().max(now + Duration::from_millis(1));
            node.shard.handle_timeout(now);
            looks += 1;
            assert!(looks < 100);
        }
        let most = Duration::from_millis(1_250) * rounds;
        assert!(now - Instant(0) <= most, "{:?} with {shard_count} shards", now - Instant(0));
        // All have had a turn and a second; the next newcomers find them out.
        let end = now + Duration::from_secs(12);
        while now < end {
            drain(&mut node, now, FRIEND);
            now = now + LOOK_INTERVAL;
            node.shard.handle_timeout(now);
        }
        for newcomer in 3..9 {
            drain(&mut node, now, newcomer);
            send(&mut node, now, newcomer, 1);
            assert_eq!(drain(&mut node, now, newcomer).0, 1, "newcomer {newcomer}");
        }
    }
}

/// Newcomers that take nothing are lent credits again and again; those that the silent have go home.
#[test]
fn half_as_many_credits_as_there_are_is_lent_at_most() {
    let mut node = crowded(8, 1);
    let (mut now, mut sent) = (Instant(0), 0);
    (0..8).for_each(|host| send(&mut node, now, 1_000 + host, 1));
    for round in 0..30 {
        (0..2).for_each(|host| send(&mut node, now, 2_000 + 2 * round + host, 1));
        sent += drain(&mut node, now, FRIEND).1 as u64;
        node.shard.handle_timeout(now);
        sent += drain(&mut node, now, FRIEND).1 as u64;
        let with_credit = sent - node.shard.counters().credits_passed_on;
        assert!(with_credit <= 8 + 4, "{with_credit} credits are taken in round {round}");
        now = now + Duration::from_millis(1_100);
    }
    assert_eq!(sent, 8 + 2 * 30, "newcomers wait for none that is found out");
}

/// A device that has no room for long says nothing of the peers.
#[test]
fn peers_are_judged_by_what_an_lnd_has() {
    let mut node = crowded(4, 1);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
    send(&mut node, now, FRIEND, 4);
    send(&mut node, now, 1_000, 1);
    for _ in 0..8 {
        let tx = node.transmit().unwrap().tx;
        node.shard.give_back(Full(tx));
        now = now + LOOK_INTERVAL;
        node.shard.handle_timeout(now);
    }
    now = now + Duration::from_secs(2);
    node.shard.note_time(now);
    let sent: Vec<TxId> = std::iter::from_fn(|| node.transmit()).map(|sent| sent.tx).collect();
    assert_eq!(sent.len(), 4);
    now = now + LOOK_INTERVAL;
    node.shard.handle_timeout(now);
    assert_eq!(node.shard.counters().credits_passed_on, 0, "the LND has had them for 250 ms");
    sent.into_iter().for_each(|tx| node.shard.sent(now, tx, Status::Ok));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 1));
    // The peer is a friend still: its messages do not wait for those of others.
    (0..4).for_each(|host| send(&mut node, now, 2_000 + host, 1));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 3));
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
}

/// A peer that answers again is served as a friend again, and its messages leave in their order.
#[test]
fn who_answers_again_is_a_friend() {
    let mut node = crowded(4, 1);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 8);
    let stuck: Vec<TxId> = std::iter::from_fn(|| node.transmit()).map(|sent| sent.tx).collect();
    assert_eq!(stuck.len(), 4);
    send(&mut node, now, 1_000, 8);
    assert_eq!(drain(&mut node, now, FRIEND), (0, 0));
    now = now + Duration::from_secs(2);
    node.shard.handle_timeout(now);
    assert_eq!(drain(&mut node, now, FRIEND), (0, 4), "others go first");
    stuck.into_iter().for_each(|tx| node.shard.sent(now, tx, Status::Ok));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 0), "so late is as good as unknown");
    now = now + Duration::from_millis(1_250);
    node.shard.handle_timeout(now);
    assert_eq!(drain(&mut node, now, FRIEND).0, 4, "it goes before the silent");
    send(&mut node, now, FRIEND, 3);
    assert_eq!(drain(&mut node, now, FRIEND), (3, 0));
}

/// Peers that all answer have the same share, also those that came last; and others are not forgotten for
/// them.
#[test]
fn peers_take_turns() {
    let mut node = crowded(4, 1);
    let now = Instant(0);
    send(&mut node, now, 1_000, 8);
    send(&mut node, now, 1_001, 8);
    send(&mut node, now, 1_002, 8);
    let mut left: BTreeMap<u32, usize> = BTreeMap::new();
    let mut order = Vec::new();
    while let Some(sent) = node.transmit() {
        let host = sent.header.destination.nid.to_small().unwrap() as u32 & 0xffff;
        order.push(host);
        *left.entry(host).or_default() += 1;
        node.shard.sent(now, sent.tx, Status::Ok);
    }
    assert_eq!(left.values().copied().collect::<Vec<_>>(), [8, 8, 8]);
    let last = |host| order.iter().rposition(|other| *other == host).unwrap();
    assert!(last(1_001) + 8 > last(1_000) && last(1_002) > 15, "{order:?}");
    // A peer that has not answered yet has the fourth turn, while better ones always wait.
    let mut node = crowded(4, 1);
    for host in 0..4 {
        send(&mut node, now, 2_000 + host, 1);
        let sent = node.transmit().unwrap();
        node.shard.sent(now, sent.tx, Status::Ok);
    }
    (0..4).for_each(|host| send(&mut node, now, 2_000 + host, 8));
    send(&mut node, now, 1_000, 1);
    let order: Vec<u32> = std::iter::from_fn(|| {
        let sent = node.transmit()?;
        node.shard.sent(now, sent.tx, Status::Ok);
        Some(sent.header.destination.nid.to_small().unwrap() as u32 & 0xffff)
    })
    .collect();
    let at = order.iter().position(|host| *host == 1_000).unwrap();
    assert_eq!((order.len(), at), (33, 7), "{order:?}");
}

/// A message that its device gives back after it has passed its credit on leaves no credit behind when its NI
/// serves no more.
#[test]
fn a_message_given_back_returns_no_credit_that_it_passed_on() {
    let topology = |generation, status| {
        let ni = LocalNi { status, ..local_ni(nid(1, 1), 1, 1) };
        Arc::new(Topology::new(vec![ni]).with_generation(generation))
    };
    let mut node = Node::new(ShardConfig { topology: topology(1, NiStatus::Up), ..config() });
    let put = |node: &mut Node, peer| {
        let md = node.shard.bind(&node.md(1)).unwrap();
        node.shard.put(Instant(0), &put_request(md, peer)).unwrap();
    };
    put(&mut node, 10);
    let tx = node.transmit().unwrap().tx;
    put(&mut node, 11);
    let now = Instant(0) + Duration::from_secs(1);
    node.shard.handle_timeout(now);
    assert_eq!(node.shard.counters().credits_passed_on, 1);
    node.shard.give_back(Full(tx));
    node.shard.update(now, topology(2, NiStatus::Closed));
    assert_eq!(node.events().len(), 2, "both have ended");
    assert_eq!(node.shard.ni_credits(NI), Some(1));
}
