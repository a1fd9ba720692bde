//! The outcome of commands, as the reference prints it.

use anyhow::{Context, Result, bail};
use lnet_model::pattern::escaped;
use lnet_model::records::{
    SelftestBatch, SelftestBatchTest, SelftestGroup, SelftestNode, SelftestSession, SelftestState,
};

use crate::cli::{ListBatch, Query};
use crate::failure::{Failure, is_silence};
use crate::output::{complain, tell};

/// States in the order of the columns.
const STATES: [SelftestState; 4] =
    [SelftestState::Active, SelftestState::Busy, SelftestState::Down, SelftestState::Unknown];

/// A node as the reference names it: the pid of Lustre, and the NID.
pub(crate) fn id(nid: impl std::fmt::Display) -> String {
    format!("12345-{nid}")
}

const fn state(state: SelftestState) -> &'static str {
    match state {
        SelftestState::Active => "Active",
        SelftestState::Busy => "Busy",
        SelftestState::Down => "Down",
        SelftestState::Unknown => "Unknown",
    }
}

/// Tells of the nodes that did not do what they were asked.
pub(crate) fn failures(nodes: &[SelftestNode], what: &str) -> Result<()> {
    let failed = nodes.iter().filter_map(|node| Some((node, node.failed?)));
    for (node, errno) in failed.clone() {
        if is_silence(errno) {
            complain(format_args!("{what} RPC failed on {}: {errno}", id(node.nid)));
        } else {
            complain(format_args!("operation {what} failed on {}: {errno}", id(node.nid)));
        }
    }
    match failed.clone().count() {
        0 => Ok(()),
        count => {
            let message = format!("{what}: {count} of {} nodes have failed", nodes.len());
            bail!(Failure::nodes(failed.map(|(_, errno)| errno), message))
        }
    }
}

pub(crate) fn session(session: &SelftestSession) {
    let SelftestSession { name, key, console, stamp, features, nodes, .. } = session;
    let name = escaped(name);
    tell(format_args!(
        "{name} ID: {stamp}@{console}, KEY: {key} FEATURES: {features:x} NODES: {}",
        nodes.len()
    ));
}

/// Names of the columns.
const HEAD: &str = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL";

/// How many nodes are in each state, and in all.
fn counts(nodes: &[SelftestNode]) -> String {
    let count = |state| nodes.iter().filter(|node| node.state == state).count();
    let [active, busy, down, unknown] = STATES.map(count);
    format!("{active}\t{busy}\t{down}\t{unknown}\t{}", nodes.len())
}

/// All groups, or the nodes of some that are in a chosen state.
pub(crate) fn groups(groups: &[SelftestGroup], names: &[String], chosen: [bool; 4]) -> Result<()> {
    if names.is_empty() {
        for (group, number) in groups.iter().zip(1..) {
            tell(format_args!("{number}) {}", escaped(&group.name)));
        }
        tell(format_args!("Total {} groups", groups.len()));
        return Ok(());
    }
    let tells_nodes = chosen.contains(&true);
    if tells_nodes {
        tell(format_args!("{HEAD}"));
    }
    // The reference is silent on names that no group has.
    for group in names.iter().filter_map(|name| groups.iter().find(|group| group.name == *name)) {
        let name = escaped(&group.name);
        if !tells_nodes {
            tell(format_args!("\t{}\t{name}", counts(&group.nodes)));
            continue;
        }
        let is_chosen = |node: &&SelftestNode| {
            STATES.iter().zip(chosen).any(|(state, chosen)| chosen && *state == node.state)
        };
        let nodes: Vec<_> = group.nodes.iter().filter(is_chosen).collect();
        tell(format_args!("Group [ {name} ]"));
        if nodes.is_empty() {
            tell(format_args!("No nodes found [ {name} ]"));
            continue;
        }
        nodes.iter().for_each(|node| tell(format_args!("\t{}: {}", id(node.nid), state(node.state))));
        tell(format_args!("Total {} nodes [ {name} ]", nodes.len()));
    }
    Ok(())
}

/// The batch of this name.
pub(crate) fn batch<'a>(batches: &'a [SelftestBatch], name: &str) -> Result<&'a SelftestBatch> {
    let batch = batches.iter().find(|batch| batch.name == name);
    batch.with_context(|| format!("there is no batch {}", escaped(name)))
}

/// All batches, or the tests of one, or its nodes.
pub(crate) fn batches(batches: &[SelftestBatch], options: &ListBatch) -> Result<()> {
    let &ListBatch { test, active, invalid, all, server, ref name } = options;
    let Some(name) = name else {
        for (batch, number) in batches.iter().zip(1..) {
            tell(format_args!("{number}) {}", escaped(&batch.name)));
        }
        tell(format_args!("Total {} batches", batches.len()));
        return Ok(());
    };
    let batch = batch(batches, name)?;
    let name = &escaped(name);
    let numbered = |number: u32| {
        let found = batch.tests.get(number as usize - 1);
        found.with_context(|| format!("test {number}: the batch {name} has {} tests", batch.tests.len()))
    };
    let chosen = test.map(numbered).transpose()?;
    if active || invalid || all {
        let (clients, servers) =
            chosen.map_or((&batch.clients, &batch.servers), |test| (&test.clients, &test.servers));
        let is_chosen = |node: &&SelftestNode| {
            let is_active = node.state == SelftestState::Active;
            all || (active && is_active) || (invalid && !is_active)
        };
        let nodes: Vec<_> = if server { servers } else { clients }.iter().filter(is_chosen).collect();
        nodes.iter().for_each(|node| tell(format_args!("\t{}: {}", id(node.nid), state(node.state))));
        tell(format_args!("Total {} nodes", nodes.len()));
    } else if let (Some(test), Some(number)) = (chosen, test) {
        numbered_test(number, test);
    } else {
        let state = if batch.is_running { RUNNING } else { IDLE };
        tell(format_args!("Batch: {name} Tests: {} State: {state}", batch.tests.len()));
        both(&batch.clients, &batch.servers);
        batch.tests.iter().zip(1..).for_each(|(test, number)| numbered_test(number, test));
    }
    Ok(())
}

/// States of batches (LNet `LST_BATCH_IDLE`, `LST_BATCH_RUNNING`).
const IDLE: u32 = 0xB0;
const RUNNING: u32 = 0xB1;

fn numbered_test(number: u32, test: &SelftestBatchTest) {
    let SelftestBatchTest { words, loop_count, concurrency, clients, servers, .. } = test;
    let kind = words.split_whitespace().next().unwrap_or_default();
    // Without end is -1.
    let loop_count = loop_count.cast_signed();
    let kind = escaped(kind);
    tell(format_args!("\tTest {number}({kind}) (loop: {loop_count}, concurrency: {concurrency})"));
    both(clients, servers);
}

/// How many clients and servers are in each state.
fn both(clients: &[SelftestNode], servers: &[SelftestNode]) {
    tell(format_args!("{HEAD}\nclient\t{}\nserver\t{}", counts(clients), counts(servers)));
}

/// Shows what of a batch is active.
pub(crate) fn activity(nodes: &[SelftestNode], options: &Query) -> Result<()> {
    let &Query { test, all, active, idle, error, ref batch, .. } = options;
    let batch = escaped(batch);
    let unknown = nodes.iter().filter(|node| node.failed.is_some()).count();
    let running = nodes.iter().filter(|node| node.failed.is_none() && node.active != 0).count();
    if all || active || idle || error {
        if nodes.is_empty() {
            tell("Batch or test is empty");
        }
        for node in nodes {
            let (is_chosen, activity) = match (node.failed, node.active) {
                (Some(errno), _) => (error, errno.to_string()),
                (None, 0) => (idle, "Idle".to_owned()),
                (None, _) => (active, "Running".to_owned()),
            };
            if all || is_chosen {
                tell(format_args!("{} [{}]: {activity}", id(node.nid), state(node.state)));
            }
        }
    } else if unknown != 0 {
        let total = nodes.len();
        let stopped = total - unknown - running;
        // Nodes that have answered have not failed.
        tell(format_args!(
            "{batch} [{test}] {unknown} of {total} nodes are unknown, stopped: {stopped} , running: {running}, failed: 0"
        ));
    } else {
        tell(format_args!("{batch} [{test}] is {}", if running == 0 { "stopped" } else { "running" }));
    }
    match unknown {
        0 => Ok(()),
        unknown => {
            let message = format!("{unknown} of {} nodes did not answer", nodes.len());
            bail!(Failure::nodes(nodes.iter().filter_map(|node| node.failed), message))
        }
    }
}

/// Shows what nodes have said of their session.
pub(crate) fn pinged(nodes: &[SelftestNode]) {
    for node in nodes {
        let of = match &node.session {
            Some(session) => format!("[session: {} id: {}]", escaped(&session.name), session.console),
            None => "[session: <NULL> id: <?>]".to_owned(),
        };
        tell(format_args!("\t{}: {} {of}", id(node.nid), state(node.state)));
    }
}
