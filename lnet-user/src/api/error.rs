//! What can go wrong for a user of [`Lnet`](super::Lnet).

use std::time::Duration;

use lnet_core::event::EqError;
use lnet_io::capture::CaptureError;
use lnet_io::memory::Buffer;
use lnet_io::reactor::WaitError;

use lnet_core::handle::ShardId;
use lnet_core::lnd::Status;
use lnet_core::portal::EntryError;
use lnet_core::shard::SubmitError;
use lnet_wire::Nid;
use thiserror::Error;

use crate::node::NodeError;
use crate::runtime::{Ended, LendError};

/// What goes wrong at once. What goes wrong later comes as the status of an event.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LnetError {
    /// The node does not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A shard got no thread.
    #[error("shard {} got no thread: {error}", .shard.0)]
    Thread {
        /// Which one.
        shard: ShardId,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// There is no such shard.
    #[error("the node has {shards} shards, numbered from 0: there is no shard {shard}")]
    NoShard {
        /// What was asked for.
        shard: usize,
        /// How many there are.
        shards: usize,
    },
    /// The node has ended as a whole, since a thread of it has panicked. Its buffers are gone with it; start
    /// another node.
    #[error("the node has ended, since {0}: start it anew")]
    Ended(#[from] Ended),
    /// An entry or a descriptor is not made.
    #[error(transparent)]
    Lend(#[from] LendError),
    /// An entry that is posted on one shard would miss messages.
    #[error(
        "portal {0} is steered by the sender, and the entry names none: post it on each shard, or name its initiator"
    )]
    EachShard(u32),
    /// What would be told by events is awaited or queued, without an event queue.
    #[error("what comes of it is told by events: give the descriptor an event queue, or start it")]
    NoEventQueue,
    /// A request or a reply did not reach a node, or may not have.
    #[error("what was sent to {nid} ended with {status:?}")]
    NotSent {
        /// The node.
        nid: Nid,
        /// How it ended.
        status: Status,
    },
    /// A server's reply did not come in time.
    #[error("no reply from {server} within {timeout:?}: the request may have been carried out")]
    NoReply {
        /// The server.
        server: Nid,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// A server's reply is longer than the service says.
    #[error("a reply of {requested_bytes} bytes: at most {reply_bytes} are expected")]
    LongReply {
        /// Its length.
        requested_bytes: u32,
        /// The service's `reply_bytes`.
        reply_bytes: u32,
    },
    /// A request of a descriptor is awaited that has one already.
    #[error("another request of the descriptor is awaited: one at a time is expected")]
    Awaited,
    /// A PUT or GET does not start.
    #[error(transparent)]
    Request(#[from] SubmitError),
    /// An event queue is not made.
    #[error("{0}: see Limits")]
    Queue(#[from] EqError),
    /// A shard cannot watch one more NI.
    #[error(transparent)]
    Watch(WaitError),
    /// What is asked of the node's topology, or of a peer by a ping, is not done.
    #[error(transparent)]
    Refused(#[from] lnet_core::node::RequestError),
    /// A fault rule is not taken.
    #[error(transparent)]
    Fault(#[from] lnet_core::fault::FaultError),
    /// The thread that controls the node has not started.
    #[error("the node's control thread does not start: {0}")]
    Control(#[source] std::io::Error),
    /// A capture is not made, or not found.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A portal cannot be changed.
    #[error(transparent)]
    Portal(#[from] EntryError),
}

impl LnetError {
    /// Whether it may go well later, when events were taken or messages have ended.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        use SubmitError::{EventQueueFull, MdLent, PeersFull, RequestsFull};
        matches!(self, Self::Request(EventQueueFull(_) | MdLent(_) | PeersFull | RequestsFull))
    }
}

/// A refusal that hands the buffer back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotLent {
    /// Why.
    #[source]
    pub error: LnetError,
    /// The buffer; `None` if the node has ended with it ([`LnetError::Ended`]), or where it comes with an
    /// event ([`ShardHandle::start`](super::ShardHandle::start)).
    pub buffer: Option<Buffer>,
}
