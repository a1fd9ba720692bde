//! Metrics of a node for Prometheus and what reads its forms (`docs/metrics.md`).
//!
//! Invariants: names that exporters for Lustre have are theirs, with their labels, and no name has two sets
//! of labels; samples of peers and routes are those of their first page; however many clients ask, the node
//! counts for one page at a time.

mod http;
mod page;

use lnet_control::server::Handler;
use lnet_core::lnd::NiId;
use lnet_core::shard::NiUsage;
use lnet_core::stats::{Durations, Histogram, NiLatencies};
use lnet_model::Refusal;
use lnet_model::records::{MessageCounts, NetRecord, NiRecord, NiStatus, PeerPage, PeerQuery, RoutePage};
use lnet_user::node::LO;
use lnet_wire::{Global, Nid};
use serde::Serialize;

use super::control::Control;
use super::usage;
use page::{Labels, Page, Reading};

pub(crate) use http::{listen, serve};

/// Keys of [`Statistics`](lnet_model::records::Statistics) that are no counters.
const GAUGES: [&str; 3] = ["msgs_alloc", "msgs_max", "rst_alloc"];

/// The sums over the shards of what a local NI has.
struct NiSums {
    nid: Nid,
    credits: i64,
    credits_max: i64,
    credits_min: i64,
    latencies: NiLatencies,
    put_egress: Durations,
    get_rtt: Durations,
    put_ack: Durations,
}

impl NiSums {
    fn new(nid: Nid) -> Self {
        let (latencies, none) = (NiLatencies::default(), Durations::default());
        let [put_egress, get_rtt, put_ack] = [none; 3];
        Self { nid, credits: 0, credits_max: 0, credits_min: 0, latencies, put_egress, get_rtt, put_ack }
    }

    fn add(&mut self, usage: &NiUsage) {
        self.credits += usage.credits;
        self.credits_max += i64::from(usage.credits_max);
        self.credits_min += usage.credits_min;
        self.latencies += &usage.latencies;
        self.put_egress += &usage.counters.put_egress;
        self.get_rtt += &usage.counters.get_rtt;
        self.put_ack += &usage.counters.put_ack;
    }
}

fn of_nid(nid: &Nid) -> Labels {
    vec![("nid", nid.to_string())]
}

/// The labels of a NID with another one.
fn with(nid: &Nid, name: &'static str, value: &str) -> Labels {
    vec![("nid", nid.to_string()), (name, value.to_owned())]
}

fn gauge(value: impl TryInto<i64>) -> Reading {
    Reading::Gauge(value.try_into().unwrap_or(i64::MAX))
}

/// Names and values of a record of counters, in its order.
fn entries(counters: &impl Serialize) -> Vec<(String, u64)> {
    let Ok(serde_json::Value::Object(entries)) = serde_json::to_value(counters) else { return Vec::new() };
    entries.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

impl Control {
    async fn metrics_page(&self) -> Result<Page, Refusal> {
        let mut page = Page::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.add("lnet_build", "The daemon", version, Reading::Info);
        let is_configured = self.is_configured.get();
        page.add("lnet_configured", "Whether the node is configured", Labels::new(), gauge(is_configured));
        let shards = gauge(self.lnet.shard_count());
        page.add("lnet_shards", "Shards of the node", Labels::new(), shards);
        let used = gauge(usage::memory_bytes("VmRSS:"));
        page.add("lustre_lnet_mem_used", "Resident memory of the daemon, bytes", Labels::new(), used.clone());
        let component = || ["component", "target"].map(|name| (name, "lnet".to_owned())).to_vec();
        let help = "Resident memory of the daemon";
        page.add("lustre_lnet_memory_used_bytes", help, component(), used);
        if !is_configured {
            return Ok(page);
        }
        let sensitivity = gauge(self.global_record().get(Global::HealthSensitivity));
        let help = "What a failed send costs of health";
        page.add("lustre_health_sensitivity", help, Labels::new(), sensitivity);
        self.add_statistics(&mut page, component).await?;
        self.add_frames(&mut page).await?;
        for net in &self.net_records().await? {
            net.nis.iter().for_each(|ni| add_ni(&mut page, net, ni));
        }
        self.ni_sums().await?.iter().for_each(|sums| add_sums(&mut page, sums));
        let peers = gauge(self.lnet.machine().peers().count());
        page.add("lnet_peers", "Peers that the node knows", Labels::new(), peers);
        add_peers(&mut page, &self.peer_records(&PeerQuery::default()).await?);
        let [mut up, mut down] = [0_u64; 2];
        self.lnet
            .machine()
            .net_routes()
            .for_each(|route| *if route.is_up { &mut up } else { &mut down } += 1);
        for (state, count) in [("up", up), ("down", down)] {
            page.add("lnet_routes", "Routes by state", vec![("state", state.to_owned())], gauge(count));
        }
        add_routes(&mut page, &self.routes_behind(None));
        Ok(page)
    }

    async fn add_statistics(&self, page: &mut Page, component: impl Fn() -> Labels) -> Result<(), Refusal> {
        let statistics = self.statistics().await?;
        let counters = [
            ("lustre_send_bytes", "Payload sent", Labels::new(), statistics.send_length),
            ("lustre_receive_bytes", "Payload received", Labels::new(), statistics.recv_length),
            ("lustre_drop_bytes", "Payload dropped", Labels::new(), statistics.drop_length),
            ("lustre_route_count", "Messages forwarded", component(), statistics.route_count),
            ("lustre_route_bytes", "Payload forwarded", component(), statistics.route_length),
            ("lustre_errors", "Messages whose payload did not arrive whole", component(), statistics.errors),
        ];
        for (name, help, labels, count) in counters {
            page.add(name, help, labels, Reading::Counter(count));
        }
        let (allocated, maximum) = (gauge(statistics.msgs_alloc), gauge(statistics.msgs_max));
        page.add("lustre_allocated", "Messages on their way out", component(), allocated);
        page.add("lustre_maximum", "Most messages that there were at once", component(), maximum);
        for (key, value) in entries(&statistics) {
            if GAUGES.contains(&key.as_str()) {
                page.add(format!("lnet_{key}"), "As in lnetctl stats show", Labels::new(), gauge(value));
                continue;
            }
            let name = match (key.strip_suffix("_count"), key.strip_suffix("_length")) {
                (Some(what), _) => format!("lnet_{what}"),
                (_, Some(what)) => format!("lnet_{what}_bytes"),
                _ => format!("lnet_{key}"),
            };
            page.add(name, "As in lnetctl stats show", Labels::new(), Reading::Counter(value));
        }
        Ok(())
    }

    async fn add_frames(&self, page: &mut Page) -> Result<(), Refusal> {
        let frames = self.frames_record().await?;
        for (reason, count) in frames.drops {
            let help = "Messages and frames that were dropped";
            page.add("lnet_drops", help, vec![("reason", reason)], Reading::Counter(count));
        }
        let stages = [
            ("passed_up", frames.reasons),
            ("handled", frames.handled),
            ("recovery", frames.recovery),
            ("rings", frames.rings),
            ("sockets", frames.sockets),
            ("connections", frames.connections),
        ];
        for (stage, counters) in stages {
            for (event, count) in counters {
                let labels = vec![("stage", stage.to_owned()), ("event", event)];
                page.add("lnet_frames", "As in lnetctl frames show", labels, Reading::Counter(count));
            }
        }
        Ok(())
    }

    /// Sums over the shards, for each local NI.
    async fn ni_sums(&self) -> Result<Vec<NiSums>, Refusal> {
        let mut nis = vec![(LO, NiSums::new(Nid::LO))];
        for net in self.lnet.machine().nets() {
            nis.extend(net.nis.iter().map(|config| (config.ni, NiSums::new(config.spec.nid))));
        }
        let ids: Vec<NiId> = nis.iter().map(|(ni, _)| *ni).collect();
        let told = self
            .on_shards(move |worker| ids.iter().map(|ni| worker.shard().ni_usage(*ni)).collect::<Vec<_>>());
        for usages in told.await? {
            for ((_, sums), usage) in nis.iter_mut().zip(usages) {
                usage.iter().for_each(|usage| sums.add(usage));
            }
        }
        Ok(nis.into_iter().map(|(_, sums)| sums).collect())
    }
}

fn add_ni(page: &mut Page, net: &NetRecord, ni: &NiRecord) {
    let interface = ni.interface.clone().unwrap_or_default();
    let info = [("net", net.net.to_string()), ("interface", interface)];
    let labels = of_nid(&ni.nid).into_iter().chain(info).collect();
    page.add("lnet_ni", "A local NI", labels, Reading::Info);
    let is_up = gauge(ni.status == NiStatus::Up);
    page.add("lnet_ni_up", "Whether messages can go by the local NI", of_nid(&ni.nid), is_up);
    let health = gauge(ni.health.health_value);
    page.add("lustre_health_value", "Health of the local NI, 0 to 1000", of_nid(&ni.nid), health);
    let traffic = &ni.traffic;
    for (name, help, count) in [
        ("lustre_send_count", "Messages that the local NI sent", traffic.sent.total()),
        ("lustre_receive_count", "Messages that the local NI received", traffic.received.total()),
        ("lustre_drop_count", "Messages that came by the local NI and were dropped", traffic.dropped.total()),
    ] {
        page.add(name, help, of_nid(&ni.nid), Reading::Counter(count));
    }
    let directions: [(&str, &MessageCounts); 3] =
        [("sent", &traffic.sent), ("received", &traffic.received), ("dropped", &traffic.dropped)];
    for (direction, counts) in directions {
        for (kind, count) in entries(counts) {
            let mut labels = with(&ni.nid, "direction", direction);
            labels.push(("type", kind));
            page.add("lnet_ni_messages", "Messages of the local NI", labels, Reading::Counter(count));
        }
    }
    let bytes = [("sent", traffic.sent_bytes), ("received", traffic.received_bytes)];
    add_each(page, ("lnet_ni_bytes", "Payload of the local NI's messages"), (&ni.nid, "direction"), &bytes);
    let health = &ni.health;
    let failures = [
        ("interrupts", health.interrupts),
        ("dropped", health.dropped),
        ("aborted", health.aborted),
        ("no_route", health.no_route),
        ("timeouts", health.timeouts),
        ("error", health.error),
    ];
    add_each(page, ("lnet_ni_failures", "Sends by the local NI that failed"), (&ni.nid, "reason"), &failures);
}

/// Adds counters of an NI that differ by one label.
fn add_each(
    page: &mut Page,
    (name, help): (&'static str, &'static str),
    (nid, label): (&Nid, &'static str),
    counters: &[(&str, u64)],
) {
    for (value, count) in counters {
        page.add(name, help, with(nid, label, value), Reading::Counter(*count));
    }
}

fn add_sums(page: &mut Page, sums: &NiSums) {
    let labels = || of_nid(&sums.nid);
    page.add("lnet_ni_credits", "Credits not in use, less what waits", labels(), gauge(sums.credits));
    page.add("lnet_ni_credits_max", "All credits of the local NI", labels(), gauge(sums.credits_max));
    page.add("lnet_ni_credits_min", "Fewest credits not in use", labels(), gauge(sums.credits_min));
    let NiLatencies { put_egress, get_rtt, put_ack } = sums.latencies;
    let times: [(&str, &str, Histogram, Durations); 3] = [
        ("lnet_put_egress_seconds", "From the call until a PUT has left", put_egress, sums.put_egress),
        ("lnet_get_rtt_seconds", "From a GET to its REPLY", get_rtt, sums.get_rtt),
        ("lnet_put_ack_seconds", "From a PUT to its ACK", put_ack, sums.put_ack),
    ];
    for (name, help, histogram, Durations { total_ns, .. }) in times {
        page.add(name, help, labels(), Reading::Histogram { histogram: Box::new(histogram), total_ns });
    }
}

fn add_peers(page: &mut Page, PeerPage { peers, .. }: &PeerPage) {
    page.add("lnet_peers_shown", "Peers that have samples here", Labels::new(), gauge(peers.len()));
    for (peer, ni) in peers.iter().flat_map(|peer| peer.nis.iter().map(move |ni| (peer, ni))) {
        let labels = with(&ni.nid, "primary_nid", &peer.primary_nid.to_string());
        page.add("lnet_peer", "An NI of a peer", labels, Reading::Info);
        let credits = &ni.credits;
        for (name, help, value) in [
            ("lnet_peer_health", "Health of the peer NI, 0 to 1000", gauge(ni.health.health_value)),
            ("lnet_peer_credits", "Credits not in use, less what waits", gauge(credits.available_tx_credits)),
            ("lnet_peer_credits_max", "All credits of the peer NI", gauge(credits.max_ni_tx_credits)),
            ("lnet_peer_credits_min", "Fewest credits not in use", gauge(credits.min_tx_credits)),
            (
                "lnet_peer_queued_bytes",
                "Bytes of messages that are under way or wait",
                gauge(credits.tx_queue_bytes),
            ),
        ] {
            page.add(name, help, of_nid(&ni.nid), value);
        }
        if let Some(is_alive) = ni.is_alive {
            page.add("lnet_peer_up", "Whether the gateway's NI is alive", of_nid(&ni.nid), gauge(is_alive));
        }
        let traffic = &ni.traffic;
        let messages = [
            ("sent", traffic.sent.total()),
            ("received", traffic.received.total()),
            ("dropped", traffic.dropped.total()),
        ];
        let of_direction = (&ni.nid, "direction");
        add_each(page, ("lnet_peer_messages", "Messages to and from the peer NI"), of_direction, &messages);
        let bytes = [("sent", traffic.sent_bytes), ("received", traffic.received_bytes)];
        add_each(page, ("lnet_peer_bytes", "Payload to and from the peer NI"), of_direction, &bytes);
        let health = &ni.health;
        let failures = [
            ("dropped", health.dropped),
            ("timeout", health.timeout),
            ("error", health.error),
            ("network_timeout", health.network_timeout),
        ];
        let of_reason = (&ni.nid, "reason");
        add_each(page, ("lnet_peer_failures", "Sends to the peer NI that failed"), of_reason, &failures);
    }
}

fn add_routes(page: &mut Page, RoutePage { routes, .. }: &RoutePage) {
    for route in routes {
        let (net, gateway) = (route.spec.net.to_string(), route.spec.gateway.to_string());
        let is_up = gauge(route.state == lnet_model::records::RouteState::Up);
        let labels = vec![("net", net), ("gateway", gateway)];
        page.add("lnet_route_up", "Whether messages may go by the route", labels, is_up);
    }
}
