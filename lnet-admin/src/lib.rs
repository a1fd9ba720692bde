//! The control plane of a node: nets, peers, pings, counters and tunables behind a control socket.
//!
//! [`serve`] has everything: it runs until it is told to stop. [`Control`] is the same in parts, for programs
//! with an async runtime of their own. Either manages any [`Lnet`]: `lnetctl` manages each program that links
//! this crate as it manages `lnetd`.
//!
//! ```text
//!   control socket -> server::Handler -> Control: batches, records -> Lnet: the node's state machine and shards
//! ```
//!
//! Invariants: nothing here waits for a shard, the kernel or a peer while there is something else to do;
//! all numbers come from the shards, added up; batches are planned as a whole, and what the core
//! does not know (drop rules, counters) is changed after the core has done its part and cannot fail then.

mod apply;
mod choice;
mod error;
mod faults;
mod handler;
mod interfaces;
mod plan;
mod records;
mod serve;
mod services;
mod udsp;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use error::stopped;
use lnet_core::node::DRAIN_TIMEOUT;
use lnet_model::Refusal;
use lnet_model::fault::DropRule;
use lnet_model::records::{SelftestAnswer, SelftestRequest};
use lnet_wire::steer::{PORTALS, PolicyWord};

use lnet_user::api::Lnet;
use lnet_user::node::XdpMode;
use lnet_user::runtime::Worker;

pub use error::ControlError;
pub use serve::{ServeOptions, serve};

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
        Self { drain: DRAIN_TIMEOUT, document: None }
    }
}

/// The defaults of NIs and portals.
#[derive(Clone, Copy, Debug)]
struct Defaults {
    mode: XdpMode,
    port: u16,
    policies: [PolicyWord; PORTALS],
}

/// The control plane of one node. It is a [`Handler`](lnet_control::server::Handler).
pub struct Control {
    lnet: Lnet,
    options: ControlOptions,
    /// Newest first.
    rules: RefCell<Vec<DropRule>>,
    services: services::Services,
    is_configured: Cell<bool>,
    prefers_ipv6: Cell<bool>,
    /// What the node was started with.
    defaults: Defaults,
    console: Option<Box<dyn SelftestConsole>>,
}

/// The console of LNet selftest that a node has, if it takes part in tests.
pub trait SelftestConsole {
    /// Carries out a command.
    fn run(&self, request: SelftestRequest)
    -> Pin<Box<dyn Future<Output = Result<SelftestAnswer, Refusal>>>>;
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("lnet", &self.lnet).finish_non_exhaustive()
    }
}

impl Control {
    /// Takes a node in charge, and lets frames in. It is configured if it has NIs.
    ///
    /// # Errors
    /// [`ControlError::Lnet`].
    pub fn new(lnet: &Lnet, options: ControlOptions) -> Result<Self, ControlError> {
        let policies = *lnet.machine().policies();
        let defaults = lnet.with_node(|node| {
            let config = node.config();
            Defaults { mode: config.mode, port: config.udp_port, policies }
        });
        lnet.open()?;
        Ok(Self {
            lnet: lnet.clone(),
            options,
            rules: RefCell::default(),
            services: services::Services::default(),
            is_configured: Cell::new(lnet.topology().local_nis().count() > 1),
            prefers_ipv6: Cell::new(false),
            defaults,
            console: None,
        })
    }

    /// Has each shard run the same, one after the other; what they return, in their order.
    async fn on_shards<T: Send + 'static>(
        &self,
        run: impl Fn(&mut Worker) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, Refusal> {
        let mut told = Vec::new();
        for shard in self.lnet.shards() {
            told.push(shard.run_async(run.clone()).await.map_err(|error| stopped(&error))?);
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lnet_user::NodeConfig;

    #[test]
    fn control_takes_charge_of_a_node_that_runs() {
        let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
        assert!(Control::new(&lnet, ControlOptions::default()).is_ok());
    }
}
