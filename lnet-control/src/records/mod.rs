//! What a node tells about itself, in full detail.
//!
//! Invariants: keys that tools print stand beside the field they belong to, in the order in which they are
//! printed; numbers are as LNet's tools show them. Source: spec of `lnetctl`, sections 3.2 to 3.9.

/// Defines a record of counters: named fields, each with the key that tools print.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $key:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $($(#[$doc])* #[serde(rename = $key)] pub $field: $type,)+
        }

        impl $name {
            /// The keys, in the order in which tools print them.
            pub const KEYS: &[&str] = &[$($key),+];
        }
    };
}

/// Defines an enum of plain words, which JSON, documents and the command line have in common.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        lnet_wire::named! {
            $(#[$meta])*
            #[derive(serde::Serialize, serde::Deserialize)]
            $name {
                $($(#[$doc])* #[serde(rename = $word)] $variant => $word,)+
            }
        }

        impl $name {
            /// Their names, in the order of the values.
            pub const NAMES: &[&str] = &[$($word),+];
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|one| one.name() == text);
                found.copied().ok_or_else(|| format!("{text:?}: one of {} is expected", Self::NAMES.join(", ")))
            }
        }
    };
}

mod capture;
mod explain;
mod fault;
mod frames;
mod global;
mod load;
mod net;
mod peer;
mod selftest;
mod statistics;
mod steering;
mod udsp;

pub use capture::CaptureRecord;
pub use explain::{
    ExplainRecord, ExplainedCandidate, ExplainedChoice, ExplainedKind, ExplainedPath, ExplainedStep,
};
pub use fault::{DropRule, DropRuleRecord, HealthError, MESSAGE_TYPES, RuleCounters};
pub use frames::{FramesNi, FramesRecord, SlotFrames};
pub use global::Globals;
pub use lnet_wire::Global;
pub use load::{LoadClass, LoadKind, LoadRecord, LoadResult, LoadRole, LoadSpec, LoadTimes};
pub use net::{Lnd, NetRecord, NiHealth, NiOptions, NiRecord, NiStatus, XdpMode};
pub use peer::{CptRecord, PeerCredits, PeerHealth, PeerNiRecord, PeerRecord, RecoveryRecord};
pub use selftest::{
    SelftestAnswer, SelftestBatch, SelftestBatchTest, SelftestCommand, SelftestCounters, SelftestGroup,
    SelftestJoined, SelftestNode, SelftestRequest, SelftestSession, SelftestState, SelftestStats,
    SelftestTest,
};
pub use statistics::{Latency, MessageCounts, Statistics, Traffic};
pub use steering::{PortalPolicy, SteeringPolicy, SteeringRecord};
pub use udsp::{Selection, SelectionKind, UdspInfo, UdspRule};
