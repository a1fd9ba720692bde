//! What came of commands, as the reference prints it.

use anyhow::{Result, bail};
use lnet_control::records::{SelftestBatch, SelftestGroup, SelftestNode, SelftestSession, SelftestState};

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
    const STATES: [SelftestState; 4] =
        [SelftestState::Active, SelftestState::Busy, SelftestState::Down, SelftestState::Unknown];
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

/// All batches, or the tests of some.
pub(crate) fn batches(batches: &[SelftestBatch], names: &[String]) -> Result<()> {
    if names.is_empty() {
        for batch in batches {
            println!("{}", batch.name);
        }
        return Ok(());
    }
    for name in names {
        let Some(batch) = batches.iter().find(|batch| batch.name == *name) else {
            bail!("there is no batch {name}");
        };
        let state = if batch.is_running { "Running" } else { "Idle" };
        println!(
            "Batch: {name} Tests: {} State: {state} Clients: {} Servers: {}",
            batch.tests.len(),
            batch.clients,
            batch.servers
        );
        for (test, number) in batch.tests.iter().zip(1..) {
            println!("\tTest {number}: {test}");
        }
    }
    Ok(())
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
