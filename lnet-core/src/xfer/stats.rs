//! What an [`Xfer`](super::Xfer) has counted, and what it holds.

use crate::names;

/// Why a frame, or a message in it, was dropped. What is not acknowledged comes again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum XferDrop {
    /// Fields that contradict each other or break a rule of the protocol.
    Malformed,
    /// It names no session of this node, or one that can no longer be opened.
    UnknownSession,
    /// An answer to a question that was not asked, or has been answered.
    Unasked,
    /// It was here already.
    Duplicate,
    /// Its id lies beyond the window.
    BeyondWindow,
    /// It acknowledges what was never sent, or not in this session.
    BadAck,
    /// It is about a deferred message that is not known.
    UnknownTicket,
    /// Every slot for a peer or a shard of a peer is in use.
    PeersFull,
    /// Every slot for a message that arrives is in use.
    IncomingFull,
    /// A fragment ahead of its first one, and no more may be kept.
    TooEarly,
    /// Its sender does not show that it lives where the frame comes from.
    BadIdentity,
    /// Too much was to be checked of late of those who come from there.
    Unchecked,
}

impl XferDrop {
    const NAMES: [(Self, &str); 12] = [
        (Self::Malformed, "malformed"),
        (Self::UnknownSession, "unknown_session"),
        (Self::Unasked, "unasked"),
        (Self::Duplicate, "duplicate"),
        (Self::BeyondWindow, "beyond_window"),
        (Self::BadAck, "bad_ack"),
        (Self::UnknownTicket, "unknown_ticket"),
        (Self::PeersFull, "peers_full"),
        (Self::IncomingFull, "incoming_full"),
        (Self::TooEarly, "too_early"),
        (Self::BadIdentity, "bad_identity"),
        (Self::Unchecked, "unchecked"),
    ];
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 12] = names::values(&Self::NAMES);

    /// The reason as reports name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

const _: () = assert!(XferDrop::ALL[XferDrop::ALL.len() - 1] as usize == XferDrop::ALL.len() - 1);

/// What an [`Xfer`](super::Xfer) has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XferCounters {
    /// Frames with data, or about deferred messages, that were polled.
    pub frames_sent: u64,
    /// Of these the ones whose content had been sent before.
    pub frames_resent: u64,
    /// Of these the ones that were sent because nothing had been heard for too long.
    pub probes: u64,
    /// Messages that travelled in the frame of another one.
    pub messages_bundled: u64,
    /// Acknowledgements that travelled alone.
    pub acks_sent: u64,
    /// HELLOs.
    pub hellos_sent: u64,
    /// Sessions given.
    pub welcomes_sent: u64,
    /// Sessions refused.
    pub resets_sent: u64,
    /// Answers, and frames that are not acknowledged, that found no room.
    pub replies_dropped: u64,
    /// Peers that have begun a new life.
    pub peers_restarted: u64,
    /// Messages whose header was kept without their payload.
    pub messages_deferred: u64,
    /// Of these the ones that were asked for again.
    pub messages_pulled: u64,
    /// Frames that the driver was asked to keep.
    pub frames_buffered: u64,
    /// Times that a sender has narrowed its window.
    pub backoffs: u64,
    drops: [u64; XferDrop::ALL.len()],
}

impl XferCounters {
    /// Frames and messages dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: XferDrop) -> u64 {
        self.drops[reason as usize]
    }

    pub(super) const fn count_drop(&mut self, reason: XferDrop) {
        self.drops[reason as usize] += 1;
    }
}

/// What an [`Xfer`](super::Xfer) holds at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XferUsage {
    /// Messages that it is to send, deferred ones included.
    pub messages: u32,
    /// Messages that arrive, delayed ones included.
    pub incoming: u32,
    /// Messages of several frames that arrive.
    pub partials: u32,
    /// Frames that are sent and not acknowledged, or to be sent again.
    pub frames: u32,
    /// Frames that the driver keeps.
    pub buffered: u32,
    /// Incarnations of peers.
    pub peers: u32,
    /// Shards of peers that it sends to.
    pub send_streams: u32,
    /// Shards of peers that it receives from.
    pub receive_streams: u32,
}
