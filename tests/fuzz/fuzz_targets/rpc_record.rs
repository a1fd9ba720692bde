//! Records of the rpc transport, on any bytes of a stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lnet_fuzz::rpc_record(input));
