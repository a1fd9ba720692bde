//! The one place that chooses by which path a message goes.
//!
//! The choice works over the snapshot of the topology and has state of its own: when each NI was last used,
//! and what LNDs have reported of paths, a bounded table. Credits in use it finds in the shard's NIs
//! and peers.
//!
//! The rules (LNet `lib-move.c`; `docs/multi-rail.md`): an NI that the application names is obeyed,
//! and the destination then is the one given. A request to a Multi-Rail peer goes by the best net that this
//! node and the peer have in common, the best local NI there, and the best NI of the peer there, by the
//! criteria of [`criteria`] in their order. A request to any other peer goes to the NID given, always from
//! one and the same NI, that which the snapshot says, so that the peer sees one node; pings go from any.
//! Responses are not chosen for: they go back by the NI that was asked. Where there is nothing to
//! choose nothing is looked up.
//!
//! The choice is one function over lists of values, so that its trace is the choice itself. No silent path is
//! taken to a Multi-Rail peer while there is another. LNDs report what they learn of paths, and ask for
//! another one.
//!
//! An NI whose interface has no route to the peer comes last, before health is looked at: nothing that it
//! sends arrives, however well it is. Where several have a route health comes first. The longest prefix then
//! decides for the source to a peer that is not Multi-Rail, since that stays. Messages to a Multi-Rail peer
//! are shared by all NIs with a route, also by those whose route is the default one. For the peer's NI
//! policies count before routes: hosts may answer ARP across subnets, and an administrator knows.
//!
//! Where no local NI leads to any NID of the destination, a gateway does ([`gateways`]), if there is a net
//! route.

pub(super) mod criteria;
mod forwards;
pub(super) mod gateways;
mod paths;

use alloc::vec::Vec;

use lnet_wire::{Net, Nid};

pub use forwards::NEXT_HOP_PATIENCE;
pub(super) use gateways::RouteRequest;
pub(super) use paths::KnownPaths;

use super::Shard;
use crate::lnd::{NiId, Path, PathReport};
use crate::time::Instant;
use crate::topology::{LocalNi, MemoryNode, NiStatus, PRIORITY_NONE, PeerNid, PeerView, source_rank};
use criteria::{
    Candidate, LOCAL, NET, NoTrace, OTHER, PEER, SILENT, SOURCE, Trace, Values, Weighed, best_of,
};

/// What was chosen for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The local NI that it leaves by.
    pub ni: NiId,
    /// The peer NI that it is sent to.
    pub next_hop: Nid,
    /// The peer NI that its header names: the next hop, unless that is a router.
    pub destination: Nid,
}

impl Choice {
    /// The choice that leads from a local NI straight to a peer NI.
    pub(super) const fn direct(ni: NiId, destination: Nid) -> Self {
        Self { ni, next_hop: destination, destination }
    }

    /// The path of the choice, by which LNDs know it.
    pub(super) const fn path(&self) -> Path {
        Path { ni: self.ni, peer: self.next_hop }
    }
}

/// Whether a path was chosen among several, so that its turn is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    None,
    Taken,
    /// Taken, and the path is by a gateway.
    Routed,
}

/// A choice and how it came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// What would be chosen at this moment; `None` where nothing leads there.
    pub choice: Option<Choice>,
    /// The steps of the choice in their order (net, local NI, peer NI), each with its candidates. A step with
    /// nothing to choose is among them.
    pub steps: Vec<Vec<Weighed>>,
    /// The peer that has the NID, if it is known.
    pub primary: Option<Nid>,
    /// Whether that takes messages by any of its NIs.
    pub is_multi_rail: bool,
}

impl Shard {
    /// The path of a request to `destination`; with `self_nid` from exactly the NI with that NID. To
    /// `0@lo` everything comes from there (LNet `lib-move.c: lnet_handle_lo_send`). Pings find out about a
    /// peer, by whichever NI. `None` when no such NI serves on a net of the destination's. The caller
    /// says whose slot the peer NI has ([`Shard::take_turn`]). Where none serves, one whose link is down is
    /// taken, since links that were reset come back in a moment: its LND has messages wait.
    #[inline]
    pub(super) fn select(
        &mut self,
        now: Instant,
        destination: &Nid,
        self_nid: Option<&Nid>,
        request: (Option<MemoryNode>, bool),
    ) -> Option<(Choice, Turn)> {
        let serving = self.select_serving(now, destination, self_nid, request);
        serving.or_else(|| self.select_far(now, destination, self_nid, request))
    }

    #[inline]
    fn select_serving(
        &mut self,
        now: Instant,
        destination: &Nid,
        self_nid: Option<&Nid>,
        (memory, is_ping): (Option<MemoryNode>, bool),
    ) -> Option<(Choice, Turn)> {
        if self_nid.is_none() && self.topology.has_choice() {
            if self.topology.loopback_to(destination).is_none() {
                return self.select_of_several(now, destination, (memory, is_ping));
            }
            // A ping of an own NID tries that NI: no other one's LND may reach it.
            if is_ping && let Some(own) = self.select_given(now, destination, Some(destination)) {
                return Some((own, Turn::None));
            }
        }
        Some((self.select_given(now, destination, self_nid)?, Turn::None))
    }

    /// The path of a request by an NI whose link is down, on a net of the destination's, or of its peer's.
    #[cold]
    pub(super) fn select_down(&self, destination: &Nid, self_nid: Option<&Nid>) -> Option<Choice> {
        let is_down = |ni: &LocalNi| ni.holds_messages() && self_nid.is_none_or(|nid| ni.nid == *nid);
        let view = self.topology.peer(destination).filter(|view| view.is_multi_rail);
        let others = view.into_iter().flat_map(|view| view.nis.iter().map(|peer| peer.nid));
        core::iter::once(*destination).chain(others).find_map(|nid| {
            let mut locals = self.topology.local_nis();
            let (ni, _) = locals.find(|(_, ni)| ni.net == nid.net() && is_down(ni))?;
            Some(Choice::direct(ni, nid))
        })
    }

    /// The path of a request for which nothing is to be chosen.
    #[inline]
    fn select_given(&self, now: Instant, destination: &Nid, self_nid: Option<&Nid>) -> Option<Choice> {
        let net = destination.net();
        let fits = |ni: &LocalNi| {
            let is_asked_for = ni.nid.is_loopback() || self_nid.is_none_or(|nid| ni.nid == *nid);
            ni.net == net && is_asked_for && ni.serves()
        };
        match self.topology.local_nis().find(|(_, ni)| fits(ni)) {
            Some((ni, _)) => Some(Choice::direct(ni, *destination)),
            None => self.select_on_net_of(now, destination, self_nid?),
        }
    }

    /// The path from a named NI to a Multi-Rail peer that was named by a NID on another net: to its
    /// best NI on the NI's own net (LNet `lib-move.c: lnet_handle_spec_local_mr_dst`).
    #[cold]
    fn select_on_net_of(&self, now: Instant, destination: &Nid, self_nid: &Nid) -> Option<Choice> {
        let view = self.topology.peer(destination).filter(|view| view.is_multi_rail)?;
        let named = |(_, ni): &(NiId, &LocalNi)| ni.nid == *self_nid && ni.serves();
        let (ni, local) = self.topology.local_nis().find(named)?;
        let (_, nis) = view.nets().find(|(net, _)| *net == local.net)?;
        let best = nis.iter().min_by_key(|peer| self.peer_values(now, (ni, &local.nid), peer))?;
        Some(Choice::direct(ni, best.nid))
    }

    #[cold]
    fn select_of_several(
        &self,
        now: Instant,
        destination: &Nid,
        request: (Option<MemoryNode>, bool),
    ) -> Option<(Choice, Turn)> {
        Some((self.choose(now, destination, request, &mut NoTrace)?, Turn::Taken))
    }

    /// Notes that a path is used, from an NI to the peer NI in a slot: others have their turn before it.
    #[inline]
    pub(super) fn take_turn(&mut self, turn: Turn, ni: NiId, peer: u32) {
        if turn != Turn::None {
            self.sequence += 1;
            let sequence = self.sequence;
            self.ni(ni).sequence = sequence;
            self.peers.get_mut(peer).sequence = sequence;
        }
    }

    /// Which path a request without a source of its own would take at this moment, and why.
    #[must_use]
    pub fn explain(&self, now: Instant, destination: &Nid) -> Explanation {
        let mut steps = Vec::new();
        let destination = &self.topology.now_at(destination);
        let loopback = self.topology.loopback_to(destination);
        let choice = match loopback {
            Some(ni) => Some(Choice::direct(ni, *destination)),
            None => {
                let direct = self.choose(now, destination, (None, false), &mut steps);
                direct.or_else(|| self.choose_route(now, destination, &RouteRequest::default(), &mut steps))
            }
        };
        let peer = self.topology.peer(destination);
        Explanation {
            choice,
            steps,
            primary: peer.map(|peer| peer.primary),
            is_multi_rail: peer.is_some_and(|peer| peer.is_multi_rail),
        }
    }

    fn choose(
        &self,
        now: Instant,
        destination: &Nid,
        (memory, is_ping): (Option<MemoryNode>, bool),
        trace: &mut impl Trace,
    ) -> Option<Choice> {
        let view = self.topology.peer(destination);
        let Some(view) = view.filter(|view| view.is_multi_rail) else {
            let ni = if is_ping || !self.topology.finds_peers() {
                self.choose_local(now, destination.net(), (memory, core::iter::once(destination)), trace)
            } else {
                let serving = self.topology.serving(destination.net());
                self.choose_source(serving, (destination, Some(destination)), view, trace)
            };
            return Some(Choice::direct(ni?, *destination));
        };
        let nets = view.nets().filter(|(net, _)| self.topology.serving(*net).next().is_some());
        let values = |(net, nis): &(Net, &[PeerNid])| self.net_values(now, view, (*net, nis));
        let (net, nis) = best_of((&NET, &mut *trace), nets, |(net, _)| Candidate::Net(*net), values)?;
        let ni = self.choose_local(now, net, (memory, nis.iter().map(|peer| &peer.nid)), trace)?;
        let local = self.topology.known_ni(ni).nid;
        let values = |peer: &&PeerNid| self.peer_values(now, (ni, &local), peer);
        let peer = best_of((&PEER, trace), nis.iter(), |peer| Candidate::Peer(peer.nid), values)?;
        Some(Choice::direct(ni, peer.nid))
    }

    /// The source of a request to a peer that is not known to be Multi-Rail: the one that is recorded, so
    /// that it sees one node and not several. Without a record, the NI by which it was first heard, then
    /// those in health and with priority, of which each shard takes the same. The next hop, if it is known,
    /// tells whose interfaces have a route.
    fn choose_source(
        &self,
        locals: impl Iterator<Item = NiId> + Clone,
        (destination, next_hop): (&Nid, Option<&Nid>),
        view: Option<&PeerView>,
        trace: &mut impl Trace,
    ) -> Option<NiId> {
        let preferred = view.and_then(|view| view.ni(destination)).map(|peer| &peer.preferred);
        let preferred = preferred.filter(|preferred| !preferred.is_empty());
        let first_ni = self.peers.first_ni(destination).filter(|_| preferred.is_none());
        let values = |ni: &NiId| {
            let local = self.topology.known_ni(*ni);
            let rank = preferred.and_then(|preferred| preferred.rank(&local.nid));
            let rank = rank.or_else(|| (first_ni == Some(*ni)).then_some(0));
            [
                rank.unwrap_or(PRIORITY_NONE).into(),
                next_hop.map_or(0, |hop| self.has_no_route(*ni, core::iter::once(hop))),
                -i64::from(local.health),
                local.priority.into(),
                -i64::from(next_hop.and_then(|hop| self.topology.route_bits(*ni, hop)).unwrap_or(0)),
                source_rank(&local.nid, destination).into(),
            ]
        };
        best_of((&SOURCE, trace), locals, |ni| self.named(*ni), values)
    }

    fn choose_local<'a>(
        &self,
        now: Instant,
        net: Net,
        (memory, peers): (Option<MemoryNode>, impl Iterator<Item = &'a Nid> + Clone),
        trace: &mut impl Trace,
    ) -> Option<NiId> {
        let values = |ni: &NiId| self.local_values(now, *ni, (memory, peers.clone()));
        best_of((&LOCAL, trace), self.topology.serving(net), |ni| self.named(*ni), values)
    }

    /// A local NI as a trace names it.
    fn named(&self, ni: NiId) -> Candidate {
        Candidate::Local(self.topology.known_ni(ni).nid)
    }

    /// 1 if the interface of an NI has no route to any of these, else 0.
    fn has_no_route<'a>(&self, ni: NiId, mut peers: impl Iterator<Item = &'a Nid>) -> i64 {
        i64::from(!peers.any(|peer| self.topology.route_bits(ni, peer).is_some()))
    }

    /// Whether no path from an NI to any of these answers.
    fn is_cut_off<'a>(&self, now: Instant, ni: NiId, mut peers: impl Iterator<Item = &'a Nid>) -> bool {
        self.paths.has_silent() && peers.all(|peer| self.paths.is_silent(now, &Path { ni, peer: *peer }))
    }

    fn net_values(&self, now: Instant, view: &PeerView, (net, nis): (Net, &[PeerNid])) -> Values<8> {
        let locals = || self.topology.serving(net);
        let nids = nis.iter().map(|peer| &peer.nid);
        let has_no_route = locals().map(|ni| self.has_no_route(ni, nids.clone())).min();
        let is_cut_off = locals().all(|ni| self.is_cut_off(now, ni, nids.clone()));
        let peer_health = nis.iter().map(|peer| peer.health).max();
        let local_health = locals().map(|ni| self.topology.known_ni(ni).health).max();
        let local_priority = locals().map(|ni| self.topology.known_ni(ni).net_priority).min();
        let peer_sequence = nids.filter_map(|nid| self.peers.sequence(nid)).max();
        let local_sequence = locals().map(|ni| self.nis[usize::from(ni.0)].sequence).max();
        [
            has_no_route.unwrap_or(1),
            i64::from(is_cut_off),
            -i64::from(peer_health.unwrap_or(0)),
            view.net_priority(net).into(),
            -i64::from(local_health.unwrap_or(0)),
            local_priority.unwrap_or(PRIORITY_NONE).into(),
            peer_sequence.unwrap_or(0) as i64,
            local_sequence.unwrap_or(0) as i64,
        ]
    }

    fn local_values<'a>(
        &self,
        now: Instant,
        ni: NiId,
        (memory, peers): (Option<MemoryNode>, impl Iterator<Item = &'a Nid> + Clone),
    ) -> Values<7> {
        let from_buffer = memory.and_then(|node| self.topology.memory_distance(ni, node));
        let (local, own) = (self.topology.known_ni(ni), &self.nis[usize::from(ni.0)]);
        [
            self.has_no_route(ni, peers.clone()),
            i64::from(self.is_cut_off(now, ni, peers)),
            -i64::from(local.health),
            local.priority.into(),
            from_buffer.unwrap_or_else(|| self.topology.numa_distance(ni, self.id)).into(),
            -own.credits.available(),
            own.sequence as i64,
        ]
    }

    fn peer_values(&self, now: Instant, (ni, local): (NiId, &Nid), peer: &PeerNid) -> Values<7> {
        let known = self.peers.credits_and_sequence(&peer.nid);
        let (credits, sequence) = known.unwrap_or_else(|| (self.nis[usize::from(ni.0)].peer_share.into(), 0));
        [
            i64::from(self.is_cut_off(now, ni, core::iter::once(&peer.nid))),
            -i64::from(peer.health),
            peer.priority.into(),
            peer.preferred.rank(local).unwrap_or(PRIORITY_NONE).into(),
            self.has_no_route(ni, core::iter::once(&peer.nid)),
            -credits,
            sequence as i64,
        ]
    }

    /// The path of a message that cannot leave by the one that it had; `None` where there is no other. Its
    /// peer may have lost the NID that it was to go to.
    pub(super) fn select_again(
        &self,
        now: Instant,
        than: &Choice,
        (memory, is_ping): (Option<MemoryNode>, bool),
    ) -> Option<Choice> {
        if self.topology.loopback_to(&than.destination).is_some() {
            return None;
        }
        // A ping asks the node that has the NID now.
        let asked = than.destination;
        let known_as = if is_ping { asked } else { self.topology.known_as(&asked) };
        let view = self.topology.peer(&known_as);
        let routed = RouteRequest { memory, is_ping, ..RouteRequest::default() };
        // Pings go from any.
        if !is_ping && self.topology.finds_peers() && !view.is_some_and(|peer| peer.is_multi_rail) {
            // Its peer sees one source, whatever becomes of that. Several gateways may lead there.
            let by = Some(than.ni).filter(|ni| self.topology.known_ni(*ni).serves());
            return self.choose_route_again(now, &known_as, than, &RouteRequest { by: Some(by?), ..routed });
        }
        let best = self
            .choose(now, &known_as, (memory, is_ping), &mut NoTrace)
            .filter(|choice| choice.path() != than.path());
        // A path that was silent and is tried once more is for a message that has all its tries left.
        let best = best.filter(|choice| !self.paths.was_silent(&choice.path()));
        let direct = best.or_else(|| self.select_other(than, view, |_| true));
        direct.or_else(|| self.choose_route_again(now, &known_as, than, &routed))
    }

    /// Any other path to the same peer, by an NI of which `has` is true, where the best one is the one that
    /// is out of the question: one that was not silent since it answered last before one that was.
    pub(super) fn select_other(
        &self,
        than: &Choice,
        view: Option<&PeerView>,
        has: impl Fn(NiId) -> bool,
    ) -> Option<Choice> {
        let view = view.filter(|view| view.is_multi_rail);
        let of_peer = view.into_iter().flat_map(|view| view.nis.iter().map(|ni| ni.nid));
        let nids = of_peer.chain(view.is_none().then_some(than.destination));
        let paths =
            nids.flat_map(|nid| self.topology.serving(nid.net()).map(move |ni| Choice::direct(ni, nid)));
        let others = paths.filter(|other| other.path() != than.path() && has(other.ni));
        let values = |other: &Choice| {
            [
                self.has_no_route(other.ni, core::iter::once(&other.next_hop)),
                self.silence(&other.path()),
                -i64::from(self.topology.peer_health(&other.destination)),
                -self.nis[usize::from(other.ni.0)].credits.available(),
                other.ni.0.into(),
            ]
        };
        best_of((&OTHER, &mut NoTrace), others, |other| Candidate::Peer(other.next_hop), values)
    }

    /// Where what went by a silent path goes from now on: of the candidates whose NI serves the one
    /// that was not silent since it answered last, whose NID has the best health by the snapshot, and which
    /// has the shortest round trip, as far as these are known; of those that were, the one
    /// that was silent longest ago, so that each has its turn.
    pub(super) fn choose_path(&mut self, now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.note_path(now, silent, PathReport::Silent);
        let serves = |path: &Path| {
            path != silent && self.topology.ni(path.ni).is_some_and(|ni| ni.status != NiStatus::Closed)
        };
        let usable = candidates.iter().enumerate().filter(|(_, path)| serves(path));
        let values = |(_, path): &(usize, &Path)| {
            let round_trip = self.paths.round_trip(path).as_nanos();
            [
                self.silence(path),
                -i64::from(self.topology.peer_health(&path.peer)),
                i64::try_from(round_trip).unwrap_or(i64::MAX),
            ]
        };
        let best = best_of((&SILENT, &mut NoTrace), usable, |(_, path)| Candidate::Peer(path.peer), values);
        best.map(|(index, _)| index)
    }

    /// Until when a path is avoided, or was if it has not answered since; less than any time if it answers.
    fn silence(&self, path: &Path) -> i64 {
        self.paths.silent_until(path).map_or(-1, |until| until.0 as i64)
    }
}
