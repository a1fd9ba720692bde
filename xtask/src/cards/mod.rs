//! `cargo xtask cards`: two daemons on other kernels and real drivers of NICs, in virtual machines.
//!
//! - A cell is a kernel, a NIC, its queues, CPUs, an MTU, a device upon the NIC, and a mode, and for some a
//!   harm to the wire or a load by all queues: both nodes ping each other, a load is verified byte by byte,
//!   all frames are accounted for.
//! - Kernels and a newer QEMU come from Debian's packages into a cache; none is installed.
//! - Cells of one boot share the machines. A cell that failed leaves none: the next one boots anew.
//! - An outcome is written when its cell has ended; a later run leaves out what has one.

mod archive;
mod cell;
mod image;
mod machine;
mod monitor;
mod outcomes;
mod packages;
mod report;
mod state;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use xtask::command::{output, output_of, say};
use xtask::{netns, privilege};

use crate::{cargo, setup};
use cell::{Pair, Ran};
use image::Kernel;
use machine::Qemu;
use outcomes::{Outcome, Outcomes, Seen};
use packages::Cache;
use table::{Boot, Cell};

/// The document with the report.
const DOCUMENT: &str = "docs/cards.md";

/// Cells to run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask cards
  cargo xtask cards --list --only igb
  cargo xtask cards --only 6.12 --only vlan --again")]
pub(crate) struct Options {
    /// Only cells with this part in their name; given several times, with all of them
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Run cells again that have an outcome
    #[arg(long)]
    again: bool,
    /// Show the cells and what came of them, and run none
    #[arg(long)]
    list: bool,
    /// Forget the outcomes of all cells first
    #[arg(long)]
    forget: bool,
}

/// Runs the cells that have no outcome, and writes the report.
///
/// # Errors
/// When something is missing, or a cell fails; the report is written then too.
pub(crate) fn cards(root: &Path, options: &Options) -> Result<()> {
    let all = table::cells();
    let chosen = table::only(&all, &options.only)?;
    let cache = Cache::open()?;
    let path = cache.path("outcomes.jsonl");
    if options.forget && path.exists() {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    let mut outcomes = Outcomes::open(path)?;
    if options.list {
        for name in chosen.iter().map(Cell::to_string) {
            println!("{name:<44} {}", outcomes.of(&name).map_or_else(String::new, verdict));
        }
        return Ok(());
    }
    privilege::require("cards", &privilege::NETNS_NODES)?;
    setup::ensure_machine_tools()?;
    let mut programs = programs(root)?;
    programs.push(cargo::build_example(root, "dev", "lnet-user", "request_reply")?);
    let qemu = Qemu::newer(&cache)?;
    let mut lab = Lab::open(root, cache, qemu, (&programs, true))?;
    let is_due = |cell: &&Cell| options.again || outcomes.of(&cell.to_string()).is_none();
    let due: Vec<_> = chosen.iter().filter(is_due).copied().collect();
    for (index, cell) in due.iter().enumerate() {
        say(format_args!("{} of {}: {cell}", index + 1, due.len()));
        let outcome = lab.run(*cell)?;
        say(format_args!("  {}, {} s", verdict(&outcome), outcome.seconds));
        outcomes.add(outcome)?;
        write_report(root, &all, &outcomes)?;
    }
    write_report(root, &all, &outcomes)?;
    let outcomes: Vec<_> = chosen.iter().filter_map(|cell| outcomes.of(&cell.to_string())).collect();
    let failed: Vec<_> =
        outcomes.iter().filter(|one| one.failure.is_some()).map(|one| one.cell.as_str()).collect();
    ensure!(failed.is_empty(), "{} of {} cells failed: {}", failed.len(), outcomes.len(), failed.join(", "));
    Ok(())
}

/// Runs the cell of `cargo xtask test` with programs that are built already, and gives a note.
///
/// # Errors
/// Names what is missing, or says what failed.
pub(crate) fn short(root: &Path, programs: &[PathBuf]) -> Result<String> {
    setup::ensure_machine_tools()?;
    let cache = Cache::open()?;
    let qemu = Qemu::any(&cache)?;
    let mut lab = Lab::open(root, cache, qemu, (programs, false))?;
    let outcome = lab.run(table::short())?;
    if let Some(failure) = outcome.failure {
        anyhow::bail!("{}: {failure}", outcome.cell);
    }
    state::check_native(&outcome.seen)?;
    Ok(format!("{} on Linux {}, in {} s", outcome.cell, outcome.release, outcome.seconds))
}

/// Fetches what the cell of `cargo xtask test` boots.
///
/// # Errors
/// Names what is missing, and why.
pub(crate) fn fetch() -> Result<()> {
    setup::ensure_machine_tools()?;
    let cache = Cache::open()?;
    Qemu::any(&cache)?.version()?;
    image::root_file_system(&cache, &[], false)?;
    Kernel::prepare(&cache, table::SMALL).map(drop)
}

/// The daemon and its tool as tests build them: with the same features, so that nothing is built twice.
fn programs(root: &Path) -> Result<Vec<PathBuf>> {
    cargo::build_tested(root, ["lnetd", "lnetctl"]).map(Vec::from)
}

fn verdict(outcome: &Outcome) -> String {
    let Seen { active_mode, zero_copy: (zero, all), .. } = &outcome.seen;
    let end = match (&outcome.failure, &outcome.refusal) {
        (Some(failure), _) => format!("FAILED: {}", failure.lines().next().unwrap_or_default()),
        (None, Some(_)) => "refused as is to be".to_owned(),
        (None, None) => "passed".to_owned(),
    };
    format!("{end} ({active_mode} zero copy {zero}/{all})")
}

fn write_report(root: &Path, cells: &[Cell], outcomes: &Outcomes) -> Result<()> {
    let path = root.join(DOCUMENT);
    let document = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let document = report::put(&document, &report::report(cells, outcomes)).context(DOCUMENT)?;
    fs::write(&path, document).with_context(|| path.display().to_string())
}

/// Machines that cells run in.
struct Lab {
    cache: Cache,
    qemu: Qemu,
    root_file_system: Vec<u8>,
    commit: String,
    up: Option<Up>,
}

/// The machines that are up.
struct Up {
    boot: Boot,
    release: String,
    pair: Pair,
}

impl Lab {
    /// A lab whose machines have these programs, and the tools of devices upon a NIC if cells have any.
    fn open(
        root: &Path,
        cache: Cache,
        qemu: Qemu,
        (programs, has_devices): (&[PathBuf], bool),
    ) -> Result<Self> {
        netns::remove_stale()?;
        machine::remove_stale()?;
        let root_file_system = image::root_file_system(&cache, programs, has_devices)?;
        let mut git = std::process::Command::new("git");
        let commit = output_of(git.args(["describe", "--always", "--dirty"]).current_dir(root));
        let commit = commit.map_or_else(|_| "unknown".to_owned(), |commit| commit.trim().to_owned());
        Ok(Self { cache, qemu, root_file_system, commit, up: None })
    }

    /// Runs a cell, on the machines that are up if they are of its kind.
    ///
    /// # Errors
    /// When a package or a program is missing; a cell that fails is an outcome.
    fn run(&mut self, cell: Cell) -> Result<Outcome> {
        let begun = Instant::now();
        let mut outcome = Outcome {
            cell: cell.to_string(),
            date: output("date", ["-u", "+%Y-%m-%d"])?.trim().to_owned(),
            commit: self.commit.clone(),
            qemu: self.qemu.version()?,
            ..Outcome::default()
        };
        let up = self.up.take().filter(|up| up.boot == cell.boot);
        let up = match up {
            Some(up) => Ok(up),
            None => {
                let kernel = Kernel::prepare(&self.cache, cell.boot.kernel)?;
                kernel.release.clone_into(&mut outcome.release);
                let pair = Pair::boot(cell.boot, &self.qemu, &kernel, &self.root_file_system);
                pair.map(|pair| Up { boot: cell.boot, release: kernel.release, pair })
            }
        };
        match up {
            Err(error) => outcome.failure = Some(format!("{error:#}")),
            Ok(mut up) => {
                up.release.clone_into(&mut outcome.release);
                let Ran { seen, result } = up.pair.run(cell);
                outcome.seen = seen;
                match result {
                    Ok(refusal) => outcome.refusal = refusal,
                    Err(error) => outcome.failure = Some(format!("{error:#}")),
                }
                self.up = outcome.failure.is_none().then_some(up);
            }
        }
        outcome.seconds = begun.elapsed().as_secs();
        Ok(outcome)
    }
}
