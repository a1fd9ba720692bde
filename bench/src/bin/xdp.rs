//! What an LNet Put costs beside raw `AF_XDP`: both measured in one run, in turns, over one veth pair.
//!
//! `cargo xtask bench` makes the namespaces and calls this.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use lnet_bench::link::Link;
use lnet_bench::machine::Machine;
use lnet_bench::output::{self, Measured, Setup};
use lnet_bench::{node, put, raw};

/// Measures 64-byte Puts and their rate beside raw `AF_XDP` over one veth pair.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example: cargo xtask bench   (makes the namespaces and the veth pair, then calls this)"
)]
struct Cli {
    #[command(flatten)]
    link: Link,
    /// Payload bytes.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// A tenth of the rounds and of the time.
    #[arg(long)]
    quick: bool,
    /// Where to write bench.json, the histograms (.hgrm) and the plot (.svg).
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print one JSON object instead of the tables.
    #[arg(long)]
    json: bool,
}

/// Rounds of one measurement; raw and Put take turns, so that noise of the machine meets both.
const TURNS: u32 = 5;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let (pings, flood_time) =
        if cli.quick { (2_000, Duration::from_millis(200)) } else { (40_000, Duration::from_secs(2)) };
    let (mut raw, mut puts) = (Measured::new("raw AF_XDP"), Measured::new("LNet Put"));
    let mut idle_turn_ns = f64::INFINITY;
    for turn in 1..=TURNS {
        eprintln!("turn {turn} of {TURNS}");
        raw.add_turn(&ping_raw(&cli, pings)?)?;
        puts.add_turn(&ping_puts(&cli, pings, &mut idle_turn_ns)?)?;
        flood_raw(&cli, flood_time, &mut raw)?;
        flood_puts(&cli, flood_time, &mut puts)?;
    }
    let (machine, mode) = (Machine::this(), node::modes());
    let setup = Setup { machine, mode, mtu_bytes: cli.link.mtu, size_bytes: cli.size };
    let document = output::Document::new(setup, &raw, &puts, idle_turn_ns);
    output::write(&document, &[&raw, &puts], cli.out.as_deref(), cli.json)
}

fn ping_raw(cli: &Cli, pings: u64) -> anyhow::Result<Histogram<u64>> {
    let bytes = raw::HEADERS_BYTES + cli.size;
    cli.link.pair(
        |ready, stop| {
            let mut end = raw::End::open(&cli.link.interface_b)?;
            ready();
            end.echo(bytes, stop)
        },
        || raw::End::open(&cli.link.interface_a)?.ping(bytes, pings, pings / 10),
    )
}

fn flood_raw(cli: &Cli, flood_time: Duration, raw: &mut Measured) -> anyhow::Result<()> {
    let bytes = raw::HEADERS_BYTES + cli.size;
    let received = AtomicU64::new(0);
    let (sent, time) = cli.link.pair(
        |ready, stop| {
            let mut end = raw::End::open(&cli.link.interface_b)?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = raw::End::open(&cli.link.interface_a)?;
            let begun = Instant::now();
            let sent = end.flood(bytes, flood_time)?;
            Ok((sent, begun.elapsed()))
        },
    )?;
    raw.rate.add(sent, received.into_inner(), time);
    Ok(())
}

impl Cli {
    fn near(&self) -> anyhow::Result<put::End> {
        put::End::open(&self.link.interface_a, self.link.nid_a, self.link.nid_b, self.size)
    }

    fn far(&self) -> anyhow::Result<put::End> {
        put::End::open(&self.link.interface_b, self.link.nid_b, self.link.nid_a, self.size)
    }
}

fn ping_puts(cli: &Cli, pings: u64, idle_turn_ns: &mut f64) -> anyhow::Result<Histogram<u64>> {
    cli.link.pair(
        |ready, stop| {
            let mut end = cli.far()?;
            ready();
            end.echo(stop)
        },
        || {
            let mut end = cli.near()?;
            let half_ns = end.ping(pings, pings / 10)?;
            *idle_turn_ns = idle_turn_ns.min(end.idle_turn_ns());
            Ok(half_ns)
        },
    )
}

fn flood_puts(cli: &Cli, flood_time: Duration, puts: &mut Measured) -> anyhow::Result<()> {
    let received = AtomicU64::new(0);
    let (sent, time) = cli.link.pair(
        |ready, stop| {
            let mut end = cli.far()?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = cli.near()?;
            let begun = Instant::now();
            let sent = end.flood(flood_time)?;
            Ok((sent, begun.elapsed()))
        },
    )?;
    puts.rate.add(sent, received.into_inner(), time);
    Ok(())
}
