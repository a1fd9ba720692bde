//! Peers that say whatever they like to a machine of the socklnd protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::socklnd(input));
