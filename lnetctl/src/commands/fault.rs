//! Fault rules.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document::{self, Detail};
use lnet_control::resolve;
use lnet_model::fault::{DelaySpec, DropRule, Filter, HealthError, MessageTypes};
use lnet_model::request::Change;
use lnet_wire::Nid;

use super::Result;
use crate::arguments::Offered;
use crate::daemon::Daemon;
use crate::failure::Task;

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Rules by which messages are dropped
    #[command(subcommand, arg_required_else_help = true)]
    Drop(DropCommand),
    /// Rules by which messages are held up
    #[command(subcommand, arg_required_else_help = true)]
    Delay(DelayCommand),
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
    Del(RuleEnds),
    /// Set the counters of all rules to zero
    Reset,
    /// Show the rules and what they did
    Show,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DelayCommand {
    /// Add a rule
    #[command(after_help = "Examples:
  lnetctl fault delay add --source '*@xdp' --dest 10.0.0.2@xdp --rate 1 --latency 2
  lnetctl fault delay add -s '*' -d '*' --interval 5 --latency 1 --message PUT --portal 50")]
    Add(DelayAddArgs),
    /// Delete rules; what they hold up goes on
    #[command(after_help = "Examples:
  lnetctl fault delay del --source '*@xdp' --dest 10.0.0.2@xdp
  lnetctl fault delay del --all")]
    Del(RuleEnds),
    /// Set the counters of all rules to zero
    Reset,
    /// Show the rules and what they did
    Show,
}

/// Which rules are deleted.
#[derive(Debug, Args)]
pub(crate) struct RuleEnds {
    /// Source of the rules
    #[arg(long, short, value_name = "NID")]
    pub(crate) source: Option<String>,
    /// Destination of the rules
    #[arg(long, short, value_name = "NID")]
    pub(crate) dest: Option<String>,
    /// All rules
    #[arg(long, short)]
    pub(crate) all: bool,
}

/// Options that all rules have.
#[derive(Debug, Args)]
pub(crate) struct RuleWords {
    /// Source of the messages: a NID, *@net or *
    #[arg(long, short, value_name = "NID")]
    pub(crate) source: Option<String>,
    /// Destination of the messages: a NID, *@net or *
    #[arg(long, short, value_name = "NID")]
    pub(crate) dest: Option<String>,
    /// Hit one message in so many
    #[arg(long, short, value_name = "COUNT")]
    pub(crate) rate: Option<String>,
    /// Hit one message in so many seconds
    #[arg(long, short, value_name = "SECONDS")]
    pub(crate) interval: Option<String>,
    /// Message type: PUT, ACK, GET or REPLY; may be repeated
    #[arg(long, short, value_name = "TYPE", hide_possible_values = true,
          value_parser = Offered::of(&MessageTypes::NAMED.map(|(name, _)| name)))]
    pub(crate) message: Vec<String>,
    /// Portal, 0 to 63; may be repeated
    #[arg(long, short)]
    pub(crate) portal: Vec<String>,
    /// Local NI that the messages arrive by
    #[arg(long, short = 'o', value_name = "NID")]
    pub(crate) local_nid: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DropAddArgs {
    #[command(flatten)]
    pub(crate) rule: RuleWords,
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
    /// The kind of rule is the command's
    #[arg(long, short = 't', hide = true)]
    pub(crate) rule_type: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DelayAddArgs {
    #[command(flatten)]
    pub(crate) rule: RuleWords,
    /// Seconds that a message is held up
    #[arg(long, short, value_name = "SECONDS")]
    pub(crate) latency: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: FaultCommand) -> Result<()> {
    let [add, del, reset] = ["add", "del", "reset"].map(|operation| Task::new(operation, "fault"));
    match command {
        FaultCommand::Drop(DropCommand::Show) => {
            daemon.show("fault", Client::drop_rules, |rules| document::drop_rules(rules, Detail::Level(0)))
        }
        FaultCommand::Delay(DelayCommand::Show) => {
            daemon.show("fault", Client::delay_rules, |rules| document::delay_rules(rules, Detail::Level(0)))
        }
        FaultCommand::Drop(DropCommand::Add(args)) => daemon.apply(add, vec![drop_rule(add, &args)?]),
        FaultCommand::Delay(DelayCommand::Add(args)) => daemon.apply(add, vec![delay_rule(add, &args)?]),
        FaultCommand::Drop(DropCommand::Del(ends)) => daemon.apply(del, vec![drop_deletion(del, &ends)?]),
        FaultCommand::Delay(DelayCommand::Del(ends)) => daemon.apply(del, vec![delay_deletion(del, &ends)?]),
        FaultCommand::Drop(DropCommand::Reset) => daemon.apply(reset, vec![Change::ResetDropRules]),
        FaultCommand::Delay(DelayCommand::Reset) => daemon.apply(reset, vec![Change::ResetDelayRules]),
    }
}

/// The change that makes a drop rule.
pub(crate) fn drop_rule(task: Task, args: &DropAddArgs) -> Result<Change> {
    let (filter, rate, interval_s) = rule(task, &args.rule)?;
    let mut health_errors = Vec::new();
    for name in &args.health_error {
        let error = name.replace('-', "_").parse::<HealthError>();
        let error = error.map_err(|error| task.invalid(format!("--health_error {error}")).failed())?;
        if !health_errors.contains(&error) {
            health_errors.push(error);
        }
    }
    let (random, drop_all) = (args.random, args.drop_all);
    let rule = DropRule { filter, rate, interval_s, random, drop_all, health_errors };
    rule.check().map_err(|refusal| task.pattern()(refusal).failed())?;
    Ok(Change::AddDropRule(rule))
}

/// The change that makes a delay rule.
pub(crate) fn delay_rule(task: Task, args: &DelayAddArgs) -> Result<Change> {
    let (filter, rate, interval_s) = rule(task, &args.rule)?;
    let latency_s = task.optional("latency", args.latency.as_ref(), 0..=u32::MAX.into())?;
    let rule = DelaySpec { filter, rate, interval_s, latency_s: latency_s.unwrap_or_default() };
    rule.check().map_err(|refusal| task.pattern()(refusal).failed())?;
    Ok(Change::AddDelayRule(rule))
}

/// Filter, rate and interval of a rule.
fn rule(task: Task, words: &RuleWords) -> Result<(Filter, u32, u32)> {
    let (Some(source), Some(destination)) = (&words.source, &words.dest) else {
        return Err(task.invalid("a rule has both --source and --dest").failed());
    };
    let nid = |text: &String| resolve::fault_nid(text).map_err(task.pattern());
    let count = |name, text: &Option<String>| task.optional(name, text.as_ref(), 0..=u32::MAX.into());
    let mut messages = MessageTypes::NONE;
    for name in &words.message {
        let found = MessageTypes::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((_, types)) = found else {
            let message = format!("unknown message type {name:?}: PUT, ACK, GET or REPLY is expected");
            return Err(task.invalid(message).failed());
        };
        messages = messages | *types;
    }
    let mut portals = 0_u64;
    for portal in &words.portal {
        portals |= 1 << task.number::<u8>("portal", portal, 0..=63)?;
    }
    let filter = Filter {
        source: nid(source)?,
        destination: nid(destination)?,
        local_nid: words.local_nid.as_ref().map(nid).transpose()?.unwrap_or(Nid::ANY),
        portals,
        messages: if messages == MessageTypes::NONE { MessageTypes::ALL } else { messages },
    };
    let rate = count("rate", &words.rate)?.unwrap_or_default();
    Ok((filter, rate, count("interval", &words.interval)?.unwrap_or_default()))
}

/// The change that deletes drop rules.
pub(crate) fn drop_deletion(task: Task, ends: &RuleEnds) -> Result<Change> {
    Ok(match both(task, ends)? {
        None => Change::DeleteAllDropRules,
        Some((source, destination)) => Change::DeleteDropRules { source, destination },
    })
}

/// The change that deletes delay rules.
pub(crate) fn delay_deletion(task: Task, ends: &RuleEnds) -> Result<Change> {
    Ok(match both(task, ends)? {
        None => Change::DeleteAllDelayRules,
        Some((source, destination)) => Change::DeleteDelayRules { source, destination },
    })
}

/// Source and destination of the rules; none for all rules.
fn both(task: Task, ends: &RuleEnds) -> Result<Option<(Nid, Nid)>> {
    let nid = |text: &String| resolve::fault_nid(text).map_err(task.pattern());
    match (&ends.source, &ends.dest, ends.all) {
        (None, None, true) => Ok(None),
        (_, _, true) => Err(task.invalid("--all goes not with --source or --dest").failed()),
        (Some(source), Some(destination), false) => Ok(Some((nid(source)?, nid(destination)?))),
        _ => Err(task.invalid("both --source and --dest are expected, or --all").failed()),
    }
}
