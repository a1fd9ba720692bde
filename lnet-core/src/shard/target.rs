//! Messages that arrive: checked, matched, delayed or dropped; PUT and GET at the target (LNet `lib-move.c:
//! lnet_parse_put`, `lnet_parse_get`).

use alloc::vec::Vec;
use core::net::IpAddr;

use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::steer::PORTALS;
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::Shard;
use super::delayed::{Ask, list_of};
use super::news::{ForgedSource, PeerChange};
use super::promise::Promise;
use crate::entry::MatchQuery;
use crate::lnd::{
    Cause, NiId, Path, PathReport, Prefetch, PrefetchHint, PrefetchHints, RxId, Span, Status, TxId, Uplink,
    Verdict,
};
use crate::md::MdOptions;
use crate::portal::Room;
use crate::stats::{DelayReason, DropReason};
use crate::time::Instant;
use crate::topology::{LocalNi, NiStatus};

/// Entries from which on hints are given. The caches of a core hold fewer than these, and their descriptors:
/// some 200 bytes each.
const HINTED_ENTRIES_MIN: u32 = 1 << 12;

/// The operation that a message which arrived has become.
#[derive(Clone, Copy)]
pub(super) struct Inbound {
    /// Where its payload goes; for a GET, where that of its REPLY comes from.
    pub(super) span: Span,
    /// What will be answered.
    pub(super) response: Option<Promise>,
}

impl Inbound {
    pub(super) const fn new(span: Span, response: Option<Promise>) -> Self {
        Self { span, response }
    }

    /// The descriptor.
    #[inline]
    pub(super) const fn md(&self) -> u32 {
        self.span.buffer.slot()
    }

    /// Where its own payload goes: nothing comes in with a GET.
    #[inline]
    pub(super) const fn landing(&self, header: &Header) -> Span {
        match header.body {
            Body::Get { .. } => Span { length_bytes: 0, ..self.span },
            _ => self.span,
        }
    }
}

/// What a shard knows of a message that an LND names.
pub(super) enum Arriving {
    Idle,
    /// Its LND puts its payload in place. It came by this NI, from this peer NI.
    Delivered(NiId, Nid, Header, Inbound),
    /// The record of a message that is delayed, or goes to a sibling.
    Delayed(u32),
    /// The record of a message of another node.
    Routed(u32),
}

/// The messages that arrive, by what LNDs name them: as far as any name was ever used, so that memory of the
/// others is not touched.
pub(super) struct Incoming {
    arriving: Vec<Arriving>,
    /// Names that there may be.
    most: u32,
}

impl Incoming {
    pub(super) fn new(most: u32) -> Self {
        Self { arriving: Vec::with_capacity(most as usize), most }
    }

    /// Makes sure that a name is free, and has its place.
    #[inline]
    fn begin(&mut self, rx: RxId) {
        match self.arriving.get(rx.0 as usize) {
            Some(arriving) => assert!(matches!(arriving, Arriving::Idle), "the LND uses {rx:?} twice"),
            None => self.first_use(rx),
        }
    }

    #[cold]
    fn first_use(&mut self, rx: RxId) {
        assert!(rx.0 < self.most, "{rx:?} is beyond the limits: {} names", self.most);
        self.arriving.resize_with(rx.0 as usize + 1, || Arriving::Idle);
    }

    /// Has a name stand for this from here on.
    #[inline]
    pub(super) fn set(&mut self, rx: RxId, arriving: Arriving) {
        self.arriving[rx.0 as usize] = arriving;
    }
}

/// What is to become of a message.
pub(super) enum Decision {
    Take(Inbound),
    Wait(Wait),
    Drop(DropReason),
}

/// What a message waits for.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// An entry that takes it.
    Entry,
    /// This descriptor.
    Md { md: u32, reason: DelayReason },
    /// The answer of a sibling.
    Sibling(Ask),
    /// A delay rule.
    Time { until: Instant, rule: u64 },
    /// The name of its sender.
    Name { until: Instant },
}

impl Wait {
    pub(super) const fn reason(self) -> DelayReason {
        match self {
            Self::Entry => DelayReason::Lazy,
            Self::Md { reason, .. } => reason,
            Self::Sibling(_) => DelayReason::Sibling,
            Self::Time { .. } => DelayReason::Fault,
            Self::Name { .. } => DelayReason::Name,
        }
    }
}

/// Why a message is not taken.
pub(super) enum NotTaken {
    Drop(DropReason),
    /// The message has to wait for this descriptor.
    Busy {
        md: u32,
        reason: DelayReason,
    },
}

impl From<DropReason> for NotTaken {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// Whose message it is, and so what there is to try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// An LND of this shard has it.
    Arrived,
    /// An LND of this shard has it, and the siblings have been asked.
    Asked,
    /// A sibling asks, about a message of any shard or about one that belongs here.
    Sibling { steal: bool },
}

impl PrefetchHints for Shard {
    fn wants_hints(&self) -> bool {
        self.tables.entries.used_count() >= HINTED_ENTRIES_MIN
    }

    fn hint(&mut self, arrivals: &[PrefetchHint], prefetch: Prefetch) {
        self.lookahead.hint(&self.tables, &self.mds, arrivals, prefetch);
    }

    #[inline]
    fn expected_md(&self, distance: usize) -> Option<u32> {
        self.lookahead.expected_md(distance)
    }
}

impl Uplink for Shard {
    fn header(&mut self, now: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        self.incoming.begin(rx);
        if self.messages.is_short_of_responses() {
            self.evict_response(now);
        }
        self.lookahead.advance(&self.tables, &self.mds, header);
        let decision = match self.check(now, ni, from, header) {
            Ok(None) if self.is_beyond(self.topology.known_ni(ni), header) => {
                return self.forward(now, (ni, from), rx, header);
            }
            Ok(None)
                if self.topology.awaits_name(&header.source.nid)
                    && self.await_name(now, rx, (ni, from), header) =>
            {
                self.note_received(ni, from);
                return Verdict::Delay;
            }
            Ok(None) => self.decide(ni, from, header, Scope::Arrived),
            Ok(Some(wait)) => Decision::Wait(wait),
            Err(reason) => Decision::Drop(reason),
        };
        let dropped = match decision {
            Decision::Take(inbound) => {
                self.deliver((ni, from), rx, header, inbound);
                self.note_received(ni, from);
                self.wake();
                return Verdict::Deliver(self.landing(header, &inbound));
            }
            Decision::Wait(wait) => self.delay(rx, (ni, from), header, wait).err(),
            Decision::Drop(reason) => Some(reason),
        };
        let Some(reason) = dropped else {
            self.note_received(ni, from);
            return Verdict::Delay;
        };
        self.count_drop((ni, from), header, reason);
        Verdict::Drop
    }

    fn is_local(&self, nid: &Nid) -> bool {
        self.topology.is_local(nid)
    }

    #[inline]
    fn awaits_name(&mut self, header: &Header, is_new: bool) -> bool {
        self.topology.awaits_name(&header.source.nid)
            && self.topology.is_local(&header.destination.nid)
            && self.may_await_name(header, is_new)
    }

    fn arrived(&mut self, now: Instant, rx: RxId, bytes: u32) {
        let Some(&Arriving::Routed(slot)) = self.incoming.arriving.get(rx.0 as usize) else {
            panic!("no message that goes on arrives as {rx:?}")
        };
        self.arrived_routed(now, slot, bytes);
    }

    fn received(&mut self, now: Instant, rx: RxId, status: Status) {
        // Looked at where it stands, since it is large; nothing that follows looks at what arrives.
        let mut arriving = core::mem::take(&mut self.incoming.arriving);
        match arriving.get(rx.0 as usize) {
            Some(Arriving::Delivered(ni, from, header, inbound)) => {
                self.ni(*ni).arriving_count -= 1;
                self.count_delivered(now, (*ni, from), header, inbound, status);
                self.end_arrival(now, header, inbound, status);
            }
            Some(Arriving::Delayed(slot)) => self.received_delayed(now, *slot, status),
            Some(Arriving::Routed(slot)) => self.received_routed(now, *slot, status),
            Some(Arriving::Idle) | None => panic!("no message arrives as {rx:?}"),
        }
        arriving[rx.0 as usize] = Arriving::Idle;
        self.incoming.arriving = arriving;
        self.wake();
    }

    fn sent(&mut self, now: Instant, tx: TxId, status: Status) {
        self.finish(now, tx, status);
        self.wake();
    }

    fn came_from(&mut self, peer: &Nid, address: IpAddr) -> bool {
        // A peer NI that comes home is news where some were not.
        let is_news = self.news.speaks_any_from_elsewhere() || peer.ip() != Some(address);
        !is_news || self.news.note_came_from(peer, address)
    }

    fn restarted(&mut self, peer: &Nid) {
        self.news.note_peer(peer, PeerChange::Restarted);
    }

    fn lost(&mut self, path: &Path, cause: Cause) {
        self.note_lost(path, cause);
    }

    fn path_health(&mut self, now: Instant, path: &Path, report: PathReport) {
        let was_silent = self.paths.was_silent(path);
        self.note_path(now, path, report);
        match report {
            PathReport::Silent => self.news.note_peer(&path.peer, PeerChange::Silent),
            PathReport::Answers { .. } if was_silent => self.news.note_peer(&path.peer, PeerChange::Answers),
            _ => {}
        }
    }

    fn reroute(&mut self, now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.choose_path(now, silent, candidates)
    }

    fn another_path(&self, path: &Path, has: impl Fn(NiId) -> bool) -> Option<Path> {
        let view = self.topology.peer(&path.peer).filter(|view| view.is_multi_rail)?;
        let than = super::Choice::direct(path.ni, path.peer);
        self.select_other(&than, Some(view), has).map(|choice| choice.path())
    }
}

impl Shard {
    /// A message is being put in place by its LND.
    #[inline]
    pub(super) fn deliver(&mut self, (ni, from): (NiId, &Nid), rx: RxId, header: &Header, inbound: Inbound) {
        self.ni(ni).arriving_count += 1;
        self.incoming.set(rx, Arriving::Delivered(ni, *from, *header, inbound));
    }

    /// Where the payload of a message goes that an LND of this shard has.
    #[inline]
    pub(super) fn landing(&self, header: &Header, inbound: &Inbound) -> Span {
        let landing = inbound.landing(header);
        if self.mds[inbound.md()].options.contains(MdOptions::DISCARD) {
            return Span { length_bytes: 0, ..landing };
        }
        landing
    }

    /// Looks at a message without regard to what is posted: whether it is acceptable, and whether a delay
    /// rule delays it.
    fn check(
        &mut self,
        now: Instant,
        ni: NiId,
        from: &Nid,
        header: &Header,
    ) -> Result<Option<Wait>, DropReason> {
        let length = header.payload_length;
        let well_formed = match header.body {
            Body::Put { .. } | Body::Reply { .. } => length <= PAYLOAD_BYTES_MAX,
            Body::Get { sink_length, .. } => length == 0 && sink_length <= PAYLOAD_BYTES_MAX,
            Body::Ack { .. } => length == 0,
            Body::Hello { .. } => false,
        };
        if !well_formed {
            return Err(DropReason::Malformed);
        }
        let LocalNi { nid: local, status, .. } = self.topology.known_ni(ni);
        if *status == NiStatus::Closed {
            return Err(DropReason::NiClosed);
        }
        let is_loopback = local.is_loopback();
        if header.destination.nid != *local
            && !(is_loopback && self.topology.is_local(&header.destination.nid))
            && !self.is_beyond(self.topology.known_ni(ni), header)
        {
            return Err(DropReason::NotLocal);
        }
        // No peer is this node.
        if header.source.nid.is_any() || header.source.nid.is_loopback() && !is_loopback {
            return Err(DropReason::NoSource);
        }
        let source = &header.source.nid;
        if source != from {
            if !self.may_speak_for(from, source) {
                self.news.note_forged(ForgedSource { ni, from: *from, source: *source });
                return Err(DropReason::ForgedSource);
            }
            if self.comes_by_dead(ni, from, header)? {
                self.news.note_foreign(from, source.net());
            }
        }
        if !self.faults.is_active() {
            return Ok(None);
        }
        match self.faults.judge(now, local, header) {
            Some(reason) => Err(reason),
            None => Ok(self.faults.delay(now, header).map(|(until, rule)| Wait::Time { until, rule })),
        }
    }

    /// Whether a peer NI may send in the name of another NID: of one of the same peer, on a net that this
    /// node is on, where the LND proves no names itself. From other nets messages come by gateways alone.
    fn may_speak_for(&self, from: &Nid, source: &Nid) -> bool {
        match self.topology.on_net(source.net()) {
            Some(own) => !own.facts.proves_sources && self.topology.is_same_peer(source, from),
            None => self.topology.comes_by(from, source),
        }
    }

    /// Whether a message has come by a gateway that is taken for dead (LNet `lib-move.c:
    /// lnet_check_route_inconsistency`; spec: core 11.4). With a gateway there has to be a route back by it,
    /// where that is demanded, for messages that are for this node.
    #[cold]
    fn comes_by_dead(&self, ni: NiId, from: &Nid, header: &Header) -> Result<bool, DropReason> {
        let source = &header.source.nid;
        let Some(routes) = self.topology.net_routes().filter(|_| self.topology.comes_by(from, source)) else {
            return Ok(false);
        };
        let is_here = !self.is_beyond(self.topology.known_ni(ni), header);
        if is_here && self.topology.tunables().drops_asymmetric && !routes.leads_back(from, source.net()) {
            return Err(DropReason::AsymmetricRoute);
        }
        Ok(routes.is_dead(from))
    }

    /// Decides on a message that was found acceptable.
    #[inline(always)]
    pub(super) fn decide(&mut self, ni: NiId, from: &Nid, header: &Header, scope: Scope) -> Decision {
        if scope == Scope::Arrived
            && let Some(owner) = self.owner(header)
        {
            return Decision::Wait(Wait::Sibling(owner));
        }
        let lends = matches!(scope, Scope::Sibling { .. });
        match self.admit((ni, from), header, lends) {
            Ok(inbound) => Decision::Take(inbound),
            Err(NotTaken::Drop(DropReason::NoMatch)) => self.unmatched(header, scope),
            Err(NotTaken::Drop(reason)) => Decision::Drop(reason),
            Err(NotTaken::Busy { md, reason }) => Decision::Wait(Wait::Md { md, reason }),
        }
    }

    /// Decides on a message that no entry takes.
    #[cold]
    fn unmatched(&mut self, header: &Header, scope: Scope) -> Decision {
        if list_of(header) < PORTALS && self.topology.is_frozen(list_of(header) as u32) {
            return Decision::Drop(DropReason::NoMatch);
        }
        if scope == Scope::Arrived
            && let Some(ask) = self.first_ask(header)
        {
            return Decision::Wait(Wait::Sibling(ask));
        }
        if scope != (Scope::Sibling { steal: true }) && self.is_lazy(header) {
            return Decision::Wait(Wait::Entry);
        }
        Decision::Drop(DropReason::NoMatch)
    }

    /// Finds a message its descriptor. With `lends` it is a sibling that will fill it.
    #[inline]
    fn admit(&mut self, by: (NiId, &Nid), header: &Header, lends: bool) -> Result<Inbound, NotTaken> {
        let (operation, handle, portal, match_bits, remote_offset_bytes, requested_bytes) = match header.body
        {
            Body::Put { ack_md, match_bits, portal, offset, .. } => {
                (MdOptions::PUT, ack_md, portal, match_bits, offset, header.payload_length)
            }
            Body::Get { return_md, match_bits, portal, offset, sink_length } => {
                (MdOptions::GET, return_md, portal, match_bits, offset, sink_length)
            }
            Body::Ack { md, .. } => return self.admit_ack(header, &md),
            Body::Reply { md } => return self.admit_reply(header, &md, lends),
            Body::Hello { .. } => return Err(DropReason::Malformed.into()),
        };
        let peer = self.topology.peer_with_aliases(&header.source.nid);
        let source = ProcessId { nid: peer.map_or(header.source.nid, |peer| peer.primary), ..header.source };
        let request =
            MatchQuery { portal, source, peer, match_bits, operation, requested_bytes, remote_offset_bytes };
        let room = self.tables.find(&self.mds, &request)?;
        let is_get = operation == MdOptions::GET;
        // What a GET reads must not change, but nothing is written into it.
        self.may_start(room.md, lends && !is_get && self.mds[room.md].shares_spans())?;
        let acknowledges =
            || handle != WireHandle::NONE && !self.mds[room.md].options.contains(MdOptions::ACK_DISABLE);
        let is_answered = is_get || acknowledges();
        let response = if is_answered { Some(self.promise(by, &header.source.nid, handle)?) } else { None };
        Ok(self.take(room, response))
    }

    /// Whether a descriptor is ready for one more operation: it has an event slot, and no message that is to
    /// be alone is written where this one may be. A message that is to be `alone` waits until the descriptor
    /// is idle; until it is, nothing else starts, or that message might wait for ever.
    #[inline]
    pub(super) fn may_start(&mut self, md: u32, alone: bool) -> Result<(), NotTaken> {
        if !self.has_event_slot(&self.mds[md]) {
            return Err(NotTaken::Busy { md, reason: DelayReason::EventSlots });
        }
        let descriptor = &mut self.mds[md];
        if descriptor.withheld.keeps_out() {
            return Err(NotTaken::Busy { md, reason: DelayReason::Filled });
        }
        if alone && descriptor.operations > 0 {
            descriptor.withheld.claim();
            return Err(NotTaken::Busy { md, reason: DelayReason::Filled });
        }
        Ok(())
    }

    /// Consumes what was found.
    #[inline]
    fn take(&mut self, room: Room, response: Option<Promise>) -> Inbound {
        let Room { md, offset_bytes, length_bytes } = room;
        self.mds[md].offset_bytes = offset_bytes + u64::from(length_bytes);
        let span = Span { buffer: self.md_handle(md).into(), offset_bytes, length_bytes };
        self.start(md);
        Inbound::new(span, response)
    }
}
