//! Steering: which shard a frame belongs to. [`shard_of`] is the only place that decides it, in the XDP
//! program and on the host alike.

#[cfg(test)]
mod tests;

use core::fmt;

use crate::header::{Body, Header, MessageType};
use crate::named;
use crate::nid::Nid;

/// Portals of a node (`LNET_MAX_PORTALS`).
pub const PORTALS: usize = 64;
/// Shards that a node may have: a shard number takes 6 bits of an MD cookie.
pub const SHARDS_MAX: u32 = 64;
/// Receive queues of an interface that steering reaches; frames of further queues pass up.
pub const QUEUES_MAX: u32 = 64;
/// Slots of an interface's XSK map.
pub const SLOTS: u32 = QUEUES_MAX * SHARDS_MAX;

/// Lowest bit of the shard number in an object cookie; below it stands the kind of object.
pub const COOKIE_SHARD_SHIFT: u32 = 2;
/// Bits of the shard number in an object cookie.
pub const COOKIE_SHARD_BITS: u32 = 6;

/// The slot of the XSK map that holds the socket of `shard` on `queue`. Both must be below their maximum.
#[inline(always)]
#[must_use]
pub const fn slot_of(queue: u32, shard: u32) -> u32 {
    queue * SHARDS_MAX + shard
}

/// The key that a frame is steered by, read from its frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteerKey {
    /// Type of the LNet message; never `Hello`.
    pub message_type: MessageType,
    /// Portal index of a PUT or GET, below [`PORTALS`]; 0 for others.
    pub portal: u8,
    /// Match bits of a PUT or GET; object cookie of an ACK or REPLY.
    pub key: u64,
    /// Id of the message in its sender's life; all fragments share it.
    pub message_id: u64,
    /// Hash of the initiator's primary NID.
    pub initiator_hash: u32,
}

impl SteerKey {
    /// The key that the frames of this message are steered by; `None` for a HELLO and for a portal that does
    /// not exist, which no frame carries.
    #[must_use]
    pub fn of(header: &Header, message_id: u64, initiator_hash: u32) -> Option<Self> {
        let (portal, key) = match header.body {
            Body::Put { portal, match_bits, .. } | Body::Get { portal, match_bits, .. } => {
                (u8::try_from(portal).ok().filter(|portal| usize::from(*portal) < PORTALS)?, match_bits)
            }
            Body::Ack { md, .. } | Body::Reply { md } => (0, md.object_cookie),
            Body::Hello { .. } => return None,
        };
        Some(Self { message_type: header.message_type(), portal, key, message_id, initiator_hash })
    }
}

/// How the PUTs and GETs of one portal find their shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// All to one shard.
    Pin(u8),
    /// Bits of the match bits decide: `bits` of them, from bit `shift` upward.
    MatchBits {
        /// Lowest bit that counts, 0 to 63.
        shift: u8,
        /// Number of bits that count, 1 to 64.
        bits: u8,
        /// How their value becomes a shard.
        spread: Spread,
    },
    /// The initiator's primary NID decides.
    Initiator,
    /// A hash of initiator and message id decides, so that fragments stay together.
    Rotor,
}

/// How the chosen match bits become a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Hashed over all shards.
    Hash,
    /// Looked up: entry i is the shard of value i. Serves at most [`TABLE_BITS_MAX`] bits.
    Table([u8; 1 << TABLE_BITS_MAX]),
}

/// Most match bits that [`Spread::Table`] takes.
pub const TABLE_BITS_MAX: u8 = 3;

/// Why a [`Policy`] has no [`PolicyWord`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PolicyError {
    /// A shard number of 64 or more.
    Shard(u8),
    /// Bits `shift .. shift + bits` do not lie within 0..64, or none.
    Bits {
        /// Lowest bit.
        shift: u8,
        /// Number of bits.
        bits: u8,
    },
    /// A table over more bits than [`TABLE_BITS_MAX`].
    TableBits(u8),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(shard) => write!(formatter, "shard {shard}, expected one below {SHARDS_MAX}"),
            Self::Bits { shift, bits } => {
                write!(
                    formatter,
                    "{bits} match bits from bit {shift} upward, expected 1 to 64 of bits 0 to 63"
                )
            }
            Self::TableBits(bits) => {
                write!(formatter, "a table over {bits} match bits, expected at most {TABLE_BITS_MAX}")
            }
        }
    }
}

impl core::error::Error for PolicyError {}

named! {
    /// The kind of a [`PolicyWord`]: its lowest bits.
    PolicyKind {
        /// [`Policy::Pin`], and what no policy packs.
        Pin = 0 => "pin",
        /// [`Spread::Hash`].
        Hash = 1 => "hash",
        /// [`Spread::Table`].
        Table = 2 => "table",
        /// [`Policy::Initiator`].
        Initiator = 3 => "initiator",
        /// [`Policy::Rotor`].
        Rotor = 4 => "rotor",
    }
}

impl PolicyKind {
    #[inline(always)]
    const fn of(word: PolicyWord) -> Self {
        match word.0 & 7 {
            1 => Self::Hash,
            2 => Self::Table,
            3 => Self::Initiator,
            4 => Self::Rotor,
            _ => Self::Pin,
        }
    }
}

// A kind that `PolicyKind::of` forgets does not compile.
const _: () = {
    let mut index = 0;
    while index < PolicyKind::ALL.len() {
        assert!(PolicyKind::of(PolicyWord(index as u64)) as usize == index);
        index += 1;
    }
};

/// A [`Policy`] as it stands in the BPF map, in one word. Zero, what an untouched map holds, is
/// `Pin(0)`.
///
/// Bits 0..3 kind, 3..9 shift, 9..16 bits, 16..64 the table: eight entries of six bits each, or for
/// `Pin` the shard in the first entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PolicyWord(pub u64);

impl Policy {
    /// Packs the policy into its map form.
    ///
    /// # Errors
    /// [`PolicyError`] with the value that is out of range.
    pub fn pack(&self) -> Result<PolicyWord, PolicyError> {
        let (kind, fields) = match *self {
            Self::Pin(shard) => (PolicyKind::Pin, entry(shard)? << 16),
            Self::MatchBits { shift, bits, spread } => {
                if bits == 0 || u32::from(shift) + u32::from(bits) > 64 {
                    return Err(PolicyError::Bits { shift, bits });
                }
                let common = u64::from(shift) << 3 | u64::from(bits) << 9;
                match spread {
                    Spread::Hash => (PolicyKind::Hash, common),
                    Spread::Table(_) if bits > TABLE_BITS_MAX => return Err(PolicyError::TableBits(bits)),
                    Spread::Table(table) => {
                        let mut fields = common;
                        for (index, shard) in table.iter().enumerate() {
                            fields |= entry(*shard)? << (16 + 6 * index);
                        }
                        (PolicyKind::Table, fields)
                    }
                }
            }
            Self::Initiator => (PolicyKind::Initiator, 0),
            Self::Rotor => (PolicyKind::Rotor, 0),
        };
        Ok(PolicyWord(kind as u64 | fields))
    }

    /// Whether any shard may serve the messages of such a portal, as far as their headers tell: they do not
    /// have the id that `Rotor` goes by, nor the primary NID that `Initiator` goes by.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        match self {
            Self::Pin(_) | Self::MatchBits { .. } => false,
            Self::Initiator | Self::Rotor => true,
        }
    }
}

fn entry(shard: u8) -> Result<u64, PolicyError> {
    if u32::from(shard) < SHARDS_MAX { Ok(u64::from(shard)) } else { Err(PolicyError::Shard(shard)) }
}

impl PolicyWord {
    /// The policy that this word packs; `None` for a word that [`Policy::pack`] never makes.
    #[must_use]
    pub fn unpack(self) -> Option<Policy> {
        let (shift, bits) = ((self.0 >> 3 & 0x3F) as u8, (self.0 >> 9 & 0x7F) as u8);
        let mut table = [0; 1 << TABLE_BITS_MAX];
        for (index, shard) in table.iter_mut().enumerate() {
            *shard = (self.0 >> (16 + 6 * index) & 0x3F) as u8;
        }
        let policy = match PolicyKind::of(self) {
            PolicyKind::Pin => Policy::Pin(table[0]),
            PolicyKind::Hash => Policy::MatchBits { shift, bits, spread: Spread::Hash },
            PolicyKind::Table => Policy::MatchBits { shift, bits, spread: Spread::Table(table) },
            PolicyKind::Initiator => Policy::Initiator,
            PolicyKind::Rotor => Policy::Rotor,
        };
        (policy.pack() == Ok(self)).then_some(policy)
    }
}

/// The shard, below `shards`, that owns what `key` names. Total: a word that no policy packs counts as
/// `Pin`, a shard number beyond the last wraps, 0 shards count as 1, so that every frame has one owner on
/// every side.
#[inline(always)]
#[must_use]
pub fn shard_of(key: &SteerKey, policy: PolicyWord, shards: u32) -> u32 {
    if shards <= 1 {
        return 0;
    }
    match key.message_type {
        MessageType::Put | MessageType::Get => {}
        _ => return wrap((key.key >> COOKIE_SHARD_SHIFT) as u32 % SHARDS_MAX, shards),
    }
    let word = policy.0;
    let selected = (key.key >> (word >> 3 & 0x3F)) & low_bits((word >> 9 & 0x7F) as u32);
    match PolicyKind::of(policy) {
        PolicyKind::Pin => wrap((word >> 16 & 0x3F) as u32, shards),
        PolicyKind::Hash => spread(mix(selected), shards),
        PolicyKind::Table => wrap((word >> (16 + 6 * (selected & 7)) & 0x3F) as u32, shards),
        PolicyKind::Initiator => spread(mix(u64::from(key.initiator_hash)), shards),
        PolicyKind::Rotor => spread(mix(key.message_id ^ u64::from(key.initiator_hash) << 24), shards),
    }
}

/// The hash that a frame header carries of its initiator's primary NID.
#[must_use]
pub fn initiator_hash(primary: &Nid) -> u32 {
    let bytes = primary.to_bytes();
    let mut hash = 0;
    for word in bytes.as_chunks::<4>().0 {
        hash = mix(hash ^ u64::from(u32::from_le_bytes(*word)));
    }
    (hash >> 32) as u32
}

/// The lowest `bits` bits, 0 to 64.
#[inline(always)]
const fn low_bits(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// A bijective 64-bit finaliser (the constants are those of `SplitMix64`).
#[inline(always)]
const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// The remainder of a shard number that is hardly ever too large: a division costs more than all the rest.
#[inline(always)]
const fn wrap(shard: u32, shards: u32) -> u32 {
    if shard < shards { shard } else { shard % shards }
}

/// Maps a hash evenly on `0..shards` without a division.
#[inline(always)]
const fn spread(hash: u64, shards: u32) -> u32 {
    (((hash >> 32) * shards as u64) >> 32) as u32
}
