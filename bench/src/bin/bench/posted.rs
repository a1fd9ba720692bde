//! What matching does to the rate of small Puts over a veth pair, by the number of exact entries that the
//! receiver has posted: with one, and with as many as are asked for, in turns, messages in random order.
//!
//! `cargo xtask bench --posted N` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::figure::Figure;
use lnet_bench::link::Side;
use lnet_bench::measure;
use lnet_bench::messages::{End, EndConfig};
use lnet_bench::options::{Options, Setup};
use serde::Serialize;

/// Measures the rate of Puts with 1 and with many exact entries posted.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --posted 1000000   (makes the namespaces, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Exact entries posted, 1 to 16777216.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    posted: u32,
}

/// Puts a second.
#[derive(Serialize)]
struct Rates {
    #[serde(flatten)]
    setup: Setup,
    posted: u32,
    with_one: Figure,
    with_all: Figure,
    ratio: Figure,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, posted }: Cli) -> anyhow::Result<()> {
    let (mut with_one, mut with_all) = (Figure::default(), Figure::default());
    options.report.turns(|| {
        with_one.add(measure(&options, 1)?);
        with_all.add(measure(&options, posted)?);
        Ok(())
    })?;
    let ratio = with_all.over(&with_one);
    let rates = Rates { setup: options.setup(), posted, with_one, with_all, ratio };
    options.report.tell("posted.json", &rates, &table(&rates))?;
    Ok(())
}

fn table(rates: &Rates) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &rates.setup;
    format!(
        "{machine}\n{size_bytes} bytes, MTU {mtu_bytes}, mode {mode}: Puts received a second, median of the \
         turns (range)\n\n{:>10} entry posted   {}\n{:>10} entries posted {}   ratio {}",
        1,
        rates.with_one.cells(0),
        rates.posted,
        rates.with_all.cells(0),
        rates.ratio.cells(2)
    )
}

/// Puts received a second with so many entries posted, match bits at random.
fn measure(options: &Options, posted: u32) -> anyhow::Result<f64> {
    let (link, puts) = (&options.link, EndConfig::puts(options.size));
    let open = |side: Side<'_>| {
        let is_near = side.nid == link.near().nid;
        let config = if is_near {
            EndConfig { peer_entries: posted, ..puts }
        } else {
            EndConfig { entries: posted, silent: true, ..puts }
        };
        End::open(side, config)
    };
    Ok(measure::flood(link, open, options.report.time(Duration::from_secs(1)))?.received_per_second())
}
