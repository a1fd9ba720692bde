//! Integration tests.

pub mod netns;
pub mod fuzz_targets;
pub mod bpf;
