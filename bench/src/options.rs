//! What the benches over a link are told, and how they tell what came of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::link::Link;
use crate::machine::Machine;
use crate::node;

/// Rounds of each measurement; the subjects take turns, so that noise of the machine meets all.
pub const TURNS: u32 = 5;

/// What each of them takes.
#[derive(Debug, Args)]
pub struct Options {
    /// Where.
    #[command(flatten)]
    pub link: Link,
    /// Payload bytes of each message.
    #[arg(long)]
    pub size: usize,
    /// A tenth of the rounds and of the time.
    #[arg(long)]
    pub quick: bool,
    /// Where to write the figures as a JSON file, and what else there is.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of the tables.
    #[arg(long)]
    pub json: bool,
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
    /// The time that a measurement takes: the whole, or a tenth of it if the bench is to be quick.
    #[must_use]
    pub fn time(&self, whole: Duration) -> Duration {
        if self.quick { whole / 10 } else { whole }
    }

    /// Measures all subjects once a turn.
    ///
    /// # Errors
    /// The error of a turn.
    pub fn turns(&self, mut turn: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
        (1..=TURNS).try_for_each(|number| {
            eprintln!("turn {number} of {TURNS}");
            turn()
        })
    }

    /// What it was measured with, once nodes have run.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let (machine, mode) = (Machine::this(), node::modes());
        Setup { machine, mode, mtu_bytes: self.link.mtu, size_bytes: self.size }
    }

    /// Prints the table or the JSON object, and writes the latter to the file of this name, if a folder for
    /// it is given: that folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn tell(&self, file: &str, document: &impl Serialize, table: &str) -> anyhow::Result<Option<&Path>> {
        let json = serde_json::to_string_pretty(document)?;
        println!("{}", if self.json { &json } else { table });
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
