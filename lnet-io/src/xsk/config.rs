//! What the sockets of a queue shall look like.

use core::time::Duration;

use super::error::SocketError;

/// The most entries of a ring.
pub const RING_ENTRIES_MAX: u32 = 1 << 16;

/// Entries of the rings; each a power of two, at most 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSizes {
    /// Frames on their way to the kernel for receiving, per queue.
    pub fill: u32,
    /// Sent frames on their way back, per queue. The kernel sends nothing while it has no room here.
    pub completion: u32,
    /// Received frames, per socket.
    pub rx: u32,
    /// Frames to send, per socket.
    pub tx: u32,
}

impl Default for RingSizes {
    /// 2048 entries each, the kernel samples' habit.
    fn default() -> Self {
        Self { fill: 2048, completion: 2048, rx: 2048, tx: 2048 }
    }
}

impl RingSizes {
    /// Checks each size.
    ///
    /// # Errors
    /// `SocketError::RingSize` names the first ring whose size is no power of two or too large.
    pub fn check(&self) -> Result<(), SocketError> {
        let rings = [("fill", self.fill), ("completion", self.completion), ("rx", self.rx), ("tx", self.tx)];
        for (ring, entries) in rings {
            if !entries.is_power_of_two() || entries > RING_ENTRIES_MAX {
                return Err(SocketError::RingSize { ring, entries });
            }
        }
        Ok(())
    }
}

/// How the kernel and the device have the frames of an interface's sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// Whether the device reads and writes the chunks itself (`XDP_ZEROCOPY`); else the kernel copies
    /// (`XDP_COPY`), whatever the device can.
    pub zero_copy: bool,
    /// Whether a frame may have several descriptors (`XDP_USE_SG`), which kernels know from Linux 6.6 on.
    pub multi_buffer: bool,
}

impl Binding {
    /// Copies, frames of several descriptors where the kernel knows them.
    pub const COPY: Self = Self { zero_copy: false, multi_buffer: true };
}

/// The sockets of one queue of one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Index of the interface in the calling thread's network namespace.
    pub interface_index: u32,
    /// Queue of the interface, from 0.
    pub queue_index: u32,
    /// Sockets to open, 1 or more: one per shard.
    pub socket_count: u32,
    /// Sockets that only send, a bit each: they have no receive ring.
    pub transmit_only: u64,
    /// Sizes of the rings.
    pub rings: RingSizes,
    /// How the sockets have their frames. Where the interface has sockets on this UMEM with zero copy, or
    /// without, as these do, their other modes.
    pub binding: Binding,
    /// How long to wait for a queue that is in use. The kernel releases a queue only some time after its
    /// last socket was closed.
    pub patience: Duration,
}

impl QueueConfig {
    /// One socket with default rings on that queue.
    #[must_use]
    pub fn new(interface_index: u32, queue_index: u32) -> Self {
        Self {
            interface_index,
            queue_index,
            socket_count: 1,
            transmit_only: 0,
            rings: RingSizes::default(),
            binding: Binding::COPY,
            patience: Duration::from_secs(2),
        }
    }
}
