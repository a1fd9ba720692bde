//! The mem transport: transfer machines of one process, over copies in memory.
//!
//! It shows what a transport means, and serves tests. Addresses are `a.b.c.d:port`, mere names. Only transfer
//! machines of different domains reach each other.
//!
//! Invariants: an operation runs on a worker of the transfer machine that asked for it, and its events come
//! on workers of those that they are about. A buffer whose data is being moved belongs to one operation
//! (`in_use`). Of several locks of transfer machines one is taken at a time.

mod address;
mod bulk;
mod descriptor;

use std::sync::Arc;

use crate::buffer::BulkDescriptor;
use crate::errno::Error;
use crate::queue::BufferId;
use crate::transport::{Limits, Transport, TransportDomain, TransportTm};
use crate::{tm::TmLink, transport::TmFront};

use crate::crew::directory::{Directory, Listed};
use crate::crew::work::{Carrier, Crew, Passive};
use address::MemAddress;
use descriptor::{DESCRIPTOR_BYTES, MemDescriptor};

/// What buffers of mem may be at most.
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

    /// As what [`Domain::new`](crate::Domain::new) takes.
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
        Ok(Box::new(MemTm { crew: Crew::new(self.workers), address: None }))
    }
}

static LISTED: Directory<MemAddress> = Directory::new();

struct MemTm {
    crew: Crew,
    address: Option<MemAddress>,
}

/// The work of one transfer machine: that with this address.
struct MemCarrier(MemAddress);

impl Carrier for MemCarrier {
    fn start(&self, own: &Listed) {
        own.link.post_started(&self.0.to_string());
    }

    fn operate(&self, own: &Listed, id: BufferId) {
        bulk::operate(own, self.0, id);
    }

    fn stop(&self, own: &Listed) {
        LISTED.delist(self.0, &own.work);
    }
}

impl TransportTm for MemTm {
    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error> {
        let address = MemAddress::parse(address)?;
        let own = Listed { link: link.clone(), work: Arc::clone(&self.crew.work) };
        LISTED.enlist(address, &own)?;
        self.address = Some(address);
        let carrier: Arc<dyn Carrier> = Arc::new(MemCarrier(address));
        self.crew.start(&own, &carrier)
    }

    fn stop(&mut self, _: &mut TmFront) -> Result<(), Error> {
        self.crew.work.stop();
        Ok(())
    }

    fn wake(&mut self) {
        self.crew.work.wake();
    }

    fn canonical_address(&self, address: &str) -> Result<String, Error> {
        MemAddress::parse(address).map(|address| address.to_string())
    }

    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error> {
        let Some(passive) = self.address else { return Ok(None) };
        self.crew.add(front, id, |&Passive { id, length_bytes, initiator }| {
            let initiator = initiator.map(|end_point| MemAddress::parse(end_point.address())).transpose()?;
            Ok(MemDescriptor { id, length_bytes, passive, initiator }.encode())
        })
    }

    fn del(&mut self, front: &mut TmFront, id: BufferId) {
        self.crew.del(front, id);
    }

    fn finish(self: Box<Self>) {
        if let Some(address) = self.address {
            LISTED.delist(address, &self.crew.work);
        }
        self.crew.finish();
    }
}
