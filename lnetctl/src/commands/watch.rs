//! The command `watch`: what changes on a node, as it does.
//!
//! Invariants: counters are no changes, but what they lead to is; the first look is told by nothing.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use lnet_control::client::{Client, ClientError};
use lnet_control::document;
use lnet_model::pool::PoolKind;
use lnet_model::records::{PeerRecord, RouteRecord};
use serde_json::{Value, json};

use super::Result;
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::{json_line, print_text};

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Milliseconds between looks
    #[arg(long, short, value_name = "MILLISECONDS", default_value = "1000")]
    interval: String,
    /// End after so many changes
    #[arg(long, short, value_name = "COUNT")]
    count: Option<String>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<String>,
}

/// Facts of a node: texts by their subjects.
type Facts = BTreeMap<String, String>;

pub(super) fn run(daemon: &mut Daemon<'_>, args: &WatchArgs) -> Result<()> {
    let task = Task::new("show", "watch");
    let interval = Duration::from_millis(task.number("interval", &args.interval, 10..=86_400_000)?);
    let count: Option<u64> = task.optional("count", args.count.as_ref(), 1..=i64::MAX)?;
    let seconds: Option<u32> = task.optional("seconds", args.seconds.as_ref(), 1..=u32::MAX.into())?;
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let (mut known, mut left) = (daemon.ask(task, facts)?, count.unwrap_or(u64::MAX));
    loop {
        let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
        if rest == Some(Duration::ZERO) {
            return Ok(());
        }
        sleep(rest.map_or(interval, |rest| rest.min(interval)));
        let now = daemon.ask(task, facts)?;
        for change in changes(&known, &now) {
            print_text(&if daemon.as_json { change.json() } else { change.line() });
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
        known = now;
    }
}

/// A fact that has come, gone, or become another one.
#[derive(PartialEq, Eq, Debug)]
struct FactChange<'a> {
    of: &'a str,
    from: Option<&'a str>,
    to: Option<&'a str>,
}

impl FactChange<'_> {
    fn line(&self) -> String {
        let of = self.of;
        match (self.from, self.to) {
            (Some(from), Some(to)) => format!("~ {of}: {from} -> {to}\n"),
            (Some(from), None) => format!("- {of}: {from}\n"),
            (None, to) => format!("+ {of}: {}\n", to.unwrap_or_default()),
        }
    }

    fn json(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        json_line(&json!({"change": {"at_ms": at_ms, "of": self.of, "from": self.from, "to": self.to}}))
    }
}

/// Facts that are other now, in the order of their subjects.
fn changes<'a>(before: &'a Facts, now: &'a Facts) -> Vec<FactChange<'a>> {
    let mut all: Vec<&String> = before.keys().chain(now.keys()).collect();
    all.sort();
    all.dedup();
    let change = |of: &'a String| {
        let text = |facts: &'a Facts| facts.get(of).map(String::as_str);
        FactChange { of, from: text(before), to: text(now) }
    };
    all.into_iter().map(change).filter(|change| change.from != change.to).collect()
}

/// Asks a node for all that may change. One that is not configured has none of it.
fn facts(client: &mut Client) -> std::result::Result<Facts, ClientError> {
    let mut facts = Facts::new();
    let nets = match client.nets() {
        Ok(nets) => nets,
        Err(ClientError::Refused(_)) => return Ok(facts),
        Err(error) => return Err(error),
    };
    for ni in nets.iter().flat_map(|net| &net.nis) {
        let nid = ni.nid;
        let mut put = |what: &str, text: String| facts.insert(format!("ni {nid} {what}"), text);
        put("status", ni.status.to_string());
        put("interface", ni.interface.clone().unwrap_or_default());
        put("health", ni.health.health_value.to_string());
    }
    for peer in client.peers()? {
        put_peer(&mut facts, &peer);
    }
    for RouteRecord { spec, state, .. } in client.routes()? {
        let route = format!("route {} by {}", spec.net, spec.gateway);
        facts.insert(format!("{route} state"), state.to_string());
        let hops = spec.hops.map_or_else(|| "-1".to_owned(), |hops| hops.to_string());
        facts.insert(format!("{route} hops"), hops);
        facts.insert(format!("{route} priority"), spec.priority.to_string());
    }
    let globals = client.globals()?;
    facts.extend(globals.entries().map(|(name, value)| (format!("global {name}"), value.to_string())));
    let routing = client.routing()?;
    put_leaves(&mut facts, "routing", &json!({"state": routing.state}));
    for kind in PoolKind::ALL {
        facts.insert(format!("routing {}", kind.setting()), routing.buffer_count(kind).to_string());
    }
    let rest = [document::udsp(&client.udsp()?, None), document::steering(&client.steering()?)];
    rest.into_iter().flatten().for_each(|(key, value)| put_leaves(&mut facts, &key, &value));
    for (kind, rules) in [
        ("drop", client.drop_rules()?.iter().map(|one| json!(one.rule)).collect::<Vec<_>>()),
        ("delay", client.delay_rules()?.iter().map(|one| json!(one.rule)).collect()),
    ] {
        // The newest stands first, and each has the number of those before it.
        for (number, rule) in rules.iter().rev().enumerate() {
            facts.insert(format!("fault {kind} {number}"), rule.to_string());
        }
    }
    Ok(facts)
}

fn put_peer(facts: &mut Facts, peer: &PeerRecord) {
    let primary = peer.primary_nid;
    facts.insert(format!("peer {primary} Multi-Rail"), peer.multi_rail.to_string());
    for ni in &peer.nis {
        let mut put =
            |what: &str, text: String| facts.insert(format!("peer {primary} ni {} {what}", ni.nid), text);
        put("health", ni.health.health_value.to_string());
        if let Some(is_alive) = ni.is_alive {
            put("state", if is_alive { "up" } else { "down" }.to_owned());
        }
    }
}

/// Puts each value of a document, by the keys that lead to it.
fn put_leaves(facts: &mut Facts, of: &str, value: &Value) {
    match value {
        Value::Object(entries) => {
            entries.iter().for_each(|(key, value)| put_leaves(facts, &format!("{of} {key}"), value));
        }
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.for_each(|(number, value)| put_leaves(facts, &format!("{of} {number}"), value));
        }
        Value::String(text) => {
            facts.insert(of.to_owned(), text.clone());
        }
        value => {
            facts.insert(of.to_owned(), value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_goes_and_changes_is_told_in_order() {
        let facts = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(of, text)| ((*of).to_owned(), (*text).to_owned())).collect::<Facts>()
        };
        let before = facts(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let now = facts(&[("a", "1"), ("c", "4"), ("d", "5")]);
        let lines: Vec<_> = changes(&before, &now).iter().map(FactChange::line).collect();
        assert_eq!(lines, ["- b: 2\n", "~ c: 3 -> 4\n", "+ d: 5\n"]);
        let mut leaves = Facts::new();
        put_leaves(&mut leaves, "of", &json!({"a": [{"b": "text"}, 2]}));
        assert_eq!(leaves, facts(&[("of a 0 b", "text"), ("of a 1", "2")]));
    }
}
