//! Selection policies in the older form, that of the Multi-Rail design.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_model::pattern::UdspPattern;
use lnet_model::request::Change;
use lnet_model::udsp::{Selection, SelectionKind};

use super::Result;
use crate::daemon::Daemon;
use crate::failure::Task;

#[derive(Debug, Subcommand)]
pub(crate) enum SelectionCommand {
    /// Priorities of local nets
    #[command(subcommand, arg_required_else_help = true)]
    Net(KindCommand<OfNets>),
    /// Priorities of NIDs, local ones and those of peers
    #[command(subcommand, arg_required_else_help = true)]
    Nid(KindCommand<OfNids>),
    /// Local NIDs that NIDs of peers prefer
    #[command(subcommand, arg_required_else_help = true)]
    Peer(KindCommand<OfPeers>),
}

/// What is done with policies of a kind, which has these patterns.
#[derive(Debug, Subcommand)]
pub(crate) enum KindCommand<P: Args> {
    /// Add a policy
    Add {
        #[command(flatten)]
        patterns: P,
        /// Priority, 0 is the best
        #[arg(long, short, allow_hyphen_values = true)]
        priority: Option<String>,
    },
    /// Delete the policy with the same patterns, or that of a number, or check that both are one
    Del(Named<P>),
    /// Show the policies, all or those with the same patterns
    Show(Named<P>),
}

/// Which policies are meant.
#[derive(Debug, Args)]
pub(crate) struct Named<P: Args> {
    #[command(flatten)]
    patterns: P,
    /// Number of a policy, as `show` tells it
    #[arg(long, short, value_name = "NUMBER")]
    id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OfNets {
    /// Nets, such as tcp, tcp* or tcp[1-3]
    #[arg(long, short, value_name = "PATTERN")]
    net: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OfNids {
    /// NIDs, such as 10.0.[1-9].*@tcp
    #[arg(long, value_name = "PATTERN")]
    nid: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OfPeers {
    /// Local NIDs
    #[arg(long, short, value_name = "PATTERN")]
    local: Option<String>,
    /// NIDs of peers
    #[arg(long, short, value_name = "PATTERN")]
    remote: Option<String>,
}

/// The options that are the patterns of a kind.
pub(crate) trait Patterns: Args {
    const KIND: SelectionKind;

    /// The patterns that are given, in the order of the kind's keys.
    fn given(&self) -> Vec<Option<&String>>;

    /// The meaning of the patterns; none where none is given.
    fn parsed(&self, task: Task) -> Result<Vec<UdspPattern>> {
        let (keys, given) = (Self::KIND.keys(), self.given());
        if given.contains(&None) && given.iter().any(Option::is_some) {
            return Err(task.invalid("missing mandatory parameter: --local and --remote go together"));
        }
        let parsed = keys.iter().zip(given).map(|(key, text)| task.udsp_pattern(key, text).transpose());
        parsed.flatten().collect()
    }
}

impl Patterns for OfNets {
    const KIND: SelectionKind = SelectionKind::Net;

    fn given(&self) -> Vec<Option<&String>> {
        vec![self.net.as_ref()]
    }
}

impl Patterns for OfNids {
    const KIND: SelectionKind = SelectionKind::Nid;

    fn given(&self) -> Vec<Option<&String>> {
        vec![self.nid.as_ref()]
    }
}

impl Patterns for OfPeers {
    const KIND: SelectionKind = SelectionKind::Peer;

    fn given(&self) -> Vec<Option<&String>> {
        vec![self.local.as_ref(), self.remote.as_ref()]
    }
}

impl<P: Patterns> Named<P> {
    fn parsed(&self, task: Task) -> Result<(Vec<UdspPattern>, Option<u32>)> {
        let id = task.optional("id", self.id.as_ref(), 1..=u32::MAX.into())?;
        Ok((self.patterns.parsed(task)?, id))
    }
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: SelectionCommand) -> Result<()> {
    match command {
        SelectionCommand::Net(command) => run_of(daemon, &command),
        SelectionCommand::Nid(command) => run_of(daemon, &command),
        SelectionCommand::Peer(command) => run_of(daemon, &command),
    }
}

fn run_of<P: Patterns>(daemon: &mut Daemon<'_>, command: &KindCommand<P>) -> Result<()> {
    match command {
        KindCommand::Add { patterns, priority } => add(daemon, patterns, priority.as_ref()),
        KindCommand::Del(named) => delete(daemon, named),
        KindCommand::Show(named) => show(daemon, named),
    }
}

fn add<P: Patterns>(daemon: &mut Daemon<'_>, patterns: &P, priority: Option<&String>) -> Result<()> {
    let task = Task::new("add", "selection");
    let priority = task.optional("priority", priority, 0..=u32::MAX.into())?;
    let patterns = patterns.parsed(task)?;
    if patterns.is_empty() || priority.is_none() && P::KIND != SelectionKind::Peer {
        let expected = "the patterns and --priority are expected";
        return Err(task.invalid(format!("missing mandatory parameters: {expected}")));
    }
    let selection = Selection::new(P::KIND, patterns, priority).map_err(task.pattern())?;
    daemon.apply(task, vec![Change::AddSelection(selection)])
}

fn delete<P: Patterns>(daemon: &mut Daemon<'_>, named: &Named<P>) -> Result<()> {
    let task = Task::new("del", "selection");
    let (patterns, id) = named.parsed(task)?;
    if patterns.is_empty() {
        let Some(id) = id else {
            return Err(task.invalid("missing mandatory parameters: the patterns or --id are expected"));
        };
        let known = Selection::of(&daemon.ask(task, Client::udsp)?);
        let other = known.iter().find(|known| known.id() == Some(id) && known.kind() != P::KIND);
        if let Some(other) = other {
            return Err(task.invalid(format!("--id: the policy {id} is one of selection {}", other.kind())));
        }
    }
    let like = if patterns.is_empty() {
        None
    } else {
        Some(Selection::new(P::KIND, patterns, None).map_err(task.pattern())?)
    };
    daemon.apply(task, vec![Change::DeleteSelection { id, like }])
}

fn show<P: Patterns>(daemon: &mut Daemon<'_>, named: &Named<P>) -> Result<()> {
    let task = Task::new("show", "selection");
    let (patterns, id) = named.parsed(task)?;
    let rules = daemon.ask(task, Client::udsp)?;
    let is_meant = |selection: &Selection| {
        let has = selection.patterns().map(|(_, pattern)| pattern);
        let is_named = patterns.is_empty() || has.eq(&patterns);
        selection.kind() == P::KIND && is_named && (id.is_none() || id == selection.id())
    };
    let shown: Vec<_> = Selection::of(&rules).into_iter().filter(is_meant).collect();
    daemon.print(&document::selections(&shown));
    Ok(())
}
