//! What a Put costs its sender by the number of peers that it goes to in turn: one node sends, one thread
//! plays the peers (`lnet_bench::played`). With and without ACK, over rings and over sockets.
//!
//! `cargo xtask bench --peers N` makes the namespaces and calls this.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use lnet_bench::figure::Figure;
use lnet_bench::machine::thread_cpu_time;
use lnet_bench::options::{Options, Setup};
use lnet_bench::played::{self, Peers};
use lnet_bench::{measure::PATIENCE, node};
use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_user::Buffer;
use lnet_user::node::{DEFAULT_PORT, NiConfig, NodeConfig, NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::ProcessId;
use serde::Serialize;

/// Puts under way.
const WINDOW: u64 = 128;
/// How long the sender rests when there is nothing to do, so that it finds about as much then as one that
/// never rests.
const REST: Duration = Duration::from_micros(20);

/// Measures what a Put costs its sender, by the number of peers.
#[derive(Debug, Args)]
#[command(after_help = "Example: cargo xtask bench --peers 10000   (makes the namespaces, then calls this)")]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Most peers: 1, 10, 100 ... and so many are measured; 1 to 65000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    peers: u32,
    /// Only so many peers.
    #[arg(long)]
    only: bool,
    /// Only with ACK, or without.
    #[arg(long)]
    ack: Option<bool>,
    /// Mode of the sender; without it, rings and sockets are measured.
    #[arg(long)]
    mode: Option<XdpMode>,
}

/// What a Put to each of so many peers in turn costs.
#[derive(Serialize)]
struct Row {
    mode: String,
    ack: bool,
    peers: u32,
    /// CPU time of the sending thread a Put, in turns of its shard.
    sender_us: Figure,
    puts_per_second: Figure,
    /// Frames that were sent again, for a hundred that were sent.
    resent_percent: Figure,
    /// Sessions asked for, for each Put.
    handshakes: Figure,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    measured: Vec<Row>,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, peers, only, ack, mode }: Cli) -> anyhow::Result<()> {
    let counts: Vec<u32> = std::iter::successors(Some(1_u32), |count| count.checked_mul(10))
        .take_while(|count| *count < peers && !only)
        .chain([peers])
        .collect();
    let modes = mode.map_or_else(|| vec![XdpMode::Auto, XdpMode::Socket], |mode| vec![mode]);
    let mut measured = Vec::new();
    for mode in modes {
        for ack in ack.map_or_else(|| vec![false, true], |ack| vec![ack]) {
            let row = |&peers: &u32| {
                let [sender_us, puts_per_second, resent_percent, handshakes] =
                    [(); 4].map(|()| Figure::default());
                let mode_told = String::new();
                let row = Row {
                    mode: mode_told,
                    ack,
                    peers,
                    sender_us,
                    puts_per_second,
                    resent_percent,
                    handshakes,
                };
                (mode, row)
            };
            measured.extend(counts.iter().map(row));
        }
    }
    options.report.turns(|| {
        measured.iter_mut().try_for_each(|(mode, row)| {
            eprintln!("{} peers, {mode}, {} ACK", row.peers, if row.ack { "with" } else { "without" });
            measure(&options, *mode, row)
        })
    })?;
    let measured = measured.into_iter().map(|(_, row)| row).collect();
    let document = Document { setup: options.setup(), measured };
    options.report.tell("peers.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mtu_bytes, size_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n{size_bytes} bytes, MTU {mtu_bytes}, {WINDOW} Puts under way, to each peer in turn; the sender's CPU \
         time a Put; medians of the turns\n\n{:<10}{:<5}{:>8}{:>14}{:>18}{:>12}{:>24}{:>14}{:>12}\n",
        "mode",
        "ACK",
        "peers",
        "sender us/Put",
        "(range)",
        "Puts/s",
        "(range)",
        "sent again, %",
        "HELLOs/Put"
    );
    for row in &document.measured {
        let _ = writeln!(
            text,
            "{:<10}{:<5}{:>8}{:>14}{:>18}{:>12}{:>24}{:>14}{:>12}",
            row.mode,
            if row.ack { "yes" } else { "no" },
            row.peers,
            row.sender_us.cell(2),
            row.sender_us.range_cell(2),
            row.puts_per_second.cell(0),
            row.puts_per_second.range_cell(0),
            row.resent_percent.cell(2),
            row.handshakes.cell(4)
        );
    }
    text
}

/// Puts to so many peers in turn; adds what a turn has found.
fn measure(options: &Options, mode: XdpMode, row: &mut Row) -> anyhow::Result<()> {
    let (ack, count) = (row.ack, row.peers);
    let messages = (2 * WINDOW as u32).div_ceil(count).max(8);
    let time = options.report.time(Duration::from_secs(1));
    options.link.pair(
        |ready, stop| {
            let mut peers = Peers::open(count, messages, DEFAULT_PORT)?;
            ready();
            peers.play(stop).map(drop)
        },
        || {
            let near = options.link.near();
            let config = NodeConfig::new(vec![NiConfig::new(near.nid, near.interface)])
                .mode(mode)
                .limits(node::LIMITS);
            let mut sender = Sender::start(&config, options.size, ack, count)?;
            // Each peer has a session, and then some.
            sender.put(u64::from(count) * 2 + 10 * WINDOW, Duration::MAX)?;
            let before = sender.counts();
            let (begun, turns_before) = (Instant::now(), sender.turns);
            let puts = sender.put(u64::MAX, time)? as f64;
            let (turns, elapsed) = (sender.turns - turns_before, begun.elapsed());
            let [frames, resent, hellos] = sender.counts().map(|after| after as f64);
            let [frames_before, resent_before, hellos_before] = before.map(|before| before as f64);
            row.mode = sender.node.mode().to_string();
            row.sender_us.add(turns.as_secs_f64() * 1e6 / puts);
            row.puts_per_second.add(puts / elapsed.as_secs_f64());
            row.resent_percent.add(100.0 * (resent - resent_before) / (frames - frames_before));
            row.handshakes.add((hellos - hellos_before) / puts);
            Ok(())
        },
    )
}

/// The node that sends, driven by its thread.
struct Sender {
    // The worker's sockets close before the node's program goes.
    worker: Worker,
    node: NodeDriver,
    ends: EqHandle,
    source: MdHandle,
    ack: bool,
    peers: u32,
    /// Puts that were started, ever.
    started: u64,
    /// CPU time of its turns, ever.
    turns: Duration,
    /// What it takes to look at that clock.
    clock: Duration,
}

impl Sender {
    fn start(config: &NodeConfig, bytes: usize, ack: bool, peers: u32) -> anyhow::Result<Self> {
        let (mut node, mut worker) = node::start(config)?;
        let ends = worker.create_event_queue(2 * node::LIMITS.unlimited_events)?;
        let source = MdSpec {
            auto_unlink: false,
            ..MdSpec::new(bytes as u64, Threshold::Infinite, MdOptions::NONE, ends)
        };
        let source = worker.bind(&source, Buffer::zeroed(bytes))?;
        node.open()?;
        let look = || {
            let before = thread_cpu_time();
            thread_cpu_time() - before
        };
        let clock = (0..1000).map(|_| look()).min().unwrap_or_default();
        Ok(Self { worker, node, ends, source, ack, peers, started: 0, turns: Duration::ZERO, clock })
    }

    /// Frames sent, those of them that were sent before, and HELLOs.
    fn counts(&self) -> [u64; 3] {
        let counters = self.worker.xdp().map(|xdp| *xdp.transfer_counters()).unwrap_or_default();
        [counters.frames_sent, counters.frames_resent, counters.hellos_sent]
    }

    /// Keeps Puts under way, so many at most and for that time, and until all have ended; how many there
    /// were.
    fn put(&mut self, count: u64, time: Duration) -> anyhow::Result<u64> {
        let begun = Instant::now();
        let (mut started, mut ended) = (0, 0);
        let mut moved_at = begun;
        loop {
            let now = Instant::now();
            let goes_on = started < count && now - begun < time;
            if !goes_on && started == ended {
                return Ok(ended);
            }
            let cpu_begun = thread_cpu_time();
            let before = (started, ended);
            while goes_on && started < count && started - ended < WINDOW {
                self.start_one()?;
                started += 1;
            }
            let has_moved = self.worker.progress();
            ended += self.take_ends()?;
            self.turns += (thread_cpu_time() - cpu_begun).saturating_sub(self.clock);
            if has_moved || (started, ended) != before {
                moved_at = now;
            } else {
                ensure!(now - moved_at < PATIENCE, "{} Puts never ended", started - ended);
                std::thread::sleep(REST);
            }
        }
    }

    fn start_one(&mut self) -> anyhow::Result<()> {
        let peer = (self.started % u64::from(self.peers)) as u32;
        self.started += 1;
        Ok(self.worker.put(&PutRequest {
            md: self.source,
            part: None,
            ack: self.ack,
            self_nid: None,
            target: ProcessId::lustre(played::nid(peer)),
            portal: 20,
            match_bits: 0,
            offset: 0,
            hdr_data: 0,
        })?)
    }

    /// Takes the ends of Puts; how many there were.
    fn take_ends(&mut self) -> anyhow::Result<u64> {
        let last = if self.ack { EventKind::Ack } else { EventKind::Send };
        let mut ended = 0;
        while let Some(delivery) = self.worker.poll_event(self.ends) {
            let event = delivery.event;
            ensure!(event.status() == Status::Ok, "a Put ended with {:?}", event.status());
            ended += u64::from(event.kind() == last);
        }
        Ok(ended)
    }
}
