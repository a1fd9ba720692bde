//! Frames that answer, ask and acknowledge: none of them is acknowledged itself.

use lnet_wire::Nid;
use lnet_wire::frame::{Ack, FrameHeader, Kind, Transfer};

use super::Sessions;
use crate::lnd::NiId;
use crate::xfer::{Content, Outgoing};

/// Replies that wait for room for a frame; further ones are not given.
pub(crate) const REPLIES_MAX: usize = 64;

/// A frame that waits to be polled, and that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Hello {
        ni: NiId,
        nid: Nid,
        nonce: u64,
    },
    Welcome {
        ni: NiId,
        nid: Nid,
        nonce: u64,
        shard: u8,
        token: u64,
    },
    Reset {
        ni: NiId,
        nid: Nid,
        shard: u8,
        session: u64,
    },
    /// An acknowledgement that cannot wait: a later one would not tell of the oldest frames any more.
    Ack {
        ni: NiId,
        nid: Nid,
        shard: u8,
        token: u64,
        ack: Ack,
    },
}

impl Reply {
    /// The interface that it is to be sent by.
    pub(crate) const fn ni(&self) -> NiId {
        match self {
            Self::Hello { ni, .. }
            | Self::Welcome { ni, .. }
            | Self::Reset { ni, .. }
            | Self::Ack { ni, .. } => *ni,
        }
    }
}

impl Sessions {
    /// Queues a reply, if there is room.
    pub(crate) fn reply(&mut self, reply: Reply) {
        // Peers that ask leave room for what this node says of its own accord.
        let room = match reply {
            Reply::Welcome { .. } | Reply::Reset { .. } => REPLIES_MAX / 2,
            Reply::Hello { .. } | Reply::Ack { .. } => REPLIES_MAX,
        };
        if self.replies.len() < room {
            self.replies.push_back(reply);
        } else {
            self.local.counters.replies_dropped += 1;
        }
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
    pub(crate) fn poll_reply(&mut self) -> Option<Outgoing> {
        let reply = self.replies.pop_front()?;
        Some(self.reply_frame(reply))
    }

    fn reply_frame(&mut self, reply: Reply) -> Outgoing {
        let mut carried = None;
        let (ni, destination, to_shard, kind, id, session, content) = match reply {
            Reply::Hello { ni, nid, nonce } => {
                self.local.counters.hellos_sent += 1;
                // One that it has been given shows that its certificate was good once.
                let session = self.paths.find(ni, &nid).and_then(|path| self.paths[path].session);
                let token = session.map_or(0, |session| session.token);
                (ni, nid, self.local.shard, Kind::Hello, nonce, token, Content::Handshake)
            }
            Reply::Welcome { ni, nid, nonce, shard, token } => {
                self.local.counters.welcomes_sent += 1;
                (ni, nid, shard, Kind::Welcome, nonce, token, Content::Handshake)
            }
            Reply::Reset { ni, nid, shard, session } => {
                self.local.counters.resets_sent += 1;
                (ni, nid, shard, Kind::Reset, 0, session, Content::Nothing)
            }
            Reply::Ack { ni, nid, shard, token, ack } => {
                self.local.counters.acks_sent += 1;
                carried = Some(ack);
                (ni, nid, shard, Kind::Ack, 0, token, Content::Nothing)
            }
        };
        let transfer = Transfer { ack: carried, ..self.local.transfer(0, session) };
        Outgoing { ni, destination, header: FrameHeader::other(kind, to_shard, id), transfer, content }
    }
}
