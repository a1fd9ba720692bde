//! One node of a load: `lnet-load target` takes Puts and checks every byte, `lnet-load put` sends them.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use lnet_bench::load::{initiator, plan, target};
use lnet_bench::report::{self, Line, Ready, Report};
use lnet_user::node::{NiConfig, Node, NodeConfig, XdpMode};
use lnet_user::runtime::{Idle, Worker};
use lnet_wire::{Nid, ProcessId};
use rustix::fs::FileType;

const EXAMPLES: &str = "Examples (each in its own network namespace, joined by a veth pair):
  lnet-load target --interface veth-b --nid 10.211.0.2@xdp
  lnet-load put --interface veth-a --nid 10.211.0.1@xdp --target 10.211.0.2@xdp --count 100000
  lnet-load put --interface veth-a --nid 10.211.0.1@xdp --target 10.211.0.2@xdp --size 64 --spin-us 50";

/// One node of a load over the xdp LND.
///
/// Both nodes print JSON lines to stdout: `ready` when they are up, `report` at their end.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Take Puts and check every byte, until SIGINT or SIGTERM arrives, or standard input ends (of a terminal or
    /// a pipe).
    #[command(after_help = EXAMPLES)]
    Target(NodeArgs),
    /// Put to a target.
    #[command(after_help = EXAMPLES)]
    Put(PutArgs),
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// Network interface to attach to.
    #[arg(long)]
    interface: String,
    /// NID of this node, an address of the interface on an xdp net.
    #[arg(long)]
    nid: Nid,
    /// Shards of this node.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    shards: u32,
    /// Receive queues that the interface must have at least.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: Option<u32>,
    /// How the XDP program is attached: auto, native or generic.
    #[arg(long, default_value = "auto")]
    mode: XdpMode,
    /// UDP port of the net.
    #[arg(long, default_value_t = 988, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Object file of the XDP program; by default it is looked for where it is built and installed.
    #[arg(long)]
    bpf_object: Option<PathBuf>,
    /// Log frames that XDP refuses; needs the logging object.
    #[arg(long)]
    log: bool,
    /// Microseconds that an idle shard polls before it sleeps.
    #[arg(long, default_value_t = 0)]
    spin_us: u64,
}

#[derive(Debug, Args)]
struct PutArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// NID of the target.
    #[arg(long)]
    target: Nid,
    /// Puts.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=plan::NUMBERS_MAX))]
    count: u64,
    /// Payload bytes of every Put, at most 16384; by default any number up to that.
    #[arg(long)]
    size: Option<u32>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    let outcome = match Cli::parse().role {
        Role::Target(args) => run_target(&args),
        Role::Put(args) => run_put(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Never a backtrace: what went wrong is what the user asked for, not where.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &NodeArgs) -> anyhow::Result<(Node, Vec<Worker>)> {
    let config = NodeConfig {
        shards: args.shards,
        queues: args.queues,
        udp_port: args.port,
        mode: args.mode,
        policies: plan::policies(args.shards),
        bpf_object: args.bpf_object.clone(),
        log_refusals: args.log,
        limits: plan::limits(),
        lnd_timeout: plan::LND_TIMEOUT,
        ..NodeConfig::new(vec![NiConfig::new(args.nid, &args.interface)])
    };
    Ok(Node::start(&config)?)
}

fn ready(node: &Node, args: &NodeArgs) -> Line {
    Line::Ready(Ready {
        nid: node.nid().to_string(),
        mode: node.mode().to_string(),
        queues: node.queues(),
        shards: args.shards,
    })
}

/// Set when a signal asks to stop, or standard input ends: of a terminal, or of a pipe, behind which somebody
/// holds the other end. What `/dev/null` or a file has to say is no wish to stop.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let stdin = rustix::fs::fstat(std::io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if !matches!(stdin, Ok(FileType::Fifo | FileType::Socket)) && !std::io::stdin().is_terminal() {
        return Ok(stop);
    }
    let at_end = Arc::clone(&stop);
    std::thread::spawn(move || {
        // Whatever ends standard input, its end is what is waited for.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        at_end.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}

fn run_target(args: &NodeArgs) -> anyhow::Result<()> {
    let stop = stop_flag()?;
    let (mut node, workers) = start(args)?;
    let idle = Idle { spin: Duration::from_micros(args.spin_us) };
    let stopped = || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let report = target::serve(&mut node, workers, idle, |node| ready(node, args).print(), stopped)?;
    Line::Report(Box::new(report)).print()
}

/// What can be said of the options without a node.
fn check_put(args: &PutArgs) -> anyhow::Result<()> {
    let (nid, target) = (args.node.nid, args.target);
    if let Some(size) = args.size {
        let max = plan::PUT_MAX_BYTES;
        ensure!(size <= max, "--size {size}: a Put of the load carries at most {max} bytes of payload");
    }
    ensure!(
        args.node.shards <= initiator_shards_max(),
        "--shards {}: the load runs on at most {} shards",
        args.node.shards,
        initiator_shards_max()
    );
    ensure!(target != nid, "--target {target} is this node's own NID: the NID of another node is expected");
    ensure!(
        target.net() == nid.net(),
        "--target {target} is on another net than {nid}: a NID on net {} is expected",
        nid.net()
    );
    let is_ipv4 = |nid: Nid| nid.ip().map(|address| address.is_ipv4());
    ensure!(
        target.ip().is_some() && is_ipv4(target) == is_ipv4(nid),
        "--target {target}: an address of the same family as {nid} is expected"
    );
    Ok(())
}

const fn initiator_shards_max() -> u32 {
    plan::INITIATOR_SHARDS_MAX as u32
}

fn run_put(args: &PutArgs) -> anyhow::Result<()> {
    check_put(args)?;
    let stop = stop_flag()?;
    let (mut node, mut workers) = start(&args.node)?;
    node.open()?;
    ready(&node, &args.node).print()?;
    let load = initiator::Load {
        target: ProcessId { nid: args.target, pid: ProcessId::LUSTRE_PID },
        count: args.count,
        fixed_bytes: args.size,
        next: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        running: AtomicUsize::new(workers.len()),
        answered: AtomicBool::new(false),
    };
    let begun = Instant::now();
    let done = drive(&load, &mut workers, &stop)?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = Report::of(&node, &workers)?;
    report.seconds = seconds;
    let mut latency_ns = report::histogram();
    for shard in &done {
        report.puts.sent += shard.puts.sent;
        report.puts.acked += shard.puts.acked;
        report.puts.acked_bytes += shard.puts.acked_bytes;
        report.puts.lost += shard.puts.lost;
        latency_ns.add(&shard.latency_ns).context("cannot add histograms")?;
    }
    report.latency_ns = (&latency_ns).into();
    Line::Report(Box::new(report)).print()
}

/// Drives every shard on a thread of its own and shows how far they are.
fn drive(
    load: &initiator::Load,
    workers: &mut [Worker],
    stop: &AtomicBool,
) -> anyhow::Result<Vec<initiator::Done>> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} Puts, {per_sec}, {eta} left")
        .context("the progress bar's template")?;
    let bar = ProgressBar::new(load.count).with_style(style);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(move || initiator::run(load, worker))).collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            bar.set_position(load.ended.load(Ordering::Relaxed));
            load.stop.fetch_or(stop.load(Ordering::Relaxed), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a shard's thread panicked"))))
            .collect()
    });
    bar.finish_and_clear();
    done
}
