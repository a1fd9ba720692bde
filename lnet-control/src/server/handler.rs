//! What a daemon implements to be managed.

use std::path::Path;
use std::time::Duration;

use lnet_wire::Nid;

use crate::errno::{Errno, Refusal};
use crate::records::{
    CaptureRecord, DropRuleRecord, FramesRecord, Globals, LoadRecord, LoadSpec, NetRecord, PeerRecord,
    Statistics, SteeringRecord,
};
use crate::request::{Batch, CaptureSpec, Outcome, PingRecord};

/// A node, as the server sees it. The calls of several clients run at the same time on one thread, except
/// those that change something ([`Handler::apply`] and the two that begin and end captures): of these one runs
/// at a time, and always to its end. The futures of the others are dropped when their client goes, and must leave
/// nothing behind.
///
/// A node that is not configured refuses everything but [`Change::Configure`](crate::request::Change::Configure)
/// and [`Unconfigure`](crate::request::Change::Unconfigure) with [`Errno::NETDOWN`](crate::Errno::NETDOWN).
pub trait Handler {
    /// The nets: `lo` first, then in order of creation.
    fn nets(&self) -> impl Future<Output = Result<Vec<NetRecord>, Refusal>>;

    /// The peers.
    fn peers(&self) -> impl Future<Output = Result<Vec<PeerRecord>, Refusal>>;

    /// The global tunables.
    fn globals(&self) -> impl Future<Output = Result<Globals, Refusal>>;

    /// The node's counters.
    fn statistics(&self) -> impl Future<Output = Result<Statistics, Refusal>>;

    /// The drop rules, newest first.
    fn drop_rules(&self) -> impl Future<Output = Result<Vec<DropRuleRecord>, Refusal>>;

    /// The steering policies.
    fn steering(&self) -> impl Future<Output = Result<SteeringRecord, Refusal>>;

    /// Makes all changes of the batch, or none of them, or, with `dry_run`, says what they would do. The outcomes
    /// are as many as the changes, in their order. A refusal names the offending change by its position
    /// ([`Refusal::of_change`]).
    fn apply(&self, batch: Batch) -> impl Future<Output = Result<Vec<Outcome>, Refusal>>;

    /// Pings one NID. The server gives up, and drops the future, a little later than `timeout`.
    fn ping(
        &self,
        nid: Nid,
        source: Option<Nid>,
        timeout: Duration,
    ) -> impl Future<Output = Result<PingRecord, Refusal>>;

    /// The captures, running and ended.
    fn captures(&self) -> impl Future<Output = Result<Vec<CaptureRecord>, Refusal>>;

    /// Begins a capture.
    fn start_capture(&self, spec: CaptureSpec) -> impl Future<Output = Result<(), Refusal>>;

    /// Ends the capture to this file, and forgets it.
    fn stop_capture(&self, path: &Path) -> impl Future<Output = Result<CaptureRecord, Refusal>>;

    /// Where the frames of its xdp nets went; nothing of a node that can have no such nets.
    fn frames(&self) -> impl Future<Output = Result<FramesRecord, Refusal>> {
        async { Ok(FramesRecord::default()) }
    }

    /// The loads, running and ended. A node without that service has none, and refuses new ones.
    fn loads(&self) -> impl Future<Output = Result<Vec<LoadRecord>, Refusal>> {
        async { Ok(Vec::new()) }
    }

    /// Begins a load.
    fn start_load(&self, spec: LoadSpec) -> impl Future<Output = Result<u32, Refusal>> {
        async move {
            let role = spec.role().name();
            Err(Refusal::new(Errno::OPNOTSUPP, format!("load {role}: this node has no load service")))
        }
    }

    /// Ends a load, and forgets it.
    fn stop_load(&self, id: u32) -> impl Future<Output = Result<LoadRecord, Refusal>> {
        async move { Err(Refusal::new(Errno::NOENT, format!("there is no load {id}"))) }
    }
}
