//! Cost of nodes with several shards beside nodes with one: a Put of 64 bytes to its ACK, alone, and many
//! at once, between threaded nodes that may use all CPUs; in turns, over one veth pair.
//!
//! `cargo xtask bench --shards` makes the namespaces and calls this.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, checks_table};
use lnet_bench::link::{Side, wait_until};
use lnet_bench::measure::PATIENCE;
use lnet_bench::options::{Document, Options, Setup};
use lnet_core::event::EventKind;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_load::Distribution;
use lnet_user::Buffer;
use lnet_user::api::{Ack, Descriptor, EventQueue, Lnet, ShardHandle, Target};
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_user::runtime::{Home, Steering, entry_home};
use lnet_wire::ProcessId;
use lnet_wire::steer::{PORTALS, Policy, Spread};
use serde::Serialize;

/// Measures nodes with several shards beside nodes with one.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --shards   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Shards of both nodes, one measurement each; what is told of the others is told beside the first.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 16])]
    counts: Vec<u32>,
    /// Measure these alone: words of their names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

const PORTAL: u32 = 20;
/// Puts that are under way at once, where it is not one.
const MANY: usize = 64;
/// Places of an event queue, and the events that a descriptor may have under way.
const EVENT_SLOTS: u32 = 1 << 10;
/// The most that a Put may take with two shards, and the least that sixteen pass, beside one.
const AIMS: [Bound; 2] = [Bound::AtMost(1.5), Bound::AtLeast(0.7)];

/// Which shards of the sender Puts start from, and who waits for their ACKs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// The first shard, and a thread.
    First,
    /// All of them in turn, and one thread with a queue on all.
    All,
    /// All of them, and a thread each.
    Each,
}

/// A measurement: by whom, and how many Puts are under way at once.
const SUBJECTS: [(&str, Waits, usize); 6] = [
    ("alone, from one shard", Waits::First, 1),
    ("alone, from all in turn", Waits::All, 1),
    ("alone, a thread a shard", Waits::Each, 1),
    ("64 at once, from one shard", Waits::First, MANY),
    ("64 at once, from all in turn", Waits::All, MANY),
    ("64 at once, a thread a shard", Waits::Each, MANY),
];

#[derive(Serialize)]
struct Row {
    name: &'static str,
    shards: u32,
    /// Time of a Put that is alone, by its quantiles, and how many end in a second.
    p50_us: Figure,
    p99_us: Figure,
    per_second: Figure,
    /// The p50, or for many at once the rate, beside that of the first number of shards, in each turn.
    ratio: Figure,
}

/// Findings of one turn.
#[derive(Clone, Copy, Default, Debug)]
struct Found {
    /// The p50 and p99 of Puts that are alone.
    alone_us: Option<[f64; 2]>,
    per_second: f64,
}

/// A thread's end of the sender.
struct Sender {
    events: EventQueue,
    sources: Vec<Descriptor>,
    targets: Vec<Target>,
    /// Puts that may be under way at once.
    window: usize,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, counts, only }: Cli) -> anyhow::Result<()> {
    let time = options.report.time(Duration::from_secs(2));
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(&**word));
    let cases: Vec<_> = SUBJECTS
        .into_iter()
        .filter(|(name, ..)| is_wanted(name))
        .flat_map(|subject| counts.iter().map(move |count| (subject, *count)))
        .collect();
    let mut turns: Vec<[Figure; 3]> = cases.iter().map(|_| Default::default()).collect();
    options.report.turns(|| {
        for (((_, waits, window), shards), [p50_us, p99_us, per_second]) in cases.iter().zip(&mut turns) {
            let found = measure(&options, *waits, *window, *shards, time)?;
            p50_us.add(found.alone_us.map(|[p50, _]| p50));
            p99_us.add(found.alone_us.map(|[_, p99]| p99));
            per_second.add(found.per_second);
        }
        Ok(())
    })?;
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for (index, ((name, _, window), shards)) in cases.iter().enumerate() {
        let (own, first) = (&turns[index], &turns[index - index % counts.len()]);
        let of = if *window == 1 { 0 } else { 2 };
        let ratio = own[of].over(&first[of]);
        let bound = match (window, shards) {
            (1, 2) => Some(AIMS[0]),
            (&MANY, 16) => Some(AIMS[1]),
            _ => None,
        };
        let what = if *window == 1 { "p50" } else { "Puts a second" };
        let name_told = format!("{name}, {shards} shards / {}, {what}", counts[0]);
        checks.extend(bound.and_then(|bound| Check::new(name_told, ratio.clone(), bound)));
        let [p50_us, p99_us, per_second] = own.clone();
        rows.push(Row { name, shards: *shards, p50_us, p99_us, per_second, ratio });
    }
    let document = Document { rows, setup: options.setup(), checks };
    options.report.tell("shards.json", &document, &table(&document))?;
    Ok(())
}

/// Measures one turn, on whatever CPUs the kernel gives the threads: those of a node may run on all.
fn measure(
    options: &Options,
    waits: Waits,
    window: usize,
    shards: u32,
    time: Duration,
) -> anyhow::Result<Found> {
    options.link.pair_anywhere(
        |ready, stop| {
            let lnet = open(options.link.far(), shards)?;
            let taken = md(options.size, MdOptions::PUT | MdOptions::MANAGE_REMOTE, None);
            for bits in homes(shards)? {
                lnet.attach(&EntrySpec::new(PORTAL, bits), &taken, Buffer::zeroed(options.size))?.detach();
            }
            lnet.open()?;
            ready();
            wait_until(stop);
            Ok(())
        },
        || {
            let lnet = open(options.link.near(), shards)?;
            lnet.open()?;
            let senders = senders(&lnet, options, waits, window, shards)?;
            let begun = Instant::now();
            let threads: Vec<_> = senders
                .into_iter()
                .map(|sender| std::thread::spawn(move || sender.run(begun, time)))
                .collect();
            let (mut times, mut count) = (Distribution::measured(), 0);
            for thread in threads {
                let ended = thread.join().map_err(|_| anyhow!("a thread that sends panicked"))?;
                let (its, ended) = ended?;
                times.merge(&its);
                count += ended;
            }
            let us = |quantile| times.quantile(quantile) as f64 / 1e3;
            let per_second = count as f64 / begun.elapsed().as_secs_f64();
            Ok(Found { alone_us: (times.count() > 0).then(|| [us(0.5), us(0.99)]), per_second })
        },
    )
}

/// Puts to the portal go to a shard by their match bits.
const POLICY: Policy = Policy::MatchBits { shift: 0, bits: 64, spread: Spread::Hash };

fn open(side: Side<'_>, shards: u32) -> anyhow::Result<Lnet> {
    let config = NodeConfig::new(vec![NiConfig::new(side.nid, side.interface)]).shards(shards);
    Ok(Lnet::start(&config.policies(vec![(PORTAL as u8, POLICY)]))?)
}

/// Match bits of each shard, in their order.
fn homes(shards: u32) -> anyhow::Result<Vec<u64>> {
    let steering = Steering { shard_count: shards as u8, policies: [POLICY.pack()?; PORTALS] };
    let is_home = |shard, bits| {
        let home = entry_home(&steering, PORTAL, &ProcessId::ANY, bits, 0);
        matches!(home, Ok(Home::Shard(home)) if home == shard)
    };
    let first = |shard| (0..1 << 16).find(|bits| is_home(shard, *bits));
    (0..shards).map(|shard| first(shard).context("no match bits belong to a shard")).collect()
}

fn md(bytes: usize, options: MdOptions, events: Option<&EventQueue>) -> MdSpec {
    MdSpec {
        length_bytes: bytes as u64,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options,
        auto_unlink: false,
        event_queue: events.map(EventQueue::handle),
        user_ptr: 0,
    }
}

fn senders(
    lnet: &Lnet,
    options: &Options,
    waits: Waits,
    window: usize,
    shards: u32,
) -> anyhow::Result<Vec<Sender>> {
    let peer = options.link.near().peer.nid;
    let targets: Vec<_> = homes(shards)?.into_iter().map(|bits| Target::new(peer, PORTAL, bits)).collect();
    let source = |shard: &ShardHandle, events: &EventQueue| {
        let md = md(options.size, MdOptions::NONE, Some(events));
        anyhow::Ok(shard.bind(&md, Buffer::zeroed(options.size))?)
    };
    let of_shard = |shard: ShardHandle, targets: Vec<Target>, window| {
        let events = shard.create_event_queue(EVENT_SLOTS)?;
        let sources = vec![source(&shard, &events)?];
        anyhow::Ok(Sender { events, sources, targets, window })
    };
    match waits {
        Waits::First => Ok(vec![of_shard(lnet.shard(0)?, targets[..1].to_vec(), window)?]),
        Waits::All => {
            let events = lnet.create_event_queue(EVENT_SLOTS)?;
            let sources =
                lnet.shards().map(|shard| source(&shard, &events)).collect::<anyhow::Result<_>>()?;
            Ok(vec![Sender { events, sources, targets, window }])
        }
        Waits::Each => {
            let window = (window / shards as usize).max(1);
            lnet.shards().zip(targets).map(|(shard, target)| of_shard(shard, vec![target], window)).collect()
        }
    }
}

impl Sender {
    /// Keeps the window full for a while; the times of Puts that were alone, and how many there were.
    fn run(mut self, begun: Instant, time: Duration) -> anyhow::Result<(Distribution, u64)> {
        let (mut times, mut count) = (Distribution::measured(), 0);
        let (mut under_way, mut number, mut put_at) = (0, 0, Duration::ZERO);
        loop {
            while under_way < self.window && begun.elapsed() < time {
                let (source, target) =
                    (&self.sources[number % self.sources.len()], &self.targets[number % self.targets.len()]);
                put_at = begun.elapsed();
                source.put(target, Ack::Wanted, 0).queue()?;
                (under_way, number) = (under_way + 1, number + 1);
            }
            if under_way == 0 {
                return Ok((times, count));
            }
            let queued = self.events.next_blocking(Some(PATIENCE))?.context("a Put does not end")?;
            let event = queued.event;
            ensure!(event.status() == Status::Ok, "a message ended with {:?}", event.status());
            if event.kind() == EventKind::Ack {
                (under_way, count) = (under_way - 1, count + 1);
                if self.window == 1 {
                    times.record_time(begun.elapsed() - put_at);
                }
            }
        }
    }
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mtu_bytes, size_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nPuts of {size_bytes} bytes to their ACKs, MTU {mtu_bytes}{}\n\
         {:<30}{:>7}{:>10}{:>18}{:>10}{:>18}{:>12}{:>24}{:>8}{:>16}\n",
        document.setup.modes(),
        "",
        "shards",
        "p50 us",
        "(range)",
        "p99 us",
        "(range)",
        "Puts/s",
        "(range)",
        "ratio",
        "(range)",
    );
    for Row { name, shards, p50_us, p99_us, per_second, ratio } in &document.rows {
        text += &format!(
            "{name:<30}{shards:>7}{:>10}{:>18}{:>10}{:>18}{:>12}{:>24}{:>8}{:>16}\n",
            p50_us.cell(2),
            p50_us.range_cell(2),
            p99_us.cell(2),
            p99_us.range_cell(2),
            per_second.cell(0),
            per_second.range_cell(0),
            ratio.cell(2),
            ratio.range_cell(2)
        );
    }
    text + &checks_table(&document.checks)
        + "\nratio: of the time alone, of the rate at once, to that of the first number of shards, in each turn"
}
