//! What an [`Xfer`](super::Xfer) has counted, and what it holds.

use lnet_wire::named;

named! {
    /// Why a frame, or a message in it, was dropped. What is not acknowledged comes again.
    #[non_exhaustive]
    XferDrop {
        /// Fields that contradict each other or break a rule of the protocol.
        Malformed => "malformed",
        /// A frame that names no session of this node, or one that can no longer be opened.
        UnknownSession => "unknown_session",
        /// An answer to a question that was not asked, or has been answered.
        Unasked => "unasked",
        /// A frame that was here already.
        Duplicate => "duplicate",
        /// Its id lies beyond the window.
        BeyondWindow => "beyond_window",
        /// A frame that acknowledges what was never sent, or not in this session.
        BadAck => "bad_ack",
        /// A frame that is about a deferred message that is not known.
        UnknownTicket => "unknown_ticket",
        /// Every slot for a peer or a shard of a peer is in use.
        PeersFull => "peers_full",
        /// Every slot for a message that arrives is in use.
        IncomingFull => "incoming_full",
        /// A fragment ahead of its first one, and no more may be kept.
        TooEarly => "too_early",
        /// Its sender does not show that it lives where the frame comes from.
        BadIdentity => "bad_identity",
        /// Too much was to be checked of late of those who come from there.
        Unchecked => "unchecked",
    }
}

/// What an [`Xfer`](super::Xfer) has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XferCounters {
    /// Frames with data, or about deferred messages, that were polled.
    pub frames_sent: u64,
    /// Sent frames whose content had been sent before, and counted as lost.
    pub frames_resent: u64,
    /// Sent frames whose content had been sent before its message began anew, mostly since the receiver had
    /// deferred it. Messages in the frame of another one count like frames.
    pub frames_sent_anew: u64,
    /// Sent frames that probed, since nothing had been heard for too long.
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
    /// Deferred messages that were asked for again.
    pub messages_pulled: u64,
    /// Frames that the driver was asked to keep.
    pub frames_buffered: u64,
    /// Bytes of payload that were copied out of frames to where they belong.
    pub payload_bytes_copied: u64,
    /// Times that a sender has narrowed its window.
    pub backoffs: u64,
    /// Times that a path was found to lose far more frames than another one to the same peer.
    pub paths_lossy: u64,
    /// Times that a path was found to take far longer than another one to the same peer.
    pub paths_slow: u64,
    /// Times that a path was found to lose all long frames, and got shorter ones from then on.
    pub paths_narrowed: u64,
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
