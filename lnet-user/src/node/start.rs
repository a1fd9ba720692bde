//! The start of a node: its first NIs are asked of the control state machine, as those are that come later.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::vec::IntoIter;

use lnet_core::node::{self, Action, NetOptions, NiSpec, NodeChange, Report, Request};
use lnet_core::time::Instant;
use lnet_core::tunables::NetTunables;
use lnet_io::kind::Host;
use lnet_io::reactor::Chosen;
use lnet_model::lnd::{LNDS, NiOption};
use lnet_model::ni::NiOptions;
use lnet_wire::nid::NetType;
use lnet_xdp::Programs;

use super::shards::make_workers;
use super::{ConfigError, LndDefaults, NiConfig, NodeConfig, NodeDriver, NodeError, NodeView, plan};
use crate::lnd::{KindConfig, Kinds, NiPlan};
use crate::runtime::{Steering, Worker};

/// What an NI is to have from its LND, as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LndOptions {
    /// Options of its LND, and which LND that is.
    pub options: NiOptions,
    /// Shards that serve it, in the order in which they were asked for; none for all.
    pub serving_shards: Vec<u32>,
    /// Whether its address is not the one that the interface's name alone would choose.
    pub is_chosen_by_nid: bool,
}

/// The owner of a node's topology.
pub type Machine = node::Node<LndOptions>;

/// A node that was started, and what is to go on.
pub(crate) struct Started {
    pub(crate) node: NodeDriver,
    pub(crate) workers: Vec<Worker>,
    /// The owner of the topology, with the node's NIs; the shards have its last snapshot.
    pub(crate) machine: Machine,
    /// What others are to hear when they ping.
    pub(crate) answer: Arc<[u8]>,
}

impl NiConfig {
    /// The NI as the state machine is asked for it.
    pub fn spec(&self, defaults: &LndDefaults) -> NiSpec<LndOptions> {
        let asked = net_options(&self.options);
        let options =
            defaults.complete(asked, self.nid, self.options.lnd_on(self.nid.net(), &self.interface));
        let (options_of_lnd, serving_shards) = (self.options, self.serving_shards.clone());
        let lnd = LndOptions { options: options_of_lnd, serving_shards, is_chosen_by_nid: true };
        NiSpec { nid: self.nid, interface: self.interface.clone(), options, lnd }
    }

    /// The NI as the state machine wants it opened.
    pub(crate) fn of(spec: NiSpec<LndOptions>, tunables: NetTunables) -> Self {
        let LndOptions { options, serving_shards, .. } = spec.lnd;
        let options = options
            .with(NiOption::Credits, tunables.credits.into())
            .with(NiOption::PeerCredits, tunables.peer_credits.into());
        Self { nid: spec.nid, interface: spec.interface, options, serving_shards }
    }
}

/// Options of an NI that are its net's.
#[must_use]
pub fn net_options(options: &NiOptions) -> NetOptions {
    NetOptions {
        peer_timeout_s: options.number(NiOption::PeerTimeout),
        peer_credits: options.number(NiOption::PeerCredits),
        peer_buffer_credits: options.number(NiOption::PeerBufferCredits),
        credits: options.number(NiOption::Credits),
        ..NetOptions::default()
    }
}

/// The state machine of a node that has no NI but `lo` yet, and the changes by which it gets those of its
/// configuration, which is found to be possible as far as it says by itself.
pub(super) fn new_machine(
    config: &NodeConfig,
) -> Result<(Machine, Vec<NodeChange<LndOptions>>), ConfigError> {
    let policies = plan::check(config)?;
    let slots = config.limits.nis.saturating_add(1);
    let nets: Vec<_> =
        LNDS.iter().filter_map(|row| row.default_of).filter(|net| *net != NetType::LO).collect();
    let core = node::NodeConfig {
        policies,
        locks_announced: config.lock_prim_nid,
        router_buffers_max: config.router_buffers_max(),
        ..node::NodeConfig::new(config.shards as u8, slots, &nets)
    };
    let machine = Machine::new(core);
    let defaults = config.lnd_defaults();
    let changes: Vec<_> = config.nis.iter().map(|ni| NodeChange::AddNi(ni.spec(&defaults))).collect();
    machine.validate(&changes)?;
    plan::check_nis(config)?;
    Ok((machine, changes))
}

/// Starts a node, whose shards nothing reaches yet.
pub(super) fn start(config: &NodeConfig) -> Result<Started, NodeError> {
    let (mut machine, changes) = new_machine(config)?;
    let policies = *machine.policies();
    let opened = Arc::<AtomicBool>::default();
    let programs = Programs::new(&opened, config.shards, config.xdp.log_refusals);
    let mut kinds = Kinds::new(&KindConfig {
        xdp: &config.xdp,
        sock: config.sock,
        timeout: config.lnd_timeout,
        queues_max: config.queues_max,
        programs: &programs,
    });
    let plans = plan::first(&kinds, config)?;
    let reactor = choose_reactor(config);
    let mut workers = make_workers(config, reactor.reactor, &machine.poll_snapshot().unwrap_or_default())?;
    let wakers: Vec<_> = workers.iter().map(Worker::waker).collect();
    let host = Host {
        nid: config.nis.first().map_or(lnet_wire::Nid::LO, |ni| ni.nid),
        steering: Steering { shard_count: config.shards as u8, policies },
        limits: config.limits,
        wakers: wakers.clone(),
        reactor: reactor.reactor,
        opened: Arc::clone(&opened),
        interface_changes: Arc::default(),
    };
    kinds.expect(&host, &plans);
    let mut node = NodeDriver {
        kinds,
        host,
        view: NodeView::new(wakers, config.limits, opened, programs, reactor),
        config: NodeConfig { nis: Vec::new(), ..config.clone() },
    };
    // Its only deadline is that of a drain.
    machine.handle_request(Instant(0), Request::batch(changes)).map_err(ConfigError::from)?;
    let answer = open_first(&mut node, &mut machine, &mut workers, plans.into_iter())?;
    Ok(Started { node, workers, machine, answer })
}

/// The reactor of a node, which the log tells.
fn choose_reactor(config: &NodeConfig) -> Chosen {
    let chosen = config.reactor.choose();
    let reactor = chosen.reactor;
    match &chosen.refusal {
        Some(why) => tracing::warn!("reactor {reactor}, since {why}"),
        None => tracing::info!("reactor {reactor}"),
    }
    chosen
}

/// Opens what the state machine wants opened, on shards that run nowhere yet; its answer to pings.
fn open_first(
    node: &mut NodeDriver,
    machine: &mut Machine,
    workers: &mut [Worker],
    mut plans: IntoIter<NiPlan>,
) -> Result<Arc<[u8]>, NodeError> {
    let (now, mut answer) = (Instant(0), Arc::default());
    loop {
        let snapshot = machine.poll_snapshot();
        if let Some(snapshot) = &snapshot {
            for worker in &mut *workers {
                worker.update(Arc::clone(snapshot));
                machine.handle_report(now, Report::Confirmed(worker.confirmation()));
            }
        }
        match machine.poll_action() {
            Some(Action::Open { ni, spec, tunables }) => {
                // NIs come in the order in which they were planned.
                let Some(plan) = plans.next() else { return Err(NodeError::NoNi(ni.0)) };
                let parts = node.open_planned(ni, NiConfig::of(spec, tunables), plan)?;
                for (worker, part) in workers.iter_mut().zip(parts) {
                    worker.add_port(part).map_err(|(error, _)| error)?;
                }
                machine.handle_report(now, Report::Opened { ni, result: Ok(()) });
            }
            Some(Action::Publish(newer)) => answer = newer,
            Some(Action::Done { result, .. }) => drop(result.map_err(ConfigError::from)?),
            // Nothing else is asked for, and nothing goes.
            Some(_) => {}
            None if snapshot.is_some() => {}
            None => return Ok(answer),
        }
    }
}
