//! Puts that tasks await beside Puts whose events a blocked thread takes, of a node to itself: one after the
//! other, and many at once; in turns, each subject once a turn.
//!
//! `cargo xtask bench --awaits` builds and calls this.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use lnet_bench::machine::Machine;
use lnet_bench::options::TURNS;
use lnet_core::event::EventKind;
use lnet_core::limits::Limits;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::api::{Ack, Descriptor, EventQueue, Lnet, Target};
use lnet_user::node::NodeConfig;
use lnet_wire::Nid;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

const PORTAL: u32 = 20;
/// Tasks, or Puts, at once.
const MANY: usize = 64;
const BYTES: usize = 64;
/// Limits with which every task has a descriptor whose events may all be under way.
const LIMITS: Limits = Limits { unlimited_events: 1 << 8, ..Limits::DEFAULT };

/// Measures Puts that tasks await beside those that a blocked thread waits for.
#[derive(Debug, Args)]
#[command(after_help = "Example: cargo xtask bench --awaits")]
pub(crate) struct Cli {
    /// A tenth of the time.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// How Puts are waited for.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// By `EventQueue::next_blocking`, so many at once.
    Blocking(usize),
    /// By tasks, in a runtime of so many threads besides the caller's.
    Tasks { tasks: usize, threads: usize },
    /// By `EventQueue::next` in one task.
    Events,
    /// By one task, beside one that waits for an event that does not come.
    BesideOther,
}

const SUBJECTS: [(&str, Waits); 8] = [
    ("next_blocking", Waits::Blocking(1)),
    ("put().await", Waits::Tasks { tasks: 1, threads: 0 }),
    ("put().await beside a task that waits", Waits::BesideOther),
    ("put().await, 2 threads", Waits::Tasks { tasks: 1, threads: 2 }),
    ("next().await", Waits::Events),
    ("next_blocking, 64 at once", Waits::Blocking(MANY)),
    ("put().await, 64 tasks", Waits::Tasks { tasks: MANY, threads: 0 }),
    ("put().await, 64 tasks, 2 threads", Waits::Tasks { tasks: MANY, threads: 2 }),
];

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// Microseconds of a Put, the median of the turns, and all of them by size.
    us: f64,
    turns_us: Vec<f64>,
}

/// A node, with an entry that takes Puts.
struct Node {
    lnet: Lnet,
    /// Events of what is put.
    events: EventQueue,
}

impl Node {
    fn start() -> anyhow::Result<Self> {
        let lnet = Lnet::start(&NodeConfig::loopback().limits(LIMITS))?;
        let events = lnet.create_event_queue((MANY as u32 + 1) * (LIMITS.unlimited_events + 1))?;
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
        let sink = MdSpec { event_queue: None, ..Self::endless(&events, options) };
        lnet.attach(&EntrySpec::new(PORTAL, 1), &sink, Buffer::zeroed(BYTES))?.detach();
        Ok(Self { lnet, events })
    }

    fn endless(events: &EventQueue, options: MdOptions) -> MdSpec {
        MdSpec::new(BYTES as u64, Threshold::Infinite, options, events.handle())
    }

    fn source(&self) -> anyhow::Result<Descriptor> {
        Ok(self.lnet.bind(&Self::endless(&self.events, MdOptions::NONE), Buffer::zeroed(BYTES))?)
    }

    /// How many Puts end in `time`.
    fn count(&mut self, waits: Waits, time: Duration) -> anyhow::Result<u64> {
        let source = self.source()?;
        let until = Instant::now() + time;
        match waits {
            Waits::Blocking(at_once) => {
                let mut count = 0;
                (0..at_once).try_for_each(|_| queue(&source))?;
                let mut under_way = at_once;
                while under_way > 0 {
                    let queued = self.events.next_blocking(Some(time))?.context("a Put does not end")?;
                    if queued.event.kind() != EventKind::Ack {
                        continue;
                    }
                    count += 1;
                    if Instant::now() < until { queue(&source)? } else { under_way -= 1 }
                }
                Ok(count)
            }
            Waits::Tasks { tasks: 1, threads } => {
                let runtime = runtime(threads)?;
                let task = runtime.spawn(put_until(source, until));
                runtime.block_on(task)?
            }
            Waits::Tasks { tasks, threads } => {
                let runtime = runtime(threads)?;
                let sources = (0..tasks).map(|_| self.source()).collect::<anyhow::Result<Vec<_>>>()?;
                let tasks = sources.into_iter().map(|source| runtime.spawn(put_until(source, until)));
                let tasks: Vec<_> = tasks.collect();
                let mut count = 0;
                for task in tasks {
                    count += runtime.block_on(task)??;
                }
                Ok(count)
            }
            Waits::Events => runtime(0)?.block_on(async {
                let mut count = 0;
                while Instant::now() < until {
                    queue(&source)?;
                    while self.events.next().await?.event.kind() != EventKind::Ack {}
                    count += 1;
                }
                Ok(count)
            }),
            Waits::BesideOther => {
                let mut quiet = self.lnet.create_event_queue(4)?;
                let runtime = runtime(0)?;
                let other = runtime.spawn(async move { quiet.next().await.map(drop) });
                let count = runtime.block_on(put_until(source, until))?;
                ensure!(!other.is_finished(), "an event that no message causes");
                Ok(count)
            }
        }
    }
}

fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    let mut builder = match threads {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 0 {
        builder.worker_threads(threads);
    }
    Ok(builder.enable_all().build()?)
}

fn to_self() -> Target {
    Target::new(Nid::LO, PORTAL, 1)
}

fn queue(source: &Descriptor) -> anyhow::Result<()> {
    Ok(source.put(&to_self(), Ack::Wanted, 0).queue()?)
}

async fn put_until(source: Descriptor, until: Instant) -> anyhow::Result<u64> {
    let mut count = 0;
    while Instant::now() < until {
        source.put(&to_self(), Ack::Wanted, 0).await?;
        count += 1;
    }
    Ok(count)
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let time = Duration::from_millis(if cli.quick { 100 } else { 1000 });
    let mut turns_us = SUBJECTS.map(|_| Vec::new());
    for _ in 0..TURNS {
        for ((_, waits), turns_us) in SUBJECTS.into_iter().zip(&mut turns_us) {
            // A node of its own: none finds the shard as another has left it.
            let (mut node, begun) = (Node::start()?, Instant::now());
            let count = node.count(waits, time)?;
            turns_us.push(begun.elapsed().as_secs_f64() * 1e6 / count as f64);
        }
    }
    let rows = SUBJECTS.into_iter().zip(turns_us).map(|((name, _), mut turns_us)| {
        turns_us.sort_by(f64::total_cmp);
        Row { name, us: turns_us[turns_us.len() / 2], turns_us }
    });
    let rows: Vec<Row> = rows.collect();
    let machine = Machine::this();
    if cli.json {
        println!("{}", serde_json::json!({ "machine": machine, "rows": rows }));
        return Ok(());
    }
    println!(
        "{machine}\n\nPuts of {BYTES} bytes with ACK, of a node to itself, medians of {TURNS} turns\n{:<40}{:>10}{:>12}  turns",
        "", "us a Put", "Puts/s"
    );
    for Row { name, us, turns_us } in rows {
        let turns: Vec<String> = turns_us.iter().map(|us| format!("{us:.2}")).collect();
        println!("{name:<40}{us:>10.2}{:>12.0}  {}", 1e6 / us, turns.join(" "));
    }
    Ok(())
}
