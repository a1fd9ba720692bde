//! What it costs to match a message, by the number of exact entries posted, beside a lookup of the same keys
//! in the standard library's hash map: both measured in one run.
//!
//! A match is `Uplink::header` and `Uplink::received` of a PUT without payload: header checks, search,
//! accounting, the end of the operation. No entry is used up, so nothing else happens. Messages come in
//! batches, as they do from a ring: a figure is the mean over one batch, so that reading the clock costs
//! next to nothing, and a percentile is one over batches. Once with `PrefetchHints::hint` of the batch, as an
//! LND with a ring calls it, and once without, as messages come that were not announced.
//!
//! A life is all that happens to an entry of one use: posted, with an event queue; matched; used up and
//! unlinked; its event polled. Another one is posted for each that goes.
//!
//! What a match costs more with many entries than with few is waiting for memory. How long that takes once is
//! measured beside it, in the same run: a load is one of a chain of loads, each of which says where the next
//! one is, at random over as many bytes as the tables have. The last columns say how many of these a match
//! and a life cost more than they do with the fewest entries.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::ensure;
use clap::Args;
use lnet_bench::machine::Machine;
use lnet_bench::options::Report;
use lnet_bench::random::Random;
use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::lnd::{NiId, PrefetchHint, PrefetchHints, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_io::xsk::prefetch;
use lnet_load::Distribution;
use lnet_wire::nid::Net;
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};
use serde::Serialize;
use serde_json::json;

/// Measures what it costs to match a message with 1 to 1,000,000 exact entries posted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bench match-cost\n  bench match-cost --entries 4096,65536 --json\n  \
                  GLIBC_TUNABLES=glibc.malloc.hugetlb=1 bench match-cost   (the tables in huge pages)")]
pub(crate) struct Cli {
    /// Numbers of entries to measure with, each 1 to 16777216.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000,100000,1000000",
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    entries: Vec<u32>,
    /// Entries that the table has room for; at least the number posted.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    capacity: Option<u32>,
    #[command(flatten)]
    report: Report,
}

/// Messages of one batch.
const BATCH: usize = 64;
/// Messages of one measurement.
const MESSAGES: u64 = 1 << 21;
/// Turns of one measurement; match and baseline alternate, so that noise of the machine meets both.
const TURNS: usize = 8;
const PORTAL: u32 = 4;

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let messages = cli.report.rounds(MESSAGES) as usize;
    let mut rows = Vec::new();
    for &entries in &cli.entries {
        let capacity = cli.capacity.unwrap_or(entries);
        ensure!(capacity >= entries, "room for {capacity} entries: at least {entries} is expected");
        eprintln!("{entries} entries");
        let mut subjects = Subjects {
            matched: Target::new(entries, capacity, Use::Forever)?,
            used_up: Target::new(entries, capacity, Use::Once)?,
            map: (0..u64::from(entries)).map(|bits| (bits, [bits; 8])).collect(),
            chase: Chase::new(entries),
        };
        for order in [Order::InOrder, Order::Random] {
            rows.push(subjects.measure(entries, order, messages)?);
        }
    }
    rows.sort_by_key(|row| row.entries);
    let machine = Machine::this();
    let document = json!({"machine": machine, "rows": rows});
    cli.report.tell("match-cost.json", &document, &table(&machine, &rows))?;
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
        match self {
            Self::InOrder => (0..messages as u64).map(|position| position % entries).collect(),
            Self::Random => {
                let mut random = Random::new();
                (0..messages).map(|_| random.below(entries)).collect()
            }
        }
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
    md: MdSpec,
    events: EqHandle,
}

/// How often an entry is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Forever,
    Once,
}

impl Target {
    /// Posts entries with match bits 0, 1, 2 ... for any initiator.
    fn new(entries: u32, capacity: u32, used: Use) -> anyhow::Result<Self> {
        let nid = |last: u8| Nid::new_ip(Net::TCP, [10, 0, 0, last].into());
        let (own, peer) = (nid(1)?, nid(2)?);
        let ni = LocalNi::new(own, 8, 8, Duration::from_secs(50));
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            shard_count: 1,
            seal_key: [1, 2],
            pid: ProcessId::LUSTRE_PID,
            limits: Limits {
                match_entries: capacity,
                memory_descs: capacity,
                // Slots for the message and for the end of each descriptor.
                events: if used == Use::Once { 2 * capacity } else { 2 },
                ..Limits::DEFAULT
            },
            topology: Arc::new(Topology::new(vec![ni])),
            hash_seed: 7,
        });
        let events = shard.create_event_queue(if used == Use::Once { 2 * capacity } else { 2 })?;
        let md = MdSpec {
            length_bytes: 4096,
            max_size_bytes: None,
            threshold: if used == Use::Once { Threshold::Count(1) } else { Threshold::Infinite },
            options: MdOptions::PUT | MdOptions::MANAGE_REMOTE,
            auto_unlink: true,
            event_queue: (used == Use::Once).then_some(events),
            user_ptr: 0,
        };
        let header = Header {
            destination: ProcessId::lustre(own),
            source: ProcessId::lustre(peer),
            payload_length: 0,
            body: put(0),
        };
        let mut target = Self { shard, header, md, events };
        (0..u64::from(entries)).try_for_each(|match_bits| target.post(match_bits))?;
        Ok(target)
    }

    fn post(&mut self, match_bits: u64) -> anyhow::Result<()> {
        let entry = self.shard.attach_entry(&EntrySpec::new(PORTAL, match_bits))?;
        self.shard.attach(entry, &self.md)?;
        Ok(())
    }

    /// Announces messages with these bits.
    fn announce(&mut self, bits: &[u64]) {
        let blank = PrefetchHint { portal: PORTAL, match_bits: 0, source: self.header.source };
        let mut arrivals = [blank; BATCH];
        for (arrival, &match_bits) in arrivals.iter_mut().zip(bits) {
            arrival.match_bits = match_bits;
        }
        self.shard.hint(black_box(&arrivals), prefetch);
    }

    /// Matches messages with these bits.
    fn batch(&mut self, bits: &[u64]) {
        let (now, rx) = (Instant(0), RxId(0));
        for &match_bits in bits {
            self.header.body = put(match_bits);
            let verdict = self.shard.header(
                now,
                NiId(0),
                &black_box(&self.header).source.nid,
                rx,
                black_box(&self.header),
            );
            assert!(matches!(verdict, Verdict::Deliver(_)), "match bits {match_bits:#x} are not matched");
            self.shard.received(now, rx, Status::Ok);
        }
    }

    /// Uses entries with these bits up, and posts them again.
    fn lives(&mut self, bits: &[u64]) {
        for match_bits in bits {
            self.batch(std::slice::from_ref(match_bits));
            let event = self.shard.poll_event(self.events);
            assert!(
                event.is_some_and(|event| event.unlinked()),
                "match bits {match_bits:#x} are not used up"
            );
            assert!(self.post(*match_bits).is_ok(), "match bits {match_bits:#x} cannot be posted again");
        }
    }
}

fn put(match_bits: u64) -> Body {
    Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data: 0, portal: PORTAL, offset: 0 }
}

/// Cache lines, each of which names the one to read next: one random cycle through all of them.
struct Chase(Vec<Line>);

#[derive(Clone)]
#[repr(align(64))]
struct Line(u32);

/// Bytes of the tables that one entry takes: a bucket, the entry, its descriptor, two generations.
const ENTRY_BYTES: u32 = 64 + 64 + 64 + 8;

impl Chase {
    fn new(entries: u32) -> Self {
        let count = (u64::from(entries) * u64::from(ENTRY_BYTES)).div_ceil(64) as u32;
        let mut lines: Vec<Line> = (0..count).map(Line).collect();
        // Sattolo's shuffle makes one cycle.
        let mut random = Random::new();
        for last in (1..count as usize).rev() {
            lines.swap(last, random.below(last as u64) as usize);
        }
        Self(lines)
    }

    /// Follows so many links from a line on, and returns the line that it arrives at.
    fn follow(&self, from: u32, count: usize) -> u32 {
        (0..count).fold(from, |at, _| self.0[at as usize].0)
    }
}

/// Batches that were timed, in nanoseconds a batch.
#[derive(Clone)]
struct Batches(Distribution);

impl Batches {
    fn new() -> Self {
        Self(Distribution::measured())
    }

    fn time(&mut self, bits: &[u64], mut batch: impl FnMut(&[u64])) {
        for bits in bits.as_chunks::<BATCH>().0 {
            let begun = Clock::now();
            batch(bits);
            self.0.record_time(begun.elapsed());
        }
    }

    /// Nanoseconds a message at this quantile of the batches.
    fn ns(&self, quantile: f64) -> f64 {
        self.0.quantile(quantile) as f64 / BATCH as f64
    }
}

/// Nanoseconds a message.
#[derive(Serialize)]
struct Row {
    entries: u32,
    order: Order,
    p50: f64,
    p99: f64,
    announced_p50: f64,
    announced_p99: f64,
    life_p50: f64,
    announced_life_p50: f64,
    hash_map_p50: f64,
    load_p50: f64,
}

/// What is measured beside each other.
struct Subjects {
    matched: Target,
    used_up: Target,
    map: HashMap<u64, [u64; 8]>,
    chase: Chase,
}

impl Subjects {
    fn measure(&mut self, entries: u32, order: Order, messages: usize) -> anyhow::Result<Row> {
        let Self { matched, used_up, map, chase } = self;
        let bits = order.bits(entries, messages);
        let timer = Batches::new();
        let mut timed: [Batches; 6] = std::array::from_fn(|_| timer.clone());
        let [matches, announced, lives, announced_lives, lookups, loads] = &mut timed;
        let mut line = 0;
        for turn in bits.chunks(messages / TURNS) {
            // Warms what fits a cache; what does not is as cold as ever.
            turn.as_chunks::<BATCH>()
                .0
                .iter()
                .take(turn.len() / BATCH / 10)
                .for_each(|bits| matched.batch(bits));
            matches.time(turn, |bits| matched.batch(bits));
            announced.time(turn, |bits| {
                matched.announce(bits);
                matched.batch(bits);
            });
            lives.time(turn, |bits| used_up.lives(bits));
            announced_lives.time(turn, |bits| {
                used_up.announce(bits);
                used_up.lives(bits);
            });
            lookups.time(turn, |bits| {
                for key in bits {
                    black_box(map.get(black_box(key)).map(|value| value[0]));
                }
            });
            loads.time(turn, |bits| line = black_box(chase.follow(line, bits.len())));
        }
        let p50 = timed.each_ref().map(|batches| batches.ns(0.5));
        Ok(Row {
            entries,
            order,
            p50: p50[0],
            p99: timed[0].ns(0.99),
            announced_p50: p50[1],
            announced_p99: timed[1].ns(0.99),
            life_p50: p50[2],
            announced_life_p50: p50[3],
            hash_map_p50: p50[4],
            load_p50: p50[5],
        })
    }
}

fn table(machine: &Machine, rows: &[Row]) -> String {
    let mut text = format!(
        "{machine}\nnanoseconds a message, means of batches of {BATCH}; p50 where \
         nothing is said\n\n"
    );
    let head = ["match", "p99", "announced", "p99", "life", "announced", "HashMap", "load"];
    let _ = write!(text, "{:>10}  {:<9}", "entries", "order");
    for cell in head.into_iter().chain(["match/loads", "life/loads"]) {
        let _ = write!(text, "{cell:>12}");
    }
    for row in rows {
        let _ = write!(text, "\n{:>10}  {:<9}", row.entries, row.order.name());
        let announced = [row.announced_p50, row.announced_p99, row.life_p50, row.announced_life_p50];
        for ns in [row.p50, row.p99].into_iter().chain(announced).chain([row.hash_map_p50, row.load_p50]) {
            let _ = write!(text, "{ns:>12.1}");
        }
        let Some(base) = rows.iter().find(|base| base.order == row.order) else { continue };
        for more in [row.p50 - base.p50, row.life_p50 - base.life_p50] {
            let _ = write!(text, "{:>12.1}", more / row.load_p50);
        }
    }
    text
}
