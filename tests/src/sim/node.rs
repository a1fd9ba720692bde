//! A node in one of its lives: its shards, its descriptors' memory, its frame buffers.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::tunables::{NetTunables, ResponseTracking, Tunables};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_tcp_proto::{SockTunables, Socklnd, SocklndLimits};
use lnet_user::node::DAEMON_LIMITS;
use lnet_wire::steer::{PORTALS, Policy, PolicyWord, Spread, initiator_hash};
use lnet_wire::{Net, Nid, ProcessId};
use lnet_xdp_proto::{MetAddresses, Xfer, XferConfig, XferLimits, XferNi, XferTimes};

use super::control::Control;
use super::datagrams::Datagrams;
use super::driver::{DriverConfig, LaneDriver};
use super::lane::Lane;
use super::memory::Memory;
use super::plan::Plan;
use super::pool::Pool;
use super::sock::{SockConfig, SockDriver};
use super::uplink::Desk;
use super::{Bugs, NetKind, routers, sabotage};
use crate::bpf::random::Random;

/// Credits of an NI, and what a peer gets of them.
const CREDITS: (u32, u32) = (32, 16);

/// Credits of an NI for each shard, and what a peer gets of them, where there are few beside hostile nodes.
const FEW_CREDITS: (u32, u32) = (48, 8);

/// Credits of an NI of a node, and what a peer gets of them: beside hostile nodes those of `lnetd`, or few.
pub(super) fn credits(plan: &Plan, number: usize) -> (u32, u32) {
    if plan.routers > 0 {
        return plan.routed_credits;
    }
    if plan.hostile.is_empty() {
        return CREDITS;
    }
    if plan.few_credits && number < plan.friends() {
        let shards = u32::from(plan.shards[number]);
        return (shards * FEW_CREDITS.0, shards * FEW_CREDITS.1);
    }
    let NetTunables { credits, peer_credits, .. } = match plan.net {
        NetKind::Xdp => lnet_xdp_proto::NET_TUNABLES,
        NetKind::Tcp => NetTunables::LNET,
    };
    (credits, peer_credits)
}

/// Portals that are used; each has another policy.
pub(super) const PORTALS_USED: usize = 5;
/// The portal whose messages go to any shard.
pub(super) const ROTOR: u32 = 4;
/// The portal whose messages go by their initiator.
pub(super) const INITIATOR: u32 = 3;

const LIMITS: Limits = Limits {
    match_entries: 128,
    memory_descs: 256,
    event_queues: 2,
    events: 700,
    unlimited_events: 3,
    spare_events: 4,
    requests: 64,
    responses: 64,
    forwards: 0,
    incoming: 48,
    delayed: 24,
    peers: 12,
    nis: 3,
};

/// Limits beside hostile nodes: those of `lnetd`, but for peers, of whom there are soon too many, and for
/// slots of the event queues of a run.
const LIMITS_UNDER_ATTACK: Limits = Limits {
    peers: 2 * DAEMON_LIMITS.delayed,
    unlimited_events: 3,
    spare_events: 4,
    nis: 3,
    ..DAEMON_LIMITS
};

/// Limits beside hostile nodes of which each speaks in its own name alone: small enough for one to fill. Over
/// frames one that acknowledges nothing soon has no more to send.
const fn little_room(net: NetKind) -> Limits {
    let responses = match net {
        NetKind::Xdp => 24,
        NetKind::Tcp => LIMITS.responses,
    };
    Limits { responses, delayed: LIMITS.delayed, ..LIMITS_UNDER_ATTACK }
}

/// Limits with little more than is needed for anything to go on.
const LIMITS_TIGHT: Limits =
    Limits { requests: 10, responses: 6, incoming: 5, delayed: 4, peers: 6, unlimited_events: 2, ..LIMITS };

const XFER_LIMITS: XferLimits = XferLimits {
    messages: 96,
    incoming: LIMITS.incoming,
    partials: 12,
    peers: 16,
    streams: 24,
    frames: 256,
    buffered: 24,
};

const XFER_LIMITS_TIGHT: XferLimits = XferLimits {
    messages: 10,
    incoming: LIMITS_TIGHT.incoming,
    partials: 2,
    peers: 6,
    streams: 9,
    frames: 40,
    buffered: 2,
};

/// The address of an NI.
pub(super) fn address(node: usize, rail: u8) -> IpAddr {
    Ipv4Addr::new(10, rail, 0, node as u8 + 1).into()
}

/// The NID of an NI.
pub(super) fn nid(plan: &Plan, node: usize, rail: u8) -> Nid {
    let net = Net::new(plan.net_type(), plan.net_of(node, rail));
    Nid::new_ip(net, address(node, rail)).expect("these nets take IPv4 addresses")
}

/// The NIDs of all NIs with the initiator hash of their nodes.
pub(super) fn initiator_hashes(plan: &Plan) -> Rc<Vec<(Nid, u32)>> {
    let of_node = |node| {
        let hash = initiator_hash(&nid(plan, node, 0));
        (0..plan.rails_of(node)).map(move |rail| (nid(plan, node, rail), hash))
    };
    Rc::new((0..plan.shards.len()).flat_map(of_node).collect())
}

/// What all shards of a node know of its nets, where they do not hand headers to each other: then there is no
/// control.
fn topology(plan: &Plan, number: usize) -> Topology {
    let (credits, peer_credits) = credits(plan, number);
    let interfaces = (0..plan.rails).map(|rail| {
        let nid = nid(plan, number, rail);
        let message_timeout = Duration::from_nanos(plan.message_ns);
        LocalNi { facts: plan.facts(), ..LocalNi::new(nid, credits, peer_credits, message_timeout) }
    });
    let tunables = Tunables {
        transaction_timeout: Duration::from_nanos(plan.transaction_ns),
        response_tracking: ResponseTracking::Both,
        ..Tunables::DEFAULT
    };
    Topology::new(interfaces.collect()).with_tunables(tunables)
}

/// A node.
pub(super) struct Node {
    /// How often it was started before.
    pub(super) life: u32,
    pub(super) keys: lnet_xdp_proto::Identity,
    /// Configuration of the drivers of its shards, and of the machines that they make with their first NI.
    pub(super) config: DriverConfig,
    /// Its control state machine; `None` where there is no mesh.
    pub(super) control: Option<Control>,
    pub(super) lanes: Vec<Lane>,
    pub(super) memory: Memory,
    pub(super) policies: [PolicyWord; PORTALS],
    pub(super) receive_pool: Pool,
    /// The number of its pool of frames to be sent, which outlives it.
    pub(super) send_pool: usize,
}

/// What stays over the lives of a node.
pub(super) struct Identity {
    pub(super) number: usize,
    pub(super) policies: [PolicyWord; PORTALS],
    pub(super) initiator_hashes: Rc<Vec<(Nid, u32)>>,
}

/// Policies of a node's portals.
pub(super) fn policies(random: &mut Random, shards: u8) -> [PolicyWord; PORTALS] {
    let mut shard = || random.below(usize::from(shards)) as u8;
    let used: [Policy; PORTALS_USED] = [
        Policy::Pin(shard()),
        Policy::MatchBits { shift: 0, bits: 8, spread: Spread::Hash },
        Policy::MatchBits { shift: 0, bits: 3, spread: Spread::Table(std::array::from_fn(|_| shard())) },
        Policy::Initiator,
        Policy::Rotor,
    ];
    std::array::from_fn(|portal| {
        used.get(portal).map_or(PolicyWord::default(), |policy| policy.pack().expect("a valid policy"))
    })
}

/// The driver of a shard, with the bugs of the run.
fn make_driver(config: &DriverConfig, shard: ShardId, rails: &[Nid], bugs: &Bugs) -> LaneDriver {
    match config {
        DriverConfig::Xdp(config) => {
            let buffered = config.limits.buffered;
            LaneDriver::Xdp(Box::new(Datagrams::new(make_xfer(config, shard, bugs), buffered)))
        }
        DriverConfig::Tcp(config) => {
            let mut sock = Socklnd::new(SockDriver::config(config, shard));
            sabotage::switch_on_sock(bugs, &mut sock);
            let mut driver = SockDriver::new(config, sock);
            for (rail, nid) in rails.iter().enumerate() {
                driver.add_interface(NiId(rail as u16), *nid, config);
            }
            LaneDriver::Tcp(Box::new(driver))
        }
    }
}

/// The transfer machine of a shard, with the bugs of the run.
pub(super) fn make_xfer(config: &XferConfig, shard: ShardId, bugs: &Bugs) -> Xfer {
    let seed = config.seed.wrapping_add(u64::from(shard.0));
    let mut xfer = Xfer::new(XferConfig { shard, seed, ..config.clone() });
    sabotage::switch_on(bugs, &mut xfer);
    xfer
}

/// The keys of a life.
pub(super) fn draw_keys(random: &mut Random) -> lnet_xdp_proto::Identity {
    let mut secret = [0; 32];
    secret.as_chunks_mut().0.iter_mut().for_each(|word| *word = random.bits().to_le_bytes());
    lnet_xdp_proto::Identity::new(secret)
}

/// What the drivers of a node of the tcp LND are made from.
fn sock_config(
    plan: &Plan,
    limits: &Limits,
    number: usize,
    incarnations: [u64; 2],
    random: &mut Random,
) -> SockConfig {
    let transmits = limits.transmits();
    let (timeout, reconnect) = (Duration::from_nanos(plan.message_ns), Duration::from_millis(100));
    SockConfig {
        serving: plan.serving[number],
        tunables: SockTunables {
            timeout,
            keepalive: if random.once_in(2) { timeout } else { Duration::ZERO },
            min_reconnect: reconnect,
            max_reconnect: reconnect * 8,
            accept_timeout: timeout / 2,
            ..SockTunables::DEFAULT
        },
        limits: SocklndLimits {
            connections: limits.incoming,
            handshakes: if plan.tight { 2 } else { 16 },
            peers: match (plan.hostile.is_empty(), plan.tight) {
                (false, _) => limits.peers,
                (true, true) => 5,
                (true, false) => 24,
            },
            messages: transmits * u32::from(plan.shards[number]),
        },
        seed: random.bits(),
        incarnations,
        conns_per_peer: random.pick(&[1, 1, 2, 4]),
        transmits,
    }
}

impl Node {
    pub(super) fn new(
        plan: &Plan,
        identity: &Identity,
        (life, keys, now): (u32, &lnet_xdp_proto::Identity, Instant),
        datagram_max_bytes: [u32; 2],
        send_pool: usize,
        random: &mut Random,
        bugs: &Bugs,
    ) -> Self {
        let Identity { number, policies, ref initiator_hashes } = *identity;
        let (shards, checksum) = (plan.shards[number], plan.checksums[number]);
        let control = plan.mesh.then(|| Control::new(plan, number, policies, now));
        let topology = control
            .as_ref()
            .map_or_else(|| Arc::new(topology(plan, number)), |control| Arc::clone(&control.snapshot));
        let rails: Vec<_> = (0..plan.rails_of(number)).map(|rail| nid(plan, number, rail)).collect();
        let has_little = plan.little_room && number < plan.friends();
        let under_attack = if has_little { little_room(plan.net) } else { LIMITS_UNDER_ATTACK };
        let (mut limits, xfer_limits) = match (plan.hostile.is_empty(), plan.tight) {
            (false, _) => (under_attack, XferLimits::for_shard(&under_attack)),
            (true, true) => (LIMITS_TIGHT, XFER_LIMITS_TIGHT),
            (true, false) => (LIMITS, XFER_LIMITS),
        };
        let secret = [random.bits(), random.bits()];
        let config = match plan.net {
            NetKind::Xdp => DriverConfig::Xdp(Box::new(XferConfig {
                shard: ShardId(0),
                shard_count: shards,
                identity: keys.clone(),
                secret,
                seed: random.bits(),
                initiator_hash: initiator_hash(&nid(plan, number, 0)),
                policies,
                met: Arc::new(MetAddresses::new(xfer_limits.peers, u64::from(life))),
                nis: (rails.iter().zip(datagram_max_bytes))
                    .map(|(nid, datagram_max_bytes)| XferNi {
                        nid: *nid,
                        datagram_max_bytes,
                        checksum,
                        runs: false,
                    })
                    .collect(),
                receive_bytes: plan.receive_frames * 4096 / u32::from(shards),
                limits: xfer_limits,
                times: XferTimes {
                    message: Duration::from_nanos(plan.message_ns),
                    buffered: Duration::from_micros(500),
                    ..XferTimes::DEFAULT
                },
            })),
            NetKind::Tcp => {
                // A connection is the name of what arrives on it.
                if plan.hostile.is_empty() {
                    limits.incoming = if plan.tight { 8 } else { 128 };
                }
                DriverConfig::Tcp(Box::new(sock_config(plan, &limits, number, secret, random)))
            }
        };
        if plan.routers > 0 {
            limits.forwards = plan.pool_buffers.iter().sum();
        }
        let mut memory = Memory::default();
        let lane = |shard: u8| {
            let mut new = Shard::new(ShardConfig {
                shard: ShardId(shard),
                shard_count: shards,
                seal_key: [u64::from(life), number as u64],
                pid: ProcessId::LUSTRE_PID,
                limits,
                topology: Arc::clone(&topology),
                hash_seed: random.bits(),
            });
            let queues =
                plan.event_slots.map(|slots| new.create_event_queue(slots).expect("slots for two queues"));
            for portal in (0..PORTALS_USED as u32).filter(|portal| plan.lazy >> portal & 1 != 0) {
                new.set_lazy(portal).expect("a portal that exists");
            }
            if plan.router(number).is_some() {
                routers::fill_pools(plan, number, (&mut new, bugs), &mut memory);
            }
            sabotage::switch_on_shard(bugs, &mut new);
            let driver = make_driver(&config, ShardId(shard), &rails, bugs);
            let desk = Desk::new(
                (number, life),
                policies,
                shards,
                Rc::clone(initiator_hashes),
                limits.incoming,
                limits.transmits(),
            );
            let name = format!("{number}.{life}/{shard}");
            Lane::new(new, driver, (queues, &rails), desk, name)
        };
        Self {
            life,
            keys: keys.clone(),
            control,
            lanes: (0..shards).map(lane).collect(),
            config,
            memory,
            policies,
            receive_pool: Pool::new(plan.receive_frames),
            send_pool,
        }
    }

    /// An NI has opened; the first one of a life of the transfer protocol, if `is_first`.
    pub(super) fn renew(&mut self, rail: u8, is_first: bool, random: &mut Random) {
        match &mut self.config {
            DriverConfig::Xdp(config) if is_first => {
                self.keys = draw_keys(random);
                config.identity = self.keys.clone();
                config.secret = [random.bits(), random.bits()];
                config.seed = random.bits();
                config.nis = Vec::new();
            }
            DriverConfig::Xdp(_) => {}
            DriverConfig::Tcp(config) => config.incarnations[usize::from(rail)] = random.bits(),
        }
    }

    /// Whether a rail is open.
    pub(super) fn has_rail(&self, rail: NiId) -> bool {
        self.control.as_ref().is_none_or(|control| control.open[usize::from(rail.0)])
    }
}
