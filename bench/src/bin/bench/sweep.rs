//! The time of a message by its size, from 1 byte to 1 MiB, with many at once: Puts of application-driven and
//! of threaded nodes, and other programs beside them. Sizes are 64 bytes or 6 % apart, so that a step shows
//! where a little more payload costs much more.
//!
//! `cargo xtask bench --sweep` makes the namespaces and calls this.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lnet_bench::figure::Figure;
use lnet_bench::link::{Link, Side};
use lnet_bench::measure::{self, Endpoint};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_bench::others::{Other, UcxTest};
use lnet_bench::output;
use lnet_bench::threaded::{self, ThreadedConfig};
use plotters::prelude::*;
use serde::Serialize;

/// Sizes of messages from 1 byte to 1 MiB.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --sweep   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Messages that are under way at once.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
}

/// Largest payload.
const BYTES_MAX: usize = 1 << 20;
/// Bytes between sizes at least, and the part of a size that is between it and the next.
const STEP_BYTES: usize = 64;
const STEP_PART: f64 = 0.06;
/// Steps in the time of a message that are told.
const STEP_RATIO: f64 = 1.5;
/// Other programs are measured at each so many sizes, and in a quick run: they take seconds.
const OTHERS_EVERY: [usize; 2] = [12, 48];
const OTHERS: [Other; 2] = [Other::Ucx(UcxTest::Tag), Other::Sockperf { polls: true }];

/// The time of a message by its size.
#[derive(Serialize)]
struct Line {
    name: String,
    points: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    bytes: usize,
    /// Nanoseconds of a message.
    ns: Figure,
}

/// A message that takes much longer than a slightly shorter one.
#[derive(Debug, PartialEq, Serialize)]
struct Step {
    name: String,
    from_bytes: usize,
    to_bytes: usize,
    ratio: f64,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    at_once: usize,
    lines: Vec<Line>,
    steps: Vec<Step>,
}

/// The sizes of a sweep.
fn sizes() -> Vec<usize> {
    let next = |bytes: &usize| Some(bytes + STEP_BYTES.max((*bytes as f64 * STEP_PART) as usize));
    let all = std::iter::successors(Some(1), next).take_while(|bytes| *bytes < BYTES_MAX);
    all.chain([BYTES_MAX]).collect()
}

impl Line {
    /// A line of these sizes, nothing of which is measured yet.
    fn new(name: &str, sizes: impl Iterator<Item = usize>) -> Self {
        let point = |bytes| Point { bytes, ns: Figure::default() };
        Self { name: name.to_owned(), points: sizes.map(point).collect() }
    }

    /// Payload bytes, and the median of what was measured of these.
    fn medians(&self) -> impl Iterator<Item = (usize, f64)> {
        self.points.iter().filter_map(|point| Some((point.bytes, point.ns.median()?)))
    }

    /// The steps of a line whose points are neighbouring sizes, by the medians.
    fn steps(&self) -> impl Iterator<Item = Step> {
        self.medians().zip(self.medians().skip(1)).filter_map(|((from_bytes, before), (to_bytes, after))| {
            let ratio = after / before;
            (ratio > STEP_RATIO).then(|| Step { name: self.name.clone(), from_bytes, to_bytes, ratio })
        })
    }
}

fn per_second<E: Endpoint>(
    link: &Link,
    time: Duration,
    open: impl Fn(Side<'_>) -> anyhow::Result<E> + Sync,
) -> anyhow::Result<f64> {
    Ok(measure::flood(link, open, time)?.sent_per_second())
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { options, at_once } = cli;
    let (link, sizes) = (&options.link, sizes());
    let time = options.report.time(Duration::from_millis(200));
    let mut ours =
        ["Put, application-driven", "Put, threaded"].map(|name| Line::new(name, sizes.iter().copied()));
    let installed: Vec<_> = OTHERS.into_iter().filter(|other| other.is_installed()).collect();
    let every = OTHERS_EVERY[usize::from(options.report.quick)];
    let few = || sizes.iter().copied().step_by(every).chain([BYTES_MAX]);
    let mut others: Vec<_> = installed.iter().map(|other| Line::new(other.name(), few())).collect();
    let operation = Operation::Put { ack: true };
    options.report.turns(|| {
        for (index, &bytes) in sizes.iter().enumerate() {
            let config = EndConfig::answered(operation, bytes, at_once);
            let threaded = ThreadedConfig::new(operation, bytes, at_once);
            let rates = [
                per_second(link, time, |side| messages::End::open(side, config))?,
                per_second(link, time, |side| threaded::End::open(side, threaded))?,
            ];
            for (line, rate) in ours.iter_mut().zip(rates) {
                line.points[index].ns.add(1e9 / rate);
            }
        }
        for (line, other) in others.iter_mut().zip(&installed) {
            for Point { bytes, ns } in &mut line.points {
                let rate = other.per_second(link, *bytes, time).unwrap_or_else(|error| {
                    eprintln!("{}: {error:#}", other.name());
                    None
                });
                ns.add(rate.map(|rate| 1e9 / rate));
            }
        }
        Ok(())
    })?;
    let steps = ours.iter().flat_map(Line::steps).collect();
    let lines = ours.into_iter().chain(others).collect();
    let document = Document { setup: options.setup(), at_once, lines, steps };
    if let Some(out) = options.report.tell("sweep.json", &document, &table(&document))? {
        let path = out.join("sweep.svg");
        plot(&document.lines, &path).with_context(|| format!("cannot plot {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nMTU {mtu_bytes}, mode {mode}, {} at once: nanoseconds of a message, medians and ranges of the turns\n\n{:>10}",
        document.at_once, "bytes"
    );
    for line in &document.lines {
        let _ = write!(text, "{:>40}", line.name);
    }
    let Some(first) = document.lines.first() else { return text };
    for Point { bytes, .. } in first.points.iter().step_by(OTHERS_EVERY[0]).chain(first.points.last()) {
        let _ = write!(text, "\n{bytes:>10}");
        for line in &document.lines {
            let found = line.points.iter().find(|point| point.bytes == *bytes);
            let _ = write!(text, "{:>40}", found.map_or("-".to_owned(), |point| point.ns.cells(0)));
        }
    }
    let _ = write!(
        text,
        "\n\nsteps above {STEP_RATIO} between sizes {STEP_BYTES} bytes or 6 % apart, by the medians (bound: none):"
    );
    if document.steps.is_empty() {
        text += " none, met";
    } else {
        let _ = write!(text, " {}, MISSED", document.steps.len());
    }
    for Step { name, from_bytes, to_bytes, ratio } in &document.steps {
        let _ = write!(text, "\n{name}: {from_bytes} to {to_bytes} bytes, {ratio:.2}");
    }
    text
}

/// The time of a message over its size, both axes logarithmic.
fn plot(lines: &[Line], path: &Path) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(Line::medians);
    let least = all().map(|(_, ns)| ns).fold(f64::INFINITY, f64::min);
    let most = all().map(|(_, ns)| ns).fold(least, f64::max);
    let root = SVGBackend::new(path, (900, 540)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption("Time of a message, many at once", ("sans-serif", 20))
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((1.0..BYTES_MAX as f64).log_scale(), (least * 0.8..most * 1.25).log_scale())?;
    chart.configure_mesh().x_desc("payload, bytes").y_desc("ns").draw()?;
    let drawn = lines.iter().map(|line| {
        let points = line.medians().map(|(bytes, ns)| (bytes as f64, ns));
        (line.name.as_str(), points.collect())
    });
    output::draw_lines(&mut chart, drawn)?;
    Ok(root.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_64_bytes_or_6_percent_apart() {
        let sizes = sizes();
        assert_eq!((sizes[0], sizes[1], *sizes.last().unwrap()), (1, 65, BYTES_MAX));
        assert!(sizes.windows(2).all(|pair| pair[1] - pair[0] <= STEP_BYTES.max(pair[0] * 6 / 100 + 1)));
        assert!((100..200).contains(&sizes.len()), "{}", sizes.len());
    }

    #[test]
    fn a_step_is_told_by_the_medians() {
        let mut line = Line::new("it", [0, 100, 200].into_iter());
        for (index, ns) in [(0, 9.0), (0, 10.0), (0, 11.0), (1, 16.0), (1, 5.0), (1, 99.0), (2, 24.0)] {
            line.points[index].ns.add(ns);
        }
        let steps: Vec<_> = line.steps().map(|step| (step.from_bytes, step.to_bytes, step.ratio)).collect();
        assert_eq!(steps, [(0, 100, 1.6)]);
    }
}
