//! Steering policies.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_model::pattern;
use lnet_model::request::Change;
use lnet_model::steering::{PolicyField, PolicyFields, PolicyName, PortalPolicy, SteeringPolicy};

use super::Result;
use crate::arguments::Offered;
use crate::daemon::Daemon;
use crate::failure::Task;

#[derive(Debug, Subcommand)]
pub(crate) enum SteeringCommand {
    /// Show the portals that are not pinned to shard 0
    Show,
    /// Set the policy of portals that have no entries
    #[command(after_help = "Examples:
  lnetctl steering set --portal 4 --policy match_bits --bits 3
  lnetctl steering set --portal 4 --policy match_bits --bits 1 --table 0,1
  lnetctl steering set --portal 8-15 --policy pin --shard 1
  lnetctl steering set --portal 50 --policy rotor")]
    Set(Words),
}

// A policy as it is given.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Portals, such as 4 or 8-15
    #[arg(long, short)]
    portal: String,
    #[arg(long, short = 'y', help = PolicyName::NAMES.join(", "), hide_possible_values = true,
          value_parser = Offered::of(PolicyName::NAMES))]
    policy: String,
    /// The shard of pin
    #[arg(long, short)]
    shard: Option<String>,
    /// Lowest match bit that counts
    #[arg(long, value_name = "BIT")]
    shift: Option<String>,
    /// How many match bits count
    #[arg(long, value_name = "COUNT")]
    bits: Option<String>,
    /// Shard of each value of the match bits; they are hashed over all shards without it
    #[arg(long, value_name = "LIST")]
    table: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: SteeringCommand) -> Result<()> {
    match command {
        SteeringCommand::Show => daemon.show("steering", Client::steering, document::steering),
        SteeringCommand::Set(words) => set(daemon, &words),
    }
}

fn set(daemon: &mut Daemon<'_>, words: &Words) -> Result<()> {
    let task = Task::new("set", "steering");
    let policy = policy(task, words)?;
    let portals =
        pattern::cpts(&words.portal).ok().filter(|portals| portals.iter().all(|portal| *portal < 64));
    let portals = portals
        .ok_or_else(|| task.invalid("--portal: portals from 0 to 63 such as 4 or 8-15 are expected"))?;
    let mut changes = Vec::new();
    for portal in portals {
        let policy = PortalPolicy { portal: portal as u8, policy: policy.clone() };
        policy.check().map_err(task.pattern())?;
        changes.push(Change::SetSteering(policy));
    }
    daemon.apply(task, changes)
}

fn policy(task: Task, words: &Words) -> Result<SteeringPolicy> {
    let Words { policy, shard, shift, bits, table, .. } = words;
    let name: PolicyName = policy
        .replace('-', "_")
        .parse()
        .map_err(|expected: String| task.invalid(format!("--policy {expected}")))?;
    let given = [
        (PolicyField::Shard, shard),
        (PolicyField::Shift, shift),
        (PolicyField::Bits, bits),
        (PolicyField::Table, table),
    ];
    let of_other = |(field, text): &&(PolicyField, &Option<String>)| text.is_some() && field.policy() != name;
    if let Some((field, _)) = given.iter().find(of_other) {
        let of = field.policy();
        return Err(task.invalid(format!("--{field} is for the policy {of}, not for {name}")));
    }
    let number = |field: PolicyField, text: &Option<String>| {
        task.optional(field.name(), text.as_ref(), 0..=field.max())
    };
    let table = table.as_ref().map(|text| {
        let invalid = || task.invalid(format!("--table {text:?}: shards such as 0,1,0,1 are expected"));
        pattern::shards(text).ok_or_else(invalid)
    });
    let fields = PolicyFields {
        shard: number(PolicyField::Shard, shard)?,
        shift: number(PolicyField::Shift, shift)?,
        bits: number(PolicyField::Bits, bits)?,
        table: table.transpose()?,
    };
    name.with(fields).map_err(|field| task.invalid(format!("the policy {name} needs --{field}")))
}
