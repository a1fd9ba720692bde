//! The control state machine through its public interface: scripts, and a random runner against a naive
//! model.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod announce;
mod batches;
mod claims;
mod common;
mod edits;
mod gateways;
mod health;
mod lies;
mod lost_nids;
mod nets;
mod own;
mod pings;
mod pushes;
mod random;
mod recovery;
mod routes;
mod routing;
mod source;
mod states;
mod turns;
mod udsp;
