//! A node: its NIs, its drivers, its shards. Each node also has the NI `lo` ([`LO`]), by which it reaches
//! itself.
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
mod numa;
mod plan;
mod setters;
mod shards;
mod start;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::topology::Reach;
use lnet_io::kind::Host;
use lnet_io::locks::Mutex;
use lnet_io::memory::Buffer;
use lnet_io::xsk::Census;
use lnet_model::lnd::{LndRow, NiFact};
use lnet_model::ni::NiOptions;
use lnet_wire::Nid;
use lnet_wire::steer::{Policy, PolicyWord};
use lnet_xdp::bpf::{BpfError, XdpProgram};
use lnet_xdp::{XdpFrames, XdpNiState};

pub use config::{DAEMON_LIMITS, LO, LndDefaults, NiConfig, NodeConfig, PEER_BYTES};
pub use error::{ConfigError, NodeError};
pub use link::DownReason;
pub(crate) use link::is_back;
pub use lnet_io::reactor::{Chosen, Reactor, ReactorChoice};
pub use lnet_io::xsk::{CHUNK_BYTES, RingSizes};
pub use lnet_model::lnd::{Carrier, Switch, ZeroCopy};
pub use lnet_model::ni::XdpMode;
pub use lnet_xdp::{DEFAULT_PORT, SendFault, XdpConfig, XdpError};
pub(crate) use numa::Numa;
pub(crate) use setters::setters;
pub(crate) use start::Started;
pub use start::{LndOptions, Machine, net_options};
pub(crate) use view::NodeView;

use crate::lnd::{Kinds, NiPlan, OpenLnd, ShardPort};
pub use crate::lnd::{LndError, NidInUse};
use crate::runtime::{Steering, Worker};
use shards::shard_limits;

/// An NI of a running node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NiState {
    /// Its number.
    pub ni: NiId,
    /// What it was opened with, and the present name of its interface.
    pub config: NiConfig,
    /// What it has of an interface; `None` if it is an in-process one.
    pub xdp: Option<XdpNiState>,
    /// Options of its LND that it has chosen itself or that were changed.
    pub options: NiOptions,
    /// Facts that its LND tells of it, in the order of the LND's row.
    pub facts: Vec<Option<NiFact>>,
    /// Why it cannot carry messages; `None` if it can.
    pub down: Option<DownReason>,
    /// Addresses that its interface has routes to; `None` while they are not known.
    pub reach: Option<Arc<Reach>>,
}

impl NiState {
    /// The LND that drives it.
    pub fn lnd(&self) -> Option<&'static LndRow> {
        self.config.options.lnd_on(self.config.nid.net(), &self.config.interface)
    }

    /// The fact of this key that its LND tells.
    pub fn fact(&self, key: &str) -> Option<&NiFact> {
        let row = self.lnd()?.facts.iter().position(|row| row.key == key)?;
        self.facts.get(row)?.as_ref()
    }
}

/// A running node.
#[derive(Debug)]
pub struct NodeDriver {
    /// The LNDs that it opens NIs by.
    kinds: Kinds,
    /// The node as its LNDs know it.
    host: Host,
    /// Its NIs, and what else threads see of it.
    view: Arc<NodeView>,
    /// The configuration without its NIs.
    config: NodeConfig,
}

/// An NI that is open.
#[derive(Debug)]
struct OpenNi {
    config: NiConfig,
    lnd: OpenLnd,
}

impl OpenNi {
    /// Its state, if its LND is xdp.
    fn xdp(&self) -> Option<XdpNiState> {
        if let OpenLnd::Xdp(open) = &self.lnd { Some(open.state()) } else { None }
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
        if ni == LO || ni.0 > self.config.limits.nis || self.view.open_nis().contains_key(&ni.0) {
            return Err(NodeError::NiTaken(ni.0));
        }
        let default_port = self.config.xdp.udp_port;
        plan::check_address(config, self.view.open_nis().values().map(|open| &open.config), default_port)?;
        let plan = plan::plan(&self.kinds, ni, config, self.config.shards)?;
        let former = self.host.nid;
        if self.view.open_nis().is_empty() {
            self.host.nid = config.nid;
        }
        self.open_planned(ni, config.clone(), plan).inspect_err(|_| self.host.nid = former)
    }

    fn open_planned(
        &mut self,
        ni: NiId,
        config: NiConfig,
        plan: NiPlan,
    ) -> Result<Vec<ShardPort>, NodeError> {
        let request = plan::request(ni, &config, self.config.shards)?;
        let (lnd, parts) = self.kinds.open(&self.host, &request, plan)?;
        self.view.open_nis().insert(ni.0, OpenNi { config, lnd });
        Ok(parts)
    }

    /// Changes options of an open NI, those that can be changed; its number, and what its shards are to be
    /// told ([`Worker::change_options`]). `None` if there is no such NI, or nothing to change.
    pub(crate) fn change_options(&mut self, nid: &Nid, asked: &NiOptions) -> Option<(NiId, NiOptions)> {
        let mut nis = self.view.open_nis();
        let (number, open) = nis.iter_mut().find(|(_, open)| open.config.nid == *nid)?;
        let changed = self.kinds.change(&mut open.lnd, asked)?;
        for (row, value) in asked.entries() {
            open.config.options.set(row.option, Some(value));
        }
        Some((NiId(*number), changed))
    }

    /// Follows what has changed about the interface of an NI: what the shards are to take in
    /// ([`Worker::extend_port`]).
    pub(crate) fn follow_ni(&mut self, ni: NiId) -> Vec<ShardPort> {
        self.kinds.follow(&self.host, ni)
    }

    /// The NIs that have the same deaf rings as this one, itself among them; none if its rings are not deaf.
    pub(crate) fn sharers_of_rings(&self, ni: NiId) -> Vec<NiId> {
        let nis = self.view.open_nis();
        let index_of = |open: &OpenNi| Some(open.xdp()?.interface_index).filter(|_| open.lnd.is_deaf());
        let Some(index) = nis.get(&ni.0).and_then(index_of) else { return Vec::new() };
        nis.iter()
            .filter(|(_, open)| index_of(open) == Some(index))
            .map(|(number, _)| NiId(*number))
            .collect()
    }

    /// Has something else carry the frames of NIs whose deaf rings the shards have given up
    /// ([`Worker::suspend_port`]): what the shards get instead ([`Worker::extend_port`]), and the NIDs of
    /// those that nothing carries now.
    pub(crate) fn replace_rings(
        &mut self,
        suspended: Vec<(NiId, Vec<ShardPort>)>,
    ) -> (Vec<(NiId, Vec<ShardPort>)>, Vec<Nid>) {
        let (mut configs, mut given_up) = (Vec::new(), Vec::new());
        for (ni, parts) in suspended {
            let Some(OpenNi { config, lnd }) = self.view.open_nis().remove(&ni.0) else { continue };
            configs.push((ni, config));
            given_up.push((lnd, parts));
        }
        self.kinds.give_up_rings(&self.host, given_up);
        let (mut carried, mut lost) = (Vec::new(), Vec::new());
        for (ni, config) in configs {
            let request = plan::request(ni, &config, self.config.shards);
            let opened = request
                .map_err(NodeError::from)
                .and_then(|request| Ok(self.kinds.open_instead(&self.host, &request)?));
            match opened {
                Ok((lnd, parts)) => {
                    self.view.open_nis().insert(ni.0, OpenNi { config, lnd });
                    carried.push((ni, parts));
                }
                Err(error) => {
                    tracing::error!(nid = %config.nid, %error, "nothing carries an NI whose rings were deaf");
                    lost.push(config.nid);
                }
            }
        }
        (carried, lost)
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
        assert!(parts.iter().all(|part| part.ni() == ni), "a part of another NI");
        match self.view.open_nis().remove(&ni.0) {
            Some(open) => self.kinds.close(&self.host, open.lnd, parts),
            // Nothing could carry it any more.
            None if !parts.is_empty() => {
                drop(parts);
                self.kinds.xdp.settle();
            }
            None => return Err(NodeError::NoNi(ni.0)),
        }
        Ok(())
    }

    /// Steers by another policy of a portal from now on: the XDP programs do so at once, the shards when they
    /// get a snapshot of the topology that has it.
    pub(crate) fn steer(&mut self, portal: u8, word: PolicyWord) -> Result<(), BpfError> {
        let policy = word.unpack().unwrap_or(Policy::Pin(0));
        self.host.steering.policies[usize::from(portal)] = word;
        self.config.policies.retain(|(other, _)| *other != portal);
        self.config.policies.push((portal, policy));
        self.view.programs().steer(portal, policy)
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
        self.host.nid
    }

    /// The NIs but `lo`, in the order of their numbers.
    pub fn nis(&self) -> impl Iterator<Item = NiState> + '_ {
        self.view.nis().into_iter()
    }

    /// What threads see of it.
    pub(crate) fn view(&self) -> &Arc<NodeView> {
        &self.view
    }

    /// How frames reach the shards: [`XdpMode::Socket`] if all NIs have sockets, [`XdpMode::Generic`] if one
    /// has its XDP program in the kernel's network stack. It means nothing where there are no NIs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        let is = |mode| self.view.nis().iter().any(|ni| ni.xdp.as_ref().is_some_and(|xdp| xdp.mode == mode));
        [XdpMode::Generic, XdpMode::Native].into_iter().find(|mode| is(*mode)).unwrap_or(XdpMode::Socket)
    }

    /// Receive queues of all interfaces.
    #[must_use]
    pub fn queues(&self) -> u32 {
        let nis = self.view.nis().into_iter().filter_map(|ni| ni.xdp);
        let interfaces = nis.map(|xdp| (xdp.interface_index, xdp.queues));
        interfaces.collect::<BTreeMap<_, _>>().into_values().sum()
    }

    /// Where entries of each portal are to be posted.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.host.steering
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
    #[must_use]
    pub fn programs(&self) -> Vec<Arc<Mutex<XdpProgram>>> {
        self.view.programs().list()
    }

    /// Who holds the frames of the NIs over rings, while there are any.
    #[must_use]
    pub fn frames(&self) -> Option<Census> {
        self.kinds.xdp.census()
    }

    /// What the XDP programs have counted since the start.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn xdp_frames(&self) -> Result<XdpFrames, NodeError> {
        self.view.xdp_frames()
    }
}
