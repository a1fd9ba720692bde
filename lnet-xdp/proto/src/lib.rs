//! The transfer protocol of the `xdp` LND: brings each message over a wire that loses, doubles and reorders
//! frames, at most once, and says when it has arrived.
//!
//! Like the shard it is a state machine without I/O: one [`Xfer`] for each shard, below it a driver that
//! turns [`OutgoingFrame`] into frames and frames into [`Arrived`]. The driver calls, in any order:
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
//!
//! [`Xfer`] is a facade that hands calls to three owners of tables: `sending`, `receiving` and `sessions`.
//! Each has its invariants and can be read alone. The facade meets its drivers in values ([`OutgoingFrame`],
//! [`Arrived`], [`Disposition`]), so that rings, sockets and the simulator drive the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod contract;
mod identity;
mod local;
mod machine;
mod met;
mod preview;
mod receiving;
mod sending;
mod sessions;
mod stats;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

#[cfg(feature = "sabotage")]
pub use config::Sabotage;
pub use config::{FACTS, NET_TUNABLES, XferConfig, XferLimits, XferNi, XferTimes};
pub use contract::{
    Arrived, BUNDLE_MAX, BufferId, Bundled, Content, Disposition, Narrowed, OutgoingFrame, Replay,
};
pub use identity::Identity;
pub use machine::Xfer;
pub use met::MetAddresses;
pub use stats::{XferCounters, XferDrop, XferUsage};

/// Bytes that a peer of one shard takes, in the tables of all owners.
pub const PEER_BYTES: usize = sessions::PEER_BYTES + sending::PEER_BYTES + receiving::PEER_BYTES;
