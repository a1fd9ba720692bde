//! Puts that tasks await beside Puts whose events a blocked thread takes, between two nodes over a veth pair,
//! and of a node to itself: one after the other, and many at once; in turns, each subject once a turn. Nodes
//! and threads are those of a program that says nothing.
//!
//! `cargo xtask bench --awaits` makes the namespaces and calls this.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, beside_heading, beside_row, checks_table};
use lnet_bench::link::{Side, wait_until};
use lnet_bench::measure::PATIENCE;
use lnet_bench::options::{Document, Options, Setup};
use lnet_core::event::EventKind;
use lnet_core::limits::Limits;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::api::{Ack, Descriptor, EventQueue, Lnet, Target};
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_wire::Nid;
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

const PORTAL: u32 = 20;
/// Tasks, or Puts, at once.
const MANY: usize = 64;
/// Event slots of all descriptors, without those that they borrow.
const EVENT_SLOTS: u32 = (MANY as u32 + 1) * Limits::DEFAULT.unlimited_events;

/// Measures Puts that tasks await beside those that a blocked thread waits for.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --awaits   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
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

/// The most that a Put may take which one task awaits, of one whose event a blocked thread takes.
const OF_BLOCKING: Bound = Bound::AtMost(1.3);
/// Puts a second that many tasks pass at least: on one thread, and on several.
const MANY_PER_SECOND: [f64; 2] = [548_000.0, 500_000.0];

/// Bound of a subject.
#[derive(Clone, Copy, Debug)]
enum Keeps {
    Nothing,
    /// The time of the first subject, but for a factor.
    TimeOfFirst(Bound),
    PerSecond(f64),
}

const SUBJECTS: [(&str, Waits, Keeps); 8] = [
    ("next_blocking", Waits::Blocking(1), Keeps::Nothing),
    ("put().await", Waits::Tasks { tasks: 1, threads: 0 }, Keeps::TimeOfFirst(OF_BLOCKING)),
    ("put().await beside a task that waits", Waits::BesideOther, Keeps::TimeOfFirst(OF_BLOCKING)),
    ("put().await, 2 threads", Waits::Tasks { tasks: 1, threads: 2 }, Keeps::Nothing),
    ("next().await", Waits::Events, Keeps::TimeOfFirst(OF_BLOCKING)),
    ("next_blocking, 64 at once", Waits::Blocking(MANY), Keeps::Nothing),
    ("put().await, 64 tasks", Waits::Tasks { tasks: MANY, threads: 0 }, Keeps::PerSecond(MANY_PER_SECOND[0])),
    (
        "put().await, 64 tasks, 2 threads",
        Waits::Tasks { tasks: MANY, threads: 2 },
        Keeps::PerSecond(MANY_PER_SECOND[1]),
    ),
];

/// Target of the Puts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goes {
    OverTheLink,
    ToItself,
}

const GOES: [(&str, Goes); 2] = [("over the link", Goes::OverTheLink), ("to itself", Goes::ToItself)];

#[derive(Serialize)]
struct Row {
    goes: &'static str,
    name: &'static str,
    us: Figure,
    per_second: Figure,
    /// The time over that of the first subject, in each turn.
    ratio: Figure,
}

/// A node that puts.
struct Node {
    lnet: Lnet,
    /// Events of what is put.
    events: EventQueue,
    bytes: usize,
    target: Target,
}

/// A node on a side of the link, or with no NI besides `lo`.
fn lnet(side: Option<Side<'_>>) -> anyhow::Result<Lnet> {
    let config = match side {
        Some(side) => NodeConfig::new(vec![NiConfig::new(side.nid, side.interface)]),
        None => NodeConfig::loopback(),
    };
    Ok(Lnet::start(&config)?)
}

/// Posts an entry that takes Puts.
fn post(lnet: &Lnet, bytes: usize) -> anyhow::Result<()> {
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let sink = MdSpec {
        length_bytes: bytes as u64,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options,
        auto_unlink: false,
        event_queue: None,
        user_ptr: 0,
    };
    lnet.attach(&EntrySpec::new(PORTAL, 1), &sink, Buffer::zeroed(bytes))?.detach();
    Ok(())
}

impl Node {
    fn new(lnet: Lnet, target: Nid, bytes: usize) -> anyhow::Result<Self> {
        let events = lnet.create_event_queue(EVENT_SLOTS)?;
        lnet.open()?;
        Ok(Self { lnet, events, bytes, target: Target::new(target, PORTAL, 1) })
    }

    /// Another descriptor of which Puts are made.
    fn source(&self) -> anyhow::Result<Source> {
        let bytes = self.bytes;
        let md = MdSpec::new(bytes as u64, Threshold::Infinite, MdOptions::NONE, self.events.handle());
        Ok(Source { descriptor: self.lnet.bind(&md, Buffer::zeroed(bytes))?, target: self.target })
    }

    /// How many Puts end in `time`.
    fn count(&mut self, waits: Waits, time: Duration) -> anyhow::Result<u64> {
        let source = self.source()?;
        let until = Instant::now() + time;
        match waits {
            Waits::Blocking(at_once) => {
                let mut count = 0;
                (0..at_once).try_for_each(|_| source.queue())?;
                let mut under_way = at_once;
                while under_way > 0 {
                    let queued = self.events.next_blocking(Some(PATIENCE))?.context("a Put does not end")?;
                    if queued.event.kind() != EventKind::Ack {
                        continue;
                    }
                    count += 1;
                    if Instant::now() < until { source.queue()? } else { under_way -= 1 }
                }
                Ok(count)
            }
            Waits::Tasks { tasks: 1, threads } => {
                let runtime = runtime(threads)?;
                let task = runtime.spawn(source.put_until(until));
                runtime.block_on(task)?
            }
            Waits::Tasks { tasks, threads } => {
                let runtime = runtime(threads)?;
                let sources = (0..tasks).map(|_| self.source()).collect::<anyhow::Result<Vec<_>>>()?;
                let tasks = sources.into_iter().map(|source| runtime.spawn(source.put_until(until)));
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
                    source.queue()?;
                    while self.events.next().await?.event.kind() != EventKind::Ack {}
                    count += 1;
                }
                Ok(count)
            }),
            Waits::BesideOther => {
                let mut quiet = self.lnet.create_event_queue(4)?;
                let runtime = runtime(0)?;
                let other = runtime.spawn(async move { quiet.next().await.map(drop) });
                let count = runtime.block_on(source.put_until(until))?;
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

/// A descriptor, and where it puts to.
struct Source {
    descriptor: Descriptor,
    target: Target,
}

impl Source {
    fn queue(&self) -> anyhow::Result<()> {
        Ok(self.descriptor.put(&self.target, Ack::Wanted, 0).queue()?)
    }

    async fn put_until(self, until: Instant) -> anyhow::Result<u64> {
        let mut count = 0;
        while Instant::now() < until {
            self.descriptor.put(&self.target, Ack::Wanted, 0).await?;
            count += 1;
        }
        Ok(count)
    }
}

/// Microseconds of a Put, with nodes of its own: none finds the shard as another has left it.
fn measure(options: &Options, goes: Goes, waits: Waits, time: Duration) -> anyhow::Result<f64> {
    let (link, bytes) = (&options.link, options.size);
    let count = |mut node: Node| {
        let begun = Instant::now();
        let count = node.count(waits, time)?;
        anyhow::Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    if goes == Goes::ToItself {
        let lnet = lnet(None)?;
        post(&lnet, bytes)?;
        return count(Node::new(lnet, Nid::LO, bytes)?);
    }
    link.pair_anywhere(
        |ready, stop| {
            let lnet = lnet(Some(link.far()))?;
            post(&lnet, bytes)?;
            lnet.open()?;
            ready();
            wait_until(stop);
            Ok(())
        },
        || count(Node::new(lnet(Some(link.near()))?, link.nid_b, bytes)?),
    )
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options }: Cli) -> anyhow::Result<()> {
    let time = options.report.time(Duration::from_secs(1));
    let mut figures = GOES.map(|_| SUBJECTS.map(|_| Figure::default()));
    options.report.turns(|| {
        for ((_, goes), figures) in GOES.into_iter().zip(&mut figures) {
            for ((_, waits, _), us) in SUBJECTS.into_iter().zip(figures) {
                us.add(measure(&options, goes, waits, time)?);
            }
        }
        Ok(())
    })?;
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for ((goes_told, goes), figures) in GOES.into_iter().zip(figures) {
        for ((name, _, keeps), us) in SUBJECTS.into_iter().zip(&figures) {
            let (per_second, ratio) = (us.map(|us| 1e6 / us), us.over(&figures[0]));
            let check = match keeps {
                Keeps::TimeOfFirst(bound) => {
                    let name = format!("{name} / {}, {goes_told}", SUBJECTS[0].0);
                    Check::new(name, ratio.clone(), bound)
                }
                Keeps::PerSecond(least) => Check::new(
                    format!("{name}, {goes_told}, Puts a second"),
                    per_second.clone(),
                    Bound::AtLeast(least),
                ),
                Keeps::Nothing => None,
            };
            // A program talks to others.
            checks.extend(check.filter(|_| goes == Goes::OverTheLink));
            rows.push(Row { goes: goes_told, name, us: us.clone(), per_second, ratio });
        }
    }
    let document = Document { setup: options.setup(), rows, checks };
    options.report.tell("awaits.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mtu_bytes, size_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nPuts of {size_bytes} bytes with ACK, MTU {mtu_bytes}, medians of the turns\n{}",
        beside_heading(56, "", ["us a Put", "Puts/s", "ratio"])
    );
    for Row { goes, name, us, per_second, ratio } in &document.rows {
        text += &beside_row(56, &format!("{goes}: {name}"), [(us, 2), (per_second, 0), (ratio, 2)]);
    }
    text + &checks_table(&document.checks)
        + "\nratio: of the time to that of the first row, in each turn; threads run on whatever CPUs the kernel gives them"
}
