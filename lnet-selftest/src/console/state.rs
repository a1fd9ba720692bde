//! The session as its console knows it: nodes, groups, batches.

use std::collections::{BTreeMap, HashMap};

use lnet_model::pattern::{self, NO_NI, NODES_MAX, escaped};
use lnet_model::records::{
    SelftestAnswer, SelftestBatch, SelftestBatchTest, SelftestGroup, SelftestNode, SelftestState,
};
use lnet_model::{Errno, Refusal};
use lnet_user::{Hold, Nid};
use lnet_wire::selftest::{Name, SessionId};

use super::OBJECTS_MAX;

/// Refuses what makes no sense now.
pub(super) fn refused<T>(errno: Errno, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, message))
}

/// Refuses NIDs at which no node can be: it would be waited for in vain.
pub(super) fn check_names(nids: &[Nid]) -> Result<(), Refusal> {
    match nids.iter().find(|nid| !nid.can_name_an_ni()) {
        Some(nid) => refused(Errno::INVAL, format!("{nid}: {NO_NI}")),
        None => Ok(()),
    }
}

/// The batch that each session begins with (LNet `LST_DEFAULT_BATCH`).
const DEFAULT_BATCH: &str = "batch";

/// A test of a batch.
pub(super) struct BatchTest {
    pub(super) words: String,
    pub(super) loop_count: u32,
    pub(super) concurrency: u32,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) clients: Vec<Nid>,
    pub(super) servers: Vec<Nid>,
}

/// A batch of tests.
pub(super) struct Batch {
    pub(super) id: u64,
    pub(super) tests: Vec<BatchTest>,
    pub(super) clients: Vec<Nid>,
    pub(super) servers: Vec<Nid>,
    pub(super) is_running: bool,
}

impl Batch {
    const fn new(id: u64) -> Self {
        Self { id, tests: Vec::new(), clients: Vec::new(), servers: Vec::new(), is_running: false }
    }

    /// Adds a test.
    pub(super) fn push(&mut self, test: BatchTest) {
        for (nodes, known) in [(&test.clients, &mut self.clients), (&test.servers, &mut self.servers)] {
            let fresh: Vec<_> = nodes.iter().filter(|nid| !known.contains(nid)).copied().collect();
            known.extend(fresh);
        }
        self.tests.push(test);
    }
}

/// The batches of a new session. The first that is added has the number 2, as with kernel consoles.
pub(super) fn first_batches() -> BTreeMap<String, Batch> {
    BTreeMap::from([(DEFAULT_BATCH.to_owned(), Batch::new(1))])
}

/// The session of a console.
pub(super) struct Session {
    pub(super) key: u32,
    pub(super) name: Name,
    /// The node is needed while there is a session.
    pub(super) _hold: Hold,
    pub(super) id: SessionId,
    pub(super) features: u32,
    pub(super) timeout_s: u32,
    pub(super) force: bool,
    pub(super) nodes: HashMap<Nid, SelftestState>,
    /// Groups in the order in which they were made.
    pub(super) groups: Vec<(String, Vec<Nid>)>,
    pub(super) batches: BTreeMap<String, Batch>,
    pub(super) next_batch: u64,
}

impl Session {
    pub(super) fn node(&self, nid: &Nid, failed: Option<Errno>, active: u32) -> SelftestNode {
        let state = self.nodes.get(nid).copied().unwrap_or(SelftestState::Unknown);
        SelftestNode { nid: *nid, state, failed, active, session: None }
    }

    /// The nodes of all groups, each once.
    pub(super) fn all_nodes(&self) -> Vec<Nid> {
        let mut nodes = Vec::new();
        for nid in self.groups.iter().flat_map(|(_, nids)| nids) {
            if !nodes.contains(nid) {
                nodes.push(*nid);
            }
        }
        nodes
    }

    /// Forgets nodes that are in no group; those of them that are in the session.
    pub(super) fn forget_nodes(&mut self) -> Vec<Nid> {
        let grouped = self.all_nodes();
        let forgotten = self.nodes.extract_if(|nid, _| !grouped.contains(nid));
        forgotten.filter(|(_, state)| *state == SelftestState::Active).map(|(nid, _)| nid).collect()
    }

    pub(super) fn groups(&self) -> Vec<SelftestGroup> {
        let group = |(name, nids): &(String, Vec<Nid>)| {
            let nodes = nids.iter().map(|nid| self.node(nid, None, 0)).collect();
            SelftestGroup { name: name.clone(), nodes }
        };
        self.groups.iter().map(group).collect()
    }

    pub(super) fn group_mut(&mut self, name: &str) -> Result<&mut Vec<Nid>, Refusal> {
        let unknown = || Refusal::new(Errno::NOENT, format!("there is no group {}", escaped(name)));
        let mut groups = self.groups.iter_mut();
        groups.find(|(known, _)| known == name).map(|(_, nids)| nids).ok_or_else(unknown)
    }

    /// Refuses what tests of a batch are about.
    pub(super) fn check_unused(&self, group: &str) -> Result<(), Refusal> {
        let mut tests = self.batches.values().flat_map(|batch| &batch.tests);
        match tests.any(|test| test.from == group || test.to == group) {
            true => refused(Errno::BUSY, format!("group {} is part of a test", escaped(group))),
            false => Ok(()),
        }
    }

    /// A group's nodes, or those of these NIDs.
    fn target(&self, target: &str) -> Result<Vec<Nid>, Refusal> {
        match self.groups.iter().find(|(name, _)| name == target) {
            Some((_, nodes)) => Ok(nodes.clone()),
            None => {
                let nids = pattern::nodes(target).map_err(|refusal| match refusal.errno {
                    Errno::TOOBIG => refusal,
                    _ => {
                        let message = format!("{target:?}: a group of the session or NIDs are expected");
                        Refusal::new(Errno::NOENT, message)
                    }
                })?;
                check_names(&nids).map(|()| nids)
            }
        }
    }

    /// The nodes of each of these targets, which are asked at the same time.
    pub(super) fn targets(&self, targets: &[String]) -> Result<Vec<Vec<Nid>>, Refusal> {
        let mut found = Vec::new();
        let mut count = 0;
        for target in targets {
            let nodes = self.target(target)?;
            count += nodes.len();
            if count > NODES_MAX {
                return refused(Errno::TOOBIG, format!("more than {NODES_MAX} nodes in all"));
            }
            found.push(nodes);
        }
        Ok(found)
    }

    pub(super) fn add_batch(&mut self, name: String) -> Result<SelftestAnswer, Refusal> {
        if self.batches.contains_key(&name) {
            return refused(Errno::EXIST, format!("there is a batch {}", escaped(&name)));
        }
        if Name::new(&name).is_none() || name.is_empty() || self.batches.len() >= OBJECTS_MAX {
            return refused(
                Errno::INVAL,
                format!("batch {name:?}: 1 to 31 bytes, and {OBJECTS_MAX} batches, are expected"),
            );
        }
        let id = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(name, Batch::new(id));
        Ok(SelftestAnswer::Batches(Vec::new()))
    }

    pub(super) fn batch_mut(&mut self, name: &str) -> Result<&mut Batch, Refusal> {
        let unknown = || Refusal::new(Errno::NOENT, format!("there is no batch {}", escaped(name)));
        self.batches.get_mut(name).ok_or_else(unknown)
    }

    pub(super) fn batches(&self) -> Vec<SelftestBatch> {
        let nodes = |nids: &[Nid]| nids.iter().map(|nid| self.node(nid, None, 0)).collect();
        let test = |test: &BatchTest| SelftestBatchTest {
            words: test.words.clone(),
            loop_count: test.loop_count,
            concurrency: test.concurrency,
            from: test.from.clone(),
            to: test.to.clone(),
            clients: nodes(&test.clients),
            servers: nodes(&test.servers),
        };
        let batch = |(name, batch): (&String, &Batch)| SelftestBatch {
            name: name.clone(),
            tests: batch.tests.iter().map(test).collect(),
            clients: nodes(&batch.clients),
            servers: nodes(&batch.servers),
            is_running: batch.is_running,
        };
        let mut ordered: Vec<_> = self.batches.iter().collect();
        ordered.sort_by_key(|(_, batch)| batch.id);
        ordered.into_iter().map(batch).collect()
    }
}
