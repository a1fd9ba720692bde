//! The result of a run as tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Outcome;
use super::report::Report;
use crate::table::table;

/// The whole result, ending with the verdict.
pub(super) fn render(outcome: &Outcome) -> String {
    let Outcome { options, initiator, target, verdict } = outcome;
    let mut text = String::new();
    let puts = initiator.puts;
    let _ = writeln!(
        text,
        "{} -> {}: {} Puts of {} bytes, mtu {}, XDP mode {} -> {}\n",
        initiator.nid, target.nid, options.count, options.size, options.mtu, initiator.mode, target.mode
    );
    text += &latency(initiator);
    let _ = writeln!(text, "messages per second  {:.0}", per_second(puts.acked, initiator.seconds));
    let _ =
        writeln!(text, "verified payloads    {} of {} received", target.puts.verified, target.puts.received);
    let _ = writeln!(text, "lost                 {} of {} sent", puts.lost, puts.sent);
    let _ = writeln!(text, "misdirected          {}\n", initiator.misdirected + target.misdirected);
    text += &slots(target);
    let counters = |of: fn(&Report) -> &BTreeMap<String, u64>| merge(of(initiator), of(target));
    text += &reasons("passed up by XDP", &counters(|report| &report.reasons));
    let mut drops = counters(|report| &report.drops);
    drops.append(&mut prefixed("fault: ", counters(|report| &report.faults)));
    drops.append(&mut prefixed("ring: ", counters(|report| &report.rings)));
    text += &reasons("dropped", &drops);
    if verdict.failures.is_empty() {
        let _ = writeln!(text, "The run holds.");
    }
    text
}

fn latency(initiator: &Report) -> String {
    let latency = initiator.latency_ns;
    let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
    let mut row = vec!["latency in us".to_owned()];
    row.extend([latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(us));
    table(&["", "p50", "p90", "p99", "p99.9", "max"], &[row])
}

fn slots(target: &Report) -> String {
    let frames = target.frames();
    let row = |slot: &super::report::Slot| {
        let of_shard = target.shard_frames(slot.shard);
        let share = format!("{:.1} %", percent(of_shard, frames));
        vec![
            "frames of the target".into(),
            slot.queue.to_string(),
            slot.shard.to_string(),
            slot.frames.to_string(),
            share,
        ]
    };
    let rows: Vec<_> = target.slots.iter().map(row).collect();
    table(&["", "queue", "shard", "frames", "share of the shard"], &rows)
}

/// Initiator's and target's count of each reason.
type Counters = BTreeMap<String, [u64; 2]>;

fn merge(initiator: &BTreeMap<String, u64>, target: &BTreeMap<String, u64>) -> Counters {
    let mut merged = Counters::new();
    for (side, counters) in [initiator, target].into_iter().enumerate() {
        for (reason, count) in counters {
            merged.entry(reason.clone()).or_default()[side] += count;
        }
    }
    merged
}

fn prefixed(prefix: &str, counters: Counters) -> Counters {
    counters.into_iter().map(|(reason, counts)| (format!("{prefix}{reason}"), counts)).collect()
}

/// The reasons that were counted at all.
fn reasons(title: &str, counters: &Counters) -> String {
    let rows: Vec<_> = counters
        .iter()
        .filter(|(_, counts)| counts.iter().any(|count| *count > 0))
        .map(|(reason, counts)| vec![reason.clone(), counts[0].to_string(), counts[1].to_string()])
        .collect();
    if rows.is_empty() {
        return format!("{title}: nothing\n\n");
    }
    table(&[&format!("{title}, by reason"), "initiator", "target"], &rows)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53, for display")]
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53, for display")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 * 100.0 / whole as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::judge::judge;
    use crate::run::options::Options;
    use crate::run::report::{Latency, Puts, Slot};

    #[test]
    fn the_result_shows_every_figure() {
        let initiator = Report {
            nid: "10.211.0.1@xdp".into(),
            mode: "native".into(),
            puts: Puts { sent: 4000, acked: 3999, lost: 1, ..Puts::default() },
            seconds: 2.0,
            latency_ns: Latency { p50: 1950, p90: 2100, p99: 3999, p999: 40_000, max: 1_234_567 },
            reasons: [("not_ip".to_owned(), 3), ("no_socket".to_owned(), 0)].into(),
            ..Report::default()
        };
        let target = Report {
            nid: "10.211.0.2@xdp".into(),
            mode: "generic".into(),
            puts: Puts { received: 3999, verified: 3999, ..Puts::default() },
            slots: vec![Slot { queue: 0, shard: 0, frames: 3000 }, Slot { queue: 1, shard: 1, frames: 1000 }],
            reasons: [("not_ip".to_owned(), 5)].into(),
            drops: [("crc".to_owned(), 1)].into(),
            rings: [("rx_dropped".to_owned(), 2)].into(),
            ..Report::default()
        };
        let verdict = judge(4000, 2, &initiator, &target);
        let options = Options::with_count(4000);
        let text = render(&Outcome { options: &options, initiator, target, verdict });
        let expected = "\
10.211.0.1@xdp -> 10.211.0.2@xdp: 4000 Puts of 1024 bytes, mtu 1500, XDP mode native -> generic

               p50  p90  p99  p99.9     max
-------------------------------------------
latency in us  1.9  2.1  3.9   40.0  1234.5

messages per second  2000
verified payloads    3999 of 3999 received
lost                 1 of 4000 sent
misdirected          0

                      queue  shard  frames  share of the shard
--------------------------------------------------------------
frames of the target      0      0    3000              75.0 %
frames of the target      1      1    1000              25.0 %

passed up by XDP, by reason  initiator  target
----------------------------------------------
not_ip                               3       5

dropped, by reason  initiator  target
-------------------------------------
crc                         0       1
ring: rx_dropped            0       2

The run holds.
";
        assert_eq!(text, expected);
    }
}
