//! What an LNet Put costs beside raw `AF_XDP`, from shards that the application drives and from such with
//! threads of their own: measured in one run, in turns, over one veth pair.
//!
//! `cargo xtask bench` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::link::Side;
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::Options;
use lnet_bench::output::{self, Document, Measured};
use lnet_bench::{measure, raw, threaded};

/// Puts that are under way at once.
const WINDOW: usize = 64;

/// Measures 64-byte Puts and their rate beside raw `AF_XDP` over one veth pair.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options }: Cli) -> anyhow::Result<()> {
    let pings = if options.quick { 2_000 } else { 40_000 };
    let (link, time) = (&options.link, options.time(Duration::from_secs(2)));
    let open_raw = |side: Side<'_>| raw::End::open(side, raw::HEADERS_BYTES + options.size);
    let open_puts = |side: Side<'_>| messages::End::open(side, EndConfig::puts(options.size));
    let open_threaded =
        |side: Side<'_>| threaded::End::open(side, Operation::Put { ack: false }, options.size, WINDOW);
    let (mut raw, mut puts) = (Measured::new("raw AF_XDP"), Measured::new("LNet Put"));
    let mut threaded = Measured::new("threaded Put");
    let mut idle_turn_ns = f64::INFINITY;
    options.turns(|| {
        raw.add_turn(&measure::ping(link, open_raw, pings, |_| {})?);
        let idle = |end: &mut messages::End| idle_turn_ns = idle_turn_ns.min(end.idle_turn_ns());
        puts.add_turn(&measure::ping(link, open_puts, pings, idle)?);
        threaded.add_turn(&measure::ping(link, open_threaded, pings, |_| {})?);
        raw.rate.add(measure::flood(link, open_raw, time)?);
        puts.rate.add(measure::flood(link, open_puts, time)?);
        threaded.rate.add(measure::flood(link, open_threaded, time)?);
        Ok(())
    })?;
    let document = Document::new(options.setup(), &[&raw, &puts, &threaded], idle_turn_ns);
    output::write(&options, &document, &[("raw", &raw), ("put", &puts), ("threaded", &threaded)])
}
