//! Drop rules.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document::{self, Detail};
use lnet_control::resolve;
use lnet_model::fault::{DropRule, Filter, HealthError, MessageTypes};
use lnet_model::request::Change;
use lnet_wire::Nid;

use super::Result;
use crate::arguments::Offered;
use crate::daemon::Daemon;
use crate::failure::Task;

/// Rules that this node does not have.
const HOLDING: &str = "rules that hold messages up are";

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Rules by which messages are dropped
    #[command(subcommand, arg_required_else_help = true)]
    Drop(DropCommand),
    /// Rules by which messages are held up
    #[command(hide = true)]
    Delay {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DropCommand {
    /// Add a rule
    #[command(after_help = "Examples:
  lnetctl fault drop add --source '*@xdp' --dest 10.0.0.2@xdp --rate 10
  lnetctl fault drop add -s '*' -d '*' --interval 1 --random --message GET")]
    Add(DropAddArgs),
    /// Delete rules
    #[command(after_help = "Examples:
  lnetctl fault drop del --source '*@xdp' --dest 10.0.0.2@xdp
  lnetctl fault drop del --all")]
    Del {
        /// Source of the rules
        #[arg(long, short, value_name = "NID")]
        source: Option<String>,
        /// Destination of the rules
        #[arg(long, short, value_name = "NID")]
        dest: Option<String>,
        /// All rules
        #[arg(long, short)]
        all: bool,
    },
    /// Set the counters of all rules to zero
    Reset,
    /// Show the rules and what they did
    Show,
}

#[derive(Debug, Args)]
pub(crate) struct DropAddArgs {
    /// Source of the messages: a NID, *@net or *
    #[arg(long, short, value_name = "NID")]
    pub(crate) source: Option<String>,
    /// Destination of the messages: a NID, *@net or *
    #[arg(long, short, value_name = "NID")]
    pub(crate) dest: Option<String>,
    /// Drop one message in so many
    #[arg(long, short, value_name = "COUNT")]
    pub(crate) rate: Option<String>,
    /// Drop one message in so many seconds
    #[arg(long, short, value_name = "SECONDS")]
    pub(crate) interval: Option<String>,
    /// Message type: PUT, ACK, GET or REPLY; may be repeated
    #[arg(long, short, value_name = "TYPE", hide_possible_values = true,
          value_parser = Offered::of(&MessageTypes::NAMED.map(|(name, _)| name)))]
    pub(crate) message: Vec<String>,
    /// Portal, 0 to 63; may be repeated
    #[arg(long, short)]
    pub(crate) portal: Vec<String>,
    /// How the send is to fail, such as local_error; may be repeated
    #[arg(long, short = 'e', value_name = "ERROR", hide_possible_values = true,
          value_parser = Offered::of(HealthError::NAMES))]
    pub(crate) health_error: Vec<String>,
    /// Drop messages by chance; goes with an interval
    #[arg(long, short = 'n')]
    pub(crate) random: bool,
    /// Drop every message that matches
    #[arg(long, short = 'x')]
    pub(crate) drop_all: bool,
    /// Local NI that the messages arrive by
    #[arg(long, short = 'o', value_name = "NID")]
    pub(crate) local_nid: Option<String>,
    /// The kind of rule is the command's
    #[arg(long, short = 't', hide = true)]
    pub(crate) rule_type: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: FaultCommand) -> Result<()> {
    match command {
        FaultCommand::Drop(DropCommand::Add(args)) => add(daemon, &args),
        FaultCommand::Drop(DropCommand::Del { source, dest, all }) => {
            delete(daemon, source.as_deref(), dest.as_deref(), all)
        }
        FaultCommand::Drop(DropCommand::Reset) => {
            daemon.apply(Task::new("reset", "fault"), vec![Change::ResetDropRules])
        }
        FaultCommand::Drop(DropCommand::Show) => {
            daemon.show("fault", Client::drop_rules, |rules| document::drop_rules(rules, Detail::Level(0)))
        }
        FaultCommand::Delay { words } => delay(daemon, &words),
    }
}

/// Rules that hold messages up: there are none, and none can be made.
fn delay(daemon: &mut Daemon<'_>, words: &[String]) -> Result<()> {
    let unsupported = |operation| Err(Task::new(operation, "fault").unsupported(HOLDING).failed());
    match words.first().map(String::as_str) {
        Some("show") => daemon.client(Task::new("show", "fault")).map(drop),
        Some("del") => unsupported("del"),
        Some("reset") => unsupported("reset"),
        _ => unsupported("add"),
    }
}

fn add(daemon: &mut Daemon<'_>, args: &DropAddArgs) -> Result<()> {
    let task = Task::new("add", "fault");
    let rule = rule(task, args)?;
    daemon.apply(task, vec![Change::AddDropRule(rule)])
}

fn rule(task: Task, args: &DropAddArgs) -> Result<DropRule> {
    let (Some(source), Some(destination)) = (&args.source, &args.dest) else {
        return Err(task.invalid("a rule has both --source and --dest").failed());
    };
    let nid = |text: &String| resolve::fault_nid(text).map_err(task.pattern());
    let count = |name, text: &Option<String>| task.optional(name, text.as_ref(), 0..=u32::MAX.into());
    let mut messages = MessageTypes::NONE;
    for name in &args.message {
        let found = MessageTypes::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((_, types)) = found else {
            let message = format!("unknown message type {name:?}: PUT, ACK, GET or REPLY is expected");
            return Err(task.invalid(message).failed());
        };
        messages = messages | *types;
    }
    let mut portals = 0_u64;
    for portal in &args.portal {
        portals |= 1 << task.number::<u8>("portal", portal, 0..=63)?;
    }
    let mut health_errors = Vec::new();
    for name in &args.health_error {
        let error = name.replace('-', "_").parse::<HealthError>();
        let error = error.map_err(|error| task.invalid(format!("--health_error {error}")).failed())?;
        if !health_errors.contains(&error) {
            health_errors.push(error);
        }
    }
    let filter = Filter {
        source: nid(source)?,
        destination: nid(destination)?,
        local_nid: args.local_nid.as_ref().map(nid).transpose()?.unwrap_or(Nid::ANY),
        portals,
        messages: if messages == MessageTypes::NONE { MessageTypes::ALL } else { messages },
    };
    let rule = DropRule {
        filter,
        rate: count("rate", &args.rate)?.unwrap_or_default(),
        interval_s: count("interval", &args.interval)?.unwrap_or_default(),
        random: args.random,
        drop_all: args.drop_all,
        health_errors,
    };
    rule.check().map_err(|refusal| task.pattern()(refusal).failed())?;
    Ok(rule)
}

fn delete(daemon: &mut Daemon<'_>, source: Option<&str>, destination: Option<&str>, all: bool) -> Result<()> {
    let task = Task::new("del", "fault");
    let change = match (source, destination, all) {
        (None, None, true) => Change::DeleteAllDropRules,
        (_, _, true) => return Err(task.invalid("--all goes not with --source or --dest").failed()),
        (Some(source), Some(destination), false) => Change::DeleteDropRules {
            source: resolve::fault_nid(source).map_err(task.pattern())?,
            destination: resolve::fault_nid(destination).map_err(task.pattern())?,
        },
        _ => return Err(task.invalid("both --source and --dest are expected, or --all").failed()),
    };
    daemon.apply(task, vec![change])
}
