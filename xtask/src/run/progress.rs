//! How far a load is: a bar on a terminal, elsewhere a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use xtask::command::say;

/// How often a line is said.
const INTERVAL: Duration = Duration::from_secs(5);
const TEMPLATE: &str = "{wide_bar} {pos} of {len} messages, {per_sec}, {eta} to go";

/// Shows how far a load is.
pub(super) enum Progress {
    Bar(ProgressBar),
    Lines { total: u64, last: Instant },
}

impl Progress {
    /// The progress of `total` messages.
    pub(super) fn new(total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { total, last: Instant::now() };
        }
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::Bar(ProgressBar::new(total).with_style(style))
    }

    /// Takes a line of `lnetctl load wait --progress`; whether it is one.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let Some(done) = done(line) else { return false };
        match self {
            Self::Bar(bar) => bar.set_position(done),
            Self::Lines { total, last } if last.elapsed() >= INTERVAL => {
                *last = Instant::now();
                say(format_args!("{done} of {total} messages"));
            }
            Self::Lines { .. } => {}
        }
        true
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// The messages that such a line counts.
fn done(line: &str) -> Option<u64> {
    line.split_once(" of ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::done;

    #[test]
    fn lines_of_progress_are_read() {
        assert_eq!(done("17 of 100000 messages"), Some(17));
        assert_eq!(done("17 messages"), None);
        assert_eq!(done("some of them"), None);
    }
}
