//! The command `load`: begins loads, waits for them, and judges what came of them.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::client::errno_of;
use lnet_control::protocol::REQUEST_BYTES_MAX;
use lnet_control::{LoadSpec, document, file, output, resolve};
use lnet_model::records::{LoadKind, LoadRecord, LoadResult, LoadRole, LoadTimes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Result, plot};
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::{json_line, print_text};
use crate::table::table;

/// How often a load that is waited for is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// Schemes and results are smaller.
const FILE_BYTES_MAX: usize = REQUEST_BYTES_MAX / 2;
/// Messages of a load, unless it says how many.
const MESSAGES: i64 = 100_000;
const WINDOW: i64 = 64;
const TIMEOUT_MS: i64 = 60_000;

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Begin a load; prints its number
    Start {
        /// Which end of it
        #[command(subcommand)]
        role: LoadRoleCommand,
    },
    /// Show the loads, running and ended
    Show,
    /// Wait for the end of a load, show what came of it, and fail if a message was lost or wrong
    #[command(after_help = "Example:\n  lnetctl load wait 1 --plot load.svg")]
    Wait {
        /// Its number
        id: String,
        /// Say how far it is, one line each time, even where standard error is no terminal
        #[arg(long)]
        progress: bool,
        #[command(flatten)]
        output: LoadOutput,
    },
    /// End a load, show what came of it, and fail if a message was lost or wrong
    #[command(after_help = "Example:
  lnetctl --node a load stop 1 --json > sent.json
  lnetctl --node b load stop 1 --sent sent.json")]
    Stop {
        /// Its number
        id: String,
        #[command(flatten)]
        output: LoadOutput,
    },
}

/// How what came of a load is shown and judged.
#[derive(Debug, Args)]
pub(crate) struct LoadOutput {
    /// Also draw the latencies of each size
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Fail where the initiator's result, as `--json` prints it, counts other messages
    #[arg(long, value_name = "FILE")]
    pub(crate) sent: Option<PathBuf>,
    /// Percent of the messages that each shard must have had
    #[arg(long, value_name = "PERCENT")]
    pub(crate) share_min: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadRoleCommand {
    /// Take messages, until it is stopped
    #[command(after_help = "Example:\n  lnetctl load start target --seed 7")]
    Target {
        #[command(flatten)]
        args: LoadArgs,
    },
    /// Send messages to targets of the same scheme
    #[command(
        after_help = "Example:\n  lnetctl load start initiator --seed 7 --to 10.0.0.2@xdp,10.1.0.2@xdp1 --messages 100000"
    )]
    Initiator {
        #[command(flatten)]
        args: LoadArgs,
        /// NIDs of the target, all of which are used
        #[arg(long, value_name = "NIDS")]
        to: String,
        /// Messages in all [default: 100000]
        #[arg(long, value_name = "COUNT")]
        messages: Option<String>,
        /// Messages in flight [default: 64]
        #[arg(long, value_name = "COUNT")]
        window: Option<String>,
        /// How long a message may take before it counts as failed [default: 60000]
        #[arg(long, value_name = "MILLISECONDS")]
        timeout_ms: Option<String>,
        /// Puts ask for no acknowledgement
        #[arg(long)]
        no_ack: bool,
    },
}

/// The scheme of a load, the same at both ends.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Seed that all bytes and choices follow from [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<String>,
    /// How many of a hundred messages are Puts; the others are Gets [default: 50]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) puts_percent: Option<String>,
    /// A JSON file with the whole scheme: seed, layout, sizes, puts_percent
    #[arg(long, value_name = "FILE")]
    pub(crate) scheme: Option<PathBuf>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: LoadCommand) -> Result<()> {
    match command {
        LoadCommand::Start { role } => start(daemon, &role),
        LoadCommand::Show => show(daemon),
        LoadCommand::Wait { id, progress, output } => wait(daemon, &id, &output, progress),
        LoadCommand::Stop { id, output } => stop(daemon, &id, &output),
    }
}

fn show(daemon: &mut Daemon<'_>) -> Result<()> {
    let loads = daemon.ask(Task::new("show", "load"), Client::loads)?;
    daemon.print_record(&loads, |loads| document::loads(loads));
    Ok(())
}

fn start(daemon: &mut Daemon<'_>, role: &LoadRoleCommand) -> Result<()> {
    let task = Task::new("add", "load");
    let spec = match role {
        LoadRoleCommand::Target { args } => LoadSpec::Target(scheme(task, args)?),
        LoadRoleCommand::Initiator { args, to, messages, window, timeout_ms, no_ack } => {
            let scheme = scheme(task, args)?;
            let nids = resolve::nids(to).map_err(task.pattern())?;
            let targets: Vec<String> = nids.iter().map(ToString::to_string).collect();
            let number = |name, text: &Option<String>, range| task.optional(name, text.as_ref(), range);
            LoadSpec::Initiator(json!({
                "scheme": scheme,
                "targets": targets,
                "messages": number("messages", messages, 0..=i64::MAX)?.unwrap_or(MESSAGES),
                "window": number("window", window, 1..=4096)?.unwrap_or(WINDOW),
                "timeout_ms": number("timeout-ms", timeout_ms, 1..=86_400_000)?.unwrap_or(TIMEOUT_MS),
                "ack": !no_ack,
            }))
        }
    };
    let id = daemon.ask(task, |client| client.start_load(spec))?;
    print_text(&format_args!("{id}\n"));
    Ok(())
}

fn stop(daemon: &mut Daemon<'_>, id: &str, output: &LoadOutput) -> Result<()> {
    let task = Task::new("del", "load");
    let id: u32 = task.number("id", id, 0..=i64::from(u32::MAX))?;
    let load = daemon.ask(task, |client| client.stop_load(id))?;
    conclude(daemon, task, &load, output)
}

/// Waits until a load has ended.
fn wait(daemon: &mut Daemon<'_>, id: &str, output: &LoadOutput, progress: bool) -> Result<()> {
    let task = Task::new("show", "load");
    let id: u32 = task.number("id", id, 0..=i64::from(u32::MAX))?;
    let shows = progress || std::io::stderr().is_terminal();
    let mut shown = None;
    loop {
        let loads = daemon.ask(task, Client::loads)?;
        let Some(load) = loads.into_iter().find(|load| load.id == id) else {
            return Err(task.error(lnet_model::Errno::NOENT, format!("there is no load {id}")));
        };
        if shows && shown != Some(load.messages_done) {
            shown = Some(load.messages_done);
            let total = load.messages_total.map_or_else(|| "?".to_owned(), |total| total.to_string());
            let line = format!("{} of {total} messages", load.messages_done);
            output::note(if progress { format!("{line}\n") } else { format!("\r{line}") });
        }
        if !load.is_running {
            if shows && !progress {
                output::note("\n");
            }
            return conclude(daemon, task, &load, output);
        }
        sleep(INTERVAL);
    }
}

/// Prints what came of a load, and judges it.
fn conclude(daemon: &Daemon<'_>, task: Task, load: &LoadRecord, output: &LoadOutput) -> Result<()> {
    let no_result = LoadResult::default();
    let result = load.result.as_ref().unwrap_or(&no_result);
    let mut failures = result.failures.clone();
    if let Some(path) = &output.sent {
        failures.extend(differences(&sent(task, path)?, result));
    }
    if let Some(least) = task.optional("share-min", output.share_min.as_ref(), 0..=100)? {
        failures.extend(unfair_shares("messages", &result.by_shard, least));
    }
    match daemon.as_json {
        true => print_text(&json_line(&[load])),
        false => print_text(&text(load.role, result)),
    }
    if let Some(path) = &output.plot {
        file::replace(path, plot::svg(result).as_bytes()).map_err(|error| {
            task.error(errno_of(&error), format!("--plot {}: {error}", path.display())).failed()
        })?;
    }
    task.judged(failures)
}

/// The result of an initiator that `load stop --json` or `load wait --json` has written to a file.
fn sent(task: Task, path: &Path) -> Result<LoadResult> {
    let loads: Vec<LoadRecord> = read(task, path, "what `load wait --json` prints")?;
    let result = loads.into_iter().next().and_then(|load| load.result);
    result
        .ok_or_else(|| task.invalid(format!("--sent {}: a load that has ended is expected", path.display())))
}

/// What the two ends of a load do not know the same of.
fn differences(sent: &LoadResult, seen: &LoadResult) -> Vec<String> {
    let differ = |kind: LoadKind| {
        let (ours, theirs) = (sent.verified(&[kind]), seen.verified(&[kind]));
        let [ours_text, theirs_text] =
            [ours, theirs].map(|(messages, bytes)| format!("{messages} of {bytes} bytes"));
        (ours != theirs)
            .then(|| format!("{kind}s: the initiator counts {ours_text}, the target {theirs_text}"))
    };
    LoadKind::ALL.into_iter().filter_map(differ).collect()
}

/// Shards whose share is under so many percent.
pub(super) fn unfair_shares(what: &str, by_shard: &[u64], least_percent: u64) -> Vec<String> {
    let total: u64 = by_shard.iter().sum();
    if total == 0 {
        return vec![format!("no {what} reached the shards")];
    }
    let is_less = |share: u64| u128::from(share) * 100 < u128::from(total) * u128::from(least_percent);
    let shards = by_shard.iter().enumerate().filter(|(_, share)| is_less(**share));
    shards
        .map(|(shard, share)| {
            format!("shard {shard} took {share} of {total} {what}, under {least_percent} %")
        })
        .collect()
}

/// What came of a load, as tables.
fn text(role: LoadRole, result: &LoadResult) -> String {
    let (messages, bytes) = result.verified(&LoadKind::ALL);
    let mut rows = vec![
        vec!["verified".to_owned(), format!("{messages} messages, {bytes} bytes")],
        vec!["faults".to_owned(), result.faults.to_string()],
    ];
    if let Some(elapsed_ns) = result.elapsed_ns.filter(|elapsed_ns| *elapsed_ns > 0) {
        let per_second = |count: u64| count as f64 * 1e9 / elapsed_ns as f64;
        rows.push(vec!["messages per second".to_owned(), format!("{:.0}", per_second(messages))]);
        rows.push(vec!["payload, Gbit/s".to_owned(), format!("{:.3}", per_second(bytes) * 8.0 / 1e9)]);
    }
    let total: u64 = result.by_shard.iter().sum();
    for (shard, share) in result.by_shard.iter().enumerate() {
        let percent = *share as f64 * 100.0 / total.max(1) as f64;
        rows.push(vec![format!("shard {shard}"), format!("{share} messages, {percent:.1} %")]);
    }
    let latencies = latencies(result);
    latencies + &table(&[&role.to_string(), "result"], &rows)
}

/// How long messages took, by kind and size; nothing where that was not measured.
fn latencies(result: &LoadResult) -> String {
    let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
    let mut classes: Vec<_> = result.classes.iter().filter_map(|class| Some((class, class.times?))).collect();
    classes.sort_by_key(|(class, times)| (class.kind, times.min_bytes));
    let rows = classes.into_iter().map(|(class, times)| {
        let name = format!("{}, {}", class.kind, size_name(&times));
        let quantiles = times.quantiles_ns.map(us);
        [name, class.messages.to_string()].into_iter().chain(quantiles).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let quantiles = LoadTimes::QUANTILES.map(|(name, _)| name);
    table(&[&["latency, us", "messages"], quantiles.as_slice()].concat(), &rows)
}

/// Sizes in words.
pub(super) fn size_name(times: &LoadTimes) -> String {
    let LoadTimes { min_bytes, max_bytes, .. } = *times;
    if min_bytes == max_bytes {
        format!("{} B", grouped(max_bytes))
    } else {
        format!("{} to {} B", grouped(min_bytes), grouped(max_bytes))
    }
}

/// A number with its thousands apart.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The scheme that the words, or a file, describe. What it may hold is the load service's to say.
fn scheme(task: Task, args: &LoadArgs) -> Result<Value> {
    let mut scheme: Map<String, Value> = match &args.scheme {
        Some(path) => read(task, path, "a JSON object")?,
        None => Map::new(),
    };
    let seed: Option<i64> = task.optional("seed", args.seed.as_ref(), 0..=i64::MAX)?;
    scheme.extend(seed.map(|seed| ("seed".to_owned(), json!(seed))));
    let percent: Option<i64> = task.optional("puts-percent", args.puts_percent.as_ref(), 0..=100)?;
    scheme.extend(percent.map(|percent| ("puts_percent".to_owned(), json!(percent))));
    Ok(Value::Object(scheme))
}

/// The JSON in a file.
fn read<T: DeserializeOwned>(task: Task, path: &Path, expected: &str) -> Result<T> {
    let shown = path.display();
    let wrong = |error: io::Error| task.invalid(format!("{shown}: {error}"));
    let bytes = file::read_regular(path, FILE_BYTES_MAX).map_err(wrong)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| task.invalid(format!("{shown}: {error}; {expected} is expected")))
}

#[cfg(test)]
mod tests {
    use lnet_model::records::LoadClass;

    use super::*;

    fn class(kind: LoadKind, sizes: (u32, u32), messages: u64, quantiles_ns: [u64; 5]) -> LoadClass {
        let times = Some(LoadTimes { min_bytes: sizes.0, max_bytes: sizes.1, quantiles_ns });
        LoadClass { kind, messages, bytes: messages * 1000, times }
    }

    fn result() -> LoadResult {
        LoadResult {
            classes: vec![
                class(LoadKind::Get, (65_537, 1 << 20), 1000, [40_000, 40_000, 40_000, 40_000, 1_234_567]),
                class(LoadKind::Put, (0, 0), 3000, [1950, 2100, 2100, 3999, 3999]),
            ],
            by_shard: vec![1000, 3000],
            elapsed_ns: Some(2_000_000_000),
            ..LoadResult::default()
        }
    }

    #[test]
    fn the_tables_show_every_figure() {
        let expected = "\
latency, us                 messages   p50   p90   p99  p99.9     max
---------------------------------------------------------------------
Put, 0 B                        3000   1.9   2.1   2.1    3.9     3.9
Get, 65 537 to 1 048 576 B      1000  40.0  40.0  40.0   40.0  1234.5

initiator                                  result
-------------------------------------------------
verified             4000 messages, 4000000 bytes
faults                                          0
messages per second                          2000
payload, Gbit/s                             0.016
shard 0                     1000 messages, 25.0 %
shard 1                     3000 messages, 75.0 %

";
        assert_eq!(text(LoadRole::Initiator, &result()), expected);
        let seen = LoadResult { classes: Vec::new(), elapsed_ns: None, ..result() };
        let shown = text(LoadRole::Target, &seen);
        assert!(shown.starts_with("target ") && !shown.contains("latency"), "{shown}");
    }

    #[test]
    fn both_ends_must_know_of_every_message() {
        let mut seen = result();
        assert_eq!(differences(&result(), &seen), [""; 0]);
        seen.classes[1].messages = 2999;
        seen.classes[0].bytes = 1;
        let expected = [
            "Puts: the initiator counts 3000 of 3000000 bytes, the target 2999 of 3000000 bytes",
            "Gets: the initiator counts 1000 of 1000000 bytes, the target 1000 of 1 bytes",
        ];
        assert_eq!(differences(&result(), &seen), expected);
    }

    #[test]
    fn each_shard_must_take_its_share() {
        assert_eq!(unfair_shares("frames", &[10, 90], 10), [""; 0]);
        assert_eq!(unfair_shares("frames", &[9, 91], 10), ["shard 0 took 9 of 100 frames, under 10 %"]);
        assert_eq!(unfair_shares("frames", &[0, 0], 10), ["no frames reached the shards"]);
    }
}
