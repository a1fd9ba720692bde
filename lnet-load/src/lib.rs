//! A load that a node takes or makes, beside whatever else it does: messages whose every byte is checked.
//!
//! A [`Target`] posts entries for Puts and Gets over many portals and match bits. An [`Initiator`] carries a
//! [`LoadPlan`] out: so many messages, their sizes and kinds, to so many NIDs. Both go by the same
//! [`Scheme`], from which and a message's number everything about the message follows: kind, length, portal,
//! match bits, bytes. A Put carries its number as header data; a Get says all by where it asks. There is no
//! other agreement between the two. Other loads have their bytes from [`Pattern`], their figures from
//! [`Distribution`], and keep their windows full by [`keep_full`].
//!
//! Invariants: made of [`lnet_user::api`] alone. Memory is taken at the start and bounded by the scheme and
//! the window, whatever peers send. Nothing that a peer says is believed: what does not follow from the
//! scheme is counted as a [`Fault`]. What was posted, bound or made lazy is given back by the end.
//!
//! ```
//! use lnet_load::{Initiator, LoadPlan, Scheme, Target};
//! use lnet_user::{Lnet, Nid, NodeConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lnet = Lnet::start(&NodeConfig::loopback())?;
//! let scheme = Scheme { seed: 7, ..Scheme::default() };
//! let target = Target::start(&lnet, &scheme)?;
//! let initiator = Initiator::start(&lnet, &LoadPlan { messages: 50, ..LoadPlan::new(scheme, vec![Nid::LO]) })?;
//! let done = initiator.wait();
//! assert_eq!((done.puts().messages + done.gets().messages, done.faults.count), (50, 0));
//! assert_eq!(target.stop().puts, done.puts());
//! # Ok(())
//! # }
//! ```

mod distribution;
mod error;
mod initiator;
mod pattern;
mod plan;
mod probe;
mod report;
mod slot;
mod target;
mod window;

pub use distribution::Distribution;
pub use error::LoadError;
pub use initiator::Initiator;
pub use lnet_model::records::LoadKind as Kind;
pub use pattern::{Difference, Pattern};
pub use plan::{Layout, LoadMessage, LoadPlan, PlanError, Scheme, SizeClass};
pub use report::{
    ClassReport, FAULTS_MAX, Fault, FaultKind, FaultTally, InitiatorReport, Progress, Tally, TargetReport,
};
pub use target::Target;
pub use window::keep_full;
