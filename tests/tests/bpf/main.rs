//! The XDP program on synthetic frames through the kernel's test facility, and attached to interfaces.
//! Needs root, and the objects that `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

mod agreement;
mod attach;
mod cases;
mod faults;
#[cfg(feature = "libbpf")]
mod libbpf;
mod logging;
mod traffic;
