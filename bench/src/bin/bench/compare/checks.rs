//! The bounds that rows are to keep beside each other, where both were measured.

use lnet_bench::figure::{Bound, Check, Figure};
use lnet_wire::NetType;

use super::Row;
use super::subjects::{LIMIT, WINDOWS, windowed};

const LONG_BYTES: usize = 1 << 20;
/// The MTU at which messages of a page stand beside raw frames, and long ones over sockets beside the limit
/// of the link.
const JUMBO_BYTES: usize = 9000;
/// MTUs at which long messages over sockets stand beside iperf3: the usual one, and the largest.
const IPERF_MTUS: [usize; 2] = [1500, 65_535];
const IPERF: &str = "iperf3, TCP";
const RAW: &str = "raw AF_XDP";

/// Column of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Alone,
    Rate,
}

impl Of {
    const fn figure(self, row: &Row) -> &Figure {
        match self {
            Self::Alone => &row.alone_us,
            Self::Rate => &row.per_second,
        }
    }
}

/// A bound of a row, or of its ratio to another one, for a size.
struct Rule {
    bytes: usize,
    row: String,
    base: Option<String>,
    of: Of,
    bound: Bound,
}

/// The rules of a net and an MTU.
fn rules(net: NetType, mtu_bytes: usize) -> Vec<Rule> {
    let ratio = |bytes, row: &str, base: &str, bound| {
        let (row, base) = (row.to_owned(), Some(base.to_owned()));
        Rule { bytes, row, base, of: Of::Rate, bound: Bound::AtLeast(bound) }
    };
    let alone = |row: &str, bound| Rule {
        bytes: 64,
        row: row.to_owned(),
        base: None,
        of: Of::Alone,
        bound: Bound::AtMost(bound),
    };
    let [few, many] = WINDOWS.map(windowed);
    let [one, each] = ["one descriptor", "a descriptor each"].map(|it| format!("Get, threaded, {it}"));
    let mut rules = vec![
        ratio(64, &many, &few, 0.9),
        ratio(LONG_BYTES, &one, &each, 0.9),
        alone("entries posted by a list, threaded", 2.0),
    ];
    if net == NetType::TCP {
        rules.extend(["application-driven", "threaded"].map(|nodes| alone(&format!("Put, {nodes}"), 10.0)));
        rules.extend(["Put, threaded", &one].map(|row| ratio(LONG_BYTES, row, IPERF, 0.8)));
        return rules;
    }
    if mtu_bytes == JUMBO_BYTES {
        let nodes = ["application-driven", "threaded"];
        rules.extend(nodes.map(|nodes| ratio(4096, &format!("Put, {nodes}"), RAW, 0.9)));
    }
    for kind in ["Put", "Get"] {
        rules.push(ratio(LONG_BYTES, &format!("{kind}, threaded, by rings alone"), RAW, 0.8));
        let over_sockets = format!("{kind}, threaded, over sockets");
        if IPERF_MTUS.contains(&mtu_bytes) {
            rules.push(ratio(LONG_BYTES, &over_sockets, IPERF, 0.9));
        } else if mtu_bytes == JUMBO_BYTES {
            rules.push(ratio(LONG_BYTES, &over_sockets, LIMIT, 0.9));
        }
    }
    rules
}

/// The checks of what was measured.
pub(super) fn of(rows: &[Row], net: NetType, mtu_bytes: usize) -> Vec<Check> {
    let checks = rules(net, mtu_bytes).into_iter().filter_map(|Rule { bytes, row, base, of, bound }| {
        let figure = |name: &String| {
            let row = rows.iter().find(|row| row.size_bytes == bytes && row.name == *name);
            row.map(|row| of.figure(row))
        };
        let (own, base_figure) = (figure(&row)?, base.as_ref().map(figure));
        let what = if of == Of::Alone { "alone, us" } else { "at once" };
        match (base, base_figure) {
            (Some(base), Some(base_figure)) => {
                Check::new(format!("{row} / {base}, {bytes} bytes, {what}"), own.over(base_figure?), bound)
            }
            _ => Check::new(format!("{row}, {bytes} bytes, {what}"), own.clone(), bound),
        }
    });
    checks.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::compare::Cli;
    use crate::compare::subjects::subjects;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        cli: Cli,
    }

    /// Bounds of rows that are never measured would never be told.
    #[test]
    fn each_rule_is_about_rows_that_are_measured() {
        for (net, net_type) in [("xdp", NetType::XDP), ("tcp", NetType::TCP)] {
            for mtu in [1500, 9000, 65_535] {
                let nids = [1, 2].map(|host| format!("10.0.0.{host}@{net}"));
                let words = format!(
                    "bench --netns-a a --netns-b b --interface-a a --interface-b b --nid-a {} --nid-b {} \
                     --mtu {mtu} --size 64",
                    nids[0], nids[1]
                );
                let cli = Program::parse_from(words.split_whitespace()).cli;
                for Rule { bytes, row, base, .. } in rules(net_type, mtu) {
                    let subjects = subjects(&cli, bytes, &mut BTreeSet::new());
                    let names: BTreeSet<_> = subjects.iter().map(|(name, _)| name.clone()).collect();
                    for name in [Some(row), base].into_iter().flatten().filter(|name| name != IPERF) {
                        assert!(
                            names.contains(&name),
                            "{net}, MTU {mtu}, {bytes} bytes: no {name:?} in {names:?}"
                        );
                    }
                }
            }
        }
    }
}
