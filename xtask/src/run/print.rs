//! The result of a run as tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Outcome;
use super::report::{ClassReport, Frames, Initiator, InitiatorLoad, Kind, SizeClass, Tally, Target};
use crate::table::table;

/// Quantiles by name and in millionths.
pub(super) const QUANTILES: [(&str, u64); 4] =
    [("p50", 500_000), ("p90", 900_000), ("p99", 990_000), ("p99.9", 999_000)];

/// The whole result, ending with the verdict.
pub(super) fn render(outcome: &Outcome) -> String {
    let Outcome { initiator, target, verdict, .. } = outcome;
    let mut text = title(outcome) + "\n\n";
    text += &latencies(&initiator.load);
    text += &totals(initiator, target);
    if initiator.frames.has_rings() {
        text += &frames(&initiator.frames, &target.frames);
    } else {
        text += &messages(&initiator.load.by_shard, &target.load.by_shard);
    }
    for (title, of) in [
        ("passed up by XDP", Frames::passed_up as fn(&Frames) -> BTreeMap<String, u64>),
        ("loss recovery", Frames::recovered),
        ("dropped", Frames::dropped),
    ] {
        text += &reasons(title, &of(&initiator.frames), &of(&target.frames));
    }
    if verdict.failures.is_empty() {
        text += "The run holds.\n";
    }
    text
}

/// What was run, in one line.
pub(super) fn title(outcome: &Outcome) -> String {
    let Outcome { options, initiator, target, .. } = outcome;
    let nids = |frames: &Frames| {
        let nids: Vec<&str> = frames.nis.iter().map(|ni| ni.nid.as_str()).collect();
        nids.join(",")
    };
    format!(
        "{} -> {}: {} messages{}, mtu {}, mode {} -> {}{}",
        nids(&initiator.frames),
        nids(&target.frames),
        options.count,
        options.size.map(|size| format!(" of {size} bytes")).unwrap_or_default(),
        options.mtu,
        initiator.frames.modes(),
        target.frames.modes(),
        if options.loss > 0.0 { format!(", {} % of the frames lost", options.loss) } else { String::new() },
    )
}

/// How long messages took, by kind and size.
fn latencies(load: &InitiatorLoad) -> String {
    let mut classes: Vec<&ClassReport> = load.classes.iter().collect();
    classes.sort_by_key(|class| (class.kind, class.class));
    let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
    let row = |class: &&ClassReport| {
        let latency = &class.latency;
        let mut row = vec![
            format!("{}, {}", class.kind.name(), size_name(&class.class)),
            class.tally.messages.to_string(),
        ];
        row.extend(QUANTILES.map(|(_, millionths)| us(latency.quantile_ns(millionths))));
        row.push(us(latency.max_ns()));
        row
    };
    let rows: Vec<Vec<String>> = classes.iter().map(row).collect();
    let mut head = vec!["latency, us", "messages"];
    head.extend(QUANTILES.map(|(name, _)| name));
    head.push("max");
    table(&head, &rows)
}

/// Sizes in words.
pub(super) fn size_name(class: &SizeClass) -> String {
    let SizeClass { min_bytes, max_bytes } = *class;
    if min_bytes == max_bytes {
        format!("{} B", grouped(max_bytes))
    } else {
        format!("{} to {} B", grouped(min_bytes), grouped(max_bytes))
    }
}

/// A number with its thousands apart.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// What came of the messages.
fn totals(initiator: &Initiator, target: &Target) -> String {
    let sum = |tallies: [Tally; 2]| Tally {
        messages: tallies[0].messages + tallies[1].messages,
        bytes: tallies[0].bytes + tallies[1].bytes,
    };
    let ours = sum(Kind::ALL.map(|kind| initiator.load.tally(kind)));
    let theirs = sum(Kind::ALL.map(|kind| target.load.tally(kind)));
    let nanoseconds = initiator.load.elapsed_ns;
    let gigabits = per_second(ours.bytes * 8, nanoseconds) / 1e9;
    let faults = initiator.load.faults.count + target.load.faults.count;
    let lines = [
        ("messages per second", format!("{:.0}", per_second(ours.messages, nanoseconds))),
        ("payload", format!("{gigabits:.3} Gbit/s")),
        ("verified", format!("{} messages, {} bytes", ours.messages, ours.bytes)),
        ("seen by the target", format!("{} messages, {} bytes", theirs.messages, theirs.bytes)),
        ("faults", faults.to_string()),
        ("misdirected frames", (initiator.frames.misdirected + target.frames.misdirected).to_string()),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<19}  {value}");
    }
    text + "\n"
}

/// Messages by shard, where nobody counts frames.
fn messages(initiator: &[u64], target: &[u64]) -> String {
    let mut rows = Vec::new();
    for (role, by_shard) in [("initiator", initiator), ("target", target)] {
        let total = by_shard.iter().sum();
        for (shard, messages) in by_shard.iter().enumerate() {
            let share = format!("{:.1} %", percent(*messages, total));
            rows.push(vec![format!("{role}, shard {shard}"), messages.to_string(), share]);
        }
    }
    table(&["messages of", "total", "share"], &rows)
}

/// Frames by the queue that they arrived on and the shard that they were steered to.
fn frames(initiator: &Frames, target: &Frames) -> String {
    let slots = || initiator.slots.iter().chain(&target.slots);
    let queues: BTreeSet<u32> = slots().map(|slot| slot.queue).collect();
    let shards: BTreeSet<u32> = slots().map(|slot| slot.shard).collect();
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
            row.push(format!("{:.1} %", percent(total, report.steered())));
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
fn per_second(count: u64, nanoseconds: u64) -> f64 {
    if nanoseconds > 0 { count as f64 * 1e9 / nanoseconds as f64 } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53, for display")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 * 100.0 / whole as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::judge::{Wanted, judge};
    use crate::run::options::Options;
    use crate::run::report::{Faults, FramesNi, Latency, Slot, TargetLoad};

    const SLOT: fn(u32, u32, u64) -> Slot = |queue, shard, frames| Slot { queue, shard, frames };

    fn frames(mode: &str, host: u8, slots: Vec<Slot>) -> Frames {
        let ni = |net: &str, rail| FramesNi { nid: format!("10.211.{rail}.{host}@{net}"), mode: mode.into() };
        let handled = [("taken".to_owned(), slots.iter().map(|slot| slot.frames).sum())].into();
        Frames { nis: vec![ni("xdp", 0), ni("xdp1", 1)], slots, handled, ..Frames::default() }
    }

    fn outcome(options: &Options) -> Outcome<'_> {
        let of = |kind, min_bytes, max_bytes, messages, latency: &[(u64, u64)]| ClassReport {
            class: SizeClass { min_bytes, max_bytes },
            kind,
            tally: Tally { messages, bytes: messages * 1000 },
            latency: Latency(latency.to_vec()),
        };
        let load = InitiatorLoad {
            classes: vec![
                of(Kind::Put, 0, 0, 2000, &[(1950, 1000), (2100, 980), (3999, 20)]),
                of(Kind::Get, 65_537, 1 << 20, 1000, &[(40_000, 999), (1_234_567, 1)]),
                of(Kind::Put, 1, 64, 1000, &[(2000, 1000)]),
            ],
            by_shard: vec![1000, 3000],
            elapsed_ns: 2_000_000_000,
            ..InitiatorLoad::default()
        };
        let seen = TargetLoad {
            puts: Tally { messages: 3000, bytes: 3_000_000 },
            gets: Tally { messages: 1000, bytes: 1_000_000 },
            by_shard: vec![2000, 2000],
            ..TargetLoad::default()
        };
        let mut initiator =
            Initiator { load, frames: frames("native", 1, vec![SLOT(0, 0, 1000), SLOT(1, 1, 3000)]) };
        initiator.frames.reasons = [("not_ip".to_owned(), 3), ("no_socket".to_owned(), 0)].into();
        let slots = vec![SLOT(0, 0, 2000), SLOT(1, 0, 1000), SLOT(1, 1, 1000)];
        let mut target = Target { load: seen, frames: frames("generic", 2, slots) };
        target.frames.reasons = [("ip_options".to_owned(), 4), ("not_ip".to_owned(), 5)].into();
        let wanted = Wanted { count: 4000, shards: 2, nis: 2, mode: "auto", loss_per_million: 0 };
        let verdict = judge(&wanted, &initiator, &target);
        Outcome { options, initiator, target, verdict }
    }

    #[test]
    fn the_result_shows_every_figure() {
        let options = Options::with_count(4000);
        let mut outcome = outcome(&options);
        assert!(outcome.verdict.failures.is_empty(), "{:?}", outcome.verdict);
        outcome.target.frames.drops = [("crc".to_owned(), 1)].into();
        outcome.target.frames.rings =
            [("rx_dropped".to_owned(), 2), ("rx_fill_ring_empty".to_owned(), 9)].into();
        outcome.target.frames.recovery = [("frames resent".to_owned(), 5), ("probes".to_owned(), 0)].into();
        let expected = "\
10.211.0.1@xdp,10.211.1.1@xdp1 -> 10.211.0.2@xdp,10.211.1.2@xdp1: 4000 messages, mtu 1500, mode native -> generic

latency, us                 messages   p50   p90   p99  p99.9     max
---------------------------------------------------------------------
Put, 0 B                        2000   1.9   2.1   2.1    3.9     3.9
Put, 1 to 64 B                  1000   2.0   2.0   2.0    2.0     2.0
Get, 65 537 to 1 048 576 B      1000  40.0  40.0  40.0   40.0  1234.5

messages per second  2000
payload              0.016 Gbit/s
verified             4000 messages, 4000000 bytes
seen by the target   4000 messages, 4000000 bytes
faults               0
misdirected frames   0

frames steered to   from queue 0  from queue 1  total   share
-------------------------------------------------------------
initiator, shard 0          1000             0   1000  25.0 %
initiator, shard 1             0          3000   3000  75.0 %
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
        let options = Options { size: Some(0), loss: 0.5, ..Options::with_count(4000) };
        let mut outcome = outcome(&options);
        outcome.initiator.frames.reasons.clear();
        outcome.target.frames.reasons.clear();
        outcome.target.load.faults = Faults { count: 7, ..Faults::default() };
        outcome.verdict.failures.push("faults".to_owned());
        let text = render(&outcome);
        assert!(text.contains("4000 messages of 0 bytes, mtu"), "{text}");
        assert!(
            text.contains("generic, 0.5 % of the frames lost\n") && text.contains("faults               7\n")
        );
        assert!(
            text.contains("\n\npassed up by XDP: none\n\nloss recovery: none\n\ndropped: none\n"),
            "{text}"
        );
        assert!(!text.contains("holds"), "{text}");
    }

    #[test]
    fn over_sockets_messages_are_shown_by_shard() {
        let options = Options::with_count(4000);
        let mut outcome = outcome(&options);
        for frames in [&mut outcome.initiator.frames, &mut outcome.target.frames] {
            frames.nis.iter_mut().for_each(|ni| ni.mode = "socket".into());
        }
        let text = render(&outcome);
        let expected = "\
messages of         total   share
---------------------------------
initiator, shard 0   1000  25.0 %
initiator, shard 1   3000  75.0 %
target, shard 0      2000  50.0 %
target, shard 1      2000  50.0 %
";
        assert!(text.contains(expected), "{text}");
    }
}
