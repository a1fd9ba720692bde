//! A peer that sends whatever it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::transfer(input));
