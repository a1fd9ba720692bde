//! The latencies of a load as a picture: sizes to the right, time upwards, a line for each quantile.
//!
//! The scale of time is logarithmic, from a power of ten to a power of ten.

use std::fmt::Write;

use lnet_model::records::{LoadKind, LoadResult, LoadTimes};

use super::load::size_name;

/// Sizes of the picture, and of the place for lines in it, in pixels.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 840.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 480.0;
/// A colour for each quantile.
const COLOURS: [&str; LoadTimes::QUANTILES.len()] = ["#1b7837", "#2166ac", "#762a83", "#b35806", "#b2182b"];

/// Draws what a load measured, as SVG.
pub(super) fn svg(result: &LoadResult) -> String {
    let times: Vec<(LoadKind, LoadTimes)> =
        result.classes.iter().filter_map(|class| Some((class.kind, class.times?))).collect();
    let mut sizes: Vec<LoadTimes> = times.iter().map(|(_, times)| *times).collect();
    sizes.sort_unstable_by_key(|times| times.min_bytes);
    sizes.dedup_by_key(|times| times.min_bytes);
    let scale = Scale::of(&times, sizes.len());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let title = format!("latency of {} messages", result.verified(&LoadKind::ALL).0);
    label(&mut text, (WIDTH / 2.0, 26.0), "middle", &title);
    axes(&mut text, &scale, &sizes);
    for (position, (colour, (name, _))) in COLOURS.into_iter().zip(LoadTimes::QUANTILES).enumerate() {
        for kind in LoadKind::ALL {
            let dashes = if kind == LoadKind::Get { " stroke-dasharray=\"6 4\"" } else { "" };
            let mut points: Vec<(usize, u64)> = Vec::new();
            for (_, times) in times.iter().filter(|(of, _)| *of == kind) {
                let column = sizes.iter().position(|size| size.min_bytes == times.min_bytes);
                points.extend(column.zip(times.quantiles_ns.get(position).copied()));
            }
            points.sort_unstable();
            let points: Vec<String> =
                points.iter().map(|(x, ns)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*ns))).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
                points.join(" ")
            );
        }
        let y = TOP + 20.0 * (COLOURS.len() - position) as f64;
        let x = RIGHT + 20.0;
        let _ = writeln!(text, "<path d=\"M{x} {y} h30\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        label(&mut text, (x + 38.0, y + 4.0), "start", name);
    }
    label(&mut text, (RIGHT + 20.0, TOP + 150.0), "start", "full: Puts to ACK");
    label(&mut text, (RIGHT + 20.0, TOP + 170.0), "start", "dashed: Gets");
    text + "</svg>\n"
}

/// Where things are.
struct Scale {
    /// Powers of ten, in nanoseconds.
    lowest: u32,
    highest: u32,
    columns: usize,
}

impl Scale {
    fn of(times: &[(LoadKind, LoadTimes)], columns: usize) -> Self {
        let ends = times.iter().flat_map(|(_, times)| times.quantiles_ns);
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

fn axes(text: &mut String, scale: &Scale, sizes: &[LoadTimes]) {
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
    use lnet_model::records::LoadClass;

    use super::*;

    #[test]
    fn every_quantile_of_both_kinds_is_a_line() {
        let of = |kind, min_bytes, max_bytes, quantiles_ns| {
            let times = Some(LoadTimes { min_bytes, max_bytes, quantiles_ns });
            LoadClass { kind, messages: 100, bytes: 0, times }
        };
        let classes = vec![
            of(LoadKind::Put, 0, 0, [1000, 1000, 1000, 100_000, 100_000]),
            of(LoadKind::Get, 0, 0, [1000; 5]),
            of(LoadKind::Put, 1, 64, [10_000; 5]),
        ];
        let text = svg(&LoadResult { classes, ..LoadResult::default() });
        assert_eq!(text.matches("<polyline").count(), 10);
        assert_eq!(text.matches("stroke-dasharray").count(), 5);
        // The lowest power of ten is at the bottom, the highest, one above the longest time, at the top.
        assert!(text.contains("points=\"277.5,480.0 652.5,336.7\""), "{text}");
        for part in ["of 300 messages<", ">0 B<", ">1 to<", ">64 B<", ">1 us<", ">1 ms<", ">p99.9<", ">max<"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn without_messages_there_is_a_picture_too() {
        let text = svg(&LoadResult::default());
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN"), "{text}");
    }
}
