//! Batches of changes, made whole or not at all.
//!
//! Unconfiguring a node removes its NIs, entries and policies. Its shards go on, since programs may have
//! handles of them. The request is refused (EBUSY) while a program relies on the node (`Lnet::hold`) or a
//! portal has entries.

use lnet_core::node::{self, Request};
use lnet_core::udsp::RuleEdit;
use lnet_model::request::{Change, ChangeSet, Effect};
use lnet_model::{Errno, Refusal};
use lnet_user::FaultEdit;
use lnet_user::node::{LndOptions, NiState, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::Nid;
use lnet_wire::steer::Policy;
use tracing::{info, warn};

use super::control::Control;
use super::error::{ChangeLocation, blocking, refusal, refusal_of, stopped};
use super::plan::ChangePlan;
use super::{links, subnets};

impl Control {
    /// Makes all changes of a batch, or none. One at a time.
    pub(super) async fn apply_batch(&self, batch: ChangeSet) -> Result<Vec<Effect>, Refusal> {
        let ChangeSet { changes, dry_run, generation } = batch;
        let _changing = self.changing.lock().await;
        let now = self.generation.get();
        if generation.is_some_and(|planned| planned != now) {
            let message = "the node has changed since the changes were planned: plan them again";
            return Err(Refusal::new(Errno::STALE, message));
        }
        let applied = match changes.as_slice() {
            [Change::Unconfigure] => self.unconfigure(dry_run).await.map(|outcome| vec![outcome]),
            changes => self.apply_changes(changes, dry_run).await,
        };
        if !dry_run {
            // Counted when all is over, since a plan made meanwhile is from a state between; and where it has
            // failed too.
            self.generation.set(now + 1);
        }
        applied
    }

    async fn apply_changes(&self, changes: &[Change], dry_run: bool) -> Result<Vec<Effect>, Refusal> {
        let plan = self.plan(changes).await?;
        if dry_run {
            let valid = self.lnet.machine().validate(&plan.core);
            valid.map_err(|error| refusal(&error, &plan.locations))?;
            return Ok(plan.outcomes);
        }
        let was_configured = self.is_configured.replace(plan.is_configured);
        if let Err(refused) = self.change_core(plan.core, &plan.locations).await {
            self.is_configured.set(was_configured);
            return Err(refused);
        }
        if let Some(changes) = plan.start_up {
            self.carried_out.replace(changes);
        }
        self.prefers_ipv6.set(plan.prefers_ipv6);
        self.lnet.set_lnd_defaults(plan.lnd);
        let ChangePlan { fault_edits, resets_statistics, options, outcomes, told, .. } = plan;
        for (nid, option, value) in options {
            self.lnet.set_option(&nid, option, value).await.map_err(|error| stopped(&error))?;
        }
        if !fault_edits.is_empty() {
            self.lnet.edit_faults_async(&fault_edits).await.map_err(|error| stopped(&error))?;
        }
        if resets_statistics {
            self.reset_counters().await?;
        }
        told.iter().for_each(|text| warn!("configuration: {text}"));
        Ok(outcomes)
    }

    async fn change_core(
        &self,
        changes: Vec<node::NodeChange<LndOptions>>,
        locations: &[ChangeLocation],
    ) -> Result<(), Refusal> {
        if changes.is_empty() {
            return Ok(());
        }
        let before = self.lnet.nis();
        let batch = Request::Batch { changes, drain_timeout: self.options.drain };
        let changed = self.lnet.request(batch).await;
        let after = self.lnet.nis();
        log_changes(&before, &after);
        if after.iter().any(|ni| !has_ni(&before, ni)) {
            self.subnet_warnings().await?.iter().for_each(|text| warn!("{text}"));
        }
        changed.map(drop).map_err(|error| refusal_of(&error, locations))
    }

    /// Warnings of NIs on one subnet that Linux's settings keep from serving.
    async fn subnet_warnings(&self) -> Result<Vec<String>, Refusal> {
        let nis = self.addressed_nis();
        if nis.len() < 2 {
            return Ok(Vec::new());
        }
        blocking(move || subnets::warnings(&nis)).await
    }

    /// Warnings of NIs whose links do not carry. The node has logged those that were added.
    async fn link_warnings(&self) -> Result<Vec<String>, Refusal> {
        let nis = self.addressed_nis();
        blocking(move || links::warnings(&nis)).await
    }

    /// Warnings of what keeps NIs from serving.
    pub(super) async fn ni_warnings(&self) -> Result<Vec<String>, Refusal> {
        let mut told = self.link_warnings().await?;
        told.extend(self.subnet_warnings().await?);
        Ok(told)
    }

    /// NIs with IP addresses, and their interfaces.
    fn addressed_nis(&self) -> Vec<(Nid, String)> {
        let nis = self.lnet.nis().into_iter().filter(|ni| ni.config.nid.ip().is_some());
        nis.map(|ni| (ni.config.nid, ni.config.interface)).collect()
    }

    /// Takes down nets, peers, rules and policies; global tunables stay.
    async fn unconfigure(&self, dry_run: bool) -> Result<Effect, Refusal> {
        if !self.is_configured.get() {
            return Ok(Effect::Unchanged);
        }
        self.check_unused().await.map_err(|refusal| refusal.of_change(0))?;
        if dry_run {
            return Ok(Effect::Changed);
        }
        self.take_down().await?;
        Ok(Effect::Changed)
    }

    /// Takes down all that goes, whether the node is used or not: it is about to end.
    pub(super) async fn take_down(&self) -> Result<(), Refusal> {
        // Pings that are under way end.
        self.lnet.cancel_requests();
        let changes = self.unconfiguring();
        self.change_core(changes, &[]).await?;
        self.is_configured.set(false);
        let [source, destination] = [Nid::ANY; 2];
        let edits =
            [FaultEdit::DeleteDrops { source, destination }, FaultEdit::DeleteDelays { source, destination }];
        self.lnet.edit_faults_async(&edits).await.map_err(|error| stopped(&error))?;
        self.reset_counters().await?;
        self.lnet.forget_peers();
        Ok(())
    }

    async fn reset_counters(&self) -> Result<(), Refusal> {
        self.lnet.machine().reset_discovery_counters();
        self.on_shards(Worker::reset_counters).await.map(drop)
    }

    /// Nets and selection policies go, and portals get the policies that they had at the start.
    fn unconfiguring(&self) -> Vec<node::NodeChange<LndOptions>> {
        let node = self.lnet.machine();
        let nets = node.nets().into_iter().filter(|record| !record.nis.is_empty());
        let nets = nets.map(|record| node::NodeChange::DeleteNet { net: record.net });
        let policies = node.policies().iter().zip(&self.defaults.policies).zip(0..);
        let policies = policies.filter(|((now, first), _)| now != first).map(|((_, first), portal)| {
            node::NodeChange::SetPolicy { portal, policy: first.unpack().unwrap_or(Policy::Pin(0)) }
        });
        let rules = node::NodeChange::Udsp(RuleEdit::Delete { index: None });
        nets.chain(policies).chain([rules]).collect()
    }

    /// Whether a program relies on the node.
    async fn check_unused(&self) -> Result<(), Refusal> {
        // Loads that have ended by themselves use it no longer.
        self.load_records();
        let services = self.lnet.services();
        if !services.is_empty() {
            let message = format!("in use by {}: stop that first", services.join(", "));
            return Err(Refusal::new(Errno::BUSY, message));
        }
        // Entries of the node's own services, as those of test servers, stay, and serve the node that is
        // configured anew.
        let shards = self.on_shards(|worker| worker.shard().portals_of_programs()).await?;
        let in_use = shards.into_iter().fold(0, |bits, portals| bits | portals);
        if in_use == 0 {
            return Ok(());
        }
        let portals: Vec<_> = (0..u64::BITS)
            .filter(|portal| in_use >> portal & 1 != 0)
            .map(|portal| portal.to_string())
            .collect();
        let message =
            format!("in use by programs with entries on portals {}: end these first", portals.join(", "));
        Err(Refusal::new(Errno::BUSY, message))
    }
}

fn has_ni(list: &[NiState], ni: &NiState) -> bool {
    list.iter().any(|one| one.config.nid == ni.config.nid)
}

/// Says in the log which NIs have gone and which have come.
fn log_changes(before: &[NiState], after: &[NiState]) {
    for ni in before.iter().filter(|ni| !has_ni(after, ni)) {
        info!(nid = %ni.config.nid, interface = ni.config.interface, "NI deleted");
    }
    for ni in after.iter().filter(|ni| !has_ni(before, ni)) {
        let NiState { config, xdp, .. } = ni;
        let mode = xdp.as_ref().map(|xdp| tracing::field::display(xdp.mode));
        // Sockets have no queues.
        let queues = xdp.as_ref().filter(|xdp| xdp.mode != XdpMode::Socket).map(|xdp| xdp.queues);
        let port = xdp.as_ref().map(|xdp| xdp.udp_port);
        info!(nid = %config.nid, interface = config.interface, mode, queues, port, "NI added");
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use lnet_model::records::{SelftestAnswer, SelftestRequest};
    use lnet_user::{Buffer, EntrySpec, Lnet, MdOptions, NodeConfig, Threshold};
    use lnet_wire::selftest::{FRAMEWORK_PORTAL, REPLY_PORTAL, TEST_PORTAL};

    use super::*;
    use crate::control::{ControlOptions, SelftestConsole};

    struct Console;

    impl SelftestConsole for Console {
        fn run(
            &self,
            _: SelftestRequest,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<SelftestAnswer, Refusal>>>> {
            unreachable!("no test runs")
        }
    }

    /// The refusal to unconfigure a node that takes part in tests, with this entry.
    fn unconfigure(entry: Option<EntrySpec>) -> Result<Vec<Effect>, Refusal> {
        let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
        let control = Control::new(&lnet, ControlOptions::default()).unwrap();
        let control = Control { console: Some(Box::new(Console)), ..control };
        control.is_configured.set(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let events = lnet.create_event_queue(256).unwrap();
        let buffer = Buffer::zeroed(16);
        let md = buffer.spec(Threshold::Infinite, MdOptions::PUT, events.handle());
        let _entry = entry.map(|entry| lnet.attach(&entry, &md, buffer).unwrap());
        let changes = vec![Change::Unconfigure];
        runtime.block_on(control.apply_batch(ChangeSet { changes, dry_run: true, generation: None }))
    }

    /// Entries of programs count on whatever portal, and those of the node's own services on none.
    #[test]
    fn a_program_on_a_portal_of_tests_uses_the_node() {
        assert_eq!(unconfigure(None), Ok(vec![Effect::Changed]));
        for portal in [FRAMEWORK_PORTAL, TEST_PORTAL, REPLY_PORTAL, 7] {
            let entry = EntrySpec::new(portal, 1);
            let refusal = unconfigure(Some(entry)).unwrap_err();
            let message = format!("in use by programs with entries on portals {portal}: end these first");
            assert_eq!((refusal.errno, refusal.message), (Errno::BUSY, message));
            assert_eq!(unconfigure(Some(entry.of_node())), Ok(vec![Effect::Changed]));
        }
    }
}
