//! Pings, and the discovery of peers.

use clap::Args;
use lnet_control::document::{self, Yaml};
use lnet_control::resolve;
use lnet_model::request::{PingPurpose, PingRequest};
use lnet_wire::Nid;

use super::Result;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task};
use crate::output::print_text;

/// Seconds from which on a timeout is the node's own.
const TIMEOUT_S_MAX: i64 = 180;

#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// Local NI to ping from
    #[arg(long, short, value_name = "NID")]
    pub(crate) source: Option<String>,
    /// Seconds that each peer may take [default: 180]
    #[arg(long, short, allow_hyphen_values = true, value_name = "SECONDS")]
    pub(crate) timeout: Option<String>,
    /// NIDs, with ranges and commas
    #[arg(required = true, value_name = "NIDS")]
    pub(crate) nids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// Discover peers again that are up to date, and tell them what this node is
    #[arg(long, short)]
    pub(crate) force: bool,
    /// NIDs, with ranges and commas
    #[arg(required = true, value_name = "NIDS")]
    pub(crate) nids: Vec<String>,
}

pub(super) fn ping(daemon: &mut Daemon<'_>, args: &PingArgs) -> Result<()> {
    let task = Task::new("manage", "ping");
    let nids = nids(task, &args.nids)?;
    let source = task.parsed(args.source.as_deref(), resolve::nid)?;
    let timeout: Option<i64> = task.optional("timeout", args.timeout.as_ref(), i64::MIN..=i64::MAX)?;
    let timeout = timeout.filter(|seconds| (1..TIMEOUT_S_MAX).contains(seconds));
    let timeout_ms = timeout.map(|seconds| seconds.unsigned_abs() * 1000);
    send(daemon, PingRequest { nids, source, timeout_ms, purpose: PingPurpose::Ping })
}

pub(super) fn discover(daemon: &mut Daemon<'_>, args: &DiscoverArgs) -> Result<()> {
    let nids = nids(Task::new("manage", "discover"), &args.nids)?;
    let purpose = if args.force { PingPurpose::ForceDiscovery } else { PingPurpose::Discover };
    send(daemon, PingRequest { nids, source: None, timeout_ms: None, purpose })
}

/// The NIDs of some lists.
fn nids(task: Task, lists: &[String]) -> Result<Vec<Nid>> {
    let mut nids: Vec<Nid> = Vec::new();
    for list in lists {
        nids.extend(resolve::nids(list).map_err(task.pattern())?);
    }
    Ok(nids)
}

/// Asks, prints what is answered as soon as it is, and then what was not.
pub(super) fn send(daemon: &mut Daemon<'_>, request: PingRequest) -> Result<()> {
    let purpose = request.purpose;
    let task = Task::new("manage", purpose.name());
    let key = format!("{}:\n", purpose.name());
    let as_json = daemon.as_json;
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    let ended = daemon.ask(task, |client| {
        client.ping(request, |reply| {
            let replies = if reply.result.is_ok() { &mut answered } else { &mut failed };
            if reply.result.is_ok() && !as_json {
                let text = Yaml(&document::pings(purpose, std::slice::from_ref(&reply))).to_string();
                // The key stands once, over all of them.
                let item = if replies.is_empty() { Some(text.as_str()) } else { text.strip_prefix(&key) };
                print_text(&item.unwrap_or_default());
            }
            replies.push(reply);
        })
    });
    let is_good = failed.is_empty();
    if as_json {
        failed.splice(..0, answered);
    }
    daemon.print(&document::pings(purpose, &failed));
    ended?;
    // The document about them stands on stdout already.
    if is_good { Ok(()) } else { Err(CommandError::several("manage", Vec::new()).failed()) }
}
