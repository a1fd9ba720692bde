//! One node of a fleet: the real control state machine and a real shard, without an LND.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::limits::Limits;
use lnet_core::lnd::{NiId, RxId, Status, Uplink as _, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{Action, NetOptions, NiSpec, Node, NodeChange, NodeConfig, Report, Request};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_core::{Shard, ShardConfig};
use lnet_wire::{Global, Header, Net, NetType, Nid, ProcessId};
use lnet_xdp_proto::{FACTS, NET_TUNABLES};

use super::routes::{Routing, fill_pools};

/// Which of the limits of a shard says how many NIDs of peers it has room for; the rest is as small as a
/// fleet lets it be.
pub(super) const PEERS_MAX: u32 = 256;

/// Where Puts go.
const PORTAL: u32 = 4;
/// Bytes of a Put of a fleet.
pub(super) const PUT_BYTES: u64 = 8;
/// How often a message is sent again by another path at most.
pub(super) const RETRY_COUNT: u32 = 2;
const MATCH_BITS: u64 = 1;

pub(super) const LIMITS: Limits = Limits {
    match_entries: 4,
    memory_descs: 128,
    event_queues: 1,
    events: 512,
    unlimited_events: 128,
    spare_events: 0,
    requests: 64,
    responses: 64,
    forwards: 0,
    incoming: 64,
    delayed: 4,
    peers: PEERS_MAX,
    nis: 20,
};

pub(super) struct Member {
    pub(super) node: Node<()>,
    pub(super) shard: Shard,
    pub(super) queue: EqHandle,
    /// The NIDs of its NIs, and which rail each is on.
    pub(super) nids: Vec<(u8, Nid)>,
    /// Names of messages that have arrived and wait.
    pub(super) waiting: BTreeSet<RxId>,
    /// What it answers to pings.
    pub(super) published: Arc<[u8]>,
    /// When its timers are looked at next.
    pub(super) timer: Option<u64>,
    /// Whether it takes part in discovery.
    pub(super) takes_part: bool,
    /// Peers that it talks to.
    pub(super) partners: Vec<u32>,
    pub(super) routing: Routing,
    /// Messages that may arrive at once.
    pub(super) incoming: u32,
}

/// The NID of the first NI of a node on the xdp net of this number.
pub fn nid(number: u32, rail: u8) -> Nid {
    nid_on(Net::new(NetType::XDP, rail.into()), number, 0)
}

/// The NID of one of the NIs of a node on a net.
pub(super) fn nid_on(net: Net, number: u32, ordinal: u8) -> Nid {
    let [_, high, middle, low] = (number + 1).to_be_bytes();
    let address = [10, ordinal << 4 | high, middle, low];
    Nid::new_ip(net, address.into()).expect("an address of a node")
}

/// The node that has a NID, and the number of the net.
pub(super) fn owner(nid: &Nid) -> Option<(u32, u8)> {
    let std::net::IpAddr::V4(address) = nid.ip()? else { return None };
    let [_, high, middle, low] = address.octets();
    let number = u32::from_be_bytes([0, high & 15, middle, low]).checked_sub(1)?;
    Some((number, nid.net().number() as u8))
}

/// An NI comes.
pub(super) fn add_ni(interface: u8, nid: Nid) -> NodeChange<()> {
    let options = NetOptions {
        new_net: NET_TUNABLES,
        facts: FACTS,
        lnd_timeout: Duration::from_secs(5),
        ..NetOptions::default()
    };
    NodeChange::AddNi(NiSpec { nid, interface: format!("if{interface}"), options, lnd: () })
}

fn shard_config(limits: Limits, cookie: u64, seed: u64, topology: Arc<Topology>) -> ShardConfig {
    ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [cookie, 0],
        pid: ProcessId::LUSTRE_PID,
        limits,
        topology,
        hash_seed: seed,
    }
}

/// A shard with these limits that knows nothing yet.
pub(super) fn shard_of(limits: Limits) -> Shard {
    Shard::new(shard_config(limits, 1, 1, Arc::default()))
}

impl Member {
    /// A node with these NIs, whose requests wait for discovery if it `holds` them; those of its own are
    /// still to be carried out. Which life it is tells it from what it was before a restart.
    pub(super) fn new(
        (number, life): (u32, u32),
        nids: Vec<(u8, Nid)>,
        takes_part: bool,
        holds: bool,
        seed: u64,
    ) -> Self {
        Self::routed((number, life), nids, takes_part, holds, seed, Routing::default())
    }

    /// A node with what it has to do with routers.
    pub(super) fn routed(
        (number, life): (u32, u32),
        nids: Vec<(u8, Nid)>,
        takes_part: bool,
        holds: bool,
        seed: u64,
        routing: Routing,
    ) -> Self {
        let (limits, router_buffers_max) = (routing.limits(), routing.buffers_max());
        let nets = [NetType::XDP, NetType::TCP];
        let config =
            NodeConfig { peers_max: 4096, router_buffers_max, ..NodeConfig::new(1, LIMITS.nis, &nets) };
        let mut node = Node::new(config);
        if holds {
            node.gate_requests();
        }
        let topology = node.poll_snapshot().expect("a node has a snapshot");
        let cookie = (u64::from(life) << 32) | (u64::from(number) + 1);
        let mut shard = Shard::new(shard_config(limits, cookie, seed, topology));
        let queue = shard.create_event_queue(LIMITS.events).expect("an event queue");
        let entry = shard.attach_entry(&EntrySpec::new(PORTAL, MATCH_BITS)).expect("an entry");
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        shard.attach(entry, &MdSpec::new(64, Threshold::Infinite, options, queue)).expect("a descriptor");
        let add = |(interface, (_, nid)): (u8, &(u8, Nid))| add_ni(interface, *nid);
        let settings = [
            (Global::Discovery, i64::from(takes_part)),
            (Global::TransactionTimeout, 10),
            (Global::RetryCount, i64::from(RETRY_COUNT)),
        ];
        let settings = settings.map(|(setting, value)| NodeChange::Set { setting, value });
        let changes =
            settings.into_iter().chain((0..).zip(&nids).map(add)).chain(routing.changes()).collect();
        node.handle_request(Instant(0), Request::batch(changes)).expect("there is no other request");
        let (published, partners, waiting) = (Arc::default(), Vec::new(), BTreeSet::new());
        let incoming = limits.incoming;
        Self {
            node,
            shard,
            queue,
            nids,
            waiting,
            published,
            timer: None,
            takes_part,
            partners,
            routing,
            incoming,
        }
    }

    /// Has its state machine and its shard hear of each other, opens and closes its NIs; what else the state
    /// machine wants done.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Action<()>> {
        loop {
            while let Some(nid) = self.shard.poll_wanted() {
                self.node.handle_report(now, Report::Wanted { nid });
            }
            while let Some(nid) = self.shard.poll_waiting() {
                self.node.handle_report(now, Report::Waiting { nid });
            }
            while let Some((by, net)) = self.shard.poll_foreign() {
                self.node.handle_report(now, Report::Foreign { by, net });
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
                Action::Pools(totals) => {
                    fill_pools(&mut self.shard, totals);
                    self.node.handle_report(now, Report::Pools { result: Ok(()) });
                }
                Action::Forget { .. } | Action::Steer { .. } | Action::Disconnect { .. } => {}
                action => return Some(action),
            }
        }
    }

    /// A message arrives from a NID at one of its NIs, and is there at once; if it waits it is once it goes
    /// on.
    pub(super) fn arrive(&mut self, now: Instant, from: &Nid, to: &Nid, header: &Header) {
        let Some(ni) = self.slot_of(to) else { return };
        let Some(rx) = (0..self.incoming).map(RxId).find(|rx| !self.waiting.contains(rx)) else { return };
        let verdict = self.shard.header(now, ni, from, rx, header);
        self.go_on(now, rx, verdict);
    }

    /// Goes on with messages that have waited.
    pub(super) fn resume(&mut self, now: Instant) {
        while let Some((_, rx, verdict)) = self.shard.poll_resume() {
            self.waiting.remove(&rx);
            self.go_on(now, rx, verdict);
        }
    }

    fn go_on(&mut self, now: Instant, rx: RxId, verdict: Verdict) {
        match verdict {
            Verdict::Deliver(_) => self.shard.received(now, rx, Status::Ok),
            Verdict::Delay => drop(self.waiting.insert(rx)),
            Verdict::Drop => {}
        }
    }

    /// The slot of the NI with a NID.
    pub(super) fn slot_of(&self, nid: &Nid) -> Option<NiId> {
        self.shard.topology().local_nis().find(|(_, local)| local.nid == *nid).map(|(ni, _)| ni)
    }

    /// Starts Put number `put`, of so many bytes and with ACK, to a NID; false if the shard has refused it.
    /// Its events have its number as `user_ptr`.
    pub(super) fn put(&mut self, now: Instant, put: u64, length_bytes: u64, to: Nid) -> bool {
        let spec = MdSpec::new(length_bytes, Threshold::Count(2), MdOptions::NONE, self.queue);
        let Ok(md) = self.shard.bind(&MdSpec { user_ptr: put, ..spec }) else { return false };
        let request = PutRequest {
            md,
            part: None,
            ack: true,
            self_nid: None,
            target: ProcessId::lustre(to),
            portal: PORTAL,
            match_bits: MATCH_BITS,
            offset: 0,
            hdr_data: put,
        };
        let is_started = self.shard.put(now, &request).is_ok();
        if !is_started {
            // Its descriptor goes, which an event tells.
            let _ = self.shard.unlink(md);
        }
        is_started
    }

    /// Which of its NIs has a NID.
    pub(super) fn index_of(&self, nid: &Nid) -> Option<usize> {
        self.nids.iter().position(|(_, its)| its == nid)
    }
}
