//! What a batch comes to: changes for the core, and those that the core does not know.

use std::time::Duration;

use lnet_core::fault::DelayRule;
use lnet_core::node::{self, PeerEdit};
use lnet_core::udsp::RuleEdit;
use lnet_model::fault::DelaySpec;
use lnet_model::lnd::{NiOption, OptionError, nets_of_lnds};
use lnet_model::ni::{NiName, NiOptions, NiSpec};
use lnet_model::pool::PoolKind;
use lnet_model::records::RoutingState;
use lnet_model::request::{Change, Effect, Staying};
use lnet_model::steering::PortalPolicy;
use lnet_model::{Errno, Refusal};
use lnet_user::node::{LndDefaults, LndOptions, net_options};
use lnet_user::{FaultEdit, FaultError, FaultRules};
use lnet_wire::{Global, Net, Nid};

use super::control::Control;
use super::error::{ChangeLocation, blocking};
use super::interfaces;
use super::records::net_tunables;

/// Refusals that are told beside the first one.
const FURTHER_MAX: usize = 100;

/// What a batch comes to.
#[derive(Debug)]
pub(super) struct ChangePlan {
    pub(super) core: Vec<node::NodeChange<LndOptions>>,
    /// Where each change for the core comes from.
    pub(super) locations: Vec<ChangeLocation>,
    /// Where the start-up document says what is being planned.
    pub(super) in_document: Option<String>,
    /// The drop rules afterwards, and the way to them.
    rules: FaultRules,
    pub(super) fault_edits: Vec<FaultEdit>,
    pub(super) resets_statistics: bool,
    /// Options of NIs that are there.
    pub(super) options: Vec<(Nid, NiOption, i64)>,
    /// What NIs have that are added afterwards.
    pub(super) lnd: LndDefaults,
    /// Changes that the start-up asks for, where it is carried out.
    pub(super) start_up: Option<Vec<Change>>,
    /// Whether the node is configured afterwards.
    pub(super) is_configured: bool,
    pub(super) prefers_ipv6: bool,
    /// Outcomes, by the positions of the changes in the batch.
    pub(super) outcomes: Vec<Effect>,
    /// What the log is to tell of parts that are not made.
    pub(super) told: Vec<String>,
}

impl ChangePlan {
    /// Whether it has changes of routing.
    fn changes_routing(&self) -> bool {
        self.core.iter().any(|change| matches!(change, node::NodeChange::SetRouting { .. }))
    }

    /// Whether it changes the size of a pool.
    fn changes_pool(&self, wanted: PoolKind) -> bool {
        let is_it = |change| matches!(change, &node::NodeChange::SetPool { pool, .. } if pool == wanted);
        self.core.iter().any(is_it)
    }
}

impl Control {
    /// Finds out what a batch comes to, without changing anything.
    pub(super) async fn plan(&self, changes: &[Change]) -> Result<ChangePlan, Refusal> {
        let mut plan = ChangePlan {
            core: Vec::new(),
            locations: Vec::new(),
            in_document: None,
            rules: self.lnet.fault_rules(),
            fault_edits: Vec::new(),
            resets_statistics: false,
            options: Vec::new(),
            lnd: self.lnet.lnd_defaults(),
            start_up: None,
            is_configured: self.is_configured.get(),
            prefers_ipv6: self.prefers_ipv6.get(),
            outcomes: vec![Effect::Unchanged; changes.len()],
            told: Vec::new(),
        };
        let mut refused: Option<Refusal> = None;
        for (position, change) in changes.iter().enumerate() {
            // Behind a refusal only NIs are looked at: of all interfaces that are missing is told at once.
            if refused.is_some() && !matches!(change, Change::AddNi(_)) {
                continue;
            }
            match self.plan_change(&mut plan, position, change).await {
                Ok(outcome) => plan.outcomes[position] = outcome,
                Err(refusal) => {
                    let refusal = refusal.of_change(position);
                    match &mut refused {
                        None => refused = Some(refusal),
                        Some(first) => first.further.push(refusal),
                    }
                }
            }
            if refused.as_ref().is_some_and(|first| !plan.is_configured || first.further.len() >= FURTHER_MAX)
            {
                break;
            }
        }
        match refused {
            None => Ok(plan),
            Some(refusal) => Err(refusal),
        }
    }

    async fn plan_change(
        &self,
        plan: &mut ChangePlan,
        position: usize,
        change: &Change,
    ) -> Result<Effect, Refusal> {
        if let Change::Configure { all, large } = *change {
            if plan.is_configured {
                return Ok(Effect::Unchanged);
            }
            (plan.is_configured, plan.prefers_ipv6) = (true, large);
            if !all || self.options.start_up.is_empty() {
                return Ok(Effect::Changed);
            }
            return self.plan_start_up(plan, position).await.map(Effect::leaving);
        }
        let outcome = self.plan_one(plan, position, change).await?;
        plan.told.extend(outcome.staying().iter().map(ToString::to_string));
        Ok(outcome)
    }

    /// Plans a change other than to configure the node.
    pub(super) async fn plan_one(
        &self,
        plan: &mut ChangePlan,
        position: usize,
        change: &Change,
    ) -> Result<Effect, Refusal> {
        if !plan.is_configured && !matches!(change, Change::SetGlobal { .. } | Change::SetParameter { .. }) {
            // LNet's numbers: one for `net add`, another for all else.
            let errno = if matches!(change, Change::AddNi(_)) { Errno::SHUTDOWN } else { Errno::NETDOWN };
            return Err(not_configured(errno));
        }
        let mut outcome = Effect::Changed;
        let core = match change {
            Change::Configure { .. } | Change::Unconfigure => {
                let message = "the node is unconfigured by a request of its own, not together with changes";
                return Err(Refusal::new(Errno::INVAL, message));
            }
            Change::AddNi(spec) => {
                let added = self.plan_ni(plan, spec).await?;
                outcome = Effect::leaving(self.staying_tunables(plan, &added));
                node::NodeChange::AddNi(added)
            }
            Change::DeleteNi(NiName::Nid(nid)) => node::NodeChange::DeleteNi { nid: *nid },
            Change::DeleteNi(NiName::Interface { net, interface }) => {
                node::NodeChange::DeleteInterface { net: *net, interface: interface.clone() }
            }
            Change::DeleteNet(net) => node::NodeChange::DeleteNet { net: *net },
            Change::SetHealth { nid, value } => node::NodeChange::SetHealth { nid: *nid, value: *value },
            Change::SetGlobal { global, value } => {
                let Some(change) = self.plan_global(*global, *value)? else { return Ok(Effect::Unchanged) };
                change
            }
            &Change::SetParameter { parameter, value } => {
                if self.lnet.machine().settings().parameter(parameter) == value {
                    return Ok(Effect::Unchanged);
                }
                node::NodeChange::SetParameter { parameter, value }
            }
            Change::SetSteering(policy) => {
                let Some(change) = self.plan_steering(policy)? else { return Ok(Effect::Unchanged) };
                change
            }
            Change::SetOption { nid, option, value } => {
                if !option.row().is_changeable || !option.row().values.takes(*value) {
                    let message = format!("{option} {value}: it cannot be set while an NI is there");
                    return Err(Refusal::new(Errno::INVAL, message));
                }
                let nids = having(&self.nis_after(plan), *nid, *option)?;
                plan.options.extend(nids.into_iter().map(|nid| (nid, *option, *value)));
                return Ok(Effect::Changed);
            }
            Change::SetLndTimeout { net, timeout_s } => {
                return self.plan_timeout(plan, position, *net, *timeout_s);
            }
            Change::ResetStatistics => {
                plan.resets_statistics = true;
                return Ok(Effect::Changed);
            }
            Change::AddDropRule(_)
            | Change::DeleteDropRules { .. }
            | Change::DeleteAllDropRules
            | Change::ResetDropRules
            | Change::AddDelayRule(_)
            | Change::DeleteDelayRules { .. }
            | Change::DeleteAllDelayRules
            | Change::ResetDelayRules => return plan_rules(plan, change),
            Change::AddPeer(spec) => {
                outcome = self.outcome_of_peer(spec);
                node::NodeChange::Peer(PeerEdit::Add(spec.clone()))
            }
            Change::DeletePeer { primary_nid, nids, force } => {
                let (primary, nids, is_forced) = (*primary_nid, nids.clone(), *force);
                node::NodeChange::Peer(PeerEdit::Delete { primary, nids, is_forced })
            }
            Change::AddRoute(spec) => node::NodeChange::AddRoute(*spec),
            Change::DeleteRoute { net, gateway } => {
                node::NodeChange::DeleteRoute { net: *net, gateway: *gateway }
            }
            &Change::SetRouting { on } => {
                if !plan.changes_routing() && self.routing_state().is_to_be_on() == on {
                    return Ok(Effect::Unchanged);
                }
                node::NodeChange::SetRouting { on }
            }
            &Change::SetPool { pool, buffer_count } => {
                let is_so = match self.routing_state() {
                    // Sizes are forgotten while routing is off, as LNet does it.
                    RoutingState::Off => true,
                    RoutingState::Stopping => false,
                    RoutingState::Starting | RoutingState::On => {
                        buffer_count != 0
                            && self.lnet.machine().router_buffers()[pool as usize] == buffer_count
                    }
                };
                if is_so && !plan.changes_routing() && !plan.changes_pool(pool) {
                    return Ok(Effect::Unchanged);
                }
                node::NodeChange::SetPool { pool, buffer_count }
            }
            Change::SetPeerHealth { nid, value } => {
                node::NodeChange::Peer(PeerEdit::SetHealth { nid: *nid, value: *value })
            }
            Change::SetPeerState { nid, state } => {
                node::NodeChange::Peer(PeerEdit::SetState { nid: *nid, state: *state })
            }
            Change::AddUdsp { index, rule } => {
                node::NodeChange::Udsp(RuleEdit::Add { index: *index, rule: rule.clone() })
            }
            Change::AddSelection(selection) => {
                node::NodeChange::Udsp(RuleEdit::AddSelection(selection.clone()))
            }
            Change::DeleteSelection { id, like } => {
                node::NodeChange::Udsp(RuleEdit::DeleteSelection { id: *id, like: like.clone() })
            }
            Change::DeleteUdsp { index } => node::NodeChange::Udsp(RuleEdit::Delete { index: *index }),
        };
        plan.core.push(core);
        plan.locations.push(ChangeLocation { position, in_document: plan.in_document.clone() });
        Ok(outcome)
    }

    async fn plan_ni(&self, plan: &ChangePlan, spec: &NiSpec) -> Result<node::NiSpec<LndOptions>, Refusal> {
        let NiSpec { net, options, cpts, .. } = spec;
        let wrong = |error: OptionError| Refusal::new(Errno::INVAL, error.to_string());
        options.check(*net, None).map_err(wrong)?;
        let serving_shards = self.serving_shards(cpts)?;
        let (asked, prefers_ipv6) = (spec.clone(), plan.prefers_ipv6);
        let location = blocking(move || interfaces::find(&asked, prefers_ipv6)).await??;
        // 0 takes the interface as it is, whatever the node says of queues.
        let queues = options.get(NiOption::Queues).filter(|queues| *queues > 0);
        let mut options = *options;
        options.set(NiOption::Queues, queues);
        let lnd = options.lnd_of(location.nid.net());
        Ok(node::NiSpec {
            nid: location.nid,
            interface: location.interface,
            options: plan.lnd.complete(net_options(&options), location.nid, lnd),
            lnd: LndOptions { options, serving_shards, is_chosen_by_nid: location.is_chosen_by_nid },
        })
    }

    /// Tunables that an NI is asked to have otherwise than its net has them.
    fn staying_tunables(&self, plan: &ChangePlan, added: &node::NiSpec<LndOptions>) -> Vec<Staying> {
        let net = added.nid.net();
        let specs = self.nis_after(plan);
        let Some(first) = specs.iter().find(|spec| spec.nid.net() == net) else { return Vec::new() };
        // Values are compared as the net would have them: LNet lowers some.
        let [alone, fixed] = [added, first].map(|spec| net_tunables(&spec.options.tunables()));
        let staying = added.lnd.options.entries().filter_map(|(row, _)| {
            let option = row.option;
            let (asked, has) = (alone.get(option)?, fixed.get(option)?);
            (asked != has).then_some(Staying::Tunable { net, option, asked, has })
        });
        staying.collect()
    }

    /// The NIs of the node once it has what is planned so far, those that are there with the tunables of
    /// their nets.
    fn nis_after(&self, plan: &ChangePlan) -> Vec<node::NiSpec<LndOptions>> {
        let machine = self.lnet.machine();
        let known = machine.nets().into_iter().flat_map(|net| net.nis).map(|ni| node::NiSpec {
            options: node::NetOptions { new_net: ni.tunables, ..node::NetOptions::default() },
            ..ni.spec.clone()
        });
        nis_after(known.collect(), &plan.core)
    }

    /// The shards that are to serve an NI, each once; none where all are named.
    fn serving_shards(&self, cpts: &[u32]) -> Result<Vec<u32>, Refusal> {
        let count = self.lnet.shard_count();
        if let Some(cpt) = cpts.iter().find(|cpt| **cpt as usize >= count) {
            let message =
                format!("invalid CPT value {cpt}: this node has the CPTs (shards) 0 to {}", count - 1);
            return Err(Refusal::new(Errno::RANGE, message));
        }
        let mut shards = Vec::new();
        for cpt in cpts {
            if !shards.contains(cpt) {
                shards.push(*cpt);
            }
        }
        Ok(if shards.len() == count { Vec::new() } else { shards })
    }

    fn plan_global(
        &self,
        global: Global,
        value: u32,
    ) -> Result<Option<node::NodeChange<LndOptions>>, Refusal> {
        if global == Global::LndTimeout {
            let message = format!("{global} follows from transaction_timeout and retry_count: set these");
            return Err(Refusal::new(Errno::INVAL, message));
        }
        let is_so = self.lnet.machine().settings().get(global) == value;
        Ok((!is_so).then_some(node::NodeChange::Set { setting: global, value: value.into() }))
    }

    fn plan_steering(&self, wanted: &PortalPolicy) -> Result<Option<node::NodeChange<LndOptions>>, Refusal> {
        let PortalPolicy { portal, policy } = wanted;
        wanted.check()?;
        let policy = policy.to_wire()?;
        let word = policy.pack().ok();
        let is_so = self.lnet.machine().policies().get(usize::from(*portal)).copied() == word;
        Ok((!is_so).then_some(node::NodeChange::SetPolicy { portal: (*portal).into(), policy }))
    }

    /// The LND of a net's type gets another timeout: its NIs, those of the batch among them, and those that
    /// are added later.
    fn plan_timeout(
        &self,
        plan: &mut ChangePlan,
        position: usize,
        net: Net,
        timeout_s: u32,
    ) -> Result<Effect, Refusal> {
        let lnd_of = |net, options: &NiOptions| options.lnd_of(net).and_then(|row| row.asked);
        let Some(lnd) = lnd_of(net, &NiOptions::default()) else {
            let message = format!(
                "{net}: a net of a type whose LND has a timeout is expected: {}",
                nets_of_lnds().join(", ")
            );
            return Err(Refusal::new(Errno::NOMSG, message));
        };
        let timeout = Duration::from_secs(timeout_s.into());
        let is_so = plan.lnd.timeout(lnd) == timeout;
        plan.lnd = plan.lnd.with_timeout(lnd, timeout);
        let specs = self.nis_after(plan);
        for spec in specs.iter().filter(|spec| lnd_of(spec.nid.net(), &spec.lnd.options) == Some(lnd)) {
            plan.core.push(node::NodeChange::SetLndTimeout { nid: spec.nid, timeout });
            plan.locations.push(ChangeLocation { position, in_document: plan.in_document.clone() });
        }
        Ok(if is_so { Effect::Unchanged } else { Effect::Changed })
    }
}

pub(super) fn not_configured(errno: Errno) -> Refusal {
    Refusal::new(errno, "LNet is not configured on this node: lnetctl lnet configure")
}

/// The NIs that there are after these changes, of those before.
fn nis_after(
    mut specs: Vec<node::NiSpec<LndOptions>>,
    changes: &[node::NodeChange<LndOptions>],
) -> Vec<node::NiSpec<LndOptions>> {
    for change in changes {
        match change {
            node::NodeChange::AddNi(spec) => specs.push(spec.clone()),
            node::NodeChange::DeleteNi { nid } => specs.retain(|spec| spec.nid != *nid),
            node::NodeChange::DeleteInterface { net, interface } => {
                specs.retain(|spec| spec.nid.net() != *net || spec.interface != *interface);
            }
            node::NodeChange::DeleteNet { net } => specs.retain(|spec| spec.nid.net() != *net),
            _ => {}
        }
    }
    specs
}

/// The NIs that have an option of an LND, of those that are meant by a NID or its absence.
fn having(nis: &[node::NiSpec<LndOptions>], nid: Option<Nid>, option: NiOption) -> Result<Vec<Nid>, Refusal> {
    if let Some(nid) = nid.filter(|nid| !nid.is_loopback() && nis.iter().all(|ni| ni.nid != *nid)) {
        return Err(Refusal::new(Errno::NOENT, format!("{nid} is not a local nid that can be set")));
    }
    let has_it = |spec: &&node::NiSpec<LndOptions>| {
        let lnd = spec.lnd.options.lnd_on(spec.nid.net(), &spec.interface);
        lnd.is_some_and(|lnd| lnd.options.contains(&option))
    };
    let nis = nis.iter().filter(|ni| nid.is_none_or(|nid| ni.nid == nid));
    let nids: Vec<_> = nis.filter(has_it).map(|ni| ni.nid).collect();
    if nids.is_empty() { Err(not_theirs(nid, option)) } else { Ok(nids) }
}

fn plan_rules(plan: &mut ChangePlan, change: &Change) -> Result<Effect, Refusal> {
    let edit = match change {
        Change::AddDropRule(rule) => FaultEdit::AddDrop(rule.clone()),
        &Change::DeleteDropRules { source, destination } => FaultEdit::DeleteDrops { source, destination },
        Change::DeleteAllDropRules => FaultEdit::DeleteDrops { source: Nid::ANY, destination: Nid::ANY },
        Change::AddDelayRule(spec) => {
            spec.check()?;
            let &DelaySpec { filter, rate, interval_s, latency_s } = spec;
            let [interval, latency] =
                [interval_s, latency_s].map(|seconds| Duration::from_secs(seconds.into()));
            FaultEdit::AddDelay(DelayRule { filter, rate, interval, latency })
        }
        &Change::DeleteDelayRules { source, destination } => FaultEdit::DeleteDelays { source, destination },
        Change::DeleteAllDelayRules => FaultEdit::DeleteDelays { source: Nid::ANY, destination: Nid::ANY },
        Change::ResetDelayRules => FaultEdit::ResetDelays,
        _ => FaultEdit::ResetDrops,
    };
    let count = plan.rules.apply(&edit).map_err(|error| match error {
        FaultError::Rule(refusal) => refusal,
        error => Refusal::new(Errno::NOMEM, error.to_string()),
    })?;
    match change {
        Change::DeleteDropRules { source, destination }
        | Change::DeleteDelayRules { source, destination }
            if count == 0 =>
        {
            let kind = if matches!(edit, FaultEdit::DeleteDrops { .. }) { "drop" } else { "delay" };
            let message = format!("no {kind} rule with source {source} and destination {destination}");
            Err(Refusal::new(Errno::NOENT, message))
        }
        _ if count == 0 => Ok(Effect::Unchanged),
        _ => {
            plan.fault_edits.push(edit);
            Ok(Effect::Changed)
        }
    }
}

fn not_theirs(nid: Option<Nid>, option: NiOption) -> Refusal {
    let whose = nid.map_or_else(|| "the NIs of this node".to_owned(), |nid| nid.to_string());
    let owner = option.owner_name();
    Refusal::new(Errno::OPNOTSUPP, format!("{option} is of the LND {owner}: {whose} have another one"))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::control::ControlOptions;
    use lnet_model::request::ChangeSet;
    use lnet_user::{Lnet, NodeConfig};
    use lnet_wire::NetType;

    /// The NIDs whose timeout a batch changes that deletes some NIs and then sets that of the LND.
    #[track_caller]
    fn check(deletions: &[Change], expected: &[Nid]) {
        let ni = |nid: Nid| lnet_user::NiConfig::new(nid, &format!("in-process:timeout-{nid}"));
        let lnet = Lnet::start(&NodeConfig::new(nids().map(ni).to_vec())).unwrap();
        let control = Control::new(&lnet, ControlOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let net = Net::new(NetType::XDP, 0);
        let changes = [deletions, &[Change::SetLndTimeout { net, timeout_s: 7 }]].concat();
        let plan = runtime.block_on(control.plan(&changes)).unwrap();
        let timeouts = plan.core.iter().filter_map(|change| match change {
            node::NodeChange::SetLndTimeout { nid, .. } => Some(*nid),
            _ => None,
        });
        assert_eq!(timeouts.collect::<Vec<_>>(), expected);
    }

    /// Two on one net, one on another.
    fn nids() -> [Nid; 3] {
        [(0, 1), (0, 2), (1, 3)].map(|(number, host)| {
            Nid::new_ip(Net::new(NetType::XDP, number), [10, 9, 8, host].into()).unwrap()
        })
    }

    /// Sizes of pools are of interest while routing is on or comes to be on.
    #[test]
    fn routing_is_planned() {
        let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
        let control = Control::new(&lnet, ControlOptions::default()).unwrap();
        control.is_configured.set(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = |changes: &[Change]| runtime.block_on(control.plan(changes)).unwrap().outcomes;
        let [on, off] = [true, false].map(|on| Change::SetRouting { on });
        let pool = Change::SetPool { pool: PoolKind::Large, buffer_count: 64 };
        assert_eq!(outcome(&[off.clone(), pool.clone()]), [Effect::Unchanged, Effect::Unchanged]);
        assert_eq!(outcome(&[on.clone(), pool, off]), [Effect::Changed, Effect::Changed, Effect::Changed]);
        let set = |(pool, buffer_count): (PoolKind, u32)| Change::SetPool { pool, buffer_count };
        let (tiny, small, large) = ((PoolKind::Tiny, 16), (PoolKind::Small, 32), (PoolKind::Large, 8));
        let changes = [vec![on], [tiny, small, large].map(set).to_vec()].concat();
        let batch = ChangeSet { changes, dry_run: false, generation: None };
        runtime.block_on(control.apply_batch(batch)).unwrap();
        let sizes = |sizes: &[(PoolKind, u32)]| outcome(&sizes.iter().copied().map(set).collect::<Vec<_>>());
        assert_eq!(sizes(&[small, large]), [Effect::Unchanged, Effect::Unchanged]);
        // Sizes that the batch has set before count, and not those that are there.
        let other = (PoolKind::Large, 64);
        assert_eq!(sizes(&[other, small, large]), [Effect::Changed, Effect::Unchanged, Effect::Changed]);
    }

    #[test]
    fn an_ni_that_the_batch_deletes_gets_no_timeout() {
        let [a, b, c] = nids();
        check(&[], &[a, b, c]);
        check(&[Change::DeleteNi(NiName::Nid(a))], &[b, c]);
        check(&[Change::DeleteNet(a.net())], &[c]);
        let (net, interface) = (b.net(), format!("in-process:timeout-{b}"));
        check(&[Change::DeleteNi(NiName::Interface { net, interface }), Change::DeleteNet(c.net())], &[a]);
    }

    #[test]
    fn connections_are_set_of_what_the_batch_adds_and_not_of_what_it_deletes() {
        let [xdp, ..] = nids();
        let tcp = Nid::new_ip(Net::new(NetType::TCP, 0), [10, 9, 8, 7].into()).unwrap();
        let spec = |nid| {
            lnet_user::NiConfig::new(nid, &format!("eth-{nid}")).spec(&NodeConfig::loopback().lnd_defaults())
        };
        let add = node::NodeChange::AddNi(spec(tcp));
        let delete = node::NodeChange::DeleteNet { net: tcp.net() };
        let check = |changes: &[node::NodeChange<LndOptions>], named, expected| {
            let nis = nis_after(vec![spec(xdp)], changes);
            assert_eq!(
                having(&nis, named, NiOption::ConnsPerPeer).map_err(|refusal| refusal.errno),
                expected,
                "{named:?}"
            );
        };
        for named in [None, Some(tcp)] {
            check(std::slice::from_ref(&add), named, Ok(vec![tcp]));
        }
        check(&[], None, Err(Errno::OPNOTSUPP));
        check(&[], Some(tcp), Err(Errno::NOENT));
        check(std::slice::from_ref(&add), Some(xdp), Err(Errno::OPNOTSUPP));
        check(&[add, delete], Some(tcp), Err(Errno::NOENT));
    }
}
