//! The control plane of a node, whose other modules say what it does.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::pin::Pin;
use std::time::Duration;

use lnet_core::node::DRAIN_TIMEOUT;
use lnet_model::Refusal;
use lnet_model::ni::NiOptions;
use lnet_model::parameter::ParameterValue;
use lnet_model::records::{SelftestAnswer, SelftestRequest};
use lnet_model::request::Change;
use lnet_user::api::Lnet;
use lnet_user::runtime::Worker;
use lnet_wire::steer::{PORTALS, PolicyWord};
use tokio::sync::Mutex;

use super::error::{ControlError, stopped};
use super::loads::Services;
use super::sources::StartUp;

/// How a node is controlled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlOptions {
    /// How long what is under way by an NI that goes may take.
    pub drain: Duration,
    /// Sources that `lnetctl lnet configure --all` carries out.
    pub start_up: StartUp,
    /// Parameters that are set at the start.
    pub parameters: Vec<ParameterValue>,
}

impl Default for ControlOptions {
    fn default() -> Self {
        Self { drain: DRAIN_TIMEOUT, start_up: StartUp::default(), parameters: Vec::new() }
    }
}

/// The defaults of NIs and portals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) options: NiOptions,
    pub(super) policies: [PolicyWord; PORTALS],
}

/// The control plane of one node. It is a [`Handler`](lnet_control::server::Handler).
pub struct Control {
    pub(super) lnet: Lnet,
    pub(super) options: ControlOptions,
    pub(super) services: Services,
    pub(super) is_configured: Cell<bool>,
    pub(super) prefers_ipv6: Cell<bool>,
    /// Batches of changes that the node has been asked to make.
    pub(super) generation: Cell<u64>,
    /// Held while a batch is made: clients and reloads take turns.
    pub(super) changing: Mutex<()>,
    /// Lines that the log has told of the start-up.
    pub(super) told: RefCell<HashSet<String>>,
    /// Changes of the start-up, as they were last carried out.
    pub(super) carried_out: RefCell<Vec<Change>>,
    /// What the node was started with.
    pub(super) defaults: Defaults,
    pub(super) console: Option<Box<dyn SelftestConsole>>,
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
        let defaults = Defaults { options: lnet.with_node(|node| node.config().option_defaults()), policies };
        lnet.open()?;
        Ok(Self {
            lnet: lnet.clone(),
            options,
            services: Services::default(),
            is_configured: Cell::new(lnet.topology().local_nis().count() > 1),
            prefers_ipv6: Cell::new(false),
            generation: Cell::new(0),
            changing: Mutex::new(()),
            told: RefCell::default(),
            carried_out: RefCell::default(),
            defaults,
            console: None,
        })
    }

    /// Has each shard run the same, one after the other; what they return, in their order.
    pub(super) async fn on_shards<T: Send + 'static>(
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
