//! Registered buffers, and pools of them.
//!
//! Invariants: a buffer is owned by the application or by a queue, never by both; one that is owned by a
//! queue comes back with the event that says so. Whatever leaves the application's hands is registered with a
//! domain, and is deregistered when it is dropped. A buffer from a pool knows that pool, and counts there.

mod free;
mod pool;

use std::fmt;

use crate::domain::Domain;
use crate::errno::Error;
use crate::memory::Memory;

pub(crate) use pool::Taker;
pub use pool::{LockedPool, Pool, PoolHandler, PoolSpec, Reprovision};

impl Domain {
    /// Registers memory, which makes it a buffer. Over lnet one segment is moved to where the node sends it
    /// from without a copy, as long as there is such memory: its bytes are the same, its place is another.
    ///
    /// # Errors
    /// `EFBIG` where its shape exceeds a limit of the transport; `EINVAL` without bytes. The memory comes
    /// back.
    pub fn register(&self, memory: Memory) -> Result<Buffer, (Error, Memory)> {
        if let Err(error) = memory.check(self.limits()) {
            return Err((error, memory));
        }
        let memory = self.add_buffer(memory)?;
        let (domain, size_bytes) = (self.clone(), memory.size_bytes());
        Ok(Buffer { memory, domain, size_bytes, pool: None, user_data: 0 })
    }

    /// A registered buffer of zero bytes in so many segments.
    ///
    /// # Errors
    /// The errors of [`Domain::register`].
    pub fn allocate(&self, segments: usize, segment_bytes: usize) -> Result<Buffer, Error> {
        let size_bytes = (segments as u64).saturating_mul(segment_bytes as u64);
        self.limits().check(segments, segment_bytes as u64, size_bytes)?;
        self.register(Memory::zeroed(segments, segment_bytes)?).map_err(|(error, _)| error)
    }
}

/// A buffer that is registered with a [`Domain`], and not queued. Dropping it deregisters it.
pub struct Buffer {
    memory: Memory,
    domain: Domain,
    size_bytes: u64,
    /// The pool that gave it.
    pool: Option<Pool>,
    /// The application's; the layer never looks at it.
    pub user_data: u64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.size_bytes)
    }
}

impl Buffer {
    /// Bytes of all segments.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its bytes.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its bytes, to write.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Some of the bytes, in one piece.
    #[must_use]
    pub fn bytes(&self, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        self.memory.bytes(offset_bytes, length_bytes)
    }

    /// Copies bytes to the beginning, and returns how many: as many as there is room for.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        self.memory.fill(bytes)
    }

    /// The domain that it is registered with.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The pool that it is from; `None` of one that the application has registered itself.
    #[must_use]
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// Gives it back to the pool that it is from, with the colour of its last user
    /// ([`LockedPool::put`](crate::LockedPool::put)). The pool must not be locked by this thread.
    ///
    /// # Errors
    /// `EINVAL`, with the buffer, where it is from no pool, or the colour does not exist.
    pub fn put_back(self, colour: Option<usize>) -> Result<(), (Error, Self)> {
        match self.pool.clone() {
            Some(pool) => pool.lock().put(self, colour),
            None => Err((Error::invalid("a buffer of no pool: one that a pool gave is expected"), self)),
        }
    }

    /// Takes the memory for the time of an operation.
    pub(crate) fn take_memory(&mut self) -> Memory {
        std::mem::take(&mut self.memory)
    }

    /// Takes the memory back. Where a transport has lost it, the buffer gets other memory of its size.
    pub(crate) fn set_memory(&mut self, memory: Memory) {
        self.memory = if memory.size_bytes() == self.size_bytes {
            memory
        } else {
            Memory(lnet_user::Buffer::zeroed(self.size_bytes as usize))
        };
    }

    /// Deregisters it, and gives its memory back.
    #[must_use]
    pub fn deregister(mut self) -> Memory {
        self.take_memory()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.lose_one();
        }
        self.domain.remove_buffer();
    }
}
