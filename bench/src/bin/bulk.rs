//! What long Puts and Gets carry beside a flood of raw `AF_XDP` frames as long as the link takes them: all
//! measured in one run, in turns, over one veth pair, with and without loss.
//!
//! `cargo xtask bench --bulk` makes the namespaces and calls this.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use lnet_bench::bulk::{self, Operation};
use lnet_bench::link::Link;
use lnet_bench::machine::Machine;
use lnet_bench::{node, raw};
use serde::Serialize;

/// Measures long Puts and Gets beside a raw AF_XDP flood over one veth pair.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example: cargo xtask bench --bulk   (makes the namespaces and the veth pair, then calls this)"
)]
struct Cli {
    #[command(flatten)]
    link: Link,
    /// Payload bytes of each message.
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
    /// Frames of a hundred that the lossy rounds lose, at each end.
    #[arg(long, default_value_t = 1.0)]
    loss: f64,
    /// A tenth of the time.
    #[arg(long)]
    quick: bool,
    /// Where to write bulk.json.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Rounds of each measurement; they take turns, so that noise of the machine meets all.
const TURNS: u32 = 5;
const ETHERNET_BYTES: usize = 14;

/// What went through in all rounds of one kind.
#[derive(Clone, Copy, Default, Debug)]
struct Carried {
    bytes: u64,
    time: Duration,
}

impl Carried {
    fn gbit_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.time.as_secs_f64() / 1e9
    }
}

#[derive(Serialize)]
struct Row {
    name: String,
    gbit_per_second: f64,
    /// Over raw for what was sent without loss out of ordinary memory, else over that.
    ratio: f64,
    /// What the ratio should be at least.
    aim: f64,
}

#[derive(Serialize)]
struct Document {
    machine: Machine,
    mode: String,
    size_bytes: usize,
    mtu_bytes: usize,
    loss_percent: f64,
    raw_gbit_per_second: f64,
    rows: Vec<Row>,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let time = if cli.quick { Duration::from_millis(200) } else { Duration::from_secs(2) };
    let mut flood = Carried::default();
    // What is sent, how much of it is lost, and whether it lies in registered memory.
    let kinds = [
        (Operation::Put, 0.0, false),
        (Operation::Get, 0.0, false),
        (Operation::Put, cli.loss, false),
        (Operation::Get, cli.loss, false),
        (Operation::Put, 0.0, true),
        (Operation::Get, 0.0, true),
    ];
    let mut carried = [Carried::default(); 6];
    for turn in 1..=TURNS {
        eprintln!("turn {turn} of {TURNS}");
        raw_flood(&cli, time, &mut flood)?;
        for (kind, carried) in kinds.into_iter().zip(&mut carried) {
            messages(&cli, kind, time, carried)?;
        }
    }
    let raw = flood.gbit_per_second();
    let rate = |index: usize| carried[index].gbit_per_second();
    let row = |index: usize, over: f64, aim: f64| {
        let (operation, loss, registered) = kinds[index];
        let name = match (loss == 0.0, registered) {
            (_, true) => format!("{operation:?}, registered"),
            (true, false) => format!("{operation:?}"),
            (false, false) => format!("{operation:?}, {loss} % lost"),
        };
        Row { name, gbit_per_second: rate(index), ratio: rate(index) / over, aim }
    };
    let rows = vec![
        row(0, raw, 0.6),
        row(1, raw, 0.6),
        row(2, rate(0), 0.85),
        row(3, rate(1), 0.85),
        row(4, rate(0), 1.0),
        row(5, rate(1), 1.0),
    ];
    let document = Document {
        machine: Machine::this(),
        mode: node::modes(),
        size_bytes: cli.size,
        mtu_bytes: cli.link.mtu,
        loss_percent: cli.loss,
        raw_gbit_per_second: raw,
        rows,
    };
    let text = serde_json::to_string_pretty(&document)?;
    println!("{}", if cli.json { text.clone() } else { table(&document) });
    if let Some(out) = &cli.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let path = out.join("bulk.json");
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("bulk.json is in {}", out.display());
    }
    Ok(())
}

fn table(document: &Document) -> String {
    let mut text = format!(
        "{}\n\nmessages of {} bytes, MTU {}, mode {}\n{:<18}{:>10}{:>10}{:>10}\n{:<18}{:>10.2}\n",
        document.machine,
        document.size_bytes,
        document.mtu_bytes,
        document.mode,
        "",
        "Gbit/s",
        "ratio",
        "aim",
        "raw AF_XDP",
        document.raw_gbit_per_second,
    );
    for row in &document.rows {
        text +=
            &format!("{:<18}{:>10.2}{:>10.2}{:>10.2}\n", row.name, row.gbit_per_second, row.ratio, row.aim);
    }
    text + "\nratio: of the first two over raw, of the others over the same without loss out of ordinary memory"
}

fn raw_flood(cli: &Cli, time: Duration, carried: &mut Carried) -> anyhow::Result<()> {
    let bytes = cli.link.mtu + ETHERNET_BYTES;
    let received = AtomicU64::new(0);
    let time = cli.link.pair(
        |ready, stop| {
            let mut end = raw::End::open(&cli.link.interface_b)?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = raw::End::open(&cli.link.interface_a)?;
            let begun = Instant::now();
            end.flood(bytes, time)?;
            Ok(begun.elapsed())
        },
    )?;
    carried.bytes += received.into_inner() * bytes as u64;
    carried.time += time;
    Ok(())
}

fn messages(
    cli: &Cli,
    (operation, loss, registered): (Operation, f64, bool),
    time: Duration,
    carried: &mut Carried,
) -> anyhow::Result<()> {
    let (link, per_million) = (&cli.link, (loss * 10_000.0) as u32);
    let open =
        |interface: &str, nid, peer| bulk::End::open(interface, nid, peer, cli.size, per_million, registered);
    let served = AtomicU64::new(0);
    let (count, time) = link.pair(
        |ready, stop| {
            let mut end = open(&link.interface_b, link.nid_b, link.nid_a)?;
            ready();
            end.serve(stop, &served);
            Ok(())
        },
        || open(&link.interface_a, link.nid_a, link.nid_b)?.run(operation, time),
    )?;
    carried.bytes += count * cli.size as u64;
    carried.time += time;
    Ok(())
}
