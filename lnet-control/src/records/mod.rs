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

mod capture;
mod fault;
mod frames;
mod global;
mod load;
mod net;
mod peer;
mod statistics;
mod steering;

pub use capture::CaptureRecord;
pub use fault::{DropRule, DropRuleRecord, HEALTH_ERRORS, HealthError, MESSAGE_TYPES, RuleCounters};
pub use frames::{FramesNi, FramesRecord, SlotFrames};
pub use global::Globals;
pub use lnet_wire::Global;
pub use load::{LoadClass, LoadKind, LoadRecord, LoadResult, LoadRole, LoadSpec, LoadTimes};
pub use net::{Lnd, NetRecord, NiHealth, NiOptions, NiRecord, NiStatus, UdspInfo, XdpMode};
pub use peer::{PeerCredits, PeerHealth, PeerNiRecord, PeerNiState, PeerRecord};
pub use statistics::{Latency, MessageCounts, Statistics, Traffic};
pub use steering::{PortalPolicy, SteeringPolicy, SteeringRecord};
