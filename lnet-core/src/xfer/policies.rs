//! Policies that change while sessions last.
//!
//! Numbers of frames belong to pairs of shards, so a frame that was steered by another policy must not be taken for
//! one of its new shard's. Therefore session tokens are keyed by the policies as well: what was sent under others
//! is answered by RESET, and its sender learns the new ones with its next session.

use lnet_wire::steer::{PORTALS, PolicyWord, SteerKey};

use super::message::Stage;
use super::session::Tokens;
use super::state::Xfer;
use crate::lnd::Uplink;
use crate::time::Instant;

impl Xfer {
    /// Other policies hold from now on; all shards of the node get the same. Peers ask for new sessions.
    pub fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        if self.policies == *policies {
            return;
        }
        self.policies = *policies;
        self.tokens = Tokens::new(self.secret, policies);
        for inflow in 0..self.inflows.capacity() {
            if self.inflows.get(inflow).is_some() {
                self.inflows[inflow].is_examined = false;
            }
        }
    }

    /// A peer has told its policies anew: messages that belong to other shards of its now go there, unless frames
    /// of them have been sent, whose fate nobody knows.
    pub(super) fn steer_again(&mut self, now: Instant, peer: u32, up: &mut impl Uplink) {
        for slot in 0..self.messages.capacity() {
            let Some(message) = self.messages.get(slot) else { continue };
            let is_under_way = matches!(message.stage, Stage::Queued | Stage::Sent);
            if !is_under_way || message.peer != peer || self.shard_now(slot) == Some(message.shard) {
                continue;
            }
            self.begin_anew(now, slot, up);
        }
    }

    /// The shard of its peer that a message with an id belongs to.
    fn shard_now(&self, slot: u32) -> Option<u8> {
        let message = &self.messages[slot];
        let key = SteerKey::of(&message.transmit.header, message.id, self.initiator_hash)?;
        Some(self.peers.slab[message.peer].steering.as_ref()?.shard_of(&key))
    }
}
