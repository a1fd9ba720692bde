//! Selection policies in the older form, that of the Multi-Rail design.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_control::pattern::UdspPattern;
use lnet_control::records::{Selection, SelectionKind};
use lnet_control::request::Change;

use super::Result;
use crate::failure::Task;
use crate::session::Daemon;

#[derive(Debug, Subcommand)]
pub(crate) enum SelectionCommand {
    /// Priorities of local nets
    #[command(subcommand, arg_required_else_help = true)]
    Net(KindCommand),
    /// Priorities of NIDs, local ones and those of peers
    #[command(subcommand, arg_required_else_help = true)]
    Nid(KindCommand),
    /// Local NIDs that NIDs of peers prefer
    #[command(subcommand, arg_required_else_help = true)]
    Peer(KindCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum KindCommand {
    /// Add a policy
    Add(Patterns),
    /// Delete the policy with the same patterns, or that of a number, or check that both are one
    Del(Patterns),
    /// Show the policies, all or those with the same patterns
    Show(Patterns),
}

#[derive(Debug, Args)]
pub(crate) struct Patterns {
    /// Nets, such as tcp, tcp* or tcp[1-3]; of `selection net`
    #[arg(long, short)]
    net: Option<String>,
    /// NIDs, such as 10.0.[1-9].*@tcp; of `selection nid`
    #[arg(long)]
    nid: Option<String>,
    /// Local NIDs; of `selection peer`
    #[arg(long, short, value_name = "PATTERN")]
    local: Option<String>,
    /// NIDs of peers; of `selection peer`
    #[arg(long, short, value_name = "PATTERN")]
    remote: Option<String>,
    /// Priority, 0 is the best
    #[arg(long, short, allow_hyphen_values = true)]
    priority: Option<String>,
    /// Number of a policy, as `show` tells it; of `del` and `show`
    #[arg(long, short, value_name = "NUMBER")]
    id: Option<String>,
}

impl Patterns {
    /// The patterns of a kind in their order; none where none is given.
    fn of(&self, task: Task, kind: SelectionKind) -> Result<Vec<UdspPattern>> {
        let all = [("net", &self.net), ("nid", &self.nid), ("local", &self.local), ("remote", &self.remote)];
        let expected: &[&str] = match kind {
            SelectionKind::Net => &["net"],
            SelectionKind::Nid => &["nid"],
            SelectionKind::Peer => &["local", "remote"],
        };
        let given: Vec<_> = all.into_iter().filter(|(_, text)| text.is_some()).collect();
        if let Some((name, _)) = given.iter().find(|(name, _)| !expected.contains(name)) {
            return Err(task.invalid(format!("--{name} is not of selection {kind}")));
        }
        if !given.is_empty() && given.len() < expected.len() {
            return Err(task.invalid("missing mandatory parameter: --local and --remote go together"));
        }
        let parse = |(name, text): (&str, &Option<String>)| {
            let parsed = text.as_deref().unwrap_or_default().parse::<UdspPattern>();
            parsed.map_err(|error| {
                task.error(error.errno, format!("failed to parse {name} parameter: {error}"))
            })
        };
        given.into_iter().map(parse).collect()
    }
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: SelectionCommand) -> Result<()> {
    let (kind, command) = match command {
        SelectionCommand::Net(command) => (SelectionKind::Net, command),
        SelectionCommand::Nid(command) => (SelectionKind::Nid, command),
        SelectionCommand::Peer(command) => (SelectionKind::Peer, command),
    };
    let (operation, patterns) = match &command {
        KindCommand::Add(patterns) => ("add", patterns),
        KindCommand::Del(patterns) => ("del", patterns),
        KindCommand::Show(patterns) => ("show", patterns),
    };
    let task = Task::new(operation, "selection");
    let id: Option<u32> = task.optional("id", patterns.id.as_ref(), 1..=u32::MAX.into())?;
    let priority = task.optional("priority", patterns.priority.as_ref(), 0..=u32::MAX.into())?;
    let named = patterns.of(task, kind)?;
    if let KindCommand::Show(_) = command {
        let rules = daemon.ask(task, Client::udsp)?;
        let is_meant = |selection: &Selection| {
            let has = selection.patterns().map(|(_, pattern)| pattern);
            let is_named = named.is_empty() || has.eq(&named);
            selection.kind() == kind && is_named && (id.is_none() || id == selection.id())
        };
        let shown: Vec<_> = Selection::of(&rules).into_iter().filter(is_meant).collect();
        daemon.print(&document::selections(&shown));
        return Ok(());
    }
    let adds = matches!(command, KindCommand::Add(_));
    if adds && id.is_some() {
        return Err(task.invalid("--id: a policy gets its number from the node"));
    }
    let is_missing = named.is_empty() && (adds || id.is_none());
    if is_missing || adds && priority.is_none() && kind != SelectionKind::Peer {
        let expected = if adds { "the patterns and --priority are" } else { "the patterns or --id are" };
        return Err(task.invalid(format!("missing mandatory parameters: {expected} expected")));
    }
    if let (false, true, Some(id)) = (adds, named.is_empty(), id) {
        let known = Selection::of(&daemon.ask(task, Client::udsp)?);
        let other = known.iter().find(|known| known.id() == Some(id) && known.kind() != kind);
        if let Some(other) = other {
            return Err(task.invalid(format!("--id: the policy {id} is one of selection {}", other.kind())));
        }
    }
    let selection = || Selection::new(kind, named.clone(), priority).map_err(task.pattern());
    let change = if adds {
        Change::AddSelection(selection()?)
    } else {
        let like = if named.is_empty() { None } else { Some(selection()?) };
        Change::DeleteSelection { id, like }
    };
    daemon.apply(task, vec![change])
}
