//! Peers and an administrator that say anything to a control state machine.
#![no_main]

#[path = "../../src/fuzz_targets.rs"]
#[allow(dead_code, reason = "each fuzz binary runs one of the targets")]
mod fuzz_targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz_targets::control(input));
