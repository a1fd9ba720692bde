//! Selection policies.

use clap::{Args, Subcommand};
use lnet_control::client::{Client, ClientError};
use lnet_control::document;
use lnet_model::Errno;
use lnet_model::request::{Change, ChangeSet};
use lnet_model::udsp::UdspRule;

use super::Result;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task};

#[derive(Debug, Subcommand)]
pub(crate) enum UdspCommand {
    /// Add a selection policy, or change the priority of the one with the same patterns
    #[command(after_help = "Examples:
  lnetctl udsp add --src tcp1 --priority 0
  lnetctl udsp add --dst 10.[77-78].0.[1-20]@tcp --priority 2 --idx 0
  lnetctl udsp add --src 10.78.0.11@tcp --dst tcp*")]
    Add(Box<AddArgs>),
    /// Delete a selection policy, or all
    #[command(after_help = "Examples:\n  lnetctl udsp del --idx 0\n  lnetctl udsp del --all")]
    Del {
        /// Its index; -1 means all
        #[arg(long, short, allow_hyphen_values = true, value_name = "INDEX")]
        idx: Option<String>,
        /// All
        #[arg(long, short)]
        all: bool,
    },
    /// Show the selection policies, the strongest one first
    Show {
        /// Only the one of this index; -1 means all
        #[arg(long, short, allow_hyphen_values = true, value_name = "INDEX")]
        idx: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Local nets, such as tcp or tcp[1-3], or NIDs, such as 10.0.[1-9].*@tcp
    #[arg(long, short, value_name = "PATTERN")]
    src: Option<String>,
    /// Nets or NIDs of peers; with --src local NIDs that they prefer
    #[arg(long, short, value_name = "PATTERN")]
    dst: Option<String>,
    /// Gateways by which messages to peers of --dst go before others, by their primary NIDs
    #[arg(long, short, value_name = "PATTERN")]
    rte: Option<String>,
    /// Priority, 0 is the best; of --src or --dst alone [default: 0]
    #[arg(long, short, allow_hyphen_values = true)]
    priority: Option<String>,
    /// Index of the policy; the lower one wins [default: behind the others]
    #[arg(long, short, allow_hyphen_values = true, value_name = "INDEX")]
    idx: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: UdspCommand) -> Result<()> {
    match command {
        UdspCommand::Add(args) => add(daemon, &args),
        UdspCommand::Del { idx, all } => delete(daemon, idx.as_ref(), all),
        UdspCommand::Show { idx } => {
            let index = index(Task::new("show", "udsp"), idx.as_ref(), -1)?;
            daemon.show("udsp", Client::udsp, |rules| document::udsp(rules, index))
        }
    }
}

/// An index, if one is given that is not -1.
fn index(task: Task, text: Option<&String>, least: i64) -> Result<Option<u32>> {
    let index: Option<i64> = task.optional("idx", text, least..=u32::MAX.into())?;
    Ok(index.and_then(|index| u32::try_from(index).ok()))
}

fn add(daemon: &mut Daemon<'_>, args: &AddArgs) -> Result<()> {
    let task = Task::new("add", "udsp");
    let source = task.udsp_pattern("src", args.src.as_ref())?;
    let destination = task.udsp_pattern("dst", args.dst.as_ref())?;
    let router = task.udsp_pattern("rte", args.rte.as_ref())?;
    let priority = task.optional("priority", args.priority.as_ref(), 0..=u32::MAX.into())?;
    let index = index(task, args.idx.as_ref(), 0)?;
    let rule = UdspRule::new(source, destination, router, priority).checked().map_err(task.pattern())?;
    let batch = ChangeSet { changes: vec![Change::AddUdsp { index, rule }], ..ChangeSet::default() };
    match daemon.client(task)?.apply(batch) {
        Err(ClientError::Refused(refusal)) if refusal.errno == Errno::ALREADY => {
            Err(CommandError::already(task, "cannot add udsp: Operation already in progress"))
        }
        applied => applied.map(drop).map_err(task.refused()),
    }
}

fn delete(daemon: &mut Daemon<'_>, idx: Option<&String>, all: bool) -> Result<()> {
    let task = Task::new("del", "udsp");
    match (idx, all) {
        (Some(_), true) => return Err(task.invalid("--idx goes not with --all")),
        (None, false) => return Err(task.invalid("missing mandatory parameter: --idx, or --all")),
        _ => {}
    }
    let index = index(task, idx, -1)?;
    daemon.apply(task, vec![Change::DeleteUdsp { index }])
}
