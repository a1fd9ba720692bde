//! Taking the kernel's chunks back once it has no socket on the UMEM any more.
//!
//! Each chunk with the kernel is marked with its queue, so that exactly those of a queue that goes are taken
//! back.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::SocketAddrXdpFlags;

use super::error::{ReclaimError, SocketError};
use super::memory::{Mapping, PageKind};
use super::socket::{self, Opening, QueueId};
use super::umem::{CHUNK_BYTES, Frame, RingsId, Umem};

impl Umem {
    /// Gives the frames of the chunks that the kernel held by one queue's rings when its sockets were closed;
    /// those of other queues stay in use. None if no socket of this UMEM was bound there.
    ///
    /// Closing a socket does not end the kernel's use of the UMEM at once: duplicates of its descriptor,
    /// `io_uring` requests on it and the kernel's own work queue may outlast it. So the queue is bound once
    /// more, to other memory, for a moment: when that succeeds the old sockets are gone. It takes the
    /// privileges that opening took.
    ///
    /// # Errors
    /// [`ReclaimError`] when sockets or rings are left on the queue, or it is not free after `patience`.
    pub fn reclaim_queue(
        &self,
        interface_index: u32,
        queue_index: u32,
        patience: Duration,
    ) -> Result<Vec<Frame>, ReclaimError> {
        let mut registry = self.registry();
        let is_it =
            |queue: &QueueId| (queue.interface_index, queue.queue_index) == (interface_index, queue_index);
        let open = registry.alive().filter(|attachment| is_it(&attachment.queue));
        let count = open.count();
        if count > 0 {
            return Err(ReclaimError::InUse { count });
        }
        let number = registry.bound.iter().position(|bound| bound.as_ref().is_some_and(is_it));
        let Some(number) = number else { return Ok(Vec::new()) };
        if let Some(queue) = registry.bound[number] {
            see_unbound(queue, patience)?;
        }
        // The registry stays locked, so no socket is opened meanwhile.
        registry.bound[number] = None;
        Ok(self.take_all_of(RingsId::of_queue(number)))
    }
}

/// Makes sure that no AF_XDP socket is bound to a queue of the caller's network namespace.
fn see_unbound(queue: QueueId, patience: Duration) -> Result<(), ReclaimError> {
    if QueueId::here(queue.interface_index, queue.queue_index) != queue {
        return Err(ReclaimError::OtherNamespace);
    }
    let unknown = |source| ReclaimError::Unknown { source: Box::new(source) };
    let fd = socket::open().map_err(unknown)?;
    let opening = Opening { fd: fd.as_fd(), queue };
    let system = |operation, errno| unknown(opening.fault(operation, errno));
    let memory = Mapping::anonymous(CHUNK_BYTES as usize, PageKind::Normal)
        .map_err(|errno| system("memory for a probe", errno))?;
    let address = memory.base().as_ptr().expose_provenance() as u64;
    opening.register_memory(address, u64::from(CHUNK_BYTES)).map_err(unknown)?;
    for (set, operation) in [
        (sockopt::set_xdp_umem_fill_ring_size as fn(_, _) -> _, "XDP_UMEM_FILL_RING"),
        (sockopt::set_xdp_umem_completion_ring_size, "XDP_UMEM_COMPLETION_RING"),
        (sockopt::set_xdp_rx_ring_size, "XDP_RX_RING"),
    ] {
        set(opening.fd, 1).map_err(|errno| system(operation, errno))?;
    }
    match opening.bind(SocketAddrXdpFlags::XDP_COPY, patience) {
        // An interface that is gone has taken its sockets' bindings with it (`xsk_notifier`).
        Ok(()) | Err(Errno::NODEV) => Ok(()),
        Err(Errno::BUSY) => Err(ReclaimError::StillBound {
            interface_index: queue.interface_index,
            queue_index: queue.queue_index,
        }),
        Err(source @ Errno::INVAL) => {
            let (operation, queue) = ("bind of a probe", queue.label());
            Err(unknown(SocketError::System { operation, queue, source }))
        }
        Err(errno) => Err(system("bind of a probe", errno)),
    }
}
