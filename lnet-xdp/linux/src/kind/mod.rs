//! The xdp LND of a node: NIs over `AF_XDP` rings, with an XDP program on each interface, and over UDP
//! sockets, which share the LNDs of the shards.
//!
//! Invariants: an NI that is refused leaves nothing behind; memory for NIs over rings is bounded from the
//! start ([`XdpConfig::frames`]), and taken with the first of them.
//!
//! Mode `auto` takes sockets where rings are lacking (privileges, support by kernel or driver), and says why
//! in the log and in `net show`. Where something is wrong with rings it does not: an interface with a foreign
//! XDP program is an error.

mod carrier;
mod config;
mod error;
mod instead;
mod link;
mod log;
mod opening;
mod plan;
mod programs;
mod rings;
mod sockets;
mod spread;
mod zero_copy;

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_io::driver::Part;
use lnet_io::kind::{Host, LndKind, NiRequest, OpenNi};
use lnet_io::netlink::Neighbours;
use lnet_io::random;
use lnet_io::xsk::Census;
use lnet_model::lnd::{LndRow, NiFact, NiOption, XDP};
use lnet_model::ni::{NiOptions, XdpMode};
use lnet_wire::steer;
use lnet_xdp_proto::{Identity, MetAddresses, XferConfig, XferLimits, XferTimes};

use crate::lnd::{self, Common, Port, ReturnRings, XdpLnd, XdpPort};
use carrier::OpenCarrier;
pub use config::{DEFAULT_PORT, XdpConfig};
pub use error::XdpError;
use instead::DeafRings;
use link::LinkState;
pub use plan::XdpPlan;
pub use programs::{Programs, SharedProgram, XdpFrames};
use rings::RingNet;

/// The xdp LND of a node.
#[derive(Debug)]
pub struct XdpKind {
    config: XdpConfig,
    /// How long a message may be under way, at first.
    timeout: Duration,
    /// Receive queues of NIs over rings, and NIs over sockets, that there may be at once.
    queues_max: u32,
    programs: Arc<Programs>,
    /// While there are NIs.
    net: Option<XdpNet>,
    /// The NIs that are open.
    open: Vec<OpenPort>,
    /// Interfaces whose rings were deaf, while they have NIs.
    deaf: BTreeMap<u32, DeafRings>,
    /// Chunks whose home one shard is, once there are any.
    frames_per_shard: u32,
    /// The largest MTU of the interfaces at first.
    widest_mtu_bytes: usize,
}

/// State that NIs have in common, be they over rings or over sockets.
#[derive(Debug)]
struct XdpNet {
    return_rings: ReturnRings,
    /// While there are NIs over rings.
    rings: Option<RingNet>,
    /// Bytes of the longest datagram that the shards keep and hand over, once there was an NI over a socket.
    buffer_bytes: Option<u32>,
}

/// The LNDs of the shards, if they are made with this NI.
type Fresh = Option<(XdpNet, Vec<XdpLnd>)>;

/// An NI that is open.
#[derive(Clone, Copy, Debug)]
struct OpenPort {
    port: Port,
    mode: XdpMode,
}

impl OpenPort {
    /// Whether it is over the rings of this interface.
    fn has_rings_of(&self, interface_index: u32) -> bool {
        self.mode != XdpMode::Socket && self.port.interface_index == interface_index
    }
}

/// State of an NI of the xdp LND and of its interface.
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
    /// Why it has sockets, where mode `auto` could not have rings.
    pub no_rings: Option<String>,
    /// Why its rings are as they are, where mode `auto` could not have the best.
    pub reason: Option<String>,
    /// Alarm about the queues of the interface, and the remedy.
    pub alarm: Option<String>,
}

/// An NI of the xdp LND that is open, as a node keeps it.
#[derive(Debug)]
pub struct XdpNi {
    port: Port,
    mode: XdpMode,
    /// Queues of the interface, and what is wrong with them.
    link: Arc<LinkState>,
    /// Follows the interface.
    neighbours: Arc<Neighbours>,
    /// Lack that kept it from rings, if it was to have them where they can be had.
    no_rings: Option<String>,
    /// Why its rings are as they are, where that is not the best.
    reason: Option<String>,
    /// Whether its rings have zero copy, and why.
    zero_copy: Option<String>,
    /// Carrier of its long messages, and why it is that.
    carrier: Box<OpenCarrier>,
    /// Keeps the UDP port of rings ours.
    _reserved: Option<UdpSocket>,
}

impl XdpNi {
    /// Its present state.
    #[must_use]
    pub fn state(&self) -> XdpNiState {
        XdpNiState {
            interface_index: self.port.interface_index,
            mode: self.mode,
            udp_port: self.port.udp_port,
            queues: self.link.served(),
            no_rings: self.no_rings.clone(),
            reason: self.reason.clone(),
            alarm: self.link.alarm(),
        }
    }
}

impl XdpNi {
    /// Whether its rings are found to be deaf: something else is to carry it.
    #[must_use]
    pub fn is_deaf(&self) -> bool {
        self.mode != XdpMode::Socket && self.link.deaf().is_some()
    }
}

impl OpenNi for XdpNi {
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)> {
        Some((&self.neighbours, &self.port.address))
    }

    fn has_changed(&self) -> bool {
        self.mode != XdpMode::Socket && self.link.differs(self.neighbours.queues())
    }

    fn facts(&self) -> Vec<Option<NiFact>> {
        let queues = if self.mode == XdpMode::Socket { 0 } else { self.link.served() };
        let mtu_bytes = self.neighbours.mtu_bytes().unwrap_or(self.port.mtu_bytes as u32);
        vec![
            self.no_rings.clone().map(NiFact::Text),
            self.link.alarm().map(NiFact::Text),
            Some(NiFact::Text(self.mode.to_string())),
            self.reason.clone().map(NiFact::Text),
            Some(NiFact::Number(queues.into())),
            Some(NiFact::Number(mtu_bytes.into())),
            self.zero_copy.clone().map(NiFact::Text),
            self.carrier.words().map(NiFact::Text),
            self.link.idle_queues().map(NiFact::Text),
            self.link.frames_by_queue().map(NiFact::Counts),
        ]
    }
}

impl XdpKind {
    /// The LND of a node without NIs, whose programs are seen in `programs`. `timeout`: how long a message
    /// may be under way. `queues_max`: receive queues of NIs over rings, and NIs over sockets, that there may
    /// be at once.
    #[must_use]
    pub fn new(config: XdpConfig, timeout: Duration, queues_max: u32, programs: Arc<Programs>) -> Self {
        Self {
            config,
            timeout,
            queues_max,
            programs,
            net: None,
            open: Vec::new(),
            deaf: BTreeMap::new(),
            frames_per_shard: 0,
            widest_mtu_bytes: 0,
        }
    }

    /// Who holds the frames of the NIs over rings, while there are any.
    #[must_use]
    pub fn census(&self) -> Option<Census> {
        self.rings().map(RingNet::census)
    }

    fn any_open(&self, is: impl Fn(&OpenPort) -> bool) -> bool {
        self.open.iter().any(is)
    }

    /// Takes in that the shards have given an NI up: with the last one their LNDs, and what these have
    /// counted.
    pub fn settle(&mut self) {
        if self.open.is_empty() {
            self.net = None;
            self.programs.forget_gone();
        }
    }

    /// Checks that each shard can watch one more NI.
    fn check_watches(&self, plan: &XdpPlan) -> Result<(), XdpError> {
        let more = match plan.mode {
            XdpMode::Socket => 1,
            _ if self.any_open(|open| open.has_rings_of(plan.interface.index)) => 0,
            _ => plan.interface.rx_queues,
        };
        let sockets = self.open.iter().filter(|open| open.mode == XdpMode::Socket).count() as u32;
        let queues = self.ring_queues() + sockets + more;
        let max = self.queues_max;
        if queues > max { Err(XdpError::TooManyWatches { nid: plan.port.nid, queues, max }) } else { Ok(()) }
    }

    /// The transfer protocol of the shards. Its identity, secret and seed are drawn anew in each life.
    fn xfer_config(&self, host: &Host, receive_bytes: u32) -> Result<XferConfig, XdpError> {
        let limits = XferLimits::for_shard(&host.limits);
        Ok(XferConfig {
            shard_count: host.shard_count() as u8,
            identity: Identity::new(random::bytes()?),
            secret: [random::number()?, random::number()?],
            seed: random::number()?,
            initiator_hash: steer::initiator_hash(&host.nid),
            policies: host.steering.policies,
            met: Arc::new(MetAddresses::new(limits.peers, random::number()?)),
            // Each shard knows which it is, and NIs come with their ports.
            shard: ShardId(0),
            nis: Vec::new(),
            receive_bytes,
            limits,
            times: XferTimes { message: self.timeout, ..XferTimes::DEFAULT },
        })
    }

    /// The LNDs, unless there are some.
    fn fresh(&self, host: &Host) -> Result<Fresh, XdpError> {
        if self.net.is_some() {
            return Ok(None);
        }
        let config = &self.config;
        let common = Common {
            shards: host.shard_count(),
            frames_per_shard: self.frames_per_shard,
            rings: config.rings,
            early_chunks_max: config.early_chunks_max() as usize,
            send_fault: config.send_fault,
            opened: Arc::clone(&host.opened),
            xfer: self.xfer_config(host, lnd::receive_bytes(&config.rings, host.shard_count(), 1))?,
        };
        let (lnds, return_rings) = XdpLnd::for_shards(&common, &host.wakers);
        Ok(Some((XdpNet { return_rings, rings: None, buffer_bytes: None }, lnds)))
    }

    /// Takes the LNDs on that were made with an NI; the parts of the shards.
    fn keep(&mut self, fresh: Fresh, ports: Vec<XdpPort>) -> (&mut XdpNet, Vec<Part<XdpLnd>>) {
        let (net, lnds) = fresh.unzip();
        if let Some(net) = net {
            self.net = Some(net);
        }
        let parts = Part::of_shards(lnds.unwrap_or_default(), ports);
        let net = self.net.as_mut().unwrap_or_else(|| unreachable!("one was there, or was made"));
        (net, parts)
    }

    /// State that NIs over rings have in common.
    fn rings(&self) -> Option<&RingNet> {
        self.net.as_ref()?.rings.as_ref()
    }

    fn rings_mut(&mut self) -> Option<&mut RingNet> {
        self.net.as_mut()?.rings.as_mut()
    }

    /// Opens an NI, as its mode wants it.
    fn open_as_planned(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: &XdpPlan,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        let (plan, why) = self.by_experience(plan);
        let plan = &*plan;
        if plan.mode == XdpMode::Socket {
            let (open, parts) = self.open_sockets(host, plan)?;
            return Ok((XdpNi { no_rings: why, ..open }, parts));
        }
        match self.open_rings(host, request, plan, why.as_deref()) {
            Err(rings) if plan.is_auto && rings.is_lack() => {
                let lacking = words_of([why, Some(rings.to_string())]).unwrap_or_default();
                let opened = self.open_sockets(host, plan).map_err(|sockets| XdpError::NoMode {
                    rings: Box::new(rings),
                    sockets: Box::new(sockets),
                });
                let (mut open, parts) = opened?;
                let interface = request.interface;
                tracing::warn!(nid = %request.nid, interface, lacking, "no AF_XDP rings: UDP sockets are used, which are slower");
                open.no_rings = Some(lacking);
                Ok((open, parts))
            }
            made => made,
        }
    }
}

/// Puts reasons together.
fn words_of<const N: usize>(reasons: [Option<String>; N]) -> Option<String> {
    let reasons: Vec<_> = reasons.into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

impl LndKind for XdpKind {
    type Driver = XdpLnd;
    type Plan = XdpPlan;
    type Ni = XdpNi;
    type Error = XdpError;

    const ROW: LndRow = XDP;

    fn plan(&self, request: &NiRequest<'_>) -> Result<XdpPlan, XdpError> {
        XdpPlan::new(&self.config, request)
    }

    fn expect(&mut self, host: &Host, plans: &[&XdpPlan]) {
        self.frames_per_shard = self.first_frames_per_shard(host, plans);
        self.widest_mtu_bytes = plans.iter().map(|plan| plan.port.mtu_bytes).max().unwrap_or(0);
    }

    fn open(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: XdpPlan,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        self.check_watches(&plan)?;
        let (ni, parts) = self.open_as_planned(host, request, &plan)?;
        self.open.push(OpenPort { port: ni.port, mode: ni.mode });
        Ok((ni, parts))
    }

    fn follow(&mut self, host: &Host, ni: NiId) -> Vec<Part<XdpLnd>> {
        let mut with_rings = self.open.iter().filter(|open| open.mode != XdpMode::Socket);
        let port = with_rings.find(|open| open.port.ni == ni).map(|open| open.port);
        port.map_or_else(Vec::new, |port| self.follow_queues(host, &port))
    }

    /// Has long messages of an NI over rings go by another carrier; one over sockets keeps the wish.
    fn change(&self, ni: &mut XdpNi, asked: &NiOptions) -> Option<NiOptions> {
        asked.get(NiOption::Carrier)?;
        let of_shards = ni.carrier.change(asked.carrier()).map(|chosen| {
            tracing::info!(nid = %ni.port.nid, carrier = %chosen, "long messages go as they are told to");
            chosen.of_shards()
        });
        let of_shards = of_shards.map(|carrier| NiOptions::default().with(NiOption::Carrier, carrier as i64));
        Some(of_shards.unwrap_or_default())
    }

    fn close(&mut self, host: &Host, ni: XdpNi, parts: Vec<Part<XdpLnd>>) {
        self.open.retain(|open| open.port.ni != ni.port.ni);
        if ni.mode == XdpMode::Socket {
            drop(parts);
        } else {
            self.close_rings(host, &ni.port, parts, false);
        }
        self.forget_deaf(ni.port.interface_index);
        self.settle();
    }
}

impl Drop for XdpKind {
    fn drop(&mut self) {
        // The programs go with their interfaces, before their logs.
        self.programs.forget();
    }
}
