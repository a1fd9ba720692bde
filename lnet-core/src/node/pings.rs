//! Pings: what this node answers, and what it asks others (LNet `api-ni.c: lnet_ping`).
//!
//! A ping is a GET of portal [`PING_PORTAL`](crate::lnd::PING_PORTAL) with match bits
//! [`PING_MATCH_BITS`](crate::lnd::PING_MATCH_BITS). Invariants: each ends once, by
//! answer, failure, deadline or cancellation, whatever comes first; what comes later is ignored; what an
//! answer says is bounded before anything is kept of it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, HEADER_BYTES, LARGE_ENTRY_BYTES, PingInfo};
use lnet_wire::{Global, Nid};

use super::error::RequestError;
use super::peers::PeerOrigin;
use super::recovery::Side;
use super::{Action, Node, Outcome, Peer, RequestId};
use crate::time::Instant;
use crate::topology::NiStatus;

/// Most bytes that a ping on request has room for at first.
const ROOM_BYTES_MAX: usize = 3960;

/// Bytes that a ping on request has room for at first, where nodes have so many NIs at most.
pub(super) fn room_bytes(nis_max: u32) -> usize {
    let entries_bytes = (nis_max as usize).saturating_mul(LARGE_ENTRY_BYTES);
    entries_bytes.saturating_add(HEADER_BYTES).min(ROOM_BYTES_MAX)
}

/// One GET of a ping: of a request, and which of its tries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PingId {
    /// The request.
    pub request: RequestId,
    /// The second is for what had no room in the first.
    pub(super) is_second: bool,
}

/// What a ping has found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pinged {
    /// Who was asked.
    pub nid: Nid,
    /// The NID that it goes by here.
    pub primary: Nid,
    /// Whether it is known to take messages by any of its NIs.
    pub is_multi_rail: bool,
    /// Its NIDs by its own account, in its order, without `lo`; none twice.
    pub nids: Vec<Nid>,
}

/// Purpose of a ping, as far as its sender is to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PingKind {
    /// A request, or the discovery of a peer.
    Ordinary,
    /// To find out whether an NI has recovered: it is not sent again.
    Recovery,
    /// To find out whose a NID is that a peer claims: other pings do not wait for it.
    Question,
}

/// A ping that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ping {
    pub(super) id: PingId,
    pub(super) nid: Nid,
    pub(super) source: Option<Nid>,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) purpose: PingPurpose,
}

/// What a ping, or a push, is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PingPurpose {
    /// Something has asked for it, and waits for its end.
    Request,
    /// The peer is being discovered.
    Discovery,
    /// The peer is told what this node tells by that number.
    Push { sequence: u32 },
    /// The NI recovers.
    Recovery(Side),
    /// The NID is claimed by the peer with this primary NID, which came from this address.
    Question { claimant: Nid, origin: PeerOrigin },
}

/// What is to become of a ping that was answered.
pub(super) enum Answer {
    /// The peer has to be asked again, with room for so many bytes.
    Again(usize),
    /// The NIDs of the peer, or why its answer does not count.
    Done(Result<Vec<Nid>, RequestError>),
}

impl PingPurpose {
    const fn kind(&self) -> PingKind {
        match self {
            Self::Request | Self::Discovery | Self::Push { .. } => PingKind::Ordinary,
            Self::Recovery(_) => PingKind::Recovery,
            Self::Question { .. } => PingKind::Question,
        }
    }

    pub(super) const fn is_discovery(&self) -> bool {
        matches!(self, Self::Discovery | Self::Push { .. })
    }
}

impl Ping {
    pub(super) const fn is_discovery(&self) -> bool {
        self.purpose.is_discovery()
    }

    /// Reads an answer.
    pub(super) fn read(&self, bytes: &[u8]) -> Answer {
        let info = match PingInfo::parse(bytes) {
            Ok(info) => info,
            Err(error) => return Answer::Done(Err(RequestError::PingAnswer { nid: self.nid, error })),
        };
        if info.is_truncated() && !self.id.is_second {
            return Answer::Again(info.full_bytes().clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX));
        }
        Answer::Done(Ok(nids_of(&info)))
    }
}

impl<O: Clone> Node<O> {
    pub(super) fn ping(
        &mut self,
        now: Instant,
        request: RequestId,
        nid: Nid,
        source: Option<Nid>,
        timeout: Option<Duration>,
    ) -> Result<(), RequestError> {
        if !nid.can_name_an_ni() {
            return Err(RequestError::PingWildcard(nid));
        }
        let is_up = |nid: &Nid| self.ni(nid).is_some_and(|config| config.status() == NiStatus::Up);
        if let Some(source) = source.filter(|source| !is_up(source) && !source.is_loopback()) {
            return Err(RequestError::PingSource(source));
        }
        let nid = self.now_named(&nid);
        // A Multi-Rail peer is asked by the best path to any of its NIDs, as all that goes to it.
        let peer = self.peers.get(&nid).filter(|peer| peer.is_multi_rail());
        let known = peer.map_or_else(|| alloc::vec![nid], Peer::nids);
        let is_path = |its: &Nid| *its == nid || peer.is_some_and(Peer::is_own) || !self.is_local(its);
        // Messages wait for an NI whose link is down.
        let waits = |nid: &Nid| {
            let mut nis = self.nis.0.iter().filter(|config| config.status() == NiStatus::Down);
            let is_awaited = |config: &super::NiConfig<O>| config.awaits_carrier && !config.is_absent;
            source.is_none() && nis.any(|config| is_awaited(config) && config.spec.nid.net() == nid.net())
        };
        let may_go = |nid: &Nid| self.leads_to(nid, source) || waits(nid);
        let mut known = known.iter().filter(|its| is_path(its));
        if !known.any(may_go) && !nid.is_loopback() {
            return Err(RequestError::PingUnreachable(nid));
        }
        let max = self.config.ping_timeout_max;
        let timeout = timeout.filter(|timeout| !timeout.is_zero()).map_or(max, |timeout| timeout.min(max));
        let id = PingId { request, is_second: false };
        let purpose = PingPurpose::Request;
        let ping = Ping { id, nid, source, timeout, deadline: now + timeout, purpose };
        self.send_ping(ping, room_bytes(self.settings.get(Global::MaxInterfaces)));
        Ok(())
    }

    /// Has a ping sent, with room for so many bytes of the answer: it is under way.
    pub(super) fn send_ping(&mut self, ping: Ping, length_bytes: usize) {
        let Ping { id, nid, source, purpose, .. } = ping;
        self.pings.insert(id.request, ping);
        self.actions.push_back(Action::Ping { ping: id, nid, source, length_bytes, kind: purpose.kind() });
    }

    pub(super) fn answered(&mut self, now: Instant, id: PingId, bytes: &[u8]) {
        let Some(ping) = self.take_ping(id) else { return };
        match ping.purpose {
            PingPurpose::Push { sequence } => return self.push_ended(now, &ping, sequence, Ok(())),
            PingPurpose::Recovery(side) => return self.recovery_answered(now, &ping, side),
            PingPurpose::Request | PingPurpose::Discovery | PingPurpose::Question { .. } => {}
        }
        match ping.read(bytes) {
            Answer::Again(length_bytes) => {
                self.send_ping(Ping { id: PingId { is_second: true, ..id }, ..ping }, length_bytes);
            }
            // What is cut still says enough of its peer.
            _ if ping.purpose == PingPurpose::Discovery => self.discovery_answered(now, &ping, Ok(bytes)),
            _ if ping.purpose != PingPurpose::Request => self.question_answered(now, &ping, Some(bytes)),
            Answer::Done(Ok(nids)) => {
                if !self.is_local(&ping.nid) {
                    self.peers.note_traffic(&ping.nid, false);
                } else if !ping.nid.is_loopback() {
                    self.peers.note_own(&ping.nid);
                    self.received_from(now, &ping.nid);
                }
                let peer = self.peers.get(&ping.nid);
                let (primary, is_multi_rail) =
                    peer.map_or((ping.nid, false), |peer| (peer.primary, peer.is_multi_rail()));
                let pinged = Pinged { nid: ping.nid, primary, is_multi_rail, nids };
                self.end_ping(now, &ping, Ok(Outcome::Pinged(pinged)));
            }
            Answer::Done(Err(error)) => {
                self.discoveries.counters.answers_refused += 1;
                self.end_ping(now, &ping, Err(error));
            }
        }
    }

    /// A ping of which something is told; `None` if it has ended.
    pub(super) fn take_ping(&mut self, id: PingId) -> Option<Ping> {
        if self.pings.get(&id.request)?.id != id {
            return None;
        }
        self.pings.remove(&id.request)
    }

    /// A ping or push has ended, a push badly.
    pub(super) fn end_ping(&mut self, now: Instant, ping: &Ping, result: Result<Outcome, RequestError>) {
        let error = result.as_ref().err().cloned();
        match (ping.purpose, error) {
            (PingPurpose::Request, _) => self.end_request(ping.id.request, result),
            (PingPurpose::Discovery, Some(error)) => self.discovery_answered(now, ping, Err(error)),
            (PingPurpose::Push { sequence }, Some(error)) => self.push_ended(now, ping, sequence, Err(error)),
            (PingPurpose::Question { .. }, Some(_)) => self.question_answered(now, ping, None),
            _ => {}
        }
    }
}

/// The NIDs that a node has told of itself, in its order, without `lo` and what can be no NI's name; none
/// twice.
pub(super) fn nids_of(info: &PingInfo<'_>) -> Vec<Nid> {
    let nids = info.interfaces().map(|ni| ni.nid);
    let mut nids: Vec<_> = nids.filter(|nid| !nid.is_loopback() && nid.can_name_an_ni()).collect();
    keep_first(&mut nids);
    nids
}

/// Leaves of each NID the first.
fn keep_first(nids: &mut Vec<Nid>) {
    let mut seen = BTreeSet::new();
    nids.retain(|nid| seen.insert(*nid));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::nid;

    #[test]
    fn repetitions_go_and_the_order_stays() {
        let mut nids = [3, 1, 3, 2, 1, 3].map(|host| nid(1, host)).to_vec();
        keep_first(&mut nids);
        assert_eq!(nids, [3, 1, 2].map(|host| nid(1, host)));
    }
}
