//! One node of a fleet: the real control state machine and a real shard, without an LND.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{Action, Change, NetOptions, NiSpec, Node, NodeConfig, Report, Request};
use lnet_core::portal::EntrySpec;
use lnet_core::time::Instant;
use lnet_core::{Shard, ShardConfig};
use lnet_wire::{Global, Net, NetType, Nid, ProcessId};

/// Where Puts go.
pub(super) const PORTAL: u32 = 4;
pub(super) const MATCH_BITS: u64 = 1;

const LIMITS: Limits = Limits {
    match_entries: 4,
    memory_descs: 128,
    event_queues: 1,
    events: 512,
    unlimited_events: 128,
    requests: 64,
    responses: 64,
    forwards: 0,
    incoming: 64,
    delayed: 4,
    peers: 256,
    interfaces: 20,
};

pub(super) struct Member {
    pub(super) node: Node<()>,
    pub(super) shard: Shard,
    pub(super) queue: EqHandle,
    /// Its NIDs, by rail.
    pub(super) nids: Vec<(u8, Nid)>,
    /// What it answers to pings.
    pub(super) published: Arc<[u8]>,
    /// When its timers are looked at next.
    pub(super) timer: Option<u64>,
    /// Whether it takes part in discovery.
    pub(super) takes_part: bool,
    /// Peers that it talks to.
    pub(super) partners: Vec<u32>,
}

/// The NID of a node on a rail.
pub fn nid(number: u32, rail: u8) -> Nid {
    let [_, high, middle, low] = (number + 1).to_be_bytes();
    let address = [10, high, middle, low];
    Nid::new_ip(Net::new(NetType::XDP, rail.into()), address.into()).expect("an address of a node")
}

/// The node that has a NID.
pub(super) fn owner(nid: &Nid) -> Option<(u32, u8)> {
    let std::net::IpAddr::V4(address) = nid.ip()? else { return None };
    let [_, high, middle, low] = address.octets();
    let number = u32::from_be_bytes([0, high, middle, low]).checked_sub(1)?;
    Some((number, nid.net().number() as u8))
}

/// An NI comes.
pub(super) fn add_ni(rail: u8, nid: Nid) -> Change<()> {
    let options = NetOptions { lnd_timeout: Some(Duration::from_secs(5)), ..NetOptions::default() };
    Change::AddNi(NiSpec { nid, interface: format!("rail{rail}"), options, lnd: () })
}

impl Member {
    /// A node with NIs on these rails, whose requests wait for discovery if it `holds` them; those of its own are still to be
    /// carried out.
    pub(super) fn new(number: u32, rails: &[u8], takes_part: bool, holds: bool, seed: u64) -> Self {
        let config = NodeConfig { peers_max: 4096, ..NodeConfig::new(1, LIMITS.interfaces, &[NetType::XDP]) };
        let mut node = Node::new(config);
        if holds {
            node.gate_requests();
        }
        let topology = node.poll_snapshot().expect("a node has a snapshot");
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            shard_count: 1,
            interface_cookie: u64::from(number) + 1,
            pid: ProcessId::LUSTRE_PID,
            limits: LIMITS,
            topology,
            hash_seed: seed,
        });
        let queue = shard.create_event_queue(LIMITS.events).expect("an event queue");
        let entry = shard.attach_entry(&EntrySpec::new(PORTAL, MATCH_BITS)).expect("an entry");
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        shard.attach(entry, &MdSpec::new(64, Threshold::Infinite, options, queue)).expect("a descriptor");
        let nids: Vec<_> = rails.iter().map(|rail| (*rail, nid(number, *rail))).collect();
        let add = |(rail, nid): &(u8, Nid)| add_ni(*rail, *nid);
        let settings = [(Global::Discovery, i64::from(takes_part)), (Global::TransactionTimeout, 10)];
        let settings = settings.map(|(setting, value)| Change::Set { setting, value });
        let changes = settings.into_iter().chain(nids.iter().map(add)).collect();
        node.handle_request(Instant(0), Request::batch(changes)).expect("there is no other request");
        let (published, partners) = (Arc::default(), Vec::new());
        Self { node, shard, queue, nids, published, timer: None, takes_part, partners }
    }

    /// Has its state machine and its shard hear of each other, opens and closes its NIs; what else the state machine
    /// wants done.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Action<()>> {
        loop {
            while let Some(nid) = self.shard.poll_wanted() {
                self.node.handle_report(now, Report::Wanted { nid });
            }
            while let Some(note) = self.shard.poll_paths() {
                self.node.handle_report(now, Report::Path(note));
            }
            while let Some(note) = self.shard.poll_health() {
                self.node.handle_report(now, Report::Health(note));
            }
            if let Some(snapshot) = self.node.poll_snapshot() {
                self.shard.update(now, snapshot);
                self.node.handle_report(now, Report::Confirmed(self.shard.confirmation()));
                continue;
            }
            match self.node.poll_action()? {
                Action::Open { ni, .. } => {
                    self.node.handle_report(now, Report::Opened { ni, result: Ok(()) })
                }
                Action::Close { ni } => self.node.handle_report(now, Report::Closed { ni }),
                Action::Publish(bytes) => self.published = bytes,
                Action::Forget { .. } | Action::Steer { .. } => {}
                action => return Some(action),
            }
        }
    }

    /// The slot of the NI on a rail.
    pub(super) fn ni_of(&self, rail: u8) -> Option<NiId> {
        let (_, nid) = self.nids.iter().find(|(its, _)| *its == rail)?;
        self.shard.topology().local_nis().find(|(_, local)| local.nid == *nid).map(|(ni, _)| ni)
    }
}
