//! What the messaging layer adds to LNet: round trips of messages beside those of bare Puts, buffers that are
//! fetched beside bare Gets, all in one run, in turns, over one veth pair; and what queues, pools and the
//! event ring cost by themselves.
//!
//! `cargo xtask bench --messaging` makes the namespaces and calls this.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, checks_table};
use lnet_bench::link::Side;
use lnet_bench::measure::{self, gigabits};
use lnet_bench::messages::Operation;
use lnet_bench::messaging;
use lnet_bench::messaging::Offered;
use lnet_bench::options::{Document, Options, Setup};
use lnet_bench::queues::{self, Over};
use lnet_bench::threaded::{self, Sources, ThreadedConfig};
use lnet_user::node::Carrier;
use serde::Serialize;

/// Measures transfer machines beside the bare LNet messages that they are made of.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --messaging   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Bytes of a buffer that is fetched.
    #[arg(long, default_value_t = 1 << 20)]
    bulk: usize,
}

/// Buffers that are fetched at once.
const WINDOW: usize = 8;
/// Carriers of long messages that fetches are measured with, at both ends: what a node chooses, and rings,
/// which alone send out of registered memory without a copy.
const CARRIERS: [Carrier; 2] = [Carrier::Auto, Carrier::Rings];
/// Few transfer machines and many; buffers of each.
const MACHINES: [u32; 2] = [10, 1000];
const BUFFERS_EACH: u32 = 100;
/// Buffers of each that stay queued where messages stand beside Puts.
const IDLE_EACH: u32 = 1;
/// Cases of additions and ends: shards, and transfer machines beside the few.
const SPREAD: [(u32, u32); 4] = [(1, 100), (1, 1000), (2, 100), (2, 1000)];

/// Transfer machines whose messages are counted, on one shard and on two.
const TALKERS: u32 = 16;

/// A figure beside what it is compared with: that of bare LNet, or of a smaller case.
#[derive(Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    measured: Figure,
    /// `None`: the bound is for the figure itself.
    baseline: Option<Figure>,
    ratio: Option<Figure>,
}

/// The figures of each turn, in the order of the rows: measured, baseline.
#[derive(Default)]
struct Figures {
    round_trip_us: [Figure; 2],
    /// Buffers fetched beside Gets, with what nodes choose and by rings.
    fetches: [[Figure; 2]; CARRIERS.len()],
    /// Registered buffers, by rings.
    registered_fetches: Figure,
    message_ns: [Figure; 2],
    message_to_each_ns: [Figure; 2],
    /// Messages of one and of the few, each beside Puts by as many event queues.
    beside_puts_ns: [[Figure; 2]; 2],
    /// Additions and ends, by the cases of [`SPREAD`].
    spread: [[[Figure; 2]; 2]; SPREAD.len()],
    /// Rates on two shards, and on one.
    message_rate: [Figure; 2],
    local: [Figure; 2],
    ring: Figure,
    pool: [Figure; 2],
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, bulk }: Cli) -> anyhow::Result<()> {
    let mut figures = Figures::default();
    options.report.turns(|| measure(&options, bulk, &mut figures))?;
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for (row, bound) in self::rows(&figures) {
        let judged = row.ratio.as_ref().unwrap_or(&row.measured);
        let name = if row.ratio.is_some() { row.name.clone() } else { format!("{}, {}", row.name, row.unit) };
        checks.extend(bound.and_then(|bound| Check::new(name, judged.clone(), bound)));
        rows.push(row);
    }
    let document = Document { setup: options.setup(), rows, checks };
    options.report.tell("messaging.json", &document, &table(&document))?;
    Ok(())
}

fn measure(options: &Options, bulk: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let (link, time) = (&options.link, options.report.time(Duration::from_secs(2)));
    let part = |count: u32| options.report.rounds(count.into()) as u32;
    let put = ThreadedConfig::new(Operation::Put { ack: false }, options.size, 1);
    let open = |side: Side<'_>| threaded::End::open(side, put);
    let bare = measure::ping(link, open, part(50_000).into(), |_| {})?;
    let through = messaging::ping(link, options.size, part(50_000).into())?;
    for (of, half_ns) in figures.round_trip_us.iter_mut().zip([through, bare]) {
        of.add(2.0 * half_ns.quantile(0.5) as f64 / 1000.0);
    }
    for (figures, carrier) in figures.fetches.iter_mut().zip(CARRIERS) {
        // Each buffer that is fetched has a descriptor of its own, so that each Get has one as well.
        let get = ThreadedConfig::new(Operation::Get, bulk, WINDOW);
        let get = ThreadedConfig { sources: Sources::Each, carrier, ..get };
        let open = |side: Side<'_>| threaded::End::open(side, get);
        let bare = measure::flood(link, open, time)?.sent_per_second();
        let through = messaging::fetches_per_second(link, bulk, WINDOW, time, (Offered::Ordinary, carrier))?;
        for (of, rate) in figures.iter_mut().zip([through, bare]) {
            of.add(gigabits(rate, bulk));
        }
    }
    let by_rings = (Offered::Registered, Carrier::Rings);
    let registered = messaging::fetches_per_second(link, bulk, WINDOW, time, by_rings)?;
    figures.registered_fetches.add(gigabits(registered, bulk));
    let [few, many] = MACHINES;
    for (of, machines) in figures.message_ns.iter_mut().zip([many, few]) {
        of.add(queues::message_ns(machines, BUFFERS_EACH, few, part(20_000))?);
    }
    for (of, machines) in figures.message_to_each_ns.iter_mut().zip([many, few]) {
        of.add(queues::message_ns(machines, BUFFERS_EACH, machines, part(20_000))?);
    }
    for ([of, beside], machines) in figures.beside_puts_ns.iter_mut().zip([1, few]) {
        of.add(queues::message_ns(machines, IDLE_EACH, machines, part(20_000))?);
        beside.add(queues::put_ns(machines, part(20_000))?);
    }
    for (of, shards) in figures.message_rate.iter_mut().zip([2, 1]) {
        of.add(queues::messages_per_second(shards, TALKERS, part(20_000).into())? / 1e3);
    }
    measure_spread(part(1000), &mut figures.spread)?;
    for (of, is_coloured) in figures.local.iter_mut().zip([true, false]) {
        of.add(queues::pooled_messages_per_second(is_coloured, part(10_000))? / 1e3);
    }
    let events = u64::from(part(50_000_000));
    figures.ring.add(queues::events_through_ring_per_second(events)? / 1e6);
    for (of, over) in figures.pool.iter_mut().zip([Over::Mem, Over::Loopback]) {
        of.add(queues::provisions_per_second(over, part(100_000))? / 1e6);
    }
    Ok(())
}

/// The few are measured anew beside each case: what a machine does changes by the minute.
fn measure_spread(rounds: u32, figures: &mut [[[Figure; 2]; 2]; SPREAD.len()]) -> anyhow::Result<()> {
    for (figures, (shards, many)) in figures.iter_mut().zip(SPREAD) {
        for (which, machines) in [many, MACHINES[0]].into_iter().enumerate() {
            let taken = queues::add_and_end_ns(shards, machines, BUFFERS_EACH, rounds)?;
            figures.iter_mut().zip(taken).for_each(|(of, ns)| of[which].add(ns));
        }
    }
    Ok(())
}

/// The rows, and their bounds.
fn rows(figures: &Figures) -> Vec<(Row, Option<Bound>)> {
    use Bound::{AtLeast, AtMost};
    let Figures {
        round_trip_us,
        fetches: [fetches, fetches_by_rings],
        registered_fetches,
        message_ns,
        message_to_each_ns,
        beside_puts_ns: [one_ns, few_ns],
        spread,
        message_rate,
        local,
        ring,
        pool,
    } = figures;
    let row = |name: &str, unit, measured: &Figure, baseline: Option<&Figure>, bound| {
        let (name, measured, baseline) = (name.to_owned(), measured.clone(), baseline.cloned());
        let ratio = baseline.as_ref().map(|baseline| measured.over(baseline));
        (Row { name, unit, measured, baseline, ratio }, bound)
    };
    let beside =
        |name: &str, unit, [of, baseline]: &[Figure; 2], bound| row(name, unit, of, Some(baseline), bound);
    let alone = |name: &str, of, bound| row(name, "million/s", of, None, Some(AtLeast(bound)));
    let spread = spread.iter().zip(SPREAD).flat_map(|([add, end], (shards, many))| {
        let of = |what, figures| {
            let few = MACHINES[0];
            let name = format!("{what} among {many} / {few} TMs, {shards} shards");
            beside(&name, "ns", figures, Some(AtMost(1.25)))
        };
        [of("addition", add), of("end", end)]
    });
    let mut rows = vec![
        beside("message, round trip / Put", "us", round_trip_us, Some(AtMost(1.25))),
        beside("buffer fetched / Get", "Gbit/s", fetches, Some(AtLeast(0.95))),
        beside("buffer fetched / Get, rings", "Gbit/s", fetches_by_rings, Some(AtLeast(0.95))),
        row("registered / not, rings", "Gbit/s", registered_fetches, Some(&fetches_by_rings[0]), None),
        beside("message among 100,000 / 1,000 buffers", "ns", message_ns, Some(AtMost(1.25))),
        beside("the same, to 1,000 / 10 in turn", "ns", message_to_each_ns, None),
        beside("message of 1 TM / Put, 1 event queue", "ns", one_ns, Some(AtMost(2.0))),
        beside("message of 10 TMs / Put, 10 queues", "ns", few_ns, Some(AtMost(1.0 / 0.7))),
        beside("messages of 16 TMs, 2 shards / 1", "thousand/s", message_rate, None),
        beside("256 KiB to a pool, by colour / age", "thousand/s", local, None),
        alone("events through the ring", ring, 50.0),
        alone("buffers provisioned, mem", &pool[0], 1.0),
        alone("buffers provisioned, lnet", &pool[1], 1.0),
    ];
    rows.extend(spread);
    rows
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mode = if mode.is_empty() { "of threaded nodes" } else { mode };
    let mut text = format!(
        "{machine}\n\nmessages of {size_bytes} bytes, MTU {mtu_bytes}, mode {mode}: medians of the turns\n\
         {:<50}{:>10}{:>22}{:>10}{:>22}{:>8}{:>16}\n",
        "", "measured", "(range)", "beside", "(range)", "ratio", "(range)"
    );
    for Row { name, unit, measured, baseline, ratio } in &document.rows {
        let cells = |of: Option<&Figure>| {
            of.map_or_else(|| ["-", "-"].map(str::to_owned), |of| [of.cell(2), of.range_cell(2)])
        };
        let [[measured, range], [beside, beside_range], [ratio, ratios]] =
            [cells(Some(measured)), cells(baseline.as_ref()), cells(ratio.as_ref())];
        let _ = writeln!(
            text,
            "{:<50}{measured:>10}{range:>22}{beside:>10}{beside_range:>22}{ratio:>8}{ratios:>16}",
            format!("{name}, {unit}"),
        );
    }
    text + &checks_table(&document.checks)
}
