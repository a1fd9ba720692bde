//! A node: its interfaces, its XDP programs, its shards.
//!
//! [`Node::start`] checks the whole configuration, then builds: sockets and rings first, the XDP program
//! last, so that no frame is steered to a shard that is not there. The shards come back as [`Worker`]s for
//! the caller to drive; [`Node::open`] lets frames in. Dropping the node detaches its programs; frames then
//! pass up to the kernel.

mod error;
mod log;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::shard::{Shard, ShardConfig};
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::xfer::{XferConfig, XferLimits, XferTimes};
use lnet_wire::header::PAYLOAD_MAX_BYTES;
use lnet_wire::steer::{self, Policy};
use lnet_wire::{Nid, ProcessId};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

pub use error::NodeError;

use crate::bpf::{self, ActiveMode, AttachMode, BpfError, ObjectKind, SlotCount, XdpProgram};
use crate::lnd::xdp::{self, Common, Lane, OwnedQueue, SendFault, XdpLnd};
use crate::memory::Memory;
use crate::netlink::{self, Neighbours};
use crate::runtime::{Clock, Steering, Worker};
use crate::uring::{Waiter, Waker};
use crate::xsk::{self, FRAGMENTS_MAX, QueueConfig, RingSizes, Umem, UmemConfig};

use log::LogThread;
use plan::Plan;

/// UDP port of an xdp net unless another is set: that of LNet's acceptor.
pub const DEFAULT_PORT: u16 = 988;

/// How often LNet sends a message at most: the first time, and its default of retries.
const TRIES: u32 = 3;

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
    /// Log frames that XDP refuses, as `tracing` events of target `lnet_xdp`; takes the logging object.
    pub log_refusals: bool,
    /// Entries of the rings of each queue and socket.
    pub rings: RingSizes,
    /// Objects that each shard may have.
    pub limits: Limits,
    /// How long a message may be under way: one that its peer has not acknowledged by then ends with an error.
    /// The same on all nodes of a net.
    pub lnd_timeout: Duration,
    /// Whether payloads are sent with a checksum. One that has a checksum is verified wherever it arrives;
    /// headers always have one.
    pub payload_checksum: bool,
    /// What goes wrong on purpose when frames are sent: for tests.
    pub send_fault: SendFault,
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
            lnd_timeout: XferTimes::DEFAULT.message,
            payload_checksum: false,
            send_fault: SendFault::default(),
        }
    }
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
    steering: Steering,
    limits: Limits,
    shards: u32,
    /// Keep the UDP ports ours while the node lives.
    _ports: Vec<UdpSocket>,
    /// Outlives the programs, so that their last lines are printed too.
    _log: Option<LogThread>,
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

        let lnds = open_rings(config, &plan, &mut programs, neighbours, &wakers)?;
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
                    hash_seed: random_seed()?,
                });
                let Limits { memory_descs, incoming, .. } = config.limits;
                let memory = Memory::new(shard.id(), memory_descs, incoming);
                Ok(Worker::new(shard, lnd, memory, clock, waiter, steering, interfaces)?)
            })
            .collect::<Result<_, NodeError>>()?;
        let log = if config.log_refusals { Some(LogThread::start(&mut programs)?) } else { None };
        let mode = attach(config, &plan, &mut programs)?;
        let node = Self {
            programs,
            nid,
            mode,
            queues: lanes,
            steering,
            limits: config.limits,
            shards: config.shards,
            _ports: reserved,
            _log: log,
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

    /// Largest payload of a message: LNet's, in as many frames as it takes.
    #[must_use]
    pub fn payload_max_bytes(&self) -> u32 {
        PAYLOAD_MAX_BYTES
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
) -> Result<Vec<XdpLnd>, NodeError> {
    let shards = config.shards as usize;
    let queues: u32 = plan.interfaces.iter().map(|interface| interface.rx_queues).sum();
    let owned_max = queues.div_ceil(config.shards);
    // What a shard's queues may hold for receiving, what its receive rings may hold back, and its sends.
    // Each interface's rings may be full of frames to send, also of one that sends nothing any more.
    let transmit_reserve = config.rings.tx * plan.interfaces.len() as u32;
    let held_chunks_max = (config.rings.fill / 4).max(FRAGMENTS_MAX);
    let frames_per_shard = owned_max * config.rings.fill + transmit_reserve + held_chunks_max;
    let umem_config = UmemConfig::new(frames_per_shard * config.shards);
    let (umem, frames) = Umem::new(&umem_config)?;
    let common = Common {
        umem: Arc::clone(&umem),
        neighbours,
        ports: plan.ports.clone(),
        shards: config.shards,
        frames_per_shard,
        transmit_reserve: transmit_reserve as usize,
        held_chunks_max: held_chunks_max as usize,
        frame_max_bytes: xdp::frame_max_bytes(&config.rings),
        parked_responses_max: parked_responses_max(config),
        payload_checksum: config.payload_checksum,
        send_fault: config.send_fault,
        xfer: xfer_config(config, plan)?,
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
            let owned = OwnedQueue::new(lane_index, opened.fill, opened.completion);
            for (shard, socket) in opened.sockets.into_iter().enumerate() {
                program.set_socket(queue, shard as u32, &socket)?;
                let mut lane = Lane::new(interface.index, queue, socket, queue < interface.tx_queues);
                if shard != owner {
                    owned.lend_to(&mut lane, owner);
                }
                rings[shard].0.push(lane);
            }
            rings[owner].1.push(owned);
        }
    }
    Ok(XdpLnd::for_shards(&common, frames, rings, wakers))
}

/// The transfer protocol of each shard. Its incarnation, secret and seed are drawn anew in each life of the node.
fn xfer_config(config: &NodeConfig, plan: &Plan) -> Result<XferConfig, NodeError> {
    let frame_max_bytes = xdp::frame_max_bytes(&config.rings);
    Ok(XferConfig {
        shard_count: config.shards as u8,
        incarnation: random_seed()?,
        secret: [random_seed()?, random_seed()?],
        seed: random_seed()?,
        initiator_hash: steer::initiator_hash(&config.nis[0].nid),
        policies: plan.policies,
        nids: config.nis.iter().map(|ni| ni.nid).collect(),
        datagram_max_bytes: plan.ports.iter().map(|port| port.datagram_max_bytes(frame_max_bytes)).collect(),
        receive_bytes: xdp::receive_bytes(&config.rings, config.shards),
        times: XferTimes { message: config.lnd_timeout, ..XferTimes::DEFAULT },
        ..XferConfig::new(XferLimits::for_shard(&config.limits))
    })
}

/// Half of an NI's credits on a shard, or all that one peer may have of them.
fn parked_responses_max(config: &NodeConfig) -> u32 {
    let share = |credits: u32| credits.div_ceil(config.shards);
    config.nis.iter().map(|ni| (share(ni.credits) / 2).max(share(ni.peer_credits))).min().unwrap_or(0)
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
            // How long a message may wait for credits (LNet `lib-msg.c`, `lnet_msg_commit`).
            message_timeout: config.lnd_timeout * TRIES + Duration::from_secs(1),
        })
        .collect(),
    )
}

/// A number that no peer can guess: the cookie that they see tells nothing about it.
fn random_seed() -> Result<u64, NodeError> {
    let mut seed = [0; 8];
    match getrandom(&mut seed, GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(seed)),
        Ok(_) => Err(NodeError::Random(Errno::AGAIN)),
        Err(errno) => Err(NodeError::Random(errno)),
    }
}

/// What kernel nodes make their interface cookie of, so that handles of a former life never match.
fn nanoseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_nanos() as u64)
}
