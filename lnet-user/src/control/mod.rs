//! The control plane of a node: nets, peers, pings, counters and tunables behind a control socket.
//!
//! [`serve`] has everything: it runs until it is told to stop. [`Control`] is the same in parts, for programs with an
//! async runtime of their own. Either manages an [`Lnet`] that was started without NIs; its NIs come and go by requests,
//! so `lnetctl` manages any program that links this crate as it manages `lnetd`.
//!
//! ```text
//!   control socket -> server::Handler -> Control -> lnet_core::node::Node: decides
//!                                           |              | actions, snapshots
//!                                           +---- drive <--+---> Lnet: NIs opened and closed, shards told and asked
//! ```
//!
//! Invariants: one thread has the state machine and never waits for a shard, the kernel or a peer while it has
//! something else to do; all numbers come from the shards, added up; batches are planned as a whole, and what the core
//! does not know (drop rules, counters) is changed after the core has done its part and cannot fail then.

mod apply;
mod driver;
mod error;
mod faults;
mod handler;
mod heard;
mod interfaces;
mod pings;
mod plan;
mod records;
mod serve;
mod services;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use lnet_control::records::{DropRule, Mode};
use lnet_core::node::{self, NodeConfig, PingId, RequestId};
use lnet_wire::NetType;
use lnet_wire::steer::{PORTALS, PolicyWord};
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::api::{Entry, Lnet};
use crate::node::{NiState, XdpMode};
use crate::runtime::Clock;

pub use error::ControlError;
pub use serve::{ServeOptions, serve};

use heard::Heard;

/// GETs of pings that are under way at once; further pings wait.
const PINGS_MAX: usize = 32;

/// What an NI is to have from its LND, as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LndOptions {
    mode: Option<Mode>,
    port: Option<u16>,
    queues: Option<u32>,
    /// Whether its address is not the one that the interface's name alone would choose.
    is_chosen_by_nid: bool,
}

type Node = node::Node<LndOptions>;
type Outcome = Result<node::Outcome, node::RequestError>;

/// How a node is controlled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlOptions {
    /// How long what is under way by an NI that goes may take.
    pub drain: Duration,
    /// The document that `lnetctl lnet configure --all` carries out.
    pub document: Option<PathBuf>,
}

impl Default for ControlOptions {
    fn default() -> Self {
        Self { drain: Duration::from_secs(2), document: None }
    }
}

/// What NIs and portals have that nobody has said otherwise of.
#[derive(Clone, Copy, Debug)]
struct Defaults {
    mode: XdpMode,
    port: u16,
    lnd_timeout_s: u32,
    policies: [PolicyWord; PORTALS],
}

/// The control plane of one node. It is a [`Handler`](lnet_control::server::Handler), and does something only while
/// [`Control::drive`] is polled.
pub struct Control {
    lnet: Lnet,
    options: ControlOptions,
    clock: Clock,
    node: RefCell<Node>,
    /// There is something for the driver to do.
    wake: Notify,
    /// Who waits for the end of a request.
    waiting: RefCell<HashMap<RequestId, oneshot::Sender<Outcome>>>,
    /// Batches under way.
    changing: Cell<usize>,
    /// What is known of open NIs, by slot.
    facts: RefCell<BTreeMap<u16, NiState>>,
    /// GETs of pings.
    gets: RefCell<BTreeMap<PingId, AbortHandle>>,
    get_places: Semaphore,
    /// What others hear when they ping, and the entries by which they find it.
    answer: RefCell<Option<Arc<[u8]>>>,
    entries: RefCell<Vec<Entry>>,
    heard: RefCell<Heard>,
    /// Newest first.
    rules: RefCell<Vec<DropRule>>,
    services: services::Services,
    is_configured: Cell<bool>,
    prefers_ipv6: Cell<bool>,
    /// What the node was started with.
    defaults: Defaults,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("lnet", &self.lnet).finish_non_exhaustive()
    }
}

impl Control {
    /// Takes a node in charge, and lets frames in. It is not configured yet.
    ///
    /// # Errors
    /// [`ControlError::HasNis`] if it was started with NIs; [`ControlError::Lnet`].
    pub fn new(lnet: &Lnet, options: ControlOptions) -> Result<Self, ControlError> {
        let (defaults, slots) = lnet.with_node(|node| {
            let config = node.config();
            let defaults = Defaults {
                mode: config.mode,
                port: config.udp_port,
                lnd_timeout_s: u32::try_from(config.lnd_timeout.as_secs()).unwrap_or(u32::MAX).max(1),
                policies: *node.policies(),
            };
            (defaults, config.limits.interfaces.saturating_add(1))
        });
        if lnet.topology().local_nis().count() > 1 || lnet.topology().generation() > 0 {
            return Err(ControlError::HasNis);
        }
        let shard_count = lnet.shard_count() as u8;
        let config = NodeConfig {
            policies: defaults.policies,
            drain_timeout: options.drain,
            ..NodeConfig::new(shard_count, slots, &[NetType::XDP])
        };
        lnet.open()?;
        Ok(Self {
            lnet: lnet.clone(),
            options,
            clock: Clock::start(),
            node: RefCell::new(Node::new(config)),
            wake: Notify::new(),
            waiting: RefCell::default(),
            changing: Cell::new(0),
            facts: RefCell::default(),
            gets: RefCell::default(),
            get_places: Semaphore::new(PINGS_MAX),
            answer: RefCell::default(),
            entries: RefCell::default(),
            heard: RefCell::default(),
            rules: RefCell::default(),
            services: services::Services::default(),
            is_configured: Cell::new(false),
            prefers_ipv6: Cell::new(false),
            defaults,
        })
    }
}
