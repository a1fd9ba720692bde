//! What two rails carry beside one, in what shares, and how long no message ends when one of them is cut; and
//! what a Put costs to a peer that is discovered, beside one that is not: all in one run, over veth, between
//! threaded nodes.
//!
//! `cargo xtask bench --rails` makes the namespaces and calls this.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use clap::Args;
use lnet_admin::{Control, ControlOptions};
use lnet_bench::figure::{Bound, Check, Figure, checks_table};
use lnet_bench::link::{SecondRail, Side, enter};
use lnet_bench::measure::{Endpoint, PATIENCE};
use lnet_bench::messages::Operation;
use lnet_bench::options::{Options, Setup};
use lnet_bench::threaded::{End, ThreadedConfig};
use lnet_control::server::Handler;
use lnet_load::Distribution;
use lnet_user::api::Lnet;
use lnet_user::node::NiConfig;
use lnet_wire::{Global, Nid};
use lnet_xdp::bpf::Faults;
use serde::Serialize;

/// Measures two rails beside one.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --rails   (makes the namespaces and the veth pairs, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    second: SecondRail,
}

/// Messages that are under way at once.
const WINDOW: usize = 64;
const PUT: Operation = Operation::Put { ack: true };
/// The longest time without the end of a Put, with the default timeouts.
const FAILOVER_MS: f64 = 2000.0;
/// Time that Puts go before a rail is cut, and that it is cut: longer than none may end.
const BEFORE_CUT: Duration = Duration::from_millis(500);
const CUT: Duration = Duration::from_secs(3);
/// Bytes of the Put whose cost is measured one at a time.
const SMALL_BYTES: usize = 64;
/// All frames, of a million.
const ALL: u32 = 1_000_000;
const SUBJECTS: [&str; 3] = ["rail 1", "rail 2", "both"];
/// The rails that they use.
const RAILS: [[bool; 2]; 3] = [[true, false], [false, true], [true, true]];
/// How often it is looked whether Puts end.
const TICK: Duration = Duration::from_millis(1);

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// Puts with ACK.
    per_second: Figure,
    /// Percent of them that left by each of the NIs.
    shares: [Figure; 2],
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    rows: Vec<Row>,
    /// Half round trip p50 of a Put of 64 bytes, between nodes that do not discover each other and nodes that
    /// have.
    half_round_trip_us: [Figure; 2],
    checks: Vec<Check>,
}

/// What the sending end has found.
struct Carried {
    per_second: f64,
    by_ni: Vec<u64>,
}

impl Cli {
    /// The NIs of an end on these rails, and the NID that the other end goes by.
    fn end(&self, is_near: bool, rails: [bool; 2]) -> (Vec<NiConfig>, Nid) {
        let (link, second) = (&self.options.link, &self.second);
        let near = [(link.nid_a, &link.interface_a), (second.second_nid_a, &second.second_interface_a)];
        let far = [(link.nid_b, &link.interface_b), (second.second_nid_b, &second.second_interface_b)];
        let (own, others) = if is_near { (near, far) } else { (far, near) };
        let used = |number: &usize| rails[*number];
        let nis = (0..2).filter(used).map(|number| NiConfig::new(own[number].0, own[number].1));
        let peer = others[usize::from(!rails[0])].0;
        (nis.collect(), peer)
    }

    /// Puts by these rails for a time; `ended` counts what was seen of their ends.
    fn carry(&self, rails: [bool; 2], time: Duration, ended: &AtomicU64) -> anyhow::Result<Carried> {
        let bytes = self.options.size;
        let open = |is_near| {
            let (nis, peer) = self.end(is_near, rails);
            End::open_with(nis, peer, ThreadedConfig::new(PUT, bytes, WINDOW))
        };
        self.options.link.pair(
            |ready, stop| {
                let mut end = open(false)?;
                ready();
                end.sink(stop, &AtomicU64::new(0));
                Ok(())
            },
            || {
                let mut end = open(true)?;
                let (nis, peer) = self.end(true, rails);
                await_nids(end.lnet(), peer, nis.len())?;
                let (before, begun) = (sent(end.lnet())?, Instant::now());
                let count = end.flood_watched(time, || {
                    ended.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })?;
                let per_second = count as f64 / begun.elapsed().as_secs_f64();
                let after = sent(end.lnet())?;
                let by_ni = after.iter().zip(before).map(|(after, before)| after - before).collect();
                Ok(Carried { per_second, by_ni })
            },
        )
    }

    /// Has XDP drop everything on the first rail, in both directions, under load: the longest time in which
    /// no Put ended.
    fn failover(&self) -> anyhow::Result<Duration> {
        let ended = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| self.cut_and_watch(&ended));
            let carried = self.carry([true; 2], 2 * BEFORE_CUT + CUT, &ended);
            let longest = watcher.join().map_err(|_| anyhow!("the thread that cuts the rail panicked"))?;
            carried?;
            longest
        })
    }

    fn cut_and_watch(&self, ended: &AtomicU64) -> anyhow::Result<Duration> {
        let link = &self.options.link;
        let (count, begun) = (|| ended.load(Ordering::Relaxed), Instant::now());
        while count() == 0 {
            ensure!(begun.elapsed() < PATIENCE, "no Put has ended for {PATIENCE:?}");
            std::thread::sleep(TICK);
        }
        std::thread::sleep(BEFORE_CUT);
        let ends = [(&link.netns_a, &link.interface_a), (&link.netns_b, &link.interface_b)];
        let mut rules = Vec::new();
        for (netns, interface) in ends {
            enter(netns)?;
            rules.push(Faults::attached_to(interface)?);
        }
        rules.iter_mut().try_for_each(|faults| faults.set_loss(ALL))?;
        let (begun, mut last, mut longest) = (Instant::now(), (Instant::now(), count()), Duration::ZERO);
        while begun.elapsed() < CUT {
            std::thread::sleep(TICK);
            longest = longest.max(last.0.elapsed());
            if count() > last.1 {
                last = (Instant::now(), count());
            }
        }
        rules.iter_mut().try_for_each(|faults| faults.set_loss(0))?;
        Ok(longest)
    }

    /// Half round trips of small Puts between nodes of one NI that discover each other, or do not.
    fn small(&self, discovers: bool, count: u64) -> anyhow::Result<Distribution> {
        let open = |side: Side<'_>| {
            let put = ThreadedConfig::new(Operation::Put { ack: false }, SMALL_BYTES, WINDOW);
            let end = End::open(side, put)?;
            end.lnet().set(Global::Discovery, discovers.into())?;
            anyhow::Ok(end)
        };
        let link = &self.options.link;
        link.pair(
            |ready, stop| {
                let mut end = open(link.far())?;
                ready();
                end.echo(stop)
            },
            || {
                let mut end = open(link.near())?;
                if discovers {
                    end.lnet().discover(link.nid_b, true)?;
                }
                end.ping(count, Duration::ZERO)
            },
        )
    }
}

/// Waits until a node knows so many NIDs of its peer.
fn await_nids(lnet: &Lnet, peer: Nid, count: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let found = lnet.discover(peer, true).map(|_| lnet.peers());
        if let Ok(Ok(peers)) = &found
            && peers.iter().any(|known| known.nids().len() == count)
        {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "{peer} is not known by {count} nids: {found:?}");
        std::thread::sleep(10 * TICK);
    }
}

/// Puts that a node has sent by each NI.
fn sent(lnet: &Lnet) -> anyhow::Result<Vec<u64>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let control = Control::new(lnet, ControlOptions::default())?;
    let nets = runtime.block_on(control.nets()).map_err(|error| anyhow!("{error:?}"))?;
    let nis = nets.iter().flat_map(|net| &net.nis).filter(|ni| !ni.nid.is_loopback());
    Ok(nis.map(|ni| ni.traffic.sent.put).collect())
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let (options, report) = (&cli.options, &cli.options.report);
    let (time, pings) = (report.time(Duration::from_secs(2)), report.rounds(20_000));
    let figures = || [Figure::default(), Figure::default()];
    let row = |name| Row { name, per_second: Figure::default(), shares: figures() };
    let (mut rows, mut half_us) = (SUBJECTS.map(row), figures());
    let (mut over_better, mut failover_ms) = (Figure::default(), Figure::default());
    report.turns(|| {
        let mut rates = [0.0; SUBJECTS.len()];
        for ((rails, row), rate) in RAILS.into_iter().zip(&mut rows).zip(&mut rates) {
            let carried = cli.carry(rails, time, &AtomicU64::new(0))?;
            *rate = carried.per_second;
            row.per_second.add(carried.per_second);
            let all: u64 = carried.by_ni.iter().sum();
            let mut by_ni = carried.by_ni.iter();
            for (is_used, share) in rails.into_iter().zip(&mut row.shares) {
                let count = if is_used { by_ni.next() } else { None };
                share.add(count.map(|count| 100.0 * *count as f64 / all as f64));
            }
        }
        let [first, second, both] = rates;
        over_better.add(both / first.max(second));
        for (half_us, discovers) in half_us.iter_mut().zip([false, true]) {
            half_us.add(cli.small(discovers, pings)?.quantile(0.5) as f64 / 1e3);
        }
        failover_ms.add(cli.failover()?.as_secs_f64() * 1e3);
        Ok(())
    })?;
    let checks = [
        Check::new("both rails / the better one, Puts a second", over_better, Bound::AtLeast(0.95)),
        Check::new(
            "first rail drops everything: no Put ended for, ms",
            failover_ms,
            Bound::AtMost(FAILOVER_MS),
        ),
    ];
    let document = Document {
        setup: options.setup(),
        rows: rows.into(),
        half_round_trip_us: half_us,
        checks: checks.into_iter().flatten().collect(),
    };
    report.tell("rails.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mtu_bytes, size_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nPuts of {size_bytes} bytes with ACK, {WINDOW} at once, MTU {mtu_bytes}, threaded nodes of one \
         shard\n{:<12}{:>12}{:>24}{:>22}{:>22}\n",
        "", "a second", "(range)", "rail 1 %", "rail 2 %"
    );
    for Row { name, per_second, shares: [first, second] } in &document.rows {
        let (rate, range) = (per_second.cell(0), per_second.range_cell(0));
        let _ =
            writeln!(text, "{name:<12}{rate:>12}{range:>24}{:>22}{:>22}", first.cells(1), second.cells(1));
    }
    let [unknown, known] = document.half_round_trip_us.each_ref().map(|half_us| half_us.cells(2));
    let _ = write!(
        text,
        "\nPut of {SMALL_BYTES} bytes, half a round trip: {unknown} us to a peer that is not discovered, {known} us to one \
         that is\n{}",
        checks_table(&document.checks)
    );
    text
}
