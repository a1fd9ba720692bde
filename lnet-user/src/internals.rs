//! What tests and benches of this repository see of the inside: it is no part of the API, and changes without
//! event.

use std::sync::Arc;

use lnet_core::shard::Shard;
use lnet_io::locks::Mutex;

use crate::api::{Lnet, LnetError, ShardHandle};
use crate::node::{NodeConfig, NodeDriver};
use crate::runtime::Worker;

/// The XDP program and its object.
pub mod bpf {
    pub use crate::bpf::{
        Action, ActiveMode, BpfError, Counters, Faults, OBJECT_VARIABLE, Object, ObjectKind, ReasonCount,
        SlotCount, TestFrame, XdpProgram,
    };
}

pub use crate::lnd::xdp::{SendFault, XdpDrop, XdpLnd};

/// The inside of a [`Worker`].
pub trait WorkerInside {
    /// The shard.
    fn shard(&self) -> &Shard;
    /// The `xdp` LND, while there is an NI of it.
    fn xdp(&self) -> Option<&XdpLnd>;
    /// What its LNDs have counted under this name.
    ///
    /// # Errors
    /// The kernel's refusal to tell its counters.
    fn counted(&self, name: &str) -> std::io::Result<u64>;
}

impl WorkerInside for Worker {
    fn shard(&self) -> &Shard {
        Worker::shard(self)
    }

    fn xdp(&self) -> Option<&XdpLnd> {
        Worker::xdp(self)
    }

    fn counted(&self, name: &str) -> std::io::Result<u64> {
        let mut sum = 0;
        Worker::count(self, &mut |_, counter, count| sum += if counter == name { count } else { 0 })?;
        Ok(sum)
    }
}

/// The inside of a [`NodeConfig`].
pub trait NodeConfigInside {
    /// The same with something that goes wrong on purpose when frames are sent by rings.
    #[must_use]
    fn send_fault(self, send_fault: SendFault) -> Self;
}

impl NodeConfigInside for NodeConfig {
    fn send_fault(self, send_fault: SendFault) -> Self {
        Self { send_fault, ..self }
    }
}

/// The inside of a [`NodeDriver`].
pub trait NodeInside {
    /// The XDP programs of its interfaces, in the order of their first NI.
    fn programs(&self) -> Vec<Arc<Mutex<bpf::XdpProgram>>>;
    /// Who holds the frames of the NIs over rings, while there are any.
    fn frames(&self) -> Option<lnet_io::xsk::Census>;
}

impl NodeInside for NodeDriver {
    fn programs(&self) -> Vec<Arc<Mutex<bpf::XdpProgram>>> {
        NodeDriver::programs(self)
    }

    fn frames(&self) -> Option<lnet_io::xsk::Census> {
        NodeDriver::frames(self)
    }
}

/// The node of an [`Lnet`], lent.
pub fn with_node<R>(lnet: &Lnet, body: impl FnOnce(&mut NodeDriver) -> R) -> R {
    lnet.with_node(body)
}

/// Runs something between two turns of the shard.
///
/// # Errors
/// [`LnetError::Stopped`] when it has ended.
pub fn run<R: Send + 'static>(
    shard: &ShardHandle,
    run: impl FnOnce(&mut Worker) -> R + Send + 'static,
) -> Result<R, LnetError> {
    shard.run(run)
}
