//! PUT and GET at the initiator (LNet `lib-move.c: LNetPut`, `LNetGet`).

use lnet_wire::steer::PORTALS;
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};
use thiserror::Error;

use super::report::EndedOperation;
use super::select::Turn;
use super::{Choice, Shard};
use crate::collections::NONE;
use crate::handle::{Cookie, CookieKind, MdHandle};
use crate::lnd::{Cause, NiId, PING_PORTAL, PeerSlot, Span, Status, Transmit, TxId};
use crate::md::{Ending, MdOptions, MemoryDesc};
use crate::message::{Budget, MessageState, Purpose};
use crate::time::Instant;
use crate::track::Response;
use crate::tunables::ResponseTracking;

/// A part of a bound descriptor, in bytes from its start. LNet sends and fills descriptors whole; parts let
/// one that was bound once serve many messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MdPart {
    /// Where it begins.
    pub offset_bytes: u32,
    /// Its length.
    pub length_bytes: u32,
}

impl MdPart {
    /// Whether a descriptor of this length has all of it.
    fn is_within(self, length_bytes: u64) -> bool {
        u64::from(self.offset_bytes) + u64::from(self.length_bytes) <= length_bytes
    }
}

/// A PUT to be sent: the bytes of a descriptor, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutRequest {
    /// The descriptor; bound, not attached.
    pub md: MdHandle,
    /// What is sent of it; `None` for all.
    pub part: Option<MdPart>,
    /// Whether the target is to acknowledge it.
    pub ack: bool,
    /// The local NID to send from; the shard chooses if there is none.
    pub self_nid: Option<Nid>,
    /// Who is to get it.
    pub target: ProcessId,
    /// Portal index there.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
    /// Offset for remote-managed descriptors.
    pub offset: u32,
    /// 64 bits that come with the target's event.
    pub hdr_data: u64,
}

/// A GET to be sent; the REPLY fills the descriptor, or a part of it, from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetRequest {
    /// The descriptor; bound, not attached.
    pub md: MdHandle,
    /// The part that the REPLY may fill; `None` for all. GETs for several parts may be under way at once.
    pub part: Option<MdPart>,
    /// The local NID to send from; the shard chooses if there is none.
    pub self_nid: Option<Nid>,
    /// Who is asked.
    pub target: ProcessId,
    /// Portal index there.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
    /// Offset for remote-managed descriptors.
    pub offset: u32,
}

/// Why a PUT or GET does not start; nothing has changed, but that a simulated failure is used up. Whatever
/// goes wrong later is told by the SEND event's status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The portal index is 64 or more: no node has it (`-EINVAL`).
    #[error("portal {0}: below {PORTALS} is expected")]
    Portal(u32),
    /// No descriptor is found by this handle (`-ENOENT`).
    #[error("no memory descriptor {:#x}: it is used up, or was unlinked", .0.0.0)]
    UnknownMd(MdHandle),
    /// Its threshold is used up (`-ENOENT`).
    #[error("memory descriptor {:#x} is used up", .0.0.0)]
    MdExhausted(MdHandle),
    /// Its threshold leaves no room for the ACK or REPLY that is wanted: the response would be dropped.
    #[error(
        "memory descriptor {:#x} takes {left} more, and {wanted} are wanted: a PUT with ACK or a GET takes 2 of the \
         threshold, and each response that may still come 1",
        .md.0.0
    )]
    NoRoomForResponse {
        /// The descriptor.
        md: MdHandle,
        /// What is left of its threshold.
        left: u32,
        /// What should be.
        wanted: u32,
    },
    /// The descriptor is attached to a match entry (`-ENOENT`).
    #[error("memory descriptor {:#x} is attached: a bound one is expected", .0.0.0)]
    MdAttached(MdHandle),
    /// The descriptor has no threshold, and its events are still to be polled or to come (`-ENOMEM`).
    #[error("memory descriptor {:#x} has no event slot left until events are polled", .0.0.0)]
    EventQueueFull(MdHandle),
    /// REPLYs are being written into it (`-EBUSY`).
    #[error("memory descriptor {:#x} is being written into: put from it after the REPLY", .0.0.0)]
    MdLent(MdHandle),
    /// The descriptor ends before the part that is to be sent or filled (`-EINVAL`).
    #[error(
        "bytes {} to {} of memory descriptor {:#x}: it has {length_bytes}",
        .part.offset_bytes, u64::from(.part.offset_bytes) + u64::from(.part.length_bytes), .md.0.0
    )]
    Part {
        /// The descriptor.
        md: MdHandle,
        /// What was asked for.
        part: MdPart,
        /// How long the descriptor is.
        length_bytes: u64,
    },
    /// A GET from a portal that has entries for PUTs alone, those of LNet selftest, to a peer that may not
    /// bear it (`-EPERM`; [`LndFacts::takes_any_get`](crate::lnd::LndFacts)). A kernel node whose portal
    /// never had an entry dies of a GET.
    #[error("a GET from portal {0}: no node expects one there, and a kernel node may die of it")]
    OnlyPuts(u32),
    /// The shard holds no more requests, or awaits no more REPLYs for parts of descriptors (`-ENOMEM`).
    #[error("too many requests under way")]
    RequestsFull,
    /// Every peer slot is busy with another peer (`-ENOMEM`; [`Limits::peers`](crate::Limits::peers)).
    #[error("every peer slot is busy: `Limits::peers` says how many a shard has")]
    PeersFull,
    /// The target seems to have failed ([`crate::fault`], `-EIO`).
    #[error("simulated failure of {0}: restoring it ends that")]
    PeerFailed(Nid),
}

/// The portals of LNet selftest's requests, which are PUTs (LNet `selftest/rpc.h: SRPC_REQUEST_PORTAL`).
const ONLY_PUTS: [u32; 2] = [50, 51];

/// What PUT and GET have in common.
struct Submission {
    md: MdHandle,
    self_nid: Option<Nid>,
    target: ProcessId,
    /// What is to come back.
    awaits: Option<Response>,
}

impl Shard {
    /// Starts a PUT. Its descriptor's threshold counts it now, and the ACK when it comes; if that does not
    /// come within the transaction timeout, the descriptor is unlinked ([`Shard::handle_timeout`]). LNet
    /// takes a PUT whose ACK would find the threshold used up, and drops the ACK; here that is refused.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has started then.
    pub fn put(&mut self, now: Instant, put: &PutRequest) -> Result<(), SubmitError> {
        let request = Submission {
            md: put.md,
            self_nid: put.self_nid,
            target: put.target,
            awaits: put.ack.then_some(Response::Ack),
        };
        let slot = self.initiator_slot(put.md, &put.target.nid, put.portal, put.ack)?;
        let md = &mut self.mds[slot];
        if md.withheld.is_filled() {
            return Err(SubmitError::MdLent(put.md));
        }
        let part = part_of(put.md, md, put.part)?;
        md.options = md.options | MdOptions::SOURCE;
        let body = Body::Put {
            ack_md: if put.ack { to_seal(put.md.0) } else { WireHandle::NONE },
            match_bits: put.match_bits,
            hdr_data: put.hdr_data,
            portal: put.portal,
            offset: put.offset,
        };
        self.request(now, slot, &request, body, part)
    }

    /// Starts a GET. Its descriptor's threshold counts it now, and the REPLY when it comes; if that does not
    /// come within the transaction timeout, the descriptor is unlinked ([`Shard::handle_timeout`]).
    ///
    /// A kernel node asserts that the portal has had an entry, and dies if it has not: a GET of such a peer
    /// is for a portal where the peer is known to have posted one.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has started then.
    pub fn get(&mut self, now: Instant, get: &GetRequest) -> Result<(), SubmitError> {
        let request = Submission {
            md: get.md,
            self_nid: get.self_nid,
            target: get.target,
            awaits: Some(Response::Reply),
        };
        let slot = self.initiator_slot(get.md, &get.target.nid, get.portal, true)?;
        if ONLY_PUTS.contains(&get.portal) && self.dies_of_get(&get.target.nid) {
            return Err(SubmitError::OnlyPuts(get.portal));
        }
        let part = part_of(get.md, &self.mds[slot], get.part)?;
        let return_md = match get.part {
            None => to_seal(get.md.0),
            Some(part) => self.await_part(now, slot, part).ok_or(SubmitError::RequestsFull)?,
        };
        let body = Body::Get {
            return_md,
            match_bits: get.match_bits,
            portal: get.portal,
            offset: get.offset,
            sink_length: part.length_bytes,
        };
        let started = self.request(now, slot, &request, body, MdPart::default());
        if started.is_err() {
            self.end_part(&body);
        }
        started
    }

    /// Whether a target may die of a GET for a portal where it has posted nothing.
    fn dies_of_get(&self, target: &Nid) -> bool {
        // Any node may be behind a gateway.
        let is_kernel = self.topology.on_net(target.net()).map(|own| !own.facts.takes_any_get);
        is_kernel.unwrap_or_else(|| self.topology.net_routes().is_some()) && !self.topology.is_local(target)
    }

    /// Awaits the REPLY to a GET for a part: how it is to be named.
    fn await_part(&mut self, now: Instant, slot: u32, part: MdPart) -> Option<WireHandle> {
        let timeout = self.topology.tunables().transaction_timeout;
        let (name, generation) = self.parts.begin((now, timeout), slot, part)?;
        self.mds[slot].options = self.mds[slot].options | MdOptions::IN_PART;
        let cookie = Cookie::new(CookieKind::MemoryDesc, self.id, name, generation);
        Some(to_seal(cookie))
    }

    /// The slot of a descriptor that can send to this portal of this target, and take the response if there
    /// is to be one.
    #[inline(always)]
    fn initiator_slot(
        &mut self,
        handle: MdHandle,
        target: &Nid,
        portal: u32,
        is_answered: bool,
    ) -> Result<u32, SubmitError> {
        if portal as usize >= PORTALS {
            return Err(SubmitError::Portal(portal));
        }
        if self.faults.is_active() && self.faults.peer_fails(target) {
            return Err(SubmitError::PeerFailed(*target));
        }
        let slot = self.md_slot(handle).ok_or(SubmitError::UnknownMd(handle))?;
        let md = &self.mds[slot];
        let (left, wanted) = (md.operations_left(), md.wanted_operations(is_answered));
        if !md.is_bound() {
            Err(SubmitError::MdAttached(handle))
        } else if md.is_used_up() {
            Err(SubmitError::MdExhausted(handle))
        } else if md.ending != Ending::No {
            Err(SubmitError::UnknownMd(handle))
        } else if is_answered && left < wanted {
            Err(SubmitError::NoRoomForResponse { md: handle, left, wanted })
        } else if !self.has_event_slot(md) {
            Err(SubmitError::EventQueueFull(handle))
        } else {
            Ok(slot)
        }
    }

    #[inline]
    fn request(
        &mut self,
        now: Instant,
        slot: u32,
        request: &Submission,
        body: Body,
        part: MdPart,
    ) -> Result<(), SubmitError> {
        let payload_length = part.length_bytes;
        // A ping asks the node that has the NID now.
        let asked = &request.target.nid;
        let target = &if finds_out(&body) { *asked } else { self.topology.now_at(asked) };
        let source = ProcessId { pid: self.pid, ..ProcessId::ANY };
        let mut header = Header { destination: request.target, source, payload_length, body };
        let memory = self.memory_nodes[slot as usize];
        let chosen = self.select(now, target, request.self_nid.as_ref(), (memory, finds_out(&body)));
        let Some((Choice { ni, next_hop, destination }, turn)) = chosen else {
            self.begin(now, slot, request, target);
            let status = Status::NeverSent(Cause::Unreachable);
            self.complete(EndedOperation::Sent(slot, &header), status);
            self.counters.count_failure(status);
            self.wake();
            return Ok(());
        };
        if !self.messages.reserve_request(finds_out(&body)) {
            return Err(SubmitError::RequestsFull);
        }
        let from = self.topology.known_ni(ni);
        (header.source.nid, header.destination.nid) = (from.nid, destination);
        let deadline = now + from.message_timeout;
        let from_ni = ni;
        let ni = self.loops_by(ni, target, &body);
        let credits = self.ni(ni).peer_share;
        let Some(peer) = self.peers.acquire(&next_hop, credits) else {
            self.messages.unreserve(Budget::Request);
            self.counters.peers_refused += 1;
            return Err(SubmitError::PeersFull);
        };
        self.take_turn(turn, from_ni, peer);
        let is_gated = match turn {
            Turn::Routed => self.look_behind_gateway(target, &body),
            Turn::None | Turn::Taken => self.look_at_peer(peer, target, &body),
        };
        self.begin(now, slot, request, if is_gated { &Nid::ANY } else { &next_hop });
        let payload = (payload_length > 0).then_some(Span {
            buffer: request.md.into(),
            offset_bytes: part.offset_bytes.into(),
            length_bytes: payload_length,
        });
        let peer = PeerSlot(peer);
        let transmit = Transmit { tx: TxId(NONE), ni, next_hop, peer, header, payload };
        let mut record = MessageState::new(Purpose::Request { md: slot }, transmit, deadline);
        record.started = now;
        record.is_bound = request.self_nid.is_some();
        if is_gated {
            self.gate(now, record, target);
        } else {
            self.launch(now, record);
        }
        self.wake();
        Ok(())
    }

    /// The NI by which a request goes that is from `ni`: what stays on this node goes by `lo`. A ping
    /// of one of the node's own NIDs goes by that NI's LND, as far as this can reach itself: it is to show
    /// whether the NI works.
    #[inline]
    fn loops_by(&self, ni: NiId, target: &Nid, body: &Body) -> NiId {
        let Some(loopback) = self.topology.loopback_to(target) else { return ni };
        if is_ping(body) && self.topology.known_ni(ni).facts.reaches_itself { ni } else { loopback }
    }

    /// Counts a request in on its descriptor, and awaits its response if that is wanted.
    #[inline(always)]
    fn begin(&mut self, now: Instant, slot: u32, request: &Submission, next_hop: &Nid) {
        self.start(slot);
        let Some(response) = request.awaits else { return };
        let tunables = self.topology.tunables();
        let md = &mut self.mds[slot];
        md.responses = md.responses.saturating_add(1);
        if is_tracked(response, md.options, tunables.response_tracking) {
            let deadline = now + tunables.transaction_timeout;
            md.tracker = self.trackers.await_one(md.tracker, slot, (response, next_hop), (now, deadline));
        }
    }
}

/// How the responder is to name something, before it is known which NID responds: a seal comes upon it when
/// it leaves ([`Shard::poll_transmit`]).
const fn to_seal(cookie: Cookie) -> WireHandle {
    WireHandle { interface_cookie: 0, object_cookie: cookie.0 }
}

/// What a request sends or fills of its descriptor.
#[inline]
fn part_of(handle: MdHandle, md: &MemoryDesc, part: Option<MdPart>) -> Result<MdPart, SubmitError> {
    let length_bytes = md.length_bytes;
    match part {
        // `bind` took no more than a u32 holds.
        None => Ok(MdPart { offset_bytes: 0, length_bytes: length_bytes as u32 }),
        Some(part) if part.is_within(length_bytes) => Ok(part),
        Some(part) => Err(SubmitError::Part { md: handle, part, length_bytes }),
    }
}

/// Whether this is a ping.
pub(super) const fn is_ping(body: &Body) -> bool {
    matches!(body, Body::Get { portal: PING_PORTAL, .. })
}

/// Whether a request asks a node, or tells it, who it is.
#[inline]
pub(super) const fn finds_out(body: &Body) -> bool {
    matches!(body, Body::Put { portal: PING_PORTAL, .. } | Body::Get { portal: PING_PORTAL, .. })
}

/// Whether a response is awaited (LNet `lib-move.c: lnet_response_tracking_enabled`).
const fn is_tracked(response: Response, options: MdOptions, mode: ResponseTracking) -> bool {
    if options.contains(MdOptions::NO_TRACK_RESPONSE) {
        return false;
    }
    options.contains(MdOptions::TRACK_RESPONSE)
        || match mode {
            ResponseTracking::None => false,
            ResponseTracking::Get => matches!(response, Response::Reply),
            ResponseTracking::Put => matches!(response, Response::Ack),
            ResponseTracking::Both => true,
        }
}
