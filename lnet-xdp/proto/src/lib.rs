//! The transfer protocol of the `xdp` LND: brings each message over a wire that loses, doubles and reorders
//! frames, at most once, and says when it has arrived.
//!
//! Like the shard it is a state machine without I/O: one [`Xfer`] for each shard, below it a driver that
//! turns [`Outgoing`] into frames and frames into [`Arrived`]. The driver calls, in any order:
//!
//! - [`Xfer::submit`] with what its shard wants sent, [`Xfer::resume`] with what becomes of delayed messages;
//! - [`Xfer::receive`] with each frame (and [`Xfer::receive_record`], [`Xfer::end_bundle`] for the further
//!   messages in it), and [`Xfer::written`] when it has copied what that told it to copy;
//! - [`Xfer::handle_timeout`] at the time that [`Xfer::poll_timeout`] says;
//! - after any of these [`Xfer::poll_replay`] until it returns `None`, then [`Xfer::poll_transmit`] as long
//!   as it has room for one more frame of the largest size.
//!
//! An acknowledgement that comes with data waits until the next call of [`Xfer::receive`] or
//! [`Xfer::handle_timeout`], which [`Xfer::poll_timeout`] then asks for at once: a driver that handles
//! timeouts before it receives lets the application have the data first.
//!
//! A frame that was polled and could not be sent is simply let go: that is a loss like any other.
//!
//! Invariants:
//! - Each message has an id, which counts the messages of its shard to one peer's incarnation. The receiver
//!   remembers, in a window that the sender's oldest unfinished id moves, which ids it has had: so a message
//!   is delivered at most once, over any rails its frames come.
//! - Each frame that is to be acknowledged has a number, a new one whenever its content is sent again. An
//!   acknowledgement tells which numbers have arrived, so it is never ambiguous, and repeating it is
//!   harmless.
//! - A frame is acknowledged only when its payload is in place, or will never be wanted.
//! - No state is made for a frame without a session, and only who has received a token has one: under its own
//!   incarnation, and for one of its own addresses. Sessions end with the incarnation of either node.
//! - All tables are bounded; what finds no room is not acknowledged, counted, and sent again by its sender.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod local;
mod machine;
mod preview;
mod receiving;
mod sending;
mod sessions;
mod stats;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use lnet_core::lnd::{NiId, Span};
use lnet_wire::frame::{FrameHeader, Handshake, Kind, Transfer};
use lnet_wire::{Header, Nid};

#[cfg(feature = "sabotage")]
pub use config::Sabotage;
pub use config::{NET_TUNABLES, XferConfig, XferLimits, XferTimes};
pub use machine::Xfer;
use sessions::Address;
pub use sessions::Identity;
pub use stats::{XferCounters, XferDrop, XferUsage};

/// Most messages that travel in one frame.
pub const BUNDLE_MAX: usize = 16;

/// Bytes that a peer of one shard takes, in the tables of all owners.
pub const PEER_BYTES: usize = sessions::PEER_BYTES + sending::PEER_BYTES + receiving::PEER_BYTES;

/// Paths among which another one is chosen.
const CANDIDATES_MAX: usize = 8;

/// Ids from the oldest unfinished one that a sender may use at once.
const WINDOW_IDS: u64 = 4096;

/// What a control frame tells about a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Control {
    kind: Kind,
    id: u64,
    ticket: u32,
}

/// A frame that has arrived whole: its headers' checksum and, if it has one, its payload's were right.
#[derive(Clone, Debug)]
pub struct Arrived<'a> {
    /// The interface it came by.
    pub ni: NiId,
    /// The address that it came from, as a NID of that interface's net.
    pub from: Nid,
    /// The steering part of its header, which says that the frame is this shard's.
    pub header: &'a FrameHeader,
    /// The rest of its header.
    pub transfer: &'a Transfer,
    /// The LNet header of a first fragment; it agrees with `header`.
    pub lnet: Option<&'a Header>,
    /// Bytes of payload of the message that `header` describes; records are not counted.
    pub payload_bytes: u32,
    /// What stands behind the header of a HELLO or WELCOME.
    pub handshake: Option<&'a Handshake>,
}

impl Arrived<'_> {
    /// Where its sender is.
    #[inline]
    const fn address(&self) -> Address {
        (self.ni, self.from)
    }
}

/// What the driver is to do with a frame, or with a message in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Action {
    /// Copy what [`Xfer::destination`] names of its payload, from the payload's beginning, then call
    /// [`Xfer::written`].
    Write,
    /// It is dealt with.
    Done,
    /// Keep the frame; [`Xfer::poll_replay`] says what becomes of it.
    Buffer(BufferId),
    /// Forget it. It was counted.
    Drop(XferDrop),
}

/// A frame that the driver keeps for an [`Xfer`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

/// What becomes of a frame that the driver has kept. Its id may be given to another frame at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Replay {
    /// Hand it to [`Xfer::receive`] again.
    Again(BufferId),
    /// Forget it.
    Forget(BufferId),
}

/// A frame to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The interface to send it by.
    pub ni: NiId,
    /// Where it goes.
    pub destination: Nid,
    /// The steering part of its header. Whether the frame is [short](FrameHeader::short) is for the driver to
    /// say.
    pub header: FrameHeader,
    /// The rest of its header; whether a payload has a checksum is for the driver to add.
    pub transfer: Transfer,
    /// What stands behind the header.
    pub content: Content,
}

/// What stands behind a frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// What a HELLO or WELCOME tells: [`Xfer::handshake`] of this interface.
    Handshake,
    /// (A fragment of) a message; behind it as many further messages, [`Xfer::bundled`].
    Message {
        /// The LNet header, in a first fragment.
        lnet: Option<Header>,
        /// The payload of this frame.
        payload: Option<Span>,
        /// Further messages, below [`BUNDLE_MAX`].
        bundled: u8,
        /// Whether it was sent before: then it is not sent [short](FrameHeader::short) once more, since that
        /// may be what its receiver cannot take.
        resent: bool,
    },
}

/// A further message of the frame that [`Xfer::poll_transmit`] has just returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bundled {
    /// Its id less that of the frame.
    pub id_delta: u16,
    /// Its LNet header.
    pub lnet: Header,
    /// Its payload.
    pub payload: Option<Span>,
}
