//! The states of local NIs, local nets, peers and peer NIs, as the Multi-Rail design has them: what the node
//! knows, in one word.
//!
//! Nothing is stored: a state is a function of what there is, so that it cannot contradict it.
//! `docs/multi-rail.md` has the transitions.

use lnet_wire::{Net, Nid, named};

use super::Node;
use super::nets::NiConfig;
use super::peers::{Peer, PeerNi, peer_state};
use crate::topology::{HEALTH_MAX, NiStatus};

named! {
    /// State of a local NI.
    LocalNiState {
        /// A batch that is carried out adds it: shards do not know it yet.
        Init => "INIT",
        /// Serves, and is in full health.
        Created => "CREATED",
        /// Serves, and is not in full health.
        Degraded => "DEGRADED",
        /// Others are told that it is down: it has no link or no interface, or its health has fallen to 0 and
        /// is not full again.
        Failed => "FAILED",
        /// About to be closed: what is under way by it ends.
        Deleting => "DELETING",
    }
}

named! {
    /// State of a local net, which follows from its NIs.
    LocalNetState {
        /// Its first NIs are being opened.
        Init => "INIT",
        /// An NI of it serves.
        Active => "ACTIVE",
        /// No NI of it serves, and one has failed.
        Inactive => "INACTIVE",
        /// All of its NIs are about to be closed.
        Deleting => "DELETING",
    }
}

named! {
    /// State of a peer.
    PeerState {
        /// Known, and to be discovered when it is used.
        Init => "INIT",
        /// Messages go; there is nothing to be found out about it, or discovery is off.
        Active => "ACTIVE",
        /// Waits for its turn to be pinged or pushed to.
        Discover => "DISCOVER",
        /// Was pinged, and has not answered.
        PingSent => "PING SENT",
        /// What it has told is taken over, and its discovery is about to end.
        DataReceived => "DATA RECEIVED",
        /// Was pushed to, and has not acknowledged.
        PushSent => "PUSH SENT",
        /// All of its NIs have failed: they are pinged until one recovers.
        Inactive => "INACTIVE",
    }
}

named! {
    /// State of a peer NI.
    PeerNiState {
        /// Nothing has gone to it or come from it, as far as the shards remember.
        Created => "CREATED",
        /// The first message to it is under way.
        Activating => "ACTIVATING",
        /// Messages go to it, or come from it.
        Connected => "CONNECTED",
        /// Not in full health since a message has failed, or its node says that it is down.
        Failed => "FAILED",
    }
}

/// What the shards remember of the traffic with a peer NI.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PeerTraffic {
    /// Whether a message has gone to it, or come from it.
    pub has_carried: bool,
    /// Whether one is on its way to it.
    pub is_under_way: bool,
}

impl<O> NiConfig<O> {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> LocalNiState {
        match self.status() {
            NiStatus::Leaving | NiStatus::Closed => LocalNiState::Deleting,
            _ if !self.is_told_up() => LocalNiState::Failed,
            _ if self.health < HEALTH_MAX => LocalNiState::Degraded,
            _ => LocalNiState::Created,
        }
    }
}

impl PeerNi {
    const fn has_failed(&self) -> bool {
        self.health < HEALTH_MAX || matches!(self.is_up, Some(false))
    }

    /// Its state, with this traffic.
    #[must_use]
    pub const fn state(&self, traffic: PeerTraffic) -> PeerNiState {
        match traffic {
            _ if self.has_failed() => PeerNiState::Failed,
            PeerTraffic { has_carried: true, .. } => PeerNiState::Connected,
            PeerTraffic { is_under_way: true, .. } => PeerNiState::Activating,
            PeerTraffic { .. } => PeerNiState::Created,
        }
    }
}

impl<O: Clone> Node<O> {
    /// The state of the local NI with a NID, if there is one or one is being opened.
    #[must_use]
    pub fn ni_state(&self, nid: &Nid) -> Option<LocalNiState> {
        let is_coming = || self.coming().any(|coming| coming == *nid).then_some(LocalNiState::Init);
        if nid.is_loopback() {
            return Some(LocalNiState::Created);
        }
        self.ni(nid).map(NiConfig::state).or_else(is_coming)
    }

    /// The state of a local net, if it has NIs or one is being opened.
    #[must_use]
    pub fn net_state(&self, net: Net) -> Option<LocalNetState> {
        if net == Net::LO {
            return Some(LocalNetState::Active);
        }
        let nis = self.nis.0.iter().map(|config| config.spec.nid).chain(self.coming());
        let states = nis.filter(|nid| nid.net() == net).filter_map(|nid| self.ni_state(&nid));
        // What serves decides, then what may serve again.
        let net_state = |state| match state {
            LocalNiState::Created | LocalNiState::Degraded => (0, LocalNetState::Active),
            LocalNiState::Failed => (1, LocalNetState::Inactive),
            LocalNiState::Init => (2, LocalNetState::Init),
            LocalNiState::Deleting => (3, LocalNetState::Deleting),
        };
        states.map(net_state).min_by_key(|(rank, _)| *rank).map(|(_, state)| state)
    }

    /// The state of a peer.
    #[must_use]
    pub fn peer_state(&self, peer: &Peer) -> PeerState {
        if peer.is(peer_state::PUSH_SENT) {
            PeerState::PushSent
        } else if peer.is(peer_state::PING_SENT) {
            PeerState::PingSent
        } else if peer.is(peer_state::DISCOVERING) {
            let is_on = self.is_discovery_on();
            let has_more = peer.needs_ping() || peer.needs_push(self.told.sequence, is_on);
            if has_more { PeerState::Discover } else { PeerState::DataReceived }
        } else if peer.nis.iter().all(PeerNi::has_failed) {
            PeerState::Inactive
        } else if self.is_discovery_on() && self.is_wanted(peer) {
            PeerState::Init
        } else {
            PeerState::Active
        }
    }
}
