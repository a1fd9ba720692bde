//! Loads that a node takes or makes, beside its other work.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A load to be begun. What it is in detail is the load service's own affair, and JSON here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSpec {
    /// Take messages, by this scheme.
    Target(Value),
    /// Send messages, by this plan.
    Initiator(Value),
}

impl LoadSpec {
    /// What it is, in one word.
    #[must_use]
    pub const fn role(&self) -> LoadRole {
        match self {
            Self::Target(_) => LoadRole::Target,
            Self::Initiator(_) => LoadRole::Initiator,
        }
    }
}

/// Which end of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadRole {
    /// Takes messages.
    Target,
    /// Sends them.
    Initiator,
}

impl LoadRole {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Initiator => "initiator",
        }
    }
}

/// A load that runs, or that has ended and was not stopped yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Names it, as long as the daemon runs.
    pub id: u32,
    /// Which end it is.
    pub role: LoadRole,
    /// Whether it goes on; a target does until it is stopped.
    pub is_running: bool,
    /// Messages that have ended, well or not.
    pub messages_done: u64,
    /// Messages that there are to be; a target does not know.
    pub messages_total: Option<u64>,
    /// What came of it, in the load service's own terms: of one that runs `null`.
    pub report: Value,
}
