//! The sending side: messages become frames.

use lnet_wire::frame::{
    FIRST_HEADERS_BYTES, FRAGMENT_UNIT_BYTES, FRAME_HEADER_BYTES, FrameHeader, RECORD_BYTES, Transfer,
};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::SteerKey;

use super::congestion::frame_cost;
use super::flow::{DETOUR, Flow};
use super::message::{Outbound, Stage};
use super::peer::Session;
use super::record::{Cargo, Record};
use super::state::Xfer;
use super::window::WINDOW_IDS;
use super::{BUNDLE_MAX, Content, Outgoing};
use crate::list::{Link, NONE};
use crate::lnd::{Full, Span, Transmit, TxId};
use crate::time::Instant;

/// Payload of a message that may share a frame with others.
pub(super) const BUNDLED_BYTES_MAX: u32 = 1024;
/// Fragments of messages that were begun before the queue has its turn.
const TURN_FRAGMENTS: u32 = 4;
/// How often a frame is sent by its own way before the one is taken that the peer was heard by last.
const SENDS_BY_OWN_WAY: u8 = 3;
/// Messages of several frames that are begun at once.
const BEGUN_MAX: u32 = 4;

/// Ids that are looked at for one that leads to a shard: enough for any number of shards.
const IDS_LEFT_OUT_MAX: u64 = 1024;

/// Bytes before the payload of a first fragment.
pub(super) const HEADERS_BYTES: u32 = FIRST_HEADERS_BYTES as u32;

impl Xfer {
    /// Takes a message to be sent. Its payload is read again whenever a frame of it is, until it ends.
    ///
    /// # Errors
    /// [`Full`] when it holds as many messages, or knows as many addresses, as it may.
    pub fn submit(&mut self, now: Instant, transmit: &Transmit) -> Result<(), Full<TxId>> {
        if self.messages.is_full() {
            return Err(Full(transmit.tx));
        }
        let Some(contact) = self.contacts.acquire(transmit.ni, &transmit.next_hop) else {
            return Err(Full(transmit.tx));
        };
        let deadline = now + self.times.message;
        let message = Outbound {
            transmit: *transmit,
            contact,
            peer: NONE,
            flow: NONE,
            shard: 0,
            id: 0,
            stage: Stage::Waiting,
            next_offset: 0,
            begun: false,
            polled: false,
            open_frames: 0,
            ticket: None,
            deadline,
            queue: Link::UNLINKED,
            ids: Link::UNLINKED,
            deadlines: Link::UNLINKED,
        };
        let Ok(slot) = self.messages.insert(message) else { unreachable!("there was room") };
        self.deadlines.push_back(&mut self.messages, slot);
        self.set_timer(deadline);
        self.dispatch(now, slot);
        Ok(())
    }

    /// Gives a message that is in no list its id and its flow; where its contact has no session, it waits.
    pub(super) fn dispatch(&mut self, now: Instant, slot: u32) {
        let contact = self.messages[slot].contact;
        let peer_slot = self.contacts.slab[contact].peer;
        if self.peers.slab.get(peer_slot).is_none_or(|peer| peer.steering.is_none()) {
            self.ask(now, contact);
            return self.wait(slot);
        }
        let (id, shard) = self.next_id(peer_slot, slot);
        let peer = &self.peers.slab[peer_slot];
        if id - peer.oldest_id(&self.messages) >= WINDOW_IDS {
            self.starve(now);
            return self.wait(slot);
        }
        let Some(flow) = self.flow_to(now, peer_slot, shard) else {
            self.starve(now);
            return self.wait(slot);
        };
        if !self.leads(now, flow, contact) {
            self.ask(now, contact);
            if !self.contacts.is_silent(contact) || self.way(now, flow, contact).is_none() {
                return self.wait(slot);
            }
        }
        let message = &mut self.messages[slot];
        (message.peer, message.flow, message.shard) = (peer_slot, flow, shard);
        (message.id, message.stage) = (id, Stage::Queued);
        let peer = &mut self.peers.slab[peer_slot];
        peer.next_id = id + 1;
        peer.unfinished.push_back(&mut self.messages, slot);
        self.flows[flow].queue.push_back(&mut self.messages, slot);
        self.make_ready(flow);
    }

    /// The id that a message gets next, and the shard of its peer that it goes to thereby. A message that was
    /// pulled goes to the shard that has its ticket, although ids may decide about shards: others are left out.
    fn next_id(&self, peer: u32, slot: u32) -> (u64, u8) {
        let peer = &self.peers.slab[peer];
        let message = &self.messages[slot];
        let Some(steering) = &peer.steering else { unreachable!("a peer with a session has told") };
        let header = &message.transmit.header;
        let Some(mut key) = SteerKey::of(header, peer.next_id, self.initiator_hash) else {
            panic!("a shard's messages have a steering key, this one is {header:?}")
        };
        let first = (peer.next_id, steering.shard_of(&key));
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
        let contact = self.messages[slot].contact;
        self.contacts.slab[contact].waiting.push_back(&mut self.messages, slot);
    }

    /// Messages, or words about them, wait for room in a table: they are tried again soon.
    pub(super) fn starve(&mut self, now: Instant) {
        self.starved = true;
        self.set_timer(now + self.times.hold);
    }

    /// Finds or makes the flow to a shard of a peer; `None` when all are in use.
    pub(super) fn flow_to(&mut self, now: Instant, peer: u32, shard: u8) -> Option<u32> {
        let known = self.peers.slab[peer].flows[usize::from(shard)];
        if known != NONE {
            return Some(known);
        }
        if self.flows.is_full() {
            let idle =
                (0..self.flows.capacity()).find(|slot| self.flows.get(*slot).is_some_and(Flow::is_idle))?;
            self.free_flow(idle);
        }
        let mut flow = Flow::new(peer, shard, self.number_floor, now);
        if let Some(rtt) = self.peers.slab[peer].rtt {
            flow.congestion.measure(rtt);
        }
        let slot = self.flows.insert(flow).ok()?;
        self.peers.slab[peer].flows[usize::from(shard)] = slot;
        Some(slot)
    }

    /// Forgets an idle flow.
    pub(super) fn free_flow(&mut self, slot: u32) {
        if self.flows[slot].is_ready {
            self.ready.remove(&mut self.flows, slot);
        }
        if self.flows[slot].is_busy {
            self.busy_flows.remove(&mut self.flows, slot);
        }
        let flow = self.flows.remove(slot);
        self.number_floor = self.number_floor.max(flow.next_number);
        self.peers.slab[flow.peer].flows[usize::from(flow.shard)] = NONE;
    }

    #[inline]
    pub(super) fn make_ready(&mut self, flow: u32) {
        if !self.flows[flow].is_ready {
            self.flows[flow].is_ready = true;
            self.ready.push_back(&mut self.flows, flow);
        }
    }

    /// The next frame to be sent; the driver has room for one of the largest size.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some(reply) = self.replies.pop_front() {
            return Some(self.reply_frame(reply));
        }
        while let Some(flow) = self.ready.pop_front(&mut self.flows) {
            self.flows[flow].is_ready = false;
            if let Some(frame) = self.next_frame(now, flow) {
                self.go_on(flow);
                return Some(frame);
            }
        }
        // Those that have no way have asked for one.
        if let Some(reply) = self.replies.pop_front() {
            return Some(self.reply_frame(reply));
        }
        let inflow = self.acks.first();
        (inflow != NONE).then(|| self.ack_frame(inflow))
    }

    /// The fields that are the same in every frame of this shard.
    #[inline]
    pub(super) fn transfer(&self, number: u64, session: u64) -> Transfer {
        Transfer {
            number: number as u32,
            incarnation: self.incarnation,
            session,
            oldest: 0,
            shard: self.shard,
            ack_now: false,
            ack: None,
            payload_crc: None,
            ticket: None,
        }
    }

    /// The next frame of a flow, if it has one that may be sent now.
    fn next_frame(&mut self, now: Instant, flow_slot: u32) -> Option<Outgoing> {
        let pending = self.flows[flow_slot].pending.first();
        if pending != NONE {
            let Cargo::Fragment { message, offset, length } = self.records[pending].cargo else {
                return self.notice_frame(now, flow_slot, pending);
            };
            let flow = &mut self.flows[flow_slot];
            // Where nothing is acknowledged at all the probes change the way.
            let overtaken = flow.congestion.probes() == 0;
            if overtaken && self.records[pending].sends >= SENDS_BY_OWN_WAY && !flow.takes_detour(now) {
                flow.detour_until = Some(now + DETOUR);
                let peer = flow.peer;
                self.ask_where_heard(now, peer);
            }
            let way = self.way_of(now, flow_slot, message)?;
            let room = self.room_bytes(flow_slot, way, offset, length)?;
            if room < length && !self.split(flow_slot, pending, room) {
                self.short_of_records = true;
                return None;
            }
            return self.message_frame(now, flow_slot, pending, way);
        }
        if self.is_short_of_records() {
            self.short_of_records = true;
            return None;
        }
        let message = self.next_message(flow_slot)?;
        let offset = self.messages[message].next_offset;
        let rest = self.messages[message].total_bytes() - offset;
        let way = self.way_of(now, flow_slot, message)?;
        let length = self.room_bytes(flow_slot, way, offset, rest)?;
        let record = self.cut(message, offset, length);
        let flow = &mut self.flows[flow_slot];
        flow.owes(now);
        flow.pending.push_front(&mut self.records, record);
        self.message_frame(now, flow_slot, record, way)
    }

    /// Whether only notices may have further records.
    #[inline]
    pub(super) fn is_short_of_records(&self) -> bool {
        self.free_records() == 0
    }

    /// Records that fragments may still have.
    #[inline]
    pub(super) fn free_records(&self) -> u32 {
        let fragments = self.records.used_count() - self.notice_count;
        (self.records.capacity() - self.records_kept).saturating_sub(fragments)
    }

    /// The message whose turn it is: of those begun, several fragments for each of the queue.
    fn next_message(&self, slot: u32) -> Option<u32> {
        let flow = &self.flows[slot];
        let (begun, queued) = (flow.begun.first(), flow.queue.first());
        let Some(message) = self.messages.get(queued) else { return (begun != NONE).then_some(begun) };
        let fits = || message.total_bytes() <= self.datagram_max(message.contact) - HEADERS_BYTES;
        let queue_first =
            begun == NONE || (flow.turn >= TURN_FRAGMENTS && (flow.begun_count < BEGUN_MAX || fits()));
        Some(if queue_first { queued } else { begun })
    }

    /// How much of `length` bytes at `offset` of a message one frame takes that goes by a contact; `None` if the
    /// window is full.
    fn room_bytes(&self, flow: u32, contact: u32, offset: u32, length: u32) -> Option<u32> {
        let headers = if offset == 0 { HEADERS_BYTES } else { FRAME_HEADER_BYTES as u32 };
        let room = self.datagram_max(contact) - headers;
        let flow = &self.flows[flow];
        let taken = if room >= length { length } else { room / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES };
        let cost = frame_cost(headers + taken);
        (flow.has_room_for(cost) || flow.in_flight_bytes == 0 || flow.probes_due != 0).then_some(taken)
    }

    /// The longest datagram that goes by a contact with a session.
    fn datagram_max(&self, contact: u32) -> u32 {
        let contact = &self.contacts.slab[contact];
        let own = self.own_datagram_max(contact.ni);
        contact.session.map_or(own, |session| own.min(session.datagram_max_bytes))
    }

    /// Takes the next fragment of a message.
    fn cut(&mut self, slot: u32, offset: u32, length: u32) -> u32 {
        let cargo = Cargo::Fragment { message: slot, offset, length };
        let record = self.new_record(cargo).unwrap_or_else(|| unreachable!("there was room"));
        self.unqueue(slot);
        let message = &mut self.messages[slot];
        let flow = &mut self.flows[message.flow];
        flow.turn = if message.begun { flow.turn + 1 } else { 0 };
        message.next_offset += length;
        message.begun = true;
        message.open_frames += 1;
        if message.is_cut() {
            message.stage = Stage::Sent;
        } else {
            flow.begun.push_back(&mut self.messages, slot);
            flow.begun_count += 1;
        }
        record
    }

    pub(super) fn new_record(&mut self, cargo: Cargo) -> Option<u32> {
        let record =
            Record { cargo, number: 0, sent_at: Instant(0), cost_bytes: 0, sends: 0, link: Link::UNLINKED };
        self.records.insert(record).ok()
    }

    /// Leaves the first `room` bytes of a pending fragment in it; the rest becomes another one.
    fn split(&mut self, flow: u32, record: u32, room: u32) -> bool {
        let Cargo::Fragment { message, offset, length } = self.records[record].cargo else {
            unreachable!("only fragments are split")
        };
        let cargo = Cargo::Fragment { message, offset: offset + room, length: length - room };
        // Of any that is free: what was begun by a longer path has to go on.
        let Some(rest) = self.new_record(cargo) else { return false };
        self.records[rest].sends = self.records[record].sends;
        self.records[record].cargo = Cargo::Fragment { message, offset, length: room };
        self.messages[message].open_frames += 1;
        let pending = &mut self.flows[flow].pending;
        pending.remove(&mut self.records, record);
        pending.push_front(&mut self.records, rest);
        pending.push_front(&mut self.records, record);
        true
    }

    /// The frame of the first pending record, which becomes an outstanding one.
    fn message_frame(&mut self, now: Instant, flow: u32, record: u32, way: u32) -> Option<Outgoing> {
        let Cargo::Fragment { message: slot, offset, length } = self.records[record].cargo else {
            unreachable!("notices have frames of their own")
        };
        let (ni, destination, token) = self.contacts.session(way);
        self.bundle.clear();
        self.bundle.push(slot);
        let mut datagram_bytes = FRAME_HEADER_BYTES as u32 + length;
        if offset == 0 {
            datagram_bytes += LARGE_HEADER_BYTES as u32;
        }
        let whole = length == self.messages[slot].total_bytes();
        let resent = self.records[record].sends != 0;
        let number = self.launch(now, flow, record);
        if whole && !resent && length <= BUNDLED_BYTES_MAX && self.messages[slot].ticket.is_none() {
            datagram_bytes = self.bundle_more(now, flow, number, datagram_bytes, self.datagram_max(way));
        }
        let (transfer, header, lnet, payload) = {
            let message = &mut self.messages[slot];
            message.polled = true;
            let header = &message.transmit.header;
            let key = SteerKey::of(header, message.id, self.initiator_hash)?;
            let payload = (length != 0).then(|| sub_span(message.transmit.payload, offset, length)).flatten();
            let total = message.total_bytes();
            let bundled = self.bundle.len() > 1;
            let header = FrameHeader { bundled, ..FrameHeader::data(key, offset, total) };
            let lnet = (offset == 0).then_some(message.transmit.header);
            let (id, ticket, peer) = (message.id, message.ticket, message.peer);
            let oldest = (id - self.peers.slab[peer].oldest_id(&self.messages)) as u16;
            (Transfer { oldest, ticket, ..self.transfer(number, token) }, header, lnet, payload)
        };
        let transfer = self.charge(now, flow, record, datagram_bytes, transfer);
        let bundled = (self.bundle.len() - 1) as u8;
        Some(Outgoing {
            ni,
            destination,
            header,
            transfer,
            content: Content::Message { lnet, payload, bundled, resent },
        })
    }

    /// Puts further small messages that are ready into a frame of `limit` bytes at most; returns its length.
    fn bundle_more(
        &mut self,
        now: Instant,
        flow: u32,
        number: u64,
        mut datagram_bytes: u32,
        limit: u32,
    ) -> u32 {
        if self.flows[flow].queue.is_empty() {
            return datagram_bytes;
        }
        let first = self.bundle[0];
        while self.bundle.len() < BUNDLE_MAX {
            let slot = self.flows[flow].queue.first();
            let Some(message) = self.messages.get(slot) else { break };
            let length = message.total_bytes();
            let bytes = (RECORD_BYTES + LARGE_HEADER_BYTES) as u32 + length;
            let fits = !message.begun
                && message.ticket.is_none()
                && length <= BUNDLED_BYTES_MAX
                && message.contact == self.messages[first].contact
                && message.id - self.messages[first].id <= u64::from(u16::MAX)
                && datagram_bytes + bytes <= limit
                && !self.is_short_of_records();
            if !fits {
                break;
            }
            let record = self.cut(slot, 0, length);
            self.flows[flow].outstanding.push_back(&mut self.records, record);
            let record = &mut self.records[record];
            (record.number, record.sent_at, record.sends) = (number, now, 1);
            self.messages[slot].polled = true;
            self.bundle.push(slot);
            self.counters.messages_bundled += 1;
            datagram_bytes += bytes;
        }
        datagram_bytes
    }

    fn notice_frame(&mut self, now: Instant, flow: u32, record: u32) -> Option<Outgoing> {
        let Cargo::Notice { kind, id, ticket } = self.records[record].cargo else {
            unreachable!("fragments have frames of their own")
        };
        let heard = self.heard_by(now, flow);
        if heard.is_none() {
            self.ask_where_heard(now, self.flows[flow].peer);
        }
        let own = heard.filter(|_| !self.flows[flow].takes_detour(now));
        let way = own.or_else(|| self.any_way(now, flow, heard)).or(heard)?;
        let (ni, destination, token) = self.contacts.session(way);
        let number = self.launch(now, flow, record);
        let transfer = Transfer { ticket: Some(ticket), ..self.transfer(number, token) };
        let transfer = self.charge(now, flow, record, FRAME_HEADER_BYTES as u32, transfer);
        let header = FrameHeader::other(kind, self.flows[flow].shard, id);
        Some(Outgoing { ni, destination, header, transfer, content: Content::Nothing })
    }

    /// Moves the first pending record to the outstanding ones, under a new number.
    fn launch(&mut self, now: Instant, flow: u32, record: u32) -> u64 {
        let flow = &mut self.flows[flow];
        flow.pending.remove(&mut self.records, record);
        if flow.outstanding.is_empty() {
            flow.waits_since = now;
        }
        let number = flow.next_number;
        flow.next_number += 1;
        flow.outstanding.push_back(&mut self.records, record);
        let record = &mut self.records[record];
        self.counters.frames_sent += 1;
        self.counters.frames_resent += u64::from(record.sends != 0);
        (record.number, record.sent_at, record.sends) = (number, now, record.sends.saturating_add(1));
        number
    }

    /// Counts a frame as in flight, and completes what it says of the flow.
    #[inline]
    fn charge(
        &mut self,
        now: Instant,
        slot: u32,
        record: u32,
        datagram_bytes: u32,
        transfer: Transfer,
    ) -> Transfer {
        let cost_bytes = frame_cost(datagram_bytes);
        self.records[record].cost_bytes = cost_bytes;
        let flow = &mut self.flows[slot];
        flow.in_flight_bytes += cost_bytes;
        let is_probe = flow.probes_due != 0;
        flow.probes_due = flow.probes_due.saturating_sub(1);
        // Where another one would not fit, all that is left to do is to wait for it.
        let ack_now = is_probe || !flow.has_room_for(cost_bytes);
        let timeout =
            flow.waits_since + flow.congestion.probe_interval(self.times.probe_min, self.times.ack_delay);
        if !flow.is_busy {
            flow.is_busy = true;
            self.busy_flows.push_back(&mut self.flows, slot);
        }
        self.set_timer(timeout.max(now));
        let flow = &self.flows[slot];
        let inflow = self.peers.slab[flow.peer].inflows[usize::from(flow.shard)];
        let ack = if inflow == NONE { None } else { self.acknowledgement(inflow) };
        Transfer { ack_now, ack, ..transfer }
    }

    /// Whether frames of a flow may go by a contact: it has a session, which is no old one where the receiver may have
    /// forgotten this sender, and would not begin anew with it.
    #[inline]
    fn leads(&self, now: Instant, flow: u32, contact: u32) -> bool {
        let flow = &self.flows[flow];
        let contact = &self.contacts.slab[contact];
        let is_good = |session: &Session| !session.is_aged(now) || flow.is_open(now, self.times.message);
        contact.peer == flow.peer && contact.session.as_ref().is_some_and(is_good)
    }

    /// The contact under which the peer of a flow was heard last, if it leads there.
    fn heard_by(&self, now: Instant, flow: u32) -> Option<u32> {
        let (ni, nid) = &self.peers.slab[self.flows[flow].peer].address;
        self.contacts.find(*ni, nid).filter(|contact| self.leads(now, flow, *contact))
    }

    /// A contact that leads to the peer of a flow, another one than this.
    fn any_way(&self, now: Instant, flow: u32, except: Option<u32>) -> Option<u32> {
        let leads = |contact: &u32| Some(*contact) != except && self.leads(now, flow, *contact);
        self.contacts.of_peer(self.flows[flow].peer).find(leads)
    }

    /// The contact by which a frame of a message goes: its own; when that has no session, or has not answered, the one
    /// under which the peer was heard last, or whichever leads there.
    #[inline]
    fn way(&self, now: Instant, flow: u32, own: u32) -> Option<u32> {
        let leads = self.leads(now, flow, own);
        if leads && !self.flows[flow].takes_detour(now) {
            return Some(own);
        }
        self.heard_by(now, flow).or(leads.then_some(own)).or_else(|| self.any_way(now, flow, None))
    }

    /// The contact by which a frame of a message goes; where there is none, a session is asked for.
    #[inline]
    fn way_of(&mut self, now: Instant, flow: u32, message: u32) -> Option<u32> {
        let own = self.messages[message].contact;
        let way = self.way(now, flow, own);
        if way.is_none() {
            let peer = self.flows[flow].peer;
            if self.contacts.slab[own].peer == peer {
                self.ask(now, own);
            }
            self.ask_where_heard(now, peer);
        }
        way
    }
}

/// A part of a payload.
fn sub_span(payload: Option<Span>, offset: u32, length: u32) -> Option<Span> {
    let span = payload?;
    Some(Span { offset_bytes: span.offset_bytes + u64::from(offset), length_bytes: length, ..span })
}
