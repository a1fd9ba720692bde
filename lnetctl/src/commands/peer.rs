//! Peers, and pings.

use clap::{Args, Subcommand};
use lnet_control::Errno;
use lnet_control::client::Client;
use lnet_control::document::{self, Detail, Yaml};
use lnet_control::pattern;
use lnet_control::request::PingRequest;
use lnet_wire::Nid;

use super::Result;
use crate::cli::Verbose;
use crate::failure::{CommandError, Task};
use crate::session::{Daemon, print_text};

/// Seconds from which on a timeout is the node's own.
const TIMEOUT_MAX_S: i64 = 180;

#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Show peers and their NIs
    #[command(after_help = "Examples:\n  lnetctl peer show\n  lnetctl peer show --nid 10.0.0.2@xdp -v 4")]
    Show {
        /// Only the peer with this NID
        #[arg(long)]
        nid: Option<String>,
        #[command(flatten)]
        verbose: Verbose,
    },
    /// List the primary NIDs of the peers
    List,
}

#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// Local NI to ping from
    #[arg(long, short)]
    pub(crate) source: Option<String>,
    /// Seconds that each peer may take [default: 180]
    #[arg(long, short, allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    /// NIDs, with ranges and commas
    #[arg(required = true, value_name = "NIDS")]
    pub(crate) nids: Vec<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: PeerCommand) -> Result<()> {
    match command {
        PeerCommand::Show { nid, verbose } => show(daemon, nid.as_deref(), verbose.level()),
        PeerCommand::List => daemon.show("peer", Client::peers, |peers| document::peer_list(peers)),
    }
}

fn show(daemon: &mut Daemon<'_>, nid: Option<&str>, level: u8) -> Result<()> {
    let task = Task::new("show", "peer");
    let nid = task.parsed(nid, pattern::nid)?;
    let mut peers = daemon.ask(task, Client::peers)?;
    if let Some(nid) = nid {
        peers.retain(|peer| peer.primary_nid == nid || peer.nis.iter().any(|ni| ni.nid == nid));
        if peers.is_empty() {
            return Err(task.error(Errno::NOENT, format!("no peer has the nid {nid}")));
        }
    }
    daemon.print(&document::peers(&peers, Detail::Level(level)));
    Ok(())
}

pub(super) fn ping(daemon: &mut Daemon<'_>, args: &PingArgs) -> Result<()> {
    let task = Task::new("manage", "ping");
    let mut nids: Vec<Nid> = Vec::new();
    for list in &args.nids {
        nids.extend(pattern::nids_resolved(list).map_err(task.pattern())?);
    }
    let source = task.parsed(args.source.as_deref(), pattern::nid)?;
    let timeout: Option<i64> = task.optional("timeout", args.timeout.as_ref(), i64::MIN..=i64::MAX)?;
    let timeout = timeout.filter(|seconds| (1..TIMEOUT_MAX_S).contains(seconds));
    let timeout_ms = timeout.map(|seconds| seconds.unsigned_abs() * 1000);
    send(daemon, PingRequest { nids, source, timeout_ms })
}

/// Pings, prints who answers as soon as it does, and then who did not.
pub(super) fn send(daemon: &mut Daemon<'_>, request: PingRequest) -> Result<()> {
    let task = Task::new("manage", "ping");
    let as_json = daemon.as_json;
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    let ended = daemon.ask(task, |client| {
        client.ping(request, |reply| {
            let replies = if reply.result.is_ok() { &mut answered } else { &mut failed };
            if reply.result.is_ok() && !as_json {
                let text = Yaml(&document::pings(std::slice::from_ref(&reply))).to_string();
                // The key stands once, over all of them.
                let item =
                    if replies.is_empty() { Some(text.as_str()) } else { text.strip_prefix("ping:\n") };
                print_text(&item.unwrap_or_default());
            }
            replies.push(reply);
        })
    });
    let is_good = failed.is_empty();
    if as_json {
        failed.splice(..0, answered);
    }
    daemon.print(&document::pings(&failed));
    ended?;
    // The document about them stands on stdout already.
    if is_good { Ok(()) } else { Err(CommandError::several("manage", Vec::new()).failed()) }
}
