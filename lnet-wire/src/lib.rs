//! LNet on the wire: bytes to meaning and back.
//!
//! Invariants: no allocation, no dependencies, no unsafe code; no function panics on any input bytes;
//! what one function encodes its counterpart decodes to the same value. The XDP program compiles the
//! same [`packet`], [`steer`] and [`verdict`] modules as the host. So both sides of an `AF_XDP` socket agree
//! on what a frame is, and which shard it belongs to.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;
#[cfg(test)]
mod testing;

mod bytes;
pub mod frame;
pub mod global;
pub mod header;
mod names;
pub mod nid;
pub mod packet;
pub mod parameter;
pub mod ping;
pub mod selftest;
pub mod socklnd;
pub mod steer;
pub mod verdict;

pub use frame::{FrameError, FrameHeader};
pub use global::{Discovery, Global};
pub use header::{Body, Header, HeaderError, MessageType, WireHandle};
pub use nid::{Net, NetType, Nid, NidError, ProcessId};
pub use parameter::Parameter;
pub use ping::PingInfo;
pub use steer::{Policy, SteerKey};
pub use verdict::Verdict;
