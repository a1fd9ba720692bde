//! Messages of other nodes that this one sends on: they take credits, wait and fail as its own do, and end
//! with the buffer that their payload lies in. Which way they go is decided elsewhere.

use lnet_wire::{Header, Nid};
use thiserror::Error;

use super::Shard;
use crate::collections::NONE;
use crate::handle::BufferHandle;
use crate::lnd::{NiId, PeerSlot, Span, Status, Transmit, TxId};
use crate::message::{Budget, MessageState, Purpose};
use crate::time::Instant;
use crate::topology::NiStatus;

/// Another node's message, to be sent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardRequest {
    /// The NI to send it by.
    pub ni: NiId,
    /// The peer NI that gets it: its destination, or the next router; not this node.
    pub next_hop: Nid,
    /// Its header, as it came.
    pub header: Header,
    /// The buffer of this node that it was received into.
    pub buffer: BufferHandle,
    /// Where its payload, as long as the header says, begins there.
    pub offset_bytes: u64,
}

/// The end of a message that was sent on. Its buffer is free again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forwarded {
    /// The buffer.
    pub buffer: BufferHandle,
    /// How it ended.
    pub status: Status,
}

/// Why a message is not sent on; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// No NI of this number serves on the net of the next hop (`-EHOSTUNREACH`).
    #[error("NI {ni} does not serve the net of next hop {1}", ni = .0.0)]
    Unreachable(NiId, Nid),
    /// The next hop is this node (`-EINVAL`). Its `lo` trusts what a header says of its source.
    #[error("next hop {0} is this node: another one is expected")]
    Local(Nid),
    /// Too many are sent on ([`crate::Limits::forwards`], `-ENOMEM`).
    #[error("too many forwarded messages under way")]
    Full,
    /// Every peer slot is busy with another peer (`-ENOMEM`).
    #[error("every peer slot is busy")]
    PeersFull,
}

impl Shard {
    /// Sends a message of another node on. Its buffer is in use until [`Shard::poll_forwarded`] returns it.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing has started then.
    pub fn forward(&mut self, now: Instant, message: &ForwardRequest) -> Result<(), ForwardError> {
        let &ForwardRequest { ni, next_hop, header, buffer, offset_bytes } = message;
        if next_hop.is_loopback() || self.topology.is_local(&next_hop) {
            return Err(ForwardError::Local(next_hop));
        }
        let local = self.topology.ni(ni);
        let local = local.filter(|local| local.status == NiStatus::Up && local.net == next_hop.net());
        let deadline = now + local.ok_or(ForwardError::Unreachable(ni, next_hop))?.message_timeout;
        if !self.messages.reserve(Budget::Forward) {
            return Err(ForwardError::Full);
        }
        let credits = self.ni(ni).peer_share;
        let Some(peer) = self.peers.acquire(&next_hop, credits) else {
            self.messages.unreserve(Budget::Forward);
            return Err(ForwardError::PeersFull);
        };
        let length_bytes = header.payload_length;
        let payload =
            (length_bytes > 0).then_some(Span { buffer: buffer.into(), offset_bytes, length_bytes });
        let peer = PeerSlot(peer);
        let transmit = Transmit { tx: TxId(NONE), ni, next_hop, peer, header, payload };
        self.launch(now, MessageState::new(Purpose::Forward { buffer }, transmit, deadline));
        self.wake();
        Ok(())
    }

    /// The next message that was sent on and has ended, well or not.
    pub fn poll_forwarded(&mut self) -> Option<Forwarded> {
        let message = self.messages.next_forwarded()?;
        let record = self.messages.record(&message);
        let Purpose::Forward { buffer } = record.purpose else {
            unreachable!("only forwarded messages wait here")
        };
        let status = record.status;
        self.messages.forget(message);
        Some(Forwarded { buffer, status })
    }
}
