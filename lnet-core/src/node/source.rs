//! The one source of what goes to a peer that is not Multi-Rail (LNet `lib-move.c:
//! lnet_select_preferred_best_ni`; spec: core 7.2).
//!
//! A peer that is not Multi-Rail knows this node by a NID, and would take another one for another node. So
//! the local NID that requests to its NI go by is recorded with that, once, and all shards have it by their
//! snapshot.
//!
//! Invariants: a record names a local NI on the net of the peer NI, or on that of a gateway which leads
//! there; it goes with that NI, when the peer becomes Multi-Rail, and when a selection policy says which NIs
//! are preferred. A record whose NI is up and has no route to the peer NI ends where another NI has one.

use alloc::boxed::Box;
use core::cmp::Reverse;

use lnet_wire::Nid;

use super::Node;
use super::nets::NiConfig;
use super::peers::{Peer, PeerNi};
use crate::lnd::NiId;
use crate::topology::{NiStatus, PreferredSources, source_rank};

impl<O: Clone> Node<O> {
    fn stays(config: &NiConfig<O>) -> bool {
        config.going.is_none()
    }

    /// Notes the local NI by which a peer was first heard, if there is no record of it yet.
    pub(super) fn note_first_ni(&mut self, nid: &Nid, first_ni: Option<NiId>) {
        let Some(by) = first_ni.and_then(|ni| self.nis.get(ni)).filter(|config| Self::stays(config)) else {
            return;
        };
        let source = by.spec.nid;
        // Where a policy says what the peer prefers there is no record.
        let has_room = |ni: &PeerNi| ni.source.is_none() && self.by_policy(ni).is_empty();
        let is_open = self
            .peers
            .get(nid)
            .is_some_and(|peer| !peer.is_multi_rail() && peer.ni(nid).is_some_and(has_room));
        if is_open
            && source.net() == nid.net()
            && let Some(ni) = self.peers.ni_mut(nid)
        {
            ni.source = Some(Box::new(source));
        }
    }

    /// Records the sources to the NIs of a peer, or erases them.
    pub(super) fn record_sources(&mut self, primary: &Nid) {
        let Some(peer) = self.peers.get(primary) else { return };
        let sources: Box<[Option<Nid>]> = peer.nis.iter().map(|ni| self.source(peer, ni)).collect();
        if let Some(peer) = self.peers.get_mut(primary) {
            peer.nis.iter_mut().zip(sources).for_each(|(ni, source)| {
                if ni.source.as_deref() != source.as_ref() {
                    ni.source = source.map(Box::new);
                }
            });
        }
    }

    fn source(&self, peer: &Peer, ni: &PeerNi) -> Option<Nid> {
        if peer.is_multi_rail() || !self.by_policy(ni).is_empty() {
            return None;
        }
        let nets = self.nets_towards(ni.nid.net());
        let on_net = |config: &&NiConfig<O>| nets.contains(&config.spec.nid.net()) && Self::stays(config);
        let own = || self.nis.0.iter().filter(on_net);
        let is_up = |config: &NiConfig<O>| config.status() == NiStatus::Up;
        // No interface is to lead behind a gateway by itself.
        let is_near = nets[..] == [ni.nid.net()];
        let route_bits = |config: &NiConfig<O>| if is_near { config.route_bits(&ni.nid) } else { Some(0) };
        let has_route = |config: &NiConfig<O>| route_bits(config).is_some();
        let leads_nowhere = |config: &NiConfig<O>| {
            is_up(config) && !has_route(config) && own().any(|other| is_up(other) && has_route(other))
        };
        let recorded = own().find(|config| ni.source.as_deref() == Some(&config.spec.nid));
        let recorded = recorded.filter(|config| !leads_nowhere(config)).map(|config| config.spec.nid);
        let best = || {
            own().min_by_key(|config| {
                let nid = &config.spec.nid;
                let route_bits = route_bits(config);
                (
                    Reverse(is_up(config)),
                    Reverse(route_bits.is_some()),
                    Reverse(config.health),
                    self.rules.ni_priority(nid),
                    Reverse(route_bits),
                    source_rank(nid, &ni.nid),
                )
            })
        };
        recorded.or_else(|| best().map(|config| config.spec.nid))
    }

    fn by_policy(&self, ni: &PeerNi) -> PreferredSources {
        self.rules.preferred(&ni.nid, self.nis.0.iter().map(|config| &config.spec.nid))
    }

    /// The local NIDs that a peer's NI prefers, as the shards are to know them: where a single one is on its
    /// net there is nothing to prefer.
    pub(super) fn preferred(&self, peer: &Peer, ni: &PeerNi) -> PreferredSources {
        let by_policy = self.by_policy(ni);
        if peer.is_multi_rail() {
            return by_policy;
        }
        // Policies may have come to prefer several: the best one counts, the first of equal ones.
        let policy = by_policy.best();
        let has_choice = || {
            let nets = self.nets_towards(ni.nid.net());
            self.nis.0.iter().filter(|config| nets.contains(&config.spec.nid.net())).nth(1).is_some()
        };
        let source = policy.or_else(|| ni.source.as_deref().copied().filter(|_| has_choice()));
        source.into_iter().collect()
    }
}
