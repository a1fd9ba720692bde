//! What the `xdp` LND counts, over rings and over sockets.

use lnet_io::driver::Counted;
use lnet_xdp_proto::XferDrop;

use super::XdpLnd;

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
    PayloadCorrupt,
    /// The packet belongs to a sibling shard that has too many handed-over packets to deal with already.
    SiblingBusy,
}

impl XdpDrop {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 6] = [
        Self::NotOurs,
        Self::BadChecksum,
        Self::BadHeader,
        Self::HeaderMismatch,
        Self::PayloadCorrupt,
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
            Self::PayloadCorrupt => "payload_corrupt",
            Self::SiblingBusy => "sibling_busy",
        }
    }
}

/// What the `xdp` LND of a shard has counted since it was made.
///
/// A frame that arrived on a shard's sockets, or was handed over to it, is taken, refused, forgotten,
/// dropped, handed over, or still kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XdpCounters {
    /// Frames handed to the device, of every kind.
    pub frames_sent: u64,
    /// Sent frames whose payload was not copied: it lies in registered memory.
    pub frames_sent_in_place: u64,
    /// Bytes of payload that were copied into sent frames.
    pub payload_bytes_copied_out: u64,
    /// Bytes of payload that were sent where they lie.
    pub payload_bytes_in_place: u64,
    /// Sent frames that an NI over rings has handed to a socket beside these.
    pub frames_sent_by_socket: u64,
    /// Frames that were to be sent, and were let go: their next hop was not known, or the device refused.
    pub frames_let_go: u64,
    /// Questions for next hops that found no room in their queue; what asked goes later, or comes again.
    pub hops_unasked: u64,
    /// Frames that a test fault has kept back ([`SendFault`](crate::lnd::SendFault)) until others had
    /// overtaken them, and that were sent then.
    pub frames_overtaken: u64,
    /// Frames that arrived on this shard's sockets, those that it handed over included.
    pub frames_received: u64,
    /// Frames among them that came by UDP sockets: XDP has steered none of these.
    pub datagrams_received: u64,
    /// Frames that arrived here and belong to another shard; they were handed over.
    pub frames_misdirected: u64,
    /// Frames among them that came by UDP sockets.
    pub datagrams_misdirected: u64,
    /// Frames that the transfer protocol took, of every kind.
    pub frames_taken: u64,
    /// Frames that it refused; [`XferCounters`](lnet_xdp_proto::XferCounters) say why.
    pub frames_refused: u64,
    /// Frames that were kept for it, and in the end not wanted.
    pub frames_forgotten: u64,
    /// Messages that were never sent: without a next hop, by a device that refuses, or answers beyond those
    /// that may wait for a next hop.
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

impl XdpLnd {
    /// See [`Driver::count`](lnet_io::driver::Driver::count).
    pub(super) fn tell_counters(
        &self,
        tell: &mut dyn FnMut(Counted, &'static str, u64),
    ) -> std::io::Result<()> {
        let (frames, recovery) = (self.counters(), self.transfer_counters());
        tell(Counted::Misdirected, "frames", frames.frames_misdirected - frames.datagrams_misdirected);
        tell(Counted::Sockets, "received", frames.datagrams_received);
        tell(Counted::Sockets, "misdirected", frames.datagrams_misdirected);
        tell(Counted::Sockets, "no_room", self.datagrams_dropped());
        let arrived_by_gone = self.arrived_by_gone().map_err(std::io::Error::other)?;
        tell(Counted::ArrivedByGone, "frames", arrived_by_gone);
        for reason in XdpDrop::ALL {
            tell(Counted::Drops, reason.name(), frames.dropped(reason));
        }
        tell(Counted::Drops, "refused", frames.messages_refused);
        tell(Counted::Handled, "taken", frames.frames_taken);
        tell(Counted::Handled, "refused", frames.frames_refused);
        tell(Counted::Handled, "forgotten", frames.frames_forgotten);
        tell(Counted::Handled, "dropped", frames.drops.iter().sum());
        for reason in XferDrop::ALL {
            tell(Counted::Recovery, reason.name(), recovery.dropped(reason));
        }
        for (name, count) in [
            ("frames sent", recovery.frames_sent),
            ("frames resent", recovery.frames_resent),
            ("frames sent anew", recovery.frames_sent_anew),
            ("messages deferred", recovery.messages_deferred),
            ("messages pulled", recovery.messages_pulled),
            ("probes", recovery.probes),
            ("messages bundled", recovery.messages_bundled),
            ("acks alone", recovery.acks_sent),
            ("hellos", recovery.hellos_sent),
            ("resets", recovery.resets_sent),
            ("answers dropped", recovery.replies_dropped),
            ("frames buffered", recovery.frames_buffered),
            ("backoffs", recovery.backoffs),
            ("paths lossy", recovery.paths_lossy),
            ("paths slow", recovery.paths_slow),
            ("paths narrowed", recovery.paths_narrowed),
            ("frames let go", frames.frames_let_go),
            ("next hops unasked", frames.hops_unasked),
            ("frames beside rings", frames.frames_sent_by_socket),
            ("payload bytes copied", recovery.payload_bytes_copied),
            ("payload bytes copied out", frames.payload_bytes_copied_out),
            ("payload bytes in place", frames.payload_bytes_in_place),
        ] {
            tell(Counted::Recovery, name, count);
        }
        for rings in self.ring_statistics().map_err(std::io::Error::other)? {
            tell(Counted::Rings, "rx_dropped", rings.rx_dropped);
            tell(Counted::Rings, "rx_ring_full", rings.rx_ring_full);
            tell(Counted::Rings, "rx_fill_ring_empty", rings.rx_fill_ring_empty_descs);
            tell(Counted::Rings, "rx_invalid_descs", rings.rx_invalid_descs);
            tell(Counted::Rings, "tx_invalid_descs", rings.tx_invalid_descs);
        }
        Ok(())
    }
}
