//! What came of commands, as the reference prints it.

use anyhow::{Context, Result, bail};
use lnet_control::records::{
    SelftestBatch, SelftestBatchTest, SelftestGroup, SelftestNode, SelftestSession, SelftestState,
};

use crate::cli::ListBatch;

/// In the order of the columns.
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
        eprintln!("{} did not {what}: {errno}", id(node.nid));
    }
    match failed.count() {
        0 => Ok(()),
        count => bail!("{count} of {} nodes did not {what}", nodes.len()),
    }
}

pub(crate) fn session(session: &SelftestSession) {
    let SelftestSession { name, key, console, features, timeout_s, nodes } = session;
    println!(
        "{name} ID: {console} KEY: {key} FEATURES: {features:x} TIMEOUT: {timeout_s} NODES: {}",
        nodes.len()
    );
}

/// All groups, or the nodes of some that are in a chosen state.
pub(crate) fn groups(groups: &[SelftestGroup], names: &[String], chosen: [bool; 4]) -> Result<()> {
    if names.is_empty() {
        for (group, number) in groups.iter().zip(1..) {
            println!("{number}) {}", group.name);
        }
        println!("Total {} groups", groups.len());
        return Ok(());
    }
    for name in names {
        let Some(group) = groups.iter().find(|group| group.name == *name) else {
            bail!("there is no group {name}");
        };
        let count = |state| group.nodes.iter().filter(|node| node.state == state).count();
        println!("{:<10} {:<10} {:<10} {:<10} {:<10}", "ACTIVE", "BUSY", "DOWN", "UNKNOWN", "TOTAL");
        let [active, busy, down, unknown] = STATES.map(count);
        println!("{active:<10} {busy:<10} {down:<10} {unknown:<10} {:<10} {name}", group.nodes.len());
        for node in &group.nodes {
            if STATES.iter().zip(chosen).any(|(state, chosen)| chosen && *state == node.state) {
                println!("{}: {}", id(node.nid), state(node.state));
            }
        }
        if chosen.contains(&true) {
            println!("Total {} nodes [{name}]", group.nodes.len());
        }
    }
    Ok(())
}

/// The batch of this name.
pub(crate) fn batch<'a>(batches: &'a [SelftestBatch], name: &str) -> Result<&'a SelftestBatch> {
    let batch = batches.iter().find(|batch| batch.name == name);
    batch.with_context(|| format!("there is no batch {name}"))
}

/// All batches, or the tests of some, or their nodes.
pub(crate) fn batches(batches: &[SelftestBatch], options: &ListBatch) -> Result<()> {
    if options.names.is_empty() {
        if options.test.is_some() {
            bail!("--test: the name of a batch is expected");
        }
        batches.iter().for_each(|batch| println!("{}", batch.name));
        return Ok(());
    }
    let &ListBatch { active, invalid, all, server, .. } = options;
    let is_chosen = |state| match state {
        SelftestState::Active => active || all || !invalid,
        SelftestState::Busy | SelftestState::Down | SelftestState::Unknown => invalid || all || !active,
    };
    for name in &options.names {
        let batch = batch(batches, name)?;
        let tests: Vec<_> = batch
            .tests
            .iter()
            .zip(1..)
            .filter(|(_, number)| options.test.is_none_or(|test| test == *number))
            .collect();
        if let (Some(test), true) = (options.test, tests.is_empty()) {
            bail!("test {test}: the batch {name} has {} tests", batch.tests.len());
        }
        if active || invalid || all || server {
            let (clients, servers) = match (options.test, tests.first()) {
                (Some(_), Some((test, _))) => (&test.clients, &test.servers),
                _ => (&batch.clients, &batch.servers),
            };
            let nodes = if server { servers } else { clients };
            nodes
                .iter()
                .filter(|node| is_chosen(node.state))
                .for_each(|node| pinged(std::slice::from_ref(node)));
            continue;
        }
        let state = if batch.is_running { "Running" } else { "Idle" };
        println!("Batch: {name} Tests: {} State: {state}", batch.tests.len());
        counted(&batch.clients, &batch.servers);
        for (test, number) in tests {
            let SelftestBatchTest { words, loop_count, concurrency, from, to, clients, servers } = test;
            println!(
                "Test {number}({words}) (loop: {loop_count}, concurrency: {concurrency}), from {from} to {to}"
            );
            counted(clients, servers);
        }
    }
    Ok(())
}

/// How many clients and servers are in each state.
fn counted(clients: &[SelftestNode], servers: &[SelftestNode]) {
    println!("{:<10} {:<10} {:<10} {:<10} {:<10} {:<10}", "", "ACTIVE", "BUSY", "DOWN", "UNKNOWN", "TOTAL");
    for (role, nodes) in [("client", clients), ("server", servers)] {
        let [active, busy, down, unknown] =
            STATES.map(|state| nodes.iter().filter(|node| node.state == state).count());
        println!("{role:<10} {active:<10} {busy:<10} {down:<10} {unknown:<10} {:<10}", nodes.len());
    }
}

/// What of a batch is active.
pub(crate) fn activity(nodes: &[SelftestNode], each: bool) -> Result<()> {
    if each {
        for node in nodes {
            let activity = match (node.failed, node.active) {
                (Some(_), _) => "Unknown",
                (None, 0) => "Idle",
                (None, _) => "Running",
            };
            println!("{} [{}]: {activity}", id(node.nid), state(node.state));
        }
    } else {
        let running = nodes.iter().filter(|node| node.active != 0).count();
        let activity = if running == 0 { "Idle" } else { "Running" };
        println!("Batch is {activity}: {running} of {} nodes are running", nodes.len());
    }
    failures(nodes, "answer")
}

pub(crate) fn pinged(nodes: &[SelftestNode]) {
    for node in nodes {
        println!("{}: {}", id(node.nid), state(node.state));
    }
}
