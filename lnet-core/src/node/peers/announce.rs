//! What a program announces of peers, and what becomes of locked primary NIDs (LNet `peer.c: LNetAddPeer`;
//! spec: core 8.6, 8.7).

use alloc::boxed::Box;

use lnet_wire::Nid;

use super::peer_state::{
    BAD_CONFIG, CONFIGURED, DISCOVERING, FORCE_PUSH, LOCK_PRIMARY, MULTI_RAIL, NIDS_UP_TO_DATE,
};
use super::{Peer, PeerNi, PeerTable, TOLD_MAX};

impl Peer {
    /// Takes over the lock of a peer that turned out to be a part of this one, if that was locked earlier, or
    /// alone: its primary NID is this one's then.
    pub(super) fn take_lock(&mut self, gone: &Self) {
        if !gone.is(LOCK_PRIMARY) || self.is(LOCK_PRIMARY) && self.locked_at < gone.locked_at {
            return;
        }
        if self.ni(&gone.primary).is_none() {
            self.nis.truncate(TOLD_MAX - 1);
            self.nis.push(PeerNi::new(gone.primary));
        }
        self.state |= LOCK_PRIMARY;
        (self.primary, self.locked_at) = (gone.primary, gone.locked_at);
    }
}

impl PeerTable {
    /// Notes when a peer's primary NID was locked.
    pub(super) fn number_lock(&mut self, peer: &mut Peer) {
        if !peer.is(LOCK_PRIMARY) {
            (peer.locked_at, peer.is_found_by_other) = (0, false);
        } else if peer.locked_at == 0 {
            self.locks += 1;
            peer.locked_at = self.locks;
        }
    }

    /// A program says that this is the primary NID of a peer, which is made if there is none. One that is
    /// configured or locked goes by the primary NID that it has. The peer then; `None` if there is no room
    /// for one.
    pub(in crate::node) fn announce(&mut self, nid: &Nid, locks: bool, is_multi_rail: bool) -> Option<&Peer> {
        if self.get(nid).is_none() {
            self.note_traffic(nid, false);
        }
        self.change(nid, |peer| {
            if !peer.stays() {
                peer.primary = *nid;
                peer.state |= if locks { LOCK_PRIMARY } else { 0 };
                peer.state |= if is_multi_rail { MULTI_RAIL } else { 0 };
            }
        })?;
        self.get(nid)
    }

    /// A program says that a NID belongs to the peer with another one. Whether its own peer is to be
    /// discovered for that: what it tells makes it a part of the other one ([`PeerTable::join`]).
    pub(in crate::node) fn announce_part(&mut self, nid: &Nid, of: &Nid) -> bool {
        if self.get(nid).is_none() {
            self.note_traffic(nid, false);
        }
        let is_whole = self.get(of).is_none_or(|peer| peer.ni(nid).is_some() || peer.is(CONFIGURED));
        if is_whole || self.get(nid).is_none_or(|peer| peer.is(CONFIGURED)) {
            return false;
        }
        let announced = self.change(nid, |peer| {
            peer.part_of = Some(Box::new(*of));
            peer.state &= !NIDS_UP_TO_DATE;
        });
        announced.is_some()
    }

    /// Makes the peer with a NID a part of the one that a program has announced.
    pub(in crate::node) fn join(&mut self, nid: &Nid) {
        let Some(of) = self.get_mut(nid).and_then(|peer| peer.part_of.take()) else { return };
        let (Some(part), Some(whole)) = (self.get(nid), self.get(&of)) else { return };
        if part.primary == whole.primary || part.is(CONFIGURED) || whole.is(CONFIGURED) {
            return;
        }
        if part.is(LOCK_PRIMARY) && part.nis.len() > 1 {
            for nid in [nid, &*of] {
                self.change(nid, |peer| peer.state |= BAD_CONFIG);
            }
            return;
        }
        let primary = part.primary;
        let Some(gone) = self.take_out(&primary) else { return };
        self.change(&of, |peer| {
            peer.state |= gone.state & (DISCOVERING | FORCE_PUSH);
            peer.take_lock(&gone);
            peer.waiting.extend_from_slice(&gone.waiting);
            peer.take_names(&gone);
            for ni in gone.nis {
                if peer.nis.len() < TOLD_MAX && peer.ni(&ni.nid).is_none() {
                    peer.nis.push(ni);
                }
            }
        });
    }
}
