//! What the benches over a link are told, and how they tell what came of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::figure::Check;
use crate::link::Link;
use crate::machine::{Machine, process_age};
use crate::node;

/// Rounds of each measurement, and of a quick one; the subjects take turns, so that noise of the machine
/// meets all.
const TURNS: [u32; 2] = [5, 2];

/// Options of each bench: turns, and what becomes of the figures.
#[derive(Debug, Args)]
pub struct Report {
    /// Two turns instead of five, and a tenth of the rounds and of the time.
    #[arg(long)]
    pub quick: bool,
    /// Where to write the figures as a JSON file, and what else there is.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of the tables.
    #[arg(long)]
    pub json: bool,
}

/// Options of each bench over a link.
#[derive(Debug, Args)]
pub struct Options {
    /// Where.
    #[command(flatten)]
    pub link: Link,
    /// Payload bytes of each message.
    #[arg(long)]
    pub size: usize,
    /// Turns, and what becomes of the figures.
    #[command(flatten)]
    pub report: Report,
}

/// The JSON object of a bench with rows and bounds.
#[derive(Debug, Serialize)]
pub struct Document<R> {
    /// The machine and the options.
    #[serde(flatten)]
    pub setup: Setup,
    /// The rows of its table.
    pub rows: Vec<R>,
    /// Figures beside their bounds.
    pub checks: Vec<Check>,
}

/// What a measurement was made with.
#[derive(Debug, Serialize)]
pub struct Setup {
    /// Where it was made.
    pub machine: Machine,
    /// Mode of the nodes.
    pub mode: String,
    /// Largest IP packet of the link.
    pub mtu_bytes: usize,
    /// Payload bytes of a message.
    pub size_bytes: usize,
}

impl Setup {
    /// The modes of the nodes as a heading has them behind something else: nothing where no node has run that
    /// tells its mode.
    #[must_use]
    pub fn modes(&self) -> String {
        if self.mode.is_empty() { String::new() } else { format!(", mode {}", self.mode) }
    }
}

impl Options {
    /// The machine, the modes of the nodes and the sizes of this run. Modes are known once nodes have run.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let (machine, mode) = (Machine::this(), node::modes());
        Setup { machine, mode, mtu_bytes: self.link.mtu, size_bytes: self.size }
    }
}

impl Report {
    /// The time that a measurement takes: the whole, or a tenth of it if the bench is to be quick.
    #[must_use]
    pub fn time(&self, whole: Duration) -> Duration {
        if self.quick { whole / 10 } else { whole }
    }

    /// Rounds of a measurement: all, or a tenth of them if the bench is to be quick.
    #[must_use]
    pub const fn rounds(&self, all: u64) -> u64 {
        if self.quick { all / 10 } else { all }
    }

    /// Turns of a measurement.
    #[must_use]
    pub const fn turn_count(&self) -> u32 {
        TURNS[self.quick as usize]
    }

    /// Measures all subjects once a turn, and tells how long that will take.
    ///
    /// # Errors
    /// The error of a turn.
    pub fn turns(&self, mut turn: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (count, begun) = (self.turn_count(), Instant::now());
        (1..=count).try_for_each(|number| {
            let done = number - 1;
            let left_s = begun.elapsed().as_secs_f64() / f64::from(done.max(1)) * f64::from(count - done);
            let left = if done > 0 { format!(", {left_s:.0} s left") } else { String::new() };
            eprintln!("turn {number} of {count}{left}");
            turn()
        })
    }

    /// Prints the table or the JSON object, with the time that the bench has taken, and writes the latter to
    /// the file of this name, if a folder for it is given: that folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn tell(&self, file: &str, document: &impl Serialize, table: &str) -> anyhow::Result<Option<&Path>> {
        #[derive(Serialize)]
        struct Told<'a, D> {
            took_s: f64,
            quick: bool,
            #[serde(flatten)]
            document: &'a D,
        }
        let took_s = process_age().as_secs_f64();
        let json = serde_json::to_string_pretty(&Told { took_s, quick: self.quick, document })?;
        if self.json {
            println!("{json}");
        } else {
            let how = if self.quick { ", a quick run: no figures to quote" } else { "" };
            println!("{}\n\ntook {took_s:.0} s{how}", table.trim_end());
        }
        let Some(out) = self.out.as_deref() else { return Ok(None) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        save(&out.join(file), &json)?;
        Ok(Some(out))
    }
}

/// Writes a file, and says so.
///
/// # Errors
/// When it cannot be written.
pub fn save(path: &Path, content: &str) -> anyhow::Result<()> {
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Machine, Setup};

    #[test]
    fn a_heading_has_no_modes_where_no_node_tells_one() {
        let of = |mode: &str| {
            let mode = mode.to_owned();
            Setup { machine: Machine::this(), mode, mtu_bytes: 1500, size_bytes: 64 }.modes()
        };
        assert_eq!(of(""), "");
        assert_eq!(of("native and socket"), ", mode native and socket");
    }
}
