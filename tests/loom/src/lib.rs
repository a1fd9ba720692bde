//! The lock-free parts of `lnet-user` and `lnet-messaging`, compiled once more with loom's atomics, so that
//! their models run.
//!
//! The models stand beside the code that they are about, behind `cfg(loom)`. Here they need neither flags
//! for all other crates nor a target directory of their own: `cargo test --package lnet-loom` runs them.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "parts of modules of another crate")]

#[path = "../../../lnet-io/src/xsk/ring/cursor.rs"]
mod cursor;
#[path = "../../../lnet-user/src/runtime/handover.rs"]
mod handover;
#[path = "../../../lnet-io/src/region/mod.rs"]
mod region;
#[path = "../../../lnet-messaging/src/ring.rs"]
mod ring;
#[path = "../../../lnet-io/src/reactor/sleep.rs"]
mod sleep;
#[path = "../../../lnet-user/src/runtime/wakes.rs"]
mod wakes;
