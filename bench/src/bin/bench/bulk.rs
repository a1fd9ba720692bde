//! Throughput of long Puts and Gets by rings, and by what the node chooses, beside a flood of raw `AF_XDP`
//! frames as long as the link takes them: all measured in one run, in turns, over one veth pair, with and
//! without loss, out of ordinary and of registered memory, by application-driven and by threaded nodes.
//!
//! `cargo xtask bench --bulk` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, checks_table};
use lnet_bench::link::Side;
use lnet_bench::measure::{self, gigabits};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_bench::raw;
use lnet_bench::threaded::{self, Sources, ThreadedConfig};
use lnet_user::node::Carrier;
use serde::Serialize;

/// Measures long Puts and Gets beside a raw AF_XDP flood over one veth pair.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --bulk   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Frames of a hundred that the lossy rounds lose, at each end.
    #[arg(long, default_value_t = 1.0)]
    loss: f64,
}

/// Messages that are under way at once.
const WINDOW: usize = 8;
const ETHERNET_BYTES: usize = 14;
const OPERATIONS: [(&str, Operation); 2] = [("Put", Operation::Put { ack: true }), ("Get", Operation::Get)];
const CARRIERS: [(&str, Carrier); 2] = [("rings", Carrier::Rings), ("auto", Carrier::Auto)];
/// The least that rings carry of raw frames, that is left where a hundredth of the frames is lost, and that
/// registered memory carries of what ordinary memory does.
const OF_RAW: f64 = 0.8;
const OF_LOSSLESS: f64 = 0.8;
const OF_ORDINARY: f64 = 1.0;

/// Difference from a message that is sent without loss out of ordinary memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Plain,
    Lossy,
    Registered,
}

/// Messages that are measured: of which kind, by which nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Subject {
    operation: (&'static str, Operation),
    carrier: (&'static str, Carrier),
    is_threaded: bool,
    variant: Variant,
}

impl Subject {
    /// All of them; what is registered leaves without a copy by rings alone.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for is_threaded in [false, true] {
            for carrier in CARRIERS {
                for variant in [Variant::Plain, Variant::Lossy, Variant::Registered] {
                    let has_it =
                        variant != Variant::Registered || (carrier.1, is_threaded) == (Carrier::Rings, false);
                    let of = |operation| Self { operation, carrier, is_threaded, variant };
                    all.extend(OPERATIONS.map(of).into_iter().filter(|_| has_it));
                }
            }
        }
        all
    }

    fn name(&self, loss: f64) -> String {
        let nodes = if self.is_threaded { "threaded" } else { "application-driven" };
        let variant = match self.variant {
            Variant::Plain => String::new(),
            Variant::Lossy => format!(", {loss} % lost"),
            Variant::Registered => ", registered".to_owned(),
        };
        format!("{}, {nodes}, {}{variant}", self.operation.0, self.carrier.0)
    }

    /// Messages a second that were answered.
    fn per_second(&self, options: &Options, loss: f64, time: Duration) -> anyhow::Result<f64> {
        let (bytes, operation, carrier) = (options.size, self.operation.1, self.carrier.1);
        let loss_per_million = if self.variant == Variant::Lossy { (loss * 10_000.0) as u32 } else { 0 };
        let flood = if self.is_threaded {
            let sources = Sources::Each;
            let config = ThreadedConfig::new(operation, bytes, WINDOW);
            let config = ThreadedConfig { sources, carrier, loss_per_million, ..config };
            measure::flood(&options.link, |side: Side<'_>| threaded::End::open(side, config), time)?
        } else {
            let registered = self.variant == Variant::Registered;
            let config = EndConfig::answered(operation, bytes, WINDOW);
            let config = EndConfig { buffers: WINDOW, registered, carrier, loss_per_million, ..config };
            measure::flood(&options.link, |side: Side<'_>| messages::End::open(side, config), time)?
        };
        Ok(flood.sent_per_second())
    }
}

#[derive(Serialize)]
struct Row {
    name: String,
    gbit_per_second: Figure,
    /// Over what stands in `of`, in the same turn.
    ratio: Figure,
    of: String,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    loss_percent: f64,
    raw_gbit_per_second: Figure,
    rows: Vec<Row>,
    checks: Vec<Check>,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, loss }: Cli) -> anyhow::Result<()> {
    let (link, time) = (&options.link, options.report.time(Duration::from_secs(1)));
    let frame_bytes = link.mtu + ETHERNET_BYTES;
    let subjects = Subject::all();
    let (mut raw, mut rates) = (Figure::default(), vec![Figure::default(); subjects.len()]);
    options.report.turns(|| {
        let flood = measure::flood(link, |side: Side<'_>| raw::End::open(side, frame_bytes), time)?;
        raw.add(gigabits(flood.received_per_second(), frame_bytes));
        for (subject, rate) in subjects.iter().zip(&mut rates) {
            rate.add(gigabits(subject.per_second(&options, loss, time)?, options.size));
        }
        Ok(())
    })?;
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for (subject, rate) in subjects.iter().zip(&rates) {
        let plain = Subject { variant: Variant::Plain, ..*subject };
        let by_rings = Subject { carrier: CARRIERS[0], ..plain };
        let (base, bound) = match (subject.variant, subject.carrier.1) {
            (Variant::Plain, Carrier::Rings) => (None, Some(OF_RAW)),
            (Variant::Plain, _) => (Some(by_rings), None),
            (Variant::Lossy, _) => (Some(plain), Some(OF_LOSSLESS)),
            (Variant::Registered, _) => (Some(plain), Some(OF_ORDINARY)),
        };
        let index = |base| subjects.iter().position(|other| *other == base);
        let ratio = rate.over(base.and_then(index).map_or(&raw, |index| &rates[index]));
        let name = subject.name(loss);
        let of = base.map_or_else(|| "raw AF_XDP".to_owned(), |base| base.name(loss));
        let check = |bound| Check::new(format!("{name} / {of}"), ratio.clone(), Bound::AtLeast(bound));
        checks.extend(bound.and_then(check));
        rows.push(Row { name, gbit_per_second: rate.clone(), ratio, of });
    }
    let document =
        Document { setup: options.setup(), loss_percent: loss, raw_gbit_per_second: raw, rows, checks };
    options.report.tell("bulk.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text = format!(
        "{machine}\n\nmessages of {size_bytes} bytes, {WINDOW} at once, MTU {mtu_bytes}, mode {mode}\n"
    );
    let mut line = |name: &str, [rate, range, ratio, ratios]: [String; 4], of: &str| {
        text += &format!("{name:<44}{rate:>10}{range:>18}{ratio:>8}{ratios:>16}  {of}\n");
    };
    line("", ["Gbit/s", "(range)", "ratio", "(range)"].map(str::to_owned), "of");
    let raw = &document.raw_gbit_per_second;
    line("raw AF_XDP", [raw.cell(2), raw.range_cell(2), "-".to_owned(), "-".to_owned()], "");
    for Row { name, gbit_per_second: rate, ratio, of } in &document.rows {
        line(name, [rate.cell(2), rate.range_cell(2), ratio.cell(2), ratio.range_cell(2)], of);
    }
    text + &checks_table(&document.checks)
        + "\nrings, auto: the carrier of long messages at both ends; auto is what a node has that says nothing"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_stands_beside_one_that_is_measured() {
        let all = Subject::all();
        assert!(all.iter().all(|subject| {
            let plain = Subject { variant: Variant::Plain, ..*subject };
            all.contains(&plain) && all.contains(&Subject { carrier: CARRIERS[0], ..plain })
        }));
        let registered = all.iter().filter(|subject| subject.variant == Variant::Registered);
        assert!(
            registered.clone().count() == 2 && registered.clone().all(|it| it.carrier.1 == Carrier::Rings)
        );
        let names: std::collections::BTreeSet<_> = all.iter().map(|subject| subject.name(1.0)).collect();
        assert_eq!(names.len(), all.len());
    }
}
