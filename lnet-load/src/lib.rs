//! A load that a node takes or makes, beside whatever else it does: messages whose every byte is checked.
//!
//! A [`Target`] posts entries for Puts and Gets over many portals and match bits. An [`Initiator`] carries a
//! [`Plan`] out: so many messages, their sizes and kinds, to so many NIDs. Both go by the same [`Scheme`],
//! from which and a message's number everything about the message follows: kind, length, portal, match bits,
//! bytes. A Put carries its number as header data; a Get says all by where it asks. There is no other
//! agreement between the two.
//!
//! Invariants: made of [`lnet_user::api`] alone. Memory is taken at the start and bounded by the scheme and
//! the window, whatever peers send. Nothing that a peer says is believed: what does not follow from the
//! scheme is counted as a [`Fault`]. What was posted, bound or made lazy is given back by the end.
//!
//! ```
//! use lnet_load::{Initiator, Plan, Scheme, Target};
//! use lnet_user::{Lnet, Nid, NodeConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lnet = Lnet::start(&NodeConfig::loopback())?;
//! let scheme = Scheme { seed: 7, ..Scheme::default() };
//! let target = Target::start(&lnet, &scheme)?;
//! let initiator = Initiator::start(&lnet, &Plan { messages: 50, ..Plan::new(scheme, vec![Nid::LO]) })?;
//! let done = initiator.wait();
//! assert_eq!((done.puts().messages + done.gets().messages, done.faults.count), (50, 0));
//! assert_eq!(target.stop().puts, done.puts());
//! # Ok(())
//! # }
//! ```

mod initiator;
mod latency;
mod pattern;
mod plan;
mod probe;
mod report;
mod slot;
mod target;

use thiserror::Error;

use lnet_user::api::LnetError;
use lnet_user::runtime::SteeringError;

pub use initiator::Initiator;
pub use latency::Latency;
pub use lnet_model::records::LoadKind as Kind;
pub use plan::{Layout, Message, Plan, PlanError, Scheme, SizeClass};
pub use report::{
    ClassReport, Difference, FAULTS_MAX, Fault, FaultKind, Faults, InitiatorReport, Progress, Tally,
    TargetReport,
};
pub use target::Target;

/// Why a load does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The node refuses something.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// The node has no room for an entry.
    #[error("the entry for match bits {match_bits:#x} of portal {portal}: {error}")]
    Entry {
        /// The portal.
        portal: u32,
        /// The match bits.
        match_bits: u64,
        /// Why.
        #[source]
        error: LnetError,
    },
    /// An entry cannot be posted under its portal's policy.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// No thread for it.
    #[error("a thread for the load: {0}")]
    Thread(#[from] std::io::Error),
}
