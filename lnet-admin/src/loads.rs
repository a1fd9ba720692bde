//! The loads of a node, and the records of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use lnet_load::{ClassReport, FaultTally, Initiator, InitiatorReport, Tally, Target, TargetReport};
use lnet_model::records::{LoadClass, LoadKind, LoadRecord, LoadResult, LoadRole, LoadTimes};
use lnet_user::api::Hold;

/// The loads of a node.
#[derive(Debug, Default)]
pub(super) struct Services {
    pub(super) loads: RefCell<BTreeMap<u32, Load>>,
    pub(super) last_id: Cell<u32>,
}

#[derive(Debug)]
pub(super) struct Load {
    pub(super) work: Work,
    /// Keeps the node as it is while the load may go on.
    pub(super) _hold: Option<Hold>,
}

#[derive(Debug)]
pub(super) enum Work {
    Target(Target),
    Initiator(Initiator),
    /// Its end has been waited for.
    Ended(Box<LoadRecord>),
}

impl Work {
    pub(super) fn record(&self, id: u32) -> LoadRecord {
        match self {
            Self::Target(target) => record(id, LoadRole::Target, seen(&target.report()), None),
            Self::Initiator(initiator) => {
                let progress = initiator.progress();
                LoadRecord {
                    is_running: !progress.is_over,
                    ..record(id, LoadRole::Initiator, progress.ended, Some(progress.messages))
                }
            }
            Self::Ended(record) => (**record).clone(),
        }
    }

    /// Ends it, at once if it goes on. Takes a moment.
    pub(super) fn end(self, id: u32) -> LoadRecord {
        let (mut record, result) = match self {
            Self::Target(target) => {
                let report = target.stop();
                (record(id, LoadRole::Target, seen(&report), None), target_result(&report))
            }
            Self::Initiator(initiator) => {
                let total = initiator.progress().messages;
                initiator.cancel();
                let report: InitiatorReport = initiator.wait();
                let done = report.puts().messages + report.gets().messages + report.faults.count;
                let result = initiator_result(&report, done, total);
                (record(id, LoadRole::Initiator, done, Some(total)), result)
            }
            Self::Ended(record) => return *record,
        };
        record.is_running = false;
        record.result = Some(result);
        record
    }
}

/// A load that runs.
fn record(id: u32, role: LoadRole, messages_done: u64, messages_total: Option<u64>) -> LoadRecord {
    LoadRecord { id, role, is_running: true, messages_done, messages_total, result: None }
}

/// Messages that a target has seen the end of.
fn seen(report: &TargetReport) -> u64 {
    report.puts.messages + report.gets.messages + report.faults.count
}

fn target_result(report: &TargetReport) -> LoadResult {
    let mut failures = fault_failures(&report.faults);
    if report.interrupted != 0 {
        failures.push(format!("{} messages were still arriving when the target stopped", report.interrupted));
    }
    if report.lost_entries != 0 {
        failures.push(format!("{} entries of the target did not come back", report.lost_entries));
    }
    let class =
        |kind, tally: Tally| LoadClass { kind, messages: tally.messages, bytes: tally.bytes, times: None };
    LoadResult {
        classes: vec![class(LoadKind::Put, report.puts), class(LoadKind::Get, report.gets)],
        by_shard: report.by_shard.clone(),
        elapsed_ns: None,
        faults: report.faults.count,
        failures,
    }
}

fn initiator_result(report: &InitiatorReport, done: u64, total: u64) -> LoadResult {
    let mut failures = fault_failures(&report.faults);
    if done != total {
        failures.push(format!("{done} messages ended instead of {total}"));
    }
    if report.is_cancelled {
        failures.push("the initiator was stopped before its end".to_owned());
    }
    if report.has_given_up {
        failures.push("the initiator gave up: as many messages as its window holds went wrong".to_owned());
    }
    let class = |class: &ClassReport| {
        let quantile = |(_, thousandths): (&str, u32)| match thousandths {
            1000 => class.latency.max(),
            _ => class.latency.quantile(f64::from(thousandths) / 1e3),
        };
        let (min_bytes, max_bytes) = (class.class.min_bytes, class.class.max_bytes);
        let times = LoadTimes { min_bytes, max_bytes, quantiles_ns: LoadTimes::QUANTILES.map(quantile) };
        LoadClass {
            kind: class.kind,
            messages: class.tally.messages,
            bytes: class.tally.bytes,
            times: Some(times),
        }
    };
    LoadResult {
        classes: report.classes.iter().map(class).collect(),
        by_shard: report.by_shard.clone(),
        elapsed_ns: Some(report.elapsed_ns),
        faults: report.faults.count,
        failures,
    }
}

/// Faults of messages, in words.
fn fault_failures(faults: &FaultTally) -> Vec<String> {
    if faults.count == 0 {
        return Vec::new();
    }
    let kinds: Vec<String> =
        faults.by_kind.iter().map(|(kind, count)| format!("{kind:?}: {count}")).collect();
    let first = faults.first.first().map(|fault| format!("; the first: {fault:?}")).unwrap_or_default();
    vec![format!("{} messages went wrong ({}){first}", faults.count, kinds.join(", "))]
}
