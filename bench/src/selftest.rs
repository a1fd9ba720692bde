//! Bulk data of LNet selftest between two nodes whose shards have threads of their own, as `lnetd` runs them:
//! commanded by the console of one, which is a test client of the other.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_model::records::{
    SelftestAnswer, SelftestCommand as Command, SelftestCounters, SelftestRequest, SelftestTest,
};
use lnet_selftest::{Console, Selftest};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_wire::Nid;
use lnet_wire::selftest::{Check, Direction, Test};
use tokio::runtime::{Builder, Runtime};

use crate::link::{Link, Side, wait_until};

/// The key of the only session.
const KEY: u32 = 1;
const SESSION_TIMEOUT_S: u32 = 60;
/// Lengths in bytes, instead of whole pages.
const FEATURES: u32 = 1;
const BATCH: &str = "bulk";
const CLIENTS: &str = "clients";
const SERVERS: &str = "servers";
/// How long units run before what they do counts.
const WARM_UP: Duration = Duration::from_millis(200);

/// Whether tests have bulk data of this length.
#[must_use]
pub fn has_length(bytes: usize) -> bool {
    let (Ok(length_bytes), direction) = (u32::try_from(bytes), Direction::Read as u16) else { return false };
    Test::Brw { direction, flags: Check::None as u16, length_bytes, offset_bytes: 0 }.bulk().is_some()
}

/// Transfers a second of so many bytes, `concurrency` at once, from the near end to the far one if they are
/// written, else the other way round.
///
/// # Errors
/// What a node or the console refused, or errors that the test has counted.
pub fn brw(
    link: &Link,
    is_write: bool,
    bytes: usize,
    concurrency: u32,
    time: Duration,
) -> anyhow::Result<f64> {
    link.pair(
        |ready, stop| {
            let _node = open(link.far())?;
            ready();
            wait_until(stop);
            Ok(())
        },
        || {
            let (_lnet, selftest) = open(link.near())?;
            let runtime = Builder::new_current_thread().enable_time().build()?;
            let console = Commander { console: selftest.console(), runtime };
            console.prepare(link, is_write, bytes, concurrency)?;
            console.agreed(Command::Run { batch: BATCH.into() })?;
            std::thread::sleep(WARM_UP);
            let (begun, before) = (Instant::now(), console.moved_bytes(is_write)?);
            std::thread::sleep(time);
            let (elapsed, after) = (begun.elapsed(), console.moved_bytes(is_write)?);
            console.agreed(Command::Stop { batch: BATCH.into(), force: false })?;
            console.agreed(Command::EndSession)?;
            Ok((after - before) as f64 / bytes as f64 / elapsed.as_secs_f64())
        },
    )
}

/// A node of one shard in the calling thread's network namespace and on its CPU, and its part in tests.
fn open(side: Side<'_>) -> anyhow::Result<(Lnet, Selftest)> {
    let lnet = Lnet::start(&NodeConfig::new(vec![NiConfig::new(side.nid, side.interface)]))?;
    let selftest = Selftest::start(&lnet)?;
    lnet.open()?;
    Ok((lnet, selftest))
}

/// A console, and what its answers are awaited with.
struct Commander {
    console: Console,
    runtime: Runtime,
}

impl Commander {
    fn run(&self, command: Command) -> anyhow::Result<SelftestAnswer> {
        let request = SelftestRequest { key: KEY, command, timeout_s: None };
        Ok(self.runtime.block_on(self.console.run(request))?)
    }

    /// Runs a command that nodes are asked for, to which all of them agree.
    fn agreed(&self, command: Command) -> anyhow::Result<()> {
        let words = format!("{command:?}");
        if let SelftestAnswer::Nodes(nodes) = self.run(command)? {
            let failed = nodes.iter().find_map(|node| node.failed.map(|errno| (node.nid, errno)));
            ensure!(failed.is_none(), "{words}: {failed:?}");
        }
        Ok(())
    }

    /// Begins a session with a batch of one test, which runs until it is stopped.
    fn prepare(&self, link: &Link, is_write: bool, bytes: usize, concurrency: u32) -> anyhow::Result<()> {
        let (name, features) = ("bench".to_owned(), FEATURES);
        self.run(Command::NewSession { name, timeout_s: SESSION_TIMEOUT_S, force: false, features })?;
        let add_group =
            |name: &str, nid: Nid| self.agreed(Command::AddGroup { name: name.into(), nids: vec![nid] });
        add_group(CLIENTS, link.nid_a)?;
        add_group(SERVERS, link.nid_b)?;
        self.run(Command::AddBatch { name: BATCH.into() })?;
        let (check, length_bytes) = (Check::None as u16, u32::try_from(bytes)?);
        self.agreed(Command::AddTest {
            batch: BATCH.into(),
            loop_count: u32::MAX,
            concurrency,
            distribute: 1,
            span: 1,
            stops_on_error: true,
            from: CLIENTS.into(),
            to: SERVERS.into(),
            test: SelftestTest::Brw { is_write, check, length_bytes, offset_bytes: 0 },
        })
    }

    /// Payload bytes that the client has sent, or received.
    fn moved_bytes(&self, is_write: bool) -> anyhow::Result<u64> {
        let answer = self.run(Command::Stat { targets: vec![CLIENTS.into()] })?;
        let SelftestAnswer::Stats(stats) = answer else { anyhow::bail!("no counters, but {answer:?}") };
        let counters = stats.into_iter().flatten().next().and_then(|stats| stats.counters);
        let counters = counters.context("the client has told no counters")?;
        let SelftestCounters { brw_errors, rpc_errors, rpc_expired, .. } = counters;
        ensure!([brw_errors, rpc_errors, rpc_expired] == [0; 3], "the test has failed: {counters:?}");
        Ok(if is_write { counters.sent_bytes } else { counters.received_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::has_length;

    #[test]
    fn lengths_of_bulk_data_are_told_from_others() {
        assert!([8, 64, 4096, 1 << 20].into_iter().all(has_length));
        assert!(![0, 4, 65, (1 << 20) + 8, 1 << 33].into_iter().any(has_length));
    }
}
