//! The verdict on a packet that arrives: to which shard it goes, or why it passes up. The XDP program and the
//! host ask the same function.

#[cfg(test)]
mod tests;

use crate::packet::{self, Located, Packet, Reason};
use crate::steer::{PolicyWord, QUEUES_MAX, SHARDS_MAX, SteerKey, shard_of};

/// Where the XDP program and the host look up what is configured.
pub trait Tables {
    /// Whether a packet goes to the interface itself, and to the address and port of one of its NIs.
    fn is_ours(&self, located: &Located) -> bool;
    /// The policy of a portal below [`crate::steer::PORTALS`].
    fn policy(&self, portal: u8) -> PolicyWord;
    /// Shards of this node; 0 before it has any.
    fn shards(&self) -> u32;
}

/// The verdict on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Goes to the socket of this shard on the arriving queue.
    Redirect {
        /// Below the number of shards.
        shard: u32,
        /// The key that it was steered by.
        key: SteerKey,
    },
    /// Up to the kernel's network stack.
    Pass(Reason),
}

/// Decides about one packet that arrived on `queue`.
#[inline(always)]
pub fn steer<P: Packet + ?Sized, T: Tables>(packet: &P, queue: u32, tables: &T) -> Verdict {
    let located = match packet::locate(packet) {
        Ok(located) => located,
        Err(reason) => return Verdict::Pass(reason),
    };
    if !tables.is_ours(&located) {
        return Verdict::Pass(Reason::NotOurs);
    }
    let shards = tables.shards();
    let frame = match packet::frame_header(packet, &located) {
        Ok(frame) => frame,
        Err(reason) => return Verdict::Pass(reason),
    };
    if queue >= QUEUES_MAX || shards == 0 || shards > SHARDS_MAX {
        return Verdict::Pass(Reason::NoShard);
    }
    // Looking a policy up costs more than all else that is decided here.
    let shard = if shards == 1 {
        0
    } else {
        let policy = tables.policy(frame.key.portal);
        // Read once more: a program that keeps it across that call keeps it for frames that do not make the
        // call, too.
        let Some(key) = packet::key(packet, &located, &frame) else {
            return Verdict::Pass(Reason::Truncated);
        };
        shard_of(&key, policy, shards)
    };
    Verdict::Redirect { shard, key: frame.key }
}
