//! What a node of the load program says: one JSON object per line of its standard output.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A line of the load program.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The node can be sent to.
    Ready(Ready),
    /// The node is done.
    Report(Box<Report>),
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// When it is no JSON, or neither a `ready` nor a `report`; the error quotes it.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("not a line of the load program: {line:?}"))
    }
}

/// A node that can be sent to.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Ready {
    /// Its NID.
    pub(crate) nid: String,
    /// How its XDP program is attached.
    pub(crate) mode: String,
}

/// What a node counted. What the other role counts is zero or empty.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// The node's NID.
    pub(crate) nid: String,
    /// How its XDP program was attached.
    pub(crate) mode: String,
    /// Puts, of both roles.
    pub(crate) puts: Puts,
    /// From the first Put to the last acknowledgement.
    pub(crate) seconds: f64,
    /// From a Put to its acknowledgement.
    pub(crate) latency_ns: Latency,
    /// Frames that arrived, by where.
    pub(crate) slots: Vec<Slot>,
    /// Frames that arrived at another shard than their key says.
    pub(crate) misdirected: u64,
    /// Frames that the XDP program passed up or that a fault rule met, by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Frames that arrived at the LND, by what became of them.
    pub(crate) handled: BTreeMap<String, u64>,
    /// What loss recovery has done and dropped.
    pub(crate) recovery: BTreeMap<String, u64>,
    /// Frames and messages that the LND and the shards dropped, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// The kernel's counters of the rings (`struct xdp_statistics`), summed over the sockets.
    pub(crate) rings: BTreeMap<String, u64>,
}

/// Counters of Puts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Puts {
    /// Sent by the initiator.
    pub(crate) sent: u64,
    /// Acknowledged to the initiator.
    pub(crate) acked: u64,
    /// Payload of those.
    pub(crate) acked_bytes: u64,
    /// Never acknowledged before the deadline.
    pub(crate) lost: u64,
    /// Arrived at the target.
    pub(crate) received: u64,
    /// Arrived with the payload that was sent.
    pub(crate) verified: u64,
    /// Arrived with another payload.
    pub(crate) corrupt: u64,
}

/// Percentiles of a latency, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    /// Median.
    pub(crate) p50: u64,
    /// 90 %.
    pub(crate) p90: u64,
    /// 99 %.
    pub(crate) p99: u64,
    /// 99.9 %.
    pub(crate) p999: u64,
    /// The longest.
    pub(crate) max: u64,
}

/// Frames that arrived by one socket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// The interface's queue.
    pub(crate) queue: u16,
    /// The shard whose socket it is.
    pub(crate) shard: u16,
    /// Frames.
    pub(crate) frames: u64,
}

/// What the load program calls frames that a fault rule dropped (`lnet_wire::steer::Reason`).
const FAULT_DROPPED: &str = "fault_dropped";

/// Ring counters that say a frame was lost. `rx_fill_ring_empty` is none: the kernel counts a frame that
/// found no buffer in `rx_dropped` as well (net/xdp/xsk.c: `__xsk_rcv`); and it is the queue's, so that
/// each socket of the queue reports it.
const RING_LOSSES: [&str; 4] = ["rx_dropped", "rx_ring_full", "rx_invalid_descs", "tx_invalid_descs"];

impl Report {
    /// Frames and messages that anything of this node dropped, by reason: fault rules, the kernel's rings,
    /// the LND, the shards.
    pub(crate) fn dropped(&self) -> BTreeMap<String, u64> {
        let faults = self.reasons.get(FAULT_DROPPED).map(|frames| ("fault rule".to_owned(), *frames));
        let ring = |name: &&str| Some((format!("ring: {name}"), *self.rings.get(*name)?));
        let rings = RING_LOSSES.iter().filter_map(ring);
        let others = self.drops.iter().map(|(reason, count)| (reason.clone(), *count));
        others.chain(faults).chain(rings).filter(|(_, count)| *count > 0).collect()
    }

    /// Frames that the XDP program passed up, by reason.
    pub(crate) fn passed_up(&self) -> BTreeMap<String, u64> {
        let passed =
            self.reasons.iter().filter(|(reason, count)| !reason.starts_with("fault_") && **count > 0);
        passed.map(|(reason, count)| (reason.clone(), *count)).collect()
    }

    /// What loss recovery has done and dropped, without what it has not.
    pub(crate) fn recovered(&self) -> BTreeMap<String, u64> {
        let done = self.recovery.iter().filter(|(_, count)| **count > 0);
        done.map(|(name, count)| (name.clone(), *count)).collect()
    }

    /// Frames that arrived at the LND or that a ring had no room for: all that were steered.
    pub(crate) fn accounted(&self) -> u64 {
        let ring = |name: &str| self.rings.get(name).copied().unwrap_or(0);
        self.handled.values().sum::<u64>() + ring("rx_dropped") + ring("rx_ring_full")
    }

    /// Frames that shard `shard` took, from all queues.
    pub(crate) fn shard_frames(&self, shard: u16) -> u64 {
        self.slots.iter().filter(|slot| slot.shard == shard).map(|slot| slot.frames).sum()
    }

    /// Frames that shard `shard` took from `queue`.
    pub(crate) fn slot_frames(&self, queue: u16, shard: u16) -> u64 {
        self.slots
            .iter()
            .filter(|slot| (slot.queue, slot.shard) == (queue, shard))
            .map(|slot| slot.frames)
            .sum()
    }

    /// Frames that all shards took.
    pub(crate) fn frames(&self) -> u64 {
        self.slots.iter().map(|slot| slot.frames).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_node_are_read() {
        let ready = r#"{"ready":{"nid":"10.211.0.2@xdp","mode":"native","queues":2,"shards":2}}"#;
        let expected = Ready { nid: "10.211.0.2@xdp".into(), mode: "native".into() };
        assert_eq!(Line::parse(ready).unwrap(), Line::Ready(expected));

        let report = r#"{"report":{"nid":"x","mode":"native","puts":{"received":3,"verified":2,"corrupt":1},
            "slots":[{"queue":0,"shard":1,"frames":5},{"queue":1,"shard":1,"frames":2}],"misdirected":4,
            "reasons":{"not_ip":7},"drops":{"late":1},"rings":{"rx_dropped":6}}}"#;
        let Line::Report(report) = Line::parse(report).unwrap() else { panic!("no report") };
        assert_eq!(report.puts, Puts { received: 3, verified: 2, corrupt: 1, ..Puts::default() });
        assert_eq!((report.shard_frames(0), report.shard_frames(1), report.frames()), (0, 7, 7));
        assert_eq!((report.misdirected, report.reasons["not_ip"], report.rings["rx_dropped"]), (4, 7, 6));
        assert_eq!((report.latency_ns, report.seconds), (Latency::default(), 0.0));
    }

    #[test]
    fn every_drop_counts_once_and_nothing_else_does() {
        let counters = |counters: &[(&str, u64)]| {
            counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        let report = Report {
            reasons: counters(&[
                ("not_ip", 1),
                ("no_socket", 0),
                ("fault_dropped", 2),
                ("fault_corrupted", 3),
            ]),
            drops: counters(&[("crc", 4), ("no_match", 0)]),
            rings: counters(&[("rx_dropped", 5), ("rx_ring_full", 0), ("rx_fill_ring_empty", 6)]),
            ..Report::default()
        };
        assert_eq!(report.passed_up(), counters(&[("not_ip", 1)]));
        assert_eq!(report.dropped(), counters(&[("crc", 4), ("fault rule", 2), ("ring: rx_dropped", 5)]));
        for name in RING_LOSSES {
            let report = Report { rings: counters(&[(name, 7)]), ..Report::default() };
            assert_eq!(report.dropped().values().sum::<u64>(), 7, "{name}");
        }
    }

    #[test]
    fn other_lines_are_refused_with_their_text() {
        for line in ["", "hello", r#"{"progress":1}"#, r#"{"ready":{}}"#] {
            let error = Line::parse(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
