//! Prefixes of messages of the socklnd protocol on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::prefix(input));
