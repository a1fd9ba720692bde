//! YAML documents: what `import` reads and what `show` and `export` print.
//!
//! Invariants: a document is understood whole or refused whole, with the place of everything that is wrong in it;
//! what this node cannot do is refused by name, never passed over; what an export prints is read back to the state
//! that it was taken from. Source of keys and shapes: `lnet/utils/lnetconfig`.

mod diff;
mod output;
mod plan;
mod read;
mod show;
mod tree;

#[cfg(test)]
mod tests;

use lnet_wire::Nid;
use thiserror::Error;

use crate::errno::Errno;
use crate::request::{Change, PingRequest};

pub use diff::diff;
pub use output::{Map, Yaml};
pub use read::parse;
pub use show::{
    Detail, Failure, NodeState, captures, drop_rules, export, failures, frames, global_show, loads, nets,
    peer_list, peers, pings, statistics, steering,
};
pub use tree::{DOCUMENT_BYTES_MAX, Position};

/// Something wrong in a document.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{position}: {message}")]
pub struct DocumentError {
    /// Where.
    pub position: Position,
    /// What stands there, what was expected, and a likely correction.
    pub message: String,
    /// The error number that goes with it.
    pub errno: Errno,
    /// Number that the item around it gave itself.
    pub seq_no: Option<u64>,
}

impl DocumentError {
    fn new(position: Position, message: String) -> Self {
        Self { position, message, errno: Errno::INVAL, seq_no: None }
    }
}

/// What a document is read for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// To make what it says.
    Add,
    /// To delete what it names.
    Delete,
    /// To carry out its pings.
    Execute,
}

/// A document that has been understood.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Document {
    /// What it says, in the order in which it is to be done.
    pub items: Vec<Item>,
}

/// One thing that a document says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Where it stands.
    pub position: Position,
    /// The block that it stands in.
    pub entity: &'static str,
    /// Number that it gave itself.
    pub seq_no: Option<u64>,
    /// What is to be done.
    pub action: Action,
}

/// What a thing in a document asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A change.
    Change(Change),
    /// That a peer be so, or, in a document of deletions, not be.
    Peer(PeerItem),
    /// A ping.
    Ping(PingRequest),
}

/// A peer, as a document describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerItem {
    /// Its primary NID.
    pub primary_nid: Nid,
    /// Its other NIDs; the primary one may be among them.
    pub nids: Vec<Nid>,
    /// Whether it is a Multi-Rail node.
    pub multi_rail: bool,
    /// Whether the document says that no user made it.
    pub found_by_traffic: bool,
}
