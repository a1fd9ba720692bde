//! The network that the transport needs: LNet's, or another one in tests.

use std::task::{Context, Poll};
use std::time::Duration;

use lnet_user::{EventKind, Nid, ProcessId, Target};

use crate::errno::{Error, Status};
use crate::memory::Memory;
use crate::transport::RetainedPayload;

/// Both ends of a transfer machine.
pub(crate) type Ends = (Box<dyn Poster>, Box<dyn EventSource>);

/// A node.
pub(crate) trait Network: Send + Sync {
    /// Whether a NID is one of this node's.
    fn is_local(&self, nid: &Nid) -> bool;

    /// Copies bytes to memory that is sent without a copy, if there is such.
    fn register(&self, bytes: &[u8]) -> Option<Memory>;

    /// Event slots of a transfer machine: each buffer takes one for each of its operations, and one.
    fn event_slots(&self) -> u32;

    /// Opens the ends that a transfer machine sends and receives by: entries will have this portal and match
    /// bits with this identifier.
    fn open(&self, portal: u32, match_bits: u64) -> Result<Ends, Error>;
}

/// A memory descriptor to be made. It goes when it is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MdPlan {
    /// The first bytes of the memory that it covers.
    pub(crate) length_bytes: u64,
    /// Most bytes of a message; less than that behind the last one uses it up.
    pub(crate) max_size_bytes: Option<u64>,
    pub(crate) threshold: u32,
    /// A number that comes back with its events.
    pub(crate) user_ptr: u64,
}

/// A match entry to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryPlan {
    pub(crate) portal: u32,
    pub(crate) match_bits: u64,
    pub(crate) allowed: Allowed,
    /// The only NID that may use it, if not any.
    pub(crate) initiator: Option<Nid>,
}

/// The use of an entry's memory that is allowed to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    Put,
    Get,
}

/// An entry or a descriptor that is there. Dropping it asks for its end, of which an event tells, or its last
/// one has done so already.
pub(crate) trait Posted: Send {
    /// Lets go of what has ended by itself.
    fn forget(self: Box<Self>);
}

/// A refusal to post.
pub(crate) struct NotPosted {
    pub(crate) error: Error,
    /// `None`: it comes with an UNLINK event.
    pub(crate) memory: Option<Memory>,
}

/// The sending end. Events of what it posts may come before it returns.
pub(crate) trait Poster: Send {
    /// An entry with a descriptor.
    fn attach(
        &mut self,
        entry: &EntryPlan,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted>;

    /// An entry like this for each of these descriptors, in their order.
    fn attach_all(
        &mut self,
        entry: &EntryPlan,
        mds: Vec<(MdPlan, Memory)>,
    ) -> Vec<Result<Box<dyn Posted>, NotPosted>> {
        mds.into_iter().map(|(md, memory)| self.attach(entry, &md, memory)).collect()
    }

    /// A PUT without acknowledgement.
    fn put(
        &mut self,
        to: &Target,
        hdr_data: u64,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted>;

    /// A GET.
    fn get(&mut self, from: &Target, md: &MdPlan, memory: Memory) -> Result<Box<dyn Posted>, NotPosted>;
}

/// The receiving end.
pub(crate) trait EventSource: Send {
    /// The next event; `None` when the node has ended.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<NetworkEvent>>;

    /// Waits for an event, so long at most: the thread may do the node's work meanwhile. Pending where none
    /// has come.
    fn wait_next(&mut self, longest: Duration) -> Poll<Option<NetworkEvent>> {
        let _ = longest;
        Poll::Pending
    }
}

/// Something happened to a descriptor.
#[derive(Debug)]
pub(crate) struct NetworkEvent {
    pub(crate) user_ptr: u64,
    pub(crate) kind: EventKind,
    pub(crate) status: Status,
    /// Whether it is the descriptor's last event.
    pub(crate) is_unlinked: bool,
    pub(crate) length_bytes: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) hdr_data: u64,
    /// The initiator of what has arrived.
    pub(crate) initiator: Option<ProcessId>,
    pub(crate) payload: Payload,
}

/// The bytes or memory that come with an event.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    /// Bytes that can be read while others may still come into the same memory.
    Retained(Box<dyn RetainedPayload>),
    /// The memory of the descriptor, which has ended.
    Memory(Memory),
}
