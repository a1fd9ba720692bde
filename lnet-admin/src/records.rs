//! What a node tells of itself, in the terms of the tools: the counters of its shards, added up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::health::HealthStatus;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    DiscoveryCounters, LocalNetState, LocalNiState, NetRoute, NiConfig, Peer, PeerNi, PeerTraffic, Recovery,
    RouterState, Settings,
};
use lnet_core::shard::{self, PoolUsage};
use lnet_core::stats::{self, NiCounters, TypeCounts};
use lnet_core::tunables::NetTunables;
use lnet_model::lnd::{NiFact, NiOption};
use lnet_model::ni::NiOptions;
use lnet_model::records::{
    ConnectionRecord, ConnectionUse, Globals, LatencySummary, MessageCounts, NetRecord, NiHealth, NiRecord,
    NiStatus, NiTraffic, Parameters, PeerCredits, PeerHealth, PeerNiRecord, PeerPage, PeerQuery, PeerRecord,
    PoolRecord, RoutePage, RouteRecord, RouteState, RouteType, RoutingRecord, RoutingState, Statistics,
};
use lnet_model::route::RouteSpec;
use lnet_model::steering::{PortalPolicy, SteeringPolicy, SteeringRecord};
use lnet_model::text::NidText;
use lnet_model::udsp::UdspInfo;
use lnet_model::{Errno, Refusal};
use lnet_user::node::{LO, LndOptions, NiState, Reactor};
use lnet_wire::socklnd::ConnectionType;
use lnet_wire::steer::PolicyWord;
use lnet_wire::{Global, MessageType, Net, Nid, Parameter};

use super::control::Control;
use super::error::stopped;
use super::udsp::{local_info, peer_info};

/// NIDs of a page of peers at least, unless it is the last one. A page has whole peers.
const PAGE_NIDS: usize = 256;

impl Control {
    pub(super) async fn net_records(&self) -> Result<Vec<NetRecord>, Refusal> {
        self.lnet.follow_shards().await.map_err(|error| stopped(&error))?;
        let slots = self.lnet.topology().nis().len() as u16;
        let mut sums = HashMap::<u16, (NiCounters, i64, i64)>::new();
        let told = self.on_shards(move |worker| {
            let record = |ni| Some((ni, worker.shard().ni_usage(NiId(ni))?));
            (0..slots).filter_map(record).collect::<Vec<_>>()
        });
        for (ni, usage) in told.await?.iter().flatten() {
            let (counters, credits, min_credits) = sums.entry(*ni).or_default();
            *counters += &usage.counters;
            *credits += usage.credits;
            *min_credits += usage.credits_min;
        }
        let counters = |ni: NiId| sums.get(&ni.0).map(|(counters, ..)| *counters).unwrap_or_default();
        let node = self.lnet.machine();
        let nets = node.nets().into_iter().map(|record| {
            let record_of = |config: &&NiConfig<LndOptions>| NiRecord {
                udsp: local_info(node.rules(), &config.spec.nid),
                available_credits: sums.get(&config.ni.0).map(|(_, credits, _)| *credits),
                min_credits: sums.get(&config.ni.0).map(|(.., min_credits)| *min_credits),
                ..self.ni_record(config, &counters(config.ni), config.lnd_timeout(node.settings()))
            };
            let mut nis: Vec<_> = record.nis.iter().map(record_of).collect();
            if record.net == Net::LO {
                nis.push(self.lo_record(&counters(LO)));
            }
            let fsm_state = node.net_state(record.net).map(LocalNetState::name).unwrap_or_default();
            NetRecord { net: record.net, fsm_state: fsm_state.to_owned(), nis }
        });
        Ok(nets.collect())
    }

    fn lo_record(&self, counters: &NiCounters) -> NiRecord {
        NiRecord {
            nid: Nid::LO,
            status: NiStatus::Up,
            fsm_state: LocalNiState::Created.name().to_owned(),
            interface: None,
            is_chosen_by_nid: false,
            traffic: traffic(counters),
            health: NiHealth::default(),
            available_credits: None,
            min_credits: None,
            options: NiOptions::default(),
            timeout_s: 0,
            facts: self.node_facts(),
            cpts: self.cpts(),
            udsp: UdspInfo::default(),
            numa_distance: None,
            numa_distances: Vec::new(),
        }
    }

    /// What is told of the node as a whole, in the order of the row of `lo`.
    fn node_facts(&self) -> Vec<Option<NiFact>> {
        let chosen = self.lnet.reactor();
        // Kernel nodes have no tunables of `lo`.
        let is_other = chosen.reactor != Reactor::IoUring;
        let reactor = is_other.then(|| NiFact::Text(chosen.reactor.name().to_owned()));
        vec![chosen.refusal.clone().map(NiFact::Text), reactor]
    }

    fn ni_record(
        &self,
        config: &NiConfig<LndOptions>,
        counters: &NiCounters,
        lnd_timeout: Duration,
    ) -> NiRecord {
        let NiConfig { spec, .. } = config;
        let is_up = config.is_told_up();
        // Until its port is open an NI has no state.
        let state = self.lnet.known_ni(config.ni);
        NiRecord {
            nid: spec.nid,
            status: if is_up { NiStatus::Up } else { NiStatus::Down },
            fsm_state: config.state().name().to_owned(),
            interface: Some(spec.interface.clone()),
            is_chosen_by_nid: spec.lnd.is_chosen_by_nid,
            health: ni_health(config, counters),
            numa_distance: Some(config.numa_distance()),
            numa_distances: config.numa_distances.clone(),
            cpts: Some(&spec.lnd.serving_shards)
                .filter(|shards| !shards.is_empty())
                .map_or_else(|| self.cpts(), Clone::clone),
            options: self.options(config, state.as_ref()),
            timeout_s: u32::try_from(lnd_timeout.as_secs()).unwrap_or(u32::MAX).max(1),
            facts: state.map(|state| state.facts).unwrap_or_default(),
            ..self.lo_record(counters)
        }
    }

    /// The options that an NI has: those of its net, and of its LND.
    fn options(&self, config: &NiConfig<LndOptions>, state: Option<&NiState>) -> NiOptions {
        let NiConfig { spec, tunables, .. } = config;
        let mut options = net_tunables(tunables);
        let Some(lnd) = spec.lnd.options.lnd_on(spec.nid.net(), &spec.interface) else { return options };
        options.set(NiOption::Lnd, lnd.asked.map(|lnd| lnd as i64));
        let chosen = state.map(|state| state.options).unwrap_or_default();
        for option in lnd.options {
            let value = [&chosen, &spec.lnd.options, &self.defaults.options].map(|from| from.get(*option));
            let value = value.into_iter().flatten().next().or(option.row().default_value());
            options.set(*option, value.filter(|value| option.row().choice != Some(*value)));
        }
        options
    }

    fn cpts(&self) -> Vec<u32> {
        (0..self.lnet.shard_count() as u32).collect()
    }

    /// A page of the peers. Those that are named are looked up, and no others.
    pub(super) async fn peer_records(&self, query: &PeerQuery) -> Result<PeerPage, Refusal> {
        let after = query.after.map(|NidText(nid)| nid);
        if let Some(of) = &query.of
            && of.len() > PeerQuery::NIDS_MAX
        {
            let message = format!("peers of {} nids: at most {} are expected", of.len(), PeerQuery::NIDS_MAX);
            return Err(Refusal::new(Errno::TOOBIG, message));
        }
        if after.is_none() {
            self.lnet.follow_shards().await.map_err(|error| stopped(&error))?;
        }
        let (mut primaries, mut has_more, mut nids) = (Vec::new(), false, Vec::new());
        {
            let node = self.lnet.machine();
            let asked: Box<dyn Iterator<Item = &Peer>> = match &query.of {
                None => Box::new(node.peers_after(after)),
                Some(of) => {
                    let named = of.iter().filter_map(|NidText(nid)| node.peer(nid));
                    let named: BTreeMap<Nid, &Peer> = named.map(|peer| (peer.primary, peer)).collect();
                    Box::new(named.into_values().filter(|peer| Some(peer.primary) > after))
                }
            };
            for peer in asked {
                if nids.len() >= PAGE_NIDS {
                    has_more = true;
                    break;
                }
                primaries.push(peer.primary);
                nids.extend(peer.nis.iter().map(|ni| ni.nid));
            }
        }
        let nids: Arc<[Nid]> = nids.into();
        let mut told = HashMap::<Nid, PeerSum>::new();
        let peers = self.on_shards(move |worker| {
            let shard = worker.shard();
            let record = |nid| Some((shard.peer(nid)?, shard.router_credits(nid)));
            nids.iter().filter_map(record).collect::<Vec<_>>()
        });
        for (peer, routed) in peers.await?.iter().flatten() {
            told.entry(peer.nid).or_default().add(peer, routed.unwrap_or_default());
        }
        let node = self.lnet.machine();
        let nets = node.nets();
        let tunables = |nid: &Nid| {
            let net = nets.iter().find(|record| record.net == nid.net());
            net.map(|record| record.tunables)
        };
        let local: Vec<Nid> =
            nets.iter().flat_map(|net| net.nis.iter().map(|config| config.spec.nid)).collect();
        let peer_ni = |ni: &PeerNi, is_claim| {
            let sum = told.get(&ni.nid).copied().unwrap_or_default();
            let udsp = UdspInfo {
                preferred_gateways: node.preferred_gateways(&ni.nid),
                ..peer_info(node.rules(), &ni.nid, local.iter())
            };
            let is_alive =
                node.peer(&ni.nid).filter(|peer| peer.is_gateway()).map(|_| ni.is_up != Some(false));
            PeerNiRecord {
                udsp,
                is_claim,
                is_alive,
                ..peer_ni_record(ni, &sum, tunables(&ni.nid), node.settings())
            }
        };
        let record = |peer: &Peer| PeerRecord {
            primary_nid: peer.shown_primary(),
            multi_rail: peer.is_multi_rail(),
            state: peer.state,
            is_gateway: peer.is_gateway(),
            fsm_state: node.peer_state(peer).name().to_owned(),
            shared_nids: peer.shared_nids().iter().filter(|nid| local.contains(nid)).copied().collect(),
            nis: peer.shown().into_iter().map(|ni| peer_ni(ni, peer.ni(&ni.nid).is_none())).collect(),
        };
        // Meanwhile a peer may have gone, or become a part of another one.
        let still = |nid: &Nid| node.peer(nid).filter(|peer| peer.primary == *nid);
        let peers = primaries.iter().filter_map(still).map(record).collect();
        Ok(PeerPage { peers, next: primaries.last().filter(|_| has_more).copied().map(NidText) })
    }

    /// The connections of all shards, by the NIDs of the peers.
    pub(super) async fn connection_records(&self) -> Result<Vec<ConnectionRecord>, Refusal> {
        let told = self.on_shards(|worker| {
            let shard = u32::from(worker.shard_id().0);
            let shown = worker.tcp().into_iter().flat_map(|lnd| lnd.connections());
            let records = shown.map(|of| ConnectionRecord {
                nid: of.peer.nid,
                pid: of.peer.pid,
                kind: match of.kind {
                    ConnectionType::Any => ConnectionUse::Any,
                    ConnectionType::Control => ConnectionUse::Control,
                    ConnectionType::BulkIn => ConnectionUse::BulkIn,
                    ConnectionType::BulkOut => ConnectionUse::BulkOut,
                },
                shard,
                local: of.ends.local,
                remote: of.ends.remote,
            });
            records.collect::<Vec<_>>()
        });
        let mut records = told.await?.concat();
        records.sort_by_key(|record| (record.nid, record.kind as u8, record.remote));
        Ok(records)
    }

    /// The routes behind one, by net and gateway, or the first.
    pub(super) fn routes_behind(&self, after: Option<&RouteSpec>) -> RoutePage {
        let node = self.lnet.machine();
        let name = |spec: &RouteSpec| (spec.net, spec.gateway);
        let mut behind =
            node.net_routes().skip_while(|route| after.is_some_and(|after| name(&route.spec) <= name(after)));
        let record = |route: NetRoute| RouteRecord {
            spec: route.spec,
            state: if route.is_up { RouteState::Up } else { RouteState::Down },
            r#type: if route.is_multi_hop { RouteType::MultiHop } else { RouteType::SingleHop },
        };
        let routes = behind.by_ref().take(PAGE_NIDS).map(record).collect();
        RoutePage { routes, has_more: behind.next().is_some() }
    }

    pub(super) fn global_record(&self) -> Globals {
        let node = self.lnet.machine();
        let mut globals = Globals::default();
        for global in Global::ALL {
            globals.set(global, node.settings().get(global));
        }
        globals
    }

    pub(super) fn parameter_record(&self) -> Parameters {
        let node = self.lnet.machine();
        let mut parameters = Parameters::default();
        for parameter in Parameter::ALL {
            parameters.set(parameter, node.settings().parameter(parameter));
        }
        parameters
    }

    /// Whether messages of others are forwarded.
    pub(super) fn routing_state(&self) -> RoutingState {
        match self.lnet.machine().router_state() {
            RouterState::Off => RoutingState::Off,
            RouterState::Starting => RoutingState::Starting,
            RouterState::On => RoutingState::On,
            RouterState::Stopping => RoutingState::Stopping,
        }
    }

    /// Routing, with the pools of each shard if it was ever on.
    pub(super) async fn routing_record(&self) -> Result<RoutingRecord, Refusal> {
        let (state, was_router) = (self.routing_state(), self.lnet.machine().was_router());
        if !was_router {
            return Ok(RoutingRecord { state, cpts: Vec::new() });
        }
        let pools = self.on_shards(|worker| worker.shard().router_pools()).await?;
        let record = |pool: PoolUsage| PoolRecord {
            buffer_count: pool.buffers,
            credits: pool.credits,
            min_credits: pool.credits_min,
        };
        Ok(RoutingRecord { state, cpts: pools.into_iter().map(|pools| pools.map(record)).collect() })
    }

    pub(super) fn steering_record(&self) -> SteeringRecord {
        let node = self.lnet.machine();
        let set = node.policies().iter().zip(0..).filter(|(word, _)| **word != PolicyWord::default());
        let portals = set.filter_map(|(word, portal)| {
            Some(PortalPolicy { portal, policy: SteeringPolicy::from_wire(&word.unpack()?) })
        });
        SteeringRecord { shard_count: self.lnet.shard_count() as u32, portals: portals.collect() }
    }
}

/// The options of a net with these tunables.
pub(super) fn net_tunables(tunables: &NetTunables) -> NiOptions {
    NiOptions::default()
        .with(NiOption::PeerTimeout, tunables.peer_timeout_s.into())
        .with(NiOption::PeerCredits, tunables.peer_credits.into())
        .with(NiOption::PeerBufferCredits, tunables.peer_buffer_credits.into())
        .with(NiOption::Credits, tunables.credits.into())
}

/// What the shards know of a peer's interface.
#[derive(Clone, Copy, Default, Debug)]
struct PeerSum {
    counters: NiCounters,
    queued_bytes: u64,
    references: u64,
    credits_max: i64,
    /// Credits that are in use, or waited for.
    taken: i64,
    /// The most that each shard ever had taken.
    taken_max: i64,
    /// Likewise of router credits.
    routed: i64,
    routed_max: i64,
}

impl PeerSum {
    fn add(&mut self, peer: &shard::PeerRecord, [routed_total, routed, routed_min]: [i64; 3]) {
        self.counters += &peer.counters;
        self.queued_bytes += peer.queued_bytes;
        self.references += u64::from(peer.reference_count);
        let max = i64::from(peer.credits_max);
        self.credits_max += max;
        self.taken += max - peer.credits;
        self.taken_max += max - peer.credits_min;
        self.routed += routed_total - routed;
        self.routed_max += routed_total - routed_min;
    }
}

/// Shards share credits out; what is shown is what was configured, less what they have taken.
fn peer_ni_record(
    ni: &lnet_core::node::PeerNi,
    sum: &PeerSum,
    tunables: Option<NetTunables>,
    settings: &Settings,
) -> PeerNiRecord {
    let max = tunables.map_or(sum.credits_max, |tunables| tunables.peer_credits.into());
    let routed = tunables.map_or(max, |tunables| {
        settings.router_credits(tunables.peer_credits, tunables.peer_buffer_credits).into()
    });
    let failed = |status| sum.counters.failed.of(status);
    let traffic_state = PeerTraffic {
        has_carried: sum.counters.sent.total() + sum.counters.received.total() > 0,
        is_under_way: sum.queued_bytes > 0,
    };
    PeerNiRecord {
        nid: ni.nid,
        is_configured: ni.is_configured,
        is_claim: false,
        is_alive: None,
        fsm_state: ni.state(traffic_state).name().to_owned(),
        credits: PeerCredits {
            max_ni_tx_credits: max,
            available_tx_credits: max - sum.taken,
            min_tx_credits: max - sum.taken_max,
            tx_queue_bytes: sum.queued_bytes,
            available_rtr_credits: routed - sum.routed,
            min_rtr_credits: routed - sum.routed_max,
            refcount: sum.references + 1,
        },
        traffic: traffic(&sum.counters),
        health: PeerHealth {
            health_value: ni.health,
            dropped: failed(HealthStatus::RemoteDropped),
            timeout: failed(HealthStatus::RemoteTimeout),
            error: failed(HealthStatus::RemoteError),
            network_timeout: failed(HealthStatus::NetworkTimeout),
            ping_count: ni.recovery.ping_count,
            next_ping_s: next_ping_s(&ni.recovery),
        },
        udsp: UdspInfo::default(),
    }
}

fn ni_health(config: &NiConfig<LndOptions>, counters: &NiCounters) -> NiHealth {
    let failed = |status| counters.failed.of(status);
    NiHealth {
        fatal_error: u32::from(!config.has_link),
        health_value: config.health,
        interrupts: failed(HealthStatus::LocalInterrupt),
        dropped: failed(HealthStatus::LocalDropped),
        aborted: failed(HealthStatus::LocalAborted),
        no_route: failed(HealthStatus::LocalNoRoute),
        timeouts: failed(HealthStatus::LocalTimeout),
        error: failed(HealthStatus::LocalError),
        ping_count: config.recovery.ping_count,
        next_ping_s: next_ping_s(&config.recovery),
    }
}

/// When an NI is pinged again, seconds since the start of the node; 0 if it is not.
fn next_ping_s(recovery: &Recovery) -> u64 {
    recovery.next_at.map_or(0, |at| at.0 / 1_000_000_000)
}

fn traffic(counters: &NiCounters) -> NiTraffic {
    NiTraffic {
        sent: messages(&counters.sent),
        received: messages(&counters.received),
        dropped: messages(&counters.dropped),
        sent_bytes: counters.sent_bytes,
        received_bytes: counters.received_bytes,
        put_egress: latency(&counters.put_egress),
        get_rtt: latency(&counters.get_rtt),
        put_ack: latency(&counters.put_ack),
    }
}

fn latency(latency: &stats::Durations) -> LatencySummary {
    LatencySummary {
        samples: latency.samples,
        min_ns: latency.min_ns,
        max_ns: latency.max_ns,
        average_ns: latency.average_ns(),
    }
}

fn messages(counts: &TypeCounts) -> MessageCounts {
    MessageCounts {
        put: counts.of(MessageType::Put),
        get: counts.of(MessageType::Get),
        reply: counts.of(MessageType::Reply),
        ack: counts.of(MessageType::Ack),
        hello: counts.of(MessageType::Hello),
    }
}

pub(super) fn statistics(sum: &stats::Statistics, errors: u64, discovery: &DiscoveryCounters) -> Statistics {
    let failed = |status| sum.failed.of(status);
    Statistics {
        msgs_alloc: sum.messages,
        msgs_max: sum.messages_max,
        rst_alloc: sum.trackers,
        errors,
        send_count: sum.sent.messages,
        resend_count: sum.resends,
        failed_resends: sum.failed_resends,
        successful_resends: sum.successful_resends,
        response_timeout_count: sum.response_timeouts,
        local_interrupt_count: failed(HealthStatus::LocalInterrupt),
        local_dropped_count: failed(HealthStatus::LocalDropped),
        local_aborted_count: failed(HealthStatus::LocalAborted),
        local_no_route_count: failed(HealthStatus::LocalNoRoute),
        local_timeout_count: failed(HealthStatus::LocalTimeout),
        local_error_count: failed(HealthStatus::LocalError),
        remote_dropped_count: failed(HealthStatus::RemoteDropped),
        remote_error_count: failed(HealthStatus::RemoteError),
        remote_timeout_count: failed(HealthStatus::RemoteTimeout),
        network_timeout_count: failed(HealthStatus::NetworkTimeout),
        recv_count: sum.received.messages,
        drop_count: sum.dropped.messages,
        send_length: sum.sent.bytes,
        recv_length: sum.received.bytes,
        drop_length: sum.dropped.bytes,
        route_count: sum.routed.messages,
        route_length: sum.routed.bytes,
        pushes_taken: discovery.taken,
        pushes_pinged: discovery.pinged,
        pushes_contradicted: discovery.contradicted,
        pushes_proven: discovery.proven,
        pushes_refused: discovery.refused,
        answers_refused: discovery.answers_refused,
        discoveries_evicted: discovery.evicted,
        credits_passed_on: sum.credits_passed_on,
        cuts: sum.cuts,
        cuts_slow: sum.cuts_slow,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::control::ControlOptions;
    use lnet_model::peer::PeerSpec;
    use lnet_model::records::ExplainedKind;
    use lnet_model::request::{Change, ChangeSet};
    use lnet_user::{Lnet, NodeConfig};

    /// The control of a node with an in-process NI, whose NID comes first.
    fn in_process(interface: &str) -> (Nid, Control, tokio::runtime::Runtime) {
        let nid = Nid::new_ip(Net::XDP, [10, 9, 7, 1].into()).unwrap();
        let ni = lnet_user::NiConfig::new(nid, interface);
        let lnet = Lnet::start(&NodeConfig::new(vec![ni])).unwrap();
        let control = Control::new(&lnet, ControlOptions::default()).unwrap();
        (nid, control, tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
    }

    /// An NI without an interface is shown without what belongs to one.
    #[test]
    fn an_in_process_ni_is_shown_without_an_interfaces_options() {
        let (nid, control, runtime) = in_process("in-process:shown");
        let nets = runtime.block_on(control.net_records()).unwrap();
        let ni = nets.iter().flat_map(|net| &net.nis).find(|record| record.nid == nid).unwrap();
        assert!(ni.options.entries().all(|(row, _)| row.option.is_of_net()), "{:?}", ni.options);
        assert_eq!((ni.facts.as_slice(), ni.status), ([].as_slice(), NiStatus::Up));
        assert_eq!(ni.interface.as_deref(), Some("in-process:shown"));
    }

    #[test]
    fn pages_have_each_peer_once_in_the_order_of_their_nids() {
        let (_, control, runtime) = in_process("in-process:pages");
        // Some have several NIDs, so that pages end within no peer.
        let peer = |number: u8, host: u8| {
            let nid = |last| Nid::new_ip(Net::XDP, [10, 9, 100 + number, last].into()).unwrap();
            let nids = (0..number).map(|other| nid(100 + host * 10 + other)).collect();
            Change::AddPeer(PeerSpec { primary_nid: nid(host), nids, multi_rail: true, lock_primary: false })
        };
        let changes = (0..10).flat_map(|number| (0..10).map(move |host| peer(number, host))).collect();
        runtime
            .block_on(control.apply_batch(ChangeSet { changes, dry_run: false, generation: None }))
            .unwrap();
        let page = |of: Option<&[Nid]>, after: Option<Nid>| {
            let of = of.map(|nids| nids.iter().copied().map(NidText).collect());
            let query = PeerQuery { of, after: after.map(NidText) };
            runtime.block_on(control.peer_records(&query)).unwrap()
        };
        let (mut told, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let PeerPage { peers, next } = page(None, after);
            let nids: usize = peers.iter().map(|peer| peer.nis.len()).sum();
            assert!(next.is_none() || (PAGE_NIDS..PAGE_NIDS + 10).contains(&nids), "{nids}");
            told.extend(peers);
            pages += 1;
            let Some(NidText(next)) = next else { break };
            after = Some(next);
        }
        // Each has its primary NID, and up to nine others.
        assert_eq!((told.len(), pages), (100, 3));
        assert!(told.windows(2).all(|pair| pair[0].primary_nid < pair[1].primary_nid));
        let (last, none) = (told.last().unwrap().primary_nid, PeerPage::default());
        assert_eq!(page(None, Some(last)), none);
        // Peers that are named, by whatever NID, each once and in the same order.
        let [first, other] = [&told[3], &told[87]];
        let named: Vec<Nid> = [other, first].iter().flat_map(|peer| &peer.nis).map(|ni| ni.nid).collect();
        let unknown = Nid::new_ip(Net::XDP, [10, 9, 99, 1].into()).unwrap();
        let named = [&named[..], &[unknown]].concat();
        let (both, one) = ([first, other].map(Clone::clone), [other.clone()]);
        assert_eq!(page(Some(&named), None), PeerPage { peers: both.to_vec(), next: None });
        assert_eq!(page(Some(&named), Some(first.primary_nid)).peers, one);
        assert_eq!(page(Some(&[unknown]), None), none);
        assert_eq!(page(Some(&[]), None), none);
        // A page of those that are named ends where one of all would.
        let wide: Vec<Nid> = told.iter().rev().take(60).map(|peer| peer.primary_nid).collect();
        let begin = page(Some(&wide), None);
        let rest = page(Some(&wide), begin.next.map(|NidText(nid)| nid));
        assert!(begin.peers.len() < 60 && begin.peers.len() + rest.peers.len() == 60 && rest.next.is_none());
        let many = PeerQuery { of: Some(vec![NidText(unknown); PeerQuery::NIDS_MAX + 1]), after: None };
        assert_eq!(runtime.block_on(control.peer_records(&many)).unwrap_err().errno, Errno::TOOBIG);
    }

    /// Routes are made and deleted by requests, shown in pages, and chosen from.
    #[test]
    fn routes_are_made_told_and_explained() {
        let (nid, control, runtime) = in_process("in-process:routes");
        let gateway = Nid::new_ip(Net::XDP, [10, 9, 7, 2].into()).unwrap();
        let net = |number: u16| Net::new(Net::XDP.net_type(), number);
        let spec = |number| RouteSpec { hops: Some(2), priority: 3, ..RouteSpec::new(net(number), gateway) };
        let apply = |changes: Vec<Change>| {
            let batch = ChangeSet { changes, dry_run: false, generation: None };
            runtime.block_on(control.apply_batch(batch)).map(|_| ()).map_err(|refusal| refusal.errno)
        };
        // The gateway forwards nothing, and says so: without discovery that is no matter.
        let ni = lnet_user::NiConfig::new(gateway, "in-process:routes");
        let _gateway = Lnet::start(&NodeConfig::new(vec![ni])).unwrap();
        apply(vec![Change::SetGlobal { global: Global::Discovery, value: 0 }]).unwrap();
        apply((1..=300).map(|number| Change::AddRoute(spec(number))).collect()).unwrap();
        let first = control.routes_behind(None);
        assert_eq!((first.routes.len(), first.has_more), (PAGE_NIDS, true));
        let second = control.routes_behind(first.routes.last().map(|record| &record.spec));
        assert_eq!((second.routes.len(), second.has_more), (300 - PAGE_NIDS, false));
        let told = first.routes.iter().chain(&second.routes);
        assert!(told.clone().map(|record| record.spec).eq((1..=300).map(spec)));
        let is_shown =
            |record: &RouteRecord| (record.state, record.r#type) == (RouteState::Up, RouteType::MultiHop);
        assert!(told.clone().all(is_shown));
        let peers = runtime.block_on(control.peer_records(&PeerQuery::default())).unwrap().peers;
        let peer = peers.iter().find(|peer| peer.primary_nid == gateway).unwrap();
        assert!(peer.is_gateway && peer.nis.iter().all(|ni| ni.is_alive == Some(true)));
        assert_eq!(apply(vec![Change::AddRoute(spec(7))]), Err(Errno::EXIST));
        let far = Nid::new_ip(net(7), [10, 9, 7, 3].into()).unwrap();
        let explained = runtime.block_on(control.explained(far)).unwrap();
        let choice = explained.choices.first().unwrap();
        assert_eq!(
            (choice.gateway, choice.path.unwrap().from, choice.path.unwrap().to),
            (Some(gateway), nid, far)
        );
        let step = choice.steps.iter().find(|step| step.kind == ExplainedKind::Gateway).unwrap();
        let hops = step.candidates[0].values.iter().find(|(name, _)| name == "hops");
        assert_eq!(hops.map(|(_, value)| *value), Some(2));
        apply((1..=300).map(|number| Change::DeleteRoute { net: net(number), gateway }).collect()).unwrap();
        assert_eq!(control.routes_behind(None), RoutePage::default());
        let gone = Change::DeleteRoute { net: net(7), gateway };
        assert_eq!(apply(vec![gone]), Err(Errno::NOENT));
        assert_eq!(runtime.block_on(control.explained(far)).unwrap().choices[0].path, None);
    }
}
