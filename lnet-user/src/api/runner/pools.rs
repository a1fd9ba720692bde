//! Router buffers: made for the shards when this node becomes a router, and freed when they are not needed.
//!
//! Memory comes in steps, of which each takes a shard a few microseconds, and is provided by the kernel when
//! a message first lies there. Where rings have registered memory that is free, buffers lie there, the large
//! ones first, and are used before others: they are sent without a copy.

use std::io;
use std::sync::Arc;

use lnet_core::node::{DriverError, RouterState};
use lnet_io::memory::Buffer;
use lnet_model::Errno;
use lnet_model::pool::PoolKind;

use super::Done;
use crate::api::errno::driver_error;
use crate::api::{Core, LnetError, ShardEnd};
use crate::runtime::Worker;

/// Numbers by [`PoolKind`].
type Totals = [u32; PoolKind::ALL.len()];

/// Buffers that a shard gets in one step at most.
const STEP_BUFFERS: u32 = 128;
/// Bytes that are mapped and given back as one.
const GROUP_BYTES: usize = 1 << 20;
/// Bytes of a page of a pool (LNet `PAGE_SIZE` of most machines).
const PAGE_BYTES: u32 = 4096;

/// Gives all shards their shares of so many router buffers.
pub(super) async fn make(core: Arc<Core>, totals: Totals) -> Done {
    let former = {
        let machine = core.runner.machine();
        let is_off = machine.router_state() == RouterState::Off;
        if is_off { Totals::default() } else { machine.router_buffers() }
    };
    core.runner.books().has_router_buffers = true;
    // Buffers that go are needed again if there is no memory for those that come.
    let both = [0, 1, 2].map(|kind| former[kind].max(totals[kind]));
    let mut result = core.fill_pools(both).await;
    if result.is_ok() {
        result = core.fill_pools(totals).await;
    }
    if result.is_err() {
        // There were as many before.
        drop(core.fill_pools(former).await);
    }
    let freed = core.free_router_buffers().await.map_err(|error| driver_error(&error));
    Done::Pools { result: result.and(freed) }
}

/// Bytes of a buffer of a pool.
fn length_of(pool: PoolKind) -> usize {
    (pool.page_count() * PAGE_BYTES) as usize
}

/// Router buffers in memory that the kernel provides when it is used.
fn mapped_buffers(pool: PoolKind, count: u32) -> io::Result<Vec<Buffer>> {
    let (count, length_bytes) = (count as usize, length_of(pool));
    let mut buffers = Vec::with_capacity(count);
    while buffers.len() < count {
        let rest = (count - buffers.len()).min(GROUP_BYTES / length_bytes);
        buffers.extend(Buffer::mapped(rest, length_bytes)?);
    }
    Ok(buffers)
}

/// Gives a shard buffers of a pool; how many are missing then.
async fn add_buffers(shard: &ShardEnd, pool: PoolKind, buffers: Vec<Buffer>) -> Result<u32, DriverError> {
    let asked = shard.ask(move |worker| worker.add_router_buffers(pool, buffers)).await;
    asked.map(|missing| missing[pool as usize]).map_err(|error| driver_error(&error))
}

impl Core {
    /// Sets how many router buffers there are, and adds those that are missing.
    async fn fill_pools(&self, totals: Totals) -> Result<(), DriverError> {
        let mut missing = Vec::new();
        for shard in &self.shards {
            let asked = shard.ask(move |worker| worker.set_router_pools(totals)).await;
            missing.push(asked.map_err(|error| driver_error(&error))?);
        }
        for pool in [PoolKind::Large, PoolKind::Small] {
            let counts: Vec<_> = missing.iter().map(|missing| missing[pool as usize]).collect();
            let registered = self.registered_buffers(pool, &counts);
            for (shard, (mut missing, registered)) in
                self.shards.iter().zip(counts.into_iter().zip(registered))
            {
                while missing > registered.len() as u32 {
                    let count = (missing - registered.len() as u32).min(STEP_BUFFERS);
                    let buffers = mapped_buffers(pool, count).map_err(|error| DriverError {
                        errno: error.raw_os_error().unwrap_or(Errno::NOMEM.0.into()),
                        message: format!("no memory for router buffers: {error}"),
                    })?;
                    missing = add_buffers(shard, pool, buffers).await?;
                }
                // Last: a shard uses the buffers first that came last.
                add_buffers(shard, pool, registered).await?;
            }
        }
        Ok(())
    }

    /// Router buffers in registered memory as far as that goes, at most so many for each shard, in turn.
    fn registered_buffers(&self, pool: PoolKind, counts: &[u32]) -> Vec<Vec<Buffer>> {
        let mut buffers: Vec<_> = counts.iter().map(|_| Vec::new()).collect();
        for turn in 0..counts.iter().copied().max().unwrap_or_default() {
            for (shard, _) in counts.iter().enumerate().filter(|(_, count)| turn < **count) {
                let Some(buffer) = self.view.register(length_of(pool)) else { return buffers };
                buffers[shard].push(buffer);
            }
        }
        buffers
    }

    /// Has all shards give up their router buffers.
    pub(super) async fn drop_pools(&self) -> Result<(), LnetError> {
        self.ask(|worker| worker.set_router_pools(Totals::default())).await?;
        self.free_router_buffers().await
    }

    /// Frees router buffers that are not needed any more.
    pub(super) async fn free_router_buffers(&self) -> Result<(), LnetError> {
        let mut has_some = false;
        for shard in &self.shards {
            loop {
                let (buffers, has_more) = shard.ask(Worker::take_router_buffers).await?;
                if buffers.is_empty() {
                    has_some |= has_more;
                    break;
                }
            }
        }
        self.runner.books().has_router_buffers = has_some;
        Ok(())
    }

    /// Looks how far a router is: whether buffers are free that are not needed, and whether all has ended
    /// that was under way.
    pub(super) async fn follow_router(&self) -> Result<(), LnetError> {
        if !self.runner.books().has_router_buffers {
            return Ok(());
        }
        self.free_router_buffers().await?;
        if self.runner.machine().router_state() == RouterState::Stopping {
            self.runner.confirm(self.confirmations().await?);
        }
        Ok(())
    }
}

impl ShardEnd {
    /// Has the shard do something; what it says.
    async fn ask<R: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, LnetError> {
        self.caller.begin(move |worker, _| ask(worker))?.await.map_err(|_| self.caller.ended())
    }
}
