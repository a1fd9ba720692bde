//! What a node of the load program prints: one JSON object a line.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use lnet_core::stats::DropReason;
use lnet_core::xfer::XferDrop;
use lnet_user::lnd::xdp::XdpDrop;
use lnet_user::node::Node;
use lnet_user::runtime::Worker;
use serde::Serialize;

/// A line of output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The node is up.
    Ready(Ready),
    /// The node has ended.
    Report(Box<Report>),
}

impl Line {
    /// Prints the line to stdout.
    ///
    /// # Errors
    /// When stdout is gone.
    pub fn print(&self) -> anyhow::Result<()> {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// What a node is, once it is up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ready {
    /// The node's NID.
    pub nid: String,
    /// The XDP mode that its interface took.
    pub mode: String,
    /// Receive queues of the interface.
    pub queues: u32,
    /// Shards of the node.
    pub shards: u32,
}

/// What a node has done and counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The node's NID.
    pub nid: String,
    /// The XDP mode that its interface took.
    pub mode: String,
    /// Puts, at either end.
    pub puts: Puts,
    /// How long the Puts took, from the first to the last.
    pub seconds: f64,
    /// From the call of Put to its ACK event.
    pub latency_ns: Latency,
    /// Frames that XDP steered, by queue and shard.
    pub slots: Vec<Slot>,
    /// Frames that reached a shard other than their own.
    pub misdirected: u64,
    /// Frames that XDP did not steer, or that a fault rule met, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Frames that arrived at the LNDs, by what became of them.
    pub handled: BTreeMap<String, u64>,
    /// What loss recovery has done, and dropped because it came again or led nowhere.
    pub recovery: BTreeMap<String, u64>,
    /// Messages and frames that shards and LNDs dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// What the kernel counted on the sockets.
    pub rings: Rings,
}

/// Puts, at either end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Puts {
    /// Started here.
    pub sent: u64,
    /// Acknowledged to here.
    pub acked: u64,
    /// Payload of those.
    pub acked_bytes: u64,
    /// Never acknowledged.
    pub lost: u64,
    /// Arrived here.
    pub received: u64,
    /// Arrived here with every byte and field as it was sent, for the first time.
    pub verified: u64,
    /// Arrived here otherwise.
    pub corrupt: u64,
}

/// Percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Half were faster.
    pub p50: u64,
    /// 90 % were faster.
    pub p90: u64,
    /// 99 % were faster.
    pub p99: u64,
    /// 99.9 % were faster.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// Frames of one queue for one shard.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slot {
    /// Receive queue.
    pub queue: u32,
    /// Shard.
    pub shard: u32,
    /// Frames redirected.
    pub frames: u64,
}

/// What the kernel counted on a node's sockets (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rings {
    /// Frames dropped for other reasons than a full ring.
    pub rx_dropped: u64,
    /// Frames dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the fill ring was found empty.
    pub rx_fill_ring_empty: u64,
    /// Descriptors in a fill ring that the kernel did not like.
    pub rx_invalid_descs: u64,
    /// Descriptors in a transmit ring that the kernel did not like.
    pub tx_invalid_descs: u64,
}

/// A histogram of nanoseconds, three digits, up to a minute.
///
/// # Panics
/// Never: the bounds are constants that the library takes.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid")
}

impl Report {
    /// What a node has counted, without what it did.
    ///
    /// # Errors
    /// When the kernel does not give its counters.
    pub fn of(node: &Node, workers: &[Worker]) -> anyhow::Result<Self> {
        let xdp = node.xdp_frames()?;
        let mut report = Self {
            nid: node.nid().to_string(),
            mode: node.mode().to_string(),
            slots: xdp
                .slots
                .iter()
                .map(|slot| Slot { queue: slot.queue, shard: slot.shard, frames: slot.frames })
                .collect(),
            reasons: xdp.reasons.iter().map(|(reason, frames)| ((*reason).to_string(), *frames)).collect(),
            ..Self::default()
        };
        for worker in workers {
            report.add(worker)?;
        }
        Ok(report)
    }

    fn add(&mut self, worker: &Worker) -> anyhow::Result<()> {
        let lnd = worker.lnd();
        self.misdirected += lnd.counters().frames_misdirected;
        self.add_frames(worker);
        let refused = ("refused".to_string(), lnd.counters().messages_refused);
        let frames =
            XdpDrop::ALL.iter().map(|reason| (reason.name().to_string(), lnd.counters().dropped(*reason)));
        let counters = worker.shard().counters();
        let messages =
            DropReason::ALL.iter().map(|reason| (reason.to_string(), counters.drops(*reason).messages));
        for (reason, count) in frames.chain(messages).chain([refused]) {
            *self.drops.entry(reason).or_default() += count;
        }
        for rings in lnd.ring_statistics()? {
            self.rings.rx_dropped += rings.rx_dropped;
            self.rings.rx_ring_full += rings.rx_ring_full;
            self.rings.rx_fill_ring_empty += rings.rx_fill_ring_empty_descs;
            self.rings.rx_invalid_descs += rings.rx_invalid_descs;
            self.rings.tx_invalid_descs += rings.tx_invalid_descs;
        }
        Ok(())
    }

    fn add_frames(&mut self, worker: &Worker) {
        let (frames, recovery) = (worker.lnd().counters(), worker.lnd().transfer_counters());
        let dropped = XdpDrop::ALL.iter().map(|reason| frames.dropped(*reason)).sum();
        for (name, count) in [
            ("taken", frames.frames_taken),
            ("refused", frames.frames_refused),
            ("forgotten", frames.frames_forgotten),
            ("dropped", dropped),
        ] {
            *self.handled.entry(name.to_string()).or_default() += count;
        }
        let dropped = XferDrop::ALL.iter().map(|reason| (reason.name(), recovery.dropped(*reason)));
        for (name, count) in dropped.chain([
            ("frames resent", recovery.frames_resent),
            ("probes", recovery.probes),
            ("messages bundled", recovery.messages_bundled),
            ("acks alone", recovery.acks_sent),
            ("hellos", recovery.hellos_sent),
            ("resets", recovery.resets_sent),
            ("frames held", recovery.frames_held),
            ("backoffs", recovery.backoffs),
            ("frames let go", frames.frames_let_go),
        ]) {
            *self.recovery.entry(name.to_string()).or_default() += count;
        }
    }
}
