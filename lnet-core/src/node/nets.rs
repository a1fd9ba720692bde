//! Nets and local NIs: what is configured.
//!
//! Invariants: a net exists as long as it has an NI; its tunables are those of its first one; an
//! NI keeps its slot as long as it lives, and `lo` is always in slot 0.
//!
//! A new NI takes the lowest free slot.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_wire::{Global, Net, Nid};

use super::recovery::Recovery;
use super::settings::Settings;
use crate::lnd::{LndFacts, NiId};
use crate::topology::{HEALTH_MAX, LocalNi, NiStatus, Reach};
use crate::tunables::NetTunables;
use crate::udsp::RuleList;

/// The slot of `lo`.
pub const LOOPBACK: NiId = NiId(0);

/// Tunables that are asked for; the others are the defaults of the LND, or what the net of the NI has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetOptions {
    /// [`NetTunables::peer_timeout_s`].
    pub peer_timeout_s: Option<u32>,
    /// [`NetTunables::peer_credits`]; what exceeds `credits` becomes that.
    pub peer_credits: Option<u32>,
    /// [`NetTunables::peer_buffer_credits`].
    pub peer_buffer_credits: Option<u32>,
    /// [`NetTunables::credits`].
    pub credits: Option<u32>,
    /// Tunables of a new net of its LND where nothing is asked for.
    pub new_net: NetTunables,
    /// How long its LND may take for a message; zero follows the global tunables.
    pub lnd_timeout: Duration,
    /// Facts of its LND.
    pub facts: LndFacts,
}

impl Default for NetOptions {
    /// Options of nets of kernel nodes: [`NetTunables::LNET`], `sock_timeout`, [`LndFacts::KERNEL`].
    fn default() -> Self {
        Self {
            peer_timeout_s: None,
            peer_credits: None,
            peer_buffer_credits: None,
            credits: None,
            new_net: NetTunables::LNET,
            lnd_timeout: Duration::from_secs(50),
            facts: LndFacts::KERNEL,
        }
    }
}

impl NetOptions {
    /// The tunables of a new net.
    #[must_use]
    pub fn tunables(&self) -> NetTunables {
        let new = self.new_net;
        let credits = self.credits.unwrap_or(new.credits);
        NetTunables {
            peer_timeout_s: self.peer_timeout_s.unwrap_or(new.peer_timeout_s),
            peer_credits: self.peer_credits.unwrap_or(new.peer_credits).min(credits),
            peer_buffer_credits: self.peer_buffer_credits.unwrap_or(new.peer_buffer_credits),
            credits,
        }
    }
}

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NiSpec<O> {
    /// Its NID.
    pub nid: Nid,
    /// The name of the system's interface.
    pub interface: String,
    /// What is asked of its net.
    pub options: NetOptions,
    /// What only its driver understands.
    pub lnd: O,
}

/// A local NI that exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NiConfig<O> {
    /// Its slot.
    pub ni: NiId,
    /// The NI as the request describes it.
    pub spec: NiSpec<O>,
    /// The tunables of its net.
    pub tunables: NetTunables,
    /// 0 to 1000.
    pub health: u32,
    /// Whether its driver says that it can send.
    pub has_link: bool,
    /// Whether messages wait for its link where that is down ([`Report::Carrier`](super::Report::Carrier)).
    pub awaits_carrier: bool,
    /// Whether its driver has nothing of it, since it could not be opened again ([`NodeChange::ReopenNi`]):
    /// it is down, and shards do not know it.
    ///
    /// [`NodeChange::ReopenNi`]: super::NodeChange::ReopenNi
    pub is_absent: bool,
    /// Whether its health has fallen or was set to 0, and is not 1000 since: it is told as down, and goes on
    /// as the last choice.
    pub is_failed: bool,
    /// Whether this node routes, and no other one has pinged the NI's net for the wait of a router
    /// ([`ROUTER_WAIT`](super::ROUTER_WAIT) by default) nor the NI since: it is told as down, and serves.
    pub is_idle: bool,
    /// Pings to it while it is not in full health.
    pub recovery: Recovery,
    /// How far its device is from the memory of each shard, as its runner has told; none until then.
    pub numa_distances: Vec<u32>,
    /// How far its device is from each memory node of the machine, by number; none where there is one node.
    pub memory_distances: Vec<u32>,
    /// Addresses that its interface has routes to, as the runner has told; `None` while they are not known.
    pub reach: Option<Arc<Reach>>,
    pub(super) going: Option<NiStatus>,
    /// Its place among those that were ever added.
    pub(super) added: u64,
}

impl<O> NiConfig<O> {
    /// An NI that is to come, in good health; its slot is still to be chosen.
    pub(super) const fn new(spec: NiSpec<O>, tunables: NetTunables) -> Self {
        let (ni, health) = (LOOPBACK, HEALTH_MAX);
        let (has_link, is_absent, is_failed) = (true, false, false);
        let recovery = Recovery { ping_count: 0, next_at: None };
        Self {
            ni,
            spec,
            tunables,
            health,
            has_link,
            awaits_carrier: false,
            is_absent,
            is_failed,
            is_idle: false,
            recovery,
            numa_distances: Vec::new(),
            memory_distances: Vec::new(),
            reach: None,
            going: None,
            added: 0,
        }
    }

    /// How far its device is from the memory of any shard at most; 0 until that is known.
    #[must_use]
    pub fn numa_distance(&self) -> u32 {
        self.numa_distances.iter().copied().max().unwrap_or(0)
    }

    /// Sets its health, by which it is told as down or up.
    pub(super) const fn set_health(&mut self, value: u32) {
        self.health = value;
        self.is_failed = value == 0 || (self.is_failed && value != HEALTH_MAX);
    }

    /// The bits of the longest prefix by which it reaches a NID ([`Topology::route_bits`]).
    ///
    /// [`Topology::route_bits`]: crate::topology::Topology::route_bits
    pub(super) fn route_bits(&self, nid: &Nid) -> Option<u8> {
        match (&self.reach, nid.ip()) {
            (Some(reach), Some(address)) => reach.prefix_bits(&address),
            _ => Some(0),
        }
    }

    /// Whether others are told that it is up.
    #[must_use]
    pub fn is_told_up(&self) -> bool {
        self.status() == NiStatus::Up && !self.is_failed && !self.is_idle
    }

    /// Whether it serves, is down or goes.
    #[must_use]
    pub fn status(&self) -> NiStatus {
        let own = if self.has_link && !self.is_absent { NiStatus::Up } else { NiStatus::Down };
        self.going.unwrap_or(own)
    }

    /// How long its LND may take for a message.
    #[must_use]
    pub fn lnd_timeout(&self, settings: &Settings) -> Duration {
        match self.spec.options.lnd_timeout {
            Duration::ZERO => Duration::from_secs(settings.get(Global::LndTimeout).into()),
            timeout => timeout,
        }
    }

    /// The NI as the shards know it. Distances within the range that counts as near are all the same. A
    /// message waits for credits as long as all its tries may take (LNet `lib-msg.c: lnet_msg_commit`).
    pub(super) fn local(&self, settings: &Settings, rules: &RuleList) -> LocalNi {
        let tries = settings.get(Global::RetryCount).saturating_add(1);
        let lnd_timeout = self.lnd_timeout(settings);
        let timeout = lnd_timeout.saturating_mul(tries).saturating_add(Duration::from_secs(1));
        let NetTunables { credits, peer_credits, peer_buffer_credits, peer_timeout_s } = self.tunables;
        let local = LocalNi::new(self.spec.nid, credits, peer_credits, timeout);
        LocalNi {
            router_credits: settings.router_credits(peer_credits, peer_buffer_credits),
            drops_for_silent: peer_timeout_s > 0,
            lnd_timeout: Some(lnd_timeout),
            facts: self.spec.options.facts,
            status: self.status(),
            awaits_carrier: self.awaits_carrier,
            health: self.health,
            priority: rules.ni_priority(&self.spec.nid),
            net_priority: rules.net_priority(self.spec.nid.net()),
            numa_distance: self.numa_distance().max(settings.get(Global::NumaRange)),
            ..local
        }
    }
}

/// The local NIs but `lo`, in the order in which they were added.
#[derive(Clone, Debug)]
pub(super) struct Nis<O>(pub(super) Vec<NiConfig<O>>);

impl<O> Nis<O> {
    pub(super) fn get(&self, ni: NiId) -> Option<&NiConfig<O>> {
        self.0.iter().find(|config| config.ni == ni)
    }

    pub(super) fn get_mut(&mut self, ni: NiId) -> Option<&mut NiConfig<O>> {
        self.0.iter_mut().find(|config| config.ni == ni)
    }

    /// The NI with a NID.
    pub(super) fn of(&self, nid: &Nid) -> Option<&NiConfig<O>> {
        self.0.iter().find(|config| config.spec.nid == *nid)
    }

    pub(super) fn of_mut(&mut self, nid: &Nid) -> Option<&mut NiConfig<O>> {
        self.0.iter_mut().find(|config| config.spec.nid == *nid)
    }

    /// The tunables of a net that exists.
    pub(super) fn tunables(&self, net: Net) -> Option<NetTunables> {
        self.0.iter().find(|config| config.spec.nid.net() == net).map(|config| config.tunables)
    }

    /// The nets, in the order in which they were made; without `lo`.
    pub(super) fn nets(&self) -> Vec<Net> {
        let mut nets = Vec::new();
        for net in self.0.iter().map(|config| config.spec.nid.net()) {
            if !nets.contains(&net) {
                nets.push(net);
            }
        }
        nets
    }

    /// The distances of the slots by shard as these know them, where they differ.
    pub(super) fn numa_distances(&self, settings: &Settings) -> Vec<Box<[u32]>> {
        self.distances(settings, |config| &config.numa_distances)
    }

    /// The distances of the slots by memory node as the shards know them, where they differ.
    pub(super) fn memory_distances(&self, settings: &Settings) -> Vec<Box<[u32]>> {
        self.distances(settings, |config| &config.memory_distances)
    }

    /// Distances of the slots, of which those within the range that counts as near are all the same; nothing
    /// for a slot where all are as far as it is from the shard that is farthest.
    fn distances(&self, settings: &Settings, told: impl Fn(&NiConfig<O>) -> &[u32]) -> Vec<Box<[u32]>> {
        let range = settings.get(Global::NumaRange);
        let mut slots: Vec<Box<[u32]>> = Vec::new();
        for config in self.0.iter().filter(|config| !config.is_absent) {
            let told = told(config).iter().map(|distance| *distance.max(&range));
            if told.clone().any(|distance| distance != config.numa_distance().max(range)) {
                let slot = usize::from(config.ni.0);
                slots.resize_with(slots.len().max(slot + 1), Box::default);
                slots[slot] = told.collect();
            }
        }
        slots
    }

    /// Addresses that each slot reaches, where they are known.
    pub(super) fn reaches(&self) -> Vec<Option<Arc<Reach>>> {
        let mut slots = Vec::new();
        for config in self.0.iter().filter(|config| config.reach.is_some()) {
            let slot = usize::from(config.ni.0);
            slots.resize(slots.len().max(slot + 1), None);
            slots[slot].clone_from(&config.reach);
        }
        slots
    }

    /// The slots as the shards know them.
    pub(super) fn slots(&self, settings: &Settings, rules: &RuleList) -> Vec<Option<LocalNi>> {
        let timeout = Duration::from_secs(settings.get(Global::TransactionTimeout).into());
        let last = self.0.iter().map(|config| config.ni.0).max().unwrap_or(LOOPBACK.0);
        let mut slots: Vec<_> = (0..=last).map(|_| None).collect();
        slots[usize::from(LOOPBACK.0)] = Some(LocalNi::loopback(timeout));
        for config in self.0.iter().filter(|config| !config.is_absent) {
            slots[usize::from(config.ni.0)] = Some(config.local(settings, rules));
        }
        slots
    }
}
