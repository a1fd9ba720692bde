//! YAML documents of the tool, on any text.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::document(input));
