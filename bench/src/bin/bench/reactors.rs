//! The cost of the reactor `epoll` beside `io_uring`: Puts and Gets between nodes with either, over UDP
//! sockets or, on a tcp net, over streams; in turns, over one veth pair.
//!
//! `cargo xtask bench --reactors` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::link::Side;
use lnet_bench::measure::{self, Flood};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_user::node::{ReactorChoice, XdpMode};
use lnet_wire::NetType;
use serde::Serialize;

/// Measures nodes with the reactor epoll beside nodes with io_uring.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --reactors   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Long messages that are under way at once.
const WINDOW: usize = 8;
const PUT: Operation = Operation::Put { ack: true };
/// What is sent at the rate of one sender, its bytes, and how many of them are under way.
const FLOODS: [(&str, Operation, usize, usize); 4] = [
    ("Puts of 64 bytes, Mega/s", PUT, 64, 64),
    ("Puts of 4 KiB, Gbit/s", PUT, 4096, 64),
    ("Puts of 1 MiB, Gbit/s", PUT, 1 << 20, WINDOW),
    ("Gets of 1 MiB, Gbit/s", Operation::Get, 1 << 20, WINDOW),
];
const REACTORS: [ReactorChoice; 2] = [ReactorChoice::IoUring, ReactorChoice::Epoll];
/// The most that `epoll` may cost, as a multiple of `io_uring`.
const AIM: f64 = 1.5;

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// Medians of the turns.
    io_uring: f64,
    epoll: f64,
    /// The cost of epoll as a multiple of io_uring's: the median of the turns, and all of them by size.
    cost: f64,
    costs: Vec<f64>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    /// The most that a cost is to be.
    aim: f64,
    rows: Vec<Row>,
}

/// What was measured of one thing, a turn after the other: io_uring's and epoll's.
#[derive(Default)]
struct Turns(Vec<[f64; 2]>);

impl Turns {
    /// The row; `is_time`: less is better.
    fn row(&self, name: &'static str, is_time: bool) -> Row {
        let cost = |[ring, epoll]: &[f64; 2]| if is_time { epoll / ring } else { ring / epoll };
        let costs = sorted(self.0.iter().map(cost));
        let of = |at: usize| middle(&sorted(self.0.iter().map(|turn| turn[at])));
        Row { name, io_uring: of(0), epoll: of(1), cost: middle(&costs), costs }
    }
}

/// The values in their order.
pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of values in their order; no number where there are none.
pub(crate) fn middle(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options }: Cli) -> anyhow::Result<()> {
    let (link, time) = (&options.link, options.time(Duration::from_secs(2)));
    let pings = if options.quick { 2_000 } else { 20_000 };
    let is_xdp = link.nid_a.net().net_type() == NetType::XDP;
    let mode = if is_xdp { XdpMode::Socket } else { XdpMode::Auto };
    let (mut half_us, mut rates) = (Turns::default(), FLOODS.map(|_| Turns::default()));
    options.turns(|| {
        let mut turn = [0.0; 2];
        for (reactor, value) in REACTORS.into_iter().zip(&mut turn) {
            let config = EndConfig { mode, reactor, ..EndConfig::puts(options.size) };
            let half_ns =
                measure::ping(link, |side: Side<'_>| messages::End::open(side, config), pings, |_| {})?;
            *value = half_ns.quantile(0.5) as f64 / 1e3;
        }
        half_us.0.push(turn);
        for ((_, operation, bytes, window), rates) in FLOODS.into_iter().zip(&mut rates) {
            for (reactor, value) in REACTORS.into_iter().zip(&mut turn) {
                // One buffer each: what is measured is the way of the bytes, and not the memory.
                let config = EndConfig { operation, window, mode, reactor, ..EndConfig::puts(bytes) };
                let flood = measure::flood(link, |side: Side<'_>| messages::End::open(side, config), time)?;
                // A message counts when it was answered.
                let answered = Flood { received: flood.sent, ..flood };
                *value = match bytes {
                    64 => answered.received_per_second() / 1e6,
                    _ => answered.gbit_per_second(bytes),
                };
            }
            rates.0.push(turn);
        }
        Ok(())
    })?;
    let mut rows = vec![half_us.row("Put, half a round trip, p50, us", true)];
    rows.extend(FLOODS.iter().zip(&rates).map(|((name, ..), rates)| rates.row(name, false)));
    let document = Document { setup: options.setup(), aim: AIM, rows };
    options.tell("reactors.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text = format!(
        "{machine}\n\nhalf round trips of {size_bytes} bytes, MTU {mtu_bytes}, mode {mode}\n\
         {:<34}{:>10}{:>10}{:>8}  turns\n",
        "", "io_uring", "epoll", "cost",
    );
    for Row { name, io_uring, epoll, cost, costs } in &document.rows {
        let turns: Vec<String> = costs.iter().map(|cost| format!("{cost:.2}")).collect();
        text += &format!("{name:<34}{io_uring:>10.3}{epoll:>10.3}{cost:>8.2}  {}\n", turns.join(" "));
    }
    text + &format!("\ncost: of epoll, as a multiple of io_uring's; aim: {AIM} at most")
}
