//! What the administrator does with peers (LNet `peer.c: lnet_user_add_peer_ni`, `lnet_del_peer`; spec: core
//! 8.6).

use alloc::boxed::Box;
use alloc::vec::Vec;

use lnet_model::peer::PeerSpec;
use lnet_wire::Nid;

use super::peer_state::{BAD_CONFIG, CONFIGURED, DISCOVERED, LOCK_PRIMARY, MULTI_RAIL, NIDS_UP_TO_DATE};
use super::{LostNid, Peer, PeerEdit, PeerError, PeerNi, PeerTable, TOLD_MAX};
use crate::topology::HEALTH_MAX;

impl Peer {
    /// The administrator gives it a NID, which it may have, or claim, already.
    fn give(&mut self, nid: &Nid) {
        let at = self.nis.iter().position(|ni| ni.nid == *nid).unwrap_or_else(|| {
            let claim = self.claims.iter().position(|claim| claim.ni.nid == *nid);
            self.nis.push(claim.map_or_else(|| PeerNi::new(*nid), |at| self.claims.remove(at).ni));
            self.nis.len() - 1
        });
        self.nis[at].is_configured = true;
    }
}

impl PeerTable {
    /// Makes a change, on a node with these NIDs. Batches try theirs on a copy first.
    ///
    /// # Errors
    /// [`PeerError`]; a part of the change may be made then.
    pub(in crate::node) fn apply(&mut self, change: &PeerEdit, own: &[Nid]) -> Result<(), PeerError> {
        self.make(change)?;
        self.mark_own(own, own);
        Ok(())
    }

    fn make(&mut self, change: &PeerEdit) -> Result<(), PeerError> {
        let check = |nid: &Nid| match nid.can_name_an_ni() && !nid.is_loopback() {
            false => Err(PeerError::Nid(*nid)),
            true => Ok(()),
        };
        match change {
            PeerEdit::Add(PeerSpec { primary_nid: primary, nids, multi_rail, lock_primary }) => {
                core::iter::once(primary).chain(nids).try_for_each(check)?;
                self.add(*primary, *multi_rail, *lock_primary)?;
                nids.iter().try_for_each(|nid| self.add_nid(*primary, *nid, *multi_rail))
            }
            PeerEdit::Delete { primary, nids, is_forced } => self.delete(primary, nids, *is_forced),
            PeerEdit::SetHealth { value, .. } if *value > HEALTH_MAX => Err(PeerError::Health(*value)),
            PeerEdit::SetHealth { nid: Some(nid), value } => {
                let ni = self.ni_mut(nid).ok_or(PeerError::Unknown(*nid))?;
                ni.health = *value;
                Ok(())
            }
            PeerEdit::SetHealth { nid: None, value } => {
                for (primary, peer) in &mut self.peers {
                    peer.nis.iter_mut().for_each(|ni| ni.health = *value);
                    self.changed.insert(*primary);
                }
                Ok(())
            }
            PeerEdit::SetState { nid, state } => {
                let set = |peer: &mut Peer| {
                    let was_configured = peer.is(CONFIGURED);
                    peer.state = *state;
                    if peer.is(CONFIGURED) != was_configured {
                        peer.nis.iter_mut().for_each(|ni| ni.is_configured = !was_configured);
                    }
                };
                self.change(nid, set).ok_or(PeerError::Unknown(*nid))
            }
        }
    }

    fn add(&mut self, primary: Nid, is_multi_rail: bool, locks: bool) -> Result<(), PeerError> {
        let kind = if is_multi_rail { MULTI_RAIL } else { 0 };
        let mut state = CONFIGURED | kind | if locks { LOCK_PRIMARY } else { 0 };
        if let Some(peer) = self.get(&primary) {
            let is_primary = peer.primary == primary;
            if peer.is(CONFIGURED) {
                return match is_primary {
                    false => Err(PeerError::Configured { nid: primary, primary: peer.primary }),
                    true if peer.is_multi_rail() != is_multi_rail => {
                        Err(PeerError::OtherKind { primary, is_multi_rail: peer.is_multi_rail() })
                    }
                    true => Ok(()),
                };
            }
            if peer.is(LOCK_PRIMARY) {
                let locked = PeerError::LockedAs { nid: primary, primary: peer.primary };
                return Err(if is_primary { PeerError::Locked(primary) } else { locked });
            }
            if is_multi_rail && peer.is_multi_rail() {
                self.configure(&primary, state);
                return Ok(());
            }
            state |= peer.state & (DISCOVERED | NIDS_UP_TO_DATE) & if is_primary { u32::MAX } else { 0 };
            let former = peer.primary;
            let lost = peer.proven_nids().into_iter().filter(|nid| *nid != primary && !peer.is_own());
            let lost: Vec<_> =
                lost.map(|nid| LostNid { nid, other: primary, is_told: false, is_moved: false }).collect();
            self.lost.extend(lost);
            self.remove(&former);
        }
        self.insert(Box::new(Peer::new(primary, state)));
        self.configure(&primary, state);
        Ok(())
    }

    /// A NID of a peer is its primary one by the administrator's word; its others stay as they are.
    fn configure(&mut self, primary: &Nid, state: u32) {
        self.change(primary, |peer| {
            peer.primary = *primary;
            peer.state |= state;
            peer.give(primary);
        });
    }

    fn add_nid(&mut self, primary: Nid, nid: Nid, is_multi_rail: bool) -> Result<(), PeerError> {
        let peer = self.get(&primary).ok_or(PeerError::Unknown(primary))?;
        if let Some(ni) = peer.ni(&nid) {
            if !ni.is_configured {
                self.change(&primary, |peer| peer.give(&nid));
            }
            return Ok(());
        }
        if !is_multi_rail && peer.nis.iter().any(|ni| ni.nid.net() == nid.net()) {
            return Err(PeerError::NotUnique { nid, primary });
        }
        if peer.nis.len() >= TOLD_MAX {
            return Err(PeerError::TooMany(primary));
        }
        if let Some(other) = self.get(&nid) {
            if other.ni(&nid).is_some_and(|ni| ni.is_configured) {
                return Err(PeerError::Configured { nid, primary: other.primary });
            }
            let other = other.primary;
            if self.stays_with(&primary, &nid).is_some() {
                self.change(&other, |peer| peer.state |= BAD_CONFIG);
                self.change(&primary, |peer| peer.state |= BAD_CONFIG);
                return Ok(());
            }
            if other == nid {
                self.remove(&other);
            } else {
                self.change(&other, |peer| peer.nis.retain(|ni| ni.nid != nid));
            }
        }
        self.change(&primary, |peer| peer.give(&nid));
        Ok(())
    }

    /// The primary NID of the peer that keeps a NID though a configured one is to have it: that one is
    /// locked, and has more than one (LNet `peer.c: lnet_peer_add_nid`).
    pub(in crate::node) fn stays_with(&self, primary: &Nid, nid: &Nid) -> Option<Nid> {
        let other = self.get(nid).filter(|other| other.primary != *primary)?;
        (other.is(LOCK_PRIMARY) && other.nis.len() > 1).then_some(other.primary)
    }

    fn delete(&mut self, primary: &Nid, nids: &[Nid], is_forced: bool) -> Result<(), PeerError> {
        let peer = self.get(primary).ok_or(PeerError::Unknown(*primary))?;
        if peer.primary != *primary {
            return Err(PeerError::NotPrimary { nid: *primary, primary: peer.primary });
        }
        for nid in nids {
            match self.primaries.get(nid) {
                None if peer.claim(nid).is_some() => {}
                None => return Err(PeerError::Unknown(*nid)),
                Some(other) if other != primary => {
                    return Err(PeerError::NotHere { nid: *nid, primary: *primary });
                }
                Some(_) => {}
            }
        }
        if !nids.is_empty() && !nids.contains(primary) {
            self.change(primary, |peer| peer.claims.retain(|claim| !nids.contains(&claim.ni.nid)));
            self.retain_nis(primary, false, |nid| !nids.contains(nid));
        } else if peer.is(LOCK_PRIMARY) && !is_forced {
            self.retain_nis(primary, false, |nid| nid == primary);
            self.change(primary, |peer| {
                peer.claims.clear();
                peer.state &= !NIDS_UP_TO_DATE;
            });
        } else {
            self.remove(primary);
        }
        Ok(())
    }
}
