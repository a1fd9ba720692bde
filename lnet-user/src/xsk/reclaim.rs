//! Taking the kernel's chunks back once it has no socket on the UMEM any more.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::SocketAddrXdpFlags;

use super::error::{ReclaimError, SocketError};
use super::memory::{Memory, PageKind};
use super::socket::{self, Opening, Place};
use super::umem::{CHUNK_BYTES, Frame, Umem};

impl Umem {
    /// Gives the frames of the chunks that the kernel held when its sockets were closed.
    ///
    /// Closing a socket does not end the kernel's use of the UMEM at once: duplicates of its descriptor,
    /// `io_uring` requests on it and the kernel's own work queue may outlast it. So each queue that was
    /// bound is bound once more, to other memory, for a moment: when that succeeds the old sockets are gone.
    /// It takes the privileges that opening took.
    ///
    /// # Errors
    /// [`ReclaimError`] when sockets or rings are left, or a queue is not free after `patience`.
    pub fn reclaim(&self, patience: Duration) -> Result<Vec<Frame>, ReclaimError> {
        let mut registry = self.registry();
        let count = registry.alive().count();
        if count > 0 {
            return Err(ReclaimError::InUse { count });
        }
        while let Some(&place) = registry.bound.last() {
            if Place::here(place.interface_index, place.queue_index) != place {
                return Err(ReclaimError::OtherNamespace);
            }
            probe(place, patience)?;
            registry.bound.pop();
        }
        // The registry stays locked, so no socket is opened meanwhile.
        Ok(self.take_all())
    }
}

/// Makes sure that no AF_XDP socket is bound to `place`.
fn probe(place: Place, patience: Duration) -> Result<(), ReclaimError> {
    let unknown = |source| ReclaimError::Unknown { source: Box::new(source) };
    let fd = socket::open().map_err(unknown)?;
    let opening = Opening { fd: fd.as_fd(), place };
    let system = |operation, errno| unknown(opening.fault(operation, errno));
    let memory = Memory::anonymous(CHUNK_BYTES as usize, PageKind::Normal)
        .map_err(|errno| system("memory for a probe", errno))?;
    let address = memory.base().as_ptr().expose_provenance() as u64;
    opening.register_memory(address, u64::from(CHUNK_BYTES), 0).map_err(unknown)?;
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
            interface_index: place.interface_index,
            queue_index: place.queue_index,
        }),
        Err(errno) => Err(unknown(match errno {
            Errno::INVAL => SocketError::System {
                operation: "bind of a probe",
                interface: format!("with index {}", place.interface_index),
                queue_index: place.queue_index,
                source: errno,
            },
            errno => opening.fault("bind of a probe", errno),
        })),
    }
}
