//! What matching does to the rate of small Puts over a veth pair, by the number of exact entries that the
//! receiver has posted: with one, and with as many as are asked for, in turns, messages in random order.
//!
//! `cargo xtask bench --posted N` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::link::Side;
use lnet_bench::measure;
use lnet_bench::messages::{End, EndConfig};
use lnet_bench::options::{Options, Setup, TURNS};
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

/// Puts a second, by turn.
#[derive(Serialize)]
struct Rates {
    #[serde(flatten)]
    setup: Setup,
    posted: u32,
    with_one: Vec<f64>,
    with_all: Vec<f64>,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, posted }: Cli) -> anyhow::Result<()> {
    let (mut with_one, mut with_all) = (Vec::new(), Vec::new());
    options.turns(|| {
        with_one.push(measure(&options, 1)?);
        with_all.push(measure(&options, posted)?);
        Ok(())
    })?;
    let rates = Rates { setup: options.setup(), posted, with_one, with_all };
    options.tell("posted.json", &rates, &table(&rates))?;
    Ok(())
}

fn table(rates: &Rates) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &rates.setup;
    let (one, all) = (median(&rates.with_one), median(&rates.with_all));
    format!(
        "{machine}\n{size_bytes} bytes, MTU {mtu_bytes}, mode {mode}: Puts received a second, median of {TURNS} \
         turns\n\n{:>10} entry posted   {one:>12.0}\n{:>10} entries posted {all:>12.0}   ratio {:.2}",
        1,
        rates.posted,
        all / one
    )
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
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
    Ok(measure::flood(link, open, options.time(Duration::from_secs(1)))?.received_per_second())
}
