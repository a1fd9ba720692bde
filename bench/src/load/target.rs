//! The node that is put to: entries on every portal, each payload checked in place on the shard's thread.

use std::time::Duration;

use anyhow::Context;
use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntrySpec, Position};
use lnet_user::memory::Buffer;
use lnet_user::node::Node;
use lnet_user::runtime::{Home, Idle, ShardThread, Worker, available_cpus};
use lnet_wire::{Nid, ProcessId};

use super::plan::{FIRST_PORTAL, MATCH_BITS, NUMBERS_MAX, PLACES, PORTALS, PUT_MAX_BYTES, Put};
use crate::report::Report;

const ANYBODY: ProcessId = ProcessId { nid: Nid::ANY, pid: ProcessId::ANY_PID };

/// What a shard of the target has seen.
#[derive(Debug)]
pub struct Seen {
    event_queue: EqHandle,
    /// A bit per number of a Put that has arrived here.
    arrived: Vec<u64>,
    received: u64,
    corrupt: u64,
}

/// Posts the shard's entries.
///
/// # Errors
/// When the shard refuses one.
pub fn post_entries(node: &Node, worker: &mut Worker) -> anyhow::Result<Seen> {
    let slots = node.limits().events;
    let event_queue = worker.create_event_queue(slots).context("cannot make an event queue")?;
    for portal in u32::from(FIRST_PORTAL)..u32::from(FIRST_PORTAL) + PORTALS as u32 {
        for match_bits in 0..MATCH_BITS {
            let home = node.steering().home(portal, &ANYBODY, match_bits, 0)?;
            if matches!(home, Home::Shard(shard) if shard != u32::from(worker.shard_id().0)) {
                continue;
            }
            let length_bytes = u64::from(PUT_MAX_BYTES) * PLACES as u64;
            let entry = EntrySpec {
                portal,
                source: ANYBODY,
                match_bits,
                ignore_bits: 0,
                auto_unlink: true,
                position: Position::After,
            };
            let md = MdSpec {
                length_bytes,
                max_size_bytes: None,
                threshold: Threshold::Infinite,
                options: MdOptions::PUT | MdOptions::MANAGE_REMOTE,
                auto_unlink: false,
                event_queue: Some(event_queue),
                user_ptr: match_bits,
            };
            let buffer = Buffer::zeroed(length_bytes as usize);
            worker.attach(&entry, &md, buffer).with_context(|| {
                format!("cannot post the entry for match bits {match_bits} of portal {portal}")
            })?;
        }
    }
    Ok(Seen { event_queue, arrived: Vec::new(), received: 0, corrupt: 0 })
}

impl Seen {
    /// Takes the events of a turn.
    pub fn take_events(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            if delivery.event.kind == EventKind::Put {
                self.check(worker, &delivery.event);
            }
        }
    }

    fn check(&mut self, worker: &Worker, event: &Event) {
        let put = Put::new(event.hdr_data);
        let payload = payload_of(worker, event.md, event);
        // Header data may be anything: nothing is kept of a Put that no load sends.
        let as_sent = event.status == Status::Ok
            && put.number < NUMBERS_MAX
            && put.portal == event.portal
            && put.match_bits == event.match_bits
            && event.user_ptr == event.match_bits
            && event.manipulated_bytes == event.requested_bytes
            && put.verify(payload);
        self.received += 1;
        if !as_sent || !self.is_first(event.hdr_data) {
            self.corrupt += 1;
        }
    }

    /// Whether this number, below [`NUMBERS_MAX`], has not arrived on this shard before.
    fn is_first(&mut self, number: u64) -> bool {
        let (word, bit) = ((number / 64) as usize, number % 64);
        if word >= self.arrived.len() {
            self.arrived.resize(word + 1, 0);
        }
        let first = self.arrived[word] >> bit & 1 == 0;
        self.arrived[word] |= 1 << bit;
        first
    }
}

fn payload_of<'a>(worker: &'a Worker, md: MdHandle, event: &Event) -> &'a [u8] {
    worker
        .payload(md, event.offset_bytes, event.manipulated_bytes)
        .expect("nobody writes to what has arrived in a locally managed descriptor")
}

/// Serves on pinned threads until `stopped` returns, and reports.
///
/// # Errors
/// When a shard cannot be started, or the kernel does not give its counters.
pub fn serve(
    node: &mut Node,
    workers: Vec<Worker>,
    idle: Idle,
    started: impl FnOnce(&Node) -> anyhow::Result<()>,
    stopped: impl FnOnce(),
) -> anyhow::Result<Report> {
    let cpus = available_cpus();
    let mut threads = Vec::new();
    for (index, mut worker) in workers.into_iter().enumerate() {
        let seen = post_entries(node, &mut worker)?;
        let cpu = cpus.get(index % cpus.len()).copied();
        let thread = ShardThread::spawn(worker, cpu, idle, seen, |worker, seen| seen.take_events(worker));
        threads.push(thread.map_err(|failed| failed.error).context("a shard got no thread")?);
    }
    node.open()?;
    started(node)?;
    stopped();
    // What is on its way when the word to stop comes is still taken.
    std::thread::sleep(Duration::from_millis(50));
    let ended: Vec<(Worker, Seen)> = threads.into_iter().map(ShardThread::stop).collect::<Result<_, _>>()?;
    let (workers, seen): (Vec<Worker>, Vec<Seen>) = ended.into_iter().unzip();
    let mut report = Report::of(node, &workers)?;
    report.puts.received = seen.iter().map(|seen| seen.received).sum();
    report.puts.corrupt = seen.iter().map(|seen| seen.corrupt).sum::<u64>() + arrived_twice(&seen);
    report.puts.verified = report.puts.received - report.puts.corrupt.min(report.puts.received);
    Ok(report)
}

/// Numbers that arrived on more than one shard.
fn arrived_twice(seen: &[Seen]) -> u64 {
    let words = seen.iter().map(|seen| seen.arrived.len()).max().unwrap_or(0);
    let word = |seen: &Seen, index: usize| seen.arrived.get(index).copied().unwrap_or(0);
    (0..words)
        .map(|index| {
            let total: u32 = seen.iter().map(|seen| word(seen, index).count_ones()).sum();
            let distinct = seen.iter().fold(0, |bits, seen| bits | word(seen, index)).count_ones();
            u64::from(total - distinct)
        })
        .sum()
}
