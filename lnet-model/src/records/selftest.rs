//! The console of LNet selftest: what it is told, and what it tells.

use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use crate::errno::Errno;
use crate::text;

words! {
    /// What a console knows of a node.
    SelftestState {
        /// The node is in the session.
        Active = "active",
        /// The node is in another session.
        Busy = "busy",
        /// No answer came from the node.
        Down = "down",
        /// Not asked yet.
        Unknown = "unknown",
    }
}

/// The test that is to be added to a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelftestTest {
    /// Pings.
    Ping,
    /// Bulk data.
    Brw {
        /// Whether data goes from the clients to the servers.
        is_write: bool,
        /// How it is checked: 1 not at all, 2 the ends, 3 each word, 4 not at all and not stored.
        check: u16,
        /// Bytes; a multiple of 8 up to a MiB.
        length_bytes: u32,
        /// Offset in the client's first page; a multiple of 8.
        offset_bytes: u32,
    },
}

/// What a console is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelftestCommand {
    /// Begins a session.
    NewSession {
        /// Its name, up to 31 bytes.
        name: String,
        /// A node that does not answer within so many seconds counts as down: from 3 to 30, what is beyond
        /// them is cut.
        timeout_s: u32,
        /// Ends one that is there, here and at nodes.
        force: bool,
        /// Feature bits.
        features: u32,
    },
    /// Ends it.
    EndSession,
    /// Tells of it.
    ShowSession,
    /// Makes a group of nodes, which join the session.
    AddGroup {
        /// Its name.
        name: String,
        /// The nodes.
        #[serde(with = "text::list")]
        nids: Vec<Nid>,
    },
    /// Takes nodes out of a group.
    UpdateGroup {
        /// Its name.
        name: String,
        /// Nodes to be taken out.
        #[serde(with = "text::list")]
        remove: Vec<Nid>,
        /// States in which nodes are taken out.
        clean: Vec<SelftestState>,
        /// Whether nodes that are not active are asked again.
        refresh: bool,
    },
    /// Deletes a group that no test uses.
    DeleteGroup {
        /// Its name.
        name: String,
    },
    /// Tells of all groups.
    ListGroups,
    /// Makes a batch.
    AddBatch {
        /// Its name.
        name: String,
    },
    /// Adds a test to a batch.
    AddTest {
        /// The batch.
        batch: String,
        /// How often each unit does it; the largest number for without end.
        loop_count: u32,
        /// Units of a client for each destination.
        concurrency: u32,
        /// Clients that have the same destinations.
        distribute: u32,
        /// Destinations of a client.
        span: u32,
        /// Units end with their first error.
        stops_on_error: bool,
        /// The group of the clients.
        from: String,
        /// The group of the servers.
        to: String,
        /// What is done.
        test: SelftestTest,
    },
    /// Starts a batch.
    Run {
        /// Its name.
        batch: String,
    },
    /// Stops a batch.
    Stop {
        /// Its name.
        batch: String,
        /// Cuts off what is under way.
        force: bool,
    },
    /// Asks the nodes of a batch what is active.
    Query {
        /// Its name.
        batch: String,
        /// The number of a test, from 1; 0 for the batch.
        test: u32,
        /// Its servers, instead of its clients.
        of_servers: bool,
    },
    /// Tells of all batches.
    ListBatches,
    /// Asks nodes for their counters.
    Stat {
        /// Names of groups, or NIDs.
        targets: Vec<String>,
    },
    /// Asks nodes for their session.
    Ping {
        /// Names of groups, or NIDs; none for all of the session.
        targets: Vec<String>,
    },
}

impl SelftestCommand {
    /// Whether it changes nothing, here or at nodes.
    #[must_use]
    pub const fn is_question(&self) -> bool {
        use SelftestCommand::{ListBatches, ListGroups, Ping, Query, ShowSession, Stat};
        matches!(self, ShowSession | ListGroups | ListBatches | Query { .. } | Stat { .. } | Ping { .. })
    }
}

/// A command of the session with this key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestRequest {
    /// What the users of a session know.
    pub key: u32,
    /// What is to be done.
    pub command: SelftestCommand,
    /// A node that does not answer within so many seconds counts as down; without, what the session says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestSession {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: u32,
    /// The console.
    #[serde(with = "text")]
    pub console: Nid,
    /// What tells it from former ones of the console.
    pub stamp: i64,
    /// Feature bits.
    pub features: u32,
    /// Seconds.
    pub timeout_s: u32,
    /// Nodes.
    pub nodes: Vec<SelftestNode>,
}

/// A node of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestNode {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// What is known of it.
    pub state: SelftestState,
    /// Why it did not do what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Errno>,
    /// Tests that are active there; the answer to a query.
    #[serde(default)]
    pub active: u32,
    /// The session that it is in; the answer to a ping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SelftestJoined>,
}

/// The session that a node has said it is in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestJoined {
    /// Its name.
    pub name: String,
    /// Its console.
    #[serde(with = "text")]
    pub console: Nid,
}

/// A group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestGroup {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<SelftestNode>,
}

/// A batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestBatch {
    /// Its name.
    pub name: String,
    /// Its tests.
    pub tests: Vec<SelftestBatchTest>,
    /// Nodes that send.
    pub clients: Vec<SelftestNode>,
    /// Nodes that are sent to.
    pub servers: Vec<SelftestNode>,
    /// Whether the batch was started, and not stopped.
    pub is_running: bool,
}

/// A test of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestBatchTest {
    /// The test in words.
    pub words: String,
    /// How often each unit does it.
    pub loop_count: u32,
    /// Units of a client for each destination.
    pub concurrency: u32,
    /// The group of the clients.
    pub from: String,
    /// The group of the servers.
    pub to: String,
    /// Nodes that send.
    pub clients: Vec<SelftestNode>,
    /// Nodes that are sent to.
    pub servers: Vec<SelftestNode>,
}

/// Counters of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SelftestCounters {
    /// Milliseconds since its session began.
    pub running_ms: u32,
    /// Batches that are active.
    pub active_batches: u32,
    /// Failed or wrong transfers of bulk data.
    pub brw_errors: u32,
    /// Failed or wrong pings.
    pub ping_errors: u32,
    /// Requests that failed.
    pub rpc_errors: u32,
    /// Requests that were dropped.
    pub rpc_dropped: u32,
    /// Requests that were not answered in time.
    pub rpc_expired: u32,
    /// Messages of LNet sent.
    pub sent: u32,
    /// Messages of LNet received.
    pub received: u32,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// What a node answered to `stat`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SelftestStats {
    /// The node.
    #[serde(with = "text")]
    pub nid: Nid,
    /// Its counters, if it told them.
    pub counters: Option<SelftestCounters>,
    /// Why it did not.
    pub failed: Option<Errno>,
}

/// What a console tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelftestAnswer {
    /// The session.
    Session(SelftestSession),
    /// What became of it at each node.
    Nodes(Vec<SelftestNode>),
    /// Groups, or the one that was asked for.
    Groups(Vec<SelftestGroup>),
    /// Batches.
    Batches(Vec<SelftestBatch>),
    /// Statistics by target.
    Stats(Vec<Vec<SelftestStats>>),
}
