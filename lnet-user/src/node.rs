//! A node: its interfaces, its drivers, its shards. Each node also has the interface `lo`, by which it
//! reaches itself.
//!
//! [`Node::start`] checks the whole configuration, then builds the drivers: over `AF_XDP` rings, with an XDP
//! program on each interface, or over UDP sockets. The shards come back as [`Worker`]s for
//! the caller to drive; [`Node::open`] lets frames in. Dropping the node detaches its programs; frames then
//! pass up to the kernel.

mod drivers;
mod error;
mod log;
mod mode;
mod plan;
mod rings;
mod shards;
mod sockets;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::xfer::{XferConfig, XferLimits, XferTimes};
use lnet_wire::Nid;
use lnet_wire::header::PAYLOAD_MAX_BYTES;
use lnet_wire::steer::{self, Policy};

pub use error::NodeError;
pub use mode::{NodeMode, UnknownMode, XdpMode};

use crate::bpf::{BpfError, SlotCount, XdpProgram};
use crate::lnd::xdp::SendFault;
use crate::runtime::{Steering, Worker};
use crate::xsk::RingSizes;

use drivers::{Drivers, Opened, wake_all};
use log::LogThread;
use plan::Plan;
use shards::{make_workers, random_number, shard_limits};

/// UDP port of an xdp net unless another is set: that of LNet's acceptor.
pub const DEFAULT_PORT: u16 = 988;

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

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its NIs but `lo`, which every node has; the first one's NID is the node's primary NID. A node without
    /// any reaches nobody but itself, and needs no privileges.
    pub nis: Vec<NiConfig>,
    /// Shards, 1 to 64; one per CPU that the node shall use.
    pub shards: u32,
    /// Receive queues that each interface must have at least; `None` takes it as it is.
    pub queues: Option<u32>,
    /// UDP port of the node and its peers.
    pub udp_port: u16,
    /// How frames reach the shards.
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
    /// A node that nobody reaches but itself, by `0@lo`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new(Vec::new())
    }

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
    mode: NodeMode,
    queues: u32,
    steering: Steering,
    limits: Limits,
    shards: u32,
    /// What sockets are opened by.
    opened: Option<Opened>,
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
        let Drivers { lnds, mode, queues, programs, reserved, log, opened } = Drivers::make(config, &plan)?;
        let workers = make_workers(config, &plan, lnds)?;
        let node = Self {
            programs,
            nid: primary_nid(config),
            mode,
            queues,
            steering: Steering::new(plan.policies, config.shards),
            limits: config.limits,
            shards: config.shards,
            opened,
            _ports: reserved,
            _log: log,
        };
        Ok((node, workers))
    }

    /// Lets frames in: from now on they reach the shards. Call it when the entries are posted
    /// that peers count on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(&mut self) -> Result<(), BpfError> {
        if let Some(opened) = &self.opened {
            opened.open();
        }
        self.programs.iter_mut().try_for_each(|program| program.set_shards(self.shards))
    }

    /// The node's primary NID.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// How frames reach the shards. It means nothing where there are no interfaces.
    #[must_use]
    pub fn mode(&self) -> NodeMode {
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
    /// per-interface counters. A node with sockets has none.
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

/// The first NI's NID; of a node without any that of `lo`.
fn primary_nid(config: &NodeConfig) -> Nid {
    config.nis.first().map_or(Nid::LO, |ni| ni.nid)
}

/// The transfer protocol of each shard, but for what the interfaces and the drivers can take. Its incarnation,
/// secret and seed are drawn anew in each life of the node.
fn xfer_config(config: &NodeConfig, plan: &Plan) -> Result<XferConfig, NodeError> {
    Ok(XferConfig {
        shard_count: config.shards as u8,
        incarnation: random_number()?,
        secret: [random_number()?, random_number()?],
        seed: random_number()?,
        initiator_hash: steer::initiator_hash(&primary_nid(config)),
        policies: plan.policies,
        nids: config.nis.iter().map(|ni| ni.nid).collect(),
        // The drivers say what they can take, and each shard which it is.
        shard: ShardId(0),
        datagram_max_bytes: Vec::new(),
        receive_bytes: 0,
        limits: XferLimits::for_shard(&config.limits),
        times: XferTimes { message: config.lnd_timeout, ..XferTimes::DEFAULT },
    })
}
