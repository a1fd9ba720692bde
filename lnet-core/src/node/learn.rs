//! What a peer says of itself, in answers to pings and in pushes, and what becomes of that (LNet `peer.c:
//! lnet_peer_merge_data`; spec: core 8.5, 9.5).
//!
//! Invariants: what is said is about the one who says it, or nothing is known by it; it is bounded; a
//! configured peer loses what was found and it does not tell, and stays else as it is.
//!
//! The word of a peer on its NIDs is a claim to all of them but the one that it speaks by: it moves nothing
//! until they say so themselves (`questions`). Where an LND proves its sources, the source of a message is
//! what it has proven, not what discovery has heard.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use lnet_wire::ping::{Features, NiStatus, PingInfo};
use lnet_wire::{Discovery, Global, Net, Nid};

use super::Node;
use super::peers::{Peer, TOLD_MAX, peer_state};
use super::pings::nids_of;
use crate::time::Instant;
use crate::topology::HEALTH_MAX;

impl<O: Clone> Node<O> {
    /// Takes note of what a peer has said of itself; whether it is about the peer, and may be believed. With
    /// `has_news` the NIDs that it claims are asked anew.
    pub(super) fn learn(&mut self, now: Instant, from: &Nid, info: &PingInfo<'_>, has_news: bool) -> bool {
        let (own, nids): (Vec<_>, Vec<_>) = nids_of(info).into_iter().partition(|nid| self.is_local(nid));
        let Some(first) = info.primary().filter(|_| nids.contains(from)) else { return false };
        // A node that has come in the name from elsewhere would take from a peer what that has proven.
        let has_others = |peer: &Peer| peer.nis.len() > 1;
        if self.peers.speaks_from_elsewhere(from) && self.peers.get(from).is_some_and(has_others) {
            return false;
        }
        // A primary NID that can be no NI's name, or is this node's own, is left out, and what else is told
        // counts.
        let primary = if first.can_name_an_ni() && !own.contains(&first) { first } else { nids[0] };
        let has = |feature| info.features().contains(feature);
        let is_discoverable = self.is_discovery_on() && has(Features::DISCOVERY);
        if self.peers.get(from).is_none() {
            self.peers.note_traffic(from, true);
        }
        let Some(before) = self.peers.get(from).map(|peer| peer.state) else { return true };
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let is_configured = before & peer_state::CONFIGURED != 0;
        let is_fixed = is_configured || self.settings.discovery() == Discovery::Verify;
        let is_multi_rail = if is_fixed {
            before & peer_state::MULTI_RAIL != 0
        } else {
            is_discoverable && has(Features::MULTI_RAIL) && nids.contains(&primary)
        };
        if is_multi_rail && !is_fixed {
            self.peers.join(from);
        }
        let told_count = nids.len();
        let told = within_bounds(&primary, from, nids);
        self.note_left_out(&primary, own.clone(), told_count.saturating_sub(told.len()));
        if before & peer_state::MULTI_RAIL != 0 && !is_multi_rail {
            self.peers.reset(from);
        }
        self.peers.change(from, |peer| {
            let by_account = peer_state::MULTI_RAIL | peer_state::NO_DISCOVERY | peer_state::ROUTER_ENABLED;
            peer.state = peer.state & !by_account
                | peer_state::NIDS_UP_TO_DATE
                | bit(is_multi_rail, peer_state::MULTI_RAIL)
                | bit(!is_discoverable, peer_state::NO_DISCOVERY)
                | bit(!has(Features::ROUTING_DISABLED), peer_state::ROUTER_ENABLED);
            if info.sequence() != 0 {
                peer.sequence = info.sequence();
            }
            peer.told = told.as_slice().into();
            peer.set_shared(&own);
            if is_multi_rail && !is_fixed {
                peer.retain_left(|nid| told.contains(nid));
            }
        });
        if is_configured && is_discoverable && self.settings.discovery() == Discovery::On {
            self.peers.note_told_by_configured(from, &told);
        }
        self.verify(from, &primary, &told, has(Features::MULTI_RAIL));
        if is_multi_rail && is_discoverable && !is_fixed {
            let nets: BTreeSet<Net> =
                told.iter().map(Nid::net).filter(|net| self.is_in_reach(*net)).collect();
            self.peers.note_told((now, has_news), from, (&primary, &told), |nid| nets.contains(&nid.net()));
            self.peers.bound_nids(from);
            self.deny_configured(from);
        }
        self.note_statuses(now, from, info);
        self.note_gateway_word(from, info);
        true
    }

    /// Takes note of which of its NIs are up, as the peer says that has spoken from `from` (spec 9.5): one
    /// that goes down loses health, one that is up and never sent anything is in full health. Of other peers'
    /// NIs it has no say.
    fn note_statuses(&mut self, now: Instant, from: &Nid, info: &PingInfo<'_>) {
        self.received_from(now, from);
        let step = self.settings.get(Global::HealthSensitivity);
        let Some(speaker) = self.peers.get(from) else { return };
        let (mut own, primary) = (speaker.proven_nids(), speaker.primary);
        for told in info.interfaces().take(TOLD_MAX) {
            // A NID counts as it is told first.
            let is_up = told.status == NiStatus::UP;
            let Some(at) = own.iter().position(|nid| *nid == told.nid) else {
                if self.peers.note_claimed_status(&primary, &told.nid, is_up) {
                    self.peers.hurry(now, &told.nid);
                }
                continue;
            };
            own.swap_remove(at);
            let Some(ni) = self.peers.get(&told.nid).and_then(|peer| peer.ni(&told.nid)) else { continue };
            let former = ni.is_up;
            let health = match (former, is_up) {
                (Some(true), false) => ni.health.saturating_sub(step),
                (None, true) if ni.received_at.is_none() => HEALTH_MAX,
                _ => ni.health,
            };
            if (former, ni.health) == (Some(is_up), health) {
                continue;
            }
            if let Some(ni) = self.peers.ni_mut(&told.nid) {
                (ni.is_up, ni.health) = (Some(is_up), health);
            }
            self.look_after(now, &told.nid);
        }
    }
}

/// What a peer has told, as much of it as is kept: the primary NID and the one that it spoke by among them
/// though there be too many.
fn within_bounds(primary: &Nid, from: &Nid, told: Vec<Nid>) -> Vec<Nid> {
    let mut nids = alloc::vec![*primary];
    if from != primary {
        nids.push(*from);
    }
    let others = told.iter().filter(|nid| *nid != primary && *nid != from);
    nids.extend(others.take(TOLD_MAX - nids.len()));
    // The others stand in the order in which they were told.
    nids.sort_by_key(|nid| (nid != primary, told.iter().position(|its| its == nid)));
    nids
}
