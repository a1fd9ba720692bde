//! What happened last in a run, as lines. Off, it costs nothing: a run that fails is repeated with it.

use std::collections::VecDeque;

/// Where the lines of a run go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracing {
    /// Nowhere.
    Off,
    /// The last lines are kept, so many of them.
    Last(usize),
    /// Prints to standard output.
    Print,
}

pub(super) struct Trace {
    tracing: Tracing,
    pub(super) now: u64,
    lines: VecDeque<String>,
}

impl Trace {
    pub(super) const fn new(tracing: Tracing) -> Self {
        Self { tracing, now: 0, lines: VecDeque::new() }
    }

    pub(super) fn say(&mut self, line: impl FnOnce() -> String) {
        match self.tracing {
            Tracing::Off => {}
            Tracing::Print => println!("{:>12} {}", self.now, line()),
            Tracing::Last(count) => {
                if self.lines.len() == count {
                    self.lines.pop_front();
                }
                self.lines.push_back(format!("{:>12} {}", self.now, line()));
            }
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
