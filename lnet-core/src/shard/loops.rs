//! Loops of routers: how a router finds out that what it sends on comes back.
//!
//! LNet's header has no count of hops, and messages that look alike may be different ones. So a router asks.
//! In front of a message that has come by a gateway and goes to a gateway it sends a probe: an ACK with the
//! ends of that message, which goes wherever such messages go. Its handle names the gateway and the time, and
//! is sealed for its destination ([`Seals`](crate::seal::Seals)), so that no other node can make one. At the
//! destination nothing awaits it, and LNet drops such an ACK without a word (`lib-move.c: lnet_parse_ack`).
//! A probe that comes back says that the gateway leads back to this router. From then on nothing for that
//! destination goes to that gateway for [`LOOP_HOLD`], and what is on its way around ends when it comes by
//! again. The destination may have given the probe to a node behind another gateway, which sent it here: so
//! it counts for messages to that destination alone.
//!
//! A message that has come from its source, or goes to its destination, needs no probe: a loop brings it back
//! by a gateway.
//!
//! Invariants: a gateway has a probe for a destination each [`PROBE_INTERVAL`] at most, while messages for
//! that go to it; a shard sends no more than [`WATCHED_MAX`] in that time; what no probe speaks against is
//! forwarded.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Body, Header, Nid};

use super::{Choice, Shard};
use crate::collections::{NONE, nid_words};
use crate::handle::{Cookie, CookieKind, SLOT_BITS};
use crate::lnd::{PeerSlot, Transmit, TxId};
use crate::message::{Budget, MessageState, Purpose};
use crate::stats::DropReason;
use crate::time::Instant;

/// How far apart probes by one gateway for one destination are.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a gateway gets nothing for a destination after it was found to lead back.
pub const LOOP_HOLD: Duration = Duration::from_secs(10);
/// A probe that was under way for longer proves nothing.
const PROBE_LIFE_S: u32 = 60;
/// Destinations that are watched, each by the gateway to it.
const WATCHED_MAX: usize = 64;

/// A destination that messages go to by a gateway.
struct Watched {
    /// The destination, and the gateway.
    path: (Nid, Nid),
    /// When a probe was last sent.
    asked_at: Instant,
    /// Until when the gateway is taken to lead back.
    leads_back_until: Instant,
}

impl Watched {
    fn is_idle(&self, now: Instant) -> bool {
        self.asked_at + PROBE_INTERVAL <= now && self.leads_back_until <= now
    }
}

/// The destinations that are watched.
pub(super) struct Loops(Vec<Watched>);

impl Loops {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Allocates room for them.
    pub(super) fn reserve(&mut self) {
        self.0.reserve_exact(WATCHED_MAX.saturating_sub(self.0.len()));
    }

    fn find(&self, path: (Nid, Nid)) -> Option<usize> {
        self.0.iter().position(|watched| watched.path == path)
    }

    /// Watches one more, if there is room.
    fn add(&mut self, now: Instant, new: Watched) -> bool {
        if self.0.len() < self.0.capacity() {
            self.0.push(new);
            return true;
        }
        let idle = self.0.iter_mut().find(|watched| watched.is_idle(now));
        idle.map(|idle| *idle = new).is_some()
    }

    /// Whether a probe is to be sent now.
    fn is_due(&mut self, now: Instant, path: (Nid, Nid)) -> bool {
        let Some(at) = self.find(path) else {
            return self.add(now, Watched { path, asked_at: now, leads_back_until: now });
        };
        let asked_at = &mut self.0[at].asked_at;
        let is_due = *asked_at + PROBE_INTERVAL <= now;
        if is_due {
            *asked_at = now;
        }
        is_due
    }

    /// A probe has come back.
    fn note(&mut self, now: Instant, path: (Nid, Nid)) {
        let leads_back_until = now + LOOP_HOLD;
        match self.find(path) {
            Some(at) => self.0[at].leads_back_until = leads_back_until,
            None => {
                self.add(now, Watched { path, asked_at: now, leads_back_until });
            }
        }
    }

    fn leads_back(&self, now: Instant, path: &Choice) -> bool {
        self.find(ends(path)).is_some_and(|at| now < self.0[at].leads_back_until)
    }
}

/// The destination of a path, and the gateway to it.
const fn ends(path: &Choice) -> (Nid, Nid) {
    (path.destination, path.next_hop)
}

/// The name of a gateway in a probe.
fn name_of(gateway: &Nid) -> u32 {
    let [a, b, c] = nid_words(gateway);
    let folded = a ^ b.rotate_left(21) ^ c.rotate_left(42);
    (folded ^ folded >> 40) as u32 & ((1 << SLOT_BITS) - 1)
}

/// The time that a probe names, in seconds.
const fn second_of(now: Instant) -> u32 {
    (now.0 / 1_000_000_000) as u32
}

impl Shard {
    /// Whether a message that a peer NI has sent is a probe of this router, which has come back: then its
    /// gateway leads back.
    pub(super) fn is_own_probe(&mut self, now: Instant, from: &Nid, header: &Header) -> bool {
        let (destination, source) = (&header.destination.nid, &header.source.nid);
        let Body::Ack { md, .. } = header.body else { return false };
        let cookie = Cookie(md.object_cookie);
        if source == from || !cookie.is(CookieKind::Buffer) || !self.seals.is_for(&md, destination) {
            return false;
        }
        // A peer may name another NID of its own as the source; a probe comes back by a gateway.
        let comes_by_gateway = self.topology.comes_by(from, source);
        if comes_by_gateway && second_of(now).wrapping_sub(cookie.generation()) <= PROBE_LIFE_S {
            let gateways = self.topology.net_routes().map_or(&[][..], |routes| routes.to(destination.net()));
            let gateway = gateways.iter().find(|gateway| name_of(&gateway.nid) == cookie.slot());
            if let Some(gateway) = gateway {
                self.loops.note(now, (*destination, gateway.nid));
            }
        }
        true
    }

    /// The path for a message of another node: the one that was chosen, or another one if that leads back.
    pub(super) fn avoid_loop(
        &self,
        now: Instant,
        message: (&Nid, &Header),
        path: Choice,
    ) -> Result<Choice, DropReason> {
        if !self.loops.leads_back(now, &path) {
            return Ok(path);
        }
        let other = self.select_forward(now, message, Some(&path));
        other.filter(|other| !self.loops.leads_back(now, other)).ok_or(DropReason::Loop)
    }

    /// Finds out, from time to time, whether the gateway that a message goes to leads back.
    pub(super) fn watch_for_loop(&mut self, now: Instant, from: &Nid, header: &Header, path: &Choice) {
        let is_between = header.source.nid != *from && path.next_hop != path.destination;
        if is_between && self.loops.is_due(now, ends(path)) {
            self.send_probe(now, header, path);
        }
    }

    /// Sends a probe if there is room for it.
    #[cold]
    fn send_probe(&mut self, now: Instant, header: &Header, path: &Choice) {
        let &Choice { ni, next_hop, destination } = path;
        let credits = self.ni(ni).peer_share;
        let Some(peer) = self.peers.acquire(&next_hop, credits) else { return };
        let responses = self.peers.get_mut(peer).responses;
        if !self.messages.admits_response(responses) || !self.messages.reserve(Budget::Response) {
            return self.peers.release(peer);
        }
        self.peers.get_mut(peer).responses += 1;
        let cookie = Cookie::new(CookieKind::Buffer, self.id, name_of(&next_hop), second_of(now));
        let md = self.seals.handle(cookie, &destination);
        let body = Body::Ack { md, match_bits: 0, manipulated_length: 0 };
        let mut probe = Header { payload_length: 0, body, ..*header };
        probe.destination.nid = destination;
        let deadline = now + self.topology.known_ni(ni).message_timeout;
        let transmit =
            Transmit { tx: TxId(NONE), ni, next_hop, peer: PeerSlot(peer), header: probe, payload: None };
        self.launch(now, MessageState::new(Purpose::Ack { is_late: false }, transmit, deadline));
    }
}

/// Whether a message is a probe of any router: it is not sent by another gateway, of which it would prove
/// nothing.
pub(super) const fn is_probe(header: &Header) -> bool {
    matches!(header.body, Body::Ack { md, .. } if Cookie(md.object_cookie).is(CookieKind::Buffer))
}
