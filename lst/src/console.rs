//! Requests of commands to a node's daemon.

use anyhow::{Result, bail};
use lnet_control::client::Client;
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

    /// A command that is answered for each node.
    pub(crate) fn nodes(&mut self, command: SelftestCommand) -> Result<Vec<SelftestNode>> {
        match self.ask(command)? {
            SelftestAnswer::Nodes(nodes) => Ok(nodes),
            answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
        }
    }
}
