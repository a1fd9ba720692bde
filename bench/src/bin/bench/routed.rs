//! The cost of a router: CPU time of a message that is forwarded, beside that of both ends of one that is
//! not, and what a hop adds to half a round trip. All in one run, over two veth pairs, between threaded nodes
//! that sleep when they have nothing to do: three that poll would share two CPUs.
//!
//! Both ends of a routed message are in one namespace, on a rail each, and the router is in the other. What a
//! router takes is the difference of the whole process with it and without.
//!
//! `cargo xtask bench --routed` makes the namespaces and calls this.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, beside_heading, beside_row, checks_table};
use lnet_bench::link::{SecondRail, Side, wait_until};
use lnet_bench::machine::process_cpu_time;
use lnet_bench::measure::{Endpoint, PATIENCE};
use lnet_bench::messages::Operation;
use lnet_bench::options::{Document, Options, Setup};
use lnet_bench::threaded::{End, ThreadedConfig};
use lnet_core::node::{NodeChange, RouterState};
use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_user::Request;
use lnet_user::api::{Lnet, Threads};
use lnet_user::node::{LndOptions, NiConfig, NodeConfig};
use lnet_user::runtime::Idle;
use lnet_wire::{Nid, Parameter, ProcessId};
use serde::Serialize;

/// Measures a router between two nodes beside the nodes alone.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --routed   (makes the namespaces and the veth pairs, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    second: SecondRail,
}

type Change = NodeChange<LndOptions>;

const PUT: Operation = Operation::Put { ack: true };
/// Puts whose CPU time is measured: their bytes, how many are under way, and the most that a router may take
/// of what both ends do.
const FLOODS: [(&str, usize, usize, f64); 2] =
    [("Put of 64 bytes and its ACK", 64, 64, 1.2), ("Put of 1 MiB and its ACK", 1 << 20, 8, 1.1)];
/// The most that a hop may add, as a part of half a round trip.
const HOP: Bound = Bound::AtMost(1.6);
/// Router buffers of each pool.
const POOLS: [u32; 3] = [1024, 2048, 64];
/// How often it is looked whether something is so.
const TICK: Duration = Duration::from_millis(10);

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// Microseconds without a router, and with one.
    direct_us: Figure,
    routed_us: Figure,
    /// Addition of the router, as a part of the first.
    added: Figure,
}

impl Row {
    fn new(name: &'static str) -> Self {
        let [direct_us, routed_us, added] = [(); 3].map(|()| Figure::default());
        Self { name, direct_us, routed_us, added }
    }

    fn add(&mut self, [direct_us, routed_us]: [f64; 2]) {
        self.direct_us.add(direct_us);
        self.routed_us.add(routed_us);
        self.added.add(routed_us / direct_us - 1.0);
    }
}

/// A measurement between two ends.
#[derive(Clone, Copy)]
enum Measure {
    /// Half a round trip of a Put of so many bytes without ACK, p50 of so many.
    HalfRoundTrip { bytes: usize, count: u64 },
    /// CPU time of a Put, so many under way, for a time.
    CpuTime { bytes: usize, window: usize, time: Duration },
}

impl Measure {
    fn config(self) -> ThreadedConfig {
        let config = match self {
            Self::HalfRoundTrip { bytes, .. } => ThreadedConfig::new(Operation::Put { ack: false }, bytes, 1),
            Self::CpuTime { bytes, window, .. } => ThreadedConfig::new(PUT, bytes, window),
        };
        ThreadedConfig { sleeps: true, ..config }
    }

    /// Answers, as the far end.
    fn answer(self, end: &mut End, stop: &AtomicBool) -> anyhow::Result<()> {
        match self {
            Self::HalfRoundTrip { .. } => end.echo(stop),
            Self::CpuTime { .. } => {
                end.sink(stop, &AtomicU64::new(0));
                Ok(())
            }
        }
    }

    /// Measures, as the near end: microseconds.
    fn take(self, end: &mut End) -> anyhow::Result<f64> {
        match self {
            Self::HalfRoundTrip { count, .. } => {
                Ok(end.ping(count, Duration::ZERO)?.quantile(0.5) as f64 / 1e3)
            }
            Self::CpuTime { time, .. } => {
                // Sessions are up, and memory was touched, before it counts.
                end.flood(time / 10)?;
                let before = process_cpu_time();
                let count = end.flood(time)?;
                let used = process_cpu_time() - before;
                ensure!(count > 0, "no Put has ended");
                Ok(used.as_secs_f64() * 1e6 / count as f64)
            }
        }
    }
}

impl Cli {
    /// Between two nodes that reach each other.
    fn direct(&self, measure: Measure) -> anyhow::Result<f64> {
        let link = &self.options.link;
        link.pair(
            |ready, stop| {
                let mut end = End::open(link.far(), measure.config())?;
                ready();
                measure.answer(&mut end, stop)
            },
            || measure.take(&mut End::open(link.near(), measure.config())?),
        )
    }

    /// Between two nodes that a router joins.
    fn routed(&self, measure: Measure) -> anyhow::Result<f64> {
        let (link, second) = (&self.options.link, &self.second);
        let near = Side { peer: ProcessId::lustre(second.second_nid_a), ..link.near() };
        let far = Side {
            interface: &second.second_interface_a,
            nid: second.second_nid_a,
            peer: ProcessId::lustre(link.nid_a),
        };
        link.pair(
            |ready, stop| {
                let _router = self.router()?;
                ready();
                wait_until(stop);
                Ok(())
            },
            || {
                let mut near = open_behind(near, link.nid_b, measure)?;
                let mut far = open_behind(far, second.second_nid_b, measure)?;
                // A router tells that a net is up once a node there has asked it.
                let reaches = |end: &End, peer| end.lnet().ping(peer, None, PATIENCE).is_ok();
                until("the ends do not reach each other", || {
                    reaches(&near, second.second_nid_a) && reaches(&far, link.nid_a)
                })?;
                let stop = &AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let answers = scope.spawn(move || measure.answer(&mut far, stop));
                    let taken = measure.take(&mut near);
                    stop.store(true, Ordering::Relaxed);
                    answers.join().map_err(|_| anyhow!("the far end panicked"))??;
                    taken
                })
            },
        )
    }

    fn router(&self) -> anyhow::Result<Lnet> {
        let (link, second) = (&self.options.link, &self.second);
        let nis = [
            NiConfig::new(link.nid_b, &link.interface_b),
            NiConfig::new(second.second_nid_b, &second.second_interface_b),
        ];
        let config = NodeConfig::new(nis.into()).router_buffers(POOLS.iter().sum());
        let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(Duration::ZERO)))?;
        lnet.open()?;
        let pool = |(pool, buffer_count)| NodeChange::SetPool { pool, buffer_count };
        let pools = PoolKind::ALL.into_iter().zip(POOLS).map(pool);
        let routing = [NodeChange::SetRouting { on: true }];
        change(&lnet, checks().into_iter().chain(routing).chain(pools).collect())?;
        until("the router is not on", || lnet.machine().router_state() == RouterState::On)?;
        Ok(lnet)
    }
}

/// Opens an end whose peer is behind a gateway.
fn open_behind(side: Side<'_>, gateway: Nid, measure: Measure) -> anyhow::Result<End> {
    let end = End::open(side, measure.config())?;
    let route = NodeChange::AddRoute(RouteSpec::new(side.peer.nid.net(), gateway));
    change(end.lnet(), checks().into_iter().chain([route]).collect())?;
    Ok(end)
}

/// Looks at gateways come often: a router tells that it is one when others have had time for two.
fn checks() -> Vec<Change> {
    let waits = [(Parameter::AliveRouterCheckInterval, 1), (Parameter::RouterPingTimeout, 2)];
    waits.map(|(parameter, value)| NodeChange::SetParameter { parameter, value }).into()
}

fn until(failure: &str, is_true: impl Fn() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_true() {
        ensure!(begun.elapsed() < PATIENCE, "{failure}");
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn change(lnet: &Lnet, changes: Vec<Change>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(lnet.request(Request::batch(changes)))?;
    Ok(())
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let report = &cli.options.report;
    let (time, count) = (report.time(Duration::from_secs(2)), report.rounds(10_000));
    let ping = Measure::HalfRoundTrip { bytes: cli.options.size, count };
    let mut hop = Row::new("half a round trip");
    let mut floods = FLOODS.map(|(name, ..)| Row::new(name));
    report.turns(|| {
        let both = |measure| anyhow::Ok([cli.direct(measure)?, cli.routed(measure)?]);
        hop.add(both(ping)?);
        for ((_, bytes, window, _), row) in FLOODS.into_iter().zip(&mut floods) {
            row.add(both(Measure::CpuTime { bytes, window, time })?);
        }
        Ok(())
    })?;
    let mut checks = vec![Check::new("what a hop adds to half a round trip", hop.added.clone(), HOP)];
    for ((name, .., most), row) in FLOODS.into_iter().zip(&floods) {
        let what = format!("CPU time of the router / of both ends, {name}");
        checks.push(Check::new(what, row.added.clone(), Bound::AtMost(most)));
    }
    let checks = checks.into_iter().flatten().collect();
    let rows = std::iter::once(hop).chain(floods).collect();
    let document = Document { setup: cli.options.setup(), rows, checks };
    report.tell("routed.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mtu_bytes, size_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nhalf round trips of {size_bytes} bytes, and CPU time of a message on all nodes, us; MTU \
         {mtu_bytes}, threaded nodes that sleep\n{}",
        beside_heading(28, "", ["direct", "routed", "added"]),
    );
    for Row { name, direct_us, routed_us, added } in &document.rows {
        text += &beside_row(28, name, [(direct_us, 1), (routed_us, 1), (added, 2)]);
    }
    text + &checks_table(&document.checks)
        + "\nadded: by the router, as a part of the direct one, in each turn"
}
