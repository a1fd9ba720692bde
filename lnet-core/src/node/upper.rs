//! What upper layers ask of peers: which NIDs are one node, and by which NID it goes (LNet `peer.c:
//! LNetAddPeer`, `LNetPrimaryNID`; spec: core 8.7).

use alloc::vec::Vec;

use lnet_wire::Nid;

use super::error::RequestError;
use super::peers::{Peer, peer_state};
use super::pings::Pinged;
use super::{Node, RequestId};
use crate::time::Instant;

impl<O: Clone> Node<O> {
    /// A program announces a peer by its NIDs. The first that is usable is its primary NID, and stays that;
    /// the peers that have the others are discovered, and become parts of it. Without discovery each usable
    /// NID is a peer of its own. This node's own NIDs are usable where no others are.
    pub(super) fn announce(&mut self, now: Instant, nids: &[Nid]) -> Result<Pinged, RequestError> {
        let mut usable: Vec<Nid> = Vec::new();
        for nid in nids.iter().filter(|nid| self.may_be_peer(nid)) {
            if self.is_in_reach(nid.net()) && !usable.contains(nid) {
                usable.push(*nid);
            }
        }
        let (locks, is_on) = (self.config.locks_announced, self.is_discovery_on());
        let Some((first, others)) = usable.split_first() else {
            let mut own: Vec<Nid> = Vec::new();
            for nid in nids.iter().filter(|nid| self.ni(nid).is_some()) {
                if !own.contains(nid) {
                    own.push(*nid);
                }
            }
            let first = *own.first().ok_or(RequestError::AnnouncedNone)?;
            let peer = self.peers.announce_own(&own, locks, is_on).ok_or(RequestError::PeerGone(first))?;
            return Ok(pinged(&first, peer));
        };
        let peer = self.peers.announce(first, locks, is_on).ok_or(RequestError::PeerGone(*first))?;
        let announced = pinged(first, peer);
        for nid in others {
            if !is_on {
                self.peers.announce(nid, locks, false).ok_or(RequestError::PeerGone(*nid))?;
            } else if self.peers.announce_part(nid, first) {
                self.discover_for(now, nid, None);
            }
        }
        Ok(announced)
    }

    /// A program asks by which NID the peer with this one goes. One that is not up to date is discovered
    /// first, unless its primary NID is locked: then it is discovered besides.
    pub(super) fn primary_nid(
        &mut self,
        now: Instant,
        request: RequestId,
        nid: Nid,
    ) -> Result<Option<Pinged>, RequestError> {
        if !nid.can_name_an_ni() {
            return Err(RequestError::PingWildcard(nid));
        }
        let nid = self.now_named(&nid);
        let peer = self.peers.get(&nid);
        let stored = peer.map(|peer| pinged(&nid, peer));
        let is_locked = peer.is_some_and(|peer| peer.is(peer_state::LOCK_PRIMARY));
        let is_on = self.is_discovery_on();
        Ok(if nid.is_loopback() {
            Some(Pinged { primary: nid, ..self.pinged_self(nid) })
        } else if self.is_local(&nid) {
            Some(self.pinged_self(nid))
        } else if !is_on {
            stored.or(Some(Pinged { nid, primary: nid, is_multi_rail: false, nids: alloc::vec![nid] }))
        } else if peer.is_some_and(|peer| peer.is_up_to_date(self.told.sequence, is_on)) {
            if peer.is_some_and(Peer::may_be_renamed) {
                self.discoveries.requests.insert(request, nid);
                self.discoveries.unnamed.insert(request, None);
                return Ok(None);
            }
            stored
        } else {
            let nids = peer.map_or_else(|| alloc::vec![nid], Peer::proven_nids);
            let leads_there = self.leads_to_any(&nids);
            if !leads_there && !is_locked {
                return Err(RequestError::PingUnreachable(nid));
            }
            if leads_there {
                if !is_locked {
                    self.discoveries.names.insert(request);
                }
                self.discover_for(now, &nid, (!is_locked).then_some(request));
            }
            stored.filter(|_| is_locked)
        })
    }

    /// Discovers a peer anew, whatever is known of it (LNet `peer.c: lnet_discover`).
    pub(super) fn discover_on_request(
        &mut self,
        now: Instant,
        request: RequestId,
        nid: Nid,
        is_forced: bool,
    ) -> Result<Option<Pinged>, RequestError> {
        if !nid.can_name_an_ni() {
            return Err(RequestError::PingWildcard(nid));
        }
        if self.is_local(&nid) {
            return Ok(Some(self.discover_self(now, nid)));
        }
        let nid = self.now_named(&nid);
        let known = self.peers.get(&nid).map_or_else(|| alloc::vec![nid], Peer::proven_nids);
        if !self.leads_to_any(&known) {
            return Err(RequestError::PingUnreachable(nid));
        }
        if self.peers.get(&nid).is_none() {
            self.peers.note_traffic(&nid, false);
        }
        self.peers.change(&nid, |peer| {
            peer.state &= !peer_state::NIDS_UP_TO_DATE;
            peer.state |= if is_forced { peer_state::FORCE_PING | peer_state::FORCE_PUSH } else { 0 };
        });
        self.discover_for(now, &nid, Some(request));
        Ok(None)
    }

    /// This node is discovered by one of its NIDs: it is a peer of itself from then on.
    pub(super) fn discover_self(&mut self, now: Instant, nid: Nid) -> Pinged {
        let nids = self.told.nids();
        if self.is_discovery_on() {
            self.peers.discover_own(&nid, &nids, self.told.sequence);
            nids.iter().for_each(|nid| self.received_from(now, nid));
        } else if !nid.is_loopback() {
            self.peers.note_own(&nid);
            self.received_from(now, &nid);
        }
        let pinged = self.pinged_self(nid);
        // A primary NID that was fixed is the one that it is shown by.
        let fixed = peer_state::CONFIGURED | peer_state::LOCK_PRIMARY;
        let peer = self.peers.get(if nid.is_loopback() { &pinged.primary } else { &nid });
        match peer.filter(|peer| peer.is_own() && peer.state & fixed != 0) {
            Some(peer) => Pinged { primary: peer.primary, is_multi_rail: peer.is_multi_rail(), ..pinged },
            None => pinged,
        }
    }

    /// What is known of this node itself, by one of its NIDs.
    pub(super) fn pinged_self(&self, nid: Nid) -> Pinged {
        let nids = self.told.nids();
        let primary = nids.first().copied().unwrap_or(nid);
        Pinged { nid, primary, is_multi_rail: true, nids }
    }
}

pub(super) fn pinged(nid: &Nid, peer: &Peer) -> Pinged {
    Pinged {
        nid: *nid,
        primary: peer.shown_primary(),
        is_multi_rail: peer.is_multi_rail(),
        nids: peer.told_nids(),
    }
}
