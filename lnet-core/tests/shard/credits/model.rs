//! A node of two NIs on one net, as far as credits go: who has them, who waits, and whose turn is next.
//! Messages and NIs are named by their numbers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lnet_core::lnd::{Cause, Status};
use lnet_core::time::Instant;
use lnet_core::topology::NiStatus;

use super::ni::{FIRST, ModelNi, PROMPT, SILENT, TURNS, UNKNOWN};
use crate::common::MESSAGE_TIMEOUT;

pub(super) const NIS: usize = 2;
pub(super) const NI_CREDITS: u32 = 3;
pub(super) const PEER_CREDITS: u32 = 3;
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often a message is sent again.
const RESENDS_MAX: u32 = 2;
const UNREACHABLE: Status = Status::NeverSent(Cause::Unreachable);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for a credit of its peer.
    Queued,
    /// Waits for one of its NI.
    PeerCredited,
    /// Has both, or has passed that of its NI on.
    Credited,
    Ended,
}

pub(super) struct ModelMessage {
    peer: u8,
    ni: usize,
    /// Whether it leaves by no other NI.
    is_bound: bool,
    stage: Stage,
    deadline: Instant,
    pub(super) is_aborted: bool,
    /// Time at which the LND got it.
    pub(super) lent_at: Instant,
    /// The turn in which the credit of the NI is held.
    credit_of: usize,
    /// Whether another one has that credit.
    has_passed_on: bool,
    /// Whether it was found to be in flight for long.
    is_stuck: bool,
    resends: u32,
    /// When it came to its NI with a credit of its peer, in the order of all that did.
    came: u64,
}

struct ModelPeer {
    free: u32,
    waiters: VecDeque<usize>,
    /// The turn that it has while messages to it have credits.
    standing: usize,
    stuck_count: u32,
    /// Messages to it that have a credit of an NI.
    credit_count: u32,
}

impl ModelPeer {
    fn turn(&self) -> usize {
        if self.standing == PROMPT && self.credit_count == 0 { FIRST } else { self.standing }
    }
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) now: Instant,
    pub(super) messages: Vec<ModelMessage>,
    nis: [ModelNi; NIS],
    peers: BTreeMap<u8, ModelPeer>,
    came: u64,
    pub(super) resends: u64,
    pub(super) passed_on: u64,
    /// Ends that are to be dealt with.
    ending: VecDeque<(usize, Status)>,
    pub(super) ended: Vec<(u64, Status)>,
}

impl Model {
    pub(super) fn new() -> Self {
        let ni = || ModelNi { total: NI_CREDITS, free: NI_CREDITS, ..ModelNi::default() };
        Self { nis: [ni(), ni()], ..Self::default() }
    }

    /// The NI that a request leaves by, which may name one; where both serve, one is chosen.
    pub(super) fn path(&self, bound: Option<usize>, choose: impl FnOnce() -> Option<usize>) -> Option<usize> {
        let of = bound.map_or(0..NIS, |bound| bound..bound + 1);
        let with = |status| of.clone().filter(move |ni| self.nis[*ni].status == status);
        if with(NiStatus::Up).count() == NIS {
            return choose();
        }
        with(NiStatus::Up).chain(with(NiStatus::Down)).next()
    }

    /// A request to a peer, by an NI if there is one.
    pub(super) fn put(&mut self, peer: u8, path: Option<usize>, is_bound: bool) {
        let number = self.messages.len();
        self.messages.push(ModelMessage {
            peer,
            ni: path.unwrap_or(0),
            is_bound,
            stage: Stage::Queued,
            deadline: self.now + MESSAGE_TIMEOUT,
            is_aborted: false,
            lent_at: Instant(0),
            credit_of: UNKNOWN,
            has_passed_on: false,
            is_stuck: false,
            resends: 0,
            came: 0,
        });
        if path.is_none() {
            self.messages[number].stage = Stage::Ended;
            return self.ended.push((number as u64, UNREACHABLE));
        }
        let new = || ModelPeer {
            free: PEER_CREDITS,
            waiters: VecDeque::new(),
            standing: UNKNOWN,
            stuck_count: 0,
            credit_count: 0,
        };
        let known = self.peers.entry(peer).or_insert_with(new);
        if known.free == 0 {
            known.waiters.push_back(number);
            self.watch(number);
        } else {
            known.free -= 1;
            self.take_ni(number);
        }
    }

    fn known(&mut self, number: usize) -> &mut ModelPeer {
        self.peers.get_mut(&self.messages[number].peer).unwrap()
    }

    /// Watches the deadline of a message, behind those of the others.
    fn watch(&mut self, number: usize) {
        let timers = &mut self.nis[self.messages[number].ni].timers;
        if !timers.contains(&number) {
            let latest = timers.back().map(|last| self.messages[*last].deadline);
            timers.push_back(number);
            let deadline = &mut self.messages[number].deadline;
            *deadline = latest.unwrap_or_default().max(*deadline);
        }
    }

    fn forget(&mut self, number: usize) {
        self.nis[self.messages[number].ni].timers.retain(|other| *other != number);
    }

    /// Has a message hold a credit of its NI, which may be had.
    fn hold(&mut self, number: usize, turn: usize) {
        self.forget(number);
        let message = &mut self.messages[number];
        let ni = &mut self.nis[message.ni];
        if ni.free == 0 {
            ni.excess += 1;
        } else {
            ni.free -= 1;
        }
        ni.held[turn] += 1;
        (message.stage, message.credit_of) = (Stage::Credited, turn);
        let peer = message.peer;
        self.change_turn(peer, |known| known.credit_count += 1);
    }

    fn take_ni(&mut self, number: usize) {
        self.came += 1;
        let turn = self.known(number).turn();
        let message = &mut self.messages[number];
        (message.stage, message.came) = (Stage::PeerCredited, self.came);
        let peer = message.peer;
        let ni = &mut self.nis[message.ni];
        if !ni.waiters.contains_key(&peer) && (ni.free > 0 || ni.may_borrow(turn)) {
            ni.ready.push_back(number);
            return self.hold(number, turn);
        }
        if !ni.has_waiters() {
            ni.look_at = ni.look_at.max(self.now);
        }
        let waiters = ni.waiters.entry(peer).or_default();
        if waiters.is_empty() {
            ni.turns[turn].push_back(peer);
        }
        waiters.push_back(number);
        self.watch(number);
    }

    /// Serves those who wait for an NI.
    fn grant(&mut self, ni: usize) {
        while let Some(turn) = self.nis[ni].next_turn() {
            let next = self.nis[ni].pop(turn).unwrap();
            self.hold(next, turn);
            match self.refusal(next) {
                None => self.nis[ni].ready.push_back(next),
                Some(cause) => self.ending.push_back((next, Status::NeverSent(cause))),
            }
        }
    }

    /// The credit of an NI comes home, unless the message has passed it on.
    fn leave_ni(&mut self, number: usize) {
        let message = &mut self.messages[number];
        let (ni, peer, taken_as) = (message.ni, message.peer, message.credit_of);
        if !std::mem::take(&mut message.has_passed_on) {
            let is_first = self.change_turn(peer, |known| known.credit_count -= 1);
            self.nis[ni].return_credit(taken_as);
            self.grant(ni);
            if is_first {
                (0..NIS).for_each(|ni| self.grant(ni));
            }
        }
    }

    fn end_stuck(&mut self, number: usize) {
        let is_stuck = std::mem::take(&mut self.messages[number].is_stuck);
        self.known(number).stuck_count -= u32::from(is_stuck);
    }

    fn restand(&mut self, peer: u8, standing: usize) {
        self.change_turn(peer, |known| known.standing = standing);
    }

    /// Whether messages to a peer wait in another turn now.
    fn change_turn(&mut self, peer: u8, change: impl FnOnce(&mut ModelPeer)) -> bool {
        let known = self.peers.get_mut(&peer).unwrap();
        let former = known.turn();
        change(known);
        let turn = known.turn();
        let mut moves = false;
        for ni in self.nis.iter_mut().filter(|ni| former != turn && ni.waiters.contains_key(&peer)) {
            ni.turns[former].retain(|other| *other != peer);
            ni.turns[turn].push_back(peer);
            moves = true;
        }
        moves
    }

    /// The LND of an NI takes a message.
    pub(super) fn transmit(&mut self, ni: usize) -> Option<usize> {
        let number = self.nis[ni].ready.pop_front()?;
        self.messages[number].lent_at = self.now;
        let (peer, came) = (self.messages[number].peer, self.messages[number].came);
        let waiting = self.nis[ni].ready.iter().chain(self.nis[ni].waiters.get(&peer).into_iter().flatten());
        let mut of_peer = waiting.map(|number| &self.messages[*number]).filter(|other| other.peer == peer);
        assert!(of_peer.all(|other| other.came > came), "a message overtakes another one to its peer");
        Some(number)
    }

    /// The message that the LND got last has found no room.
    pub(super) fn give_back(&mut self, number: usize) {
        self.nis[self.messages[number].ni].ready.push_front(number);
    }

    /// Messages that an LND has had for long pass on their credits.
    fn pass_on(&mut self, ni: usize, sent: &[usize]) {
        if !self.nis[ni].has_waiters() || self.nis[ni].look_at > self.now {
            return;
        }
        self.nis[ni].look_at = self.now + LOOK_INTERVAL;
        let is_long = |message: &ModelMessage| {
            message.ni == ni && !message.has_passed_on && self.now - message.lent_at >= Duration::from_secs(1)
        };
        let long: Vec<_> = sent.iter().copied().filter(|number| is_long(&self.messages[*number])).collect();
        for &number in &long {
            let message = &mut self.messages[number];
            self.nis[ni].held[message.credit_of] -= 1;
            self.nis[ni].held[SILENT] += 1;
            message.credit_of = SILENT;
            if !std::mem::replace(&mut message.is_stuck, true) {
                let peer = message.peer;
                self.known(number).stuck_count += 1;
                self.restand(peer, SILENT);
            }
        }
        for number in long {
            if self.nis[ni].has_waiters() || self.nis[ni].excess > 0 {
                self.leave_ni(number);
                self.messages[number].has_passed_on = true;
                self.passed_on += 1;
            }
        }
        self.grant(ni);
        self.settle();
    }

    fn refusal(&self, number: usize) -> Option<Cause> {
        let message = &self.messages[number];
        if message.is_aborted {
            return Some(Cause::Cancelled);
        }
        (self.now >= message.deadline).then_some(Cause::CreditTimeout)
    }

    /// Whether a message is sent again that its LND could not send: by the other NI, or by the same one if it
    /// is bound to that.
    fn resend(&mut self, number: usize, status: Status) -> bool {
        let message = &self.messages[number];
        let to = if message.is_bound { message.ni } else { 1 - message.ni };
        let is_ended = message.stage != Stage::Credited || message.resends == RESENDS_MAX;
        let is_served = self.nis[to].status == NiStatus::Up;
        if status != UNREACHABLE || is_ended || !is_served || self.refusal(number).is_some() {
            return false;
        }
        self.resends += 1;
        self.messages[number].resends += 1;
        self.end_stuck(number);
        self.leave_ni(number);
        self.messages[number].ni = to;
        self.take_ni(number);
        true
    }

    /// An LND has finished with a message, or it has none.
    pub(super) fn end(&mut self, number: usize, status: Status) {
        self.ending.push_back((number, status));
        self.settle();
    }

    fn settle(&mut self) {
        while let Some((number, status)) = self.ending.pop_front() {
            if self.resend(number, status) {
                continue;
            }
            let stage = std::mem::replace(&mut self.messages[number].stage, Stage::Ended);
            self.end_stuck(number);
            let ModelMessage { peer, is_aborted, lent_at, .. } = self.messages[number];
            if status == Status::Ok {
                let is_prompt = self.known(number).stuck_count == 0 && self.now - lent_at <= LOOK_INTERVAL;
                self.restand(peer, if is_prompt { PROMPT } else { UNKNOWN });
                (0..NIS).for_each(|ni| self.grant(ni));
            }
            let is_late = is_aborted && status == Status::Ok;
            let status = if is_late { Status::Unknown(Cause::Timeout) } else { status };
            self.ended.push((number as u64, status));
            if stage == Stage::Credited {
                self.leave_ni(number);
            }
            if stage != Stage::Queued {
                self.return_peer_credit(number);
            }
        }
    }

    fn return_peer_credit(&mut self, number: usize) {
        let known = self.known(number);
        let Some(next) = known.waiters.pop_front() else {
            known.free += 1;
            return;
        };
        match self.refusal(next) {
            None => self.take_ni(next),
            Some(cause) => {
                self.forget(next);
                self.messages[next].stage = Stage::PeerCredited;
                self.ending.push_back((next, Status::NeverSent(cause)));
            }
        }
    }

    /// Deadlines pass, and credits are passed on by those that the LNDs have, in the order of their slots.
    pub(super) fn timeout(&mut self, sent: &[usize]) {
        for ni in 0..NIS {
            while let Some(&number) = self.nis[ni].timers.front()
                && self.messages[number].deadline <= self.now
            {
                self.forget(number);
                if self.messages[number].stage == Stage::Queued {
                    self.known(number).waiters.retain(|other| *other != number);
                } else {
                    let (peer, turn) = (self.messages[number].peer, self.known(number).turn());
                    self.nis[ni].withdraw(number, peer, turn);
                }
                self.end(number, Status::NeverSent(Cause::CreditTimeout));
            }
            self.pass_on(ni, sent);
        }
    }

    /// A snapshot with these credits and statuses.
    pub(super) fn update(&mut self, nis: [(u32, NiStatus); NIS]) {
        let former = std::array::from_fn::<_, NIS, _>(|ni| self.nis[ni].status);
        for (ni, (total, status)) in self.nis.iter_mut().zip(nis) {
            ni.set_total(total);
            ni.status = status;
        }
        (0..NIS).for_each(|ni| self.grant(ni));
        for (ni, (_, status)) in nis.into_iter().enumerate() {
            if status != NiStatus::Up && status != former[ni] {
                self.stop_serving(ni);
            }
        }
        self.settle();
    }

    /// Where a message goes whose NI serves no more; those whose link is down are waited for.
    fn next_ni(&self, number: usize) -> Option<usize> {
        let ModelMessage { ni, is_bound, .. } = self.messages[number];
        let is = |ni: usize, status| (self.nis[ni].status == status).then_some(ni);
        let other = |status| is(1 - ni, status).filter(|_| !is_bound);
        let waits = || is(ni, NiStatus::Down).or_else(|| other(NiStatus::Down));
        other(NiStatus::Up).or_else(waits)
    }

    fn stop_serving(&mut self, ni: usize) {
        for number in std::mem::take(&mut self.nis[ni].timers) {
            if self.messages[number].stage != Stage::Queued {
                continue;
            }
            if let Some(to) = self.next_ni(number) {
                self.messages[number].ni = to;
                self.watch(number);
            } else {
                self.known(number).waiters.retain(|other| *other != number);
                self.ending.push_back((number, UNREACHABLE));
            }
        }
        let mut moving: Vec<_> = std::mem::take(&mut self.nis[ni].ready).into();
        let waiting: Vec<_> = (0..TURNS)
            .flat_map(|it| std::iter::from_fn(|| self.nis[ni].pop(it)).collect::<Vec<_>>())
            .collect();
        for &number in &moving {
            self.end_stuck(number);
            self.leave_ni(number);
        }
        moving.extend(waiting);
        for number in moving {
            if let Some(to) = self.next_ni(number) {
                self.messages[number].ni = to;
                self.take_ni(number);
            } else {
                self.messages[number].stage = Stage::PeerCredited;
                self.ending.push_back((number, UNREACHABLE));
            }
        }
    }

    /// When [`Model::timeout`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = |ni: &ModelNi| ni.timers.front().map(|number| self.messages[*number].deadline);
        let looks = self.nis.iter().filter(|ni| ni.has_waiters()).map(|ni| ni.look_at);
        self.nis.iter().filter_map(first).chain(looks).min()
    }

    /// Credits of an NI less messages that hold a credit of their peer there.
    pub(super) fn ni_credits(&self, ni: usize) -> i64 {
        let is_there = |stage| matches!(stage, Stage::PeerCredited | Stage::Credited);
        let there = self.messages.iter().filter(|message| message.ni == ni && is_there(message.stage));
        i64::from(self.nis[ni].total) - there.count() as i64
    }

    /// Credits of each peer less messages to it.
    pub(super) fn peer_credits(&self) -> impl Iterator<Item = (u8, i64)> {
        self.peers.keys().map(|&peer| {
            let unended = |message: &&ModelMessage| message.peer == peer && message.stage != Stage::Ended;
            (peer, i64::from(PEER_CREDITS) - self.messages.iter().filter(unended).count() as i64)
        })
    }

    /// Checks what `turns` promises.
    pub(super) fn check(&self) {
        for (index, ni) in self.nis.iter().enumerate() {
            for turn in (0..TURNS).filter(|turn| !ni.turns[*turn].is_empty()) {
                assert_eq!(ni.free, 0, "a message waits for NI {index} though a credit is free");
                assert!(!ni.may_borrow(turn), "a message waits for NI {index} with {:?} held", ni.held);
            }
            let held = |turn| {
                let holds = |message: &&ModelMessage| {
                    (message.ni, message.stage, message.credit_of) == (index, Stage::Credited, turn)
                        && !message.has_passed_on
                };
                self.messages.iter().filter(holds).count() as u32
            };
            assert_eq!(ni.held, std::array::from_fn(held), "NI {index}");
            assert_eq!(ni.free + ni.held.iter().sum::<u32>(), ni.total + ni.excess, "NI {index}");
            let lent_max = (ni.total / 2).max(2) + ni.excess_of_change;
            assert!(ni.excess <= lent_max, "{} credits of NI {index} are lent", ni.excess);
        }
        for known in self.peers.values() {
            assert!(known.free == 0 || known.waiters.is_empty(), "a message waits for its peer");
        }
    }
}
