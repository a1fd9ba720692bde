//! [`Xfer`]: the three owners together, and what concerns more than one of them.

use core::time::Duration;

use lnet_core::collections::NONE;
use lnet_core::errno;
use lnet_core::lnd::{Cause, Full, NiId, Path, RxId, Span, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::{Instant, earliest};
use lnet_wire::frame::{Handshake, Kind};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Header, Nid};

use super::config::{XferConfig, XferNi};
use super::local::SWEEP_INTERVAL;
use super::receiving::{ReceiveContext, ReceiveStream, ReceivingSide, Writing};
use super::sending::{SendContext, SendingSide, Unread};
use super::sessions::{NOWHERE, Opened, PeerIncarnation, PeerPath, Refusable, Sessions};
use super::stats::{XferCounters, XferDrop, XferUsage};
use crate::contract::{Address, Arrived, Bundled, Disposition, Narrowed, OutgoingFrame, Replay};

/// The transfer protocol of one shard. See the [module](super) for the order of calls.
pub struct Xfer {
    pub(super) sessions: Sessions,
    pub(super) sending: SendingSide,
    pub(super) receiving: ReceivingSide,
}

impl Xfer {
    /// Allocates all that it will ever use.
    #[must_use]
    pub fn new(config: XferConfig) -> Self {
        Self {
            sending: SendingSide::new(&config.limits, config.shard.0),
            receiving: ReceivingSide::new(&config),
            sessions: Sessions::new(config),
        }
    }

    /// Switches bugs on.
    #[cfg(feature = "sabotage")]
    pub const fn sabotage(&mut self, sabotage: super::Sabotage) {
        self.sessions.local.sabotage = sabotage;
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &XferCounters {
        &self.sessions.local.counters
    }

    /// What is in use at this moment.
    #[must_use]
    pub fn usage(&self) -> XferUsage {
        let Self { sessions, sending, receiving } = self;
        XferUsage {
            messages: sending.messages.used_count(),
            incoming: receiving.arrivals.used_count(),
            partials: receiving.maps.used_count(),
            frames: sending.items.used_count(),
            buffered: receiving.buffer.count(),
            peers: sessions.peers.used_count(),
            send_streams: sending.streams.used_count(),
            receive_streams: receiving.streams.used_count(),
        }
    }

    /// Takes a message to be sent. Its payload is read again whenever a frame of it is, until it ends. Of one
    /// whose header has more payload, [`Xfer::extend`] tells of the rest.
    ///
    /// # Errors
    /// [`Full`] when it holds as many messages, or knows as many addresses, as it may.
    pub fn submit(&mut self, now: Instant, transmit: &Transmit) -> Result<(), Full<TxId>> {
        self.sessions.local.now = now;
        if self.sending.messages.is_full() {
            return Err(Full(transmit.tx));
        }
        let path = self.sessions.paths.acquire_of(transmit);
        let path = path.or_else(|| self.sessions.acquire(transmit.ni, &transmit.next_hop));
        let path = path.ok_or(Full(transmit.tx))?;
        if self.sessions.paths[path].peer == NONE {
            self.resume_path(path);
        }
        self.sending.submit(transmit, path, &mut self.sessions);
        Ok(())
    }

    /// More of the payload of a message that was submitted is there. Whether the message is known here.
    pub fn extend(&mut self, now: Instant, transmit: &Transmit) -> bool {
        self.sessions.local.now = now;
        self.sending.extend(now, transmit.tx, transmit.payload)
    }

    /// The rest of the payload of such a message does not come: it ends, and its receiver is told. Whether
    /// the message is known here.
    pub fn withdraw(&mut self, now: Instant, tx: TxId, up: &mut impl Uplink) -> bool {
        self.sessions.local.now = now;
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        self.sending.withdraw_message(tx, &mut SendContext { sessions: &mut self.sessions, up })
    }

    /// Goes on with the session that was saved when a path, or its peer, made room.
    #[cold]
    fn resume_path(&mut self, path: u32) {
        let PeerPath { ni, nid, asking, .. } = self.sessions.paths[path];
        if asking.is_some() {
            return;
        }
        let Some(resumable) = self.sessions.resumable(path) else { return };
        let known = PeerIncarnation::find(&self.sessions.peers, resumable.incarnation);
        // Without room for it the path asks, and waits.
        let peer = known.or_else(|| self.new_peer(resumable.incarnation, (ni, nid)).ok());
        if let Some(peer) = peer {
            self.sessions.resume((path, peer), resumable);
        }
    }

    /// The next frame to be sent; the driver has room for one of the largest size.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<OutgoingFrame> {
        self.sessions.local.now = now;
        if let Some(reply) = self.sessions.poll_reply() {
            return Some(reply);
        }
        if let Some(mut frame) = self.sending.poll(&mut self.sessions) {
            frame.transfer.ack = self.receiving.acknowledge(now, self.sending.polled_to);
            return Some(frame);
        }
        // What has no path has asked for one.
        self.sessions.poll_reply().or_else(|| self.receiving.poll_ack(&mut self.sessions))
    }

    /// Whether [`Xfer::poll_transmit`] may have a frame.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.sessions.has_reply() || self.sending.is_ready() || !self.receiving.acks.is_empty()
    }

    /// The message that the frame begins with which [`Xfer::poll_transmit`] has returned last.
    ///
    /// # Panics
    /// If that frame has none.
    #[must_use]
    pub fn polled(&self) -> &Transmit {
        &self.sending.polled(0).transmit
    }

    /// Message `index` behind the first one of the frame that [`Xfer::poll_transmit`] has returned last.
    ///
    /// # Panics
    /// If that frame has fewer.
    #[must_use]
    pub fn bundled(&self, index: u8) -> Bundled {
        let message = self.sending.polled(1 + usize::from(index));
        Bundled {
            id_delta: (message.id - self.sending.polled(0).id) as u16,
            lnet: message.transmit.header,
            payload: message.transmit.payload,
        }
    }

    /// Takes in a frame, which is this shard's. What it brings to an end goes to `up`.
    ///
    /// # Panics
    /// If [`Disposition::Write`] was returned and [`Xfer::written`] has not been called since.
    pub fn receive(&mut self, now: Instant, frame: &Arrived<'_>, up: &mut impl Uplink) -> Disposition {
        self.sessions.local.now = now;
        assert!(self.receiving.writing.is_none(), "the driver has not said that it has written");
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        let outcome = match frame.header.kind {
            Kind::Hello => self.sessions.hello(frame),
            Kind::Welcome => self.welcome(frame, up),
            Kind::Reset => self.reset(frame, up),
            Kind::Ack => self.lone_ack(frame, up),
            Kind::Data
            | Kind::Deferred
            | Kind::Pull
            | Kind::Discard
            | Kind::Ping
            | Kind::Gone
            | Kind::Lost => self.numbered(frame, up),
        };
        outcome.unwrap_or_else(|reason| {
            self.sessions.local.counters.count_drop(reason);
            Disposition::Drop(reason)
        })
    }

    #[inline(always)]
    fn numbered(&mut self, frame: &Arrived<'_>, up: &mut impl Uplink) -> Result<Disposition, XferDrop> {
        let now = self.sessions.local.now;
        let address = frame.address();
        let stream = match self.receiving.admit(frame, &mut self.sessions)? {
            Some(stream) => stream,
            None => {
                if self.sessions.is_over(frame.transfer.incarnation) {
                    return Err(XferDrop::UnknownSession);
                }
                self.doubt_former_lives(frame);
                self.receiving.may_open(frame)?;
                let peer = match self.sessions.sender(frame) {
                    Some(peer) => peer,
                    None => self.new_peer(frame.transfer.incarnation, address)?,
                };
                let stream = self.receiving.open(now, frame, peer);
                self.speaks_from(peer, address);
                stream
            }
        };
        let ReceiveStream { peer, address: former, .. } = &self.receiving.streams[stream];
        let (peer, had_no_address) = (*peer, former.0 == NOWHERE);
        if *former != address {
            self.speaks_from(peer, address);
        }
        self.receiving.received_from(stream, address, &mut self.sessions);
        if had_no_address {
            // Control frames wait that could be sent nowhere.
            self.sending.go_on_to(peer);
        }
        if let Some(ack) = frame.transfer.ack {
            let shard = frame.transfer.shard;
            self.sending.unread = Some(Unread { at: now, peer, shard, ack });
        }
        let (receiving, mut call) = self.split(up);
        receiving.numbered(stream, frame, &mut call)
    }

    /// A stream is to begin at an address. Where others spoke last from there, that is asked: what former
    /// lives hold, the next one lacks.
    fn doubt_former_lives(&mut self, frame: &Arrived<'_>) {
        let Self { sessions, receiving, .. } = self;
        for stream in 0..receiving.streams.capacity() {
            if let Some(former) = receiving.other_at(stream, frame, sessions) {
                sessions.doubt(former, frame.address());
            }
        }
    }

    /// A stream of a peer begins at an address, or goes on from there.
    fn speaks_from(&mut self, peer: u32, address: Address) {
        let Self { sessions, sending, receiving } = self;
        sessions.lives_now_at(peer, address, |peer| !sending.is_idle(peer) || !receiving.is_idle(peer));
    }

    /// Takes in a further message of a frame whose first one was not dropped; `id_delta` is what its record
    /// says.
    pub fn receive_record(
        &mut self,
        now: Instant,
        frame: &Arrived<'_>,
        id_delta: u16,
        lnet: &Header,
        up: &mut impl Uplink,
    ) -> Disposition {
        self.sessions.local.now = now;
        let Self { sessions, sending, receiving } = self;
        receiving.take_record((frame, id_delta), lnet, &mut ReceiveContext { sessions, sending, up })
    }

    /// A frame with several messages is dealt with.
    pub fn end_bundle(&mut self, now: Instant, frame: &Arrived<'_>) {
        self.sessions.local.now = now;
        self.receiving.end_bundle(frame, &mut self.sessions);
    }

    /// Where the driver is to copy the payload to, and how much of it, after [`Disposition::Write`].
    ///
    /// # Panics
    /// If it is not to.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> &Span {
        let Some(Writing { span, .. }) = &self.receiving.writing else { panic!("nothing is to be written") };
        span
    }

    /// The driver has copied what [`Disposition::Write`] told it to copy.
    ///
    /// # Panics
    /// If there was none.
    pub fn written(&mut self, now: Instant, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        let (receiving, mut call) = self.split(up);
        receiving.written(&mut call);
    }

    /// What becomes of a frame that the driver keeps.
    pub fn poll_replay(&mut self) -> Option<Replay> {
        self.receiving.buffer.poll()
    }

    /// Goes on with a message that the shard has delayed.
    ///
    /// # Panics
    /// If it was not delayed, or `verdict` is to delay it again.
    pub fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        let (receiving, mut call) = self.split(up);
        receiving.resume(rx, verdict, &mut call);
    }

    fn lone_ack(&mut self, frame: &Arrived<'_>, up: &mut impl Uplink) -> Result<Disposition, XferDrop> {
        let peer = self.sessions.sender(frame).ok_or(XferDrop::BadAck)?;
        let is_ours = self.sessions.has_given(peer, frame);
        let ack = frame.transfer.ack.as_ref().filter(|_| is_ours).ok_or(XferDrop::BadAck)?;
        self.sessions.acknowledged_from(peer, frame);
        self.sending.acknowledged(
            (peer, frame.transfer.shard),
            ack,
            &mut SendContext { sessions: &mut self.sessions, up },
        );
        Ok(Disposition::Done)
    }

    /// A question is answered.
    fn welcome(&mut self, frame: &Arrived<'_>, up: &mut impl Uplink) -> Result<Disposition, XferDrop> {
        let (path, handshake) = self.sessions.answer(frame)?;
        let asking = self.sessions.paths[path].asking;
        let lives_at = asking.map(|asking| asking.last_asked_at());
        let asker = asking.and_then(|asking| asking.asker);
        if asker.is_some_and(|asker| asker != frame.transfer.incarnation) {
            self.end_former_lives(lives_at, frame, up);
        }
        let peer = match self.sessions.sender(frame) {
            Some(peer) => peer,
            None => self.new_peer(frame.transfer.incarnation, frame.address())?,
        };
        let Opened { former, is_resteered } = self.sessions.open((path, peer), handshake, frame, up);
        if former != NONE && former != peer && !self.sessions.has_session(former) {
            self.end_peer(former, lives_at, &frame.from, up);
        }
        if core::mem::take(&mut self.sessions.peers[peer].is_doubted) {
            let incarnation = self.sessions.peers[peer].incarnation;
            self.sending.end_not_to(incarnation, &mut SendContext { sessions: &mut self.sessions, up });
        }
        if is_resteered {
            self.sending.steer_again(peer, &mut SendContext { sessions: &mut self.sessions, up });
        }
        self.sending.go_on_with_peer(peer, &mut self.sessions);
        Ok(Disposition::Done)
    }

    /// The sender of a frame has told that it lives where that comes from: what others have begun there, and
    /// go on with nowhere else, ends.
    fn end_former_lives(&mut self, lives_at: Option<Instant>, frame: &Arrived<'_>, up: &mut impl Uplink) {
        for stream in 0..self.receiving.streams.capacity() {
            let former = self.receiving.other_at(stream, frame, &self.sessions);
            if let Some(former) = former.filter(|former| !self.sessions.has_session(*former)) {
                self.end_peer(former, lives_at, &frame.from, up);
            }
        }
    }

    /// A peer does not know the session that it was shown.
    fn reset(&mut self, frame: &Arrived<'_>, up: &mut impl Uplink) -> Result<Disposition, XferDrop> {
        let paths = &self.sessions.paths;
        let token = frame.transfer.session;
        let given = paths.with_token(&frame.from, token);
        let path = given.or_else(|| paths.with_ended_token(&frame.from, token));
        let path = path.ok_or(XferDrop::UnknownSession)?;
        let PeerPath { peer, nid, .. } = paths[path];
        if self.sessions.peers[peer].incarnation != frame.transfer.incarnation {
            let lives_at = self.sending.sent_at(peer, frame.header.key.message_id, frame.transfer.number);
            self.end_peer(peer, lives_at, &nid, up);
            return Ok(Disposition::Done);
        }
        if given.is_none() {
            return Err(XferDrop::UnknownSession);
        }
        // The peer lives, and has forgotten this shard: what is under way was not taken.
        self.sessions.paths[path].session = None;
        self.sessions.ask(path);
        self.sending.lose_all_of_peer(peer);
        Ok(Disposition::Done)
    }

    /// A peer has begun a new life, which lived at a time that may be known: what it was sent before ends,
    /// the rest waits for the new one. What came from it ends as well, unless its last frame came from
    /// another address than the one that has told: it may have lost that only.
    fn end_peer(&mut self, peer: u32, lives_at: Option<Instant>, told_by: &Nid, up: &mut impl Uplink) {
        let Self { sessions, sending, receiving } = self;
        sessions.local.counters.peers_restarted += 1;
        up.restarted(told_by);
        sessions.paths.forget_peer(peer);
        sending.end_peer(peer, (lives_at, told_by), &mut SendContext { sessions, up });
        if sessions.peers[peer].address.1 != *told_by {
            sessions.peers[peer].is_doubted = true;
            return;
        }
        receiving.end_peer(peer, Cause::Reset, &mut ReceiveContext { sessions, sending, up });
        sessions.remember_over(sessions.peers[peer].incarnation);
        self.forget_peer(peer);
    }

    /// The receiving side, and what its calls work with.
    #[inline(always)]
    const fn split<'a, U>(&'a mut self, up: &'a mut U) -> (&'a mut ReceivingSide, ReceiveContext<'a, U>) {
        let Self { sessions, sending, receiving } = self;
        (receiving, ReceiveContext { sessions, sending, up })
    }

    /// Makes a peer; one that is idle makes room.
    fn new_peer(&mut self, incarnation: u64, address: Address) -> Result<u32, XferDrop> {
        let now = self.sessions.local.now;
        if self.sessions.peers.is_full() {
            let is_idle = |peer| self.sending.is_idle(peer) && self.receiving.is_idle(peer);
            let Sessions { peers, hand, .. } = &mut self.sessions;
            let oldest = PeerIncarnation::oldest(peers, hand, is_idle).ok_or(XferDrop::PeersFull)?;
            self.sessions.save_all(oldest);
            self.forget_peer(oldest);
        }
        let new = PeerIncarnation::new(now, incarnation, address);
        let peer = self.sessions.peers.insert(new).ok_or(XferDrop::PeersFull)?;
        self.sending.begin_peer(peer);
        Ok(peer)
    }

    /// Forgets a peer that is idle.
    fn forget_peer(&mut self, peer: u32) {
        self.sending.forget_peer(peer);
        self.sessions.paths.forget_peer(peer);
        self.sessions.peers.remove(peer);
    }

    /// Other policies hold from now on; all shards of the node get the same. Peers ask for new sessions.
    pub fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        if self.sessions.set_policies(policies) {
            self.receiving.examine_anew();
        }
    }

    /// A message ends after this time from now on, and none that is under way takes longer; see
    /// [`XferTimes::message`](super::XferTimes::message). Silent senders are remembered as if it had never
    /// been lowered.
    pub fn set_message_timeout(&mut self, now: Instant, timeout: Duration) {
        let local = &mut self.sessions.local;
        if local.times.message == timeout {
            return;
        }
        local.times.message = timeout;
        local.patience_max = local.patience_max.max(timeout);
        self.sending.end_by(now + timeout);
        if let Some(deadline) = self.sending.next_deadline() {
            local.set_timer(deadline);
        }
    }

    /// What the shard can take at once has changed, in bytes of frames: peers learn it with acknowledgements.
    pub const fn set_receive_bytes(&mut self, bytes: u32) {
        self.receiving.receive_bytes = bytes;
    }

    /// The NID of an NI that there is.
    #[inline]
    #[must_use]
    pub fn nid_of(&self, ni: NiId) -> Option<&Nid> {
        self.sessions.nid_of(ni)
    }

    /// Makes all acknowledgements that wait due at once: before an NI goes by which some of them do.
    pub fn acknowledge_now(&mut self, now: Instant) {
        self.sessions.local.now = now;
        self.receiving.acknowledge_now(&mut self.sessions);
    }

    /// Sends and takes by a further NI from now on. May allocate, where no NI has had so high a number.
    ///
    /// # Panics
    /// If there is one of this number.
    pub fn add_ni(&mut self, number: NiId, ni: XferNi) {
        self.sessions.add_ni(number, ni);
        // Checksums may be wanted that the NI before it did without.
        self.receiving.examine_anew();
    }

    /// Changes the longest UDP payload that an NI can send and take. Peers learn it with their next session;
    /// frames that were cut before are cut again when they are sent again.
    pub fn set_datagram_max(&mut self, ni: NiId, bytes: u32) {
        self.sessions.set_datagram_max(ni, bytes);
    }

    /// Has messages of so many bytes of payload and more leave in [runs](XferNi::runs) by an NI from now on,
    /// where the peer takes them: those of several frames, or none for `u32::MAX`. At first it is all that
    /// are not small.
    pub fn set_run_min(&mut self, ni: NiId, bytes: u32) {
        self.sessions.set_run_min(ni, bytes);
    }

    /// Changes whether what comes to an NI may come in [runs](XferNi::runs). Peers learn it with the session
    /// that they are asked to get.
    pub fn set_runs(&mut self, ni: NiId, runs: bool) {
        self.sessions.set_runs(ni, runs);
        self.receiving.examine_anew();
    }

    /// The driver could not send a datagram by this path, which carries no more than so many bytes, as far as
    /// is known there (RFC 8899, 4.6.1): no longer ones go to this peer by this NI. Those of others are as
    /// they were.
    pub fn set_path_max(&mut self, now: Instant, path: &Path, bytes: u32) {
        self.sessions.local.now = now;
        self.sessions.note_path_max(path, bytes);
    }

    /// A path that was found to be narrower than its ends since this was called, for a log; of several the
    /// last.
    #[inline]
    pub const fn poll_narrowed(&mut self) -> Option<Narrowed> {
        self.sessions.narrowed.take()
    }

    /// The node, as a HELLO or WELCOME that is sent by `ni` tells of it.
    #[must_use]
    pub fn handshake(&self, ni: NiId) -> Handshake {
        self.sessions.handshake(ni)
    }

    /// An NI is gone. Messages that went by it go by another path to the same peer, if one is known;
    /// others end. So do those that arrive from a peer that nothing leads to any more. The peer's windows
    /// stay, so that what it sends again by any path is recognised, also when the NI has come back.
    ///
    /// # Panics
    /// If there is no such NI.
    pub fn remove_ni(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        let Self { sessions, sending, receiving } = self;
        sending.catch_up(&mut SendContext { sessions, up });
        sessions.remove_ni(ni);
        for peer in 0..sessions.peers.capacity() {
            if sessions.peers.get(peer).is_some() {
                let address = sessions.move_peer(peer, ni, up);
                receiving.move_peer(peer, ni, address, &mut ReceiveContext { sessions, sending, up });
            }
        }
        sending.remove_ni(ni, &mut SendContext { sessions, up });
        sessions.paths.remove_ni(ni);
    }

    /// An address that has not answered for long, though something goes there: for a second where no shard of
    /// the node has ever met a peer, for three where one has. Each is told with every further HELLO or probe.
    /// The driver may find out whether a node lives there ([`Xfer::refused`]).
    #[inline]
    pub fn poll_unanswered(&mut self) -> Option<Address> {
        self.sessions.unanswered.pop_front()
    }

    /// A host says that it has no node. Messages that wait for the first session there end. Where a shard
    /// has met a peer, pings end alone, and where the host was reached. Where a node may still be starting,
    /// nothing happens.
    pub fn refused(&mut self, now: Instant, (ni, nid): Address, cause: Cause, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        let Some(path) = self.sessions.paths.find(ni, &nid) else { return };
        let refusable = self.sessions.refusable(path);
        let call = &mut SendContext { sessions: &mut self.sessions, up };
        match refusable {
            Some(Refusable::Waiting) => self.sending.fail_waiting(path, cause, call),
            // A host that is not reached at present says nothing of its node.
            Some(Refusable::Pings) if cause == Cause::System(errno::ECONNREFUSED) => {
                self.sending.fail_pings(path, cause, call);
            }
            Some(Refusable::Pings) | None => {}
        }
    }

    /// An NI does not send any more: messages that only it carried end.
    pub fn fail_ni(&mut self, now: Instant, ni: NiId, cause: Cause, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        let failed = (cause, false);
        self.sending.fail_ni(ni, failed, &mut SendContext { sessions: &mut self.sessions, up });
    }

    /// An NI does not send at present: messages that only it carried end if the [`Uplink`] knows another
    /// way for them; those that have none wait, as long as they may.
    pub fn avoid_ni(&mut self, now: Instant, ni: NiId, cause: Cause, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        let failed = (cause, true);
        self.sending.fail_ni(ni, failed, &mut SendContext { sessions: &mut self.sessions, up });
    }

    /// When [`Xfer::handle_timeout`] may have something to do.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        if self.sending.unread.is_some() { Some(Instant(0)) } else { self.sessions.local.timer }
    }

    /// Does what is due.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, up: &mut impl Uplink) {
        self.sessions.local.now = now;
        self.sending.catch_up(&mut SendContext { sessions: &mut self.sessions, up });
        if self.sessions.local.timer.is_some_and(|timer| timer <= now) {
            self.run_timers(up);
        }
    }

    fn run_timers(&mut self, up: &mut impl Uplink) {
        let now = self.sessions.local.now;
        let Self { sessions, sending, receiving } = self;
        sessions.local.timer = None;
        receiving.end_buffered(&mut ReceiveContext { sessions, sending, up });
        sending.end_messages(&mut SendContext { sessions, up });
        while let Some(path) = sessions.paths.pop_asked(now) {
            let is_in_use = |peer| !sending.is_idle(peer) || !receiving.is_idle(peer);
            match sessions.ask_again(path, is_in_use, up) {
                Some(own) if own == path => sending.dispatch_waiting(path, sessions),
                Some(other) => sending.dispatch_by_another(path, other, sessions),
                None => {}
            }
        }
        if core::mem::take(&mut sessions.local.starved) {
            sending.withdraw_oldest(&mut SendContext { sessions, up });
            sending.try_again(sessions);
        }
        let next_sent = sending.follow_streams(&mut SendContext { sessions, up });
        let next_received = receiving.follow_streams(sessions);
        if sessions.local.sweep_at <= now {
            sessions.local.sweep_at = now + SWEEP_INTERVAL;
            receiving.sweep(&mut ReceiveContext { sessions, sending, up });
            let patience = sessions.local.times.message;
            sending.sweep(|from| receiving.is_silent(now, from, patience), &mut SendContext { sessions, up });
        }
        let sweeps = receiving.streams.used_count() != 0
            || sending.messages.used_count() != 0
            || sending.items.used_count() != 0;
        let next_sweep = sweeps.then_some(sessions.local.sweep_at);
        let next_buffered = receiving.buffer.first().map(|(_, _, until)| until);
        let next_deadline = sending.next_deadline();
        let next_asked = sessions.paths.next_asked();
        let next = earliest([next_sent, next_received, next_sweep, next_deadline, next_buffered, next_asked]);
        if let Some(next) = next {
            sessions.local.set_timer(next);
        }
    }
}
