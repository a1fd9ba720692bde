//! Which shard a match entry must be posted on, so that no message misses it.
//!
//! Shards hand each other the headers that arrived on the wrong one, but each header belongs to one shard by
//! its portal's policy, and only there it is looked for an entry. Under `Rotor` it belongs to none: a shard
//! without a match asks the others, so one of them having the entry is enough.
//!
//! Under `Initiator` frames are steered by the initiator's primary NID, so an entry for unknown initiators is
//! posted on each shard. An entry that steering would keep messages from is refused.

use lnet_core::topology::Steering;
use lnet_wire::nid::ProcessId;
use lnet_wire::steer::{self, Policy, SteerKey};
use lnet_wire::{MessageType, Nid};
use thiserror::Error;

/// Where the messages that an entry can match belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// All on this shard.
    Shard(u32),
    /// The shard that the sender's NID decides: such an entry is posted on each.
    Each,
    /// Any shard: those that have no match ask the others. One of them is enough, whichever; posted on each,
    /// the entry spares them the asking.
    Any,
}

/// Why an entry cannot be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SteeringError {
    /// Its messages arrive on another shard.
    #[error(
        "match bits {match_bits:#x} of portal {portal} are steered to shard {home}, the entry was given to shard \
         {shard}: post it on shard {home}"
    )]
    OtherShard {
        /// The portal.
        portal: u32,
        /// The entry's match bits.
        match_bits: u64,
        /// Where it belongs.
        home: u32,
        /// Where it was to be posted.
        shard: u32,
    },
    /// Its messages arrive on several shards, depending on bits that it ignores.
    #[error(
        "ignore bits {ignore_bits:#x} touch the bits {steering_bits:#x} that portal {portal} is steered by: clear \
         them, or pin the portal to one shard"
    )]
    IgnoresSteeringBits {
        /// The portal.
        portal: u32,
        /// The entry's ignore bits.
        ignore_bits: u64,
        /// The match bits that its portal's policy selects.
        steering_bits: u64,
    },
    /// There is no such portal.
    #[error("portal {0} does not exist: portals are 0 to 63")]
    Portal(u32),
}

/// Where the messages belong that an entry matches. A NID that the entry names is taken as its peer's
/// primary one: that is what the peer's frames carry the hash of.
///
/// # Errors
/// When they belong to several shards by bits that the entry ignores, or the portal does not exist.
pub fn entry_home(
    steering: &Steering,
    portal: u32,
    match_id: &ProcessId,
    match_bits: u64,
    ignore_bits: u64,
) -> Result<Home, SteeringError> {
    let word = *steering.policies.get(portal as usize).ok_or(SteeringError::Portal(portal))?;
    if steering.shard_count == 1 {
        return Ok(Home::Shard(0));
    }
    match word.unpack().unwrap_or(Policy::Pin(0)) {
        Policy::Pin(_) => {}
        Policy::MatchBits { shift, bits, .. } => {
            let steering_bits = (u64::MAX >> (64 - u32::from(bits))) << shift;
            if ignore_bits & steering_bits != 0 {
                return Err(SteeringError::IgnoresSteeringBits { portal, ignore_bits, steering_bits });
            }
        }
        Policy::Initiator if match_id.nid != Nid::ANY => {}
        Policy::Initiator => return Ok(Home::Each),
        Policy::Rotor => return Ok(Home::Any),
    }
    let key = SteerKey {
        message_type: MessageType::Put,
        portal: portal as u8,
        key: match_bits,
        message_id: 0,
        initiator_hash: steer::initiator_hash(&match_id.nid),
    };
    Ok(Home::Shard(steer::shard_of(&key, word, steering.shard_count.into())))
}

/// Whether an entry may be posted on `shard`.
///
/// # Errors
/// When its messages belong elsewhere.
pub(super) fn check_entry(
    steering: &Steering,
    shard: u32,
    portal: u32,
    match_id: &ProcessId,
    match_bits: u64,
    ignore_bits: u64,
) -> Result<(), SteeringError> {
    match entry_home(steering, portal, match_id, match_bits, ignore_bits)? {
        Home::Shard(home) if home != shard => {
            Err(SteeringError::OtherShard { portal, match_bits, home, shard })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lnet_wire::steer::{PORTALS, Spread};

    fn steering(policy: Policy, shard_count: u8) -> Steering {
        Steering { shard_count, policies: [policy.pack().unwrap(); PORTALS] }
    }

    #[test]
    fn pinned_entries_live_on_their_shard_whatever_they_ignore() {
        let pinned = steering(Policy::Pin(1), 2);
        assert_eq!(entry_home(&pinned, 4, &ProcessId::ANY, 5, u64::MAX), Ok(Home::Shard(1)));
        let error = check_entry(&pinned, 0, 4, &ProcessId::ANY, 5, 0).unwrap_err();
        assert_eq!(error, SteeringError::OtherShard { portal: 4, match_bits: 5, home: 1, shard: 0 });
    }

    #[test]
    fn ignoring_bits_that_steer_is_refused() {
        let table = Spread::Table([0, 1, 0, 1, 0, 1, 0, 1]);
        let by_bits = steering(Policy::MatchBits { shift: 4, bits: 2, spread: table }, 2);
        assert_eq!(entry_home(&by_bits, 0, &ProcessId::ANY, 0x10, 0xF), Ok(Home::Shard(1)));
        assert_eq!(
            entry_home(&by_bits, 0, &ProcessId::ANY, 0x10, 0x20),
            Err(SteeringError::IgnoresSteeringBits { portal: 0, ignore_bits: 0x20, steering_bits: 0x30 })
        );
        assert_eq!(
            entry_home(&steering(Policy::Pin(0), 1), 0, &ProcessId::ANY, 0, u64::MAX),
            Ok(Home::Shard(0))
        );
    }

    #[test]
    fn one_shard_is_enough_for_a_rotor_and_each_is_needed_for_unknown_initiators() {
        assert_eq!(entry_home(&steering(Policy::Rotor, 2), 0, &ProcessId::ANY, 0, 0), Ok(Home::Any));
        assert_eq!(entry_home(&steering(Policy::Initiator, 2), 0, &ProcessId::ANY, 0, 0), Ok(Home::Each));
        assert_eq!(check_entry(&steering(Policy::Initiator, 2), 1, 0, &ProcessId::ANY, 0, 0), Ok(()));
        assert_eq!(check_entry(&steering(Policy::Rotor, 2), 1, 0, &ProcessId::ANY, 0, 0), Ok(()));
        let known = ProcessId { nid: Nid::LO, pid: 12345 };
        assert!(matches!(entry_home(&steering(Policy::Initiator, 2), 0, &known, 0, 0), Ok(Home::Shard(_))));
        assert_eq!(
            entry_home(&steering(Policy::Rotor, 2), 64, &ProcessId::ANY, 0, 0),
            Err(SteeringError::Portal(64))
        );
    }
}
