//! HELLOs of the socklnd protocol, of all versions and both byte orders, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::hello(input));
