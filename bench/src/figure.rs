//! Figures of a measurement, one of each turn, told by their median and range; and the bounds that they are
//! to keep.

use std::fmt::{self, Write as _};

use serde::{Serialize, Serializer};

/// Findings of the turns, in the order of these; `None` in a turn that has found nothing.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Figure(Vec<Option<f64>>);

impl Figure {
    /// Adds what a turn has found.
    pub fn add(&mut self, found: impl Into<Option<f64>>) {
        self.0.push(found.into());
    }

    /// Findings by size.
    fn sorted(&self) -> Vec<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().flatten().collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The median, of an even number of findings the mean of the two in the middle; `None` of none.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some(f64::midpoint(sorted[low], sorted[high]))
    }

    /// The least and the most; `None` of none.
    #[must_use]
    pub fn range(&self) -> Option<[f64; 2]> {
        let sorted = self.sorted();
        Some([*sorted.first()?, *sorted.last()?])
    }

    /// Findings that went through a function.
    #[must_use]
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().map(|found| found.map(&change)).collect())
    }

    /// Ratios of the turns: each finding over that of the base in the same turn.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let both = self.0.iter().zip(&base.0);
        both.map(|(found, base)| Some((*found)? / (*base)?)).collect()
    }

    /// The median as a table has it.
    #[must_use]
    pub fn cell(&self, digits: usize) -> String {
        self.median().map_or_else(|| "-".to_owned(), |median| format!("{median:.digits$}"))
    }

    /// The range as a table has it: nothing of a single turn.
    #[must_use]
    pub fn range_cell(&self, digits: usize) -> String {
        match self.range() {
            Some([least, most]) if self.sorted().len() > 1 => format!("({least:.digits$}, {most:.digits$})"),
            _ => "-".to_owned(),
        }
    }

    /// The median, and the range behind it.
    #[must_use]
    pub fn cells(&self, digits: usize) -> String {
        format!("{} {}", self.cell(digits), self.range_cell(digits))
    }
}

impl FromIterator<Option<f64>> for Figure {
    fn from_iter<I: IntoIterator<Item = Option<f64>>>(found: I) -> Self {
        Self(found.into_iter().collect())
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told<'a> {
            median: Option<f64>,
            range: Option<[f64; 2]>,
            turns: &'a [Option<f64>],
        }
        Told { median: self.median(), range: self.range(), turns: &self.0 }.serialize(serializer)
    }
}

/// Bound of the median of a figure.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bound) = match self {
            Self::AtMost(bound) => ("<=", bound),
            Self::AtLeast(bound) => (">=", bound),
        };
        // Bounds that are whole are numbers of something, or have ratios of their own beside them.
        if bound.fract() == 0.0 { write!(f, "{sign} {bound}") } else { write!(f, "{sign} {bound:.2}") }
    }
}

/// A figure beside its bound.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Check {
    name: String,
    #[serde(flatten)]
    figure: Figure,
    bound: Bound,
    is_met: bool,
}

impl Check {
    /// Judges the median of a figure; one without any has nothing to be judged.
    #[must_use]
    pub fn new(name: impl Into<String>, figure: Figure, bound: Bound) -> Option<Self> {
        let median = figure.median()?;
        let is_met = match bound {
            Bound::AtMost(bound) => median <= bound,
            Bound::AtLeast(bound) => median >= bound,
        };
        Some(Self { name: name.into(), figure, bound, is_met })
    }
}

/// The table of checks, in front of which is an empty line; nothing where there are none.
#[must_use]
pub fn checks_table(checks: &[Check]) -> String {
    let mut text = String::new();
    if checks.is_empty() {
        return text;
    }
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let _ = writeln!(text, "\n{:<width$}{:>14}{:>24}{:>12}", "bounds", "median", "(range)", "bound");
    for Check { name, figure, bound, is_met } in checks {
        let digits = if figure.median().is_some_and(|median| median >= 100.0) { 0 } else { 2 };
        let (median, range) = (figure.cell(digits), figure.range_cell(digits));
        let verdict = if *is_met { "met" } else { "MISSED" };
        let _ = writeln!(text, "{name:<width$}{median:>14}{range:>24}{:>12}  {verdict}", bound.to_string());
    }
    text
}

/// Widths of the median and of the range of each figure in a table of two figures and their ratio.
const BESIDE: [(usize, usize); 3] = [(12, 24), (12, 24), (8, 16)];

/// The heading of a table of two figures and their ratio, whose names take so many columns.
#[must_use]
pub fn beside_heading(width: usize, name: &str, names: [&str; 3]) -> String {
    beside_line(width, name, names.map(|name| [name.to_owned(), "(range)".to_owned()]))
}

/// A line of such a table: figures with so many digits, and their ranges.
#[must_use]
pub fn beside_row(width: usize, name: &str, figures: [(&Figure, usize); 3]) -> String {
    beside_line(width, name, figures.map(|(figure, digits)| [figure.cell(digits), figure.range_cell(digits)]))
}

fn beside_line(width: usize, name: &str, cells: [[String; 2]; 3]) -> String {
    let mut line = format!("{name:<width$}");
    for ([median, range], (median_width, range_width)) in cells.iter().zip(BESIDE) {
        let _ = write!(line, "{median:>median_width$}{range:>range_width$}");
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(found: &[f64]) -> Figure {
        found.iter().copied().map(Some).collect()
    }

    #[test]
    fn figures_tell_their_median_and_range() {
        let odd = figure(&[3.0, 1.0, 2.0]);
        assert_eq!((odd.median(), odd.range()), (Some(2.0), Some([1.0, 3.0])));
        assert_eq!(figure(&[4.0, 1.0, 3.0, 2.0]).median(), Some(2.5));
        assert_eq!(odd.cells(1), "2.0 (1.0, 3.0)");
        assert_eq!(figure(&[1.0]).cells(0), "1 -");
        assert_eq!((Figure::default().median(), Figure::default().cell(1)), (None, "-".to_owned()));
        let json = serde_json::to_value(&odd).unwrap();
        assert_eq!(json, serde_json::json!({"median": 2.0, "range": [1.0, 3.0], "turns": [3.0, 1.0, 2.0]}));
    }

    #[test]
    fn ratios_are_those_of_the_turns() {
        let mut some = figure(&[2.0, 9.0]);
        some.add(None);
        let base = figure(&[1.0, 3.0, 7.0]);
        assert_eq!(some.over(&base), [Some(2.0), Some(3.0), None].into_iter().collect());
        assert_eq!(some.over(&base).median(), Some(2.5));
    }

    #[test]
    fn checks_judge_medians() {
        let is_met = |bound| Check::new("it", figure(&[1.0, 2.0, 9.0]), bound).unwrap().is_met;
        assert!(is_met(Bound::AtMost(2.0)) && is_met(Bound::AtLeast(2.0)));
        assert!(!is_met(Bound::AtMost(1.9)) && !is_met(Bound::AtLeast(2.1)));
        assert_eq!(Check::new("it", Figure::default(), Bound::AtMost(1.0)), None);
        let checks = [Bound::AtMost(1.5), Bound::AtLeast(2.0)];
        let checks = checks.map(|bound| Check::new("it", figure(&[2.0]), bound).unwrap());
        let table = checks_table(&checks);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["it", "2.00", "-", "<=", "1.50", "MISSED"]);
        assert_eq!(lines[3], ["it", "2.00", "-", ">=", "2", "met"]);
        assert_eq!(checks_table(&[]), "");
    }
}
