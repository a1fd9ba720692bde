//! Receive streams: what this shard receives from one shard of a peer.

use core::time::Duration;

use lnet_core::collections::{Link, List, linked};
use lnet_core::time::Instant;
use lnet_wire::Nid;

use super::arrivals::OfStream;
use super::window::FramesSeen;
use crate::contract::Address;

pub(crate) struct ReceiveStream {
    pub(crate) peer: u32,
    /// The peer's shard.
    pub(crate) shard: u8,
    /// The token that it showed last.
    pub(crate) token: u64,
    /// Whether that was found good under the policies of now.
    pub(crate) is_examined: bool,
    /// Whether its window has begun: with the first frame that carries an id of the sender's.
    pub(crate) window_begun: bool,
    /// `None` until a frame was dealt with.
    pub(crate) frames: Option<FramesSeen>,
    /// Frames too far below the highest to be told with it, to be acknowledged on their own.
    pub(crate) late: Option<FramesSeen>,
    /// What is new is acknowledged with the next frame, at this time at the latest.
    pub(crate) ack_at: Option<Instant>,
    /// Frames since the last acknowledgement.
    pub(crate) unacknowledged: u32,
    /// The lowest number of these.
    pub(crate) unacknowledged_from: u32,
    /// Whether its last frame is all that its sender waits for: a PUT that asks for no ACK and has no other
    /// message before it.
    pub(crate) is_awaited: bool,
    /// Where its last frame came from.
    pub(crate) address: Address,
    pub(crate) doubt: Doubt,
    /// Where it was opened: whose share of the table it takes.
    pub(crate) opened_at: Nid,
    pub(crate) seen_at: Instant,
    pub(crate) arriving: List<OfStream>,
    /// How many these are, and how many of them have a map.
    pub(crate) arriving_count: u32,
    pub(crate) partial_count: u32,
    pub(crate) busy: Link,
    pub(crate) acks: Link,
    pub(crate) recent: Link,
}

/// Marks streams whose acknowledgement is due.
pub(crate) struct AcksDue;
/// Marks the order in which streams had their last frames.
pub(crate) struct Recent;

/// Marks streams that have received of late.
pub(crate) struct Busy;

linked!(ReceiveStream, Busy, busy);
linked!(ReceiveStream, AcksDue, acks);
linked!(ReceiveStream, Recent, recent);

/// How long something that was repeated tells that acknowledgements may not be heard: a sender that has no
/// answer at all repeats something once a second.
const DOUBT_LASTS: Duration = Duration::from_secs(4);

/// Whether acknowledgements are heard: a sender that repeats what it was told of has not heard that.
#[derive(Clone, Copy)]
pub(crate) struct Doubt {
    /// How often it has, one time soon after the other.
    repeats: u32,
    until: Instant,
}

impl Doubt {
    const NONE: Self = Self { repeats: 0, until: Instant(0) };

    /// Something was repeated.
    pub(crate) fn add(&mut self, now: Instant) {
        self.repeats = self.repeats_by(now).saturating_add(1);
        self.until = now + DOUBT_LASTS;
    }

    /// How often something was repeated of late.
    #[inline]
    pub(crate) fn repeats_by(self, now: Instant) -> u32 {
        if now < self.until { self.repeats } else { 0 }
    }
}

impl ReceiveStream {
    pub(crate) fn new((peer, shard): (u32, u8), token: u64, address: Address, now: Instant) -> Self {
        Self {
            peer,
            shard,
            token,
            is_examined: true,
            window_begun: false,
            frames: None,
            late: None,
            ack_at: None,
            unacknowledged: 0,
            unacknowledged_from: 0,
            is_awaited: false,
            address,
            doubt: Doubt::NONE,
            opened_at: address.1,
            seen_at: now,
            arriving: List::new(),
            arriving_count: 0,
            partial_count: 0,
            busy: Link::UNLINKED,
            acks: Link::UNLINKED,
            recent: Link::UNLINKED,
        }
    }

    /// Whether an acknowledgement with this frame as the highest one would not tell any more of one that is
    /// still to be acknowledged.
    #[inline]
    pub(crate) const fn would_hide(&self, number: u32) -> bool {
        let distance = number.wrapping_sub(self.unacknowledged_from);
        self.unacknowledged != 0 && distance > 64 && distance < 1 << 31
    }
}
