//! YAML documents: what `import` reads and what `show` and `export` print.
//!
//! Invariants: a document is understood whole or refused whole, with the place of everything that is wrong in
//! it; what this node cannot do is refused by name, never passed over; what an export prints is read back to
//! the state that it was taken from. Source of keys and shapes: `lnet/utils/lnetconfig`.

mod choose;
mod daemon;
mod diff;
mod output;
mod plan;
mod read;
mod show;
mod tree;

#[cfg(test)]
mod tests;
use lnet_model::Errno;
use lnet_model::choice::{ChoiceForm, NetChoice};
use lnet_model::request::{Change, PingRequest};
use lnet_wire::{Global, Net, Nid};
use thiserror::Error;

pub use daemon::{DaemonOption, daemon_options};
pub use diff::diff;
pub use output::{Map, Yaml};
pub use plan::{differences, order_globals, passed_over};
pub use read::parse;
pub use show::{
    Detail, Failure, NodeState, RouteFilter, captures, cpts_of, delay_rules, drop_rules, explain, export,
    failures, frames, global_show, join, loads, nets, parameters, peer_list, peers, pings, recovery, routes,
    routing, selections, statistics, steering, udsp, usage,
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
    /// Makes what the document says.
    Add,
    /// Deletes what it names.
    Delete,
    /// Carries out its pings, and discovers peers.
    Execute,
    /// Shows what it names.
    Show,
}

/// A document that has been understood.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Document {
    /// What it says, in the order in which it is to be done.
    pub items: Vec<Item>,
    /// Whether it is empty, but for comments.
    pub is_blank: bool,
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
    pub action: Instruction,
}

/// What a thing in a document asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// A change.
    Change(Box<Change>),
    /// The NIDs of a peer in the older form: all that it is to have, or those that it is to lose.
    Peers {
        /// The NIDs, at least one.
        nids: Vec<Nid>,
        /// Whether it is to lose them.
        deletes: bool,
    },
    /// NIs that the host has if its addresses fit: [`Document::resolve`] has them.
    Choose {
        /// Form of the choice.
        form: ChoiceForm,
        /// Location of the list that it is of: all for other hosts, they are refused.
        list: Position,
        /// The choice.
        choice: Box<NetChoice>,
    },
    /// A ping, or that peers be discovered.
    Ping(PingRequest),
    /// A part of the node that is to be shown.
    Show(Shown),
}

/// What is to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// Nets.
    Nets {
        /// Which; all if there is none.
        net: Option<Net>,
        /// The verbosity, 0 to 4.
        detail: u8,
    },
    /// Peers.
    Peers {
        /// A NID of the one that is meant; all if there is none.
        nid: Option<Nid>,
        /// The verbosity, 0 to 4.
        detail: u8,
    },
    /// Routes.
    Routes {
        /// Which of them.
        filter: RouteFilter,
        /// The verbosity.
        detail: u8,
    },
    /// Routing between nets, and its pools.
    Routing,
    /// Peers in the older form.
    OlderPeers,
    /// Global tunables; all if there are none.
    Globals(Vec<Global>),
    /// The one of the block `numa`.
    NumaRange,
    /// Selection policies.
    Udsp {
        /// The index of the one that is meant; all if there is none.
        index: Option<u32>,
    },
    /// Selection policies in the older form.
    Selection,
    /// The counters of the node.
    Statistics,
    /// Rules that drop messages or hold them up.
    FaultRules,
    /// Policies of portals.
    Steering,
}
