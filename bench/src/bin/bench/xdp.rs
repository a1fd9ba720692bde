//! What an LNet Put costs beside raw `AF_XDP`, from shards that the application drives and from such with
//! threads of their own: measured in one run, in turns, over one veth pair.
//!
//! `cargo xtask bench` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::figure::Figure;
use lnet_bench::link::Side;
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::Options;
use lnet_bench::output::{self, Document, Measured};
use lnet_bench::threaded::{self, ThreadedConfig};
use lnet_bench::{measure, raw};

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
    let (link, report) = (&options.link, &options.report);
    let (pings, time) = (report.rounds(40_000), report.time(Duration::from_secs(2)));
    let open_raw = |side: Side<'_>| raw::End::open(side, raw::HEADERS_BYTES + options.size);
    let open_puts = |side: Side<'_>| messages::End::open(side, EndConfig::puts(options.size));
    let put = ThreadedConfig::new(Operation::Put { ack: false }, options.size, WINDOW);
    let open_threaded = |side: Side<'_>| threaded::End::open(side, put);
    let (mut raw, mut puts) = (Measured::new("raw AF_XDP"), Measured::new("Put, application-driven"));
    let mut threaded = Measured::new("Put, threaded");
    let mut idle_turn_ns = Figure::default();
    report.turns(|| {
        let half_ns = measure::ping(link, open_raw, pings, |_| {})?;
        raw.add_turn(&half_ns, measure::flood(link, open_raw, time)?);
        let idle = |end: &mut messages::End| idle_turn_ns.add(end.idle_turn_ns());
        let half_ns = measure::ping(link, open_puts, pings, idle)?;
        puts.add_turn(&half_ns, measure::flood(link, open_puts, time)?);
        let half_ns = measure::ping(link, open_threaded, pings, |_| {})?;
        threaded.add_turn(&half_ns, measure::flood(link, open_threaded, time)?);
        Ok(())
    })?;
    let document = Document::new(options.setup(), &[&raw, &puts, &threaded], idle_turn_ns);
    output::write(&options, &document, &[("raw", &raw), ("put", &puts), ("threaded", &threaded)])
}
