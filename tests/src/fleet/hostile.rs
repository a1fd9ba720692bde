//! Hostile nodes of a fleet: they push to all others again and again, and answer as they like.
//!
//! The checkers hold for messages of the others to each other, and say nothing of those to a hostile node.

use lnet_core::node::Report;
use lnet_core::time::Instant;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Net, NetType, Nid};
use serde::Deserialize;

use super::node::nid_on;
use super::{Event, SECOND_NS, World};

/// Pushes of a hostile node in a second.
const PUSHES_PER_SECOND: u64 = 20;
/// NIDs that a liar claims besides its own.
const CLAIMED: usize = 8;
/// Names that a hostile node makes up.
const MADE_UP: u64 = 6000;
/// How long a ping of one node to another may take once the network is in order.
pub(super) const PING_BOUND_NS: u64 = SECOND_NS / 10;
/// How long a message between two others may take once the network is in order: a ping and a push of the
/// discovery that it waits for may each have to wait a second for a place.
pub(super) const FRIENDS_BOUND_NS: u64 = 3 * SECOND_NS;

/// Behaviour of a hostile node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hostility {
    /// Nothing that it is sent is answered.
    Silent,
    /// Pings are answered, and no push is acknowledged.
    Unacknowledging,
    /// NIDs of others are among those that it tells, more each time; no push is acknowledged.
    Lying,
    /// NIDs of others are told as by a lying one, with the highest numbers, whole and cut, half of them made
    /// up: of its net and of others.
    Naming,
}

impl World<'_> {
    /// The behaviour of a node that is hostile.
    pub(super) fn hostility(&self, number: u32) -> Option<Hostility> {
        self.fleet.groups[self.places[number as usize].group].hostile
    }

    /// Whether one of two nodes is hostile.
    pub(super) fn is_hostile(&self, number: u32, other: u32) -> bool {
        self.hostility(number).or(self.hostility(other)).is_some()
    }

    /// A hostile node pushes to another one.
    pub(super) fn attack(&mut self, number: u32) {
        let to = self.below(self.members.len() as u64) as u32;
        let own = &self.members[number as usize].nids;
        let (_, from) = own[self.now as usize % own.len()];
        let name = self.name_of(number, &from);
        let others = &self.members[to as usize].nids;
        let reached = others.iter().map(|(_, nid)| *nid).find(|nid| nid.net() == from.net());
        if to != number
            && reached.is_some_and(|nid| self.is_reached(&from, &nid))
            && self.hostility(to).is_none()
        {
            let bytes = self.lie(number, &name);
            let is_cut = self.hostility(number) == Some(Hostility::Naming) && self.below(4) == 0;
            let length_bytes = bytes.len() + if is_cut { 1 << 12 } else { 0 };
            let (now, node) = (Instant(self.now), &mut self.members[to as usize].node);
            if name != from
                && let Some(address) = from.ip()
            {
                node.handle_report(now, Report::CameFrom { nid: name, address });
                node.handle_report(now, Report::Traffic { nid: name, is_incoming: true, first_ni: None });
            }
            let room = node.push_room_bytes().min(bytes.len());
            node.handle_report(now, Report::Pushed { from: name, bytes: &bytes[..room], length_bytes });
            self.settle(to);
        }
        let next = self.now + SECOND_NS / PUSHES_PER_SECOND / 2 + self.below(SECOND_NS / PUSHES_PER_SECOND);
        if next < self.end {
            self.at(next, Event::Attack(number));
        }
    }

    /// The name in which a hostile node pushes from one of its NIDs.
    fn name_of(&mut self, number: u32, from: &Nid) -> Nid {
        if self.hostility(number) != Some(Hostility::Naming) || self.below(2) == 0 {
            return *from;
        }
        let made_up = (1 << 19) + self.below(MADE_UP) as u32;
        let net = if self.below(4) == 0 { Net::new(NetType::TCP, 77) } else { from.net() };
        nid_on(net, made_up, 0)
    }

    /// The ping information that a hostile node pushes in a name.
    fn lie(&mut self, number: u32, name: &Nid) -> Vec<u8> {
        let mut nids: Vec<Nid> = self.members[number as usize].nids.iter().map(|(_, nid)| *nid).collect();
        if !nids.contains(name) {
            nids = vec![*name];
        }
        let hostility = self.hostility(number);
        if matches!(hostility, Some(Hostility::Lying | Hostility::Naming)) {
            for _ in 0..CLAIMED {
                let other = self.below(self.members.len() as u64) as usize;
                nids.extend(self.members[other].nids.iter().map(|(_, nid)| *nid));
            }
            let turn = self.below(nids.len() as u64) as usize;
            nids.rotate_left(turn);
        }
        let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
        let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).expect("a few NIDs")];
        let sequence = 1 + self.below(1 << 20) as u32;
        let sequence = if hostility == Some(Hostility::Naming) { u32::MAX - sequence } else { sequence };
        ping::write(&mut bytes, Features(0x1E), 12345, sequence, nis).expect("room for a few NIDs");
        bytes
    }

    /// The answer of a hostile node to a ping.
    pub(super) fn hostile_answer(
        &mut self,
        number: u32,
        asked: &Nid,
        length_bytes: usize,
    ) -> Option<Vec<u8>> {
        if self.hostility(number) == Some(Hostility::Silent) {
            return None;
        }
        let mut bytes = self.lie(number, asked);
        bytes.truncate(length_bytes);
        Some(bytes)
    }
}
