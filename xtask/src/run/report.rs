//! What `lnetctl load stop --json` and `lnetctl frames show --json` say of a node.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One end of a run, after the load.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(crate) struct End<L> {
    /// What came of its load.
    pub(crate) load: L,
    /// Where its frames went.
    pub(crate) frames: Frames,
}

/// The end that sends.
pub(crate) type Initiator = End<InitiatorLoad>;
/// The end that is sent to.
pub(crate) type Target = End<TargetLoad>;

/// Messages and their payload.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages.
    pub(crate) messages: u64,
    /// Payload bytes of those.
    pub(crate) bytes: u64,
}

/// Put or Get.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Bytes go to the target.
    Put,
    /// Bytes come from there.
    Get,
}

impl Kind {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Put, Self::Get];

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Put => "Put",
            Self::Get => "Get",
        }
    }
}

/// Lengths of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct SizeClass {
    /// Shortest payload.
    pub(crate) min_bytes: u32,
    /// Longest payload.
    pub(crate) max_bytes: u32,
}

/// Messages of a size and kind that went well.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ClassReport {
    /// The sizes.
    pub(crate) class: SizeClass,
    /// Put or Get.
    pub(crate) kind: Kind,
    /// How many.
    pub(crate) tally: Tally,
    /// How long they took.
    pub(crate) latency: Latency,
}

/// Times in nanoseconds and how often each was measured, in rising order.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Latency(pub(crate) Vec<(u64, u64)>);

impl Latency {
    /// What that share of all, in millionths, did not exceed, in nanoseconds; 0 if there are none.
    pub(crate) fn quantile_ns(&self, millionths: u64) -> u64 {
        let total: u64 = self.0.iter().map(|(_, count)| count).sum();
        let wanted = (u128::from(total) * u128::from(millionths)).div_ceil(1_000_000).max(1);
        let mut seen = 0;
        let found = self.0.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= wanted
        });
        found.map_or(0, |(value_ns, _)| *value_ns)
    }

    /// The longest, in nanoseconds; 0 if there are none.
    pub(crate) fn max_ns(&self) -> u64 {
        self.0.last().map_or(0, |(value_ns, _)| *value_ns)
    }
}

/// Messages that went wrong.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Faults {
    /// All of them.
    pub(crate) count: u64,
    /// How many in which way.
    pub(crate) by_kind: BTreeMap<String, u64>,
    /// The first ones.
    pub(crate) first: Vec<serde_json::Value>,
}

/// What the initiator did.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct InitiatorLoad {
    /// By size and kind.
    pub(crate) classes: Vec<ClassReport>,
    /// Messages that went wrong.
    pub(crate) faults: Faults,
    /// Messages that were started, by shard.
    pub(crate) by_shard: Vec<u64>,
    /// From the first request to the last event.
    pub(crate) elapsed_ns: u64,
    /// Whether somebody stopped it.
    pub(crate) is_cancelled: bool,
    /// Whether it gave up.
    pub(crate) has_given_up: bool,
}

impl InitiatorLoad {
    /// Messages of a kind that went well.
    pub(crate) fn tally(&self, kind: Kind) -> Tally {
        let of_kind = self.classes.iter().filter(|class| class.kind == kind);
        of_kind.fold(Tally::default(), |sum, class| Tally {
            messages: sum.messages + class.tally.messages,
            bytes: sum.bytes + class.tally.bytes,
        })
    }
}

/// What the target saw.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct TargetLoad {
    /// Puts of which every byte was right.
    pub(crate) puts: Tally,
    /// Gets that were served.
    pub(crate) gets: Tally,
    /// What was wrong with others.
    pub(crate) faults: Faults,
    /// Messages that its stop cut off.
    pub(crate) interrupted: u64,
    /// Messages by the shard that had their entry.
    pub(crate) by_shard: Vec<u64>,
    /// Entries that did not come back.
    pub(crate) lost_entries: u64,
}

impl TargetLoad {
    /// Messages of a kind that went well.
    pub(crate) const fn tally(&self, kind: Kind) -> Tally {
        match kind {
            Kind::Put => self.puts,
            Kind::Get => self.gets,
        }
    }
}

/// How frames reach the shards.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct FramesNi {
    /// The NI.
    pub(crate) nid: String,
    /// `native`, `generic` or `socket`.
    pub(crate) mode: String,
}

/// Frames that arrived by the sockets of a queue and shard.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// The queue.
    pub(crate) queue: u32,
    /// The shard.
    pub(crate) shard: u32,
    /// Frames.
    pub(crate) frames: u64,
}

/// Where the frames of a node's xdp nets went.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    /// The NIs.
    pub(crate) nis: Vec<FramesNi>,
    /// Frames that XDP steered, by where.
    pub(crate) slots: Vec<Slot>,
    /// Frames that arrived at another shard than their key says.
    pub(crate) misdirected: u64,
    /// Frames that XDP passed up or that a fault rule met, by reason.
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

/// The name of frames that a fault rule dropped (`lnet_wire::steer::Reason`).
const FAULT_DROPPED: &str = "fault_dropped";

/// Ring counters that say a frame was lost. `rx_fill_ring_empty` is none: the kernel counts a frame that
/// found no buffer in `rx_dropped` as well (net/xdp/xsk.c: `__xsk_rcv`); and it is the queue's, so that
/// each socket of the queue reports it.
const RING_LOSSES: [&str; 4] = ["rx_dropped", "rx_ring_full", "rx_invalid_descs", "tx_invalid_descs"];

impl Frames {
    /// Whether all NIs have rings, so that XDP steered and counted every frame.
    pub(crate) fn has_rings(&self) -> bool {
        !self.nis.is_empty() && self.nis.iter().all(|ni| ni.mode != "socket")
    }

    /// The modes of the NIs, each once.
    pub(crate) fn modes(&self) -> String {
        let mut modes: Vec<&str> = self.nis.iter().map(|ni| ni.mode.as_str()).collect();
        modes.dedup();
        modes.join(", ")
    }

    /// Frames that a fault rule dropped.
    pub(crate) fn fault_dropped(&self) -> u64 {
        self.reasons.get(FAULT_DROPPED).copied().unwrap_or(0)
    }

    /// Frames and messages that anything of this node dropped, by reason: fault rules, the kernel's rings,
    /// the LND, the shards.
    pub(crate) fn dropped(&self) -> BTreeMap<String, u64> {
        let faults = ("fault rule".to_owned(), self.fault_dropped());
        let ring = |name: &&str| Some((format!("ring: {name}"), *self.rings.get(*name)?));
        let rings = RING_LOSSES.iter().filter_map(ring);
        let others = self.drops.iter().map(|(reason, count)| (reason.clone(), *count));
        others.chain([faults]).chain(rings).filter(|(_, count)| *count > 0).collect()
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

    /// Whether every frame that was steered has arrived, or is known not to.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.has_rings() || self.steered() == self.accounted()
    }

    /// Frames that shard `shard` took, from all queues.
    pub(crate) fn shard_frames(&self, shard: u32) -> u64 {
        self.slots.iter().filter(|slot| slot.shard == shard).map(|slot| slot.frames).sum()
    }

    /// Frames that shard `shard` took from `queue`.
    pub(crate) fn slot_frames(&self, queue: u32, shard: u32) -> u64 {
        let slots = self.slots.iter().filter(|slot| (slot.queue, slot.shard) == (queue, shard));
        slots.map(|slot| slot.frames).sum()
    }

    /// Frames that all shards took.
    pub(crate) fn steered(&self) -> u64 {
        self.slots.iter().map(|slot| slot.frames).sum()
    }
}

/// A load as `lnetctl load stop` tells of it.
#[derive(Debug, Deserialize)]
struct LoadRecord {
    report: serde_json::Value,
}

/// What came of the one load that `lnetctl load stop --json` tells of.
///
/// # Errors
/// When it tells of something else; the error quotes it.
pub(crate) fn load<L: DeserializeOwned>(text: &str) -> Result<L> {
    let mut records: Vec<LoadRecord> =
        serde_json::from_str(text).with_context(|| format!("not what became of a load: {text:?}"))?;
    ensure!(records.len() == 1, "{} loads instead of one: {text:?}", records.len());
    let report = records.remove(0).report;
    serde_json::from_value(report).with_context(|| format!("not the report of a load: {text:?}"))
}

/// What `lnetctl frames show --json` tells.
///
/// # Errors
/// When it tells of something else; the error quotes it.
pub(crate) fn frames(text: &str) -> Result<Frames> {
    serde_json::from_str(text).with_context(|| format!("not where frames went: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(counters: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn what_a_node_says_is_read() {
        let text = r#"[{"id":1,"role":"initiator","is_running":false,"messages_done":3,"messages_total":3,"report":{
            "classes":[{"class":{"min_bytes":1,"max_bytes":64,"weight":30},"kind":"put","tally":{"messages":3,
            "bytes":90},"latency":[[1000,2],[3000,1]]}],"faults":{"count":0,"by_kind":{},"first":[]},
            "by_shard":[2,1],"elapsed_ns":5000,"is_cancelled":false,"has_given_up":false}}]"#;
        let read: InitiatorLoad = load(text).unwrap();
        assert_eq!(read.tally(Kind::Put), Tally { messages: 3, bytes: 90 });
        assert_eq!(read.tally(Kind::Get), Tally::default());
        let text = r#"[{"report":{"puts":{"messages":3,"bytes":90},"gets":{"messages":0,"bytes":0},"faults":{"count":1,
            "by_kind":{"byte":1},"first":[{}]},"interrupted":2,"by_shard":[1],"reposted":0,"lost_entries":4}}]"#;
        let read: TargetLoad = load(text).unwrap();
        assert_eq!((read.puts.bytes, read.faults.count, read.interrupted, read.lost_entries), (90, 1, 2, 4));
        let text = r#"{"nis":[{"nid":"10.0.0.1@xdp","mode":"native"}],"slots":[{"queue":0,"shard":1,"frames":5},
            {"queue":1,"shard":1,"frames":2}],"misdirected":4,"reasons":{"not_ip":7},"handled":{"taken":6},
            "recovery":{},"drops":{},"rings":{"rx_dropped":1}}"#;
        let read = frames(text).unwrap();
        assert_eq!(
            (read.shard_frames(0), read.shard_frames(1), read.steered(), read.accounted()),
            (0, 7, 7, 7)
        );
        assert!(read.has_rings() && read.is_quiet());
    }

    #[test]
    fn other_words_are_refused_with_their_text() {
        for text in ["", "hello", "[]", r#"[{"report":null}]"#, r#"[{"report":{"puts":1}}]"#] {
            let error = load::<TargetLoad>(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(frames(text).unwrap_err().to_string().contains(&format!("{text:?}")));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let latency = Latency(vec![(10, 50), (20, 40), (30, 9), (99, 1)]);
        let check =
            |millionths, expected| assert_eq!(latency.quantile_ns(millionths), expected, "{millionths}");
        check(0, 10);
        check(500_000, 10);
        check(500_001, 20);
        check(900_000, 20);
        check(990_000, 30);
        check(999_000, 99);
        assert_eq!((latency.max_ns(), Latency::default().quantile_ns(500_000)), (99, 0));
    }

    #[test]
    fn every_drop_counts_once_and_nothing_else_does() {
        let frames = Frames {
            reasons: counters(&[
                ("not_ip", 1),
                ("no_socket", 0),
                ("fault_dropped", 2),
                ("fault_corrupted", 3),
            ]),
            drops: counters(&[("crc", 4), ("no_match", 0)]),
            rings: counters(&[("rx_dropped", 5), ("rx_ring_full", 0), ("rx_fill_ring_empty", 6)]),
            ..Frames::default()
        };
        assert_eq!(frames.passed_up(), counters(&[("not_ip", 1)]));
        assert_eq!(frames.dropped(), counters(&[("crc", 4), ("fault rule", 2), ("ring: rx_dropped", 5)]));
        for name in RING_LOSSES {
            let frames = Frames { rings: counters(&[(name, 7)]), ..Frames::default() };
            assert_eq!(frames.dropped().values().sum::<u64>(), 7, "{name}");
        }
    }
}
