//! Cost of nodes with several shards beside nodes with one: a Put of 64 bytes to its ACK, alone, and many
//! at once, between threaded nodes that may use all CPUs; in turns, over one veth pair.
//!
//! `cargo xtask bench --shards` makes the namespaces and calls this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use lnet_bench::link::{Link, Side, enter};
use lnet_bench::measure::PATIENCE;
use lnet_bench::options::{Options, Setup};
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

use super::reactors::{middle, sorted};

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
const AIMS: [f64; 2] = [1.5, 0.7];

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
    /// Medians of the turns: time of a Put, by its quantiles, and how many end in a second.
    p50_us: f64,
    p99_us: f64,
    per_second: f64,
    /// The p50, or for many at once the rate, beside that of the first number of shards: the median of the
    /// turns, and all of them by size.
    ratio: f64,
    ratios: Vec<f64>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    /// The most that a Put is to take with two shards, and the least that sixteen are to pass, beside one.
    aims: [f64; 2],
    rows: Vec<Row>,
}

/// Findings of one turn.
#[derive(Clone, Copy, Default, Debug)]
struct Found {
    p50_us: f64,
    p99_us: f64,
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
    let time = options.time(Duration::from_secs(2));
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(&**word));
    let cases: Vec<_> = SUBJECTS
        .into_iter()
        .filter(|(name, ..)| is_wanted(name))
        .flat_map(|subject| counts.iter().map(move |count| (subject, *count)))
        .collect();
    let mut turns: Vec<Vec<Found>> = cases.iter().map(|_| Vec::new()).collect();
    options.turns(|| {
        for (((_, waits, window), shards), turns) in cases.iter().zip(&mut turns) {
            turns.push(measure(&options, *waits, *window, *shards, time)?);
        }
        Ok(())
    })?;
    let rows = cases.iter().enumerate().map(|(index, ((name, _, window), shards))| {
        let (own, first) = (&turns[index], &turns[index - index % counts.len()]);
        let ratio = |(own, first): (&Found, &Found)| match window {
            1 => own.p50_us / first.p50_us,
            _ => own.per_second / first.per_second,
        };
        let ratios = sorted(own.iter().zip(first).map(ratio));
        let of = |value: fn(&Found) -> f64| middle(&sorted(own.iter().map(value)));
        Row {
            name,
            shards: *shards,
            p50_us: of(|found| found.p50_us),
            p99_us: of(|found| found.p99_us),
            per_second: of(|found| found.per_second),
            ratio: middle(&ratios),
            ratios,
        }
    });
    let document = Document { rows: rows.collect(), setup: options.setup(), aims: AIMS };
    options.tell("shards.json", &document, &table(&document))?;
    Ok(())
}

fn measure(
    options: &Options,
    waits: Waits,
    window: usize,
    shards: u32,
    time: Duration,
) -> anyhow::Result<Found> {
    let Link { netns_a, netns_b, .. } = &options.link;
    let (stop, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    let panicked = |_| anyhow!("an end of the link panicked");
    std::thread::scope(|scope| {
        let stop = &stop;
        // Not pinned: the threads of a node, which these start, may run on all CPUs.
        let far = scope.spawn(move || {
            enter(netns_b)?;
            let lnet = open(options.link.far(), shards)?;
            let taken = md(options.size, MdOptions::PUT | MdOptions::MANAGE_REMOTE, None);
            for bits in homes(shards)? {
                lnet.attach(&EntrySpec::new(PORTAL, bits), &taken, Buffer::zeroed(options.size))?.detach();
            }
            lnet.open()?;
            // Without a listener the report has no reader.
            tell.send(()).unwrap_or_default();
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(100));
            }
            Ok(())
        });
        let near = scope.spawn(move || {
            enter(netns_a)?;
            // An error means that the far end has failed; its own error tells more.
            let _ = told.recv();
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
                let (its, ended) = thread.join().unwrap_or_else(|cause| Err(panicked(cause)))?;
                times.merge(&its);
                count += ended;
            }
            let us = |quantile| times.quantile(quantile) as f64 / 1e3;
            let per_second = count as f64 / begun.elapsed().as_secs_f64();
            anyhow::Ok(Found { p50_us: us(0.5), p99_us: us(0.99), per_second })
        });
        let found = near.join().unwrap_or_else(|cause| Err(panicked(cause)));
        stop.store(true, Ordering::Relaxed);
        far.thread().unpark();
        far.join().unwrap_or_else(|cause| Err(panicked(cause)))?;
        found
    })
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

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text = format!(
        "{machine}\n\nPuts of {size_bytes} bytes to their ACKs, MTU {mtu_bytes}, mode {mode}\n\
         {:<30}{:>7}{:>10}{:>10}{:>12}{:>8}  turns\n",
        "", "shards", "p50 us", "p99 us", "Puts/s", "ratio",
    );
    for Row { name, shards, p50_us, p99_us, per_second, ratio, ratios } in &document.rows {
        let turns: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        text += &format!(
            "{name:<30}{shards:>7}{p50_us:>10.2}{p99_us:>10.2}{per_second:>12.0}{ratio:>8.2}  {}\n",
            turns.join(" ")
        );
    }
    let [latency, rate] = AIMS;
    text + &format!(
        "\nratio: of the time alone, of the rate at once, to that of one shard; aims: a Put alone with two \
         shards {latency} at most, many at once with sixteen {rate} at least"
    )
}
