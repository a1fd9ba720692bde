//! Sent items: what a frame carries, from the time that it is first to be sent until it is acknowledged.
//!
//! Invariant: an item is in exactly one list of its stream: `outstanding`, in the order of frame numbers, or
//! `pending`, to be sent (again). A frame with several messages has an item for each, one after the other
//! with the same number.

use lnet_core::collections::{Link, linked};
use lnet_core::time::Instant;

use super::congestion::frame_cost;
use crate::contract::Control;

/// What is to arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cargo {
    /// A part of a message.
    Fragment { message: u32, offset: u32, length: u32 },
    /// A control frame about a message.
    Control(Control),
}

pub(crate) struct SentItem {
    pub(crate) cargo: Cargo,
    /// Number of the frame that it was last sent in.
    pub(crate) number: u64,
    pub(crate) sent_at: Instant,
    /// When an acknowledgement first told of a frame that was sent later, and not of this one.
    pub(crate) overtaken_at: Option<Instant>,
    /// The frame's datagram while it is under way; 0 but in its first item.
    pub(crate) datagram_bytes: u32,
    /// The path that it went by last.
    pub(crate) path: u32,
    /// Whether it was cut from a long fragment to learn whether a short one arrives.
    pub(crate) is_piece: bool,
    /// How often it was sent.
    pub(crate) sends: u8,
    pub(crate) link: Link,
}

impl SentItem {
    /// Bytes that the frame takes of its receiver, as long as it is under way; 0 but for its first item.
    #[inline]
    pub(crate) const fn cost_bytes(&self) -> u32 {
        if self.datagram_bytes == 0 { 0 } else { frame_cost(self.datagram_bytes) }
    }
}

/// Marks a list of a stream.
pub(crate) struct InStream;

linked!(SentItem, InStream, link);
