//! Sessions: asked for, given, refused.
//!
//! ```text
//! sender    HELLO (incarnation, certificate, nonce) -->          keeps the nonce
//! receiver                             <-- WELCOME (nonce, token, incarnation, certificate, shards, policies)
//!                                                                keeps nothing
//! sender    data (incarnation, token) -->                        the receiver makes state
//! receiver                             <-- RESET (token)         if it does not know the session
//! ```

use core::time::Duration;

use lnet_core::collections::NONE;
use lnet_core::lnd::Uplink;
use lnet_wire::Nid;
use lnet_wire::frame::{Handshake, Kind};

use super::paths::{Asking, PeerPath, Refusable, Session};
use super::peers::{PeerIncarnation, PeerSteering};
use super::tokens::{FRESH_NS, Worth};
use super::{NOWHERE, Reply, Sessions};
use crate::contract::{Address, Arrived, Disposition};
use crate::stats::XferDrop;

/// Longest interval between two HELLOs.
const HELLO_MAX: Duration = Duration::from_secs(1);

/// What a WELCOME has changed.
pub(crate) struct Opened {
    /// The peer that the path led to before, or [`NONE`].
    pub(crate) former: u32,
    /// Whether the peer has told other policies than before.
    pub(crate) is_resteered: bool,
}

impl Sessions {
    /// Asks an address for a session, unless a question is open.
    pub(crate) fn ask(&mut self, path: u32) {
        let now = self.local.now;
        if self.paths[path].asking.is_some() {
            return;
        }
        self.questions += 1;
        let PeerPath { ni, nid, .. } = self.paths[path];
        let nonce = self.tokens.nonce(self.questions, self.local.shard, &nid);
        let interval = self.local.times.hello;
        let next_at = now + interval;
        let asking = Asking { nonce, asked_at: now, next_at, interval, is_repeated: false, asker: None };
        self.paths.ask(path, asking);
        self.reply_hello((ni, nid), nonce);
        self.local.set_timer(next_at);
    }

    /// Asks a peer for a session at its last address, where it has given none or an old one.
    pub(crate) fn ask_last_address(&mut self, peer: u32) {
        let address = self.peers[peer].address;
        if address.0 != NOWHERE {
            self.ask_at(address, peer);
        }
    }

    /// Asks a peer, or [`NONE`] if none is known, for a session at an address where it has given none or an
    /// old one; the path to there.
    fn ask_at(&mut self, (ni, nid): Address, peer: u32) -> Option<u32> {
        let Some(path) = self.acquire(ni, &nid) else {
            self.local.starve();
            return None;
        };
        let PeerPath { peer: known, session, .. } = self.paths[path];
        let is_others = peer != NONE && known != peer;
        if is_others || session.is_none_or(|session| session.is_aged(self.local.now)) {
            self.ask(path);
            let asker = self.peers.get(peer).map(|peer| peer.incarnation);
            if let Some(asking) = self.paths[path].asking.as_mut().filter(|_| asker.is_some()) {
                asking.asker = asker;
            }
        }
        self.paths.release(path);
        Some(path)
    }

    /// Another incarnation speaks from an address where a peer spoke last: its sessions end, and who lives
    /// there is asked.
    pub(crate) fn doubt(&mut self, peer: u32, address: Address) {
        self.paths.end_sessions(peer);
        self.ask_at(address, peer);
    }

    /// Asks for a session by another path to the peer that a silent path leads to: by one with an old
    /// session, or where no path to that peer answers, by one that the shard knows; that one.
    pub(crate) fn ask_by_another_path(&mut self, silent: u32, up: &impl Uplink) -> Option<u32> {
        let PeerPath { peer, .. } = self.paths[silent];
        if peer != NONE
            && let Some(answering) = self.answering_path(peer)
        {
            // A receiver may have forgotten this node since: what leads there may be refused.
            if self.paths[answering].session.is_some_and(|session| session.is_aged(self.local.now)) {
                self.ask(answering);
            }
            return None;
        }
        let other = up.another_path(&self.paths[silent].as_path(), |ni| self.nid_of(ni).is_some())?;
        self.ask_at((other.ni, other.peer), peer)
    }

    /// Asks again at a path where no answer has come in time, if something waits for it: a message, or a peer
    /// of which `is_in_use` says so. The path by which what waits there may be tried: its own, where others
    /// lead to the same peer, or another one.
    pub(crate) fn ask_again(
        &mut self,
        path: u32,
        is_in_use: impl Fn(u32) -> bool,
        up: &mut impl Uplink,
    ) -> Option<u32> {
        let now = self.local.now;
        let PeerPath { ni, nid, mut peer, references, asking, .. } = self.paths[path];
        let mut asking = asking?;
        let asker = asking.asker.and_then(|asker| PeerIncarnation::find(&self.peers, asker));
        if references <= 1 && !(peer != NONE && is_in_use(peer)) && !asker.is_some_and(is_in_use) {
            // The peer is asked again when a session is needed.
            self.paths.answered(path);
            return None;
        }
        asking.interval = (asking.interval * 2).min(HELLO_MAX);
        asking.next_at = now + asking.interval;
        asking.is_repeated = true;
        self.paths.ask_again(path, asking);
        self.reply_hello((ni, nid), asking.nonce);
        self.note_silence(path, up);
        if peer == NONE
            && let Some(known) =
                self.paths.to_nid(&nid, |path| path.peer != NONE).map(|path| self.paths[path].peer)
        {
            // The peer answers there by another NI.
            self.paths.set_peer(path, known);
            peer = known;
        }
        self.local.set_timer(asking.next_at);
        self.tell_unanswered(path);
        let other = self.ask_by_another_path(path, up);
        if peer == NONE {
            return other.filter(|other| self.paths[*other].session.is_some());
        }
        self.ask_last_address(peer);
        Some(path)
    }

    /// Has the driver told of a path that has not answered for long.
    pub(crate) fn tell_unanswered(&mut self, path: u32) {
        let PeerPath { ni, nid, .. } = self.paths[path];
        let is_told =
            || self.unanswered.len() == self.unanswered.capacity() || self.unanswered.contains(&(ni, nid));
        if self.refusable(path).is_some() && !is_told() {
            self.unanswered.push_back((ni, nid));
        }
    }

    /// What a host may refuse in its node's stead, where that answers by no other path either.
    pub(crate) fn refusable(&self, path: u32) -> Option<Refusable> {
        let PeerPath { peer, .. } = self.paths[path];
        let refusable = self.paths.refusable(self.local.now, path)?;
        (refusable == Refusable::Waiting || peer == NONE || self.answering_path(peer).is_none())
            .then_some(refusable)
    }

    /// A node asks for a session. Its certificate shows that its incarnation lives where the answer goes;
    /// that it receives there shows when it has the token.
    pub(crate) fn hello(&mut self, frame: &Arrived<'_>) -> Result<Disposition, XferDrop> {
        let now = self.local.now;
        self.identify(frame)?;
        let session = self.tokens.make(now, &self.holder(frame));
        let (nonce, shard) = (frame.header.key.message_id, frame.transfer.shard);
        let (kind, to) = (Kind::Welcome, frame.address());
        self.reply(Reply { kind, to, shard, nonce, number: 0, session, ack: None });
        Ok(Disposition::Done)
    }

    /// What the sender of a HELLO or WELCOME tells of itself, which lives where the frame comes from.
    fn identify<'a>(&mut self, frame: &Arrived<'a>) -> Result<&'a Handshake, XferDrop> {
        let now = self.local.now;
        let handshake = frame.handshake.ok_or(XferDrop::Malformed)?;
        let is_asked = frame.header.kind == Kind::Welcome;
        // A token is given after a check only.
        let renews = || self.tokens.worth(now, &self.holder(frame), frame.transfer.session) != Worth::Invalid;
        if !self.has_shown(frame) && (is_asked || !renews()) {
            let incarnation = frame.transfer.incarnation;
            self.checks.check(now, (incarnation, &frame.from), &handshake.certificate, is_asked)?;
        }
        Ok(handshake)
    }

    /// Whether the sender of a frame is known to live where it comes from: then it is answered whatever
    /// others send.
    fn has_shown(&self, frame: &Arrived<'_>) -> bool {
        let Some(peer) = self.sender(frame) else { return false };
        self.peers[peer].address.1 == frame.from || self.path_from(peer, frame).is_some()
    }

    /// Whether a peer receives at an address: it has shown a token there that was sent there, or has given a
    /// session there. A certificate alone does not tell: each incarnation can sign any address.
    pub(crate) fn lives_at(&self, peer: u32, address: &Nid) -> bool {
        let entry = &self.peers[peer];
        entry.address.1 == *address
            || entry.other_address.is_some_and(|(_, nid)| nid == *address)
            || self.paths.to_nid(address, |path| path.peer == peer).is_some()
    }

    /// The path to a peer on which a frame comes back.
    fn path_from(&self, peer: u32, frame: &Arrived<'_>) -> Option<u32> {
        self.paths.find(frame.ni, &frame.from).filter(|path| self.paths[*path].peer == peer)
    }

    /// The path whose question a WELCOME answers, and what it tells.
    pub(crate) fn answer<'a>(&mut self, frame: &Arrived<'a>) -> Result<(u32, &'a Handshake), XferDrop> {
        let path = self.paths.find(frame.ni, &frame.from).ok_or(XferDrop::Unasked)?;
        let asking = self.paths[path].asking.ok_or(XferDrop::Unasked)?;
        if asking.nonce != frame.header.key.message_id || self.is_over(frame.transfer.incarnation) {
            return Err(XferDrop::Unasked);
        }
        Ok((path, self.identify(frame)?))
    }

    /// Opens the session that a WELCOME of `peer` brings.
    pub(crate) fn open(
        &mut self,
        (path, peer): (u32, u32),
        handshake: &Handshake,
        frame: &Arrived<'_>,
        up: &mut impl Uplink,
    ) -> Opened {
        let now = self.local.now;
        // What was saved of a session there is older.
        self.forget_saved(&frame.address(), None);
        let former = self.paths.set_peer(path, peer);
        let PeerPath { asking, session, .. } = self.paths[path];
        self.paths.answered(path);
        let former_token = session.filter(|_| former == peer).map(|it| it.token);
        let entry = &mut self.peers[peer];
        let steering = PeerSteering { shards: u32::from(handshake.shards), policies: handshake.policies };
        let is_resteered = entry.steering.as_ref().is_some_and(|former| *former != steering);
        entry.steering = Some(steering);
        entry.received_from(now, frame.address());
        // A question that was repeated may have been answered twice.
        if let Some(asking) = asking.filter(|asking| !asking.is_repeated) {
            entry.rtt = Some(now - asking.asked_at);
        }
        let round_trip = entry.rtt;
        self.note_answer(path, round_trip, up);
        if is_resteered {
            // A token goes with the policies that were told with it.
            self.paths.end_sessions(peer);
        }
        self.paths[path].session = Some(Session {
            token: frame.transfer.session,
            former_token,
            since: now,
            datagram_max_bytes: handshake.datagram_max_bytes,
            checksum: handshake.checksum,
            runs: handshake.runs,
        });
        Opened { former, is_resteered }
    }

    /// Whether a peer has given a session by any path.
    pub(crate) fn has_session(&self, peer: u32) -> bool {
        self.paths.of_peer(peer).any(|path| self.paths[path].session.is_some())
    }

    /// Whether the session that a frame names is one that a peer has given: as a rule where the frame comes
    /// from.
    pub(crate) fn has_given(&self, peer: u32, frame: &Arrived<'_>) -> bool {
        let token = frame.transfer.session;
        let gave = |path: u32| {
            let path = &self.paths[path];
            let is_its = |session: Session| session.token == token || session.former_token == Some(token);
            path.peer == peer && path.session.is_some_and(is_its)
        };
        self.paths.find(frame.ni, &frame.from).is_some_and(gave) || self.paths.of_peer(peer).any(gave)
    }

    /// A peer's acknowledgement has come alone. Where the peer has not answered a question others may speak
    /// in its name.
    pub(crate) fn acknowledged_from(&mut self, peer: u32, frame: &Arrived<'_>) {
        let now = self.local.now;
        if self.path_from(peer, frame).is_some() {
            self.peers[peer].received_from(now, frame.address());
        }
    }

    /// A peer speaks from an address. What is sent there from now on would be refused under the session of
    /// another one that lived there before, and lost: it waits for another session.
    pub(crate) fn lives_now_at(&mut self, peer: u32, (ni, nid): Address, is_in_use: impl Fn(u32) -> bool) {
        self.forget_saved(&(ni, nid), Some(self.peers[peer].incarnation));
        let Some(path) = self.paths.find(ni, &nid) else { return };
        let former = self.paths[path].peer;
        if former != NONE && former != peer {
            // Whether it lives on at its other addresses is asked there, where something waits; that it has
            // ended is told here.
            self.paths.end_sessions(former);
            if is_in_use(former) {
                self.ask(path);
            }
        }
    }

    /// Remembers that an incarnation is over, so that its late frames are not taken for new ones although
    /// its windows are forgotten. Of more than there is room for the oldest goes.
    pub(crate) fn remember_over(&mut self, incarnation: u64) {
        let now = self.local.now;
        if self.over.len() == self.over.capacity() {
            self.over.pop_front();
        }
        self.over.push_back((incarnation, now));
    }

    /// Whether an incarnation is over whose tokens may still be fresh.
    pub(crate) fn is_over(&self, incarnation: u64) -> bool {
        let now = self.local.now;
        let mut recent =
            self.over.iter().rev().take_while(|(_, at)| (now - *at).as_nanos() <= FRESH_NS.into());
        recent.any(|(over, _)| *over == incarnation)
    }
}
