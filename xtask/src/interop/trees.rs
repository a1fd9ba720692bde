//! What the kernel node's `lnetctl` and ours print in the same state, compared as trees.

use anyhow::{Context, Result, ensure};
use serde_yaml::Value;

use super::lab::{Lab, OURS};
use super::matrix::{KERNEL, both_ping};

/// What is said to both sides, before they speak with each other and afterwards.
struct Configuration {
    before: &'static [&'static str],
    /// Each side discovers the other.
    discovers: bool,
    after: &'static [&'static str],
}

/// One after the other: each sets what the one before has left to a kernel node.
const CONFIGURATIONS: [Configuration; 4] = [
    Configuration {
        before: &["net add --net tcp --if eth0 --conns-per-peer 1"],
        discovers: true,
        after: &[],
    },
    Configuration {
        before: &[
            "net add --net tcp --if eth0 --peer-timeout 100 --peer-credits 16 --peer-buffer-credits 4 --credits 128 \
             --conns-per-peer 2 --cpt [0]",
        ],
        discovers: true,
        after: &[
            "set numa_range 1",
            "set retry_count 3",
            "set transaction_timeout 100",
            "set health_sensitivity 50",
            "set recovery_limit 10",
            "set max_recovery_ping_interval 60",
            "set response_tracking 1",
        ],
    },
    Configuration {
        // A kernel node's `net set --conns-per-peer` makes the type of service 0.
        before: &["net add --net tcp --if eth0 --tos 0"],
        discovers: true,
        after: &[
            "net set --all --conns-per-peer 3",
            "udsp add --src tcp --priority 1",
            "udsp add --dst {other} --priority 2",
            "set numa_range 0",
            "set retry_count 1",
            "set transaction_timeout 120",
            "set health_sensitivity 200",
            "set recovery_limit 0",
            "set max_recovery_ping_interval 900",
            "set response_tracking 3",
            "set drop_asym_route 1",
            "set router_sensitivity 90",
        ],
    },
    Configuration {
        before: &["net add --net tcp --if eth0 --conns-per-peer 1 --tos 16", "set discovery 0"],
        discovers: false,
        after: &[
            "set retry_count 2",
            "set transaction_timeout 150",
            "set health_sensitivity 100",
            "set drop_asym_route 0",
            "set router_sensitivity 100",
        ],
    },
];

/// What is shown after each of them.
const SHOWN: [&str; 10] = [
    "net show",
    "net show -v",
    "net show -v 4",
    "peer show",
    "peer show -v 4",
    "peer list",
    "stats show",
    "global show",
    "udsp show",
    "export --backup",
];

/// Keys whose values differ between two nodes in one state, and why.
const DIFFERING: [(&[&str], &str); 6] = [
    (
        &["send_count", "recv_count", "put", "get", "reply", "ack", "send_length", "recv_length"],
        "each side counts what it sent and what it received: two more pings there are two answers more here",
    ),
    (
        &["put_egress_", "get_rtt_", "put_ack_"],
        "samples and durations are those of the messages that a side has started itself",
    ),
    (&["msgs_alloc", "msgs_max", "rst_alloc"], "they are of the moment, and of what was before"),
    (&["min_tx_credits"], "how many messages were ever under way at once"),
    (&["refcount"], "how an implementation holds a peer NI"),
    (&["ping_count", "next_ping"], "they are on the way while an NI recovers"),
];

/// Keys that our side has besides; `docs/control.md` tells of them.
const OURS_ALONE: [&str; 7] = [
    "numa distance",
    "fsm state",
    "max_intf",
    "pushes_taken",
    "pushes_pinged",
    "pushes_contradicted",
    "pushes_refused",
];
/// Keys of a kernel node's backup that ours lacks, as `docs/control.md` says: that of all CPTs, since another
/// node may have others, and peers that were found, since they are found again.
const BACKUP: &str = "export --backup";
const NOT_IN_BACKUP: [&str; 2] = ["CPT", "peer"];

/// How many values there were of each sort.
#[derive(Default)]
struct Tally {
    equal: usize,
    differing: usize,
    wrong: Vec<String>,
}

impl Tally {
    /// Compares what stands at a place.
    fn compare(&mut self, place: &str, theirs: &Value, ours: &Value) {
        match (theirs, ours) {
            (Value::Mapping(theirs), Value::Mapping(ours)) => {
                for (key, value) in theirs {
                    let place = format!("{place}/{}", key_text(key));
                    match ours.get(key) {
                        Some(ours) => self.compare(&place, value, ours),
                        None if place.starts_with(BACKUP) && NOT_IN_BACKUP.contains(&&*key_text(key)) => {
                            self.differing += 1;
                        }
                        None => self.wrong.push(format!("{place}: only the kernel node has it")),
                    }
                }
                let further = ours.keys().filter(|key| !theirs.contains_key(*key)).map(key_text);
                let further = further.filter(|key| !OURS_ALONE.contains(&key.as_str()));
                self.wrong.extend(further.map(|key| format!("{place}/{key}: only we have it")));
            }
            (Value::Sequence(theirs), Value::Sequence(ours)) => {
                if theirs.len() != ours.len() {
                    self.wrong.push(format!("{place}: {} items there, {} here", theirs.len(), ours.len()));
                }
                for (index, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
                    self.compare(&format!("{place}[{index}]"), theirs, ours);
                }
            }
            _ if std::mem::discriminant(theirs) != std::mem::discriminant(ours) => {
                self.wrong.push(format!("{place}: {theirs:?} there, {ours:?} here"));
            }
            _ if theirs == ours => self.equal += 1,
            _ if differs(place) => self.differing += 1,
            _ => self.wrong.push(format!("{place}: {theirs:?} there, {ours:?} here")),
        }
    }
}

fn key_text(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        other => format!("{other:?}"),
    }
}

/// Whether the value at a place is one of those that differ.
fn differs(place: &str) -> bool {
    let key = place.rsplit('/').next().unwrap_or_default();
    let mut parts = DIFFERING.iter().flat_map(|(keys, _)| *keys);
    parts.any(|part| if part.ends_with('_') { key.starts_with(part) } else { key == *part })
}

/// A document as a tree, with one name for both nodes.
fn tree(text: &str) -> Result<Value> {
    let text = [KERNEL, OURS].into_iter().fold(text.to_owned(), |text, nid| text.replace(nid, "NODE"));
    serde_yaml::from_str(&text).with_context(|| format!("no YAML: {text}"))
}

/// The same commands on both sides, and what both print then.
pub(super) fn trees(lab: &mut Lab) -> Result<String> {
    let mut tally = Tally::default();
    for Configuration { before, discovers, after } in CONFIGURATIONS {
        lab.on(1, "rmmod lnet_selftest 2> /dev/null; lnetctl lnet unconfigure && lnetctl lnet configure")?;
        lab.start_bare_daemon(&["--shards", "1"])?;
        before.iter().try_for_each(|words| said(lab, words))?;
        lab.until(|| both_ping(lab))?;
        if discovers {
            said(lab, "discover {other}")?;
        }
        after.iter().try_for_each(|words| said(lab, words))?;
        for words in SHOWN {
            let theirs = tree(&lab.on(1, &format!("lnetctl {words}"))?)?;
            let ours = tree(&lab.tool(&words.split_whitespace().collect::<Vec<_>>())?)?;
            tally.compare(&format!("{words} (after {})", before[0]), &theirs, &ours);
        }
    }
    // The next case finds the net as it expects it.
    lab.forget();
    ensure!(tally.wrong.is_empty(), "{} places differ:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
    Ok(format!("{} values are equal, {} are of those that differ", tally.equal, tally.differing))
}

/// Says a command to both sides.
fn said(lab: &Lab, words: &str) -> Result<()> {
    let words_of = |own: &str, other: &str| words.replace("{own}", own).replace("{other}", other);
    lab.on(1, &format!("lnetctl {}", words_of(KERNEL, OURS)))?;
    lab.tool(&words_of(OURS, KERNEL).split_whitespace().collect::<Vec<_>>()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(theirs: &str, ours: &str, expected: &[&str]) {
        let mut tally = Tally::default();
        tally.compare("", &tree(theirs).unwrap(), &tree(ours).unwrap());
        assert_eq!(tally.wrong, expected, "{theirs}\n{ours}");
    }

    #[test]
    fn trees_are_equal_but_for_what_must_differ() {
        check("a: {b: 1, c: x}", "a: {c: x, b: 1}", &[]);
        check("a: 1", "a: 2", &["/a: Number(1) there, Number(2) here"]);
        check("a: 1", "a: '1'", &["/a: Number(1) there, String(\"1\") here"]);
        check("a: 1", "b: 1", &["/a: only the kernel node has it", "/b: only we have it"]);
        check("a: [1, 2]", "a: [1]", &["/a: 2 items there, 1 here"]);
        check("- nid: 10.77.0.11@tcp", "- nid: 10.77.0.50@tcp", &[]);
        check("send_count: 1", "send_count: 2", &[]);
        check("send_count: 1", "send_count: x", &["/send_count: Number(1) there, String(\"x\") here"]);
        check("get_rtt_samples: 1", "get_rtt_samples: 2", &[]);
        check("a: 1", "{a: 1, numa distance: 1}", &[]);
        check("{a: 1, CPT: x}", "a: 1", &["/CPT: only the kernel node has it"]);
        let mut tally = Tally::default();
        tally.compare(BACKUP, &tree("{a: 1, CPT: x}").unwrap(), &tree("a: 1").unwrap());
        assert!(tally.wrong.is_empty());
    }
}
