//! What matching does to the rate of small Puts over a veth pair, by the number of exact entries that the
//! receiver has posted: with one, and with as many as are asked for, in turns, messages in random order.
//!
//! `cargo xtask bench --posted N` makes the namespaces and calls this.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use lnet_bench::link::Link;
use lnet_bench::machine::Machine;
use lnet_bench::node;
use lnet_core::limits::Limits;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_user::memory::Buffer;
use lnet_user::node::{NiConfig, Node, NodeConfig};
use lnet_user::runtime::Worker;
use lnet_wire::ProcessId;
use serde::Serialize;

/// Measures the rate of Puts with 1 and with many exact entries posted.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example: cargo xtask bench --posted 1000000   (makes the namespaces, then calls this)"
)]
struct Cli {
    #[command(flatten)]
    link: Link,
    /// Exact entries posted, 1 to 16777216.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    posted: u32,
    /// Payload bytes.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// A tenth of the time.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

const TURNS: u32 = 5;
const PORTAL: u32 = 20;
/// Puts under way at once: the credits of a peer.
const WINDOW: u64 = 128;
const PATIENCE: Duration = Duration::from_secs(2);

/// Puts a second, by turn.
#[derive(Serialize)]
struct Rates {
    machine: Machine,
    mode: String,
    mtu_bytes: usize,
    size_bytes: usize,
    posted: u32,
    with_one: Vec<f64>,
    with_all: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let (posted, size_bytes) = (cli.posted, cli.size);
    let (mut with_one, mut with_all) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        eprintln!("turn {turn} of {TURNS}");
        with_one.push(measure(&cli, 1)?);
        with_all.push(measure(&cli, posted)?);
    }
    let (machine, mode, mtu_bytes) = (Machine::this(), node::modes(), cli.link.mtu);
    let rates = Rates { machine, mode, mtu_bytes, size_bytes, posted, with_one, with_all };
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&rates)?);
        return Ok(());
    }
    println!("{}", rates.machine);
    println!(
        "{size_bytes} bytes, MTU {mtu_bytes}, mode {}: Puts received a second, median of {TURNS} turns\n",
        rates.mode
    );
    let (one, all) = (median(&rates.with_one), median(&rates.with_all));
    println!("{:>10} entry posted   {one:>12.0}", 1);
    println!("{posted:>10} entries posted {all:>12.0}   ratio {:.2}", all / one);
    Ok(())
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Puts received a second with so many entries posted.
fn measure(cli: &Cli, entries: u32) -> anyhow::Result<f64> {
    let time = Duration::from_millis(if cli.quick { 100 } else { 1000 });
    let Link { interface_a, interface_b, nid_a, nid_b, .. } = &cli.link;
    let received = AtomicU64::new(0);
    let elapsed = cli.link.pair(
        |ready, stop| {
            let (_node, mut worker) = receiver(NiConfig::new(*nid_b, interface_b), entries, cli.size)?;
            ready();
            sink(&mut worker, stop, &received);
            Ok(())
        },
        || {
            let config = NodeConfig::new(vec![NiConfig::new(*nid_a, interface_a)]);
            let (mut node, mut worker) = node::start(&config)?;
            node.open()?;
            flood(&mut worker, ProcessId::lustre(*nid_b), entries, cli.size, time)
        },
    )?;
    Ok(received.into_inner() as f64 / elapsed.as_secs_f64())
}

/// A node with entries for match bits from 0 on, without events.
fn receiver(ni: NiConfig, entries: u32, bytes: usize) -> anyhow::Result<(Node, Worker)> {
    let limits = Limits { match_entries: entries, memory_descs: entries.max(64), ..Limits::DEFAULT };
    let (mut node, mut worker) = node::start(&NodeConfig::new(vec![ni]).limits(limits))?;
    let md = MdSpec {
        length_bytes: bytes as u64,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options: MdOptions::PUT | MdOptions::MANAGE_REMOTE,
        auto_unlink: false,
        event_queue: None,
        user_ptr: 0,
    };
    for match_bits in 0..u64::from(entries) {
        worker.attach(&EntrySpec::new(PORTAL, match_bits), &md, Buffer::zeroed(bytes))?;
    }
    node.open()?;
    Ok((node, worker))
}

/// Takes Puts until told to stop, and counts them.
fn sink(worker: &mut Worker, stop: &AtomicBool, received: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        worker.progress();
        received.store(worker.shard().counters().received.messages, Ordering::Relaxed);
    }
}

/// Puts at random match bits as fast as the credits allow for `time`; how long that took.
fn flood(
    worker: &mut Worker,
    target: ProcessId,
    entries: u32,
    bytes: usize,
    time: Duration,
) -> anyhow::Result<Duration> {
    let sends = worker.create_event_queue(Limits::DEFAULT.unlimited_events)?;
    let spec = MdSpec {
        auto_unlink: false,
        ..MdSpec::new(bytes as u64, Threshold::Infinite, MdOptions::NONE, sends)
    };
    let md = worker.bind(&spec, Buffer::zeroed(bytes))?;
    let (begun, mut started, mut ended, mut state) = (Instant::now(), 0, 0, 0x9E37_79B9_7F4A_7C15_u64);
    while ended < started || begun.elapsed() < time {
        while started - ended < WINDOW && begun.elapsed() < time {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let match_bits = ((state >> 32) * u64::from(entries)) >> 32;
            worker.put(&PutRequest {
                md,
                ack: false,
                self_nid: None,
                target,
                portal: PORTAL,
                match_bits,
                offset: 0,
                hdr_data: started,
            })?;
            started += 1;
        }
        worker.progress();
        while let Some(delivery) = worker.poll_event(sends) {
            let status = delivery.event.status();
            ensure!(status == Status::Ok, "a Put ended with {status:?}");
            ended += 1;
        }
        ensure!(begun.elapsed() < time + PATIENCE, "{} Puts never ended", started - ended);
    }
    Ok(begun.elapsed())
}
