//! How a node is managed from outside: what can be asked and changed, how it is said on the control socket,
//! and both ends of that socket.
//!
//! Invariants: nothing here knows how a node works inside; a record holds all that tools print, verbosity is
//! the tool's affair; requests change either everything they name or nothing; whatever arrives on a socket or
//! stands in a document is checked before it means anything, and is bounded.

#![forbid(unsafe_code)]

#[macro_use]
mod table;
pub mod client;
pub mod document;
pub mod file;
pub mod legacy;
pub mod output;
pub mod path;
pub mod protocol;
mod request;
pub mod resolve;
#[cfg(feature = "server")]
pub mod server;

pub use request::{ControlRequest, LoadSpec, Reply};
