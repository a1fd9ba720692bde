//! Verification: how what peers tell of themselves differs from what is known of them, and how much of it is
//! kept.
//!
//! What an administrator has configured is changed by no discovery, and with [`Discovery::Verify`] nothing
//! is. What a peer tells is compared instead, and differences are told to the runner (design of Multi-Rail:
//! "deferring to the configuration, but also emitting warnings"). While this node verifies, bit
//! [`peer_state::BAD_CONFIG`] marks the peers that differ.
//!
//! Invariants: what is compared does not change; at most [`DIFFERENCES_MAX`] differences wait for the runner.

use alloc::vec::Vec;
use core::fmt;

use lnet_wire::{Discovery, Nid};

use super::Node;
use super::peers::{Peer, peer_state};

/// Differences that wait for the runner. Of more the newest are not told: the state of their peers has them.
const DIFFERENCES_MAX: usize = 64;

/// How what a peer tells of itself differs from what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The primary NID that the peer goes by here.
    pub primary: Nid,
    /// Its primary NID by its own account, if that is another one.
    pub told_primary: Option<Nid>,
    /// NIDs that it tells and that are not known as its own.
    pub unknown: Vec<Nid>,
    /// NIDs that are known as its own and that it does not tell.
    pub untold: Vec<Nid>,
    /// Whether it is Multi-Rail by its own account, if that is otherwise here.
    pub is_multi_rail: Option<bool>,
    /// NIDs that it tells and that are this node's own: both nodes have the address, and neither reaches the
    /// other one by it.
    pub own: Vec<Nid>,
    /// NIDs that it tells and that are not kept, since a peer has [`TOLD_MAX`](super::TOLD_MAX) at most.
    pub cut_count: usize,
}

impl Difference {
    /// Compares a peer with what it tells: its NIDs, the primary one first among them, and whether it is
    /// Multi-Rail.
    fn of(peer: &Peer, told_primary: &Nid, told: &[Nid], is_multi_rail: bool) -> Option<Self> {
        // Nothing but a NID is known of a peer that was found by its traffic.
        let is_described = peer.is_multi_rail() || peer.is(peer_state::CONFIGURED);
        let is_unknown = |nid: &&Nid| peer.ni(nid).is_none();
        let difference = Self {
            primary: peer.primary,
            told_primary: (*told_primary != peer.primary).then_some(*told_primary),
            unknown: told.iter().filter(is_unknown).copied().collect(),
            untold: peer.nids().into_iter().filter(|nid| !told.contains(nid)).collect(),
            is_multi_rail: (is_described && is_multi_rail != peer.is_multi_rail()).then_some(is_multi_rail),
            own: Vec::new(),
            cut_count: 0,
        };
        let Self { told_primary, unknown, untold, is_multi_rail, .. } = &difference;
        let is_same = told_primary.is_none() && unknown.is_empty() && untold.is_empty();
        (!is_same || is_multi_rail.is_some()).then_some(difference)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut say = |what: &str, nids: &[Nid]| -> fmt::Result {
            if nids.is_empty() {
                return Ok(());
            }
            write!(f, "{separator}{what}")?;
            separator = "; ";
            nids.iter().try_for_each(|nid| write!(f, " {nid}"))
        };
        say("it tells, and is not known by,", &self.unknown)?;
        say("it does not tell", &self.untold)?;
        say("its primary nid is", self.told_primary.as_slice())?;
        say("it tells nids of this node, by which it is not reached,", &self.own)?;
        if self.cut_count > 0 {
            write!(f, "{separator}it has {} nids more than are kept of a peer", self.cut_count)?;
            separator = "; ";
        }
        match self.is_multi_rail {
            Some(true) => write!(f, "{separator}it is Multi-Rail"),
            Some(false) => write!(f, "{separator}it is not Multi-Rail"),
            None => Ok(()),
        }
    }
}

impl<O: Clone> Node<O> {
    /// A difference between what a peer tells and what is known of it, once: something to warn of.
    pub fn poll_difference(&mut self) -> Option<Difference> {
        self.differences.pop_front()
    }

    /// Warns of a peer of which NIDs are left out, once for each time that it tells them: those of this node,
    /// and those that are more than are kept.
    pub(super) fn note_left_out(&mut self, primary: &Nid, own: Vec<Nid>, cut_count: usize) {
        if (cut_count > 0 || !own.is_empty()) && self.differences.len() < DIFFERENCES_MAX {
            let (primary, unknown, untold) = (*primary, Vec::new(), Vec::new());
            let (told_primary, is_multi_rail) = (None, None);
            let left_out =
                Difference { primary, told_primary, unknown, untold, is_multi_rail, own, cut_count };
            self.differences.push_back(left_out);
        }
    }

    /// Compares a peer with what it has told, where that changes nothing.
    pub(super) fn verify(&mut self, from: &Nid, primary: &Nid, told: &[Nid], is_multi_rail: bool) {
        let Some(peer) = self.peers.get(from) else { return };
        let discovery = self.settings.discovery();
        let is_compared = match discovery {
            Discovery::Off => false,
            Discovery::On => peer.is(peer_state::CONFIGURED),
            Discovery::Verify => true,
        };
        if !is_compared {
            return;
        }
        let difference = Difference::of(peer, primary, told, is_multi_rail);
        if discovery == Discovery::Verify {
            let bit = if difference.is_some() { peer_state::BAD_CONFIG } else { 0 };
            self.peers.change(from, |peer| peer.state = peer.state & !peer_state::BAD_CONFIG | bit);
        }
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.extend(difference);
        }
    }
}
