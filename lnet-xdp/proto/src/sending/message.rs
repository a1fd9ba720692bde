//! Messages that are being sent, and the frames that carry them.

use lnet_core::collections::{Link, linked};
use lnet_core::lnd::{Cause, NiId, PING_PORTAL, Status, Transmit};
use lnet_core::time::Instant;
use lnet_wire::frame::FRAGMENT_UNIT_BYTES;
use lnet_wire::{Body, Nid};

/// Where a message stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Listed with its path, until that has a session.
    Waiting,
    /// Queued in its stream, or among those begun: parts of it were never sent.
    Queued,
    /// All that is there of it was sent, and more is to come.
    Awaiting,
    /// All of it was sent; frames are not acknowledged.
    Sent,
    /// Listed with its peer, among messages of which that keeps the headers.
    Deferred,
}

/// A message that is being sent.
pub(crate) struct Outbound {
    pub(crate) transmit: Transmit,
    pub(crate) path: u32,
    /// The NI that its header names as the source; `None` if the header is not of this node, or not for the
    /// next hop.
    pub(crate) source_ni: Option<NiId>,
    /// Its peer and stream from [`Stage::Queued`] on.
    pub(crate) peer: u32,
    pub(crate) stream: u32,
    /// The peer's shard that it goes to.
    pub(crate) shard: u8,
    pub(crate) id: u64,
    pub(crate) stage: Stage,
    /// Payload bytes before this were put into frames.
    pub(crate) next_offset: u32,
    /// When more of it was last there.
    pub(crate) extended_at: Instant,
    /// Whether the first fragment was.
    pub(crate) begun: bool,
    /// Payload bytes before this had been put into frames when it began anew; `None` if it never has.
    pub(crate) sent_before_bytes: Option<u32>,
    /// When the first frame of it was polled since it began, if one was, and the number of that.
    pub(crate) first_sent: Option<(Instant, u64)>,
    /// Whether a frame of it had been polled when it began anew. Who refused it tells only of the frames that
    /// it read: others of them may have been read before by a life that is over, so its fate stays unknown.
    pub(crate) was_sent: bool,
    /// An incarnation that may have had it before it was to go elsewhere.
    pub(crate) not_to: Option<u64>,
    /// Whether its receiver has told of it: a frame of it was acknowledged, or its header is kept there.
    pub(crate) is_told: bool,
    /// Whether it shared a frame with others.
    pub(crate) bundled: bool,
    /// Frames of it that are not acknowledged.
    pub(crate) open_frames: u32,
    /// What its receiver pulls it by.
    pub(crate) ticket: Option<u32>,
    pub(crate) deadline: Instant,
    pub(crate) queue: Link,
    pub(crate) ids: Link,
    pub(crate) deadlines: Link,
}

/// Marks the list of a path, a stream or a peer, by [`Stage`].
pub(crate) struct Queued;
/// Marks the order of ids.
pub(crate) struct Unfinished;
/// Marks the order of deadlines.
pub(crate) struct Deadlines;

linked!(Outbound, Queued, queue);
linked!(Outbound, Unfinished, ids);
linked!(Outbound, Deadlines, deadlines);

impl Outbound {
    /// Bytes of payload.
    #[inline]
    pub(crate) const fn total_bytes(&self) -> u32 {
        self.transmit.header.payload_length
    }

    /// Bytes of it that are there: whole units, unless that is all.
    #[inline]
    pub(crate) fn there_bytes(&self) -> u32 {
        let there = self.transmit.payload.map_or(0, |span| span.length_bytes);
        if there == self.total_bytes() { there } else { there / FRAGMENT_UNIT_BYTES * FRAGMENT_UNIT_BYTES }
    }

    /// Whether more of it is to come.
    pub(crate) fn is_partial(&self) -> bool {
        self.there_bytes() < self.total_bytes()
    }

    /// The portal that it goes to; of an answer any.
    #[inline]
    pub(crate) const fn portal(&self) -> u32 {
        match self.transmit.header.body {
            Body::Put { portal, .. } | Body::Get { portal, .. } => portal,
            _ => 0,
        }
    }

    /// Whether it asks a node who that is.
    pub(crate) const fn is_ping(&self) -> bool {
        matches!(self.transmit.header.body, Body::Get { portal: PING_PORTAL, .. })
    }

    /// Sends it by a path: its header names the ends of that. LNet does the same for what it sends again by
    /// another NI, so its receiver need not know the first one, and answers by the path that works.
    #[inline]
    pub(crate) fn goes_by(&mut self, ni: NiId, source: Option<&Nid>, destination: &Nid) {
        let Some(source_ni) = &mut self.source_ni else { return };
        let header = &mut self.transmit.header;
        if (*source_ni != ni || header.destination.nid != *destination)
            && let Some(source) = source
        {
            *source_ni = ni;
            (header.source.nid, header.destination.nid) = (*source, *destination);
        }
    }

    /// Whether a frame of it was polled since it began, or began anew.
    pub(crate) const fn polled(&self) -> bool {
        self.first_sent.is_some()
    }

    /// How it ends if it is not acknowledged: nothing of it was sent only where no frame was ever polled.
    pub(crate) const fn unfinished(&self, cause: Cause) -> Status {
        if self.polled() || self.was_sent { Status::Unknown(cause) } else { Status::NeverSent(cause) }
    }

    /// Whether a life of its receiver before the one that lived at this time may have read some of it.
    pub(crate) fn may_have_been_read_before(&self, lives_at: Option<Instant>) -> bool {
        let is_later = |sent_at| lives_at.is_some_and(|lives_at| sent_at >= lives_at);
        self.first_sent.is_some_and(|(sent_at, _)| self.is_told || !is_later(sent_at))
    }

    /// Nothing of it counts as put into frames any more.
    pub(crate) fn rewind(&mut self) {
        if self.begun {
            self.sent_before_bytes = self.sent_before_bytes.max(Some(self.next_offset));
        }
        (self.next_offset, self.begun) = (0, false);
    }

    /// Whether what is at this offset had been put into a frame before it began anew.
    #[inline]
    pub(crate) fn was_sent_before(&self, offset: u32) -> bool {
        self.sent_before_bytes.is_some_and(|bytes| offset == 0 || offset < bytes)
    }

    /// Whether all of it was put into frames.
    pub(crate) fn is_cut(&self) -> bool {
        self.begun && self.next_offset == self.total_bytes()
    }
}
