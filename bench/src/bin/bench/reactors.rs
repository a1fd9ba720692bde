//! The cost of the reactor `epoll` beside `io_uring`: Puts and Gets between nodes with either, over UDP
//! sockets or, on a tcp net, over streams; in turns, over one veth pair.
//!
//! `cargo xtask bench --reactors` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, beside_heading, beside_row, checks_table};
use lnet_bench::link::Side;
use lnet_bench::measure::{self, gigabits};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Document, Options, Setup};
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
const AIM: Bound = Bound::AtMost(1.5);

#[derive(Serialize)]
struct Row {
    name: &'static str,
    io_uring: Figure,
    epoll: Figure,
    /// The cost of epoll as a multiple of io_uring's.
    cost: Figure,
}

/// The row of io_uring's figures and epoll's; `is_time`: less is better.
fn row(name: &'static str, [io_uring, epoll]: [Figure; 2], is_time: bool) -> Row {
    let cost = if is_time { epoll.over(&io_uring) } else { io_uring.over(&epoll) };
    Row { name, io_uring, epoll, cost }
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options }: Cli) -> anyhow::Result<()> {
    let (link, report) = (&options.link, &options.report);
    let (time, pings) = (report.time(Duration::from_secs(2)), report.rounds(20_000));
    let is_xdp = link.nid_a.net().net_type() == NetType::XDP;
    let mode = if is_xdp { XdpMode::Socket } else { XdpMode::Auto };
    let figures = || [Figure::default(), Figure::default()];
    let (mut half_us, mut rates) = (figures(), FLOODS.map(|_| figures()));
    report.turns(|| {
        for (reactor, half_us) in REACTORS.into_iter().zip(&mut half_us) {
            let config = EndConfig { mode, reactor, ..EndConfig::puts(options.size) };
            let half_ns =
                measure::ping(link, |side: Side<'_>| messages::End::open(side, config), pings, |_| {})?;
            half_us.add(half_ns.quantile(0.5) as f64 / 1e3);
        }
        for ((_, operation, bytes, window), rates) in FLOODS.into_iter().zip(&mut rates) {
            for (reactor, rate) in REACTORS.into_iter().zip(rates) {
                let config = EndConfig { mode, reactor, ..EndConfig::answered(operation, bytes, window) };
                let flood = measure::flood(link, |side: Side<'_>| messages::End::open(side, config), time)?;
                // A message counts when it was answered.
                let answered = flood.sent_per_second();
                rate.add(if bytes == 64 { answered / 1e6 } else { gigabits(answered, bytes) });
            }
        }
        Ok(())
    })?;
    let mut rows = vec![row("Put, half a round trip, p50, us", half_us, true)];
    rows.extend(FLOODS.iter().zip(rates).map(|((name, ..), rates)| row(name, rates, false)));
    let check = |row: &Row| Check::new(format!("{}: epoll's cost", row.name), row.cost.clone(), AIM);
    let checks = rows.iter().filter_map(check).collect();
    let document = Document { setup: options.setup(), rows, checks };
    report.tell("reactors.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text = format!(
        "{machine}\n\nhalf round trips of {size_bytes} bytes, MTU {mtu_bytes}, mode {mode}\n{}",
        beside_heading(34, "", ["io_uring", "epoll", "cost"]),
    );
    for Row { name, io_uring, epoll, cost } in &document.rows {
        text += &beside_row(34, name, [(io_uring, 3), (epoll, 3), (cost, 2)]);
    }
    text + &checks_table(&document.checks) + "\ncost: of epoll, as a multiple of io_uring's, in each turn"
}
