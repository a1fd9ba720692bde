//! What the messaging layer adds to LNet: round trips of messages beside those of bare Puts, buffers that are
//! fetched beside bare Gets, all in one run, in turns, over one veth pair; and what queues, pools and the
//! event ring cost by themselves.
//!
//! `cargo xtask bench --messaging` makes the namespaces and calls this.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use lnet_bench::link::Side;
use lnet_bench::messages::Operation;
use lnet_bench::messaging::Offered;
use lnet_bench::options::{Options, Setup, TURNS};
use lnet_bench::queues::{self, Over};
use lnet_bench::{measure, messaging, threaded};
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
/// Few transfer machines and many; buffers of each.
const MACHINES: [u32; 2] = [10, 1000];
const BUFFERS_EACH: u32 = 100;
/// Buffers of each that stay queued where messages stand beside Puts.
const IDLE_EACH: u32 = 1;
/// Cases of additions and ends: shards, and transfer machines beside the few.
const SPREAD: [(u32, u32); 4] = [(1, 100), (1, 1000), (2, 100), (2, 1000)];

/// Transfer machines whose messages are counted, on one shard and on two.
const TALKERS: u32 = 16;

/// A figure beside what it is compared with: that of bare LNet, or of a smaller case. Medians over the turns.
#[derive(Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    measured: f64,
    /// `None`: the bound is for the figure itself.
    baseline: Option<f64>,
    #[serde(flatten)]
    limit: Option<Limit>,
}

/// The ratio, or the figure, that a row should have.
#[derive(Serialize, Clone, Copy)]
struct Limit {
    bound: f64,
    bound_is: Bound,
}

const fn at_most(bound: f64) -> Option<Limit> {
    Some(Limit { bound, bound_is: Bound::Most })
}

const fn at_least(bound: f64) -> Option<Limit> {
    Some(Limit { bound, bound_is: Bound::Least })
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Bound {
    Most,
    Least,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    rows: Vec<Row>,
}

/// The figures of each turn, in the order of the rows: measured, baseline.
#[derive(Default)]
struct Figures {
    round_trip_us: [Vec<f64>; 2],
    fetches: [Vec<f64>; 2],
    registered_fetches: Vec<f64>,
    message_ns: [Vec<f64>; 2],
    message_to_each_ns: [Vec<f64>; 2],
    /// Messages of one and of the few, each beside Puts by as many event queues.
    beside_puts_ns: [[Vec<f64>; 2]; 2],
    /// Additions and ends, by the cases of [`SPREAD`].
    spread: [[[Vec<f64>; 2]; 2]; SPREAD.len()],
    /// Rates on two shards, and on one.
    message_rate: [Vec<f64>; 2],
    local: [Vec<f64>; 2],
    ring: Vec<f64>,
    pool: [Vec<f64>; 2],
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, bulk }: Cli) -> anyhow::Result<()> {
    let mut figures = Figures::default();
    options.turns(|| measure(&options, bulk, &mut figures))?;
    let document = Document { setup: options.setup(), rows: rows(&figures) };
    options.tell("messaging.json", &document, &table(&document))?;
    Ok(())
}

fn measure(options: &Options, bulk: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let (link, time) = (&options.link, options.time(Duration::from_secs(2)));
    let (quick, full) = if options.quick { (1, 10) } else { (10, 10) };
    let part = |count: u32| count * quick / full;
    let put = Operation::Put { ack: false };
    let open = |side: Side<'_>| threaded::End::open(side, put, options.size, 1);
    let bare = measure::ping(link, open, part(50_000).into(), |_| {})?;
    let through = messaging::ping(link, options.size, part(50_000).into())?;
    for (of, half_ns) in figures.round_trip_us.iter_mut().zip([through, bare]) {
        of.push(2.0 * half_ns.quantile(0.5) as f64 / 1000.0);
    }
    let open = |side: Side<'_>| threaded::End::open(side, Operation::Get, bulk, WINDOW);
    let bare = measure::flood(link, open, time)?.sent_per_second();
    let through = messaging::fetches_per_second(link, bulk, WINDOW, time, Offered::Ordinary)?;
    let registered = messaging::fetches_per_second(link, bulk, WINDOW, time, Offered::Registered)?;
    let gigabits = |rate: f64| rate * bulk as f64 * 8.0 / 1e9;
    for (of, rate) in figures.fetches.iter_mut().zip([through, bare]) {
        of.push(gigabits(rate));
    }
    figures.registered_fetches.push(gigabits(registered));
    let [few, many] = MACHINES;
    for (of, machines) in figures.message_ns.iter_mut().zip([many, few]) {
        of.push(queues::message_ns(machines, BUFFERS_EACH, few, part(20_000))?);
    }
    for (of, machines) in figures.message_to_each_ns.iter_mut().zip([many, few]) {
        of.push(queues::message_ns(machines, BUFFERS_EACH, machines, part(20_000))?);
    }
    for ([of, beside], machines) in figures.beside_puts_ns.iter_mut().zip([1, few]) {
        of.push(queues::message_ns(machines, IDLE_EACH, machines, part(20_000))?);
        beside.push(queues::put_ns(machines, part(20_000))?);
    }
    for (of, shards) in figures.message_rate.iter_mut().zip([2, 1]) {
        of.push(queues::messages_per_second(shards, TALKERS, part(20_000).into())? / 1e3);
    }
    measure_spread(part(1000), &mut figures.spread)?;
    for (of, is_coloured) in figures.local.iter_mut().zip([true, false]) {
        of.push(queues::pooled_messages_per_second(is_coloured, part(10_000))? / 1e3);
    }
    let events = u64::from(part(50_000_000));
    figures.ring.push(queues::events_through_ring_per_second(events)? / 1e6);
    for (of, over) in figures.pool.iter_mut().zip([Over::Mem, Over::Loopback]) {
        of.push(queues::provisions_per_second(over, part(100_000))? / 1e6);
    }
    Ok(())
}

/// The few are measured anew beside each case: what a machine does changes by the minute.
fn measure_spread(rounds: u32, figures: &mut [[[Vec<f64>; 2]; 2]; SPREAD.len()]) -> anyhow::Result<()> {
    for (figures, (shards, many)) in figures.iter_mut().zip(SPREAD) {
        for (which, machines) in [many, MACHINES[0]].into_iter().enumerate() {
            let taken = queues::add_and_end_ns(shards, machines, BUFFERS_EACH, rounds)?;
            figures.iter_mut().zip(taken).for_each(|(of, ns)| of[which].push(ns));
        }
    }
    Ok(())
}

fn rows(figures: &Figures) -> Vec<Row> {
    let Figures {
        round_trip_us,
        fetches,
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
    let beside = |name: &str, unit, [of, baseline]: [&[f64]; 2], limit| Row {
        name: name.to_owned(),
        unit,
        measured: median(of),
        baseline: Some(median(baseline)),
        limit,
    };
    let alone = |name: &str, of, bound| Row {
        name: name.to_owned(),
        unit: "million/s",
        measured: median(of),
        baseline: None,
        limit: at_least(bound),
    };
    let spread = spread.iter().zip(SPREAD).flat_map(|([add, end], (shards, many))| {
        let of = |what, figures| {
            let few = MACHINES[0];
            let name = format!("{what} among {many} / {few} TMs, {shards} shards");
            beside(&name, "ns", both(figures), at_most(1.25))
        };
        [of("addition", add), of("end", end)]
    });
    let mut rows = vec![
        beside("message, round trip / Put", "us", both(round_trip_us), at_most(1.25)),
        beside("buffer fetched / Get", "Gbit/s", both(fetches), at_least(0.95)),
        beside("the same, registered / not", "Gbit/s", [registered_fetches, &fetches[0]], None),
        beside("message among 100,000 / 1,000 buffers", "ns", both(message_ns), at_most(1.25)),
        beside("the same, to 1,000 / 10 in turn", "ns", both(message_to_each_ns), None),
        beside("message of 1 TM / Put, 1 event queue", "ns", both(one_ns), at_most(2.0)),
        beside("message of 10 TMs / Put, 10 queues", "ns", both(few_ns), at_most(1.0 / 0.7)),
        beside("messages of 16 TMs, 2 shards / 1", "thousand/s", both(message_rate), None),
        beside("256 KiB to a pool, by colour / age", "thousand/s", both(local), None),
        alone("events through the ring", ring, 50.0),
        alone("buffers provisioned, mem", &pool[0], 1.0),
        alone("buffers provisioned, lnet", &pool[1], 1.0),
    ];
    rows.extend(spread);
    rows
}

/// The figures of a row and of what it is compared with.
fn both(of: &[Vec<f64>; 2]) -> [&[f64]; 2] {
    of.each_ref().map(Vec::as_slice)
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mode = if mode.is_empty() { "of threaded nodes" } else { mode };
    let mut text = format!(
        "{machine}\n\nmessages of {size_bytes} bytes, MTU {mtu_bytes}, mode {mode}: median of {TURNS} turns\n\
         {:<40}{:>10}{:>10}{:>8}{:>10}\n",
        "", "measured", "beside", "ratio", "bound"
    );
    for Row { name, unit, measured, baseline, limit } in &document.rows {
        let bound = limit.map_or("-".to_owned(), |Limit { bound, bound_is }| {
            format!("{} {bound:.2}", if bound_is == Bound::Most { "<=" } else { ">=" })
        });
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let ratio = baseline.map(|baseline| measured / baseline);
        let _ = writeln!(
            text,
            "{:<40}{measured:>10.2}{:>10}{:>8}{:>10}",
            format!("{name}, {unit}"),
            cell(*baseline),
            cell(ratio),
            bound,
        );
    }
    text.trim_end().to_owned()
}
