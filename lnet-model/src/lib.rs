//! A node in values: NIs and peers that are to be, rules and patterns, policies, changes, and the records of
//! what a node tells. Programs, tools and the node itself have these types in common.
//!
//! Invariants: nothing here knows how anything works; a value is checked before it means anything; a record
//! holds all that tools print, verbosity is the tool's affair; what a request or a specification leaves open
//! (`None`) is the node's to choose.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[macro_use]
mod words;
pub mod capture;
pub mod choice;
mod errno;
pub mod fault;
pub mod lnd;
pub mod ni;
pub mod parameter;
pub mod pattern;
pub mod peer;
pub mod pool;
#[cfg(feature = "serde")]
pub mod records;
pub mod request;
pub mod route;
pub mod steering;
#[cfg(feature = "serde")]
pub mod text;
pub mod udsp;

pub use errno::{Errno, Refusal};
