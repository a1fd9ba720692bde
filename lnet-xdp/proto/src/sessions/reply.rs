//! Frames that answer, ask and acknowledge: none of them is acknowledged itself.

use lnet_wire::frame::{Ack, FrameHeader, Kind, Transfer};

use super::Sessions;
use crate::contract::{Address, Content, OutgoingFrame};

/// Replies that wait for room for a frame; further ones are not given.
pub(crate) const REPLIES_MAX: usize = 64;

/// A frame that waits to be polled, and that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// [`Kind::Hello`], [`Kind::Welcome`], [`Kind::Reset`] or [`Kind::Ack`].
    pub(crate) kind: Kind,
    /// The NI that it goes by, and where it goes.
    pub(crate) to: Address,
    /// The shard there.
    pub(crate) shard: u8,
    /// Nonce of a question and its answer; the message id of a refused frame; else 0.
    pub(crate) nonce: u64,
    /// The number of a refused frame; else 0.
    pub(crate) number: u32,
    /// The token that it shows, or gives; of a HELLO it is looked up when that is sent.
    pub(crate) session: u64,
    pub(crate) ack: Option<Ack>,
}

impl Sessions {
    /// Queues a reply, if there is room.
    pub(crate) fn reply(&mut self, reply: Reply) {
        // Peers that ask leave room for what this node says of its own accord.
        let is_asked_for = matches!(reply.kind, Kind::Welcome | Kind::Reset);
        if self.replies.len() < if is_asked_for { REPLIES_MAX / 2 } else { REPLIES_MAX } {
            self.replies.push_back(reply);
        } else {
            self.local.counters.replies_dropped += 1;
        }
    }

    /// Queues the question for a session.
    pub(crate) fn reply_hello(&mut self, to: Address, nonce: u64) {
        let shard = self.local.shard;
        self.reply(Reply { kind: Kind::Hello, to, shard, nonce, number: 0, session: 0, ack: None });
    }

    /// Whether a reply waits.
    #[inline]
    pub(crate) fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether there is no room for a reply.
    pub(crate) fn is_full_of_replies(&self) -> bool {
        self.replies.len() == REPLIES_MAX
    }

    /// The next reply as a frame.
    #[inline]
    pub(crate) fn poll_reply(&mut self) -> Option<OutgoingFrame> {
        let reply = self.replies.pop_front()?;
        Some(self.reply_frame(&reply))
    }

    pub(crate) fn reply_frame(&mut self, reply: &Reply) -> OutgoingFrame {
        let &Reply { kind, to: (ni, destination), shard, nonce, number, mut session, ack } = reply;
        let counters = &mut self.local.counters;
        let (counter, content) = match kind {
            Kind::Hello => (&mut counters.hellos_sent, Content::Handshake),
            Kind::Welcome => (&mut counters.welcomes_sent, Content::Handshake),
            Kind::Reset => (&mut counters.resets_sent, Content::Nothing),
            _ => (&mut counters.acks_sent, Content::Nothing),
        };
        *counter += 1;
        if kind == Kind::Hello {
            // A token that it has been given shows that its certificate was good once.
            let given = self.paths.find(ni, &destination).and_then(|path| self.paths[path].session);
            session = given.map_or(0, |session| session.token);
        }
        let transfer = Transfer { ack, ..self.local.transfer(u64::from(number), session) };
        OutgoingFrame { ni, destination, header: FrameHeader::other(kind, shard, nonce), transfer, content }
    }
}
