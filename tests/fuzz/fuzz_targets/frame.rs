//! A packet and the tables that steering looks up, of any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::frame(input));
