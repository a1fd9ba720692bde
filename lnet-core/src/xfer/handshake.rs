//! Sessions: asked for, given, refused.
//!
//! ```text
//! sender    HELLO (incarnation, certificate, nonce) -->          keeps the nonce
//! receiver                             <-- WELCOME (nonce, token, incarnation, certificate, shards, policies)
//!                                                                keeps nothing
//! sender    data (incarnation, token) -->                        the receiver makes state
//! receiver                             <-- RESET (token)         if it does not know the session
//! ```

use lnet_wire::Nid;
use lnet_wire::frame::{Handshake, Kind};

use super::inflow::AckDue;
use super::interfaces::NOWHERE;
use super::peer::{Asking, Contact, Session, Steering};
use super::reply::Reply;
use super::session::{FRESH_NS, Holder, Worth};
use super::state::Xfer;
use super::stats::XferDrop;
use super::{Action, Arrived};
use crate::list::NONE;
use crate::lnd::{Cause, Status, Uplink};
use crate::time::Instant;

impl Xfer {
    /// Asks an address for a session, unless a question is open.
    pub(super) fn ask(&mut self, now: Instant, contact: u32) {
        if self.contacts.slab[contact].asking.is_some() {
            return;
        }
        self.questions += 1;
        let Contact { ni, nid, .. } = self.contacts.slab[contact];
        let nonce = self.tokens.nonce(self.questions, self.shard, &nid);
        let next_at = now + self.times.hello;
        let interval_ns = (next_at - now).as_nanos() as u64;
        let asking = Asking { nonce, asked_at: now, next_at, interval_ns, is_repeated: false, asker: None };
        self.contacts.ask(contact, asking);
        self.reply(Reply::Hello { ni, nid, nonce });
        self.set_timer(next_at);
    }

    /// Asks a peer for a session under the address that it was heard by last, where it has given none or an old one.
    pub(super) fn ask_where_heard(&mut self, now: Instant, peer: u32) {
        let (ni, nid) = self.peers.slab[peer].address;
        if ni == NOWHERE {
            return;
        }
        let Some(contact) = self.contacts.acquire(ni, &nid) else { return self.starve(now) };
        let Contact { peer: known, session, .. } = self.contacts.slab[contact];
        if known != peer || session.is_none_or(|session| session.is_aged(now)) {
            self.ask(now, contact);
            if let Some(asking) = &mut self.contacts.slab[contact].asking {
                asking.asker = Some(self.peers.slab[peer].incarnation);
            }
        }
        self.contacts.release(contact);
    }

    /// Someone asks for a session. Its certificate shows that its incarnation lives where the answer goes; that it
    /// receives there shows when it has the token.
    pub(super) fn hello(&mut self, now: Instant, frame: &Arrived<'_>) -> Result<Action, XferDrop> {
        self.identify(now, frame)?;
        let token = self.tokens.make(now, &Holder::of(frame));
        let (nonce, shard) = (frame.header.key.message_id, frame.transfer.shard);
        self.reply(Reply::Welcome { ni: frame.ni, nid: frame.from, nonce, shard, token });
        Ok(Action::Done)
    }

    /// What the sender of a HELLO or WELCOME tells of itself, which lives where the frame comes from.
    fn identify<'a>(&mut self, now: Instant, frame: &Arrived<'a>) -> Result<&'a Handshake, XferDrop> {
        let handshake = frame.handshake.ok_or(XferDrop::Malformed)?;
        let is_asked = frame.header.kind == Kind::Welcome;
        // Whoever has a token has shown it before.
        let renews = || self.tokens.worth(now, &Holder::of(frame), frame.transfer.session) != Worth::Invalid;
        if !self.has_shown(frame) && (is_asked || !renews()) {
            let incarnation = frame.transfer.incarnation;
            self.checks.check(now, (incarnation, &frame.from), &handshake.certificate, is_asked)?;
        }
        Ok(handshake)
    }

    /// Whether the sender of a frame is known to live where it comes from: then nobody else keeps it from being heard.
    fn has_shown(&self, frame: &Arrived<'_>) -> bool {
        let Some(peer) = self.sender(frame) else { return false };
        let answers = |contact: u32| self.contacts.slab[contact].peer == peer;
        self.peers.slab[peer].address.1 == frame.from
            || self.contacts.find(frame.ni, &frame.from).is_some_and(answers)
    }

    /// A question is answered.
    pub(super) fn welcome(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let contact = self.contacts.find(frame.ni, &frame.from).ok_or(XferDrop::Unasked)?;
        let asking = self.contacts.slab[contact].asking.ok_or(XferDrop::Unasked)?;
        if asking.nonce != frame.header.key.message_id || self.is_over(now, frame.transfer.incarnation) {
            return Err(XferDrop::Unasked);
        }
        let handshake = self.identify(now, frame)?;
        let address = (frame.ni, frame.from);
        let peer = match self.peers.find(frame.transfer.incarnation) {
            Some(peer) => peer,
            None => self.new_peer(now, frame.transfer.incarnation, address).ok_or(XferDrop::PeersFull)?,
        };
        let former = core::mem::replace(&mut self.contacts.slab[contact].peer, peer);
        self.contacts.answered(contact);
        let former_token = self.contacts.slab[contact].session.filter(|_| former == peer).map(|it| it.token);
        let entry = &mut self.peers.slab[peer];
        let steering = Steering { shards: u32::from(handshake.shards), policies: handshake.policies };
        let resteered = entry.steering.as_ref().is_some_and(|former| *former != steering);
        entry.steering = Some(steering);
        entry.heard(now, address);
        // A question that was repeated may have been answered twice.
        if !asking.is_repeated {
            entry.rtt = Some(now - asking.asked_at);
        }
        if resteered {
            // A token goes with the policies that were told with it.
            self.contacts.end_sessions(peer);
        }
        self.contacts.slab[contact].session = Some(Session {
            token: frame.transfer.session,
            former_token,
            since: now,
            datagram_max_bytes: handshake.datagram_max_bytes,
        });
        let testifies = |contact: u32| self.contacts.slab[contact].session.is_some();
        if former != NONE && former != peer && !self.contacts.of_peer(former).any(testifies) {
            self.end_peer(now, former, &frame.from, up);
        }
        if resteered {
            self.steer_again(now, peer, up);
        }
        for shard in 0..self.peers.slab[peer].flows.len() {
            let flow = self.peers.slab[peer].flows[shard];
            if flow != NONE {
                self.go_on(flow);
            }
        }
        // What was to go there by another way that does not answer.
        for other in 0..self.contacts.slab.capacity() {
            if self.contacts.slab.get(other).is_some_and(|other| other.peer == peer) {
                self.dispatch_waiting(now, other);
            }
        }
        Ok(Action::Done)
    }

    /// Sends what waits for a session, as far as it can be.
    pub(super) fn dispatch_waiting(&mut self, now: Instant, contact: u32) {
        let mut waiting =
            core::mem::replace(&mut self.contacts.slab[contact].waiting, crate::list::List::new());
        while let Some(message) = waiting.pop_front(&mut self.messages) {
            self.dispatch(now, message);
        }
    }

    /// A peer does not know the session that it was shown.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Result<Action, XferDrop> {
        let contact = self.contacts.with_token(frame.transfer.session).ok_or(XferDrop::UnknownSession)?;
        let peer = self.contacts.slab[contact].peer;
        if self.peers.slab[peer].incarnation != frame.transfer.incarnation {
            let Contact { nid, .. } = self.contacts.slab[contact];
            self.end_peer(now, peer, &nid, up);
            return Ok(Action::Done);
        }
        // It lives, and has forgotten this shard: what is under way was not taken.
        self.contacts.slab[contact].session = None;
        self.ask(now, contact);
        for shard in 0..self.peers.slab[peer].flows.len() {
            let flow = self.peers.slab[peer].flows[shard];
            while flow != NONE && !self.flows[flow].outstanding.is_empty() {
                let first = self.flows[flow].outstanding.first();
                self.lose(flow, first);
            }
        }
        Ok(Action::Done)
    }

    /// A peer has begun a new life: what it was sent in the former one ends, what was never sent waits for
    /// the new one. What came from it ends as well, unless it was heard last elsewhere than at the address that has
    /// told: it may have lost that only.
    pub(super) fn end_peer(&mut self, now: Instant, peer: u32, told_by: &Nid, up: &mut impl Uplink) {
        self.counters.peers_restarted += 1;
        self.contacts.forget_peer(peer);
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            // One that was pulled may wait, and has a ticket of its.
            if message.peer != peer {
                continue;
            }
            self.begin_anew(now, slot, up);
        }
        if self.peers.slab[peer].address.1 != *told_by {
            return;
        }
        for shard in 0..self.peers.slab[peer].inflows.len() {
            let inflow = self.peers.slab[peer].inflows[shard];
            if inflow != NONE {
                self.end_inflow(now, inflow, Cause::Reset, up);
            }
        }
        self.remember_over(now, self.peers.slab[peer].incarnation);
        self.forget_peer(peer);
    }

    /// Takes a message out of its flow: one of which nothing was sent begins anew, of the others nobody knows the fate.
    pub(super) fn begin_anew(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        if self.messages[slot].polled {
            return self.finish(now, slot, Status::Unknown(Cause::Reset), up);
        }
        self.detach(slot);
        let message = &mut self.messages[slot];
        (message.peer, message.flow, message.next_offset, message.begun) = (NONE, NONE, 0, false);
        self.dispatch(now, slot);
    }

    /// Remembers that an incarnation is over, so that its late frames are not taken for new ones although
    /// its windows are forgotten. Of more than there is room for the oldest goes.
    fn remember_over(&mut self, now: Instant, incarnation: u64) {
        if self.over.len() == self.over.capacity() {
            self.over.pop_front();
        }
        self.over.push_back((incarnation, now));
    }

    /// Whether an incarnation is over whose tokens may still be fresh.
    pub(super) fn is_over(&self, now: Instant, incarnation: u64) -> bool {
        let mut recent =
            self.over.iter().rev().take_while(|(_, at)| (now - *at).as_nanos() <= FRESH_NS.into());
        recent.any(|(over, _)| *over == incarnation)
    }

    /// Forgets what came from a shard of a peer.
    pub(super) fn end_inflow(&mut self, now: Instant, slot: u32, cause: Cause, up: &mut impl Uplink) {
        while !self.inflows[slot].arriving.is_empty() {
            let first = self.inflows[slot].arriving.first();
            self.abandon(now, first, cause, up);
        }
        self.holds.forget_inflow(slot);
        if self.inflows[slot].ack == AckDue::Now {
            self.acks.remove(&mut self.inflows, slot);
        }
        if self.inflows[slot].is_busy {
            self.busy_inflows.remove(&mut self.inflows, slot);
            self.busy_inflow_count -= 1;
        }
        self.recent.remove(&mut self.inflows, slot);
        let (peer, shard) = (self.inflows[slot].peer, self.inflows[slot].shard);
        let inflow = self.inflows.remove(slot);
        self.windows.push(inflow.window);
        self.peers.slab[peer].inflows[usize::from(shard)] = NONE;
    }
}
