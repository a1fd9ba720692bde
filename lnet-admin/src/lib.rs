//! The control plane of a node: nets, peers, pings, counters and tunables behind a control socket.
//!
//! [`serve`] has everything: it runs until it is told to stop. [`Control`] is the same in parts, for programs
//! with an async runtime of their own. Either manages any [`Lnet`](lnet_user::Lnet): `lnetctl`
//! manages each program that links this crate as it manages `lnetd`.
//!
//! ```text
//!   control socket -> server::Handler -> Control: batches, records -> Lnet: the node's state machine and shards
//! ```
//!
//! Invariants: nothing here waits for a shard, the kernel or a peer while there is something else to do;
//! all numbers come from the shards, added up; batches are planned as a whole, and what the core
//! does not know (drop rules, counters) is changed after the core has done its part and cannot fail then.

mod apply;
mod choice;
mod control;
mod error;
mod handler;
mod interfaces;
mod links;
mod loads;
mod metrics;
mod plan;
mod records;
mod reload;
mod serve;
mod services;
mod sources;
mod start;
mod subnets;
mod udsp;
mod usage;

pub use control::{Control, ControlOptions, SelftestConsole};
pub use error::ControlError;
pub use serve::{ServeOptions, Signals, StartProgress, serve};
pub use sources::StartUp;
