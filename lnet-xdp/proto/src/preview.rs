//! What a message is sent as when nothing is in its way, known before any of it is written down.
//!
//! Invariant: a preview is the frame that [`Xfer::poll_transmit`] returns when the message is submitted next,
//! at the same time, so that a driver may send it first and have the tables follow while it is under way.
//!
//! Decision: the frame is reckoned twice, here and when it is polled. Without the preview a lone 64-byte Put
//! loses 11 % (docs/performance-log.md); the simulator checks that both are equal.

use lnet_core::lnd::Transmit;
use lnet_core::time::Instant;
use lnet_wire::frame::{FrameHeader, Transfer};
use lnet_wire::steer::SteerKey;

use super::machine::Xfer;
use super::sending::{HEADERS_BYTES, frame_cost};
use crate::contract::{Content, OutgoingFrame, SMALL_BYTES_MAX, WINDOW_IDS};

impl Xfer {
    /// The frame that [`Xfer::poll_transmit`] returns next if this message is submitted now; `None` if that
    /// takes more to say: unless the message is small, goes where one was sent before, and nothing waits or
    /// is lost there. A message that has a preview is taken for certain.
    #[inline]
    #[must_use]
    pub fn preview(&self, now: Instant, transmit: &Transmit) -> Option<OutgoingFrame> {
        let &Transmit { ni, next_hop, ref header, payload, .. } = transmit;
        let length = payload.map_or(0, |span| span.length_bytes);
        let Self { sessions, sending, receiving } = self;
        let is_first = !sessions.has_reply() && !sending.is_ready();
        let is_full = sending.messages.is_full() || sending.free_items() == 0;
        if !is_first || length > SMALL_BYTES_MAX || is_full {
            return None;
        }
        let path = &sessions.paths[sessions.paths.of(transmit)?];
        let steering = sessions.peers.get(path.peer)?.steering.as_ref()?;
        let session = path.session.as_ref()?;
        let peer = &sending.peers[path.peer];
        let id = peer.next_id;
        let key = SteerKey::of(header, id, sessions.local.initiator_hash)?;
        let shard = steering.shard_of(&key);
        let stream = sending.streams.get(peer.streams[usize::from(shard)])?;
        let oldest = id - peer.oldest_id(&sending.messages);
        let is_aged = session.is_aged(now) && !stream.is_open(now, sessions.local.times.message);
        if oldest >= WINDOW_IDS
            || is_aged
            || path.is_silent(now)
            || stream.has_more()
            || stream.probes_due != 0
            || stream.failover_path(now, &sessions.paths).is_some()
        {
            return None;
        }
        let datagram_bytes = HEADERS_BYTES + length;
        let cost_bytes = frame_cost(datagram_bytes);
        if datagram_bytes > session.datagram_max_bytes.min(sessions.own_datagram_max(ni))
            || (!stream.has_room_for(cost_bytes) && stream.in_flight_bytes != 0)
        {
            return None;
        }
        let transfer = Transfer {
            oldest: oldest as u16,
            ack_now: !stream.has_room_for(2 * cost_bytes),
            ack: receiving.would_acknowledge((path.peer, shard)),
            ..sessions.local.transfer(stream.next_number, session.token)
        };
        Some(OutgoingFrame {
            ni,
            destination: next_hop,
            header: FrameHeader::data(key, 0, length),
            transfer,
            content: Content::Message {
                lnet: Some(*header),
                payload: payload.filter(|_| length != 0),
                bundled: 0,
                checksum: sessions.has_checksums(ni, Some(session)),
                resent: false,
                run: None,
            },
        })
    }
}
