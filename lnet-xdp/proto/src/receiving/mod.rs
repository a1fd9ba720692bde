//! The receiving side: frames become messages, each at most once, and are acknowledged.
//!
//! Invariants:
//! - A window for each stream, which the sender's oldest unfinished id moves, remembers which messages have
//!   been here: so a message is delivered at most once, over any rails its frames come.
//! - A frame is acknowledged only when its payload is in place, or will never be wanted.
//! - All tables are bounded; what finds no room is not acknowledged, counted, and sent again by its sender.
//! - Asks sessions, and has control frames sent by the sending side; neither calls back.

mod acknowledge;
mod admit;
mod arrivals;
mod buffer;
mod deferred;
mod fragments;
mod frames;
mod stream;
mod timers;
mod window;

use alloc::collections::VecDeque;

use lnet_core::collections::{List, NONE, Schedule, Seed, Slab, slot_bytes};
use lnet_core::time::Instant;
use lnet_wire::steer::SHARDS_MAX;

use self::arrivals::{Arrivals, UnitMaps};
use self::buffer::BufferedFrames;
pub(super) use self::fragments::Fragment;
pub(super) use self::fragments::Writing;
pub(super) use self::stream::ReceiveStream;
use self::stream::{AcksDue, Busy, Recent};
use self::window::Window;
use super::config::XferConfig;
use super::local::{BySlot, Streams};
use super::sending::SendingSide;
use super::sessions::Sessions;
use crate::contract::Arrived;

/// Bytes that a peer takes of which messages come from one shard.
pub(super) const PEER_BYTES: usize =
    slot_bytes::<ReceiveStream>() + size_of::<Window>() + size_of::<Streams>();

/// What a call works with besides the tables of the receiving side.
pub(super) struct ReceiveContext<'a, U> {
    pub(super) sessions: &'a mut Sessions,
    /// Tells the senders of messages what becomes of them.
    pub(super) sending: &'a mut SendingSide,
    pub(super) up: &'a mut U,
}

impl<U> ReceiveContext<'_, U> {
    pub(super) const fn now(&self) -> Instant {
        self.sessions.local.now
    }
}

/// What one shard receives.
pub(super) struct ReceivingSide {
    pub(super) streams: Slab<ReceiveStream>,
    /// Windows by the slot of their stream. What is in one means nothing until it has begun.
    windows: BySlot<Window>,
    /// How many of them one address may have: whatever it pretends to be, others find room.
    streams_per_address: u32,
    /// Streams by the slot of their peer.
    peers: BySlot<Streams>,
    pub(super) acks: List<AcksDue>,
    /// When an acknowledgement that waits is due, or sooner.
    ack_timers: Schedule,
    busy: List<Busy>,
    busy_count: u32,
    recent: List<Recent>,
    pub(super) arrivals: Arrivals,
    pub(super) maps: UnitMaps,
    pub(super) buffer: BufferedFrames,
    /// Messages that were given up with an NI, or for lasting too long, as stream and id: their senders go
    /// on with them, so nothing of them is acknowledged. As many as may have been arriving, the last ones.
    given_up: VecDeque<(u32, u64)>,
    /// The copy that [`ReceivingSide::written`] will conclude.
    pub(super) writing: Option<Writing>,
    /// Whether a message of the frame at hand was not taken.
    bundle_spoiled: bool,
    /// Bytes of frames that the shard can take at once.
    pub(super) receive_bytes: u32,
}

impl ReceivingSide {
    pub(super) fn new(config: &XferConfig) -> Self {
        let limits = &config.limits;
        let seed = Seed::new(config.seed);
        let room = limits.streams.min(limits.peers);
        Self {
            streams: Slab::new(limits.streams),
            windows: BySlot::new(limits.streams, Window::new),
            streams_per_address: (room / 8).max(SHARDS_MAX).min(room / 2),
            peers: BySlot::new(limits.peers, || [NONE; SHARDS_MAX as usize]),
            acks: List::new(),
            ack_timers: Schedule::new(limits.streams),
            busy: List::new(),
            busy_count: 0,
            recent: List::new(),
            arrivals: Arrivals::new(limits.incoming, seed),
            maps: UnitMaps::new(limits.partials),
            buffer: BufferedFrames::new(limits.buffered),
            given_up: VecDeque::with_capacity(limits.incoming as usize),
            writing: None,
            bundle_spoiled: false,
            receive_bytes: config.receive_bytes,
        }
    }

    /// The stream from a shard of a peer.
    #[inline]
    pub(super) fn stream_from(&self, (peer, shard): (u32, u8)) -> Option<u32> {
        let stream = self.peers[peer][usize::from(shard)];
        (stream != NONE).then_some(stream)
    }

    /// The stream that a frame belongs to, if there is one.
    #[inline]
    fn stream_of(&self, frame: &Arrived<'_>, sessions: &Sessions) -> Option<u32> {
        self.stream_from((sessions.sender(frame)?, frame.transfer.shard))
    }

    /// Whether nothing is received from a peer.
    pub(super) fn is_idle(&self, peer: u32) -> bool {
        self.peers[peer].iter().all(|stream| *stream == NONE)
    }
}
