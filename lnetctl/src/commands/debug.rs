//! What a node is about to do, and why.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_control::resolve;
use lnet_model::pattern;
use lnet_model::text::NidText;

use super::Result;
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::{json_line, print_text};

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Show the NIDs that are pinged until they are in full health again
    #[command(after_help = "Examples:\n  lnetctl debug recovery --local\n  lnetctl debug recovery --peer")]
    Recovery {
        /// Local NIDs
        #[arg(long, short)]
        local: bool,
        /// NIDs of peers
        #[arg(long, short)]
        peer: bool,
    },
    /// Have the daemon say in its log all that it knows of a peer
    #[command(after_help = "Examples:\n  lnetctl debug peer --nid 10.0.0.2@tcp")]
    Peer {
        /// A NID of it
        #[arg(long, short)]
        nid: Option<String>,
    },
    /// Have a daemon that was started with --log-refusals go on telling of frames that XDP passes up, or not
    #[command(after_help = "Examples:\n  lnetctl debug refusals off")]
    Refusals {
        /// Whether it tells of them
        #[arg(value_parser = ["on", "off"])]
        state: String,
    },
    /// Say how a list of NIDs is understood; no daemon is asked
    #[command(after_help = "Examples:\n  lnetctl debug nidlist '10.0.[1-9].*@tcp *@xdp1' 10.0.3.4@tcp")]
    Nidlist(NidlistArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NidlistArgs {
    /// NIDs with ranges and wildcards, blanks between them
    list: String,
    /// Say whether the list has this NID
    nid: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The NID
    nid: String,
}

#[derive(Debug, Args)]
pub(crate) struct CptArgs {
    /// NIDs, with ranges and commas
    #[arg(required = true, value_name = "NIDS")]
    nids: Vec<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: DebugCommand) -> Result<()> {
    match command {
        DebugCommand::Recovery { local, peer } => {
            let task = Task::new("show", "recovery");
            if !local && !peer {
                return Err(task.invalid("--local or --peer is expected"));
            }
            let queues = daemon.ask(task, Client::recovery)?;
            let mut shown = document::Map::new();
            if local {
                shown.extend(document::recovery("Local NI recovery", &queues.local));
            }
            if peer {
                shown.extend(document::recovery("Peer NI recovery", &queues.peers));
            }
            daemon.print(&shown);
            Ok(())
        }
        DebugCommand::Peer { nid } => {
            let task = Task::new("debug", "peer");
            let Some(nid) = task.parsed(nid.as_deref(), resolve::nid)? else {
                return Err(task.invalid("missing mandatory parameter: --nid"));
            };
            daemon.ask(task, |client| client.log_peer(NidText(nid)))
        }
        DebugCommand::Refusals { state } => {
            daemon.ask(Task::new("debug", "refusals"), |client| client.log_refusals(state == "on"))
        }
        DebugCommand::Nidlist(args) => nidlist(&args, daemon.as_json),
    }
}

fn nidlist(NidlistArgs { list, nid }: &NidlistArgs, as_json: bool) -> Result<()> {
    let task = Task::new("debug", "nidlist");
    let ranges = pattern::nid_ranges(list).map_err(task.pattern())?;
    let nid = task.parsed(nid.as_deref(), resolve::nid)?;
    let list = ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let matches = nid.map(|nid| (nid, ranges.iter().any(|range| range.covers(&nid))));
    if as_json {
        let mut told = document::Map::new();
        told.insert("nidlist".to_owned(), list.into());
        if let Some((nid, matches)) = matches {
            told.insert("nid".to_owned(), nid.to_string().into());
            told.insert("matches".to_owned(), matches.into());
        }
        print_text(&json_line(&told));
        return Ok(());
    }
    print_text(&format_args!("nidlist parsed to: {list}\n"));
    if let Some((nid, matches)) = matches {
        let matches = if matches { "matches" } else { "does not match" };
        print_text(&format_args!("{nid} {matches} nidlist {list}\n"));
    }
    Ok(())
}

pub(super) fn explain(daemon: &mut Daemon<'_>, args: &ExplainArgs) -> Result<()> {
    let nid = resolve::nid(&args.nid).map_err(Task::new("show", "explain").pattern())?;
    daemon.show("explain", |client| client.explain(NidText(nid)), document::explain)
}

pub(super) fn cpts_of(daemon: &mut Daemon<'_>, args: &CptArgs) -> Result<()> {
    let task = Task::new("show", "cpt-of-nid");
    let mut nids = Vec::new();
    for list in &args.nids {
        nids.extend(resolve::nids(list).map_err(task.pattern())?.into_iter().map(NidText));
    }
    daemon.show("cpt-of-nid", |client| client.cpts_of(nids), |cpts| document::cpts_of(cpts))
}
