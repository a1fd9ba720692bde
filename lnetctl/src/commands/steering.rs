//! Steering policies.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_model::pattern;
use lnet_model::request::Change;
use lnet_model::steering::{PortalPolicy, SteeringPolicy};

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
    /// pin, match_bits, initiator or rotor
    #[arg(long, short = 'y', value_parser = Offered::of(&SteeringPolicy::NAMES), hide_possible_values = true)]
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
    let number = |name, text: &Option<String>, max| task.optional(name, text.as_ref(), 0..=max);
    let needed = |name: &str, value: Option<u8>| {
        value.ok_or_else(|| task.invalid(format!("the policy {policy} needs --{name}")))
    };
    let name = policy.replace('-', "_");
    let of_bits = shift.is_some() || bits.is_some() || table.is_some();
    let extra = match name.as_str() {
        "pin" => of_bits,
        "match_bits" => shard.is_some(),
        _ => of_bits || shard.is_some(),
    };
    if extra {
        let message = "--shard is for pin, --shift, --bits and --table are for match_bits";
        return Err(task.invalid(message));
    }
    match name.as_str() {
        "pin" => Ok(SteeringPolicy::Pin { shard: needed("shard", number("shard", shard, 63)?)? }),
        "initiator" => Ok(SteeringPolicy::Initiator),
        "rotor" => Ok(SteeringPolicy::Rotor),
        "match_bits" => Ok(SteeringPolicy::MatchBits {
            shift: number("shift", shift, 63)?.unwrap_or_default(),
            bits: needed("bits", number("bits", bits, 64)?)?,
            table: match table {
                Some(text) => Some(pattern::shards(text).ok_or_else(|| {
                    task.invalid(format!("--table {text:?}: shards such as 0,1,0,1 are expected"))
                })?),
                None => None,
            },
        }),
        _ => {
            let expected = "pin, match_bits, initiator or rotor";
            Err(task.invalid(format!("--policy {policy:?}: {expected} is expected")))
        }
    }
}
