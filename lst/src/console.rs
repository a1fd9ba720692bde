//! Requests of commands to a node's daemon.

use anyhow::{Result, bail};
use lnet_control::client::Client;
use lnet_control::resolve;
use lnet_model::pattern;
use lnet_model::records::{SelftestAnswer, SelftestBatch, SelftestCommand, SelftestNode, SelftestRequest};

/// The console that commands go to.
pub(crate) struct Console {
    pub(crate) client: Client,
    pub(crate) key: u32,
    /// Seconds that a node may take to answer, if not as long as the session says.
    pub(crate) timeout_s: Option<u32>,
}

impl Console {
    /// Asks the daemon for something.
    pub(crate) fn ask(&mut self, command: SelftestCommand) -> Result<SelftestAnswer> {
        Ok(self.client.selftest(SelftestRequest { key: self.key, command, timeout_s: self.timeout_s })?)
    }

    /// The batches of the session.
    pub(crate) fn batches(&mut self) -> Result<Vec<SelftestBatch>> {
        match self.ask(SelftestCommand::ListBatches)? {
            SelftestAnswer::Batches(batches) => Ok(batches),
            answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
        }
    }

    /// Targets as the daemon is told of them: names of hosts, which are none of groups, are looked up here.
    pub(crate) fn resolved(&mut self, targets: &[String]) -> Result<Vec<String>> {
        if targets.iter().all(|target| pattern::nodes(target).is_ok()) {
            return Ok(targets.to_vec());
        }
        let SelftestAnswer::Groups(groups) = self.ask(SelftestCommand::ListGroups)? else {
            bail!("the daemon answered something else than it was asked");
        };
        let told = |target: &String| {
            if groups.iter().any(|group| group.name == *target) || pattern::nodes(target).is_ok() {
                return Ok(target.clone());
            }
            match resolve::nodes(target) {
                Ok(nids) => Ok(nids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
                // A word without a net may mean a group.
                Err(_) if !target.contains('@') => Ok(target.clone()),
                Err(refusal) => Err(refusal.into()),
            }
        };
        targets.iter().map(told).collect()
    }

    /// A command that is answered for each node.
    pub(crate) fn nodes(&mut self, command: SelftestCommand) -> Result<Vec<SelftestNode>> {
        match self.ask(command)? {
            SelftestAnswer::Nodes(nodes) => Ok(nodes),
            answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
        }
    }
}
