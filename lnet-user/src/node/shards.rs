//! The shards of a node, made of its configuration.

use std::sync::Arc;

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::shard::{Shard, ShardConfig};
use lnet_core::topology::Topology;
use lnet_io::memory::Memory;
use lnet_io::random;
use lnet_io::reactor::{Reactor, WATCHES_MAX, Waiter, Waker};
use lnet_wire::ProcessId;

use super::{LO, NodeConfig, NodeError};
use crate::lnd::{Lnds, LoKind, ShardPort};
use crate::runtime::{MeshEnd, Worker};

/// Match entries that a node has for itself: what answers pings, what takes its place, and what takes pushes.
const OWN_ENTRIES: u32 = 3;
/// Events that the entry for pushes reserves.
const OWN_EVENTS: u32 = 4;

/// The shards, which have no NI but `lo` yet.
pub(super) fn make_workers(
    config: &NodeConfig,
    reactor: Reactor,
    topology: &Arc<Topology>,
) -> Result<Vec<Worker>, NodeError> {
    // An NI over rings has a socket beside these.
    let watches_max = (config.queues_max + u32::from(config.limits.nis)).min(WATCHES_MAX);
    let waiters: Vec<Waiter> =
        (0..config.shards).map(|_| Waiter::new(watches_max, reactor)).collect::<Result<_, _>>()?;
    let wakers: Vec<Waker> = waiters.iter().map(Waiter::waker).collect();
    let seal_key = [random::number()?, random::number()?];
    let limits = shard_limits(config);
    let parts = LoKind::parts(LO, &config.limits, config.shards);
    let ends = waiters.into_iter().zip(MeshEnd::mesh(&wakers)).zip(parts);
    let workers = ends.enumerate().map(|(shard, ((waiter, mesh), lo))| {
        let shard = Shard::new(ShardConfig {
            shard: ShardId(shard as u8),
            shard_count: config.shards as u8,
            seal_key,
            pid: ProcessId::LUSTRE_PID,
            limits,
            topology: Arc::clone(topology),
            hash_seed: random::number()?,
        });
        let memory = Memory::new(shard.id(), limits.memory_descs, limits.incoming);
        let mut worker = Worker::new(shard, Lnds::new(&config.limits), mesh, memory, waiter);
        worker.add_port(ShardPort::Lo(lo)).map_err(|(error, _)| error)?;
        Ok(worker)
    });
    workers.collect()
}

/// What a shard holds: what was asked for, by each LND that there may be, and what `lo` takes.
pub(super) fn shard_limits(config: &NodeConfig) -> Limits {
    let Limits { peers, nis, .. } = config.limits;
    Limits {
        match_entries: config.limits.match_entries.saturating_add(OWN_ENTRIES),
        memory_descs: config.limits.memory_descs.saturating_add(OWN_ENTRIES),
        event_queues: config.limits.event_queues.saturating_add(1),
        events: config.limits.events.saturating_add(OWN_EVENTS),
        incoming: Lnds::names_max(&config.limits),
        peers: peers.saturating_add(u32::from(nis) + 1),
        nis: nis.saturating_add(1),
        ..config.limits
    }
}
