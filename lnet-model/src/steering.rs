//! Which shard serves the messages of a portal.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt::{self, Display};

use lnet_wire::steer::{PORTALS, Policy, PolicyError, SHARDS_MAX, Spread, TABLE_BITS_MAX};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};

/// How the PUTs and GETs of a portal find their shard.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "policy", rename_all = "snake_case"))]
pub enum SteeringPolicy {
    /// All to one shard.
    Pin {
        /// The shard.
        shard: u8,
    },
    /// Bits of the match bits decide.
    MatchBits {
        /// Lowest bit that counts.
        shift: u8,
        /// How many count.
        bits: u8,
        /// Shard of each value, 2 to the power of `bits` of them; `None` hashes over all shards.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
        table: Option<Vec<u8>>,
    },
    /// The initiator's primary NID decides.
    Initiator,
    /// Any shard may get them.
    Rotor,
}

impl SteeringPolicy {
    /// The policy of a portal without one of its own.
    pub const DEFAULT: Self = Self::Pin { shard: 0 };

    /// Its name in documents and on the command line.
    #[must_use]
    pub const fn name(&self) -> PolicyName {
        match self {
            Self::Pin { .. } => PolicyName::Pin,
            Self::MatchBits { .. } => PolicyName::MatchBits,
            Self::Initiator => PolicyName::Initiator,
            Self::Rotor => PolicyName::Rotor,
        }
    }

    /// The policy as steering itself knows it.
    ///
    /// # Errors
    /// Values out of range.
    pub fn to_wire(&self) -> Result<Policy, Refusal> {
        let policy = match self {
            Self::Pin { shard } => Policy::Pin(*shard),
            Self::Initiator => Policy::Initiator,
            Self::Rotor => Policy::Rotor,
            Self::MatchBits { shift, bits, table: None } => {
                Policy::MatchBits { shift: *shift, bits: *bits, spread: Spread::Hash }
            }
            Self::MatchBits { shift, bits, table: Some(table) } => {
                if *bits == 0 || *bits > TABLE_BITS_MAX {
                    return Err(refusal(PolicyError::TableBits(*bits)));
                }
                let expected = 1_usize << bits;
                if table.len() != expected {
                    let found = table.len();
                    return Err(refusal(format_args!(
                        "a table of {found} shards for {bits} match bits: {expected} are expected"
                    )));
                }
                let mut shards = [0; 1 << TABLE_BITS_MAX];
                for (to, from) in shards.iter_mut().zip(table) {
                    *to = *from;
                }
                Policy::MatchBits { shift: *shift, bits: *bits, spread: Spread::Table(shards) }
            }
        };
        policy.pack().map_err(refusal)?;
        Ok(policy)
    }

    /// The policy in the terms of tools, of one that steering has.
    #[must_use]
    pub fn from_wire(policy: &Policy) -> Self {
        match policy {
            Policy::Pin(shard) => Self::Pin { shard: *shard },
            Policy::Initiator => Self::Initiator,
            Policy::Rotor => Self::Rotor,
            Policy::MatchBits { shift, bits, spread } => {
                let table = match spread {
                    Spread::Hash => None,
                    Spread::Table(shards) => {
                        let values = 1_usize << (*bits).min(TABLE_BITS_MAX);
                        Some(shards.iter().take(values).copied().collect())
                    }
                };
                Self::MatchBits { shift: *shift, bits: *bits, table }
            }
        }
    }
}

words! {
    /// The name of a [`SteeringPolicy`].
    PolicyName {
        /// [`SteeringPolicy::Pin`].
        Pin = "pin",
        /// [`SteeringPolicy::MatchBits`].
        MatchBits = "match_bits",
        /// [`SteeringPolicy::Initiator`].
        Initiator = "initiator",
        /// [`SteeringPolicy::Rotor`].
        Rotor = "rotor",
    }
}

words! {
    /// A field of a [`SteeringPolicy`].
    PolicyField {
        /// The shard of `pin`.
        Shard = "shard",
        /// The lowest match bit that counts.
        Shift = "shift",
        /// How many match bits count.
        Bits = "bits",
        /// The shard of each value of the match bits.
        Table = "table",
    }
}

impl PolicyField {
    /// The policy that has the field.
    #[must_use]
    pub const fn policy(self) -> PolicyName {
        match self {
            Self::Shard => PolicyName::Pin,
            Self::Shift | Self::Bits | Self::Table => PolicyName::MatchBits,
        }
    }

    /// The greatest value of the field, or of an entry of the table.
    #[must_use]
    pub const fn max(self) -> i64 {
        match self {
            Self::Shard | Self::Table => SHARDS_MAX as i64 - 1,
            Self::Shift => 63,
            Self::Bits => 64,
        }
    }
}

impl Display for SteeringPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pin { shard } => write!(f, "pin to shard {shard}"),
            Self::MatchBits { shift, bits, table } => {
                write!(f, "match_bits with shift {shift} and bits {bits}")?;
                table.as_ref().map_or(Ok(()), |table| write!(f, " and table {table:?}"))
            }
            Self::Initiator => f.write_str("initiator"),
            Self::Rotor => f.write_str("rotor"),
        }
    }
}

/// The fields of a policy as a document or a command line gives them.
#[derive(Clone, Default, Debug)]
pub struct PolicyFields {
    /// [`PolicyField::Shard`].
    pub shard: Option<u8>,
    /// [`PolicyField::Shift`]; 0 where it is not given.
    pub shift: Option<u8>,
    /// [`PolicyField::Bits`].
    pub bits: Option<u8>,
    /// [`PolicyField::Table`].
    pub table: Option<Vec<u8>>,
}

impl PolicyName {
    /// The policy of this name with its fields; those of other policies are not looked at.
    ///
    /// # Errors
    /// The field that the policy needs and that is not given.
    pub fn with(self, fields: PolicyFields) -> Result<SteeringPolicy, PolicyField> {
        Ok(match self {
            Self::Pin => SteeringPolicy::Pin { shard: fields.shard.ok_or(PolicyField::Shard)? },
            Self::MatchBits => SteeringPolicy::MatchBits {
                shift: fields.shift.unwrap_or_default(),
                bits: fields.bits.ok_or(PolicyField::Bits)?,
                table: fields.table,
            },
            Self::Initiator => SteeringPolicy::Initiator,
            Self::Rotor => SteeringPolicy::Rotor,
        })
    }
}

/// The policy of one portal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PortalPolicy {
    /// The portal, below 64.
    pub portal: u8,
    /// Its policy.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub policy: SteeringPolicy,
}

impl PortalPolicy {
    /// Whether portal and policy are within their ranges.
    ///
    /// # Errors
    /// The value that is not.
    pub fn check(&self) -> Result<(), Refusal> {
        if usize::from(self.portal) >= PORTALS {
            let (portal, max) = (self.portal, PORTALS - 1);
            return Err(refusal(format_args!("portal {portal}: 0 to {max} is expected")));
        }
        self.policy.to_wire().map(|_| ())
    }
}

/// What a node's steering is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct SteeringRecord {
    /// Shards of the node, at most 64.
    pub shard_count: u32,
    /// The portals whose policy is not [`SteeringPolicy::DEFAULT`], in order.
    pub portals: Vec<PortalPolicy>,
}

fn refusal(why: impl Display) -> Refusal {
    Refusal::new(Errno::INVAL, why.to_string())
}

const _: () = assert!(SHARDS_MAX <= u8::MAX as u32);
