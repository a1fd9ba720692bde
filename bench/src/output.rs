//! Tables, JSON, histograms and the plot of a measurement.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use lnet_load::Distribution;
use plotters::prelude::*;
use serde::Serialize;

use crate::figure::{Bound, Check, Figure, checks_table};
use crate::measure::Flood;
use crate::options::{Options, Setup, save};

/// What was measured of one way to send.
#[derive(Debug)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Half round trips of all turns, in nanoseconds.
    half_ns: Distribution,
    p50_us: Figure,
    p99_us: Figure,
    sent_per_second: Figure,
    received_per_second: Figure,
}

impl Measured {
    /// Nothing yet of something of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            half_ns: Distribution::measured(),
            p50_us: Figure::default(),
            p99_us: Figure::default(),
            sent_per_second: Figure::default(),
            received_per_second: Figure::default(),
        }
    }

    /// Adds what a turn has found: half round trips, in nanoseconds, and the rate of one sender.
    pub fn add_turn(&mut self, half_ns: &Distribution, flood: Flood) {
        let us = |quantile| half_ns.quantile(quantile) as f64 / 1e3;
        self.p50_us.add(us(0.5));
        self.p99_us.add(us(0.99));
        self.half_ns.merge(half_ns);
        self.sent_per_second.add(flood.sent_per_second());
        self.received_per_second.add(flood.received_per_second());
    }
}

/// A measurement, as its JSON file says it.
#[derive(Debug, Serialize)]
pub struct Document {
    #[serde(flatten)]
    setup: Setup,
    measured: Vec<Row>,
    checks: Vec<Check>,
    /// What a turn of a shard costs that finds nothing to do.
    idle_turn_ns: Figure,
}

/// Percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl From<&Distribution> for Latency {
    fn from(half_ns: &Distribution) -> Self {
        let at = |share| half_ns.quantile(share);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: half_ns.max() }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Over all turns.
    half_round_trip_ns: Latency,
    p50_us: Figure,
    p99_us: Figure,
    sent_per_second: Figure,
    received_per_second: Figure,
}

impl Document {
    /// The baseline, Puts beside it, and those of threaded nodes.
    #[must_use]
    pub fn new(setup: Setup, measured: &[&Measured; 3], idle_turn_ns: Figure) -> Self {
        let [raw, puts, threaded] = measured;
        let row = |of: &Measured| Row {
            name: of.name.clone(),
            half_round_trip_ns: (&of.half_ns).into(),
            p50_us: of.p50_us.clone(),
            p99_us: of.p99_us.clone(),
            sent_per_second: of.sent_per_second.clone(),
            received_per_second: of.received_per_second.clone(),
        };
        let check = |what: &str, of: &Measured, base: &Measured, figure: fn(&Measured) -> &Figure, bound| {
            Check::new(format!("{} / {}, {what}", of.name, base.name), figure(of).over(figure(base)), bound)
        };
        let checks = [
            check("p50 half round trip", puts, raw, |of| &of.p50_us, Bound::AtMost(1.4)),
            check("received a second", puts, raw, |of| &of.received_per_second, Bound::AtLeast(3.0)),
            check("p50 half round trip", threaded, puts, |of| &of.p50_us, Bound::AtMost(1.25)),
            check("p99 half round trip", threaded, puts, |of| &of.p99_us, Bound::AtMost(2.0)),
        ];
        Self {
            setup,
            measured: measured.iter().map(|of| row(of)).collect(),
            checks: checks.into_iter().flatten().collect(),
            idle_turn_ns,
        }
    }
}

/// Prints the tables (or JSON) and writes the files, if a folder for them is given. `measured` are the names
/// of files and what goes there.
///
/// # Errors
/// When a file cannot be written.
pub fn write(options: &Options, document: &Document, measured: &[(&str, &Measured)]) -> anyhow::Result<()> {
    let Some(out) = options.report.tell("bench.json", document, &table(document))? else { return Ok(()) };
    for (name, measured) in measured {
        save(&out.join(format!("{name}.hgrm")), &hgrm(&measured.half_ns))?;
    }
    let measured: Vec<_> = measured.iter().map(|(_, measured)| *measured).collect();
    let path = out.join("latency.svg");
    plot(&measured, &path).with_context(|| format!("cannot plot {}", path.display()))
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text =
        format!("{machine}\n\n{size_bytes} bytes, MTU {mtu_bytes}, mode {mode}: half round trip (us)\n");
    let mut line = |cells: [String; 11]| {
        let _ = write!(text, "{:<24}", cells[0]);
        for (cell, width) in cells[1..].iter().zip([8, 18, 8, 18, 8, 10, 12, 24, 12, 24]) {
            let _ = write!(text, "{cell:>width$}");
        }
        text.push('\n');
    };
    let head = [
        "",
        "p50",
        "(range)",
        "p99",
        "(range)",
        "p99.9",
        "max",
        "sent/s",
        "(range)",
        "received/s",
        "(range)",
    ];
    line(head.map(str::to_owned));
    for row in &document.measured {
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
        let latency = &row.half_round_trip_ns;
        line([
            row.name.clone(),
            row.p50_us.cell(2),
            row.p50_us.range_cell(2),
            row.p99_us.cell(2),
            row.p99_us.range_cell(2),
            us(latency.p999),
            us(latency.max),
            row.sent_per_second.cell(0),
            row.sent_per_second.range_cell(0),
            row.received_per_second.cell(0),
            row.received_per_second.range_cell(0),
        ]);
    }
    let _ = write!(
        text,
        "{}\nmedians of the turns, of p99.9 and the maximum all turns together; ratios are those of the turns\n\
         a turn of a shard that finds nothing to do: {} ns",
        checks_table(&document.checks),
        document.idle_turn_ns.cells(0)
    );
    text
}

/// The percentile distribution in the text form that HdrHistogram's plotters read: value in microseconds,
/// percentile, count up to it, 1 / (1 - percentile).
fn hgrm(half_ns: &Distribution) -> String {
    let histogram = half_ns.histogram();
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    for step in histogram.iter_quantiles(5) {
        let quantile = step.quantile_iterated_to();
        let value_us = step.value_iterated_to() as f64 / 1000.0;
        let count = histogram.count_between(0, step.value_iterated_to());
        let _ = if quantile < 1.0 {
            writeln!(text, "{value_us:12.3} {quantile:2.12} {count:10} {:14.2}", 1.0 / (1.0 - quantile))
        } else {
            writeln!(text, "{value_us:12.3} {quantile:2.12} {count:10}")
        };
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.mean() / 1000.0,
        histogram.stdev() / 1000.0,
        histogram.max() as f64 / 1000.0,
        histogram.len()
    );
    text
}

/// Latency over percentile. The percentile axis is stretched towards 100 %, each tick is another nine; the
/// latency axis is logarithmic, so that the tail does not flatten the rest.
fn plot(rows: &[&Measured], path: &Path) -> anyhow::Result<()> {
    const NINES: f64 = 4.0;
    let at =
        |row: &Measured, nines: f64| row.half_ns.quantile(1.0 - 10f64.powf(-nines)).max(1) as f64 / 1000.0;
    let smallest = rows.iter().map(|row| at(row, 0.0)).fold(f64::INFINITY, f64::min);
    let largest = rows.iter().map(|row| at(row, NINES)).fold(smallest, f64::max);
    let root = SVGBackend::new(path, (800, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption("Half round trip", ("sans-serif", 20))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..NINES, (smallest * 0.8..largest * 1.25).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("percentile")
        .y_desc("us")
        .x_labels(5)
        .x_label_formatter(&|nines| {
            format!("{:.*}", (*nines - 2.0).max(0.0) as usize, 100.0 * (1.0 - 10f64.powf(-nines)))
        })
        .draw()?;
    let lines = rows.iter().map(|row| {
        let nines = (0..=400).map(|step| NINES * f64::from(step) / 400.0);
        (row.name.as_str(), nines.map(|nines| (nines, at(row, nines))).collect())
    });
    draw_lines(&mut chart, lines)?;
    Ok(root.present()?)
}

/// Draws lines into a chart, each by its name and its points, and says which is which.
///
/// # Errors
/// When the file cannot be written.
pub fn draw_lines<'a, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    lines: impl Iterator<Item = (impl Into<String>, Vec<(f64, f64)>)>,
) -> anyhow::Result<()> {
    for (index, (name, points)) in lines.enumerate() {
        let style = Palette99::pick(index).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE)
        .border_style(BLACK)
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}
