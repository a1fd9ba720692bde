//! Messages on their way out: credits in order, to the LND, and home again.
//!
//! A message takes a credit of its peer first, then one of its NI; they return the other way round,
//! each to the next message that waits for it (LNet `lib-move.c: lnet_post_send_locked`,
//! `lnet_return_tx_credits_locked`). Ends that cause further ends go through the `ended` queue, so nothing
//! here recurses however many messages wait.
//!
//! A message that its LND has had for a second passes its NI's credit on where another one waits: peers
//! that take nothing do not stop the others. Whose turn is next is said by [`turns`](crate::turns).
//!
//! A message that its LND could not send leaves by another NI, up to `retry_count` times; what has its path
//! given, as responses have, by the same one. A response that nothing leads back for leaves by another one.
//! A message that may have arrived is not sent anew: it would be there twice.

use core::time::Duration;

use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::{Header, MessageType, Nid};

use super::report::EndedOperation;
use super::routed::Onward;
use super::{Choice, Shard};
use crate::collections::NONE;
use crate::fault::Faults;
use crate::health::HealthStatus;
use crate::lnd::{Cause, Full, Lent, NiId, PathReport, PeerSlot, Status, Transmit, TxId};
use crate::md::{Ending, MdOptions};
use crate::message::{Credited, Done, Expired, Message, MessageState, PeerCredited, Purpose, Queued, Stage};
use crate::peer::PeerNi;
use crate::standing::{Standing, Turn};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::topology::NiStatus;

/// How often it is looked who has had a credit for long, while others wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long an LND has a message that is taken soon.
const PROMPT_MAX: Duration = Duration::from_millis(250);

impl Shard {
    /// The next message for the LND of an NI, lent; `None` when there is none, or no such NI.
    /// The LND has it from `now` until it says [`Uplink::sent`](crate::lnd::Uplink::sent); how long that is
    /// tells who takes what is sent to it.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, ni: NiId) -> Option<Lent<'_>> {
        let ready = &mut self.nis.get_mut(usize::from(ni.0))?.ready;
        let message = ready.pop(&mut self.messages)?;
        let record = self.messages.record_mut(&message);
        match record.purpose {
            Purpose::Request { .. } => self.seals.seal(&mut record.transmit.header),
            Purpose::Forward { routed } => self.routed.note_lent(routed),
            Purpose::Reply { .. } | Purpose::Ack { .. } => {}
        }
        Some(Lent { transmit: self.messages.submit(now, message), more: !ready.is_empty() })
    }

    /// Takes back what a device had no room for; it is the next that [`Shard::poll_transmit`] returns. Of
    /// several, give back the last first.
    ///
    /// # Panics
    /// If the message is not with an LND.
    pub fn give_back(&mut self, Full(tx): Full<TxId>) {
        let message = self.messages.claim(tx);
        let message = self.messages.refused(message);
        let ni = self.messages.record(&message).transmit.ni;
        self.nis[usize::from(ni.0)].ready.push_front(&mut self.messages, message);
    }

    /// Ends the messages that have waited for credits until their deadline, and unlinks the descriptors for
    /// which a response has not come in time: what ends well on them from now on reads as a timeout, and
    /// so does the UNLINK event of an idle one. What delay rules have delayed for long enough goes on.
    pub fn handle_timeout(&mut self, now: Instant) {
        for ni in (0..self.nis.len()).map(|index| NiId(index as u16)) {
            while let Some(expired) = self.nis[usize::from(ni.0)].timers.pop_expired(&mut self.messages, now)
            {
                self.end_waiting(now, ni, expired);
            }
            if self.nis[usize::from(ni.0)].next_look().is_some_and(|look_at| look_at <= now) {
                self.pass_on_credits(now, ni);
            }
        }
        // What was never sent to a peer awaits no response of it.
        self.release_gated(now);
        self.release_unnamed(now);
        while let Some((md, peer)) = self.trackers.expired(now) {
            self.counters.response_timeouts += 1;
            self.note_no_response(&peer);
            self.unlink_slot(md, Status::Unknown(Cause::Timeout));
        }
        self.release_delayed(now, |_, (until, _)| until <= now);
        self.release_timed(now, |shard| shard.delayed.expired(now));
        while let Some(slot) = self.routed.overdue(now) {
            self.drop_routed(slot, DropReason::RouterFull);
        }
        self.note_slow_cuts(now);
        self.wake();
    }

    /// Notes which messages an LND has had for long, and gives their credits to messages that wait. As many
    /// as were lent just go: else the silent would have the reserve lent again and again.
    #[cold]
    fn pass_on_credits(&mut self, now: Instant, ni: NiId) {
        self.ni(ni).look_at = now + LOOK_INTERVAL;
        let mut next = 0;
        while let Some(record) = self.messages.next_stuck(now, ni, &mut next) {
            let (peer, taken_as) = (record.peer(), record.credit_of);
            // Its peer is not to blame for what has not arrived here.
            let is_news = !record.is_partial() && !core::mem::replace(&mut record.is_stuck, true);
            record.credit_of = Turn::Silent;
            self.nis[usize::from(ni.0)].credits.restand(taken_as, Turn::Silent);
            if is_news {
                self.peers.get_mut(peer).stuck_count += 1;
                self.restand(peer, Standing::Silent);
            }
        }
        let mut next = 0;
        while self.ni(ni).credits.is_short()
            && let Some(record) = self.messages.next_stuck(now, ni, &mut next)
        {
            record.has_passed_on = true;
            let peer = record.peer();
            self.end_credit(peer);
            self.ni(ni).credits.pass_on(Turn::Silent);
            self.counters.credits_passed_on += 1;
            self.grant(now, ni);
        }
        // Credits that the silent were found to have are no part of the reserve of others.
        self.grant(now, ni);
        self.settle(now);
    }

    /// Notes that the LND of a message has it no more.
    pub(super) fn end_stuck<S>(&mut self, message: &Message<S>) {
        let record = self.messages.record_mut(message);
        let (peer, is_stuck) = (record.peer(), core::mem::take(&mut record.is_stuck));
        self.peers.get_mut(peer).stuck_count -= u32::from(is_stuck);
    }

    /// Has a peer take its turns among those of another standing.
    #[cold]
    fn restand(&mut self, slot: u32, standing: Standing) {
        self.change_turn(slot, |peer| peer.standing = standing);
    }

    /// Changes what the turn of a peer follows from. Whether messages to it wait for another one now.
    #[inline]
    fn change_turn(&mut self, slot: u32, change: impl FnOnce(&mut PeerNi)) -> bool {
        let peer = self.peers.get_mut(slot);
        let former = peer.turn();
        change(peer);
        let (turn, heads) = (peer.turn(), peer.heads);
        let moves = turn != former && heads != NONE;
        if moves {
            self.move_heads(heads, former, turn);
        }
        moves
    }

    #[cold]
    fn move_heads(&mut self, heads: u32, from: Turn, to: Turn) {
        let mut head = heads;
        while let Some((ni, next)) = self.messages.head(head) {
            self.nis[usize::from(ni.0)].credits.move_head(&mut self.messages, head, from, to);
            head = next;
        }
    }

    /// Notes that a message to a peer has a credit of its NI.
    #[inline]
    fn note_credit(&mut self, slot: u32) {
        self.change_turn(slot, |peer| peer.credit_count += 1);
    }

    /// Notes that a message to a peer has its NI's credit no more, which is about to come home. Whether
    /// messages to it wait by other NIs that may have a credit now.
    #[inline]
    pub(super) fn end_credit(&mut self, slot: u32) -> bool {
        self.change_turn(slot, |peer| peer.credit_count -= 1)
    }

    /// Notes that a message to a peer has ended well, which its LND had for so long.
    #[inline]
    fn note_taken(&mut self, now: Instant, slot: u32, took: Duration) {
        let peer = self.peers.get_mut(slot);
        let is_prompt = peer.stuck_count == 0 && took <= PROMPT_MAX;
        let standing = if is_prompt { Standing::Prompt } else { Standing::Unknown };
        if peer.standing == standing {
            return;
        }
        let waits = peer.heads != NONE;
        self.restand(slot, standing);
        if waits {
            self.grant_all(now);
        }
    }

    #[cold]
    pub(super) fn grant_all(&mut self, now: Instant) {
        (0..self.nis.len()).for_each(|index| self.grant(now, NiId(index as u16)));
    }

    /// Gives the credits of an NI that may be had to messages that wait.
    #[inline]
    pub(super) fn grant(&mut self, now: Instant, ni: NiId) {
        let index = usize::from(ni.0);
        while let Some(message) = self.nis[index].credits.grant(&mut self.messages, &mut self.peers) {
            self.ni_credited(now, ni, message);
        }
    }

    /// Ends a message that waits for a credit, and is in no list of deadlines any more.
    pub(super) fn end_waiting(&mut self, now: Instant, ni: NiId, expired: Message<Expired>) {
        let status = Status::NeverSent(Cause::CreditTimeout);
        let record = self.messages.record(&expired);
        let (stage, peer) = (record.stage, record.peer());
        match stage {
            Stage::Queued => {
                let credits = &mut self.peers.get_mut(peer).credits;
                let message = credits.withdraw(&mut self.messages, expired);
                self.end(message, status);
            }
            Stage::PeerCredited => {
                let credits = &mut self.nis[usize::from(ni.0)].credits;
                let message = credits.withdraw(&mut self.messages, &mut self.peers, expired);
                self.end(message, status);
            }
            stage => unreachable!("a message that is {stage:?} waits for no credit"),
        }
        self.settle(now);
    }

    /// Deletes the delay rules with exactly this source and destination, of which each may be the wildcard,
    /// and then stands for any. What they hold up goes on at once. Returns how many rules.
    pub fn delete_delay_rules(&mut self, now: Instant, source: &Nid, destination: &Nid) -> usize {
        let deleted = self.faults.delete_delay_rules(source, destination);
        self.release_delayed(now, |faults, (_, rule)| !faults.has_delay_rule(rule));
        self.release_timed(now, |shard| shard.delayed.first_timed(|rule| !shard.faults.has_delay_rule(rule)));
        self.wake();
        deleted
    }

    /// Sends the messages on their way of which `due` says that no delay rule delays them any more.
    fn release_delayed(&mut self, now: Instant, due: impl Fn(&Faults, (Instant, u64)) -> bool) {
        while let Some(message) = self.messages.next_undelayed(|release| due(&self.faults, release)) {
            let ni = self.messages.record(&message).transmit.ni;
            self.make_ready(now, ni, message);
        }
        self.settle(now);
    }

    /// Sets a new message on its way.
    #[inline(always)]
    pub(super) fn launch(&mut self, now: Instant, record: MessageState) {
        let message = self.enlist(record);
        self.take_peer_credit(now, message);
        self.settle(now);
    }

    /// Counts a new message in.
    #[inline(always)]
    pub(super) fn enlist(&mut self, record: MessageState) -> Message<Queued> {
        let (ni, peer) = (record.transmit.ni, record.peer());
        self.ni(ni).outgoing_count += 1;
        let payload_bytes = record.transmit.header.payload_length;
        let message = self.messages.insert(record);
        self.counters.messages_max = self.counters.messages_max.max(self.messages.count());
        self.peers.get_mut(peer).queued_bytes += queued_bytes(payload_bytes);
        message
    }

    /// The LND has finished with a message.
    pub(super) fn finish(&mut self, now: Instant, tx: TxId, status: Status) {
        let message = self.messages.claim(tx);
        self.end(message, status);
        self.settle(now);
    }

    /// A message has ended; [`Shard::settle`] deals with that.
    pub(super) fn end<S>(&mut self, message: Message<S>, status: Status) {
        self.messages.end(message, status);
    }

    #[inline(always)]
    pub(super) fn take_ni_credit(&mut self, now: Instant, ni: NiId, message: Message<PeerCredited>) {
        let shard_ni = &mut self.nis[usize::from(ni.0)];
        let slot = self.messages.record(&message).peer();
        let peer = self.peers.get_mut(slot);
        let turn = peer.turn();
        let is_first = peer.heads == NONE || self.messages.head_at(peer.heads, ni).is_none();
        if is_first && shard_ni.credits.try_take(turn) {
            shard_ni.timers.forget(&mut self.messages, &message);
            self.messages.record_mut(&message).credit_of = turn;
            self.note_credit(slot);
            let message = self.messages.credited(message);
            self.credited(now, ni, message);
        } else {
            if shard_ni.credits.waiting_count() == 0 {
                shard_ni.look_at = shard_ni.look_at.max(now);
            }
            shard_ni.timers.watch(&mut self.messages, &message);
            shard_ni.credits.wait(&mut self.messages, &mut self.peers, message);
        }
    }

    /// A message has got its credits.
    #[inline]
    fn credited(&mut self, now: Instant, ni: NiId, message: Message<Credited>) {
        if self.is_tried(ni, &self.messages.record(&message).transmit.header)
            && let Some(release) = self.faults.delay(now, &self.messages.record(&message).transmit.header)
        {
            self.messages.delay(message, release);
        } else {
            self.make_ready(now, ni, message);
        }
    }

    /// Whether fault rules look at a message that leaves by an NI: not at what stays on this node,
    /// which is not transmitted (LNet `lib-move.c: lnet_handle_lo_send`), but for pings of one of its own
    /// NIDs.
    #[inline]
    fn is_tried(&self, ni: NiId, header: &Header) -> bool {
        let is_ping = || super::initiator::is_ping(&header.body) && !header.destination.nid.is_loopback();
        self.faults.is_active() && (!self.topology.known_ni(ni).nid.is_loopback() || is_ping())
    }

    /// Makes a message ready for its LND, unless a fault rule fails it.
    #[inline(always)]
    fn make_ready(&mut self, now: Instant, ni: NiId, message: Message<Credited>) {
        if self.is_tried(ni, &self.messages.record(&message).transmit.header)
            && let Some(status) = self.faults.fail_send(now, &self.messages.record(&message).transmit.header)
        {
            self.end(message, status);
        } else {
            self.nis[usize::from(ni.0)].ready.push(&mut self.messages, message);
        }
    }

    /// Deals with the ends of messages, those included that come of it.
    pub(super) fn settle(&mut self, now: Instant) {
        while let Some(message) = self.messages.next_ended() {
            let Err(message) = self.resend(now, message) else { continue };
            self.count_end(now, &message);
            let record = self.messages.record(&message);
            let MessageState {
                transmit: Transmit { ni, header, peer: PeerSlot(peer), .. },
                status,
                purpose,
                ..
            } = *record;
            let (has_peer_credit, has_ni_credit) = record.credits_held_at_end();
            let taken_as = record.credit_of;
            let has_passed_on = record.has_passed_on;
            let answers = record.is_response();
            self.messages.forget(message);
            self.ni(ni).outgoing_count -= 1;
            if let Some(ended) = EndedOperation::of(&purpose, &header) {
                self.complete(ended, status);
            }
            if has_ni_credit || has_passed_on {
                self.return_from_ni(now, (ni, peer), has_ni_credit.then_some(taken_as));
            }
            if has_peer_credit {
                self.return_peer_credit(now, peer);
            }
            self.peers.get_mut(peer).responses -= u32::from(answers);
            self.peers.release(peer);
            if let Purpose::Forward { routed } = purpose {
                self.end_onward(routed, status);
            }
        }
    }

    /// Sends a message by another path that its LND could not send by its own: from another NI, or to
    /// another one of the peer's; by the same one what has its path given. What may have arrived is not sent
    /// anew.
    ///
    /// # Errors
    /// The message, if that is not to be: it has ended.
    #[inline]
    fn resend(&mut self, now: Instant, message: Message<Done>) -> Result<(), Message<Done>> {
        let status = self.messages.record(&message).status;
        if !status.allows_another_path() {
            return Err(message);
        }
        self.try_again(now, message)
    }

    #[cold]
    fn try_again(&mut self, now: Instant, message: Message<Done>) -> Result<(), Message<Done>> {
        let record = self.messages.record(&message);
        let Transmit { ni, next_hop, peer: PeerSlot(peer), header, .. } = record.transmit;
        let (status, is_simulated) =
            (record.status, matches!(record.status, Status::NeverSent(Cause::Simulated(_))));
        // A response goes back where its request came from, unless the peer has lost that NI meanwhile, or
        // nothing leads there: a rail may carry frames one way.
        let is_lost = self.topology.known_as(&next_hop) != next_hop;
        let leads_nowhere = matches!(status, Status::NeverSent(cause) if cause.is_of_the_path());
        let is_given = record.is_bound && !(record.is_response() && (is_lost || leads_nowhere));
        let failed = Choice { ni, next_hop, destination: header.destination.nid };
        let may_go_on = (!is_given || !is_lost && self.is_still_sent_by(ni, record))
            && !self.is_tried_once(record)
            && !self.is_cut(record)
            && matches!(record.stage, Stage::Credited | Stage::Submitted)
            && record.resends < self.topology.tunables().retry_count
            && (self.has_another_path(record.status, &next_hop) || self.has_routes(&failed))
            && self.overdue(now, record).is_none();
        if !is_simulated {
            self.paths.note(now, &failed.path(), PathReport::Silent);
        }
        let is_ping = super::initiator::finds_out(&header.body);
        let memory = self.memory_node_of(&record.purpose);
        let (_, has_ni_credit) = record.credits_held_at_end();
        let credit = has_ni_credit.then_some(record.credit_of);
        let sender = match record.purpose {
            Purpose::Forward { routed } => Some(self.routed.record(routed).from),
            _ => None,
        };
        let choice = match (may_go_on, sender) {
            (false, _) => None,
            (true, Some(from)) => self.select_forward(now, (&from, &header), Some(&failed)),
            (true, None) if is_given => {
                self.select_other_gateway(now, &failed, (memory, is_ping)).or(Some(failed))
            }
            (true, None) => self
                .select_again(now, &failed, (memory, is_ping))
                .or_else(|| self.may_take_the_same(status, &failed).then_some(failed)),
        };
        let Some(choice) = choice else { return Err(message) };
        self.end_stuck(&message);
        let former_peer = if choice.next_hop == next_hop {
            None
        } else {
            let Some(former) = self.move_to_peer(&message, &choice) else { return Err(message) };
            Some(former)
        };
        if let Some(status) = status.health() {
            self.count_failed((ni, peer), &header, status);
        }
        self.messages.record_mut(&message).resends += 1;
        self.counters.resends += 1;
        self.readdress(choice.ni, &message);
        if former_peer.is_some() {
            let message = self.messages.requeued(message);
            self.return_from_ni(now, (ni, peer), credit);
            self.release_peer(now, peer);
            self.take_peer_credit(now, message);
        } else {
            let message = self.messages.resent(message);
            self.return_from_ni(now, (ni, peer), credit);
            self.take_ni_credit(now, choice.ni, message);
        }
        Ok(())
    }

    /// Whether a message that has its path given may leave by this NI once more.
    fn is_still_sent_by(&self, ni: NiId, record: &MessageState) -> bool {
        let status = self.topology.known_ni(ni).status;
        status == NiStatus::Up || record.is_response() && status != NiStatus::Closed
    }

    /// Whether a message is not sent again whatever becomes of it: it finds out whether its path works, or
    /// stays on this node (LNet `lib-msg.c: lnet_health_check`).
    fn is_tried_once(&self, record: &MessageState) -> bool {
        let is_probe = match record.purpose {
            Purpose::Request { md } => self.mds[md].options.contains(MdOptions::NO_RESEND),
            _ => super::loops::is_probe(&record.transmit.header),
        };
        is_probe || self.topology.is_local(&record.transmit.next_hop)
    }

    /// Makes a message one to another NI of its peer. The slot of the former one, to which its reference
    /// still belongs; `None` if every slot is busy, and then nothing has changed.
    pub(super) fn move_to_peer<S>(&mut self, message: &Message<S>, to: &Choice) -> Option<u32> {
        let share = self.ni(to.ni).peer_share;
        let peer = self.peers.acquire(&to.next_hop, share)?;
        let record = self.messages.record_mut(message);
        let bytes = queued_bytes(record.transmit.header.payload_length);
        let responses = u32::from(record.is_response());
        let PeerSlot(former) = core::mem::replace(&mut record.transmit.peer, PeerSlot(peer));
        let next_hop = core::mem::replace(&mut record.transmit.next_hop, to.next_hop);
        record.transmit.header.destination.nid = to.destination;
        let left = self.peers.get_mut(former);
        (left.queued_bytes, left.responses) = (left.queued_bytes - bytes, left.responses - responses);
        let taken = self.peers.get_mut(peer);
        (taken.queued_bytes, taken.responses) = (taken.queued_bytes + bytes, taken.responses + responses);
        match record.purpose {
            Purpose::Request { md } => {
                self.trackers.move_peer(self.mds[md].tracker, &next_hop, &to.next_hop);
            }
            Purpose::Forward { routed } => self.charge(routed, to),
            Purpose::Reply { .. } | Purpose::Ack { .. } => {}
        }
        Some(former)
    }

    /// Returns the credit and the reference of a message that is one to another NI from now on.
    pub(super) fn release_peer(&mut self, now: Instant, peer: u32) {
        self.return_peer_credit(now, peer);
        self.peers.release(peer);
    }

    /// A message takes a credit of its peer, and then one of its NI, or waits for it.
    #[inline(always)]
    pub(super) fn take_peer_credit(&mut self, now: Instant, message: Message<Queued>) {
        let Transmit { ni, peer: PeerSlot(peer), .. } = self.messages.record(&message).transmit;
        if self.peers.get_mut(peer).credits.try_take() {
            let message = self.messages.peer_credited(message);
            self.take_ni_credit(now, ni, message);
        } else {
            self.nis[usize::from(ni.0)].timers.watch(&mut self.messages, &message);
            self.peers.get_mut(peer).credits.wait(&mut self.messages, message);
        }
    }

    pub(super) fn return_ni_credit(&mut self, now: Instant, ni: NiId, taken_as: Turn) {
        #[cfg(feature = "sabotage")]
        if core::mem::take(&mut self.loses_credit) {
            return;
        }
        self.ni(ni).credits.give_back(taken_as);
        self.grant(now, ni);
    }

    /// A message leaves an NI that its LND has had, with its credit or after it has passed that on.
    fn return_from_ni(&mut self, now: Instant, (ni, peer): (NiId, u32), credit: Option<Turn>) {
        let Some(taken_as) = credit else { return self.ni(ni).credits.end_passed_on() };
        let is_first = self.end_credit(peer);
        self.return_ni_credit(now, ni, taken_as);
        if is_first {
            self.grant_all(now);
        }
    }

    /// A message that waited has got its NI's credit.
    pub(super) fn ni_credited(&mut self, now: Instant, ni: NiId, message: Message<PeerCredited>) {
        let record = self.messages.record(&message);
        let (cause, peer) = (self.overdue(now, record), record.peer());
        self.note_credit(peer);
        let shard_ni = &mut self.nis[usize::from(ni.0)];
        shard_ni.timers.forget(&mut self.messages, &message);
        let message = self.messages.credited(message);
        match cause {
            None => self.credited(now, ni, message),
            Some(cause) => self.end(message, Status::NeverSent(cause)),
        }
    }

    /// Counts a message that has ended.
    #[inline]
    fn count_end(&mut self, now: Instant, message: &Message<Done>) {
        let record = self.messages.record(message);
        let MessageState {
            transmit: Transmit { ni, header, .. }, status, ref purpose, started, resends, ..
        } = *record;
        let (slot, bytes) = (record.peer(), header.payload_length);
        let peer = self.peers.get_mut(slot);
        peer.queued_bytes -= queued_bytes(bytes);
        peer.stuck_count -= u32::from(record.is_stuck);
        let took = now - record.lent_at;
        if resends > 0 {
            self.counters.count_resent(status);
        }
        if status != Status::Ok {
            self.counters.send_failures += 1;
            if let Some(health) = status.health() {
                self.count_failed((ni, slot), &header, health);
            }
            return;
        }
        let shard_ni = &mut self.nis[usize::from(ni.0)];
        match purpose {
            Purpose::Forward { .. } => self.counters.routed.add(bytes),
            _ => self.counters.sent.add(bytes),
        }
        // Kernel nodes count the responses that they send so (LNet `lib-msg.c: lnet_msg_decommit_tx`).
        let counts_as = match purpose {
            Purpose::Ack { .. } => MessageType::Put,
            Purpose::Reply { .. } => MessageType::Get,
            Purpose::Request { .. } | Purpose::Forward { .. } => header.message_type(),
        };
        let is_put = matches!((purpose, counts_as), (Purpose::Request { .. }, MessageType::Put));
        let is_timed = is_put && resends == 0;
        if is_timed {
            shard_ni.latencies.put_egress.note(started, now);
        }
        for counters in [&mut shard_ni.counters, &mut peer.counters] {
            counters.sent.add(counts_as);
            counters.sent_bytes += u64::from(bytes);
            if is_timed {
                counters.put_egress.note(started, now);
            }
        }
        self.note_taken(now, slot, took);
    }

    /// Counts an attempt to send a message that has failed, be it sent again or not, and notes whose health
    /// it costs (LNet `lib-msg.c: lnet_health_check`).
    #[cold]
    fn count_failed(&mut self, (ni, peer): (NiId, u32), header: &Header, status: HealthStatus) {
        self.counters.failed.add(status);
        self.nis[usize::from(ni.0)].counters.failed.add(status);
        let peer = self.peers.get_mut(peer);
        peer.counters.failed.add(status);
        let nid = peer.nid;
        self.note_failure(ni, header, &nid, status);
    }

    fn return_peer_credit(&mut self, now: Instant, peer: u32) {
        if let Some(message) = self.peers.get_mut(peer).credits.give_back(&mut self.messages) {
            self.peer_credited(now, message);
        }
    }

    /// A message that waited has got its peer's credit.
    pub(super) fn peer_credited(&mut self, now: Instant, message: Message<Queued>) {
        let record = self.messages.record(&message);
        let ni = record.transmit.ni;
        let cause = self.overdue(now, record);
        let message: Message<PeerCredited> = self.messages.peer_credited(message);
        match cause {
            None => self.take_ni_credit(now, ni, message),
            Some(cause) => {
                self.nis[usize::from(ni.0)].timers.forget(&mut self.messages, &message);
                self.end(message, Status::NeverSent(cause));
            }
        }
    }

    /// Why a message whose turn for a credit has come is not sent after all.
    pub(super) fn overdue(&self, now: Instant, record: &MessageState) -> Option<Cause> {
        let ended = EndedOperation::of(&record.purpose, &record.transmit.header);
        let is_withdrawn = || match record.purpose {
            Purpose::Forward { routed } => matches!(self.routed.record(routed).onward, Onward::Withdrawn(_)),
            _ => false,
        };
        if ended.is_some_and(|ended| self.mds[ended.md()].ending == Ending::Aborted) || is_withdrawn() {
            Some(Cause::Cancelled)
        } else if now >= record.deadline {
            Some(Cause::CreditTimeout)
        } else {
            None
        }
    }
}

/// What a message counts for in its peer's queued bytes (LNet `lib-move.c: lnet_post_send_locked`).
const fn queued_bytes(payload_bytes: u32) -> u64 {
    payload_bytes as u64 + SMALL_HEADER_BYTES as u64
}
