//! What [`Streams`](super::Streams) are told, and tell.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::super::Reactor;
use super::super::buffers::Buffer;

/// Sizes of [`Streams`](super::Streams).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamsConfig {
    /// Streams at once, less than 2^24.
    pub streams_max: u32,
    /// Buffers of bytes that have arrived and were not given back; a power of two, at most 32768.
    pub receive_buffers: u16,
    /// Bytes of each, at most 2^24.
    pub receive_buffer_bytes: u32,
    /// A lease of so many bytes is worth a send without copying.
    pub zero_copy_min_bytes: u32,
    /// How bytes are moved.
    pub reactor: Reactor,
}

/// A stream. The id of one that was closed or detached means nothing any more: what is asked for it is
/// ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl StreamId {
    /// A number that no other stream has at the same time, less than how many there may be.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A socket that streams are accepted from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(super) u32);

/// How bytes are received into provided buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Again and again, until the stream is paused or ends.
    Many,
    /// Once, and at most as much as a buffer holds.
    Once,
    /// Once, and at most so many bytes, of which there is one at least; no more than a buffer holds.
    UpTo(u32),
}

/// Bytes that have arrived. They are in a buffer of their streams: give it back with
/// [`Streams::give_back`](super::Streams::give_back).
#[derive(PartialEq, Eq, Debug)]
#[must_use = "its buffer is to be given back"]
pub struct ReceivedBytes {
    pub(super) buffer: Buffer,
    pub(super) length: u32,
}

impl ReceivedBytes {
    /// How many.
    pub fn length_bytes(&self) -> usize {
        self.length as usize
    }
}

/// What has happened.
#[derive(Debug)]
pub enum StreamEvent {
    /// A peer has connected.
    Accepted {
        /// The new stream. Nothing is received until that is asked for.
        id: StreamId,
        /// The peer's address.
        from: SocketAddr,
        /// The address that it has connected to.
        local: SocketAddr,
    },
    /// A dial has ended. After an error, the stream is to be closed.
    Dialled {
        /// The stream.
        id: StreamId,
        /// Its local address.
        result: Result<SocketAddr, Errno>,
    },
    /// Bytes have arrived.
    Received {
        /// The stream.
        id: StreamId,
        /// Bytes that arrived, never none.
        bytes: ReceivedBytes,
    },
    /// Bytes wait in the kernel, or none will come any more, as [`Streams::await_bytes`] has asked.
    ///
    /// [`Streams::await_bytes`]: super::Streams::await_bytes
    Readable {
        /// The stream.
        id: StreamId,
    },
    /// Nothing is received any more, as was asked for.
    Paused {
        /// The stream.
        id: StreamId,
    },
    /// The kernel has taken queued bytes, and with zero copy let go of them.
    Sent {
        /// The stream.
        id: StreamId,
        /// How many, since the last such event, in the order of the stream.
        bytes: u64,
    },
    /// Nothing will arrive any more. It is told once, after all that has arrived; the stream is to be closed.
    Ended {
        /// The stream.
        id: StreamId,
        /// `None` at the end of the stream.
        error: Option<Errno>,
    },
    /// A stream that its user has closed has gone: the kernel uses none of what was lent to it.
    Closed {
        /// What was the stream.
        id: StreamId,
    },
    /// The stream is another's from now on.
    Detached {
        /// The stream.
        id: StreamId,
        /// Its socket.
        socket: OwnedFd,
    },
}

impl StreamEvent {
    /// The stream that it is about.
    pub fn id(&self) -> StreamId {
        match *self {
            Self::Accepted { id, .. }
            | Self::Dialled { id, .. }
            | Self::Received { id, .. }
            | Self::Readable { id }
            | Self::Paused { id }
            | Self::Sent { id, .. }
            | Self::Ended { id, .. }
            | Self::Closed { id }
            | Self::Detached { id, .. } => id,
        }
    }
}

/// What streams have done since they were made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StreamCounters {
    /// Bytes that were received straight into their place.
    pub placed_bytes: u64,
    /// Bytes that were received into provided buffers, from where their user copies them.
    pub copied_bytes: u64,
    /// Bytes that the kernel has taken to send.
    pub sent_bytes: u64,
    /// Bytes among them that it has not copied.
    pub zero_copy_bytes: u64,
    /// Streams that were accepted.
    pub accepted: u64,
    /// Peers that had gone before their stream was accepted, and failures to accept one.
    pub accept_errors: u64,
    /// Dials that went well.
    pub dialled: u64,
    /// Times that a receive found no provided buffer.
    pub buffers_lacking: u64,
}
