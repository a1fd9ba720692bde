//! The latencies of a run as a picture: sizes to the right, time upwards, a line for each quantile.
//!
//! The scale of time is logarithmic, from a power of ten to a power of ten.

use std::fmt::Write;

use super::print::{QUANTILES, size_name};
use super::report::{ClassReport, InitiatorLoad, Kind, SizeClass};

/// Of the picture, and of the place for lines in it, in pixels.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 840.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 480.0;
/// A colour for each quantile, and for the longest time.
const COLOURS: [&str; QUANTILES.len() + 1] = ["#1b7837", "#2166ac", "#762a83", "#b35806", "#b2182b"];

/// Draws what a load measured, as SVG.
pub(super) fn svg(title: &str, load: &InitiatorLoad) -> String {
    let mut sizes: Vec<SizeClass> = load.classes.iter().map(|class| class.class).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let scale = Scale::of(load, sizes.len());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    label(&mut text, (WIDTH / 2.0, 26.0), "middle", title);
    axes(&mut text, &scale, &sizes);
    for (place, colour) in COLOURS.into_iter().enumerate() {
        for kind in Kind::ALL {
            let dashes = if kind == Kind::Get { " stroke-dasharray=\"6 4\"" } else { "" };
            let of_kind = load.classes.iter().filter(|class| class.kind == kind);
            let mut points: Vec<(usize, u64)> = of_kind
                .filter_map(|class| {
                    let x = sizes.iter().position(|size| *size == class.class)?;
                    Some((x, quantile_ns(class, place)))
                })
                .collect();
            points.sort_unstable();
            let points: Vec<String> =
                points.iter().map(|(x, ns)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*ns))).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
                points.join(" ")
            );
        }
        let name = QUANTILES.get(place).map_or("max", |(name, _)| name);
        let y = TOP + 20.0 * (COLOURS.len() - place) as f64;
        let x = RIGHT + 20.0;
        let _ = writeln!(text, "<path d=\"M{x} {y} h30\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        label(&mut text, (x + 38.0, y + 4.0), "start", name);
    }
    label(&mut text, (RIGHT + 20.0, TOP + 150.0), "start", "full: Puts to ACK");
    label(&mut text, (RIGHT + 20.0, TOP + 170.0), "start", "dashed: Gets");
    text + "</svg>\n"
}

/// The quantile of a colour.
fn quantile_ns(class: &ClassReport, place: usize) -> u64 {
    let latency = &class.latency;
    QUANTILES.get(place).map_or_else(|| latency.max_ns(), |(_, millionths)| latency.quantile_ns(*millionths))
}

/// Where things are.
struct Scale {
    /// Powers of ten, in nanoseconds.
    lowest: u32,
    highest: u32,
    columns: usize,
}

impl Scale {
    fn of(load: &InitiatorLoad, columns: usize) -> Self {
        let ends = load.classes.iter().flat_map(|class| [quantile_ns(class, 0), class.latency.max_ns()]);
        let (least, most) = ends.fold((u64::MAX, 1), |(least, most), ns| (least.min(ns), most.max(ns)));
        let lowest = least.clamp(1, most).ilog10();
        Self { lowest, highest: (most.ilog10() + 1).max(lowest + 1), columns }
    }

    fn x(&self, column: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * (column as f64 + 0.5) / self.columns.max(1) as f64
    }

    fn y(&self, ns: u64) -> f64 {
        let share = (ns.max(1) as f64).log10() - f64::from(self.lowest);
        BOTTOM - (BOTTOM - TOP) * share / f64::from(self.highest - self.lowest)
    }
}

fn axes(text: &mut String, scale: &Scale, sizes: &[SizeClass]) {
    for power in scale.lowest..=scale.highest {
        let ns = 10_u64.pow(power);
        let y = scale.y(ns);
        let _ = writeln!(text, "<path d=\"M{LEFT} {y:.1} H{RIGHT}\" stroke=\"#cccccc\"/>");
        let name = match ns {
            ..1000 => format!("{ns} ns"),
            1000..1_000_000 => format!("{} us", ns / 1000),
            1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
            _ => format!("{} s", ns / 1_000_000_000),
        };
        label(text, (LEFT - 8.0, y + 4.0), "end", &name);
    }
    for (column, size) in sizes.iter().enumerate() {
        // Long ones in two lines, so that neighbours keep apart.
        let name = size_name(size).replace(" to ", " to\n");
        for (line, words) in name.lines().enumerate() {
            label(text, (scale.x(column), BOTTOM + 20.0 + 18.0 * line as f64), "middle", words);
        }
    }
}

fn label(text: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::{Latency, Tally};

    #[test]
    fn every_quantile_of_both_kinds_is_a_line() {
        let of = |kind, min_bytes, max_bytes, latency: &[(u64, u64)]| ClassReport {
            class: SizeClass { min_bytes, max_bytes },
            kind,
            tally: Tally::default(),
            latency: Latency(latency.to_vec()),
        };
        let classes = vec![
            of(Kind::Put, 0, 0, &[(1000, 99), (100_000, 1)]),
            of(Kind::Get, 0, 0, &[(1000, 1)]),
            of(Kind::Put, 1, 64, &[(10_000, 1)]),
        ];
        let text = svg("a -> b", &InitiatorLoad { classes, ..InitiatorLoad::default() });
        assert_eq!(text.matches("<polyline").count(), 10);
        assert_eq!(text.matches("stroke-dasharray").count(), 5);
        // The lowest power of ten is at the bottom, the highest, one above the longest time, at the top.
        assert!(text.contains("points=\"277.5,480.0 652.5,336.7\""), "{text}");
        for part in [">a -&gt; b<", ">0 B<", ">1 to<", ">64 B<", ">1 us<", ">1 ms<", ">p99.9<", ">max<"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn without_messages_there_is_a_picture_too() {
        let text = svg("none", &InitiatorLoad::default());
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN"), "{text}");
    }
}
