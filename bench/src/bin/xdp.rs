//! What an LNet Put costs beside raw `AF_XDP`: both measured in one run, in turns, over one veth pair.
//!
//! `cargo xtask bench` makes the namespaces and calls this.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Parser;
use hdrhistogram::Histogram;
use lnet_bench::machine::Machine;
use lnet_bench::output::{self, Measured, Rate};
use lnet_bench::{netns, put, raw, report};
use lnet_user::runtime::{available_cpus, pin_to_cpu};
use lnet_wire::Nid;

/// Measures 64-byte Puts and their rate beside raw `AF_XDP` over one veth pair.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example: cargo xtask bench   (makes the namespaces and the veth pair, then calls this)"
)]
struct Cli {
    /// Network namespace of the sending end.
    #[arg(long)]
    netns_a: PathBuf,
    /// Network namespace of the answering end.
    #[arg(long)]
    netns_b: PathBuf,
    /// Interface of the sending end.
    #[arg(long)]
    interface_a: String,
    /// Interface of the answering end.
    #[arg(long)]
    interface_b: String,
    /// NID of the sending end.
    #[arg(long)]
    nid_a: Nid,
    /// NID of the answering end.
    #[arg(long)]
    nid_b: Nid,
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
    let mut raw = Measured { name: "raw AF_XDP".into(), half_ns: report::histogram(), rate: Rate::default() };
    let mut puts = Measured { name: "LNet Put".into(), half_ns: report::histogram(), rate: Rate::default() };
    for turn in 1..=TURNS {
        eprintln!("turn {turn} of {TURNS}");
        measure_raw(&cli, pings, flood_time, &mut raw)?;
        measure_puts(&cli, pings, flood_time, &mut puts)?;
    }
    output::write(&Machine::this(), cli.size, &raw, &puts, cli.out.as_deref(), cli.json)
}

/// Runs `far` in namespace b and, once it says that it is ready, `near` in namespace a; then tells `far`
/// to stop.
fn pair<R: Send>(
    cli: &Cli,
    far: impl FnOnce(&dyn Fn(), &AtomicBool) -> anyhow::Result<()> + Send,
    near: impl FnOnce() -> anyhow::Result<R> + Send,
) -> anyhow::Result<R> {
    let cpus = available_cpus();
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    let panicked = |_| anyhow!("an end of the link panicked");
    std::thread::scope(|scope| {
        let (cpus, stop) = (&cpus, &stop);
        let far = scope.spawn(move || {
            pin_to_cpu(cpus[1 % cpus.len()]).context("cannot pin the answering end")?;
            netns::enter(&cli.netns_b)?;
            // Without a listener there is nobody to be told.
            far(&|| ready.send(()).unwrap_or_default(), stop)
        });
        let near = scope.spawn(move || {
            pin_to_cpu(cpus[0]).context("cannot pin the sending end")?;
            netns::enter(&cli.netns_a)?;
            // An error means that the far end has failed; its own error tells more.
            let _ = is_ready.recv();
            near()
        });
        let result = near.join().unwrap_or_else(|cause| Err(panicked(cause)));
        stop.store(true, Ordering::Relaxed);
        far.join().unwrap_or_else(|cause| Err(panicked(cause)))?;
        result
    })
}

fn record(measured: &mut Measured, half_ns: &Histogram<u64>) -> anyhow::Result<()> {
    measured.half_ns.add(half_ns).context("cannot add histograms")
}

fn measure_raw(cli: &Cli, pings: u64, flood_time: Duration, raw: &mut Measured) -> anyhow::Result<()> {
    let bytes = raw::HEADERS_BYTES + cli.size;
    let half_ns = pair(
        cli,
        |ready, stop| {
            let mut end = raw::End::open(&cli.interface_b)?;
            ready();
            end.echo(bytes, stop)
        },
        || raw::End::open(&cli.interface_a)?.ping(bytes, pings, pings / 10),
    )?;
    record(raw, &half_ns)?;
    let received = AtomicU64::new(0);
    let (sent, time) = pair(
        cli,
        |ready, stop| {
            let mut end = raw::End::open(&cli.interface_b)?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = raw::End::open(&cli.interface_a)?;
            let begun = Instant::now();
            let sent = end.flood(bytes, flood_time)?;
            Ok((sent, begun.elapsed()))
        },
    )?;
    raw.rate.add(sent, received.into_inner(), time);
    Ok(())
}

fn measure_puts(cli: &Cli, pings: u64, flood_time: Duration, puts: &mut Measured) -> anyhow::Result<()> {
    let far = || put::End::open(&cli.interface_b, cli.nid_b, cli.nid_a, cli.size);
    let near = || put::End::open(&cli.interface_a, cli.nid_a, cli.nid_b, cli.size);
    let half_ns = pair(
        cli,
        |ready, stop| {
            let mut end = far()?;
            ready();
            end.echo(stop)
        },
        || near()?.ping(pings, pings / 10),
    )?;
    record(puts, &half_ns)?;
    let received = AtomicU64::new(0);
    let (sent, time) = pair(
        cli,
        |ready, stop| {
            let mut end = far()?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = near()?;
            let begun = Instant::now();
            let sent = end.flood(flood_time)?;
            Ok((sent, begun.elapsed()))
        },
    )?;
    puts.rate.add(sent, received.into_inner(), time);
    Ok(())
}
