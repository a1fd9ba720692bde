//! What a node does beside its configuration: captures, loads, counters of frames.
//!
//! Invariants: what may block (files, threads with work left) does so on other threads than the control
//! plane's; what a read changes, it changes without waiting for anything.

use std::collections::BTreeMap;

use lnet_control::LoadSpec;
use lnet_core::stats::DropReason;
use lnet_load::{Initiator, LoadError, LoadPlan, Scheme, Target};
use lnet_model::records::{FramesNi, FramesRecord, LoadRecord, LoadRole, SlotFrames};
use lnet_model::{Errno, Refusal};
use lnet_user::CaptureError;
use lnet_user::api::LnetError;
use lnet_user::runtime::{Counted, Worker};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::control::Control;
use super::error::{blocking, stopped};
use super::loads::{Load, Work};

/// Loads that a node has at once, ended ones included.
const LOADS_MAX: usize = 16;

impl Control {
    /// The loads. One that has ended by itself has its end waited for, and tells what came of it.
    pub(super) fn load_records(&self) -> Vec<LoadRecord> {
        let loads = &self.services.loads;
        let is_over =
            |load: &Load| matches!(&load.work, Work::Initiator(initiator) if initiator.progress().is_over);
        let over: Vec<u32> =
            loads.borrow().iter().filter(|(_, load)| is_over(load)).map(|(id, _)| *id).collect();
        for id in over {
            let Some(load) = loads.borrow_mut().remove(&id) else { continue };
            // Here and now: a client that goes meanwhile would take it along. Its threads have nothing left
            // to do.
            let record = load.work.end(id);
            loads.borrow_mut().insert(id, Load { work: Work::Ended(Box::new(record)), _hold: None });
        }
        loads.borrow().iter().map(|(id, load)| load.work.record(*id)).collect()
    }

    pub(super) async fn begin_load(&self, spec: LoadSpec) -> Result<u32, Refusal> {
        let services = &self.services;
        if services.loads.borrow().len() >= LOADS_MAX {
            let message = format!(
                "{LOADS_MAX} loads are there already: stop one of them first{}",
                self.running_loads()
            );
            return Err(Refusal::new(Errno::NOSPC, message));
        }
        let role = spec.role();
        let lnet = self.lnet.clone();
        let id = services.last_id.get().wrapping_add(1).max(1);
        services.last_id.set(id);
        let hold = lnet.hold(&load_name(id, role));
        let work = match spec {
            LoadSpec::Target(scheme) => {
                let scheme: Scheme = understood(role, scheme)?;
                blocking(move || Target::start(&lnet, &scheme).map(Work::Target)).await?
            }
            LoadSpec::Initiator(plan) => {
                let plan: LoadPlan = understood(role, plan)?;
                blocking(move || Initiator::start(&lnet, &plan).map(Work::Initiator)).await?
            }
        };
        let work = work.map_err(|error| {
            let errno = if matches!(error, LoadError::Plan(_)) { Errno::INVAL } else { Errno::BUSY };
            Refusal::new(errno, format!("load {role}: {error}{}", self.running_loads()))
        })?;
        services.loads.borrow_mut().insert(id, Load { work, _hold: Some(hold) });
        Ok(id)
    }

    /// The loads that go on, as the refusal of another one names them.
    pub(super) fn running_loads(&self) -> String {
        let running = self.load_records().into_iter().filter(|load| load.is_running);
        let running: Vec<_> = running.map(|load| load_name(load.id, load.role)).collect();
        match running.as_slice() {
            [] => String::new(),
            running => format!("; running already: {}", running.join(", ")),
        }
    }

    /// Where the frames went: the sums over shards and NIs.
    pub(super) async fn frames_record(&self) -> Result<FramesRecord, Refusal> {
        let failed = |error: String| Refusal::new(Errno::IO, error);
        let mut record = FramesRecord::default();
        for ni in self.lnet.nis() {
            let nid = ni.config.nid;
            let alarm = ni.xdp.as_ref().and_then(|xdp| xdp.alarm.as_ref());
            record.alarms.extend(alarm.map(|alarm| format!("{nid}: {alarm}")));
            record.nis.extend(ni.xdp.map(|xdp| FramesNi { nid, mode: xdp.mode }));
        }
        let xdp = self.lnet.xdp_frames().map_err(|error| failed(error.to_string()))?;
        for slot in xdp.slots {
            let (queue, shard, frames) = (slot.queue, slot.shard, slot.frames);
            record.slots.push(SlotFrames { queue, shard, frames });
        }
        add_all(&mut record.reasons, xdp.reasons);
        let mut arrived_by_gone = 0;
        for shard in self.lnet.shards() {
            let counted =
                shard.run_async(move |worker| add_worker(&mut record, worker).map(|count| (record, count)));
            let counted = counted.await.map_err(|error| stopped(&error))?;
            let (counted, arrived) = counted.map_err(|error| failed(error.to_string()))?;
            (record, arrived_by_gone) = (counted, arrived_by_gone + arrived);
        }
        record.lost_with_interfaces = xdp.steered_by_gone.saturating_sub(arrived_by_gone);
        Ok(record)
    }
}

/// The name of a load where it is in the way of something.
fn load_name(id: u32, role: LoadRole) -> String {
    format!("load {id} ({role})")
}

/// Adds what one shard has counted; how many frames it had by interfaces that have gone.
fn add_worker(record: &mut FramesRecord, worker: &Worker) -> std::io::Result<u64> {
    let mut arrived_by_gone = 0;
    worker.count(&mut |what, name, count| {
        let sums = match what {
            Counted::Misdirected => {
                record.misdirected += count;
                return;
            }
            Counted::ArrivedByGone => {
                arrived_by_gone += count;
                return;
            }
            Counted::Handled => &mut record.handled,
            Counted::Recovery => &mut record.recovery,
            Counted::Drops => &mut record.drops,
            Counted::Rings => &mut record.rings,
            Counted::Sockets => &mut record.sockets,
            Counted::Connections => &mut record.connections,
        };
        add_all(sums, [(name, count)]);
    })?;
    let counters = worker.shard().counters();
    let drops = DropReason::ALL.map(|reason| (reason.to_string(), counters.drops(reason).messages));
    add_all(&mut record.drops, drops);
    Ok(arrived_by_gone)
}

fn add_all<N: Into<String>>(sums: &mut BTreeMap<String, u64>, counters: impl IntoIterator<Item = (N, u64)>) {
    for (name, count) in counters {
        *sums.entry(name.into()).or_default() += count;
    }
}

pub(super) fn capture_refusal(error: LnetError) -> Refusal {
    let errno = match &error {
        LnetError::Capture(CaptureError::Exists(_)) => Errno::EXIST,
        LnetError::Capture(CaptureError::Forbidden(_)) => Errno::ACCES,
        LnetError::Capture(CaptureError::NoDirectory(_) | CaptureError::NoCapture(_)) => Errno::NOENT,
        LnetError::Capture(CaptureError::File { .. }) => Errno::IO,
        LnetError::Ended(_) => Errno::SHUTDOWN,
        _ => Errno::INVAL,
    };
    Refusal::new(errno, error.to_string())
}

/// A load's own description of itself.
fn understood<T: DeserializeOwned>(role: LoadRole, value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| Refusal::new(Errno::INVAL, format!("load {role}: {error}")))
}
