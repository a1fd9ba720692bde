//! The sending side: messages of this shard become frames, until each has arrived or been given up.
//!
//! Invariants:
//! - A message has an id, which counts the messages of this shard to one incarnation of a peer.
//! - A frame has a number, a new one whenever its content is sent again, so an acknowledgement is never
//!   ambiguous.
//! - A peer is remembered while it has messages here. Forgetting one loses nothing: its next ids and frame
//!   numbers begin above all that were used.
//! - Knows sessions, and nothing of what is received.

mod acknowledge;
mod congestion;
mod deferred;
mod failover;
mod frames;
mod item;
mod message;
mod partial;
mod stream;
mod timers;

use alloc::vec::Vec;

use lnet_core::collections::{Link, List, NONE, Schedule, Slab, slot_bytes};
use lnet_core::lnd::{Cause, NiId, Status, Transmit, Uplink};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::steer::{SHARDS_MAX, SteerKey};

pub(super) use self::acknowledge::Unread;
pub(super) use self::congestion::frame_cost;
pub(super) use self::frames::HEADERS_BYTES;
use self::item::{Cargo, InStream, SentItem};
use self::message::{Deadlines, Queued, Unfinished};
pub(super) use self::message::{Outbound, Stage};
use self::stream::Ready;
pub(super) use self::stream::SendStream;
use super::config::XferLimits;
use super::local::{BySlot, Streams, existing};
use super::sessions::{OfPeer, PeerIncarnation, Sessions};
use crate::contract::{BUNDLE_MAX, WINDOW_IDS};

/// Bytes that a peer takes of which messages go to one shard.
pub(super) const PEER_BYTES: usize = slot_bytes::<SendStream>() + size_of::<ToPeer>();

/// Ids that are looked at for one that leads to a shard: enough for any number of shards.
const IDS_LEFT_OUT_MAX: u64 = 1024;

/// What a call works with besides the tables of the sending side.
pub(super) struct SendContext<'a, U> {
    pub(super) sessions: &'a mut Sessions,
    pub(super) up: &'a mut U,
}

/// What is sent to a peer.
pub(super) struct ToPeer {
    pub(super) next_id: u64,
    /// Messages with an id that are neither finished nor deferred, in the order of their ids.
    unfinished: List<Unfinished>,
    /// Messages that it keeps the headers of.
    deferred: List<Queued>,
    pub(super) streams: Streams,
    /// When it is to be asked after its deferred messages.
    ping_at: Instant,
    /// Control frames that it has not acknowledged.
    control_count: u32,
}

impl ToPeer {
    const fn new(next_id: u64) -> Self {
        Self {
            next_id,
            unfinished: List::new(),
            deferred: List::new(),
            streams: [NONE; SHARDS_MAX as usize],
            ping_at: Instant(0),
            control_count: 0,
        }
    }

    /// The oldest id that is not finished.
    #[inline]
    pub(super) fn oldest_id(&self, messages: &Slab<Outbound>) -> u64 {
        messages.get(self.unfinished.first()).map_or(self.next_id, |message| message.id)
    }
}

/// What one shard sends.
pub(super) struct SendingSide {
    pub(super) messages: Slab<Outbound>,
    deadlines: List<Deadlines>,
    /// Messages of which more is to come.
    partial: Vec<u32>,
    pub(super) items: Slab<SentItem>,
    /// Sent items that are kept for control frames, which take no others; fragments that are cut anew may
    /// take of them.
    items_reserved: u32,
    /// Control frames among the items.
    control_count: u32,
    pub(super) streams: Slab<SendStream>,
    ready: List<Ready>,
    /// When a stream whose frames are under way is to be looked at, or sooner.
    timers: Schedule,
    /// Whether a stream has stopped because no item was free.
    is_short_of_items: bool,
    /// Peers by slot.
    pub(super) peers: BySlot<ToPeer>,
    /// Messages that wait for the session of a path, by the slot of the path.
    waiting: BySlot<List<Queued>>,
    /// The messages of the frame that was polled last.
    bundle: Vec<u32>,
    /// The shard of a peer that this frame goes to.
    pub(super) polled_to: (u32, u8),
    /// An acknowledgement that came with data: the data is dealt with first, since it is waited for.
    pub(super) unread: Option<Unread>,
    /// Ids, and frame numbers, of peers that were forgotten lie below.
    id_floor: u64,
    number_floor: u64,
}

impl SendingSide {
    pub(super) fn new(limits: &XferLimits, shard: u8) -> Self {
        Self {
            messages: Slab::new(limits.messages),
            deadlines: List::new(),
            partial: Vec::with_capacity(limits.messages as usize),
            items: Slab::new(limits.frames),
            items_reserved: limits.incoming.min(limits.frames / 2),
            control_count: 0,
            streams: Slab::new(limits.streams),
            ready: List::new(),
            timers: Schedule::new(limits.streams),
            is_short_of_items: false,
            peers: BySlot::new(limits.peers, || ToPeer::new(0)),
            waiting: BySlot::new(limits.peers, List::new),
            bundle: Vec::with_capacity(BUNDLE_MAX),
            polled_to: (NONE, 0),
            unread: None,
            id_floor: u64::from(shard) << 56 | 1,
            number_floor: 1,
        }
    }

    /// The messages of the frame that was polled last.
    pub(super) fn polled(&self, index: usize) -> &Outbound {
        &self.messages[self.bundle[index]]
    }

    /// Whether a stream may have something to send.
    pub(super) const fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Begins with a peer in a slot that was free.
    pub(super) fn begin_peer(&mut self, peer: u32) {
        self.peers[peer] = ToPeer::new(self.id_floor);
    }

    /// Whether nothing is sent to a peer.
    pub(super) fn is_idle(&self, peer: u32) -> bool {
        self.peers[peer].unfinished.is_empty() && self.peers[peer].deferred.is_empty()
    }

    /// Forgets a peer that is idle.
    pub(super) fn forget_peer(&mut self, peer: u32) {
        self.unread.take_if(|unread| unread.peer == peer);
        for stream in existing(self.peers[peer].streams) {
            self.drop_control_frames(stream);
            self.free_stream(stream);
        }
        self.id_floor = self.id_floor.max(self.peers[peer].next_id);
    }

    /// Takes a message to be sent by a path; there is room for it.
    pub(super) fn submit(&mut self, transmit: &Transmit, path: u32, sessions: &mut Sessions) {
        let now = sessions.local.now;
        let deadline = now + sessions.local.times.message;
        let Transmit { ni, next_hop, header, .. } = transmit;
        let is_ours = header.destination.nid == *next_hop && sessions.nid_of(*ni) == Some(&header.source.nid);
        let message = Outbound {
            transmit: *transmit,
            path,
            source_ni: is_ours.then_some(*ni),
            peer: NONE,
            stream: NONE,
            shard: 0,
            id: 0,
            stage: Stage::Waiting,
            next_offset: 0,
            extended_at: now,
            begun: false,
            sent_before_bytes: None,
            first_sent: None,
            was_sent: false,
            not_to: None,
            is_told: false,
            bundled: false,
            open_frames: 0,
            ticket: None,
            deadline,
            queue: Link::UNLINKED,
            ids: Link::UNLINKED,
            deadlines: Link::UNLINKED,
        };
        let is_partial = message.is_partial();
        let Ok(slot) = self.messages.insert(message) else { unreachable!("there was room") };
        if is_partial {
            self.partial.push(slot);
        }
        self.deadlines.push_back(&mut self.messages, slot);
        sessions.local.set_timer(deadline);
        self.dispatch(slot, sessions);
    }

    /// Gives a message that is in no list its id and its stream; where its path has no session, it waits.
    pub(super) fn dispatch(&mut self, slot: u32, sessions: &mut Sessions) {
        let now = sessions.local.now;
        let path = self.messages[slot].path;
        let peer_slot = sessions.paths[path].peer;
        if sessions.peers.get(peer_slot).is_none_or(|peer| peer.steering.is_none()) {
            sessions.ask(path);
            return self.wait(slot);
        }
        let (id, shard) = self.next_id(peer_slot, slot, sessions);
        let is_in_window = id - self.peers[peer_slot].oldest_id(&self.messages) < WINDOW_IDS;
        let stream = is_in_window.then(|| self.stream_to(peer_slot, shard, sessions)).flatten();
        let Some(stream) = stream else {
            sessions.local.starve();
            return self.wait(slot);
        };
        if !self.leads(stream, path, sessions) {
            sessions.ask(path);
            if !sessions.paths[path].is_silent(now) || self.path_for(stream, path, sessions).is_none() {
                return self.wait(slot);
            }
        }
        let message = &mut self.messages[slot];
        (message.peer, message.stream, message.shard) = (peer_slot, stream, shard);
        (message.id, message.stage) = (id, Stage::Queued);
        let peer = &mut self.peers[peer_slot];
        peer.next_id = id + 1;
        peer.unfinished.push_back(&mut self.messages, slot);
        self.streams[stream].queue.push_back(&mut self.messages, slot);
        self.make_ready(stream);
    }

    /// The id that a message gets next, and the shard of its peer that it goes to thereby. A message that was
    /// pulled goes to the shard that has its ticket, although ids may decide about shards: others are left
    /// out.
    fn next_id(&self, peer: u32, slot: u32, sessions: &Sessions) -> (u64, u8) {
        let next_id = self.peers[peer].next_id;
        let message = &self.messages[slot];
        let Some(steering) = &sessions.peers[peer].steering else {
            unreachable!("a peer with a session has told")
        };
        let header = &message.transmit.header;
        let Some(mut key) = SteerKey::of(header, next_id, sessions.local.initiator_hash) else {
            panic!("a shard's messages have a steering key, this one is {header:?}")
        };
        let first = (next_id, steering.shard_of(&key));
        if message.ticket.is_none() || first.1 == message.shard {
            return first;
        }
        let others = (first.0 + 1..first.0 + IDS_LEFT_OUT_MAX).map(|id| {
            key.message_id = id;
            (id, steering.shard_of(&key))
        });
        // Without one the policy has changed meanwhile.
        others.into_iter().find(|(_, shard)| *shard == message.shard).unwrap_or(first)
    }

    fn wait(&mut self, slot: u32) {
        self.messages[slot].stage = Stage::Waiting;
        let path = self.messages[slot].path;
        self.waiting[path].push_back(&mut self.messages, slot);
    }

    /// Sends what waits for a session of a path, as far as it can be.
    pub(super) fn dispatch_waiting(&mut self, path: u32, sessions: &mut Sessions) {
        let mut waiting = core::mem::replace(&mut self.waiting[path], List::new());
        while let Some(message) = waiting.pop_front(&mut self.messages) {
            self.dispatch(message, sessions);
        }
    }

    /// Sends what waits for a session of a path by another one.
    pub(super) fn dispatch_by_another(&mut self, path: u32, other: u32, sessions: &mut Sessions) {
        let mut waiting = core::mem::replace(&mut self.waiting[path], List::new());
        while let Some(message) = waiting.pop_front(&mut self.messages) {
            sessions.paths.refer(other);
            self.messages[message].path = other;
            sessions.paths.release(path);
            self.dispatch(message, sessions);
        }
    }

    /// A peer has given a session: sends what waited for it, also by paths that do not answer.
    pub(super) fn go_on_with_peer(&mut self, peer: u32, sessions: &mut Sessions) {
        for stream in existing(self.peers[peer].streams) {
            // There was no better path before.
            self.streams[stream].failover.take_if(|failover| failover.taken == NONE);
            self.go_on(stream);
        }
        let mut next = sessions.paths.first_of_peer(peer);
        while let Some(path) = List::<OfPeer>::step(&sessions.paths, &mut next) {
            self.dispatch_waiting(path, sessions);
        }
    }

    /// Finds or makes the stream to a shard of a peer; `None` when all are in use.
    fn stream_to(&mut self, peer: u32, shard: u8, sessions: &Sessions) -> Option<u32> {
        let now = sessions.local.now;
        let known = self.peers[peer].streams[usize::from(shard)];
        if known != NONE {
            return Some(known);
        }
        if self.streams.is_full() {
            let idle = self.streams.used().find(|(_, stream)| stream.is_idle()).map(|(slot, _)| slot)?;
            self.free_stream(idle);
        }
        let mut stream = SendStream::new(peer, shard, self.number_floor, now);
        if let Some(rtt) = sessions.peers[peer].rtt {
            stream.congestion.measure(rtt);
        }
        let slot = self.streams.insert(stream).ok()?;
        self.peers[peer].streams[usize::from(shard)] = slot;
        Some(slot)
    }

    /// Forgets an idle stream.
    fn free_stream(&mut self, slot: u32) {
        self.ready.discard(&mut self.streams, slot);
        self.timers.remove(slot);
        let stream = self.streams.remove(slot);
        self.number_floor = self.number_floor.max(stream.next_number);
        self.peers[stream.peer].streams[usize::from(stream.shard)] = NONE;
    }

    #[inline]
    fn make_ready(&mut self, stream: u32) {
        self.ready.add(&mut self.streams, stream);
    }

    /// Takes a message out of every list that it is in, with its frames; it keeps its path and its
    /// deadline.
    fn detach(&mut self, slot: u32) {
        let message = &self.messages[slot];
        let (stage, path, peer) = (message.stage, message.path, message.peer);
        match stage {
            Stage::Waiting => self.waiting[path].remove(&mut self.messages, slot),
            Stage::Deferred => self.peers[peer].deferred.remove(&mut self.messages, slot),
            Stage::Queued | Stage::Awaiting | Stage::Sent => {
                match stage {
                    Stage::Queued => self.unqueue(slot),
                    Stage::Awaiting => self.streams[self.messages[slot].stream].awaiting_count -= 1,
                    _ => {}
                }
                self.withdraw_frames(slot);
                self.peers[peer].unfinished.remove(&mut self.messages, slot);
            }
        }
    }

    /// Takes a message of which parts were never sent out of its stream's lists.
    fn unqueue(&mut self, slot: u32) {
        let stream = &mut self.streams[self.messages[slot].stream];
        if self.messages[slot].begun {
            stream.begun.remove(&mut self.messages, slot);
            stream.begun_count -= 1;
        } else {
            stream.queue.remove(&mut self.messages, slot);
        }
    }

    /// Ends a message.
    pub(super) fn finish(&mut self, slot: u32, status: Status, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let stage = self.messages[slot].stage;
        self.detach(slot);
        if stage != Stage::Deferred {
            self.deadlines.remove(&mut self.messages, slot);
        }
        let message = self.messages.remove(slot);
        if message.is_partial() {
            self.partial.retain(|partial| *partial != slot);
        }
        call.sessions.paths.release(message.path);
        self.go_on_with_items();
        call.up.sent(now, message.transmit.tx, status);
    }

    /// Takes a message out of its stream: it begins anew, unless it may have arrived, which leaves its fate
    /// unknown.
    fn begin_anew(&mut self, slot: u32, may_be_there: bool, call: &mut SendContext<'_, impl Uplink>) {
        if may_be_there {
            return self.finish(slot, Status::Unknown(Cause::Reset), call);
        }
        self.detach(slot);
        let message = &mut self.messages[slot];
        (message.peer, message.stream) = (NONE, NONE);
        message.rewind();
        message.was_sent |= message.polled();
        (message.bundled, message.first_sent) = (false, None);
        self.dispatch(slot, call.sessions);
    }

    /// A peer has begun a new life, which lived at this time, as far as one is known. A message of which
    /// nothing was sent before has been read by that life alone, which has refused it: it goes again. Of the
    /// others the fate is unknown. Where the peer may live on at other addresses than the one that told of
    /// the new life, it does not get again what went there.
    pub(super) fn end_peer(
        &mut self,
        peer: u32,
        (lives_at, told_by): (Option<Instant>, &Nid),
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        for slot in 0..self.messages.capacity() {
            // A message that was pulled may wait, and has a ticket of the peer's.
            let Some(message) = self.messages.get(slot).filter(|message| message.peer == peer) else {
                continue;
            };
            let PeerIncarnation { incarnation, address, .. } = &call.sessions.peers[peer];
            let may_be_there = message.may_have_been_read_before(lives_at);
            let lives_on = address.1 != *told_by && call.sessions.paths[message.path].nid != *told_by;
            let first_sent = message.first_sent.filter(|_| lives_on);
            let not_to = first_sent.map(|_| *incarnation);
            self.begin_anew(slot, may_be_there, call);
            if !may_be_there && not_to.is_some() {
                let message = &mut self.messages[slot];
                (message.first_sent, message.not_to) = (first_sent, not_to);
            }
        }
    }

    /// A peer lives that was taken for ended: what it may have had, and waited to go again, ends.
    pub(super) fn end_not_to(&mut self, incarnation: u64, call: &mut SendContext<'_, impl Uplink>) {
        for slot in 0..self.messages.capacity() {
            let is_it = |message: &Outbound| message.not_to == Some(incarnation) && message.peer == NONE;
            if self.messages.get(slot).is_some_and(is_it) {
                self.finish(slot, Status::Unknown(Cause::Reset), call);
            }
        }
    }

    /// When a frame was sent to a peer, by the id in it and the lower half of its number; `None` if that is
    /// not known any more.
    pub(super) fn sent_at(&self, peer: u32, id: u64, number: u32) -> Option<Instant> {
        let mut next = self.peers[peer].unfinished.first();
        while let Some(slot) = List::<Unfinished>::step(&self.messages, &mut next) {
            let Outbound { id: its, first_sent, .. } = &self.messages[slot];
            let is_it = |(_, first): &(Instant, u64)| *its == id && *first as u32 == number;
            if let Some((sent_at, _)) = first_sent.filter(is_it) {
                return Some(sent_at);
            }
        }
        let mut items = existing(self.peers[peer].streams).flat_map(|stream| {
            let SendStream { outstanding, pending, .. } = &self.streams[stream];
            [outstanding.first(), pending.first()]
        });
        items.find_map(|mut next| {
            while let Some(item) = List::<InStream>::step(&self.items, &mut next) {
                let SentItem { cargo, number: its, sent_at, sends, .. } = &self.items[item];
                let of = match cargo {
                    Cargo::Fragment { message, .. } => self.messages[*message].id,
                    Cargo::Control(control) => control.id,
                };
                if *sends != 0 && *its as u32 == number && of == id {
                    return Some(*sent_at);
                }
            }
            None
        })
    }

    /// A peer has told its policies anew: messages that belong to other shards of its now go there, unless
    /// frames of them have been sent, whose fate is unknown.
    pub(super) fn steer_again(&mut self, peer: u32, call: &mut SendContext<'_, impl Uplink>) {
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            let is_under_way = matches!(message.stage, Stage::Queued | Stage::Awaiting | Stage::Sent)
                && message.peer == peer;
            let shard_now = || {
                let hash = call.sessions.local.initiator_hash;
                let key = SteerKey::of(&message.transmit.header, message.id, hash)?;
                Some(call.sessions.peers[peer].steering.as_ref()?.shard_of(&key))
            };
            if is_under_way && shard_now() != Some(message.shard) {
                let may_be_there = message.polled();
                self.begin_anew(slot, may_be_there, call);
            }
        }
    }

    /// An NI is gone: its messages go to their peers by the paths by which those are spoken to; they
    /// end where there is none.
    pub(super) fn remove_ni(&mut self, ni: NiId, call: &mut SendContext<'_, impl Uplink>) {
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            let former = message.path;
            if call.sessions.paths[former].ni != ni {
                continue;
            }
            let Some(path) = call.sessions.other_path(call.sessions.paths[former].peer) else {
                let status = message.unfinished(Cause::Device);
                self.finish(slot, status, call);
                continue;
            };
            let waits = message.stage == Stage::Waiting;
            if waits {
                self.detach(slot);
            }
            self.messages[slot].path = path;
            call.sessions.paths.release(former);
            if waits {
                self.dispatch(slot, call.sessions);
            }
        }
    }

    /// No node lives where a path leads: messages that wait there for a session end.
    pub(super) fn fail_waiting(&mut self, path: u32, cause: Cause, call: &mut SendContext<'_, impl Uplink>) {
        while let Some(message) = self.messages.get(self.waiting[path].first()) {
            let status = message.unfinished(cause);
            self.finish(self.waiting[path].first(), status, call);
        }
    }

    /// No node lives where a path leads at present: pings that go there end.
    pub(super) fn fail_pings(&mut self, path: u32, cause: Cause, call: &mut SendContext<'_, impl Uplink>) {
        let mut next = self.deadlines.first();
        while let Some(slot) = List::<Deadlines>::step(&self.messages, &mut next) {
            let message = &self.messages[slot];
            if message.path == path && message.is_ping() {
                let status = message.unfinished(cause);
                self.finish(slot, status, call);
            }
        }
    }

    /// An NI does not send any more: messages that only it carried end; those that have no other way stay
    /// where these wait.
    pub(super) fn fail_ni(
        &mut self,
        ni: NiId,
        (cause, others_wait): (Cause, bool),
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        for path in 0..call.sessions.paths.capacity() {
            if call.sessions.paths.get(path).is_some_and(|path| path.ni == ni) {
                call.sessions.note_silence(path, call.up);
            }
        }
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            let is_elsewhere =
                || call.sessions.peers.get(message.peer).is_some_and(|peer| peer.address.0 != ni);
            let path = &call.sessions.paths[message.path];
            let waits = || others_wait && call.up.another_path(&path.as_path(), |_| true).is_none();
            if path.ni == ni && !is_elsewhere() && !waits() {
                let status = message.unfinished(cause);
                self.finish(slot, status, call);
            }
        }
    }
}
