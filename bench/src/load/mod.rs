//! The load program: one node that puts, one that takes and checks every byte.

pub mod initiator;
pub mod plan;
pub mod target;
