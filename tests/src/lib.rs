//! Integration tests.

pub mod bpf;
pub mod confined;
pub mod fleet;
pub mod fuzz_targets;
pub mod netns;
pub mod node;
pub mod seeds;
pub mod sim;
pub mod tunnel;
