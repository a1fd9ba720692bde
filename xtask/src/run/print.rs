//! The result of a run as tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Outcome;
use super::options::PUT_MAX_BYTES;
use super::report::Report;
use crate::table::table;

/// The whole result, ending with the verdict.
pub(super) fn render(outcome: &Outcome) -> String {
    let Outcome { options, initiator, target, verdict } = outcome;
    let size = options.size.map_or_else(|| format!("0 to {PUT_MAX_BYTES}"), |size| size.to_string());
    let mut text = format!(
        "{} -> {}: {} Puts of {size} bytes, mtu {}, XDP mode {} -> {}\n\n",
        initiator.nid, target.nid, options.count, options.mtu, initiator.mode, target.mode
    );
    text += &latency(initiator);
    let puts = initiator.puts;
    let seconds = initiator.seconds;
    let gigabits = per_second(puts.acked_bytes * 8, seconds) / 1e9;
    let lines = [
        ("messages per second", format!("{:.0}", per_second(puts.acked, seconds))),
        ("payload", format!("{gigabits:.3} Gbit/s")),
        ("verified payloads", format!("{} of {} received", target.puts.verified, target.puts.received)),
        ("lost", format!("{} of {} sent", puts.lost, puts.sent)),
        ("misdirected frames", (initiator.misdirected + target.misdirected).to_string()),
    ];
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<19}  {value}");
    }
    text.push('\n');
    text += &frames(initiator, target);
    text += &reasons("passed up by XDP", &initiator.passed_up(), &target.passed_up());
    text += &reasons("loss recovery", &initiator.recovered(), &target.recovered());
    text += &reasons("dropped", &initiator.dropped(), &target.dropped());
    if verdict.failures.is_empty() {
        text += "The run holds.\n";
    }
    text
}

fn latency(initiator: &Report) -> String {
    let latency = initiator.latency_ns;
    let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
    let mut row = vec!["Put to ACK, us".to_owned()];
    row.extend([latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(us));
    table(&["latency", "p50", "p90", "p99", "p99.9", "max"], &[row])
}

/// Frames by the queue that they arrived on and the shard that they were steered to.
fn frames(initiator: &Report, target: &Report) -> String {
    let slots = || initiator.slots.iter().chain(&target.slots);
    let queues: BTreeSet<u16> = slots().map(|slot| slot.queue).collect();
    let shards: BTreeSet<u16> = slots().map(|slot| slot.shard).collect();
    let mut head = vec!["frames steered to".to_owned()];
    head.extend(queues.iter().map(|queue| format!("from queue {queue}")));
    head.extend(["total".to_owned(), "share".to_owned()]);
    let mut rows = Vec::new();
    for (role, report) in [("initiator", initiator), ("target", target)] {
        for &shard in &shards {
            let total = report.shard_frames(shard);
            let mut row = vec![format!("{role}, shard {shard}")];
            row.extend(queues.iter().map(|&queue| report.slot_frames(queue, shard).to_string()));
            row.push(total.to_string());
            row.push(format!("{:.1} %", percent(total, report.frames())));
            rows.push(row);
        }
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table(&head, &rows)
}

/// Both nodes' counts, and their totals.
fn reasons(title: &str, initiator: &BTreeMap<String, u64>, target: &BTreeMap<String, u64>) -> String {
    let names: BTreeSet<&String> = initiator.keys().chain(target.keys()).collect();
    if names.is_empty() {
        return format!("{title}: none\n\n");
    }
    let row =
        |name: &str, counts: [u64; 2]| vec![name.to_owned(), counts[0].to_string(), counts[1].to_string()];
    let count = |name: &String| [initiator, target].map(|counts| counts.get(name).copied().unwrap_or(0));
    let mut rows: Vec<_> = names.iter().map(|name| row(name, count(name))).collect();
    rows.push(row("total", [initiator, target].map(|counts| counts.values().sum())));
    table(&[title, "initiator", "target"], &rows)
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

    fn outcome(options: &Options) -> Outcome<'_> {
        let slot = |queue, shard, frames| Slot { queue, shard, frames };
        let initiator = Report {
            nid: "10.211.0.1@xdp".into(),
            mode: "native".into(),
            puts: Puts { sent: 4000, acked: 3999, acked_bytes: 2_500_000, lost: 1, ..Puts::default() },
            seconds: 2.0,
            latency_ns: Latency { p50: 1950, p90: 2100, p99: 3999, p999: 40_000, max: 1_234_567 },
            slots: vec![slot(0, 0, 1000), slot(1, 1, 2999)],
            reasons: [("not_ip".to_owned(), 3), ("no_socket".to_owned(), 0)].into(),
            ..Report::default()
        };
        let target = Report {
            nid: "10.211.0.2@xdp".into(),
            mode: "generic".into(),
            puts: Puts { received: 3999, verified: 3999, ..Puts::default() },
            slots: vec![slot(0, 0, 2000), slot(1, 0, 1000), slot(1, 1, 1000)],
            reasons: [("ip_options".to_owned(), 4), ("not_ip".to_owned(), 5)].into(),
            ..Report::default()
        };
        let verdict = judge(options.count, 2, &initiator, &target);
        Outcome { options, initiator, target, verdict }
    }

    #[test]
    fn the_result_shows_every_figure() {
        let options = Options::with_count(4000);
        let mut outcome = outcome(&options);
        outcome.target.drops = [("crc".to_owned(), 1)].into();
        outcome.target.rings = [("rx_dropped".to_owned(), 2), ("rx_fill_ring_empty".to_owned(), 9)].into();
        outcome.target.recovery = [("frames resent".to_owned(), 5), ("probes".to_owned(), 0)].into();
        outcome.verdict.failures.clear();
        let expected = "\
10.211.0.1@xdp -> 10.211.0.2@xdp: 4000 Puts of 0 to 16384 bytes, mtu 1500, XDP mode native -> generic

latency         p50  p90  p99  p99.9     max
--------------------------------------------
Put to ACK, us  1.9  2.1  3.9   40.0  1234.5

messages per second  2000
payload              0.010 Gbit/s
verified payloads    3999 of 3999 received
lost                 1 of 4000 sent
misdirected frames   0

frames steered to   from queue 0  from queue 1  total   share
-------------------------------------------------------------
initiator, shard 0          1000             0   1000  25.0 %
initiator, shard 1             0          2999   2999  75.0 %
target, shard 0             2000          1000   3000  75.0 %
target, shard 1                0          1000   1000  25.0 %

passed up by XDP  initiator  target
-----------------------------------
ip_options                0       4
not_ip                    3       5
total                     3       9

loss recovery  initiator  target
--------------------------------
frames resent          0       5
total                  0       5

dropped           initiator  target
-----------------------------------
crc                       0       1
ring: rx_dropped          0       2
total                     0       3

The run holds.
";
        assert_eq!(render(&outcome), expected);
    }

    #[test]
    fn where_nothing_was_counted_none_is_said() {
        let options = Options { size: Some(0), ..Options::with_count(4000) };
        let mut outcome = outcome(&options);
        outcome.initiator.reasons.clear();
        outcome.target.reasons.clear();
        let text = render(&outcome);
        assert!(text.contains("4000 Puts of 0 bytes"), "{text}");
        assert!(
            text.contains("\n\npassed up by XDP: none\n\nloss recovery: none\n\ndropped: none\n"),
            "{text}"
        );
        // One Put is lost, and nothing explains it.
        assert!(!text.contains("holds"), "{text}");
    }
}
