//! What the nodes of a fleet say to each other: Puts and their ACKs by the shards, pings and pushes by the
//! state machines.

use std::sync::Arc;

use lnet_core::event::{Event as LnetEvent, EventKind};
use lnet_core::lnd::{Cause, NiId, Path, PathReport, Status, TxId, Uplink as _};
use lnet_core::node::{Action, DriverError, PingId, Report, Request, peer_state};
use lnet_core::shard::HealthNote;
use lnet_core::time::Instant;
use lnet_core::topology::NiStatus;
use lnet_wire::{Body, Header, Nid};

use super::network::{SILENCE_NS, pair};
use super::node::PUT_BYTES;
use super::{Event, Life, Put, SECOND_NS, World};

/// After which time a ping or push that comes to nothing ends.
const UNANSWERED_NS: u64 = 2 * SECOND_NS;
/// How long a driver takes to say that a message has gone.
const SENT_NS: u64 = 10_000;

impl World<'_> {
    pub(super) fn put(&mut self, number: u32) {
        let member = &self.members[number as usize];
        let partner = member.partners.get(self.random.below(member.partners.len().max(1)));
        if let Some(partner) = partner.copied() {
            // Each knows one NID of the other: one of a net that both are on.
            let nets: Vec<_> = member.nids.iter().map(|(_, nid)| nid.net()).collect();
            let other = &self.members[partner as usize].nids;
            // Or of one that routes lead to.
            let is_common = |nid: &Nid| nets.contains(&nid.net());
            let is_near = other.iter().any(|(_, nid)| is_common(nid));
            let leads = |nid: &Nid| if is_near { is_common(nid) } else { self.has_route(number, nid.net()) };
            let common: Vec<_> = other.iter().filter(|(_, nid)| leads(nid)).collect();
            let (_, nid) = *common[partner as usize % common.len()];
            if !self.is_hostile(number, partner) && self.talked.insert((number, partner)) {
                self.changed_at = self.now;
            }
            self.start_put(number, partner, nid);
        }
        // At the lowest rates the next one is due after the end of all time.
        let interval = (SECOND_NS as f64 / self.fleet.workload.puts_per_second) as u64;
        let interval = interval.min(u64::MAX / 4);
        let next = self.now + interval / 2 + self.below(interval + 1);
        if next < self.end {
            self.at(next, Event::Put(number));
        }
    }

    fn start_put(&mut self, number: u32, to: u32, nid: Nid) {
        let now = Instant(self.now);
        let good = if self.is_hostile(number, to) { 0 } else { self.good_paths(number, to, nid) };
        self.report.puts += 1;
        let put = self.report.puts;
        if self.members[number as usize].put(now, put, PUT_BYTES, nid) {
            self.under_way
                .insert(put, Put { is_acked: false, begun_at: self.now, from: number, to, good, losses: 0 });
        } else {
            self.report.failed += 1;
        }
        if good != 0 && self.is_attacked() {
            let request = Request::Ping { nid, source: None, timeout: None };
            let ping = self.members[number as usize].node.handle_request(now, request);
            self.pinged.insert((number, ping.expect("a path")), (nid, self.now));
        }
        self.settle(number);
    }

    pub(super) fn arrive(&mut self, from: Life, source: Nid, to: Nid, tx: TxId, header: &Header) {
        let now = Instant(self.now);
        let reached = self.place_of(&to).filter(|_| self.is_reached(&source, &to));
        let Some((number, _)) = reached else { return self.lost(from, tx, (source, to), &header.body) };
        if self.is_router(number) {
            self.note_forwarded(header);
        }
        let member = &mut self.members[number as usize];
        member.arrive(now, &source, &to, header);
        self.at(self.now + SENT_NS, Event::Sent { node: from, tx, path: (source, to), status: Status::Ok });
        self.settle(number);
    }

    /// A driver finds out that a message does not come through.
    fn lost(&mut self, node: Life, tx: TxId, path: (Nid, Nid), body: &Body) {
        if let Body::Put { hdr_data, .. } = body
            && let Some(put) = self.under_way.get_mut(hdr_data)
        {
            put.losses += 1;
        }
        let status = Status::NeverSent(Cause::Unreachable);
        self.at(self.now + SILENCE_NS, Event::Sent { node, tx, path, status });
    }

    /// A driver says what it has learned of a path by a message, and how the message has ended.
    pub(super) fn sent(&mut self, number: u32, tx: TxId, (source, to): (Nid, Nid), status: Status) {
        let now = Instant(self.now);
        let member = &mut self.members[number as usize];
        if let Some(ni) = member.slot_of(&source) {
            let answers = PathReport::Answers { round_trip: None };
            let report = if status == Status::Ok { answers } else { PathReport::Silent };
            member.shard.path_health(now, &Path { ni, peer: to }, report);
        }
        member.shard.sent(now, tx, status);
        self.settle(number);
    }

    pub(super) fn pinged(
        &mut self,
        from: Life,
        (ping, source, nid): (PingId, Nid, Nid),
        length_bytes: usize,
    ) {
        let reached = self.place_of(&nid).filter(|_| self.is_reached(&source, &nid));
        if let Some((to, _)) = reached.filter(|(to, _)| self.hostility(*to).is_some()) {
            let bytes = self.hostile_answer(to, &nid, length_bytes);
            return self.answer(from, (ping, source, nid), bytes);
        }
        if let Some((to, _)) = reached.filter(|(to, _)| self.is_router(*to)) {
            let member = &mut self.members[to as usize];
            if let Some(ni) = member.slot_of(&nid) {
                member.node.handle_report(Instant(self.now), Report::Pinged { ni });
                self.settle(to);
            }
        }
        let bytes = reached.map(|(to, _)| {
            let answer = &self.members[to as usize].published;
            answer[..answer.len().min(length_bytes)].to_vec()
        });
        self.answer(from, (ping, source, nid), bytes);
    }

    pub(super) fn pushed(&mut self, from: Life, (ping, source, nid): (PingId, Nid, Nid), bytes: &[u8]) {
        let reached = self
            .place_of(&nid)
            .filter(|(to, _)| self.is_reached(&source, &nid) && self.hostility(*to).is_none());
        if let Some((to, _)) = reached {
            let node = &mut self.members[to as usize].node;
            let room = node.push_room_bytes().min(bytes.len());
            let report = Report::Pushed { from: source, bytes: &bytes[..room], length_bytes: bytes.len() };
            node.handle_report(Instant(self.now), report);
            self.settle(to);
        }
        self.answer(from, (ping, source, nid), reached.map(|_| Vec::new()));
    }

    /// The REPLY or the ACK goes back, if there is one.
    fn answer(&mut self, to: Life, (ping, source, nid): (PingId, Nid, Nid), bytes: Option<Vec<u8>>) {
        let is_answered = bytes.is_some();
        if !is_answered || !self.send(&nid, &source, Event::Answer { to, ping, nid, bytes }) {
            self.unanswered(to, ping, nid);
        }
    }

    fn unanswered(&mut self, to: Life, ping: PingId, nid: Nid) {
        self.at(self.now + UNANSWERED_NS, Event::Answer { to, ping, nid, bytes: None });
    }

    pub(super) fn answered(&mut self, number: u32, ping: PingId, nid: Nid, bytes: Option<&[u8]>) {
        let now = Instant(self.now);
        let node = &mut self.members[number as usize].node;
        match bytes {
            Some(bytes) => {
                // A shard would note the REPLY or ACK.
                let note = HealthNote { nid, failures: 0, successes: 1 };
                node.handle_report(now, Report::Health(note));
                node.handle_report(now, Report::Answered { ping, bytes });
            }
            None => {
                let error = DriverError { errno: 110, message: "no answer".to_owned() };
                node.handle_report(now, Report::Unanswered { ping, error });
            }
        }
        self.settle(number);
    }

    /// Carries out what a node says, and takes what its shard tells.
    pub(super) fn settle(&mut self, number: u32) {
        let now = Instant(self.now);
        while let Some(action) = self.members[number as usize].poll(now) {
            self.carry_out(number, action);
        }
        self.members[number as usize].resume(now);
        self.take_events(number);
        self.take_messages(number);
        let member = &mut self.members[number as usize];
        let timers = [member.node.poll_timeout(), member.shard.poll_timeout()];
        if let Some(at) = timers.into_iter().flatten().min()
            && member.timer.is_none_or(|timer| at.0 < timer)
        {
            member.timer = Some(at.0);
            self.at(at.0, Event::Timer(number));
        }
    }

    fn carry_out(&mut self, number: u32, action: Action<()>) {
        let life = self.life(number);
        if let Some((ping, nid)) = asked(&action).filter(|_| self.hostility(number).is_some()) {
            // The node does what it likes, and not what it should.
            return self.unanswered(life, ping, nid);
        }
        let member = &mut self.members[number as usize];
        match action {
            Action::Ping { ping, nid, length_bytes, .. } => {
                if member.index_of(&nid).is_some() {
                    self.report.recovery_pings += 1;
                    let bytes = Some(member.published.to_vec());
                    return self.at(self.now, Event::Answer { to: life, ping, nid, bytes });
                }
                let is_recovery = member.node.peer(&nid).is_none_or(|peer| !peer.is(peer_state::PING_SENT));
                let count =
                    if is_recovery { &mut self.report.recovery_pings } else { &mut self.report.pings };
                *count += 1;
                if !is_recovery {
                    self.count_late(number, nid, length_bytes.min(272));
                }
                let ping_from = |source| Event::Ping { from: life, ping, source, nid, length_bytes };
                self.send_to_peer(number, (ping, nid), ping_from);
            }
            Action::Push { ping, nid, bytes, .. } => {
                self.report.pushes += 1;
                self.count_late(number, nid, bytes.len());
                let push_from =
                    |source| Event::Push { from: life, ping, source, nid, bytes: Arc::clone(&bytes) };
                self.send_to_peer(number, (ping, nid), push_from);
            }
            Action::Done { request, result } => self.check_ping(number, request, result.is_ok()),
            _ => {}
        }
    }

    /// Sends a ping or push by the best NI on the net, several of them in turn.
    fn send_to_peer(&mut self, number: u32, (ping, nid): (PingId, Nid), event: impl Fn(Nid) -> Event) {
        let topology = self.members[number as usize].shard.topology();
        let serves = |status| status == NiStatus::Up;
        let nis: Vec<_> = topology
            .local_nis()
            .filter(|(_, local)| local.net == nid.net() && serves(local.status))
            .map(|(_, local)| (local.health, local.nid))
            .collect();
        let best = nis.iter().map(|(health, _)| *health).max();
        let mut nids = nis.iter().filter(|(health, _)| Some(*health) == best).map(|(_, nid)| *nid);
        let turn = self.order as usize % nids.clone().count().max(1);
        let source = nids.nth(turn);
        let source = source.or_else(|| self.leaves_by(number, &nid).filter(|_| nis.is_empty()));
        let sent = source.is_some_and(|source| self.send(&source, &nid, event(source)));
        if !sent {
            self.unanswered(self.life(number), ping, nid);
        }
    }

    fn take_messages(&mut self, number: u32) {
        let (from, now) = (self.life(number), Instant(self.now));
        let slots = self.members[number as usize].shard.topology().nis().len() as u16;
        for ni in (0..slots).map(NiId) {
            while let Some(lent) = self.members[number as usize].shard.poll_transmit(now, ni) {
                let transmit = *lent.transmit;
                // The header of a routed message has another node's NID.
                let Some(local) = self.members[number as usize].shard.topology().ni(transmit.ni) else {
                    continue;
                };
                let source = local.nid;
                self.note_hop(number, &transmit.next_hop);
                let (to, tx, header) = (transmit.next_hop, transmit.tx, Box::new(transmit.header));
                let put = header.body;
                if !self.send(&source, &to, Event::Arrive { from, source, to, tx, header }) {
                    self.note_lost(&put, &source, &to);
                    self.lost(from, tx, (source, to), &put);
                }
            }
        }
    }

    /// A Put came not through: its path has not carried everything.
    fn note_lost(&mut self, body: &Body, source: &Nid, to: &Nid) {
        let Body::Put { hdr_data, .. } = body else { return };
        let ends = self.place_of(source).zip(self.place_of(to));
        if let (Some(put), Some(((_, own), (_, other)))) = (self.under_way.get_mut(hdr_data), ends) {
            put.good &= !pair(own, other);
        }
    }

    fn take_events(&mut self, number: u32) {
        loop {
            let member = &mut self.members[number as usize];
            let Some(event) = member.shard.poll_event(member.queue) else { return };
            if let LnetEvent::Put { hdr_data, .. } = event {
                if !self.arrived.insert(hdr_data) {
                    self.violate(format!("put {hdr_data} is delivered twice, to node {number}"));
                }
                continue;
            }
            let put = event.user_ptr();
            let is_acked = event.kind() == EventKind::Ack && event.status() == Status::Ok;
            if is_acked && !self.arrived.contains(&put) {
                self.violate(format!("put {put} of node {number} is acknowledged and has not arrived"));
            }
            if event.kind() == EventKind::Send {
                self.check_sent(number, put, event.status());
            }
            if event.kind() == EventKind::Send {
                self.check_time(put);
            }
            if let Some(state) = self.under_way.get_mut(&put) {
                state.is_acked |= is_acked;
            }
            if event.unlinked()
                && let Some(Put { is_acked, from, to, .. }) = self.under_way.remove(&put)
            {
                if is_acked {
                    self.acked.insert((from, to));
                }
                let count = if is_acked { &mut self.report.acked } else { &mut self.report.failed };
                *count += 1;
            } else if event.kind() == EventKind::Send && event.status() != Status::Ok {
                // No ACK comes of it.
                let md = event.md();
                let _ = self.members[number as usize].shard.unlink(md);
            }
        }
    }
}

/// The ping or push that a node wants sent, and where to.
fn asked(action: &Action<()>) -> Option<(PingId, Nid)> {
    match action {
        Action::Ping { ping, nid, .. } | Action::Push { ping, nid, .. } => Some((*ping, *nid)),
        _ => None,
    }
}
