//! What the `xdp` LND counts, over rings and over sockets.

/// Why the LND dropped a frame that XDP had steered to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum XdpDrop {
    /// Not a frame to one of this node's NIs, although it reached its ring.
    NotOurs,
    /// The checksum of the headers does not fit them.
    BadChecksum,
    /// A header behind the frame header cannot be read.
    BadHeader,
    /// An LNet header contradicts the frame header.
    HeaderMismatch,
    /// The checksum of a payload does not fit it.
    BadPayload,
    /// It belongs to a sibling shard that has too many handed-over packets to deal with already.
    SiblingBusy,
}

impl XdpDrop {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 6] = [
        Self::NotOurs,
        Self::BadChecksum,
        Self::BadHeader,
        Self::HeaderMismatch,
        Self::BadPayload,
        Self::SiblingBusy,
    ];

    /// The reason as reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::BadChecksum => "bad_checksum",
            Self::BadHeader => "bad_header",
            Self::HeaderMismatch => "header_mismatch",
            Self::BadPayload => "bad_payload",
            Self::SiblingBusy => "sibling_busy",
        }
    }
}

/// What the `xdp` LND of a shard has counted since it was made.
///
/// A frame that arrived on a shard's sockets, or was handed over to it, is taken, refused, forgotten, dropped,
/// handed over, or still kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XdpCounters {
    /// Frames handed to the device, of every kind.
    pub frames_sent: u64,
    /// Of those, frames whose payload was not copied: it lies in registered memory.
    pub frames_sent_in_place: u64,
    /// Frames that were to be sent, and were let go: their next hop was not known, or the device refused.
    pub frames_let_go: u64,
    /// Frames that a test fault has kept back ([`SendFault`](crate::lnd::xdp::SendFault)) until others had
    /// overtaken them, and that were sent then.
    pub frames_overtaken: u64,
    /// Frames that arrived on this shard's sockets, those that it handed over included.
    pub frames_received: u64,
    /// Frames that arrived here and belong to another shard; they were handed over.
    pub frames_misdirected: u64,
    /// Frames that the transfer protocol took, of every kind.
    pub frames_taken: u64,
    /// Frames that it refused; [`XferCounters`](lnet_core::xfer::XferCounters) say why.
    pub frames_refused: u64,
    /// Frames that were kept for it, and in the end not wanted.
    pub frames_forgotten: u64,
    /// Messages that were never sent: without a next hop, by a device that refuses, or answers beyond those that may
    /// wait for a next hop.
    pub messages_refused: u64,
    pub(super) drops: [u64; XdpDrop::ALL.len()],
}

impl XdpCounters {
    /// Frames dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: XdpDrop) -> u64 {
        self.drops[reason as usize]
    }

    pub(super) fn count_drop(&mut self, reason: XdpDrop) {
        self.drops[reason as usize] += 1;
    }
}
