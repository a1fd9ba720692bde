//! Calls, replies and values of the rpc transport, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::rpc_message(input));
