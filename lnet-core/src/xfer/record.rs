//! What a frame carries, from the time that it is first to be sent until it is acknowledged.
//!
//! Invariant: a record is in exactly one list of its flow: `outstanding`, in the order of frame numbers, or
//! `pending`, to be sent (again). A frame with several messages has a record for each, one after the other
//! with the same number.

use lnet_wire::frame::Kind;

use super::peer::node;
use crate::list::{Link, Node};
use crate::time::Instant;

/// What is to arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cargo {
    /// A part of a message.
    Fragment { message: u32, offset: u32, length: u32 },
    /// A word about a message, or none.
    Notice { kind: Kind, id: u64, ticket: u32 },
}

pub(super) struct Record {
    pub(super) cargo: Cargo,
    /// Number of the frame that it was last sent in.
    pub(super) number: u64,
    pub(super) sent_at: Instant,
    /// What the frame takes of its receiver; 0 but in its first record.
    pub(super) cost_bytes: u32,
    /// How often it was sent.
    pub(super) sends: u8,
    pub(super) link: Link,
}

/// Marks a list of a flow.
pub(super) struct InFlow;

node!(Record, InFlow, link);
