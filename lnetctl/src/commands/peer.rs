//! Peers.

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document::{self, Detail, Yaml};
use lnet_control::resolve;
use lnet_model::Errno;
use lnet_model::peer::PeerSpec;
use lnet_model::records::PeerQuery;
use lnet_model::request::Change;
use lnet_wire::Nid;

use super::Result;
use super::cli::Verbose;
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::print_text;

#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Make a peer, or give one more NIDs
    #[command(after_help = "Examples:
  lnetctl peer add --prim_nid 10.0.0.2@tcp --nid 10.1.0.2@tcp1
  lnetctl peer add --prim_nid 10.0.0.2@tcp --nid 10.[1-4].0.2@tcp --lock_prim")]
    #[command(mut_arg("force", |force| force.hide(true)))]
    Add(PeerArgs),
    /// Delete a peer, or some of its NIDs
    #[command(after_help = "Examples:
  lnetctl peer del --prim_nid 10.0.0.2@tcp
  lnetctl peer del --prim_nid 10.0.0.2@tcp --nid 10.1.0.2@tcp1")]
    #[command(mut_arg("non_mr", |flag| flag.hide(true)), mut_arg("lock_prim", |flag| flag.hide(true)))]
    Del(PeerArgs),
    /// Set the health of peer NIs, or the state of a peer
    #[command(after_help = "Examples:
  lnetctl peer set --nid 10.0.0.2@tcp --health 500
  lnetctl peer set --all --health 1000")]
    Set(Settings),
    /// Show peers and their NIs
    #[command(
        after_help = "Examples:\n  lnetctl peer show\n  lnetctl peer show --nid 10.0.0.2@xdp,10.0.0.[4-6]@xdp -v 4"
    )]
    Show {
        /// Only the peers with these NIDs, with ranges and commas
        #[arg(long, short, value_name = "NIDS")]
        nid: Option<String>,
        #[command(flatten)]
        verbose: Verbose,
    },
    /// List the primary NIDs of the peers
    List,
}

#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// The primary NID of the peer
    #[arg(long, short = 'k', value_name = "NID")]
    prim_nid: Option<String>,
    /// Its other NIDs, with ranges and commas
    #[arg(long, short, alias = "ip2nets")]
    nid: Option<String>,
    /// The peer takes messages by the NID that they were meant for alone
    #[arg(long, short = 'm')]
    non_mr: bool,
    /// Its primary NID stays, whatever discovery finds
    #[arg(long, short)]
    lock_prim: bool,
    /// Delete it though its primary NID is locked
    #[arg(long, short)]
    force: bool,
}

// What `peer set` is given.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// The NID
    #[arg(long, short)]
    nid: Option<String>,
    /// All NIDs of all peers
    #[arg(long, short)]
    all: bool,
    /// Health, 0 to 1000
    #[arg(long, short = 't', allow_hyphen_values = true, value_name = "VALUE")]
    health: Option<String>,
    /// State bits of the peer, for tests
    #[arg(long, short, allow_hyphen_values = true, value_name = "BITS")]
    state: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: PeerCommand) -> Result<()> {
    match command {
        PeerCommand::Add(args) => add(daemon, &args),
        PeerCommand::Del(args) => delete(daemon, &args),
        PeerCommand::Set(settings) => set(daemon, &settings),
        PeerCommand::Show { nid, verbose } => show(daemon, nid.as_deref(), &verbose),
        PeerCommand::List => daemon.show("peer", Client::peers, |peers| document::peer_list(peers)),
    }
}

fn add(daemon: &mut Daemon<'_>, args: &PeerArgs) -> Result<()> {
    let task = Task::new("add", "peer");
    if args.force {
        return Err(task.invalid("--force is for peer del"));
    }
    let primary = task.parsed(args.prim_nid.as_deref(), resolve::nid)?;
    let nids = task.parsed(args.nid.as_deref(), resolve::nids)?.unwrap_or_default();
    // The older form: the first of several is the primary one.
    let primary = primary.or_else(|| nids.first().copied().filter(|_| nids.len() > 1));
    let Some(primary_nid) = primary else {
        return Err(task.invalid("missing mandatory parameter: --prim_nid"));
    };
    let (multi_rail, lock_primary) = (!args.non_mr, args.lock_prim);
    daemon.apply(task, vec![Change::AddPeer(PeerSpec { primary_nid, nids, multi_rail, lock_primary })])
}

fn delete(daemon: &mut Daemon<'_>, args: &PeerArgs) -> Result<()> {
    let task = Task::new("del", "peer");
    if args.non_mr || args.lock_prim {
        return Err(task.invalid("--non_mr and --lock_prim are for peer add"));
    }
    let nids = task.parsed(args.nid.as_deref(), resolve::nids)?.unwrap_or_default();
    let primary_nid = match task.parsed(args.prim_nid.as_deref(), resolve::nid)? {
        Some(primary) => primary,
        None if nids.is_empty() => return Err(task.invalid("missing mandatory parameter: --prim_nid")),
        None => owner(daemon, task, &nids)?,
    };
    daemon.apply(task, vec![Change::DeletePeer { primary_nid, nids, force: args.force }])
}

/// The primary NID of the one peer that has these NIDs (the older form of `peer del`).
fn owner(daemon: &mut Daemon<'_>, task: Task, nids: &[Nid]) -> Result<Nid> {
    let peers = daemon.ask(task, |client| client.peers_of(nids))?;
    let mut owners = Vec::new();
    for nid in nids {
        let owner = peers.iter().find(|peer| peer.nis.iter().any(|ni| ni.nid == *nid));
        owners.push(owner.ok_or_else(|| unknown(task, *nid))?.primary_nid);
    }
    match owners.as_slice() {
        [owner, others @ ..] if others.iter().all(|other| other == owner) => Ok(*owner),
        _ => Err(task.invalid("--nid without --prim_nid: NIDs of one peer are expected")),
    }
}

fn unknown(task: Task, nid: Nid) -> crate::failure::CommandError {
    task.error(Errno::NOENT, format!("no peer has the nid {nid}"))
}

fn set(daemon: &mut Daemon<'_>, what: &Settings) -> Result<()> {
    let task = Task::new("set", "peer");
    let nid = task.parsed(what.nid.as_deref(), resolve::nid)?;
    match (nid, what.all) {
        (Some(_), true) => return Err(task.invalid("--nid goes not with --all")),
        (None, false) => return Err(task.invalid("missing mandatory parameter: --nid, or --all")),
        _ => {}
    }
    let mut changes = Vec::new();
    if let Some(value) = task.health(what.health.as_ref())? {
        changes.push(Change::SetPeerHealth { nid, value });
    }
    match (nid, task.optional("state", what.state.as_ref(), 0..=u32::MAX.into())?) {
        (_, None) => {}
        (Some(nid), Some(state)) => changes.push(Change::SetPeerState { nid, state }),
        (None, Some(_)) => return Err(task.invalid("--state: the peer is expected, --nid")),
    }
    if changes.is_empty() {
        return Err(task.invalid("nothing to set: --health or --state is expected"));
    }
    daemon.apply(task, changes)
}

fn show(daemon: &mut Daemon<'_>, nid: Option<&str>, verbose: &Verbose) -> Result<()> {
    let task = Task::new("show", "peer");
    let level = verbose.level(task)?;
    let peers = match task.parsed(nid, resolve::nids)? {
        None if !daemon.as_json => return show_pages(daemon, task, Detail::Level(level)),
        None => daemon.ask(task, Client::peers)?,
        Some(nids) => {
            let peers = daemon.ask(task, |client| client.peers_of(&nids))?;
            match nids.as_slice() {
                [nid] if peers.is_empty() => return Err(unknown(task, *nid)),
                nids if peers.is_empty() => {
                    let message = format!("no peer has any of these {} nids", nids.len());
                    return Err(task.error(Errno::NOENT, message));
                }
                _ => peers,
            }
        }
    };
    daemon.print(&document::peers(&peers, Detail::Level(level)));
    Ok(())
}

/// Shows all peers, each page as it comes: the pages are one document.
fn show_pages(daemon: &mut Daemon<'_>, task: Task, detail: Detail) -> Result<()> {
    let mut is_begun = false;
    daemon.ask(task, |client| {
        client.peer_pages(PeerQuery::default(), |page| {
            let text = Yaml(&document::peers(&page, detail)).to_string();
            let items = if is_begun { text.strip_prefix("peer:\n").unwrap_or(&text) } else { &text };
            print_text(&items);
            is_begun |= !text.is_empty();
        })
    })
}
