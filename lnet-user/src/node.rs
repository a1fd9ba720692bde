//! A node: its interfaces, its XDP programs, its shards.
//!
//! [`Node::start`] checks the whole configuration, then builds: sockets and rings first, the XDP program
//! last, so that no frame is steered to a shard that is not there. The shards come back as [`Worker`]s for
//! the caller to drive; [`Node::open`] lets frames in. Dropping the node detaches its programs; frames then
//! pass up to the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::shard::{Shard, ShardConfig};
use lnet_core::topology::{LocalNi, Topology};
use lnet_wire::nid::NetType;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, endpoint};
use lnet_wire::steer::{self, PORTALS, Policy, PolicyError, PolicyWord, QUEUES_MAX, SHARDS_MAX};
use lnet_wire::{Nid, ProcessId};
use thiserror::Error;

use crate::bpf::{self, ActiveMode, AttachMode, BpfError, ObjectKind, SlotCount, XdpProgram};
use crate::lnd::xdp::{Common, Lane, OVERHEAD_BYTES, OwnedQueue, Port, XdpLnd};
use crate::memory::Memory;
use crate::netlink::{self, Interface, Neighbours, NetlinkError};
use crate::runtime::{Clock, Steering, Worker};
use crate::uring::{WaitError, Waiter, Waker};
use crate::xsk::{self, QueueConfig, RingSizes, SocketError, Umem, UmemConfig, UmemError};

/// UDP port of an xdp net unless another is set: that of LNet's acceptor.
pub const DEFAULT_PORT: u16 = 988;

/// How long a message may wait for credits: the LND timeout that LNet derives from its defaults.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(49);

/// How long an interface may take to run that was brought up just before the node: the kernel looks at
/// carriers once a second.
const CARRIER_PATIENCE: Duration = Duration::from_millis(1500);
const CARRIER_INTERVAL: Duration = Duration::from_millis(20);

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NiConfig {
    /// Its NID: an address of the interface, on a net of type xdp.
    pub nid: Nid,
    /// The network interface.
    pub interface: String,
    /// Messages that the NI may have in flight.
    pub credits: u32,
    /// Messages that the NI may have in flight to one peer NI.
    pub peer_credits: u32,
}

impl NiConfig {
    /// An NI with the default credits: 1024, and 128 for each peer.
    #[must_use]
    pub fn new(nid: Nid, interface: &str) -> Self {
        Self { nid, interface: interface.to_owned(), credits: 1024, peer_credits: 128 }
    }
}

/// How the XDP program of a node is attached.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum XdpMode {
    /// The first of the others that works.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's network stack (SKB mode).
    Generic,
}

/// A word that is no [`XdpMode`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("mode {0:?}: auto, native or generic is expected")]
pub struct UnknownMode(String);

impl FromStr for XdpMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl From<XdpMode> for AttachMode {
    fn from(mode: XdpMode) -> Self {
        match mode {
            XdpMode::Auto => Self::Auto,
            XdpMode::Native => Self::Native,
            XdpMode::Generic => Self::Generic,
        }
    }
}

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its NIs; the first one's NID is the node's primary NID.
    pub nis: Vec<NiConfig>,
    /// Shards, 1 to 64; one per CPU that the node shall use.
    pub shards: u32,
    /// Receive queues that each interface must have at least; `None` takes it as it is.
    pub queues: Option<u32>,
    /// UDP port of the node and its peers.
    pub udp_port: u16,
    /// How the XDP programs are attached.
    pub mode: XdpMode,
    /// Steering policies of portals; others are pinned to shard 0.
    pub policies: Vec<(u8, Policy)>,
    /// Object file of the XDP program; `None` looks in the usual places.
    pub bpf_object: Option<PathBuf>,
    /// Log frames that XDP refuses.
    pub log_refusals: bool,
    /// Entries of the rings of each queue and socket.
    pub rings: RingSizes,
    /// Objects that each shard may have.
    pub limits: Limits,
}

impl NodeConfig {
    /// A node with these NIs and the defaults: one shard, port 988, automatic mode.
    #[must_use]
    pub fn new(nis: Vec<NiConfig>) -> Self {
        Self {
            nis,
            shards: 1,
            queues: None,
            udp_port: DEFAULT_PORT,
            mode: XdpMode::Auto,
            policies: Vec::new(),
            bpf_object: None,
            log_refusals: false,
            rings: RingSizes::default(),
            limits: Limits::default(),
        }
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A node without NIs.
    #[error("a node needs at least one NI")]
    NoNi,
    /// An unusable number of shards.
    #[error("{0} shards: 1 to 64 are expected")]
    Shards(u32),
    /// A NID that is not on a net of type xdp.
    #[error("NID {0} is on no xdp net: ADDRESS@xdp or ADDRESS@xdpN is expected")]
    NotXdp(Nid),
    /// A NID that the node has twice.
    #[error("NID {0} is given twice")]
    DuplicateNid(Nid),
    /// A NID whose address the interface does not have.
    #[error("interface {interface} does not have the address of {nid}; it has {present}")]
    NoSuchAddress {
        /// The NID.
        nid: Nid,
        /// The interface.
        interface: String,
        /// The addresses that it has.
        present: String,
    },
    /// An interface that is switched off. One without a carrier will do: frames flow when it comes.
    #[error("interface {0} is down: `ip link set dev {0} up` brings it up")]
    Down(String),
    /// An interface with too few receive or transmit queues.
    #[error(
        "interface {interface} has {rx_queues} receive and {tx_queues} transmit queues, {wanted} of each are \
         needed: `ethtool -L {interface} ...` gives a device more, a veth is made with `numrxqueues {wanted} \
         numtxqueues {wanted}`"
    )]
    TooFewQueues {
        /// The interface.
        interface: String,
        /// Its receive queues.
        rx_queues: u32,
        /// Its transmit queues.
        tx_queues: u32,
        /// How many are needed.
        wanted: u32,
    },
    /// An interface with more receive queues than steering reaches.
    #[error(
        "interface {interface} has {rx_queues} receive queues, steering reaches {max}: \
         `ethtool -L {interface} ...` gives it fewer",
        max = QUEUES_MAX
    )]
    TooManyQueues {
        /// The interface.
        interface: String,
        /// Its receive queues.
        rx_queues: u32,
    },
    /// An interface whose frames are too small for our headers.
    #[error("interface {interface} has an MTU of {mtu_bytes} bytes: more than {needed_bytes} are needed")]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// What headers alone take.
        needed_bytes: usize,
    },
    /// A policy that cannot be.
    #[error("policy of portal {portal}: {error:?}")]
    Policy {
        /// The portal.
        portal: u8,
        /// What is wrong.
        error: PolicyError,
    },
    /// A portal that does not exist.
    #[error("policy of portal {0}: portals are 0 to 63")]
    Portal(u8),
    /// The kernel's network tables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The XDP program.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The memory of the frames.
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The `AF_XDP` sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The waiting of shards.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// What the XDP programs of a node have counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct XdpFrames {
    /// Frames steered, by queue and shard; queues of several interfaces are added up.
    pub slots: Vec<SlotCount>,
    /// Frames by reason for which they were not, or otherwise, steered.
    pub reasons: BTreeMap<&'static str, u64>,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    programs: Vec<XdpProgram>,
    nid: Nid,
    mode: ActiveMode,
    queues: u32,
    payload_max_bytes: u32,
    steering: Steering,
    limits: Limits,
    shards: u32,
    /// Keep the UDP ports ours while the node lives.
    _ports: Vec<UdpSocket>,
}

/// What `start` has found out and checked before it builds anything.
struct Plan {
    interfaces: Vec<Interface>,
    ports: Vec<Port>,
    policies: [PolicyWord; PORTALS],
}

impl Node {
    /// Starts a node: its shards are ready, and no frame reaches them before [`Node::open`].
    ///
    /// # Errors
    /// [`NodeError`] names the value that is wrong, or what the kernel refused, and the way out.
    pub fn start(config: &NodeConfig) -> Result<(Self, Vec<Worker>), NodeError> {
        let plan = Plan::new(config)?;
        let mut programs = load_programs(config, &plan)?;
        let nid = config.nis[0].nid;
        let indices: Vec<u32> = plan.interfaces.iter().map(|interface| interface.index).collect();
        let neighbours = Neighbours::start(&indices)?;
        let reserved = reserve_ports(&plan, config.udp_port)?;
        let lanes = plan.interfaces.iter().map(|interface| interface.rx_queues).sum();
        let waiters: Vec<Waiter> =
            (0..config.shards).map(|_| Waiter::new(lanes)).collect::<Result<_, _>>()?;
        let wakers: Vec<Waker> = waiters.iter().map(Waiter::waker).collect();
        let to_wake = wakers.clone();
        neighbours.subscribe(Box::new(move || {
            for waker in &to_wake {
                waker.wake();
            }
        }));

        let (common, lnds) = open_rings(config, &plan, &mut programs, neighbours, &wakers)?;
        let steering = Steering::new(plan.policies, config.shards);
        let clock = Clock::start();
        let topology = Arc::new(topology(config));
        let interfaces = config.nis.len() as u16;
        let interface_cookie = nanoseconds_since_1970();
        let workers = lnds
            .into_iter()
            .zip(waiters)
            .enumerate()
            .map(|(shard, (lnd, waiter))| {
                let shard = Shard::new(ShardConfig {
                    shard: ShardId(shard as u8),
                    shard_count: config.shards as u8,
                    interface_cookie,
                    pid: ProcessId::LUSTRE_PID,
                    limits: config.limits,
                    topology: Arc::clone(&topology),
                    hash_seed: interface_cookie.rotate_left(32) ^ u64::from(std::process::id()),
                });
                Worker::new(
                    shard,
                    lnd,
                    Memory::new(config.limits.memory_descs),
                    clock,
                    waiter,
                    steering,
                    interfaces,
                )
            })
            .collect::<Result<_, _>>()?;
        let mode = attach(config, &plan, &mut programs)?;
        let node = Self {
            programs,
            nid,
            mode,
            queues: lanes,
            payload_max_bytes: common.ports.iter().map(payload_max_bytes).min().unwrap_or(0),
            steering,
            limits: config.limits,
            shards: config.shards,
            _ports: reserved,
        };
        Ok((node, workers))
    }

    /// Lets frames in: from now on XDP steers them to the shards. Call it when the entries are posted
    /// that peers count on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(&mut self) -> Result<(), BpfError> {
        self.programs.iter_mut().try_for_each(|program| program.set_shards(self.shards))
    }

    /// The node's primary NID.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// How the XDP programs are attached; generic if one of them is.
    #[must_use]
    pub fn mode(&self) -> ActiveMode {
        self.mode
    }

    /// Receive queues of all interfaces.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Largest payload of a message that goes by any of the interfaces.
    #[must_use]
    pub fn payload_max_bytes(&self) -> u32 {
        self.payload_max_bytes
    }

    /// Where entries of each portal are to be posted.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Objects that each shard may have.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The XDP programs of the node's interfaces, in the order of their first NI: for fault rules and
    /// per-interface counters.
    pub fn programs_mut(&mut self) -> &mut [XdpProgram] {
        &mut self.programs
    }

    /// What the XDP programs have counted since the start.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn xdp_frames(&self) -> Result<XdpFrames, BpfError> {
        let mut frames = XdpFrames::default();
        let mut slots = BTreeMap::new();
        for program in &self.programs {
            let counters = program.counters()?;
            for slot in &counters.slots {
                *slots.entry((slot.queue, slot.shard)).or_default() += slot.frames;
            }
            for (reason, count) in counters.totals() {
                *frames.reasons.entry(reason.name()).or_default() += count;
            }
        }
        frames.slots =
            slots.into_iter().map(|((queue, shard), frames)| SlotCount { queue, shard, frames }).collect();
        Ok(frames)
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl Plan {
    fn new(config: &NodeConfig) -> Result<Self, NodeError> {
        if config.nis.is_empty() {
            return Err(NodeError::NoNi);
        }
        if config.shards == 0 || config.shards > SHARDS_MAX {
            return Err(NodeError::Shards(config.shards));
        }
        let policies = pack_policies(&config.policies)?;
        let mut interfaces: Vec<Interface> = Vec::new();
        let mut ports = Vec::new();
        for (index, ni) in config.nis.iter().enumerate() {
            if config.nis[..index].iter().any(|other| other.nid == ni.nid) {
                return Err(NodeError::DuplicateNid(ni.nid));
            }
            let known = interfaces.iter().position(|interface| interface.name == ni.interface);
            let interface = match known {
                Some(place) => &interfaces[place],
                None => {
                    interfaces.push(usable_interface(&ni.interface, config.queues)?);
                    &interfaces[interfaces.len() - 1]
                }
            };
            ports.push(port(index, ni, interface, config.udp_port)?);
        }
        Ok(Self { interfaces, ports, policies })
    }
}

fn pack_policies(policies: &[(u8, Policy)]) -> Result<[PolicyWord; PORTALS], NodeError> {
    let mut words = [PolicyWord::default(); PORTALS];
    for (portal, policy) in policies {
        let word = words.get_mut(usize::from(*portal)).ok_or(NodeError::Portal(*portal))?;
        *word = policy.pack().map_err(|error| NodeError::Policy { portal: *portal, error })?;
    }
    Ok(words)
}

fn usable_interface(name: &str, queues: Option<u32>) -> Result<Interface, NodeError> {
    let interface = settled_interface(name)?;
    let (rx_queues, tx_queues) = (interface.rx_queues, interface.tx_queues);
    let wanted = queues.unwrap_or(1).max(1);
    if rx_queues < wanted || tx_queues < wanted {
        return Err(NodeError::TooFewQueues { interface: interface.name, rx_queues, tx_queues, wanted });
    }
    if rx_queues > QUEUES_MAX {
        return Err(NodeError::TooManyQueues { interface: interface.name, rx_queues });
    }
    Ok(interface)
}

/// Waits a little for the carrier of an interface that was brought up just before: the kernel notices it a
/// while later (`net/core/link_watch.c`). Without one the node starts all the same.
fn settled_interface(name: &str) -> Result<Interface, NodeError> {
    let begun = Instant::now();
    loop {
        let interface = Interface::by_name(name)?;
        if !interface.enabled {
            return Err(NodeError::Down(interface.name));
        }
        if interface.up || begun.elapsed() >= CARRIER_PATIENCE {
            return Ok(interface);
        }
        std::thread::sleep(CARRIER_INTERVAL);
    }
}

fn port(index: usize, ni: &NiConfig, interface: &Interface, udp_port: u16) -> Result<Port, NodeError> {
    let address =
        ni.nid.ip().filter(|_| ni.nid.net().net_type() == NetType::XDP).ok_or(NodeError::NotXdp(ni.nid))?;
    if !interface.addresses.iter().any(|(present, _)| *present == address) {
        let present: Vec<String> =
            interface.addresses.iter().map(|(address, _)| address.to_string()).collect();
        return Err(NodeError::NoSuchAddress {
            nid: ni.nid,
            interface: interface.name.clone(),
            present: if present.is_empty() { "none".to_owned() } else { present.join(", ") },
        });
    }
    let port = Port {
        ni: NiId(index as u16),
        address,
        udp_port,
        endpoint: endpoint(address, udp_port),
        interface_index: interface.index,
        mac: interface.mac,
        mtu_bytes: interface.mtu_bytes as usize,
    };
    let needed_bytes = headers_bytes(address);
    if port.mtu_bytes <= needed_bytes {
        let (interface, mtu_bytes) = (interface.name.clone(), interface.mtu_bytes);
        return Err(NodeError::Mtu { interface, mtu_bytes, needed_bytes });
    }
    Ok(port)
}

/// Bytes of an IP packet of ours that are not payload.
fn headers_bytes(address: IpAddr) -> usize {
    let ip = if address.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    ip + UDP_BYTES + OVERHEAD_BYTES
}

/// Largest payload of one frame by this port. An IP packet is never longer than 65535 bytes.
fn payload_max_bytes(port: &Port) -> u32 {
    (port.mtu_bytes.min(usize::from(u16::MAX)) - headers_bytes(port.address)) as u32
}

fn load_programs(config: &NodeConfig, plan: &Plan) -> Result<Vec<XdpProgram>, NodeError> {
    let kind = if config.log_refusals { ObjectKind::Logging } else { ObjectKind::Default };
    let object = match &config.bpf_object {
        Some(path) => path.clone(),
        None => bpf::find_object(kind)?,
    };
    let mut programs = Vec::new();
    for interface in &plan.interfaces {
        let mut program = XdpProgram::load(&object)?;
        for port in plan.ports.iter().filter(|port| port.interface_index == interface.index) {
            program.add_endpoint(port.address, port.udp_port)?;
        }
        for (portal, policy) in &config.policies {
            program.set_policy(*portal, *policy)?;
        }
        if config.log_refusals {
            program.set_logging(true)?;
        }
        programs.push(program);
    }
    Ok(programs)
}

fn reserve_ports(plan: &Plan, udp_port: u16) -> Result<Vec<UdpSocket>, NodeError> {
    plan.ports.iter().map(|port| Ok(netlink::reserve_port(port.address, udp_port)?)).collect()
}

/// Opens a socket per (queue, shard) on one UMEM, puts them into the programs' maps and hands each shard
/// its own. The queues are dealt out to the shards in turn, each to be owned by one.
fn open_rings(
    config: &NodeConfig,
    plan: &Plan,
    programs: &mut [XdpProgram],
    neighbours: Arc<Neighbours>,
    wakers: &[Waker],
) -> Result<(Common, Vec<XdpLnd>), NodeError> {
    let shards = config.shards as usize;
    let queues: u32 = plan.interfaces.iter().map(|interface| interface.rx_queues).sum();
    let owned_max = queues.div_ceil(config.shards);
    // What a shard's queues may hold for receiving, what its receive rings may hold back, and its sends.
    let transmit_reserve = config.rings.tx;
    let frames_per_shard = owned_max * config.rings.fill + transmit_reserve;
    let umem_config = UmemConfig::new(frames_per_shard * config.shards);
    let (umem, frames) = Umem::new(&umem_config)?;
    let common = Common {
        umem: Arc::clone(&umem),
        neighbours,
        ports: plan.ports.clone(),
        policies: plan.policies,
        shards: config.shards,
        initiator_hash: steer::initiator_hash(&config.nis[0].nid),
        frames_per_shard,
        transmit_reserve: transmit_reserve as usize,
        transmits_max: config.limits.transmits(),
    };
    let mut rings: Vec<(Vec<Lane>, Vec<OwnedQueue>)> =
        (0..shards).map(|_| (Vec::new(), Vec::new())).collect();
    let mut owners = (0..shards).cycle();
    for (interface, program) in plan.interfaces.iter().zip(programs) {
        for queue in 0..interface.rx_queues {
            let mut queue_config = QueueConfig::new(interface.index, queue);
            queue_config.socket_count = config.shards;
            queue_config.rings = config.rings;
            let opened = xsk::open_queue(&umem, &queue_config)?;
            let owner = owners.next().unwrap_or(0);
            let lane_index = rings[owner].0.len();
            rings[owner].1.push(OwnedQueue { lane_index, fill: opened.fill, completion: opened.completion });
            for (shard, socket) in opened.sockets.into_iter().enumerate() {
                program.set_socket(queue, shard as u32, &socket)?;
                rings[shard].0.push(Lane::new(interface.index, queue, socket));
            }
        }
    }
    let lnds = XdpLnd::for_shards(&common, frames, rings, wakers);
    Ok((common, lnds))
}

fn attach(config: &NodeConfig, plan: &Plan, programs: &mut [XdpProgram]) -> Result<ActiveMode, NodeError> {
    let mut mode = ActiveMode::Native;
    for (interface, program) in plan.interfaces.iter().zip(programs) {
        if program.attach(&interface.name, config.mode.into())? == ActiveMode::Generic {
            mode = ActiveMode::Generic;
        }
    }
    Ok(mode)
}

fn topology(config: &NodeConfig) -> Topology {
    let nis = config.nis.iter();
    Topology::new(
        nis.map(|ni| LocalNi {
            nid: ni.nid,
            net: ni.nid.net(),
            credits: ni.credits,
            peer_credits: ni.peer_credits,
            message_timeout: MESSAGE_TIMEOUT,
        })
        .collect(),
    )
}

/// What kernel nodes make their interface cookie of, so that handles of a former life never match.
fn nanoseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_nanos() as u64)
}

// Keeps the arithmetic of frames honest: a frame's headers leave room in the smallest chunk.
const _: () = assert!(ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + OVERHEAD_BYTES < xsk::CHUNK_BYTES as usize);
