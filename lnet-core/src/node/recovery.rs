//! Health of NIs, and pings by which those that are ill recover (LNet `lib-move.c:
//! lnet_recover_local_nis`, `lnet_recover_peer_nis`; spec: core 9).
//!
//! Shards note what ends well and badly; here the values stand, and go back to the shards with a snapshot. An
//! NI that is not in full health is pinged: the first time after a second, then after 2, 4, 8 seconds and so
//! on while it does not answer.
//!
//! The NID of a local NI may be that of a peer NI as well, of the peer that this node is of itself. Messages
//! change the health of the local NI then; that of the peer NI is what it was set to, and what recovery pings
//! of its own give back.
//!
//! Invariants: at most [`RECOVERY_PINGS_MAX`] such pings are under way, one to an NI; with a sensitivity of 0
//! no message changes a health; a peer NI from which nothing has come, or nothing within the recovery limit,
//! is not pinged.

use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::ping::BUFFER_BYTES_MIN;
use lnet_wire::{Global, Nid};

use super::Node;
use super::change::Plan;
use super::nets::NiConfig;
use super::peers::{Peer, PeerEdit};
use super::pings::{Ping, PingPurpose};
use crate::shard::HealthNote;
use crate::time::Instant;
use crate::topology::{HEALTH_MAX, NiStatus};

/// Recovery pings that are under way at once.
const RECOVERY_PINGS_MAX: usize = 16;
/// How long a recovery ping may take at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pings to an NI that is not in full health.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Recovery {
    /// Pings since it has answered last.
    pub ping_count: u32,
    /// When the next one is due; `None` while the NI is in full health, or is given up.
    pub next_at: Option<Instant>,
}

impl Recovery {
    /// Notes that a ping is sent; the next one is due after 2 seconds, then 4, 8 and so on, with `max_s` as
    /// the limit (LNet `lib-lnet.h: lnet_get_next_recovery_ping`).
    fn sent(&mut self, now: Instant, max_s: u32) {
        self.ping_count = self.ping_count.saturating_add(1);
        let exponent = self.ping_count.min(max_s.max(1).ilog2());
        self.next_at = Some(now + Duration::from_secs(1 << exponent));
    }

    /// Notes that a ping is answered: the pauses begin anew.
    fn answered(&mut self, now: Instant) {
        self.ping_count = 0;
        let soon = now + Duration::from_secs(1);
        self.next_at = self.next_at.map(|at| at.min(soon));
    }

    /// Begins or ends with the health of the NI.
    fn look(&mut self, now: Instant, is_ill: bool) {
        if is_ill {
            self.next_at = self.next_at.or(Some(now + Duration::from_secs(1)));
        } else {
            *self = Self::default();
        }
    }
}

/// Where an NI is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Here.
    Local,
    /// At a peer, which may be this node.
    Peer,
}

/// An NI that recovers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovering {
    /// Its NID.
    pub nid: Nid,
    /// Its health.
    pub health: u32,
    /// Its pings.
    pub recovery: Recovery,
}

impl<O: Clone> Node<O> {
    /// Local NIs, and NIs of peers, that are not in full health.
    #[must_use]
    pub fn recovering(&self) -> (Vec<Recovering>, Vec<Recovering>) {
        let is_due = |recovering: &Recovering| recovering.recovery.next_at.is_some();
        let local = self.nis.0.iter().map(|config| Recovering {
            nid: config.spec.nid,
            health: config.health,
            recovery: config.recovery,
        });
        let peers = self.ill.iter().filter_map(|nid| self.peers.get(nid)?.ni(nid));
        let peers = peers.map(|ni| Recovering { nid: ni.nid, health: ni.health, recovery: ni.recovery });
        (local.filter(is_due).collect(), peers.filter(is_due).collect())
    }

    /// A shard has noted how messages of an NI ended.
    pub(super) fn note_health(&mut self, now: Instant, note: &HealthNote) {
        let is_peer = note.successes > 0 && self.ni(&note.nid).is_none();
        if is_peer {
            // A success of a peer NI is only what has come from it.
            self.received_from(now, &note.nid);
        }
        let step = self.settings.get(Global::HealthSensitivity);
        if step == 0 {
            return;
        }
        let after = |health: u32| {
            let worse = health.saturating_sub(note.failures.saturating_mul(step));
            worse.saturating_add(note.successes.saturating_mul(step)).min(HEALTH_MAX)
        };
        if let Some(config) = self.nis.of(&note.nid) {
            let health = after(config.health);
            self.set_local_health(now, &note.nid, health);
            return;
        }
        let Some(peer) = self.peers.get(&note.nid) else { return };
        // A peer with a single NID has no other to go by (LNet `lib-msg.c: lnet_handle_remote_failure`). NIDs
        // on nets that this node is not on count.
        let is_alone = peer.nid_count() == 1 && !peer.is_gateway();
        let Some(ni) = peer.nis.iter().find(|ni| ni.nid == note.nid) else { return };
        let health = match is_alone {
            true => ni.health.max(after(ni.health)),
            // A gateway that speaks is well (LNet `lib-msg.c: lnet_health_check`).
            false if peer.is_gateway() && note.successes > 0 => HEALTH_MAX,
            false => after(ni.health),
        };
        if health != ni.health
            && let Some(ni) = self.peers.ni_mut(&note.nid)
        {
            ni.health = health;
            self.look_after(now, &note.nid);
        }
    }

    fn set_local_health(&mut self, now: Instant, nid: &Nid, health: u32) {
        let Some(config) = self.nis.of_mut(nid) else { return };
        if config.health == health {
            return;
        }
        config.set_health(health);
        self.look_after_local(now, nid);
        self.snapshots.is_changed = true;
        self.tell();
    }

    /// A message has come from a peer NI: it is up, whatever its node has said of it, and to be pinged while
    /// it is not in full health, whatever limit has passed.
    pub(super) fn received_from(&mut self, now: Instant, nid: &Nid) {
        let Some(ni) = self.peers.get_mut(nid).and_then(|peer| peer.ni_mut(nid)) else { return };
        ni.received_at = Some(now);
        let was_up = ni.is_up.replace(true);
        ni.recovery.answered(now);
        let is_ill = ni.health < HEALTH_MAX;
        if is_ill {
            self.look_after(now, nid);
        }
        if was_up == Some(false) && self.peers.get(nid).is_some_and(Peer::is_gateway) {
            self.note_gateway_spoke(now, nid);
        }
    }

    /// Has a local NI pinged while it is not in full health, and no more once it is.
    fn look_after_local(&mut self, now: Instant, nid: &Nid) {
        if let Some(config) = self.nis.of_mut(nid) {
            config.recovery.look(now, config.health < HEALTH_MAX);
        }
    }

    /// Has a peer NI pinged while it is not in full health, and no more once it is: only if something has
    /// come from it, within the recovery limit (LNet `peer.c: lnet_peer_ni_add_to_recoveryq_locked`).
    pub(super) fn look_after(&mut self, now: Instant, nid: &Nid) {
        let limit_s = self.settings.get(Global::RecoveryLimit);
        let limit = (limit_s > 0).then_some(Duration::from_secs(limit_s.into()));
        if let Some(ni) = self.peers.get_mut(nid).and_then(|peer| peer.ni_mut(nid)) {
            let may_answer = ni.received_at.is_some_and(|at| limit.is_none_or(|limit| now <= at + limit));
            let is_ill = ni.health < HEALTH_MAX && may_answer;
            ni.recovery.look(now, is_ill);
            if is_ill {
                self.ill.insert(*nid);
            } else {
                self.ill.remove(nid);
            }
        }
    }

    /// Has the NIs looked after whose health a batch has set.
    pub(super) fn look_after_set(&mut self, now: Instant, plan: &Plan<O>) {
        let local: Vec<_> = self.nis.0.iter().map(|config| config.spec.nid).collect();
        local.iter().for_each(|nid| self.look_after_local(now, nid));
        let mut set = Vec::new();
        for edit in &plan.peers {
            match edit {
                PeerEdit::SetHealth { nid: Some(nid), .. } => set.push(*nid),
                PeerEdit::SetHealth { nid: None, .. } => {
                    set.extend(self.peers.iter().flat_map(Peer::proven_nids));
                }
                _ => {}
            }
        }
        set.iter().for_each(|nid| self.look_after(now, nid));
    }

    /// When the next recovery ping is due.
    pub(super) fn next_recovery(&self) -> Option<Instant> {
        let local = self.nis.0.iter().filter_map(|config| config.recovery.next_at);
        let peers = self.ill.iter().filter_map(|nid| self.peers.get(nid)?.ni(nid)?.recovery.next_at);
        local.chain(peers).min()
    }

    /// Sends the recovery pings that are due.
    pub(super) fn recover(&mut self, now: Instant) {
        let peers = &self.peers;
        self.ill.retain(|nid| peers.get(nid).is_some());
        let max_s = self.settings.get(Global::MaxRecoveryPingInterval);
        let (local, peers) = self.recovering();
        let is_due = |recovering: &Recovering| recovering.recovery.next_at.is_some_and(|at| at <= now);
        let local = local.into_iter().map(|its| (its, Side::Local));
        let due = local.chain(peers.into_iter().map(|its| (its, Side::Peer)));
        let due: Vec<_> = due.filter(|(its, _)| is_due(its)).collect();
        for (Recovering { nid, .. }, side) in due {
            let purpose = PingPurpose::Recovery(side);
            let mut under_way =
                self.pings.values().filter(|ping| matches!(ping.purpose, PingPurpose::Recovery(_)));
            if under_way.clone().count() >= RECOVERY_PINGS_MAX
                || under_way.any(|ping| (ping.nid, ping.purpose) == (nid, purpose))
            {
                // The NI is due again a second later.
                if let Some(recovery) = self.recovery_mut(&nid, side) {
                    recovery.next_at = Some(now + Duration::from_secs(1));
                }
                continue;
            }
            match side {
                Side::Local => self.look_after_local(now, &nid),
                Side::Peer => self.look_after(now, &nid),
            }
            let recovery = self.recovery_mut(&nid, side).filter(|recovery| recovery.next_at.is_some());
            let Some(recovery) = recovery else {
                // Its limit has passed: what comes from it begins anew.
                continue;
            };
            recovery.sent(now, max_s);
            // A ping with a source goes to exactly that NID; an NI of this node pings itself.
            let up =
                |config: &&NiConfig<O>| config.spec.nid.net() == nid.net() && config.status() == NiStatus::Up;
            let of_net = || self.nis.0.iter().find(up).map(|config| config.spec.nid);
            // Behind a gateway it does by any NI that leads there.
            let own = || self.nis.0.iter().map(|config| config.spec.nid);
            let behind = || own().find(|own| self.is_routed(nid.net(), Some(*own)));
            let source = match self.nis.of(&nid) {
                Some(_) => Some(nid),
                None => of_net().or_else(behind),
            };
            let ping = self.own_ping(now, nid, purpose);
            let ping = Ping { source, deadline: now + PATIENCE.min(ping.timeout), ..ping };
            self.send_ping(ping, BUFFER_BYTES_MIN);
        }
    }

    fn recovery_mut(&mut self, nid: &Nid, side: Side) -> Option<&mut Recovery> {
        match side {
            Side::Local => self.nis.of_mut(nid).map(|config| &mut config.recovery),
            Side::Peer => self.peers.get_mut(nid)?.ni_mut(nid).map(|ni| &mut ni.recovery),
        }
    }

    /// A recovery ping was answered. NIs of other nodes gain by the REPLY as by any message, which their
    /// shard notes; but those behind gateways, as shards note the gateway's.
    pub(super) fn recovery_answered(&mut self, now: Instant, ping: &Ping, side: Side) {
        let step = self.settings.get(Global::HealthSensitivity);
        self.received_from(now, &ping.nid);
        if self.nis.of(&ping.nid).is_none() && self.is_on(ping.nid.net()) {
            return;
        }
        match side {
            Side::Local => {
                let Some(config) = self.nis.of_mut(&ping.nid) else { return };
                config.recovery.answered(now);
                let health = (config.health + step).min(HEALTH_MAX);
                self.set_local_health(now, &ping.nid, health);
            }
            Side::Peer => {
                if let Some(ni) = self.peers.ni_mut(&ping.nid) {
                    ni.health = (ni.health + step).min(HEALTH_MAX);
                }
                self.look_after(now, &ping.nid);
            }
        }
    }
}
