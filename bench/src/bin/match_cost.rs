//! What it costs to match a message, by the number of exact entries posted, beside a lookup of the same keys
//! in the standard library's hash map: both measured in one run.
//!
//! A match is `Uplink::header` and `Uplink::received` of a PUT without payload: header checks, search,
//! accounting, the end of the operation. No entry is used up, so nothing else happens. Messages come in
//! batches, as they do from a ring: a figure is the mean over one batch, so that reading the clock costs
//! next to nothing, and a percentile is one over batches. Once with `Uplink::announce` of the batch, as an LND
//! with a ring calls it, and once without, as messages come that nobody knew of before.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use lnet_bench::machine::Machine;
use lnet_core::handle::ShardId;
use lnet_core::lnd::{Announced, NiId, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntrySpec, Position};
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_wire::nid::Net;
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};
use serde::Serialize;

/// Measures what it costs to match a message with 1 to 1,000,000 exact entries posted.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  match_cost\n  match_cost --entries 4096,65536 --json\n  \
                  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 match_cost   (the tables in huge pages)")]
struct Cli {
    /// Numbers of entries to measure with, each 1 to 16777216.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000,100000,1000000",
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    entries: Vec<u32>,
    /// Entries that the table has room for; at least the number posted.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    capacity: Option<u32>,
    /// A tenth of the messages.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Messages of one batch.
const BATCH: usize = 64;
/// Messages of one measurement.
const MESSAGES: usize = 1 << 21;
/// Turns of one measurement; match and baseline alternate, so that noise of the machine meets both.
const TURNS: usize = 8;
const PORTAL: u32 = 4;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let messages = if cli.quick { MESSAGES / 10 } else { MESSAGES };
    let mut rows = Vec::new();
    for &entries in &cli.entries {
        let capacity = cli.capacity.unwrap_or(entries);
        ensure!(capacity >= entries, "room for {capacity} entries: at least {entries} is expected");
        eprintln!("{entries} entries");
        let mut target = Target::new(entries, capacity)?;
        let map: HashMap<u64, [u64; 8]> = (0..u64::from(entries)).map(|bits| (bits, [bits; 8])).collect();
        for order in [Order::InOrder, Order::Random] {
            rows.push(measure(&mut target, &map, entries, order, messages)?);
        }
    }
    let machine = Machine::this();
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&Json { machine, rows })?);
    } else {
        println!("{}", table(&machine, &rows));
    }
    Ok(())
}

/// The order in which messages ask for entries, as these were posted.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    InOrder,
    Random,
}

impl Order {
    /// The match bits of so many messages for so many entries.
    fn bits(self, entries: u32, messages: usize) -> Vec<u64> {
        let entries = u64::from(entries);
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let message = |position: u64| match self {
            Self::InOrder => position % entries,
            Self::Random => {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 32) * entries) >> 32
            }
        };
        (0..messages as u64).map(message).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in order",
            Self::Random => "random",
        }
    }
}

/// A shard with its entries.
struct Target {
    shard: Shard,
    header: Header,
}

impl Target {
    /// Posts entries with match bits 0, 1, 2 ... for anyone.
    fn new(entries: u32, capacity: u32) -> anyhow::Result<Self> {
        let nid = |last: u8| Nid::new_ip(Net::TCP, [10, 0, 0, last].into());
        let (own, peer) = (nid(1)?, nid(2)?);
        let ni = LocalNi::new(own, 8, 8, Duration::from_secs(50));
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            shard_count: 1,
            interface_cookie: 1,
            pid: ProcessId::LUSTRE_PID,
            limits: Limits { match_entries: capacity, memory_descs: capacity, ..Limits::DEFAULT },
            topology: Arc::new(Topology::new(vec![ni])),
            hash_seed: 7,
        });
        let md = MdSpec {
            length_bytes: 4096,
            max_size_bytes: None,
            threshold: Threshold::Infinite,
            options: MdOptions::PUT | MdOptions::MANAGE_REMOTE,
            auto_unlink: true,
            event_queue: None,
            user_ptr: 0,
        };
        for match_bits in 0..u64::from(entries) {
            let entry = shard.attach_entry(&EntrySpec {
                portal: PORTAL,
                source: ProcessId { nid: Nid::ANY, pid: ProcessId::ANY_PID },
                match_bits,
                ignore_bits: 0,
                auto_unlink: true,
                position: Position::After,
            })?;
            shard.attach(entry, &md)?;
        }
        let header = Header {
            destination: ProcessId::lustre(own),
            source: ProcessId::lustre(peer),
            payload_length: 0,
            body: put(0),
        };
        Ok(Self { shard, header })
    }

    /// Matches messages with these bits, announced before.
    fn announced_batch(&mut self, bits: &[u64]) {
        let blank = Announced { portal: PORTAL, match_bits: 0, source: self.header.source };
        let mut arrivals = [blank; BATCH];
        for (arrival, &match_bits) in arrivals.iter_mut().zip(bits) {
            arrival.match_bits = match_bits;
        }
        self.shard.announce(black_box(&arrivals));
        self.batch(bits);
    }

    /// Matches messages with these bits.
    fn batch(&mut self, bits: &[u64]) {
        let (now, rx) = (Instant(0), RxId(0));
        for &match_bits in bits {
            self.header.body = put(match_bits);
            let verdict = self.shard.header(now, NiId(0), rx, black_box(&self.header));
            assert!(matches!(verdict, Verdict::Deliver(_)), "match bits {match_bits:#x} are not matched");
            self.shard.received(now, rx, Status::Ok);
        }
    }
}

fn put(match_bits: u64) -> Body {
    Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data: 0, portal: PORTAL, offset: 0 }
}

/// Batches that were timed, in nanoseconds a batch.
struct Batches(Histogram<u64>);

impl Batches {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 10_000_000_000, 3).context("cannot make a histogram")?))
    }

    fn time(&mut self, bits: &[u64], mut batch: impl FnMut(&[u64])) {
        for bits in bits.as_chunks::<BATCH>().0 {
            let begun = Clock::now();
            batch(bits);
            self.0.saturating_record(begun.elapsed().as_nanos() as u64);
        }
    }

    /// Nanoseconds a message at this quantile of the batches.
    fn ns(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / BATCH as f64
    }
}

#[derive(Serialize)]
struct Json {
    machine: Machine,
    rows: Vec<Row>,
}

/// Nanoseconds a message.
#[derive(Serialize)]
struct Row {
    entries: u32,
    order: Order,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    announced_p50: f64,
    announced_p99: f64,
    hash_map_p50: f64,
}

fn measure(
    target: &mut Target,
    map: &HashMap<u64, [u64; 8]>,
    entries: u32,
    order: Order,
    messages: usize,
) -> anyhow::Result<Row> {
    let bits = order.bits(entries, messages);
    let (mut matches, mut announced, mut lookups) = (Batches::new()?, Batches::new()?, Batches::new()?);
    for turn in bits.chunks(messages / TURNS) {
        // Warms what fits a cache; what does not is as cold as ever.
        turn.as_chunks::<BATCH>().0.iter().take(turn.len() / BATCH / 10).for_each(|bits| target.batch(bits));
        matches.time(turn, |bits| target.batch(bits));
        announced.time(turn, |bits| target.announced_batch(bits));
        lookups.time(turn, |bits| {
            for key in bits {
                black_box(map.get(black_box(key)).map(|value| value[0]));
            }
        });
    }
    Ok(Row {
        entries,
        order,
        p50: matches.ns(0.5),
        p90: matches.ns(0.9),
        p99: matches.ns(0.99),
        max: matches.ns(1.0),
        announced_p50: announced.ns(0.5),
        announced_p99: announced.ns(0.99),
        hash_map_p50: lookups.ns(0.5),
    })
}

fn table(machine: &Machine, rows: &[Row]) -> String {
    let mut text = format!(
        "{} ({} CPUs), kernel {}, commit {}\nnanoseconds a message, means of batches of {BATCH}\n\n",
        machine.cpu, machine.cpus, machine.kernel, machine.commit
    );
    let head = ["p50", "p90", "p99", "max", "announced p50", "p99", "HashMap p50"];
    let _ = write!(text, "{:>10}  {:<9}", "entries", "order");
    head.iter().for_each(|cell| {
        let _ = write!(text, "{cell:>14}");
    });
    for row in rows {
        let _ = write!(text, "\n{:>10}  {:<9}", row.entries, row.order.name());
        let announced = [row.announced_p50, row.announced_p99];
        for ns in [row.p50, row.p90, row.p99, row.max].into_iter().chain(announced).chain([row.hash_map_p50])
        {
            let _ = write!(text, "{ns:>14.1}");
        }
    }
    text
}
