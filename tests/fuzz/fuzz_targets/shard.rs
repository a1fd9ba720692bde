//! A peer that sends headers of all types to a shard.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::shard(input));
