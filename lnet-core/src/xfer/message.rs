//! Messages that are being sent, and the frames that carry them.

use super::peer::node;
use crate::list::{Link, Node};
use crate::lnd::Transmit;
use crate::time::Instant;

/// Where a message stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// In its contact's list, until that has a session.
    Waiting,
    /// In its flow's queue, or among those begun: parts of it were never sent.
    Queued,
    /// All of it was sent; frames are not acknowledged.
    Sent,
    /// In its peer's list of messages of which it keeps the headers.
    Parked,
}

/// A message that is being sent.
pub(super) struct Outbound {
    pub(super) transmit: Transmit,
    pub(super) contact: u32,
    /// Its peer and flow from [`Stage::Queued`] on.
    pub(super) peer: u32,
    pub(super) flow: u32,
    /// The peer's shard that it goes to.
    pub(super) shard: u8,
    pub(super) id: u64,
    pub(super) stage: Stage,
    /// Payload bytes before this were put into frames.
    pub(super) next_offset: u32,
    /// Whether the first fragment was.
    pub(super) begun: bool,
    /// Whether any frame of it was ever polled.
    pub(super) polled: bool,
    /// Frames of it that are not acknowledged.
    pub(super) open_frames: u32,
    /// What its receiver pulls it by.
    pub(super) ticket: Option<u32>,
    pub(super) deadline: Instant,
    pub(super) queue: Link,
    pub(super) ids: Link,
    pub(super) deadlines: Link,
}

/// Marks the list of a contact, a flow or a peer, by [`Stage`].
pub(super) struct Queued;
/// Marks the order of ids.
pub(super) struct Unfinished;
/// Marks the order of deadlines.
pub(super) struct Deadlines;

node!(Outbound, Queued, queue);
node!(Outbound, Unfinished, ids);
node!(Outbound, Deadlines, deadlines);

impl Outbound {
    /// Bytes of payload.
    #[inline]
    pub(super) fn total_bytes(&self) -> u32 {
        self.transmit.payload.map_or(0, |span| span.length_bytes)
    }

    /// Whether all of it was put into frames.
    pub(super) fn is_cut(&self) -> bool {
        self.begun && self.next_offset == self.total_bytes()
    }
}
