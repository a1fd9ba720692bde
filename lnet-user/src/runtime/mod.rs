//! The runtime: shards, who drives them, and how they sleep.
//!
//! Invariants: only this module owns a [`lnet_core::shard::Shard`]; the only blocking point of a shard is
//! [`Worker::wait`].

mod clock;
mod cpu;
mod deputy;
mod fate;
mod handover;
mod mesh;
mod pools;
mod ports;
mod spin;
mod steering;
mod thread;
mod turn;
pub(crate) mod wakes;
mod worker;

pub use clock::Clock;
pub use cpu::{available_cpus, pin_to_cpu};
pub(crate) use deputy::{Deputy, is_keeper};
pub use fate::{Ended, Fate};
pub(crate) use handover::WaitKind;
pub use lnet_core::topology::Steering;
pub use lnet_io::driver::Counted;
pub(crate) use mesh::MeshEnd;
pub use steering::{Home, SteeringError, entry_home};
pub(crate) use thread::{Drivable, Moment};
pub use thread::{Idle, ShardThread};
pub use worker::{Delivery, LendError, Refused, Worker};

#[cfg(test)]
#[cfg(not(loom))]
mod ring_tests;
