//! Drop rules.

use lnet_control::document::{self, Detail};
use lnet_control::pattern;
use lnet_control::records::{DropRule, HEALTH_ERRORS, MESSAGE_TYPES};
use lnet_control::request::Change;
use lnet_wire::Nid;

use super::{Result, apply};
use crate::cli::DropAddArgs;
use crate::failure::Task;
use crate::session::{Daemon, print_text};

pub(super) fn add(daemon: &mut Daemon<'_>, args: &DropAddArgs) -> Result<()> {
    let task = Task::new("add", "fault");
    let rule = rule(task, args)?;
    apply(daemon, task, vec![Change::AddDropRule(rule)]).map(drop)
}

fn rule(task: Task, args: &DropAddArgs) -> Result<DropRule> {
    let (Some(source), Some(destination)) = (&args.source, &args.dest) else {
        return Err(task.invalid("a rule has both --source and --dest").failed());
    };
    let nid = |text: &String| pattern::fault_nid(text).map_err(task.pattern());
    let count = |name, text: &Option<String>| {
        let number = task.optional(name, text.as_ref(), 0..=i64::from(u32::MAX));
        number.map(|number| number.map_or(0, |number| number as u32))
    };
    let mut messages = 0;
    for name in &args.message {
        let found = MESSAGE_TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((_, bit)) = found else {
            let message = format!("unknown message type {name:?}: PUT, ACK, GET or REPLY is expected");
            return Err(task.invalid(message).failed());
        };
        messages |= bit;
    }
    let mut portals = 0_u64;
    for portal in &args.portal {
        portals |= 1 << task.number("portal", portal, 0..=63)?;
    }
    let mut health_errors = Vec::new();
    for name in &args.health_error {
        let name = name.replace('-', "_");
        let Some((_, error)) = HEALTH_ERRORS.iter().find(|(known, _)| *known == name) else {
            let names = HEALTH_ERRORS.map(|(name, _)| name).join(", ");
            return Err(task
                .invalid(format!("--health_error {name:?}: one of {names} is expected"))
                .failed());
        };
        if !health_errors.contains(error) {
            health_errors.push(*error);
        }
    }
    let rule = DropRule {
        source: nid(source)?,
        destination: nid(destination)?,
        local_nid: args.local_nid.as_ref().map(nid).transpose()?.unwrap_or(Nid::ANY),
        portals,
        messages: if messages == 0 { 15 } else { messages },
        rate: count("rate", &args.rate)?,
        interval_s: count("interval", &args.interval)?,
        random: args.random,
        drop_all: args.drop_all,
        health_errors,
    };
    rule.check().map_err(|message| task.invalid(message).failed())?;
    Ok(rule)
}

pub(super) fn delete(
    daemon: &mut Daemon<'_>,
    source: Option<&str>,
    destination: Option<&str>,
    all: bool,
) -> Result<()> {
    let task = Task::new("del", "fault");
    let change = match (source, destination, all) {
        (None, None, true) => Change::DeleteAllDropRules,
        (_, _, true) => return Err(task.invalid("--all goes not with --source or --dest").failed()),
        (Some(source), Some(destination), false) => Change::DeleteDropRules {
            source: pattern::fault_nid(source).map_err(task.pattern())?,
            destination: pattern::fault_nid(destination).map_err(task.pattern())?,
        },
        _ => return Err(task.invalid("both --source and --dest are expected, or --all").failed()),
    };
    apply(daemon, task, vec![change]).map(drop)
}

pub(super) fn reset(daemon: &mut Daemon<'_>) -> Result<()> {
    apply(daemon, Task::new("reset", "fault"), vec![Change::ResetDropRules]).map(drop)
}

pub(super) fn show(daemon: &mut Daemon<'_>) -> Result<()> {
    let task = Task::new("show", "fault");
    let rules = daemon.client(task)?.drop_rules().map_err(task.refused())?;
    print_text(&document::drop_rules(&rules, Detail::Level(0)));
    Ok(())
}
