//! The choice for messages of other nodes (LNet `lib-move.c: lnet_select_pathway`, spec: core 7.1, 7.2).
//!
//! They keep their source, so no NI is sticky, and their destination: a NID that is ill may be changed for
//! another one of its peer, if the source is Multi-Rail too and so takes an answer from there (LNet
//! `lib-move.c: lnet_mr_forwarding_allowed`).

use core::time::Duration;

use lnet_wire::{Header, Nid};

use super::criteria::NoTrace;
use super::{Choice, RouteRequest, Shard};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::topology::{HEALTH_MAX, PeerView};

/// How long a next hop may be silent before messages for it are dropped: one that is busy answers late.
pub const NEXT_HOP_PATIENCE: Duration = Duration::from_secs(3);

impl Shard {
    /// The path by which a message that a peer NI has sent goes on: straight to its destination if that is on
    /// a net of this node's, else by a gateway, and not back. Another one than a path that has failed, if
    /// there was one.
    pub(in crate::shard) fn select_forward(
        &self,
        now: Instant,
        (from, header): (&Nid, &Header),
        than: Option<&Choice>,
    ) -> Option<Choice> {
        let destination = &header.destination.nid;
        let net = destination.net();
        let path = if self.topology.on_net(net).is_none() {
            let sender = Some(self.topology.primary_of(from));
            let request = RouteRequest { sender, ..RouteRequest::default() };
            match than {
                Some(than) => self.choose_route_again(now, destination, than, &request),
                None => self.select_route(now, destination, &request),
            }
        } else {
            let view = self.other_nids(header);
            let best = match view {
                Some(_) => self.choose(now, destination, (None, false), &mut NoTrace),
                None => self
                    .choose_local(now, net, (None, core::iter::once(destination)), &mut NoTrace)
                    .map(|ni| Choice::direct(ni, *destination)),
            };
            match than {
                Some(than) => best
                    .filter(|best| best.path() != than.path())
                    .or_else(|| self.select_other(than, view, |_| true)),
                None => best,
            }
        };
        path.filter(|path| self.topology.known_ni(path.ni).serves() && !self.leads_back(from, &path.next_hop))
    }

    /// Whether a next hop is of the peer that has sent a message.
    fn leads_back(&self, from: &Nid, next_hop: &Nid) -> bool {
        next_hop == from || self.topology.is_same_peer(next_hop, from)
    }

    /// Why a message does not go on that a peer NI has sent.
    #[cold]
    pub(in crate::shard) fn why_not_forwarded(&self, from: &Nid, destination: &Nid) -> DropReason {
        let gateways = self.topology.net_routes().map_or(&[][..], |routes| routes.to(destination.net()));
        let mut hops = gateways.iter().map(|gateway| &gateway.nid).chain([destination]);
        match hops.any(|hop| self.leads_back(from, hop)) {
            true => DropReason::LeadsBack,
            false => DropReason::NoNextHop,
        }
    }

    /// The peer whose other NIDs a message may go to as well.
    fn other_nids(&self, header: &Header) -> Option<&PeerView> {
        let destination = &header.destination.nid;
        let multi_rail = |nid| self.topology.peer(nid).filter(|view| view.is_multi_rail);
        let view = multi_rail(destination).filter(|_| self.topology.peer_health(destination) < HEALTH_MAX)?;
        multi_rail(&header.source.nid).map(|_| view)
    }

    /// Whether nothing that goes by a path has been answered for a while, on a net where that counts.
    pub(in crate::shard) fn is_path_dead(&self, now: Instant, path: &Choice) -> bool {
        let since = self.paths.silent_since(now, &path.path());
        since.is_some_and(|since| since + NEXT_HOP_PATIENCE <= now)
            && self.topology.known_ni(path.ni).drops_for_silent
    }
}
