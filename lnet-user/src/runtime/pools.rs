//! Router buffers of a shard: their bytes, which the shard itself knows by handles alone.
//!
//! Buffers of the tiny pool have no bytes, and one handle in common. Others come in few at a time, so that
//! the shard does something else in between, and go likewise: those in use when they are not any more.

use lnet_core::handle::BufferHandle;
use lnet_io::memory::Buffer;
use lnet_model::pool::PoolKind;

use super::worker::Worker;

/// Buffers that leave in one step at most.
const STEP_BUFFERS: usize = 256;

/// Router buffers of a shard that stand outside its pools.
#[derive(Debug, Default)]
pub(super) struct RouterBuffers {
    /// The buffer without bytes, once there is one.
    empty: Option<BufferHandle>,
    /// Buffers that are not needed, and that the kernel may still read.
    parting: Vec<BufferHandle>,
}

impl Worker {
    /// Sets how many buffers the router pools of the whole node have; how many are to be added here
    /// ([`Worker::add_router_buffers`]), by [`PoolKind`].
    pub(crate) fn set_router_pools(
        &mut self,
        totals: [u32; PoolKind::ALL.len()],
    ) -> [u32; PoolKind::ALL.len()] {
        self.shard.set_router_pools(totals);
        let memory = &mut self.memory;
        for _ in 0..self.shard.missing_router_buffers()[PoolKind::Tiny as usize] {
            let empty = self.router_buffers.empty.get_or_insert_with(|| memory.add_buffer(Buffer::default()));
            self.shard.add_router_buffer(PoolKind::Tiny, *empty);
        }
        self.shard.missing_router_buffers()
    }

    /// Adds buffers to a router pool, as many as it lacks; how many are still to be added, by [`PoolKind`].
    pub(crate) fn add_router_buffers(
        &mut self,
        pool: PoolKind,
        buffers: Vec<Buffer>,
    ) -> [u32; PoolKind::ALL.len()] {
        let missing = self.shard.missing_router_buffers()[pool as usize];
        for buffer in buffers.into_iter().take(missing as usize) {
            self.shard.add_router_buffer(pool, self.memory.add_buffer(buffer));
        }
        self.shard.missing_router_buffers()
    }

    /// Some of the router buffers that are not needed any more, if there are any; and whether there are
    /// router buffers here.
    pub(crate) fn take_router_buffers(&mut self) -> (Vec<Buffer>, bool) {
        let RouterBuffers { empty, parting } = &mut self.router_buffers;
        while parting.len() < STEP_BUFFERS
            && let Some(handle) = self.shard.poll_surplus()
        {
            if *empty != Some(handle) {
                parting.push(handle);
            }
        }
        let mut buffers = Vec::new();
        parting.retain(|handle| {
            let buffer = self.memory.take_buffer(*handle);
            let stays = buffer.is_none();
            buffers.extend(buffer);
            stays
        });
        let has_some = !parting.is_empty() || self.shard.router_pools().iter().any(|pool| pool.buffers > 0);
        (buffers, has_some)
    }
}
