//! What a message is sent as when nothing is in its way, known before any of it is written down.
//!
//! Invariant: a preview is the frame that [`Xfer::poll_transmit`] returns when the message is submitted next, at the
//! same time, so that a driver may send it first and have the tables follow while it is under way.

use lnet_wire::frame::{FrameHeader, Transfer};
use lnet_wire::steer::SteerKey;

use super::congestion::frame_cost;
use super::outgoing::{BUNDLED_BYTES_MAX, HEADERS_BYTES};
use super::state::Xfer;
use super::window::WINDOW_IDS;
use super::{Content, Outgoing};
use crate::list::NONE;
use crate::lnd::Transmit;
use crate::time::Instant;

impl Xfer {
    /// The frame that [`Xfer::poll_transmit`] returns next if this message is submitted now; `None` if that takes
    /// more to say: unless the message is small, goes where one was sent before, and nothing waits or is lost there. A
    /// message that has a preview is taken for certain.
    #[inline]
    #[must_use]
    pub fn preview(&self, now: Instant, transmit: &Transmit) -> Option<Outgoing> {
        let &Transmit { ni, next_hop, ref header, payload, .. } = transmit;
        let length = payload.map_or(0, |span| span.length_bytes);
        let is_first = self.replies.is_empty() && self.ready.is_empty();
        if !is_first || length > BUNDLED_BYTES_MAX || self.messages.is_full() || self.is_short_of_records() {
            return None;
        }
        let contact = self.contacts.last(ni, &next_hop)?;
        let peer = self.peers.slab.get(contact.peer)?;
        let session = contact.session.as_ref()?;
        let id = peer.next_id;
        let key = SteerKey::of(header, id, self.initiator_hash)?;
        let shard = usize::from(peer.steering.as_ref()?.shard_of(&key));
        let flow = self.flows.get(peer.flows[shard])?;
        let oldest = id - peer.oldest_id(&self.messages);
        let is_aged = session.is_aged(now) && !flow.is_open(now, self.times.message);
        if oldest >= WINDOW_IDS
            || is_aged
            || flow.has_more()
            || flow.probes_due != 0
            || flow.takes_detour(now)
        {
            return None;
        }
        let datagram_bytes = HEADERS_BYTES + length;
        let cost_bytes = frame_cost(datagram_bytes);
        if datagram_bytes > session.datagram_max_bytes.min(self.own_datagram_max(ni))
            || (!flow.has_room_for(cost_bytes) && flow.in_flight_bytes != 0)
        {
            return None;
        }
        let inflow = peer.inflows[shard];
        let transfer = Transfer {
            oldest: oldest as u16,
            ack_now: !flow.has_room_for(2 * cost_bytes),
            ack: if inflow == NONE { None } else { self.acknowledged_by(inflow) },
            ..self.transfer(flow.next_number, session.token)
        };
        Some(Outgoing {
            ni,
            destination: next_hop,
            header: FrameHeader::data(key, 0, length),
            transfer,
            content: Content::Message {
                lnet: Some(*header),
                payload: payload.filter(|_| length != 0),
                bundled: 0,
                resent: false,
            },
        })
    }
}
