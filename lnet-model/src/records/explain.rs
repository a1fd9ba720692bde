//! Why a message goes by a path.

use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use crate::text;

/// The path by which a request to a NID would go at this moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainRecord {
    /// The NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// The primary NID of the peer that has it, if it is known.
    #[serde(with = "text::option")]
    pub primary_nid: Option<Nid>,
    /// Whether that is known to be a Multi-Rail node.
    pub multi_rail: bool,
    /// What the shards would choose: those that agree in the choice and in what decides it stand together.
    pub choices: Vec<ExplainedChoice>,
}

/// What some shards would choose.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedChoice {
    /// The shards.
    pub shards: Vec<u32>,
    /// The local NI and the NID of the peer; `None` where nothing leads there.
    pub path: Option<ExplainedPath>,
    /// The NID of the gateway that messages go to first, where no local NI leads to the peer.
    #[serde(default, with = "text::option")]
    pub gateway: Option<Nid>,
    /// Carrier of long messages by the local NI, and why, where it has more than one.
    #[serde(default)]
    pub carrier: Option<String>,
    /// Why there is nothing to choose, where that is so.
    pub reason: Option<String>,
    /// The steps of the choice, in their order; with the values of the first of the shards.
    pub steps: Vec<ExplainedStep>,
}

/// Two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedPath {
    /// The local NID.
    #[serde(with = "text")]
    pub from: Nid,
    /// The peer's.
    #[serde(with = "text")]
    pub to: Nid,
}

words! {
    /// What one step of a choice is about.
    ExplainedKind {
        /// The net that both nodes have.
        Net = "net",
        /// The local NI on it.
        LocalNi = "local ni",
        /// The peer's NI on it.
        PeerNi = "peer ni",
        /// The NI of a gateway.
        Gateway = "gateway",
    }
}

/// One step of a choice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedStep {
    /// What is chosen.
    pub kind: ExplainedKind,
    /// The candidates.
    pub candidates: Vec<ExplainedCandidate>,
}

/// A candidate of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExplainedCandidate {
    /// A net or NID.
    pub name: String,
    /// Whether it is the one.
    pub is_chosen: bool,
    /// The criterion by which it is not; `None` if it is, or comes later than its equal.
    pub lost_by: Option<String>,
    /// What it has by each criterion, in the order in which they count.
    pub values: Vec<(String, i64)>,
}
