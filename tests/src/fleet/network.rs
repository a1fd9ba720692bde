//! What lies between the nodes of a fleet: links, rails, what they lose, and what fails.
//!
//! There is no LND here, but what one does about loss: what is lost is sent again after 1, 2, 4 and so on
//! milliseconds, until it has been silent for half a second.

use lnet_core::node::Report;
use lnet_core::time::Instant;
use lnet_wire::Nid;

use super::file::{Fault, NIS_MAX, NiPlan};
use super::node::owner;
use super::{Event, Member, SECOND_NS, World};

/// After which time a sender learns that nothing comes through.
pub(super) const SILENCE_NS: u64 = SECOND_NS / 2;
/// After which time what is lost is sent again first.
const RESEND_NS: u64 = 1_000_000;

/// What has failed of a rail, a link or a node: by how many faults.
type Faults = u8;

/// A node in its fleet.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Which group it is of.
    pub(super) group: usize,
    /// How often it has begun anew.
    pub(super) life: u32,
    /// The faults of its links, by NI.
    links: [Faults; NIS_MAX],
    faults: Faults,
    /// How long what it sends takes longer.
    slow_us: u64,
    /// Until when it does nothing, while it is down.
    pub(super) back_at: u64,
}

impl Place {
    pub(super) const fn new(group: usize) -> Self {
        Self { group, life: 0, links: [0; NIS_MAX], faults: 0, slow_us: 0, back_at: 0 }
    }

    pub(super) const fn is_down(&self) -> bool {
        self.faults > 0
    }
}

/// What a message meets on its way.
struct Path {
    latency_us: u64,
    /// The share of messages that arrive.
    arrives: f64,
}

impl World<'_> {
    fn plan(&self, number: u32, ni: usize) -> &NiPlan {
        &self.fleet.groups[self.places[number as usize].group].nis[ni]
    }

    /// The node that has a NID, and which of its NIs it is.
    pub(super) fn place_of(&self, nid: &Nid) -> Option<(u32, usize)> {
        let (number, _) = owner(nid)?;
        Some((number, self.members.get(number as usize)?.index_of(nid)?))
    }

    /// Whether an NI carries anything: its node, its link and its rail are in order.
    fn carries(&self, number: u32, ni: usize) -> bool {
        let place = &self.places[number as usize];
        let (rail, _) = self.members[number as usize].nids[ni];
        !place.is_down() && place.links[ni] == 0 && self.rail_faults[usize::from(rail)] == 0
    }

    /// The way from an NI to another one, if all on it is in order.
    fn path(&self, from: &Nid, to: &Nid) -> Option<Path> {
        let ends = [self.place_of(from)?, self.place_of(to)?];
        if !ends.iter().all(|(number, ni)| self.carries(*number, *ni)) {
            return None;
        }
        let rails = ends.map(|(number, ni)| usize::from(self.members[number as usize].nids[ni].0));
        // Rails of one net are joined.
        let crossed = if rails[0] == rails[1] { &rails[..1] } else { &rails[..] };
        let crossed = crossed.iter().map(|rail| &self.fleet.rails[*rail]);
        let crossed = crossed.map(|rail| (rail.latency_us, rail.loss_percent));
        let links = ends.iter().map(|(number, ni)| self.plan(*number, *ni));
        let links = links.map(|ni| (ni.latency_us, ni.loss_percent));
        let begin = Path { latency_us: 0, arrives: 1.0 };
        Some(crossed.chain(links).fold(begin, |path, (latency_us, loss_percent)| Path {
            latency_us: path.latency_us + latency_us,
            arrives: path.arrives * (1.0 - loss_percent / 100.0),
        }))
    }

    pub(super) fn is_reached(&self, from: &Nid, to: &Nid) -> bool {
        self.path(from, to).is_some()
    }

    /// Whether some NI of a node reaches another one at a NID.
    pub(super) fn may_reach(&self, number: u32, to: &Nid) -> bool {
        let own = &self.members[number as usize].nids;
        own.iter().any(|(_, own)| own.net() == to.net() && self.is_reached(own, to))
    }

    /// How long a message takes from an NI to another one; `None` if it does not come through.
    fn time_of(&mut self, from: &Nid, to: &Nid) -> Option<u64> {
        let Path { latency_us, arrives } = self.path(from, to)?;
        let mut waited_ns = 0;
        let mut pause_ns = RESEND_NS;
        while arrives < 1.0 && (self.random.bits() >> 11) as f64 / (1_u64 << 53) as f64 >= arrives {
            waited_ns += pause_ns;
            pause_ns *= 2;
            self.report.retransmissions += 1;
            if waited_ns > SILENCE_NS {
                return None;
            }
        }
        let sender = self.place_of(from).map_or(0, |(number, _)| self.places[number as usize].slow_us);
        let latency_ns = (latency_us + sender) * 1000;
        Some(waited_ns + latency_ns + self.below(latency_ns / 4 + 1))
    }

    /// Sends something; it arrives, or is lost at once, or on its way, which the receiving end finds.
    pub(super) fn send(&mut self, from: &Nid, to: &Nid, event: Event) -> bool {
        let Some(time_ns) = self.time_of(from, to) else { return false };
        self.at(self.now + time_ns, event);
        true
    }

    /// A fault begins or ends.
    pub(super) fn fault(&mut self, index: usize, begins: bool) {
        self.changed_at = self.now;
        let fault: &Fault = &self.fleet.faults[index];
        if let Some(name) = &fault.rail {
            let rail = self.fleet.rail_index(name).unwrap_or_default();
            count(&mut self.rail_faults[rail], begins);
            self.doubt(|_, _, its_rail| usize::from(its_rail) == rail);
            for number in 0..self.members.len() as u32 {
                for ni in 0..self.members[number as usize].nids.len() {
                    if usize::from(self.members[number as usize].nids[ni].0) == rail {
                        self.tell_link(number, ni, fault.link_down);
                    }
                }
            }
        } else if let Some(links) = &fault.links {
            let (numbers, ni) = (self.fleet.numbers(&links.group, links.first, links.count), links.ni);
            self.doubt(|number, its, _| numbers.contains(&number) && its == ni);
            for number in numbers {
                count(&mut self.places[number as usize].links[ni], begins);
                self.tell_link(number, ni, fault.link_down);
            }
        } else if let Some(nodes) = &fault.nodes {
            let numbers = self.fleet.numbers(&nodes.group, nodes.first, nodes.count);
            self.doubt(|number, _, _| numbers.contains(&number));
            for number in numbers {
                self.fail_node(number, fault, begins);
            }
        }
    }

    /// A node that sees its links hears how one is.
    fn tell_link(&mut self, number: u32, ni: usize, sees: bool) {
        let member = &mut self.members[number as usize];
        let (rail, nid) = member.nids[ni];
        let is_up = self.rail_faults[usize::from(rail)] == 0 && self.places[number as usize].links[ni] == 0;
        if let Some(ni) = member.slot_of(&nid).filter(|_| sees) {
            member.node.handle_report(Instant(self.now), Report::Link { ni, is_up });
            self.settle(number);
        }
    }

    fn fail_node(&mut self, number: u32, fault: &Fault, begins: bool) {
        let place = &mut self.places[number as usize];
        if fault.slow_us > 0 {
            place.slow_us = if begins { fault.slow_us } else { 0 };
            return;
        }
        count(&mut place.faults, begins);
        let is_down = place.is_down();
        self.note_router(number, is_down);
        let place = &mut self.places[number as usize];
        if begins {
            place.back_at = place.back_at.max((fault.to_s * SECOND_NS as f64) as u64);
        } else if fault.restart {
            self.restart(number);
        } else if !place.is_down() {
            self.settle(number);
        }
    }

    /// A node begins anew, and knows nothing of what was.
    fn restart(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.life += 1;
        let life = place.life;
        let takes_part = self.fleet.groups[place.group].discovery;
        let seed = self.random.bits();
        let member = &mut self.members[number as usize];
        let (nids, partners) = (member.nids.clone(), core::mem::take(&mut member.partners));
        let routing = member.routing.clone();
        let anew = Member::routed((number, life), nids, takes_part, true, seed, routing);
        *member = Member { partners, ..anew };
        self.report.restarts += 1;
        let before = self.under_way.len();
        self.under_way.retain(|_, put| put.from != number);
        self.report.failed += (before - self.under_way.len()) as u64;
        // Who knew it, and whom it knew, is found out anew by those who talk.
        self.talked.retain(|(one, other)| *one != number && *other != number);
        self.settle(number);
    }

    /// Puts that are under way may have met what fails: NIs, by node, number and rail.
    fn doubt(&mut self, fails: impl Fn(u32, usize, u8) -> bool) {
        let (members, under_way) = (&self.members, &mut self.under_way);
        for put in under_way.values_mut().filter(|put| put.good != 0) {
            let nids = |number: u32| members[number as usize].nids.iter().enumerate();
            for (own, (own_rail, _)) in nids(put.from) {
                for (other, (other_rail, _)) in nids(put.to) {
                    if fails(put.from, own, *own_rail) || fails(put.to, other, *other_rail) {
                        put.good &= !pair(own, other);
                    }
                }
            }
        }
    }
}

fn count(faults: &mut Faults, begins: bool) {
    *faults = if begins { faults.saturating_add(1) } else { faults.saturating_sub(1) };
}

/// The bit of a path between two nodes: from an NI to another one.
pub(super) const fn pair(own: usize, other: usize) -> u64 {
    1 << (own * NIS_MAX + other)
}
