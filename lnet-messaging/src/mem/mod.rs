//! The mem transport: transfer machines of one process, over copies in memory.
//!
//! Mem shows what a transport means, and serves tests. Addresses are `a.b.c.d:port`, mere names. Only
//! transfer machines of different domains reach each other.

mod descriptor;

use std::net::SocketAddrV4;
use std::sync::Arc;

use crate::crew::directory::{Directory, Listed};
use crate::crew::work::Item;
use crate::crew::{self, Carrier, Crew, Descriptor};
use crate::errno::{Errno, Error, Status};
use crate::memory::{Limits, Memory, part};
use crate::operation::BulkDescriptor;
use crate::transport::{Completion, Transport, TransportDomain, TransportTm};

use descriptor::DESCRIPTOR_BYTES;

/// The limits of buffers of mem.
pub const LIMITS: Limits = Limits {
    buffer_bytes: 1 << 22,
    segment_bytes: 1 << 18,
    segments: 16,
    descriptor_bytes: DESCRIPTOR_BYTES,
    preferred_alignment_bytes: 8,
    preferred_segment_bytes: 1 << 18,
    rpc_segment_bytes: 1 << 18,
    rpc_segments: 16,
};

/// The mem transport.
#[derive(Clone, Copy, Debug)]
pub struct MemTransport {
    workers: usize,
}

impl Default for MemTransport {
    fn default() -> Self {
        Self { workers: 1 }
    }
}

impl MemTransport {
    /// The transport whose transfer machines have so many threads each, one at least. With more than one,
    /// events of different buffers come in any order.
    #[must_use]
    pub fn with_workers(workers: usize) -> Self {
        Self { workers: workers.max(1) }
    }

    /// Threads of each transfer machine.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The transport as [`Domain::new`](crate::Domain::new) takes it.
    #[must_use]
    pub fn shared(self) -> Arc<dyn Transport> {
        Arc::new(self)
    }
}

impl Transport for MemTransport {
    fn name(&self) -> &str {
        "mem"
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error> {
        Ok(Box::new(MemDomain { workers: self.workers }))
    }
}

struct MemDomain {
    workers: usize,
}

impl TransportDomain for MemDomain {
    fn create_tm(&mut self) -> Result<Box<dyn TransportTm>, Error> {
        Ok(Box::new(Crew::new(Arc::new(Copies), self.workers)))
    }
}

static LISTED: Directory<SocketAddrV4> = Directory::new();

/// Moves data by copying it.
struct Copies;

/// The transfer machine with this address, of another domain.
fn find(own: &Listed<SocketAddrV4>, address: SocketAddrV4) -> Result<Listed<SocketAddrV4>, Errno> {
    LISTED
        .find(address)
        .filter(|found| !found.link.shares_domain_with(&own.link))
        .ok_or(Errno::NetworkUnreachable)
}

/// Runs `copy` on the memory of a passive buffer, which has served then.
fn serve(
    own: &Listed<SocketAddrV4>,
    descriptor: &Descriptor<SocketAddrV4>,
    length_bytes: u64,
    copy: impl FnOnce(&mut Memory) -> Result<(), Error>,
) -> Status {
    let target = find(own, descriptor.passive)?;
    let (id, mut memory) = target.link.with_front(|front| {
        let (id, queued) = front.passive(descriptor.queue, descriptor.name)?;
        // A descriptor is trusted for the buffer's name alone.
        if queued.operation().length_bytes().is_some_and(|length| length != descriptor.length_bytes) {
            return Err(Errno::Invalid);
        }
        queued.flags.in_use = true;
        Ok((id, queued.take_memory()))
    })?;
    let status = copy(&mut memory).map_err(|error| error.errno());
    target.work.push(Item::Done(Completion::new(id, status, length_bytes).memory(memory)));
    status
}

impl Carrier for Copies {
    type Address = SocketAddrV4;

    fn directory() -> &'static Directory<SocketAddrV4> {
        &LISTED
    }

    fn parse(text: &str) -> Result<SocketAddrV4, Error> {
        if text.is_empty() {
            let expected = "no address: mem chooses none, `a.b.c.d:port` is expected";
            return Err(Error::new(Errno::NotSupported, expected));
        }
        text.parse().map_err(|_| Error::invalid(format!("address `{text}`: `a.b.c.d:port` is expected")))
    }

    fn encode(descriptor: &Descriptor<SocketAddrV4>) -> BulkDescriptor {
        descriptor.encode()
    }

    fn decode(descriptor: &BulkDescriptor) -> Result<Descriptor<SocketAddrV4>, Errno> {
        Descriptor::<SocketAddrV4>::decode(descriptor).map_err(|error| error.errno())
    }

    fn send(
        &self,
        own: &Listed<SocketAddrV4>,
        to: SocketAddrV4,
        memory: &Memory,
        length_bytes: u64,
    ) -> Status {
        let pieces = part(memory.segments(), 0, length_bytes);
        crew::receive(&find(own, to)?, &own.address, length_bytes, pieces)
    }

    fn read(
        &self,
        own: &Listed<SocketAddrV4>,
        from: &Descriptor<SocketAddrV4>,
        memory: &mut Memory,
    ) -> Result<u64, Errno> {
        serve(own, from, 0, |source| memory.copy_from(source, from.length_bytes))?;
        Ok(from.length_bytes)
    }

    fn write(
        &self,
        own: &Listed<SocketAddrV4>,
        to: &Descriptor<SocketAddrV4>,
        memory: &Memory,
        length_bytes: u64,
    ) -> Status {
        serve(own, to, length_bytes, |room| room.copy_from(memory, length_bytes))
    }
}
