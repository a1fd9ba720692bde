//! Results of cells: one line of JSON a cell, written when it has ended, so that a run goes on where
//! another was stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Result of a cell.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Outcome {
    /// The cell's name.
    pub(super) cell: String,
    /// The day, in UTC.
    pub(super) date: String,
    /// The commit of the programs.
    pub(super) commit: String,
    /// Release of the kernel.
    pub(super) release: String,
    /// Version of QEMU.
    pub(super) qemu: String,
    /// How long it took in seconds.
    pub(super) seconds: u64,
    /// First failure; `None` where nothing did.
    pub(super) failure: Option<String>,
    /// How the node refused what the kernel does not offer; `None` where it works.
    pub(super) refusal: Option<String>,
    /// Facts of the NI: the mode that is in force, and what else is told.
    pub(super) seen: Seen,
}

/// Facts at the end of a cell.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The mode in force; empty for tcp.
    pub(super) active_mode: String,
    /// Sockets of rings that bound with zero copy, and all of them, of both machines.
    pub(super) zero_copy: (u32, u32),
    /// The driver and its receive queues.
    pub(super) driver: String,
    /// Receive queues of the NIC while the NI was there.
    pub(super) queues: u32,
    /// Other lines, of `net show` and of the log, each once.
    pub(super) said: Vec<String>,
}

/// The outcomes of all runs, by the cell.
pub(super) struct Outcomes {
    path: PathBuf,
    by_cell: BTreeMap<String, Outcome>,
}

impl Outcomes {
    /// Reads the outcomes of earlier runs. A line that is none is of a run that was stopped in it.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| path.display().to_string())?,
        };
        let outcomes = text.lines().filter_map(|line| serde_json::from_str::<Outcome>(line).ok());
        let by_cell = outcomes.map(|outcome| (outcome.cell.clone(), outcome)).collect();
        Ok(Self { path, by_cell })
    }

    /// The last outcome of a cell.
    pub(super) fn of(&self, cell: &str) -> Option<&Outcome> {
        self.by_cell.get(cell)
    }

    /// Writes an outcome behind the others.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn add(&mut self, outcome: Outcome) -> Result<()> {
        // An end of line at the head too: a run may have been stopped in the line before.
        let line = format!("\n{}\n", serde_json::to_string(&outcome)?);
        let append =
            || fs::OpenOptions::new().create(true).append(true).open(&self.path)?.write_all(line.as_bytes());
        append().with_context(|| self.path.display().to_string())?;
        self.by_cell.insert(outcome.cell.clone(), outcome);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_outlive_their_run_and_the_last_one_counts() {
        let path = std::env::temp_dir().join(format!("lnet-cards-outcomes-{}", std::process::id()));
        let outcome = |cell: &str, failure: Option<&str>| Outcome {
            cell: cell.to_owned(),
            failure: failure.map(str::to_owned),
            ..Outcome::default()
        };
        let mut outcomes = Outcomes::open(path.clone()).unwrap();
        outcomes.add(outcome("a", Some("no answer"))).unwrap();
        outcomes.add(outcome("b", None)).unwrap();
        outcomes.add(outcome("a", None)).unwrap();
        // A run was stopped while it wrote.
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"cell\":\"c").unwrap();
        Outcomes::open(path.clone()).unwrap().add(outcome("d", None)).unwrap();
        let read = Outcomes::open(path.clone()).unwrap();
        assert_eq!(read.of("d"), Some(&outcome("d", None)));
        assert_eq!(read.of("a"), Some(&outcome("a", None)));
        assert_eq!(read.of("b"), Some(&outcome("b", None)));
        assert_eq!(read.of("c"), None);
        fs::remove_file(path).unwrap();
    }
}
