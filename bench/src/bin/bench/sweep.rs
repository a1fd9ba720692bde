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
use lnet_bench::link::{Link, Side};
use lnet_bench::measure::{self, Endpoint};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_bench::others::{Other, UcxTest};
use lnet_bench::output;
use lnet_bench::threaded;
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
/// Other programs are measured at each so many sizes: they take seconds.
const OTHERS_EVERY: usize = 12;
const OTHERS: [Other; 2] = [Other::Ucx(UcxTest::Tag), Other::Sockperf { polls: true }];

/// The time of a message by its size.
#[derive(Serialize)]
struct Line {
    name: String,
    /// Payload bytes, and nanoseconds of a message: the least of the turns, which noise lengthens.
    points: Vec<(usize, f64)>,
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
    fn add(&mut self, index: usize, bytes: usize, per_second: f64) {
        let ns = 1e9 / per_second;
        match self.points.get_mut(index) {
            Some((_, least)) => *least = least.min(ns),
            None => self.points.push((bytes, ns)),
        }
    }

    /// The steps of a line whose points are neighbouring sizes.
    fn steps(&self) -> impl Iterator<Item = Step> {
        self.points.windows(2).filter_map(|pair| {
            let [(from_bytes, before), (to_bytes, after)] = *pair else { return None };
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
    Ok(measure::flood(link, open, time)?.received_per_second())
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { options, at_once } = cli;
    let (link, sizes) = (&options.link, sizes());
    let time = options.time(Duration::from_millis(200));
    let line = |name: &str| Line { name: name.to_owned(), points: Vec::new() };
    let mut ours = ["Put, application-driven", "Put, threaded"].map(line);
    let installed: Vec<_> = OTHERS.into_iter().filter(|other| other.is_installed()).collect();
    let mut others: Vec<_> = installed.iter().map(|other| line(other.name())).collect();
    let operation = Operation::Put { ack: true };
    options.turns(|| {
        for (index, &bytes) in sizes.iter().enumerate() {
            let config = EndConfig { operation, window: at_once, ..EndConfig::puts(bytes) };
            let rates = [
                per_second(link, time, |side| messages::End::open(side, config))?,
                per_second(link, time, |side| threaded::End::open(side, operation, bytes, at_once))?,
            ];
            ours.iter_mut().zip(rates).for_each(|(line, rate)| line.add(index, bytes, rate));
        }
        Ok(())
    })?;
    for &bytes in sizes.iter().step_by(OTHERS_EVERY).chain(sizes.last()) {
        for (line, other) in others.iter_mut().zip(&installed) {
            match other.measure(link, bytes, time) {
                Ok(found) => line.points.extend(found.per_second.map(|rate| (bytes, 1e9 / rate))),
                Err(error) => eprintln!("{}: {error:#}", other.name()),
            }
        }
    }
    let steps = ours.iter().flat_map(Line::steps).collect();
    let lines = ours.into_iter().chain(others).collect();
    let document = Document { setup: options.setup(), at_once, lines, steps };
    if let Some(out) = options.tell("sweep.json", &document, &table(&document))? {
        let path = out.join("sweep.svg");
        plot(&document.lines, &path).with_context(|| format!("cannot plot {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nMTU {mtu_bytes}, mode {mode}, {} at once: nanoseconds of a message\n\n{:>10}",
        document.at_once, "bytes"
    );
    for line in &document.lines {
        let _ = write!(text, "{:>28}", line.name);
    }
    let Some(first) = document.lines.first() else { return text };
    for (bytes, _) in first.points.iter().step_by(OTHERS_EVERY).chain(first.points.last()) {
        let _ = write!(text, "\n{bytes:>10}");
        for line in &document.lines {
            let found = line.points.iter().find(|(size, _)| size == bytes);
            let _ = write!(text, "{:>28}", found.map_or("-".to_owned(), |(_, ns)| format!("{ns:.0}")));
        }
    }
    let _ = write!(text, "\n\nsteps above {STEP_RATIO} between sizes {STEP_BYTES} bytes or 6 % apart:");
    if document.steps.is_empty() {
        text += " none";
    }
    for Step { name, from_bytes, to_bytes, ratio } in &document.steps {
        let _ = write!(text, "\n{name}: {from_bytes} to {to_bytes} bytes, {ratio:.2}");
    }
    text
}

/// The time of a message over its size, both axes logarithmic.
fn plot(lines: &[Line], path: &Path) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let least = all().map(|(_, ns)| *ns).fold(f64::INFINITY, f64::min);
    let most = all().map(|(_, ns)| *ns).fold(least, f64::max);
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
        let points = line.points.iter().map(|(bytes, ns)| (*bytes as f64, *ns));
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
    fn a_step_is_told() {
        let mut line = Line { name: "it".to_owned(), points: Vec::new() };
        for (index, per_second) in [(0, 1e6), (1, 5e5), (0, 2e6), (2, 4.9e5), (1, 9e5)] {
            line.add(index, 100 * index, per_second);
        }
        assert_eq!(line.points[0], (0, 500.0));
        let steps: Vec<_> = line.steps().collect();
        assert_eq!(
            steps.iter().map(|step| (step.from_bytes, step.to_bytes)).collect::<Vec<_>>(),
            [(0, 100), (100, 200)]
        );
        assert!((steps[1].ratio - 9.0 / 4.9).abs() < 1e-9, "{steps:?}");
    }
}
