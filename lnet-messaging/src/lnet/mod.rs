//! The lnet transport: transfer machines over the portals of an LNet node, whatever nets it is on.
//!
//! ```text
//!  TransportTm::add -> entry or descriptor -> the node's shard -> event queue -> worker: Operations -> ring -> callbacks
//! ```
//!
//! Addresses are `nid:pid:portal:tmid`. The identifier of a transfer machine (`tmid`) is the upper 12 of its
//! 64 match bits, so a portal whose policy steers by those ([`portal_policy`]) brings everything that is for
//! a transfer machine to one shard, where its descriptors and events are.
//!
//! Invariants: for each event that an operation may bring there is a slot in the ring before the operation
//! starts; what stands below the identifier of a passive buffer's match bits is its name, which no peer can
//! guess; a buffer's memory is with the node from then until the last event, and is neither copied nor
//! looked at; events are delivered in the order in which the node tells of them, which holds the last event
//! of a buffer back while the payload of an earlier one is in use.

mod address;
mod core;
mod descriptor;
mod network;
mod node;
mod refusals;
mod registry;
mod tm;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use lnet_user::{Lnet, Policy, Spread};

use crate::errno::Error;
use crate::memory::{Limits, Memory};
use crate::transport::{Transport, TransportDomain, TransportTm};

use descriptor::DESCRIPTOR_BYTES;
use network::Network;
use node::NodeNetwork;
use registry::Addresses;

pub use address::{endpoint_is_valid, net_cmp};

/// Longest payload of a message (LNet `LNET_MAX_PAYLOAD`).
const PAYLOAD_BYTES_MAX: u64 = 1 << 20;

/// The limits of buffers of lnet.
pub const LIMITS: Limits = Limits {
    buffer_bytes: PAYLOAD_BYTES_MAX,
    segment_bytes: PAYLOAD_BYTES_MAX,
    segments: lnet_user::BUFFER_FRAGMENTS_MAX,
    descriptor_bytes: DESCRIPTOR_BYTES,
    preferred_alignment_bytes: 4096,
    preferred_segment_bytes: PAYLOAD_BYTES_MAX,
    rpc_segment_bytes: 4096,
    rpc_segments: lnet_user::BUFFER_FRAGMENTS_MAX,
};

/// The policy of a portal for transfer machines: by their identifiers, hashed over the shards. For
/// [`NodeConfig::policies`](lnet_user::NodeConfig::policies).
#[must_use]
pub const fn portal_policy() -> Policy {
    Policy::MatchBits { shift: 52, bits: 12, spread: Spread::Hash }
}

/// The lnet transport over one node. All that are made over a node know which addresses are in use there.
#[derive(Clone)]
pub struct LnetTransport {
    network: Arc<dyn Network>,
    addresses: Arc<Addresses>,
    interfaces: Vec<String>,
    /// Whether transfer machines send by any NI of the net, instead of their own.
    any_rail: bool,
}

impl std::fmt::Debug for LnetTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LnetTransport").field(&self.interfaces).finish()
    }
}

impl LnetTransport {
    /// The transport over this node, with 2048 event slots for each transfer machine.
    #[must_use]
    pub fn new(lnet: &Lnet) -> Self {
        Self::with_event_slots(lnet, 2048)
    }

    /// The transport over this node. Each queued buffer takes an event slot for each operation of its
    /// descriptor (for receive buffers, each message), and one. What finds none is refused with `ENOMEM`, and
    /// so is a receive buffer or a pool for more messages than that. The node's limits say how many slots
    /// there are for all.
    #[must_use]
    pub fn with_event_slots(lnet: &Lnet, event_slots: u32) -> Self {
        let nids = lnet.nis().into_iter().map(|ni| ni.config.nid.to_string());
        let interfaces = nids.chain(["0@lo".to_owned()]).collect();
        let network = Arc::new(NodeNetwork { lnet: lnet.clone(), event_slots });
        Self { network, addresses: Addresses::of(lnet), interfaces, any_rail: false }
    }

    #[cfg(test)]
    fn over(network: Arc<dyn Network>) -> Self {
        let interfaces = Vec::new();
        Self { network, addresses: Arc::default(), interfaces, any_rail: false }
    }

    /// Has transfer machines send by any NI of the node on the net of the destination, in domains that are
    /// made from now on: with several rails (Multi-Rail) they go on when one is cut. Otherwise they send by
    /// the NI of their own address alone, and peers that do not know the node's NIDs as one peer's always see
    /// the same sender.
    #[must_use]
    pub fn over_any_rail(self) -> Self {
        Self { any_rail: true, ..self }
    }

    /// Messages that a receive buffer may be for: each takes an event slot, and the buffer one.
    fn messages_max(&self) -> u32 {
        self.network.event_slots().saturating_sub(1)
    }

    /// The NIDs that the node had when this was made, as text: `0@lo` is the last of them.
    #[must_use]
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// The transport as [`Domain::new`](crate::Domain::new) takes it.
    #[must_use]
    pub fn shared(self) -> Arc<dyn Transport> {
        Arc::new(self)
    }
}

impl Transport for LnetTransport {
    fn name(&self) -> &str {
        "lnet"
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error> {
        Ok(Box::new(LnetDomain { transport: self.clone() }))
    }
}

struct LnetDomain {
    transport: LnetTransport,
}

impl TransportDomain for LnetDomain {
    fn register(&mut self, memory: Memory) -> Result<Memory, (Error, Memory)> {
        let mut segments = memory.segments();
        let (Some(bytes), None) = (segments.next(), segments.next()) else {
            drop(segments);
            return Ok(memory);
        };
        let registered = self.transport.network.register(bytes);
        drop(segments);
        Ok(registered.unwrap_or(memory))
    }

    fn create_tm(&mut self) -> Result<Box<dyn TransportTm>, Error> {
        Ok(Box::new(tm::LnetTm::new(self.transport.clone())))
    }
}
