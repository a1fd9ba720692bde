//! Which Put is which: both ends derive everything about a Put from its number.

use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_wire::steer::{Policy, Spread};

/// Match bits that each portal has an entry for.
pub const MATCH_BITS: u64 = 16;
/// Puts that one shard of the initiator has under way at most.
pub const WINDOW: usize = 16;
/// Shards that an initiator may have: each has places of its own in the target's buffers.
pub const INITIATOR_SHARDS_MAX: usize = 4;
/// Places for Puts under way in each of the target's buffers.
pub const PLACES: usize = WINDOW * INITIATOR_SHARDS_MAX;

/// Largest payload of a Put, and how far apart the places are: several frames at the MTU of Ethernet.
pub const PUT_MAX_BYTES: u32 = 1 << 14;
/// How long a message may be under way.
pub const LND_TIMEOUT: Duration = Duration::from_secs(5);

/// Numbers that a Put may have: the target keeps a bit for each, 32 MiB a shard at most.
pub const NUMBERS_MAX: u64 = 1 << 28;

/// The portals of the load and their policies: each policy there is, on two portals.
#[must_use]
pub fn policies(shards: u32) -> Vec<(u8, Policy)> {
    let last = (shards - 1) as u8;
    let mut table = [0; 8];
    for (index, shard) in table.iter_mut().enumerate() {
        *shard = (index as u32 % shards) as u8;
    }
    vec![
        (10, Policy::MatchBits { shift: 0, bits: 16, spread: Spread::Hash }),
        (11, Policy::MatchBits { shift: 2, bits: 2, spread: Spread::Hash }),
        (12, Policy::MatchBits { shift: 0, bits: 3, spread: Spread::Table(table) }),
        (13, Policy::MatchBits { shift: 1, bits: 1, spread: Spread::Table(table) }),
        (14, Policy::Pin(0)),
        (15, Policy::Pin(last)),
        (16, Policy::Initiator),
        (17, Policy::Rotor),
    ]
}

/// What a shard of either end holds. A descriptor of the target may have all Puts under way in its queue
/// at once, and the UNLINK event.
#[must_use]
pub fn limits() -> Limits {
    let unlimited_events = PLACES as u32 + 2;
    let entries = PORTALS as u32 * MATCH_BITS as u32;
    Limits { unlimited_events, events: entries * unlimited_events, ..Limits::DEFAULT }
}

/// First portal of the load.
pub const FIRST_PORTAL: u8 = 10;
/// Number of portals of the load.
pub const PORTALS: u64 = 8;

/// What is fixed about a Put by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// Number of the Put, from 0; travels as header data.
    pub number: u64,
    /// Portal.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
}

impl Put {
    /// The Put of this number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let hash = mix(number);
        Self {
            number,
            portal: u32::from(FIRST_PORTAL) + (hash % PORTALS) as u32,
            match_bits: (hash >> 16) % MATCH_BITS,
        }
    }

    /// Its payload length: `fixed_bytes` if given, else any up to `max_bytes`.
    #[must_use]
    pub fn length_bytes(&self, fixed_bytes: Option<u32>, max_bytes: u32) -> u32 {
        fixed_bytes.unwrap_or_else(|| (mix(self.number ^ 0x5EED) % (u64::from(max_bytes) + 1)) as u32)
    }

    /// Writes its payload.
    pub fn fill(&self, payload: &mut [u8]) {
        let mut state = mix(self.number);
        for word in payload.chunks_mut(8) {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
    }

    /// Whether `payload` is what [`Put::fill`] wrote.
    #[must_use]
    pub fn verify(&self, payload: &[u8]) -> bool {
        let mut state = mix(self.number);
        payload.chunks(8).all(|word| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            *word == state.to_le_bytes()[..word.len()]
        })
    }
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_verifies_only_as_its_own() {
        for length in [0, 1, 7, 8, 9, 1000] {
            let mut payload = vec![0; length];
            Put::new(7).fill(&mut payload);
            assert!(Put::new(7).verify(&payload));
            if length > 0 {
                assert!(!Put::new(8).verify(&payload), "length {length}");
                payload[length / 2] ^= 1;
                assert!(!Put::new(7).verify(&payload), "length {length}");
            }
        }
    }

    #[test]
    fn numbers_reach_every_portal_and_all_match_bits() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            let put = Put::new(number);
            seen.insert((put.portal, put.match_bits));
        }
        assert_eq!(seen.len() as u64, PORTALS * MATCH_BITS);
    }
}
