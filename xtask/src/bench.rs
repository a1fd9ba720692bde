//! `cargo xtask bench`: what a Put costs beside raw `AF_XDP`, over veth between two network namespaces.
//!
//! The namespaces go when the bench ends, however it ends; the bench itself ends with a signal that asks this
//! process to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use xtask::command::words;
use xtask::netns::{Namespace, Pair, Wiring};
use xtask::privilege;

use crate::run::Interrupted;
use crate::{build_ebpf, cargo, run};

/// How often it is looked whether the bench has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The addresses of peers that one thread plays.
const PEERS_NETWORK: &str = "10.212.0.0/16";

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench
  cargo xtask bench --quick --size 1024
  cargo xtask bench --bulk --mtu 1500
  cargo xtask bench --compare --net tcp
  cargo xtask bench --compare --only checksums
  cargo xtask bench --compare --only sockets,limit,iperf3 --size 1048576 --mtu 1500
  cargo xtask bench --compare --net tcp --size 1048576 --only lst,iperf3
  cargo xtask bench --posted 1000000
  cargo xtask bench --peers 1000
  cargo xtask bench --rails
  cargo xtask bench --paths
  cargo xtask bench --awaits
  cargo xtask bench --reactors --mtu 1500
  cargo xtask bench --shards
  cargo xtask bench --messaging
  cargo xtask bench --sweep --mtu 1500
  cargo xtask bench --json > result.json")]
pub(crate) struct Options {
    /// A tenth of the rounds and of the time
    #[arg(long)]
    quick: bool,
    /// Throughput of long Puts and Gets, with and without loss, instead of latency and message rate
    #[arg(long)]
    bulk: bool,
    /// Puts and Gets of 64 bytes, 4 KiB and 1 MiB (or of --size), one alone and 64 at once (or --at-once), of
    /// application-driven and threaded nodes, and bulk data of LNet selftest, beside raw frames,
    /// ucx_perftest, fi_pingpong, sockperf and iperf3, as far as they are installed; long ones beside
    /// segmented datagrams with one copy a side, the limit of the link; how soon entries are
    /// posted; and Puts with and without checksums of payloads
    #[arg(long, conflicts_with_all = ["bulk", "posted", "peers"])]
    compare: bool,
    /// Rate of small Puts with 1 and with so many exact match entries posted
    #[arg(long, value_name = "ENTRIES", conflicts_with_all = ["bulk", "out"],
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    posted: Option<u32>,
    /// Cost of small Puts to 1, 10, 100 ... and so many peers in turn, which one thread plays
    #[arg(long, value_name = "PEERS", conflicts_with_all = ["bulk", "posted"],
          value_parser = clap::value_parser!(u32).range(1..=65_000))]
    peers: Option<u32>,
    /// What transfer machines of the messaging layer add to bare Puts and Gets, and what their queues, pools
    /// and event rings cost
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers"])]
    messaging: bool,
    /// What two rails carry beside one, in what shares, how long no message ends when one of them is cut, and
    /// what a Put costs to a peer that is discovered
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging"])]
    rails: bool,
    /// What the choice of a path costs, by the number of NIs at either end
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging", "rails", "size", "mtu", "out"])]
    paths: bool,
    /// What Puts cost that tasks await, beside those that a blocked thread waits for
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging", "rails", "paths", "reactors", "size", "mtu", "out"])]
    awaits: bool,
    /// What nodes with the reactor epoll cost beside nodes with io_uring: Puts and Gets of 64 bytes, 4 KiB
    /// and 1 MiB, over sockets, or with --net tcp over streams
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging", "rails", "paths", "size"])]
    reactors: bool,
    /// Cost of nodes with 2 and 16 shards beside nodes with one: a Put of 64 bytes to its ACK, alone and 64
    /// at once
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging", "rails", "paths", "awaits", "reactors"])]
    shards: bool,
    /// The time of a Put by its size, 1 byte to 1 MiB, with 64 at once, beside other programs, as a table
    /// and a plot; steps in it are told
    #[arg(long, conflicts_with_all = ["bulk", "compare", "posted", "peers", "messaging", "rails", "paths", "reactors", "shards", "size"])]
    sweep: bool,
    /// Payload bytes of each message [default: 64, with --bulk 1048576, with --rails 4096]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: Option<u32>,
    /// Largest IP packet of the link [default: 1500; with --bulk, --compare, --rails, --reactors, --shards,
    /// --messaging and --sweep 9000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1500..))]
    mtu: Option<u16>,
    /// Type of the net that nodes are on, with --compare
    #[arg(long, value_name = "TYPE", value_parser = ["xdp", "tcp"], default_value = "xdp", requires = "compare")]
    net: String,
    /// Messages that are under way at once, with --compare
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u16).range(1..=128),
          default_value_t = 64, requires = "compare")]
    at_once: u16,
    /// Rows whose names have one of these words in them, and no others, with --compare; checksums is the
    /// table of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',', requires = "compare")]
    only: Vec<String>,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
    /// Where bench.json, the histograms (.hgrm) and the plot (.svg) go [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Builds, measures, cleans up.
///
/// # Errors
/// When a capability or `ip` is missing, a build or the bench fails, or a signal asks to end.
pub(crate) fn bench(root: &Path, options: &Options) -> Result<()> {
    if options.paths {
        return measure_alone(root, "path-cost", options);
    }
    if options.awaits {
        return measure_alone(root, "awaits", options);
    }
    let needs = "`cargo xtask bench` makes network namespaces and loads XDP programs; it";
    privilege::require(needs, &privilege::NETNS_NODES)?;
    build_ebpf::refresh(root)?;
    let (bench, size, mtu_bytes) = match options {
        Options { posted: Some(_), .. } => ("posted", 64, 1500_u16),
        Options { peers: Some(_), .. } => ("peers", 64, 1500),
        Options { compare: true, .. } => ("compare", 64, 9000),
        Options { messaging: true, .. } => ("messaging", 64, 9000),
        Options { bulk: true, .. } => ("bulk", 1 << 20, 9000),
        Options { rails: true, .. } => ("rails", 4096, 9000),
        Options { reactors: true, .. } => ("reactors", 64, 9000),
        Options { shards: true, .. } => ("shards", 64, 9000),
        Options { sweep: true, .. } => ("sweep", 1 << 20, 9000),
        _ => ("xdp", 64, 1500),
    };
    let (size, mtu_bytes) = (options.size.unwrap_or(size), options.mtu.unwrap_or(mtu_bytes));
    let program = cargo::build_binary(root, "lnet-bench", "bench", &[])?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("signal handlers")?;
    }
    run::remove_and_say_stale()?;
    let pair = Pair::create("", Wiring { rails: 1 + u8::from(options.rails), queues: 2, mtu_bytes })?;
    let mut command = Command::new(program);
    command.arg(bench);
    if let Some(peers) = options.peers {
        // What goes to any of their addresses is delivered at the far end.
        pair.a.ip(&format!("route add {PEERS_NETWORK} via {}", pair.b.interface().ipv4))?;
        pair.b.ip(&format!("route add local {PEERS_NETWORK} dev lo"))?;
        command.args(["--peers", &peers.to_string()]);
    }
    for (end, namespace) in [("a", &pair.a), ("b", &pair.b)] {
        do_not_pace(namespace)?;
        command.arg(format!("--netns-{end}")).arg(Path::new("/run/netns").join(namespace.name()));
        command.args([&format!("--interface-{end}"), &namespace.interface().name]);
        command.args([&format!("--nid-{end}"), &nid(namespace, &options.net)]);
        if let (true, [_, second]) = (options.rails, namespace.interfaces()) {
            command.args([&format!("--second-interface-{end}"), &second.name]);
            command.args([&format!("--second-nid-{end}"), &format!("{}@xdp1", second.ipv4)]);
        }
    }
    command.args(["--size", &size.to_string(), "--mtu", &mtu_bytes.to_string()]);
    if options.compare {
        command.args(["--at-once", &options.at_once.to_string()]);
        command.args(options.size.map(|size| format!("--sizes={size}")));
        command.args((!options.only.is_empty()).then(|| format!("--only={}", options.only.join(","))));
    }
    match options.posted {
        // The tables of so many entries lie in huge pages.
        Some(entries) => {
            command.args(["--posted", &entries.to_string()]).env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        }
        None => command.arg("--out").arg(options.out.clone().unwrap_or_else(|| root.join("target/bench"))),
    };
    command.args(options.quick.then_some("--quick")).args(options.json.then_some("--json"));
    let words = words(&command);
    let child = command.spawn().with_context(|| format!("`{words}` did not start"))?;
    wait(child, &words, &signal)
}

/// Has TCP in a namespace send as much as its window allows. A congestion control that paces by timers, as
/// BBR does, has figures of the machine's timers instead: a link between two namespaces has no rate that it
/// could find.
fn do_not_pace(namespace: &Namespace) -> Result<()> {
    let write = || fs::write(CONGESTION_CONTROL, "reno");
    namespace.enter(write).and_then(|written| written).context("net.ipv4.tcp_congestion_control")
}

/// Runs a bench that needs no link.
fn measure_alone(root: &Path, bench: &str, options: &Options) -> Result<()> {
    let mut command = Command::new(cargo::build_binary(root, "lnet-bench", "bench", &[])?);
    command.arg(bench).args(options.quick.then_some("--quick")).args(options.json.then_some("--json"));
    let words = words(&command);
    let status = command.status().with_context(|| format!("`{words}` did not start"))?;
    ensure!(status.success(), "`{words}` failed, {status}");
    Ok(())
}

/// Waits for the bench, and ends it when a signal has come. The namespaces outlive it in any case.
fn wait(mut child: Child, words: &str, signal: &AtomicUsize) -> Result<()> {
    loop {
        let ended = child.try_wait().with_context(|| format!("waiting for `{words}`"))?;
        // The terminal signals the bench as well: that it ended by it is no failure of its own.
        match (signal.load(Ordering::Relaxed), ended) {
            (0, Some(status)) => {
                ensure!(status.success(), "`{words}` failed, {status}");
                return Ok(());
            }
            (0, None) => std::thread::sleep(POLL_INTERVAL),
            (number, ended) => {
                if ended.is_none() {
                    child.kill().and_then(|()| child.wait()).with_context(|| format!("ending `{words}`"))?;
                }
                return Err(Interrupted { signal: number as i32 }.into());
            }
        }
    }
}

fn nid(namespace: &Namespace, net: &str) -> String {
    format!("{}@{net}", namespace.interface().ipv4)
}
