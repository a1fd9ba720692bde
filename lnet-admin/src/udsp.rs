//! Selection policies and peers in the terms of the core, and in those of the tools.

use lnet_core::node::{Peer, peer_state};
use lnet_core::udsp::RuleList;
use lnet_model::peer::PeerSpec;
use lnet_model::request::{Effect, Staying};
use lnet_model::udsp::{UdspInfo, UdspRule};
use lnet_wire::Nid;

use super::control::Control;

impl Control {
    pub(super) fn udsp_records(&self) -> Vec<UdspRule> {
        self.lnet.machine().rules().rules().to_vec()
    }

    /// What becomes of a peer that is to be made.
    pub(super) fn outcome_of_peer(&self, spec: &PeerSpec) -> Effect {
        let node = self.lnet.machine();
        let is_so = |peer: &Peer| {
            let is_locked = peer.is(peer_state::LOCK_PRIMARY) || !spec.lock_primary;
            peer.primary == spec.primary_nid
                && peer.is(peer_state::CONFIGURED)
                && peer.is_multi_rail() == spec.multi_rail
                && is_locked
                && spec.nids.iter().all(|nid| peer.ni(nid).is_some_and(|ni| ni.is_configured))
        };
        let is_so = node.peer(&spec.primary_nid).is_some_and(is_so);
        let staying: Vec<_> = node.staying_nids(spec).map(|(nid, peer)| Staying::Nid { nid, peer }).collect();
        if is_so { Effect::Unchanged } else { Effect::leaving(staying) }
    }
}

/// What the rules say of a local NI.
pub(super) fn local_info(rules: &RuleList, nid: &Nid) -> UdspInfo {
    UdspInfo {
        net_priority: rules.net_priority(nid.net()),
        nid_priority: rules.ni_priority(nid),
        ..UdspInfo::default()
    }
}

/// What the rules say of an NI of a peer.
pub(super) fn peer_info<'a>(rules: &RuleList, nid: &Nid, local: impl Iterator<Item = &'a Nid>) -> UdspInfo {
    UdspInfo {
        net_priority: rules.peer_net_priority(nid.net()),
        nid_priority: rules.peer_priority(nid),
        preferred_sources: rules.preferred(nid, local).nids().collect(),
        ..UdspInfo::default()
    }
}
