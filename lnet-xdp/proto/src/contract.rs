//! Values in which an [`Xfer`](crate::Xfer) and its driver speak with each other.

use lnet_core::lnd::{NiId, Path, Span};
use lnet_wire::frame::{FrameHeader, Handshake, Kind, Transfer};
use lnet_wire::{Header, Nid};

use crate::stats::XferDrop;

/// Most messages that travel in one frame.
pub const BUNDLE_MAX: usize = 16;

/// Where a peer is: by which NI, under which NID.
pub(crate) type Address = (NiId, Nid);

/// Paths among which another one is chosen.
pub(crate) const PATH_CANDIDATES_MAX: usize = 8;

/// Payload of a small message: written down after it was sent, and in no run of datagrams.
pub(crate) const SMALL_BYTES_MAX: u32 = 1024;

/// The ticket of a message that was never deferred.
pub(crate) const NO_TICKET: u32 = 0;

/// Ids from the oldest unfinished one that a sender may use at once.
pub(crate) const WINDOW_IDS: u64 = 4096;

/// A path that loses all frames above a length, though both ends take longer ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Narrowed {
    /// The path.
    pub path: Path,
    /// The longest UDP payload that goes by it from now on.
    pub datagram_bytes: u32,
}

/// What a control frame tells about a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Control {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) ticket: u32,
}

/// A frame that has arrived whole: its headers' checksum and, if it has one, its payload's were right.
#[derive(Clone, Debug)]
pub struct Arrived<'a> {
    /// The NI it came by.
    pub ni: NiId,
    /// The address that it came from, as a NID of that NI's net.
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
    pub(crate) const fn address(&self) -> Address {
        (self.ni, self.from)
    }
}

/// What the driver is to do with a frame, or with a message in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Disposition {
    /// Copy what [`Xfer::destination`] names of its payload, from the payload's beginning, then call
    /// [`Xfer::written`].
    ///
    /// [`Xfer::destination`]: crate::Xfer::destination
    /// [`Xfer::written`]: crate::Xfer::written
    Write,
    /// Nothing: the frame is dealt with.
    Done,
    /// Keep the frame; [`Xfer::poll_replay`] says what becomes of it.
    ///
    /// [`Xfer::poll_replay`]: crate::Xfer::poll_replay
    Buffer(BufferId),
    /// Forget it. It was counted.
    Drop(XferDrop),
}

/// A frame that the driver keeps for an [`Xfer`](crate::Xfer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

/// What becomes of a frame that the driver has kept. Its id may be given to another frame at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Replay {
    /// Hand it to [`Xfer::receive`] again.
    ///
    /// [`Xfer::receive`]: crate::Xfer::receive
    Again(BufferId),
    /// Forget it.
    Forget(BufferId),
}

/// A frame to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingFrame {
    /// The NI to send it by.
    pub ni: NiId,
    /// Where it goes.
    pub destination: Nid,
    /// The steering part of its header. Whether the frame is [short](FrameHeader::short) is for the driver to
    /// say.
    pub header: FrameHeader,
    /// The rest of its header; the checksum of a payload is for the driver to add.
    pub transfer: Transfer,
    /// What stands behind the header.
    pub content: Content,
}

/// What stands behind a frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// The content of a HELLO or WELCOME: [`Xfer::handshake`] of this NI.
    ///
    /// [`Xfer::handshake`]: crate::Xfer::handshake
    Handshake,
    /// (A fragment of) a message; behind it as many further messages, [`Xfer::bundled`].
    ///
    /// [`Xfer::bundled`]: crate::Xfer::bundled
    Message {
        /// The LNet header, in a first fragment.
        lnet: Option<Header>,
        /// The payload of this frame.
        payload: Option<Span>,
        /// Further messages, below [`BUNDLE_MAX`].
        bundled: u8,
        /// Whether this payload and those of the further messages are to have checksums.
        checksum: bool,
        /// Whether it was sent before: then it is not sent [short](FrameHeader::short) once more, since that
        /// may be what its receiver cannot take.
        resent: bool,
        /// The shard of the peer that it is for, if frames for one shard may leave in one
        /// [run](crate::XferNi::runs).
        run: Option<u8>,
    },
}

/// A further message of the frame that [`Xfer::poll_transmit`] has just returned.
///
/// [`Xfer::poll_transmit`]: crate::Xfer::poll_transmit
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bundled {
    /// Its id less that of the frame.
    pub id_delta: u16,
    /// Its LNet header.
    pub lnet: Header,
    /// Its payload.
    pub payload: Option<Span>,
}
