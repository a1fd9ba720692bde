//! The control plane as its socket's server sees it.

use std::path::Path;
use std::time::Duration;

use lnet_control::LoadSpec;
use lnet_control::server::Handler;
use lnet_core::fault::DelayRule;
use lnet_core::node::{Pinged, RequestError};
use lnet_core::stats;
use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::choice::InterfaceRecord;
use lnet_model::fault::{DelayRuleRecord, DelaySpec, DropRuleRecord, RuleCounters};
use lnet_model::records::{
    ConnectionRecord, CptRecord, ExplainRecord, FramesRecord, Globals, LoadRecord, NetRecord, Parameters,
    PeerPage, PeerQuery, RecoveryRecord, RoutePage, RoutingRecord, SelftestAnswer, SelftestRequest,
    Statistics, UsageRecord,
};
use lnet_model::request::{ChangeSet, Effect, PingRecord};
use lnet_model::route::RouteSpec;
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspRule;
use lnet_model::{Errno, Refusal};
use lnet_user::api::LnetError;
use lnet_user::netlink::{SameHost, is_local};
use lnet_user::node::NiState;
use lnet_wire::{Net, Nid};
use tracing::{info, warn};

use super::control::Control;
use super::error::stopped;
use super::error::{blocking, refusal_of};
use super::interfaces;
use super::plan::not_configured;
use super::records::statistics;
use super::services::capture_refusal;

impl Control {
    fn check_configured(&self) -> Result<(), Refusal> {
        if self.is_configured.get() { Ok(()) } else { Err(not_configured(Errno::NETDOWN)) }
    }

    /// The nets but `lo`.
    fn nets_with_nis(&self) -> Vec<Net> {
        let node = self.lnet.machine();
        node.nets().iter().map(|record| record.net).filter(|net| *net != Net::LO).collect()
    }

    /// What a ping or discovery of a NID has found out.
    async fn ping_record(&self, nid: Nid, pinged: Result<Pinged, LnetError>) -> Result<PingRecord, Refusal> {
        let error = match pinged {
            Ok(Pinged { primary, is_multi_rail, nids, .. }) => {
                let is_own = |nid: &Nid| self.lnet.machine().ni(nid).is_some();
                let is_other = !nid.is_loopback() && !is_own(&nid);
                let shared_nids = nids.iter().filter(|nid| is_other && is_own(nid)).copied().collect();
                let (primary_nid, multi_rail) = (primary, is_multi_rail);
                return Ok(PingRecord { primary_nid, multi_rail, nids, shared_nids });
            }
            Err(error) => error,
        };
        let is_unreachable = matches!(error, LnetError::Refused(RequestError::PingUnreachable(_)));
        if is_unreachable && !self.nets_with_nis().contains(&nid.net()) {
            let nets: Vec<String> = self.nets_with_nis().iter().map(ToString::to_string).collect();
            let nets = if nets.is_empty() { "lo alone".to_owned() } else { nets.join(", ") };
            let message =
                format!("No route to host: no NI here is on {}, there are NIs on {nets}", nid.net());
            return Err(Refusal::new(Errno::HOSTUNREACH, message));
        }
        let refusal = refusal_of(&error, &[]);
        // The reply names the NID already.
        let bare = refusal.message.strip_prefix("failed to ping ").and_then(|rest| rest.split_once(": "));
        let mut message = bare.map(|(_, why)| why.to_owned()).unwrap_or(refusal.message);
        if let Some(address) = nid.ip()
            && is_told_by_network(&error)
            && let Some(port) = self.lnet.peer_port(nid.net())
        {
            message = format!("{message} (it was looked for at {address}, port {port})");
        }
        let nis = self.lnet.nis();
        let on_net = || nis.iter().filter(|ni| ni.config.nid.net() == nid.net());
        let is_family =
            |ni: &NiState| ni.config.nid.ip().map(|ip| ip.is_ipv4()) == nid.ip().map(|ip| ip.is_ipv4());
        if on_net().next().is_some() && !on_net().any(is_family) {
            let family = if nid.ip().is_some_and(|ip| ip.is_ipv4()) { "IPv4" } else { "IPv6" };
            message = format!("{message}: no NI here on {} has an {family} address", nid.net());
        }
        // tcp nodes of one host reach each other.
        let reaches_itself = on_net().filter_map(NiState::lnd).any(|lnd| lnd.reaches_itself);
        if let Some(address) = nid.ip()
            && !reaches_itself
            && blocking(move || is_local(address)).await.is_ok_and(|it| it.unwrap_or(false))
        {
            message = format!("{message}; {}", SameHost(address));
        }
        Err(Refusal { message, ..refusal })
    }
}

/// Whether a ping has failed since nothing answers where the peer was looked for.
fn is_told_by_network(error: &LnetError) -> bool {
    let LnetError::Refused(error @ (RequestError::Ping { .. } | RequestError::PingTimeout { .. })) = error
    else {
        return false;
    };
    let told = [
        Errno::PROTO,
        Errno::NETUNREACH,
        Errno::CONNRESET,
        Errno::TIMEDOUT,
        Errno::CONNREFUSED,
        Errno::HOSTUNREACH,
    ];
    told.iter().any(|errno| i32::from(errno.0) == error.errno())
}

impl Handler for Control {
    async fn generation(&self) -> Result<u64, Refusal> {
        Ok(self.generation.get())
    }

    async fn nets(&self) -> Result<Vec<NetRecord>, Refusal> {
        self.check_configured()?;
        self.net_records().await
    }

    async fn peer_page(&self, query: PeerQuery) -> Result<PeerPage, Refusal> {
        self.check_configured()?;
        self.peer_records(&query).await
    }

    async fn route_page(&self, after: Option<RouteSpec>) -> Result<RoutePage, Refusal> {
        self.check_configured()?;
        Ok(self.routes_behind(after.as_ref()))
    }

    async fn routing(&self) -> Result<RoutingRecord, Refusal> {
        self.check_configured()?;
        self.routing_record().await
    }

    async fn globals(&self) -> Result<Globals, Refusal> {
        self.check_configured()?;
        Ok(self.global_record())
    }

    async fn parameters(&self) -> Result<Parameters, Refusal> {
        Ok(self.parameter_record())
    }

    async fn statistics(&self) -> Result<Statistics, Refusal> {
        self.check_configured()?;
        let mut sum = stats::Statistics::default();
        let mut errors = 0;
        let told = self.on_shards(|worker| (*worker.shard().counters(), worker.shard().usage()));
        for (counters, usage) in told.await? {
            sum.add(&counters, &usage);
            errors += counters.receive_failures;
        }
        let discovery = *self.lnet.machine().discovery_counters();
        Ok(statistics(&sum, errors, &discovery))
    }

    async fn drop_rules(&self) -> Result<Vec<DropRuleRecord>, Refusal> {
        self.check_configured()?;
        self.lnet.drop_rules_async().await.map_err(|error| stopped(&error))
    }

    async fn delay_rules(&self) -> Result<Vec<DelayRuleRecord>, Refusal> {
        self.check_configured()?;
        let rules = self.lnet.delay_rules_async().await.map_err(|error| stopped(&error))?;
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let record = |(rule, counters): (DelayRule, RuleCounters)| DelayRuleRecord {
            rule: DelaySpec {
                filter: rule.filter,
                rate: rule.rate,
                interval_s: seconds(rule.interval),
                latency_s: seconds(rule.latency),
            },
            delayed: counters.fired(),
            counters,
        };
        Ok(rules.into_iter().map(record).collect())
    }

    async fn steering(&self) -> Result<SteeringRecord, Refusal> {
        self.check_configured()?;
        Ok(self.steering_record())
    }

    async fn udsp(&self) -> Result<Vec<UdspRule>, Refusal> {
        self.check_configured()?;
        Ok(self.udsp_records())
    }

    async fn recovery(&self) -> Result<RecoveryRecord, Refusal> {
        self.check_configured()?;
        Ok(self.recovery_record())
    }

    async fn explain(&self, NidText(nid): NidText) -> Result<ExplainRecord, Refusal> {
        self.check_configured()?;
        self.explained(nid).await
    }

    async fn connections(&self) -> Result<Vec<ConnectionRecord>, Refusal> {
        self.check_configured()?;
        self.connection_records().await
    }

    async fn cpts_of(&self, nids: Vec<NidText>) -> Result<Vec<CptRecord>, Refusal> {
        self.check_configured()?;
        self.cpts_of_nids(nids)
    }

    async fn log_peer(&self, NidText(nid): NidText) -> Result<(), Refusal> {
        self.check_configured()?;
        self.logged_peer(&nid)
    }

    async fn log_refusals(&self, on: bool) -> Result<(), Refusal> {
        self.lnet.log_refusals(on).map_err(|error| {
            let hint = "lnetd --log-refusals starts with programs that can";
            Refusal::new(Errno::OPNOTSUPP, format!("{error}: {hint}"))
        })
    }

    async fn apply(&self, batch: ChangeSet) -> Result<Vec<Effect>, Refusal> {
        let dry_run = batch.dry_run;
        let applied = self.apply_batch(batch).await;
        match &applied {
            _ if dry_run => {}
            Ok(outcomes) => {
                let changed = outcomes.iter().filter(|outcome| **outcome != Effect::Unchanged).count();
                info!(changes = outcomes.len(), changed, "configuration: done");
            }
            Err(refusal) => {
                warn!(%refusal, errno = %refusal.errno, "configuration: refused, nothing has changed")
            }
        }
        applied
    }

    async fn ping(&self, nid: Nid, source: Option<Nid>, timeout: Duration) -> Result<PingRecord, Refusal> {
        self.check_configured()?;
        let pinged = self.lnet.ping_async(nid, source, timeout).await;
        self.ping_record(nid, pinged).await
    }

    async fn discover(&self, nid: Nid, is_forced: bool, _: Duration) -> Result<PingRecord, Refusal> {
        self.check_configured()?;
        let discovered = self.lnet.discover_async(nid, is_forced).await;
        self.ping_record(nid, discovered).await
    }

    async fn warnings(&self) -> Result<Vec<String>, Refusal> {
        self.check_configured()?;
        self.ni_warnings().await
    }

    async fn interfaces(&self, named: Vec<String>) -> Result<Vec<InterfaceRecord>, Refusal> {
        blocking(move || interfaces::records(&named)).await?
    }

    async fn usage(&self) -> Result<UsageRecord, Refusal> {
        self.usage_record().await
    }

    async fn captures(&self) -> Result<Vec<CaptureRecord>, Refusal> {
        Ok(self.lnet.captures())
    }

    async fn start_capture(&self, spec: CaptureSpec) -> Result<(), Refusal> {
        self.check_configured()?;
        let lnet = self.lnet.clone();
        blocking(move || lnet.start_capture(&spec)).await?.map_err(capture_refusal)
    }

    async fn stop_capture(&self, path: String) -> Result<CaptureRecord, Refusal> {
        let lnet = self.lnet.clone();
        blocking(move || lnet.stop_capture(Path::new(&path))).await?.map_err(capture_refusal)
    }

    async fn frames(&self) -> Result<FramesRecord, Refusal> {
        self.check_configured()?;
        self.frames_record().await
    }

    async fn selftest(&self, request: SelftestRequest) -> Result<SelftestAnswer, Refusal> {
        self.check_configured()?;
        match &self.console {
            Some(console) => console.run(request).await,
            None => {
                let message = "this node takes part in no tests; start it as lnetd --selftest";
                Err(Refusal::new(Errno::OPNOTSUPP, message))
            }
        }
    }

    async fn loads(&self) -> Result<Vec<LoadRecord>, Refusal> {
        Ok(self.load_records())
    }

    async fn start_load(&self, spec: LoadSpec) -> Result<u32, Refusal> {
        self.check_configured()?;
        self.begin_load(spec).await
    }

    async fn stop_load(&self, id: u32) -> Result<LoadRecord, Refusal> {
        let load = self.services.loads.borrow_mut().remove(&id);
        let load = load.ok_or_else(|| Refusal::new(Errno::NOENT, format!("there is no load {id}")))?;
        blocking(move || load.work.end(id)).await
    }
}
