//! The shards of a node, made of its configuration.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::shard::{Shard, ShardConfig};
use lnet_core::topology::{self, LocalNi, Topology};
use lnet_wire::ProcessId;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::plan::Plan;
use super::{NodeConfig, NodeError};
use crate::lnd::lo::LoLnd;
use crate::lnd::{AnyLnd, Lnds};
use crate::memory::Memory;
use crate::runtime::{Clock, MeshEnd, Steering, Worker};
use crate::uring::{Waiter, Waker};

/// How often LNet sends a message at most: the first time, and its default of retries.
const TRIES: u32 = 3;

/// The shards with all that they drive. `lo` is the last of their NIs, and names the messages that arrive
/// by numbers that the network LND has not.
pub(super) fn make_workers(
    config: &NodeConfig,
    plan: &Plan,
    lnds: Vec<(Option<AnyLnd>, Waiter)>,
) -> Result<Vec<Worker>, NodeError> {
    let wakers: Vec<Waker> = lnds.iter().map(|(_, waiter)| waiter.waker()).collect();
    let clock = Clock::start();
    let topology = Arc::new(topology(config, plan));
    let lo = NiId(config.nis.len() as u16);
    let interface_cookie = nanoseconds_since_1970();
    let limits = shard_limits(config);
    let ends = lnds.into_iter().zip(MeshEnd::mesh(&wakers));
    let workers = ends.enumerate().map(|(shard, ((network, waiter), mesh))| {
        let shard = Shard::new(ShardConfig {
            shard: ShardId(shard as u8),
            shard_count: config.shards as u8,
            interface_cookie,
            pid: ProcessId::LUSTRE_PID,
            limits,
            topology: Arc::clone(&topology),
            hash_seed: random_number()?,
        });
        let memory = Memory::new(shard.id(), limits.memory_descs, limits.incoming);
        let lo = LoLnd::new(lo, config.limits.incoming, &limits);
        let steering = Steering::new(plan.policies, config.shards);
        Ok(Worker::new(shard, Lnds { network, lo }, mesh, memory, clock, waiter, steering)?)
    });
    workers.collect()
}

/// What a shard holds: what was asked for, and what `lo` takes.
pub(super) fn shard_limits(config: &NodeConfig) -> Limits {
    let own_count = config.nis.len() as u32 + 1;
    let Limits { incoming, peers, interfaces, .. } = config.limits;
    Limits {
        incoming: incoming.saturating_add(LoLnd::names_max(&config.limits)),
        peers: peers.saturating_add(own_count),
        interfaces: interfaces.saturating_add(1),
        ..config.limits
    }
}

fn topology(config: &NodeConfig, plan: &Plan) -> Topology {
    // How long a message may wait for credits (LNet `lib-msg.c`, `lnet_msg_commit`).
    let message_timeout = config.lnd_timeout * TRIES + Duration::from_secs(1);
    let nis = config.nis.iter().map(|ni| LocalNi::new(ni.nid, ni.credits, ni.peer_credits, message_timeout));
    let nis = nis.chain([LocalNi::loopback(message_timeout)]).collect();
    Topology::new(nis)
        .with_steering(topology::Steering { shard_count: config.shards as u8, policies: plan.policies })
}

/// A number that no peer can guess: the cookie that they see tells nothing about it.
pub(super) fn random_number() -> Result<u64, NodeError> {
    let mut seed = [0; 8];
    match getrandom(&mut seed, GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(seed)),
        Ok(_) => Err(NodeError::Random(Errno::AGAIN)),
        Err(errno) => Err(NodeError::Random(errno)),
    }
}

/// What kernel nodes make their interface cookie of, so that handles of a former life never match.
fn nanoseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_nanos() as u64)
}
