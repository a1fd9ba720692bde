//! Peers and an administrator that say anything to a control state machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::control(input));
