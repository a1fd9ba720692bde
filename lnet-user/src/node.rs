//! A node: its interfaces, its drivers, its shards. Each node also has the interface `lo` ([`LO`]), by which
//! it reaches itself.
//!
//! [`NodeDriver::start`] checks the whole configuration, then opens its NIs: over `AF_XDP` rings, with an XDP
//! program on each interface, or over UDP sockets; both kinds may stand beside each other. The shards come
//! back as [`Worker`]s for the caller to drive; [`NodeDriver::open`] lets frames in. The NIs of such a node
//! stay as they are; those of an [`Lnet`](crate::Lnet) come and go. Dropping the node detaches its programs;
//! frames then pass up to the kernel.
//!
//! Invariants: what is refused leaves the node as it was; memory for NIs over rings is bounded from the start
//! ([`NodeConfig::frames`]), and taken with the first of them.

mod config;
mod error;
mod link;
mod log;
mod mode;
mod numa;
mod plan;
mod rings;
mod setters;
mod shards;
mod sockets;
mod start;
mod tcp;
mod view;
mod xdp;

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_io::memory::Buffer;
use lnet_io::netlink::Neighbours;
use lnet_io::xsk::Census;
use lnet_wire::Nid;
use lnet_wire::steer::{self, Policy, PolicyWord};
use lnet_xdp_proto::{Identity, XferConfig, XferLimits, XferTimes};
use tokio::sync::Notify;

pub use crate::bpf::{ActiveMode, BpfError, SlotCount};
pub use crate::lnd::in_process::fabric_of;
pub use config::{DAEMON_LIMITS, DEFAULT_PORT, LO, LndDefaults, NiConfig, NodeConfig, PEER_BYTES, is_tcp};
pub use error::{ConfigError, NodeError};
pub use link::DownReason;
pub(crate) use link::is_back;
pub use lnet_io::netlink::NetlinkError;
pub use lnet_io::uring::WaitError;
pub use lnet_io::uring::udp::UdpError;
pub use lnet_io::xsk::{CHUNK_BYTES, RingSizes, SocketError, UmemError};
pub use lnet_model::ni::XdpMode;
pub(crate) use numa::Numa;
pub(crate) use setters::setters;
pub(crate) use start::Started;
pub use start::{LndOptions, Machine};
pub(crate) use view::View;

use crate::lnd::in_process::{InProcessLnd, InProcessPort, Inbox};
use crate::lnd::xdp::Port;
use crate::lnd::{Part, ShardPort};
use crate::runtime::{Steering, Worker};
use plan::{NiPlan, XdpPlan};
use rings::{RingNet, deal, frames_per_shard};
use shards::{random_bytes, random_number, shard_limits};
use tcp::{TcpNet, TcpNi};
use view::{SharedProgram, lock};
use xdp::XdpNet;

/// What the XDP programs of a node have counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct XdpFrames {
    /// Frames steered, by queue and shard; queues of several interfaces are added up.
    pub slots: Vec<SlotCount>,
    /// Frames by reason for which they were not, or otherwise, steered.
    pub reasons: BTreeMap<&'static str, u64>,
}

/// An NI of a running node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NiState {
    /// Its number.
    pub ni: NiId,
    /// What it was opened with, and the present name of its interface.
    pub config: NiConfig,
    /// What it has of an interface; `None` if it is an in-process one.
    pub xdp: Option<XdpNiState>,
    /// What it has of an interface if its LND is tcp.
    pub tcp: Option<TcpNiState>,
    /// Why it cannot carry messages; `None` if it can.
    pub down: Option<DownReason>,
}

/// What an NI of the xdp LND has of its interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpNiState {
    /// Index of the interface.
    pub interface_index: u32,
    /// How frames reach the shards.
    pub mode: XdpMode,
    /// The UDP port.
    pub udp_port: u16,
    /// Receive queues of the interface.
    pub queues: u32,
    /// Bytes of the largest IP packet that the interface carries.
    pub mtu_bytes: u32,
    /// Why it has sockets, where mode `auto` could not have rings.
    pub no_rings: Option<String>,
}

/// What an NI of the tcp LND has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpNiState {
    /// Connections with a peer for messages of each direction.
    pub conns_per_peer: u8,
    /// IP type of service; `None` for the system's.
    pub tos: Option<u8>,
    /// Bytes of the largest IP packet that the interface carries, if that is known.
    pub mtu_bytes: Option<u32>,
}

/// A running node.
#[derive(Debug)]
pub struct NodeDriver {
    xdp: Option<XdpNet>,
    tcp: Option<TcpNet>,
    /// Its NIs, and what else threads see of it.
    view: Arc<View>,
    nid: Nid,
    /// But for its NIs.
    config: NodeConfig,
    steering: Steering,
    /// Told whenever something about an interface is new.
    interface_changes: Arc<Notify>,
    /// Chunks whose home one shard is, once there are any.
    frames_per_shard: u32,
    /// The largest MTU of the interfaces at first.
    widest_mtu_bytes: usize,
}

/// An NI that is open.
#[derive(Debug)]
struct OpenNi {
    config: NiConfig,
    lnd: OpenLnd,
}

impl OpenNi {
    fn xdp(&self) -> Option<&XdpNi> {
        match &self.lnd {
            OpenLnd::Xdp(xdp) => Some(xdp),
            OpenLnd::Tcp(_) | OpenLnd::InProcess(_) => None,
        }
    }

    fn tcp(&self) -> Option<&TcpNi> {
        match &self.lnd {
            OpenLnd::Tcp(tcp) => Some(tcp),
            OpenLnd::Xdp(_) | OpenLnd::InProcess(_) => None,
        }
    }

    /// What follows its interface, and its address there, if it has one.
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)> {
        match &self.lnd {
            OpenLnd::Xdp(xdp) => Some((&xdp.neighbours, &xdp.port.address)),
            OpenLnd::Tcp(tcp) => Some((&tcp.neighbours, &tcp.address)),
            OpenLnd::InProcess(_) => None,
        }
    }
}

/// What a node has of an NI's LND.
#[derive(Debug)]
enum OpenLnd {
    Xdp(XdpNi),
    Tcp(TcpNi),
    /// Where messages for the shards go.
    InProcess(Vec<Inbox>),
}

/// An NI of the xdp LND that is open.
#[derive(Debug)]
struct XdpNi {
    port: Port,
    mode: XdpMode,
    queues: u32,
    /// Follows the interface.
    neighbours: Arc<Neighbours>,
    /// What rings would have taken that is not there, if it was to have them where they can be had.
    no_rings: Option<String>,
    /// Keeps the UDP port of rings ours.
    _reserved: Option<UdpSocket>,
}

impl XdpNi {
    /// Whether it is over the rings of this interface.
    fn has_rings_of(&self, interface_index: u32) -> bool {
        self.mode != XdpMode::Socket && self.port.interface_index == interface_index
    }

    fn state(&self) -> XdpNiState {
        XdpNiState {
            interface_index: self.port.interface_index,
            mode: self.mode,
            udp_port: self.port.udp_port,
            queues: self.queues,
            mtu_bytes: self.neighbours.mtu_bytes().unwrap_or(self.port.mtu_bytes as u32),
            no_rings: self.no_rings.clone(),
        }
    }
}

impl NodeDriver {
    /// Starts a node: its shards are ready, and no frame reaches them before [`NodeDriver::open`].
    ///
    /// Only the application's threads drive it, and no control state machine goes on with it: its NIs stay as
    /// they are, it pings no peer, and it answers no pings. A ping of it ends with a timeout, and peers know
    /// it by the NIDs that messages come from or are sent to. A node that is to answer is an
    /// [`Lnet`](crate::Lnet).
    ///
    /// # Errors
    /// [`NodeError`] names the value that is wrong, or what the kernel refused, and the way out.
    pub fn start(config: &NodeConfig) -> Result<(Self, Vec<Worker>), NodeError> {
        let Started { node, workers, .. } = Self::start_managed(config)?;
        Ok((node, workers))
    }

    /// [`NodeDriver::start`], with the state machine that owns the topology, and goes on to.
    pub(crate) fn start_managed(config: &NodeConfig) -> Result<Started, NodeError> {
        start::start(config)
    }

    /// Opens an NI: its sockets, rings and XDP program as its mode wants them. Each shard gets its part by
    /// [`Worker::add_port`]; a snapshot of the topology that has the NI follows ([`Worker::update`]). The
    /// calling thread is in the node's network namespace, here and in [`NodeDriver::close_ni`].
    ///
    /// # Errors
    /// [`NodeError`] names the value that is wrong, or what the kernel refused, and the way out; the node is
    /// as before.
    pub(crate) fn open_ni(&mut self, ni: NiId, config: &NiConfig) -> Result<Vec<ShardPort>, NodeError> {
        if ni == LO || ni.0 > self.config.limits.interfaces || self.view.open_nis().contains_key(&ni.0) {
            return Err(NodeError::NiTaken(ni.0));
        }
        plan::check_address(config.nid, self.view.open_nis().values().map(|open| open.config.nid))?;
        let plan = NiPlan::new(&self.config, ni, config)?;
        let former = self.nid;
        if self.view.open_nis().is_empty() {
            self.nid = config.nid;
        }
        self.open_planned(ni, config.clone(), plan).inspect_err(|_| self.nid = former)
    }

    fn open_planned(
        &mut self,
        ni: NiId,
        config: NiConfig,
        plan: NiPlan,
    ) -> Result<Vec<ShardPort>, NodeError> {
        let (lnd, parts) = match plan {
            NiPlan::InProcess { fabric, serving } => {
                self.open_in_process((ni, config.nid), &fabric, serving)?
            }
            NiPlan::Tcp(plan) => {
                let (open, parts) = self.open_tcp((ni, config.nid), &plan, &config)?;
                (OpenLnd::Tcp(open), parts)
            }
            NiPlan::Xdp(plan) => {
                self.check_watches(&plan)?;
                let (open, parts) = self.open_xdp(&plan, &config)?;
                (OpenLnd::Xdp(open), parts)
            }
        };
        self.view.open_nis().insert(ni.0, OpenNi { config, lnd });
        Ok(parts)
    }

    fn open_in_process(
        &self,
        (ni, nid): (NiId, Nid),
        fabric: &str,
        serving: ShardSet,
    ) -> Result<(OpenLnd, Vec<ShardPort>), NodeError> {
        let known = self.view.open_nis().values().find_map(|open| match &open.lnd {
            OpenLnd::InProcess(ends) => Some(ends.clone()),
            OpenLnd::Xdp(_) | OpenLnd::Tcp(_) => None,
        });
        let lnds = match known {
            Some(_) => Vec::new(),
            None => {
                let NodeConfig { limits, lnd_timeout, .. } = &self.config;
                InProcessLnd::for_shards(limits, *lnd_timeout, self.view.opened(), self.view.wakers())
            }
        };
        let ends = known.unwrap_or_else(|| lnds.iter().map(InProcessLnd::inbox).collect());
        let ports = InProcessPort::join(fabric, (ni, nid), &self.steering.policies, (&ends, serving));
        let ports = ports.ok_or_else(|| NodeError::NidInUse { nid, fabric: fabric.to_owned() })?;
        let parts = Part::of_shards(lnds, ports).map(ShardPort::InProcess).collect();
        Ok((OpenLnd::InProcess(ends), parts))
    }

    /// Whether an NI of the xdp LND is like this.
    fn any_xdp(&self, is: impl Fn(&XdpNi) -> bool) -> bool {
        self.view.open_nis().values().filter_map(OpenNi::xdp).any(is)
    }

    /// Whether each shard can watch one more NI.
    fn check_watches(&self, plan: &XdpPlan) -> Result<(), NodeError> {
        let more = match plan.mode {
            XdpMode::Socket => 1,
            _ if self.any_xdp(|open| open.has_rings_of(plan.interface.index)) => 0,
            _ => plan.interface.rx_queues,
        };
        let is_socket = |open: &&XdpNi| open.mode == XdpMode::Socket;
        let sockets = self.view.open_nis().values().filter_map(OpenNi::xdp).filter(is_socket).count() as u32;
        let queues = self.ring_queues() + sockets + more;
        let max = self.config.queues_max;
        if queues > max { Err(NodeError::TooManyWatches { nid: plan.port.nid, queues, max }) } else { Ok(()) }
    }

    /// Closes an NI, with the parts of all shards ([`Worker::remove_port`], or those that were never added).
    /// The last one of an interface detaches its XDP program; the frames that the kernel has of it go home to
    /// the shards, which takes a moment.
    ///
    /// # Errors
    /// [`NodeError::NoNi`].
    ///
    /// # Panics
    /// If a part is of another NI.
    pub(crate) fn close_ni(&mut self, ni: NiId, parts: Vec<ShardPort>) -> Result<(), NodeError> {
        let open = self.view.open_nis().remove(&ni.0).ok_or(NodeError::NoNi(ni.0))?;
        assert!(parts.iter().all(|part| part.ni() == ni), "a part of another NI");
        match open.lnd {
            OpenLnd::Xdp(open) => self.close_xdp(&open, parts),
            OpenLnd::Tcp(_) => self.close_tcp(parts),
            OpenLnd::InProcess(_) => {}
        }
        Ok(())
    }

    /// Steers by another policy of a portal from now on: the XDP programs do so at once, the shards when they
    /// get a snapshot of the topology that has it.
    pub(crate) fn steer(&mut self, portal: u8, word: PolicyWord) -> Result<(), BpfError> {
        let policy = word.unpack().unwrap_or(Policy::Pin(0));
        self.steering.policies[usize::from(portal)] = word;
        self.config.policies.retain(|(other, _)| *other != portal);
        self.config.policies.push((portal, policy));
        self.programs().iter().try_for_each(|program| lock(program).set_policy(portal, policy))
    }

    /// Lets frames in: from now on they reach the shards. Call it when the entries are posted
    /// that peers count on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(&mut self) -> Result<(), NodeError> {
        self.view.open()
    }

    /// The node's primary NID: that of the NI that it had first.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// The NIs but `lo`, in the order of their numbers.
    pub fn nis(&self) -> impl Iterator<Item = NiState> + '_ {
        self.view.nis().into_iter()
    }

    /// What threads see of it.
    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// How frames reach the shards: [`XdpMode::Socket`] if all NIs have sockets, [`XdpMode::Generic`] if one
    /// has its XDP program in the kernel's network stack. It means nothing where there are no NIs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        let is = |mode| self.any_xdp(|open| open.mode == mode);
        [XdpMode::Generic, XdpMode::Native].into_iter().find(|mode| is(*mode)).unwrap_or(XdpMode::Socket)
    }

    /// Receive queues of all interfaces.
    #[must_use]
    pub fn queues(&self) -> u32 {
        let nis = self.view.open_nis();
        let interfaces =
            nis.values().filter_map(OpenNi::xdp).map(|open| (open.port.interface_index, open.queues));
        interfaces.collect::<BTreeMap<_, _>>().into_values().sum()
    }

    /// Where entries of each portal are to be posted.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Objects that each shard may have.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// What the node was started with, but for its NIs.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// A zeroed buffer of `length_bytes` in the node's registered memory ([`NodeConfig::registered_bytes`]):
    /// long payloads of messages that begin in it are sent by rings without a copy. Each takes whole chunks
    /// of 4096 bytes, which are free again when it is dropped. `None` when there is no free run of them that
    /// is long enough, for no bytes, and while no NI of the node is over rings: ordinary memory does as well
    /// there.
    ///
    /// A message that is sent from it ends when the kernel has let go of it, too: where its interface goes
    /// down in between, that may take until it is up again or the NI is removed.
    #[must_use]
    pub fn register(&self, length_bytes: usize) -> Option<Buffer> {
        self.view.register(length_bytes)
    }

    /// The XDP programs of the node's interfaces, in the order of their first NI: for fault rules and
    /// per-interface counters. NIs over sockets have none.
    pub(crate) fn programs(&self) -> Vec<SharedProgram> {
        self.view.programs()
    }

    /// Who holds the frames of the NIs over rings, while there are any.
    pub(crate) fn frames(&self) -> Option<Census> {
        self.rings().map(RingNet::census)
    }

    /// What the XDP programs have counted since the start.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn xdp_frames(&self) -> Result<XdpFrames, NodeError> {
        self.view.xdp_frames()
    }

    /// The transfer protocol of the shards. Its identity, secret and seed are drawn anew in each life.
    fn xfer_config(&self, receive_bytes: u32) -> Result<XferConfig, NodeError> {
        Ok(XferConfig {
            shard_count: self.config.shards as u8,
            identity: Identity::new(random_bytes()?),
            secret: [random_number()?, random_number()?],
            seed: random_number()?,
            initiator_hash: steer::initiator_hash(&self.nid),
            policies: self.steering.policies,
            // Each shard knows which it is, and NIs come with their ports.
            shard: ShardId(0),
            nids: Vec::new(),
            datagram_max_bytes: Vec::new(),
            receive_bytes,
            limits: XferLimits::for_shard(&self.config.limits),
            times: XferTimes { message: self.config.lnd_timeout, ..XferTimes::DEFAULT },
        })
    }

    /// ACKs and REPLYs of a shard that may wait for a next hop by an NI: half of its credits on a shard, or
    /// all that one peer may have of them.
    fn unresolved_responses_max(&self, config: &NiConfig) -> u32 {
        let share = |credits: Option<u32>| credits.unwrap_or(1).div_ceil(self.config.shards);
        (share(config.credits) / 2).max(share(config.peer_credits))
    }
}

impl Drop for NodeDriver {
    fn drop(&mut self) {
        // The programs go with their interfaces, before their logs.
        self.view.forget_rings();
    }
}

/// Chunks of each shard: what was asked for, or what the NIs need that there are at first.
fn first_frames_per_shard(config: &NodeConfig, plans: &[NiPlan]) -> u32 {
    if let Some(frames) = config.frames {
        return frames / config.shards;
    }
    let with_rings = plans.iter().filter_map(NiPlan::xdp).filter(|plan| plan.mode != XdpMode::Socket);
    let mut links = BTreeMap::<u32, &XdpPlan>::new();
    for plan in with_rings {
        // The first NI of an interface brings its rings.
        links.entry(plan.interface.index).or_insert(plan);
    }
    let mut owned = vec![0; config.shards as usize];
    for plan in links.values() {
        deal(&mut owned, plan.interface.rx_queues, plan.serving);
    }
    let most = owned.into_iter().max().unwrap_or(1).max(1);
    frames_per_shard(config, links.len().max(1) as u32, most)
}
