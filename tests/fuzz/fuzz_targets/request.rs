//! Messages at the control socket, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::request(input));
