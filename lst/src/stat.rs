//! Rates and errors of nodes, from their counters.

use std::time::Duration;

use anyhow::{Result, bail};
use lnet_model::records::{SelftestAnswer, SelftestCommand, SelftestCounters, SelftestStats};

use crate::cli::Stat;
use crate::console::Console;
use crate::failure::Failure;
use crate::output::{complain, reader_has_gone, tell};
use crate::show::id;

const STOP_INTERVAL: Duration = Duration::from_secs(1);

/// Asks for the statistics of each target.
fn sample(console: &mut Console, targets: &[String]) -> Result<Vec<Vec<SelftestStats>>> {
    match console.ask(SelftestCommand::Stat { targets: targets.to_vec() })? {
        SelftestAnswer::Stats(stats) => Ok(stats),
        answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
    }
}

/// The rates of a node in a second: messages received and sent, bytes received and sent.
type Rates = [f64; 4];

fn rates(former: &SelftestCounters, now: &SelftestCounters) -> Option<Rates> {
    let seconds = f64::from(now.running_ms.checked_sub(former.running_ms).filter(|ms| *ms != 0)?) / 1000.0;
    // The counters of messages start again from 0.
    let messages = |former: u32, now: u32| f64::from(now.wrapping_sub(former)) / seconds;
    let bytes = |former: u64, now: u64| now.wrapping_sub(former) as f64 / seconds;
    Some([
        messages(former.received, now.received),
        messages(former.sent, now.sent),
        bytes(former.received_bytes, now.received_bytes),
        bytes(former.sent_bytes, now.sent_bytes),
    ])
}

/// Shows rates of targets, again and again.
pub(crate) fn run(console: &mut Console, options: &Stat) -> Result<()> {
    let targets = console.resolved(&options.targets)?;
    let mut former = sample(console, &targets)?;
    let (mut left, mut failed) = (options.count, Vec::new());
    while left != Some(0) && !reader_has_gone() {
        std::thread::sleep(Duration::from_secs(options.delay.into()));
        let now = sample(console, &targets)?;
        for ((target, former), now) in options.targets.iter().zip(&former).zip(&now) {
            let both = now.iter().filter_map(|stats| {
                let known = former.iter().find(|known| known.nid == stats.nid)?;
                rates(known.counters.as_ref()?, stats.counters.as_ref()?)
            });
            let both: Vec<_> = both.collect();
            let silent: Vec<_> = now.iter().filter_map(|stats| stats.failed).collect();
            let count = silent.len();
            failed.extend(silent);
            if both.is_empty() && count != 0 {
                tell(format_args!("Failed to stat on {count} nodes"));
            } else if !options.rpc {
                // There are no other counters than those of LNet.
                print(target, &both, options);
            }
        }
        former = now;
        left = left.map(|left| left - 1);
    }
    match failed.len() {
        0 => Ok(()),
        count => bail!(Failure::nodes(failed, format!("{count} times a node did not tell its counters"))),
    }
}

fn print(target: &str, rates: &[Rates], options: &Stat) {
    let (unit, bytes) = if options.mbs { ("MB/s ", 1e6) } else { ("MiB/s", 1_048_576.0) };
    // Others read what nodes send; so the reference has it.
    let both = options.read == options.write;
    let directions = [("R", 0, both || options.write), ("W", 1, both || options.read)];
    let directions = directions.into_iter().filter(|(_, _, is_shown)| *is_shown);
    if !options.bw || options.rate {
        tell(format_args!("[LNet Rates of {target}]"));
        for (mark, index, _) in directions.clone() {
            let line = line(rates.iter().map(|rates| rates[index]), options, |name, value| {
                // Nothing follows the last.
                format!("{name}: {value:<8.0} RPC/s{}", if name == "Max" { "" } else { " " })
            });
            tell(format_args!("[{mark}] {line}"));
        }
    }
    if !options.rate || options.bw {
        tell(format_args!("[LNet Bandwidth of {target}]"));
        for (mark, index, _) in directions {
            let values = rates.iter().map(|rates| rates[index + 2] / bytes);
            tell(format_args!(
                "[{mark}] {}",
                line(values, options, |name, value| format!("{name}: {value:<8.2} {unit} "))
            ));
        }
    }
}

/// Average, smallest and largest, or those of them that were asked for.
fn line(
    values: impl Iterator<Item = f64> + Clone,
    options: &Stat,
    shown: impl Fn(&str, f64) -> String,
) -> String {
    let count = values.clone().count().max(1) as f64;
    let average = values.clone().sum::<f64>() / count;
    let (min, max) = (values.clone().reduce(f64::min), values.reduce(f64::max));
    let all = !(options.avg || options.min || options.max);
    let parts = [
        ("Avg", average, options.avg),
        ("Min", min.unwrap_or(0.0), options.min),
        ("Max", max.unwrap_or(0.0), options.max),
    ];
    let parts = parts.into_iter().filter(|(_, _, is_asked)| all || *is_asked);
    parts.map(|(name, value, _)| shown(name, value)).collect()
}

/// Shows the nodes that have counted errors: of tests, and else of requests as well.
pub(crate) fn show_errors(console: &mut Console, targets: &[String], of_session: bool) -> Result<()> {
    let resolved = console.resolved(targets)?;
    let stats = sample(console, &resolved)?;
    let mut silent = Vec::new();
    for (target, nodes) in targets.iter().zip(stats) {
        tell(format_args!("{target}:"));
        let mut count = 0;
        for SelftestStats { nid, counters, failed } in nodes {
            let Some(counters) = counters else {
                silent.extend(failed);
                complain(format_args!("RPC failure, can't show error on {}", id(nid)));
                continue;
            };
            let SelftestCounters { brw_errors, ping_errors, rpc_errors, rpc_dropped, rpc_expired, .. } =
                counters;
            let of_requests = if of_session { [0; 3] } else { [rpc_errors, rpc_dropped, rpc_expired] };
            if [brw_errors, ping_errors] == [0; 2] && of_requests == [0; 3] {
                continue;
            }
            count += 1;
            if of_session {
                complain(format_args!(
                    "{}: [Session {brw_errors} brw errors, {ping_errors} ping errors]",
                    id(nid)
                ));
            } else {
                complain(format_args!(
                    "{}: [Session {brw_errors} brw errors, {ping_errors} ping errors] [RPC: {rpc_errors} errors, \
                     {rpc_dropped} dropped, {rpc_expired} expired]",
                    id(nid)
                ));
            }
        }
        tell(format_args!("Total {count} error nodes in {target}"));
    }
    match silent.len() {
        0 => Ok(()),
        count => bail!(Failure::nodes(silent, format!("{count} nodes did not tell their errors"))),
    }
}

/// Waits for what was under way when a batch was stopped.
pub(crate) fn wait_until_idle(console: &mut Console, batch: &str) -> Result<()> {
    loop {
        let nodes =
            console.nodes(SelftestCommand::Query { batch: batch.to_owned(), test: 0, of_servers: false })?;
        match nodes.iter().filter(|node| node.active != 0).count() {
            0 => return Ok(()),
            count => tell(format_args!("{count} batch in stopping")),
        }
        std::thread::sleep(STOP_INTERVAL);
    }
}
