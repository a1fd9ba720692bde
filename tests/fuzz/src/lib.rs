//! The bodies of the fuzz targets, compiled once for all of them.

#[path = "../../src/fuzz_targets.rs"]
#[allow(dead_code, reason = "what only the replay test looks at")]
mod fuzz_targets;

pub use fuzz_targets::*;
