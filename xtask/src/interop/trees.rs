//! What the kernel node's `lnetctl` and ours print in the same state, compared as trees.

use anyhow::{Context, Result, ensure};
use serde_yaml::Value;
use xtask::testing::is_ours_alone;

use super::Site as _;
use super::lab::{Lab, OURS};
use super::matrix::{KERNEL, both_ping};
use super::selftest;

/// What is said to both sides, before they speak with each other and afterwards. `{own}` is the NID of the
/// side's `eth0`, `{other}` that of the other side's; `{own2}` and `{other2}` are those of `eth1`.
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

/// Configurations with two NIs of a net on each side. Bulk data goes in both directions before the commands
/// that come afterwards.
const MULTI_RAIL: [(&str, Configuration); 2] = [
    (
        "tcp",
        Configuration {
            before: &["net add --net tcp --if eth0,eth1 --conns-per-peer 1"],
            discovers: true,
            after: &[
                "discover --force {other2}",
                "ping --source {own2} {other2}",
                "ping --source {own} {other2}",
                "udsp add --dst {other2} --priority 1",
                "udsp add --src {own2} --priority 2",
                "udsp add --src {own2} --dst {other}",
                "set numa_range 3",
            ],
        },
    ),
    (
        "tcp1",
        Configuration {
            before: &[
                "net add --net tcp --if eth0 --conns-per-peer 1",
                "net add --net tcp1 --if eth1 --conns-per-peer 1 --peer-credits 16",
            ],
            discovers: true,
            after: &[
                "ping {other2}",
                "udsp add --src tcp1 --priority 1",
                "udsp add --dst tcp --priority 2",
                "set numa_range 0",
            ],
        },
    ),
];

/// What is shown of them besides. The tool of a kernel node has no `numa`; the range is in `global show`.
const MULTI_RAIL_SHOWN: [&str; 11] = [
    "ping {other}",
    "ping {own2}",
    "ping {other},{other2}",
    "discover {other}",
    "discover --force {other2}",
    "cpt-of-nid {own2} {other} {other2}",
    "peer show --nid {other2} -v 3",
    "export",
    "debug recovery --local",
    "debug recovery --peer",
    "debug peer --nid {other2}",
];

/// What makes an NI ill on each side, and is shown then: no five pings have been by then, which make it well.
const ILL: [&str; 2] = ["net set --nid {own2} --health 500", "peer set --nid {other2} --health 500"];
const ILL_SHOWN: [&str; 2] = ["debug recovery --local", "debug recovery --peer"];

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
                let further = further.filter(|key| !is_ours_alone(key));
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

    /// What came of it. The next case finds the net as it expects it.
    fn finish(self, lab: &mut Lab) -> Result<String> {
        lab.forget();
        let Self { equal, differing, wrong } = self;
        ensure!(wrong.is_empty(), "{} places differ:\n{}", wrong.len(), wrong.join("\n"));
        Ok(format!("{equal} values are equal, {differing} are of those that differ"))
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

/// A document as a tree, with the same names for both nodes.
fn tree(text: &str) -> Result<Value> {
    let names =
        [("10.77.0.11", "NODE"), ("10.77.0.50", "NODE"), ("10.78.0.11", "SECOND"), ("10.78.0.50", "SECOND")];
    let text = names.into_iter().fold(text.to_owned(), |text, (address, name)| text.replace(address, name));
    serde_yaml::from_str(&text).with_context(|| format!("no YAML: {text}"))
}

/// Compares what both sides print after equal commands.
pub(super) fn trees(lab: &mut Lab) -> Result<String> {
    let mut tally = Tally::default();
    for configuration in &CONFIGURATIONS {
        begin(lab, configuration, &[])?;
        configuration.after.iter().try_for_each(|words| said(lab, words, NO_SECOND))?;
        show(lab, &mut tally, configuration, &SHOWN, NO_SECOND)?;
    }
    tally.finish(lab)
}

/// Compares what both sides print after equal commands, with two NIs on each side.
pub(super) fn multi_rail(lab: &mut Lab) -> Result<String> {
    let mut tally = Tally::default();
    for (net, configuration) in &MULTI_RAIL {
        begin(lab, configuration, &["--selftest"])?;
        selftest::load(lab, 1, selftest::PATIENT)?;
        for (from, to) in [(KERNEL, OURS), (OURS, KERNEL)] {
            let shown = selftest::by_kernel(lab, &selftest::script("lst", from, to, selftest::READ, ""))?;
            selftest::judge(&shown)?;
        }
        // The console has spoken with its own node, which is its own peer since then.
        lab.on(1, &format!("rmmod lnet_selftest && lnetctl peer del --prim_nid {KERNEL}"))?;
        configuration.after.iter().try_for_each(|words| said(lab, words, net))?;
        show(lab, &mut tally, configuration, &MULTI_RAIL_SHOWN, net)?;
        show(lab, &mut tally, configuration, &SHOWN, net)?;
        ILL.iter().try_for_each(|words| said(lab, words, net))?;
        show(lab, &mut tally, configuration, &ILL_SHOWN, net)?;
    }
    tally.finish(lab)
}

/// Has both sides be configured anew, and meet.
fn begin(lab: &mut Lab, configuration: &Configuration, options: &[&str]) -> Result<()> {
    lab.on(1, "rmmod lnet_selftest 2> /dev/null; lnetctl lnet unconfigure && lnetctl lnet configure")?;
    lab.start_bare_daemon(&[&["--shards", "1"], options].concat())?;
    configuration.before.iter().try_for_each(|words| said(lab, words, NO_SECOND))?;
    lab.until(|| both_ping(lab))?;
    if configuration.discovers {
        said(lab, "discover {other}", NO_SECOND)?;
    }
    Ok(())
}

/// Compares what both sides print.
fn show(
    lab: &Lab,
    tally: &mut Tally,
    configuration: &Configuration,
    shown: &[&str],
    net: &str,
) -> Result<()> {
    for words in shown {
        let place = format!("{words} (after {})", configuration.before[0]);
        match both(lab, words, net) {
            Ok([theirs, ours]) => tally.compare(&place, &tree(&theirs)?, &tree(&ours)?),
            Err(error) => tally.wrong.push(format!("{place}: {error:#}")),
        }
    }
    Ok(())
}

/// Says a command to both sides.
fn said(lab: &Lab, words: &str, net: &str) -> Result<()> {
    both(lab, words, net).map(drop)
}

/// The net of the second NI where there is none.
const NO_SECOND: &str = "";

/// What a kernel node and ours say to a command, where the second NI of each is of this net.
fn both(lab: &Lab, words: &str, net: &str) -> Result<[String; 2]> {
    let [kernel2, ours2] = ["10.78.0.11", "10.78.0.50"].map(|address| format!("{address}@{net}"));
    let words_of = |own: &str, own2: &str, other: &str, other2: &str| {
        let names = [("{own}", own), ("{own2}", own2), ("{other}", other), ("{other2}", other2)];
        names.into_iter().fold(words.to_owned(), |words, (name, nid)| words.replace(name, nid))
    };
    let theirs = lab.on(1, &format!("lnetctl {}", words_of(KERNEL, &kernel2, OURS, &ours2)))?;
    let words = words_of(OURS, &ours2, KERNEL, &kernel2);
    let ours = lab.tool(&words.split_whitespace().collect::<Vec<_>>())?;
    Ok([theirs, ours])
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
