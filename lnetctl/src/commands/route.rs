//! Routes, and routing between nets.

use clap::{Args, Subcommand};
use lnet_control::client::{Client, ClientError};
use lnet_control::document::{self, Detail, RouteFilter};
use lnet_control::resolve;
use lnet_model::pattern::{hops, remote_net, route_priority};
use lnet_model::records::RouteRecord;
use lnet_model::request::{Change, ChangeSet};
use lnet_model::route::RouteSpec;
use lnet_model::{Errno, Refusal};
use lnet_wire::{Net, Nid};

use super::Result;
use super::cli::Verbose;
use crate::daemon::Daemon;
use crate::failure::Task;

#[derive(Debug, Subcommand)]
pub(crate) enum RouteCommand {
    /// Make routes to a net, one for each gateway
    #[command(after_help = "Examples:
  lnetctl route add --net tcp1 --gateway 10.0.0.1@xdp
  lnetctl route add --net tcp1 --gateway 10.0.0.[2-4]@xdp,10.1.0.2@xdp1 --hop 2 --priority 1")]
    Add(AddArgs),
    /// Delete routes to a net, one for each gateway
    #[command(after_help = "Examples:\n  lnetctl route del --net tcp1 --gateway 10.0.0.[1-4]@xdp")]
    Del(DeleteArgs),
    /// Show routes
    #[command(after_help = "Examples:\n  lnetctl route show -v\n  lnetctl route show --net tcp1 --hop 2")]
    Show(ShowArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RoutingCommand {
    /// Show whether the node forwards messages between nets, and its pools of buffers
    Show,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The net that is behind the gateways
    #[arg(long, short)]
    net: Option<String>,
    /// NIDs of gateways on this node's nets, with ranges and commas
    #[arg(long, short, value_name = "NIDS")]
    gateway: Option<String>,
    /// Gateways on the way to the net, 1 to 255; -1 where that is not known [default: -1]
    #[arg(long, short = 'c', alias = "hop-count", allow_hyphen_values = true, value_name = "COUNT")]
    hop: Option<String>,
    /// Priority, 0 is the best [default: 0]
    #[arg(long, short, allow_hyphen_values = true)]
    priority: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The net that is behind the gateways
    #[arg(long, short)]
    net: Option<String>,
    /// NIDs of gateways, with ranges and commas
    #[arg(long, short, value_name = "NIDS")]
    gateway: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Only those to these nets, with commas
    #[arg(long, short, value_name = "NETS")]
    net: Option<String>,
    /// Only those by these gateways
    #[arg(long, short, value_name = "NIDS")]
    gateway: Option<String>,
    /// Only those of so many hops; -1 for those of which that is not known
    #[arg(long, short = 'c', alias = "hop-count", allow_hyphen_values = true, value_name = "COUNT")]
    hop: Option<String>,
    /// Only those of this priority
    #[arg(long, short, allow_hyphen_values = true)]
    priority: Option<String>,
    #[command(flatten)]
    verbose: Verbose,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: RouteCommand) -> Result<()> {
    match command {
        RouteCommand::Add(args) => add(daemon, &args),
        RouteCommand::Del(args) => {
            let task = Task::new("del", "route");
            let (net, gateways) = named(task, args.net.as_deref(), args.gateway.as_deref())?;
            let delete = |gateway| Change::DeleteRoute { net, gateway };
            one_by_one(daemon, task, gateways.into_iter().map(delete))
        }
        RouteCommand::Show(args) => show(daemon, &args),
    }
}

pub(super) fn routing(daemon: &mut Daemon<'_>, RoutingCommand::Show: &RoutingCommand) -> Result<()> {
    daemon.show("routing", Client::routing, |routing| document::routing(routing, Detail::Level(0)))
}

/// The gateways of a list.
fn gateways(text: &str) -> std::result::Result<Vec<Nid>, Refusal> {
    resolve::nids(text)
        .map_err(|error| Refusal::new(error.errno, format!("Unable to parse nidlist: {error}")))
}

/// The net and the gateways without which no route is meant.
fn named(task: Task, net: Option<&str>, gateway: Option<&str>) -> Result<(Net, Vec<Nid>)> {
    let given = [("net", net), ("gateway", gateway)];
    let missing: Vec<_> = given.iter().filter(|(_, text)| text.is_none()).map(|(name, _)| *name).collect();
    let (Some(net), Some(gateway)) = (net, gateway) else {
        // In the words of LNet's tool.
        return Err(task.invalid(format!("missing mandatory parameters:'{}'", missing.join(" , "))));
    };
    let wrong = task.pattern();
    Ok((remote_net(net).map_err(&wrong)?, gateways(gateway).map_err(&wrong)?))
}

fn add(daemon: &mut Daemon<'_>, args: &AddArgs) -> Result<()> {
    let task = Task::new("add", "route");
    let (net, gateways) = named(task, args.net.as_deref(), args.gateway.as_deref())?;
    let hops = task.parsed(args.hop.as_deref(), hops)?.flatten();
    let priority = task.parsed(args.priority.as_deref(), route_priority)?.unwrap_or(0);
    let spec = |gateway| RouteSpec { hops, priority, ..RouteSpec::new(net, gateway) };
    one_by_one(daemon, task, gateways.into_iter().map(|gateway| Change::AddRoute(spec(gateway))))
}

/// Makes changes until one is refused; those before it stay, as with LNet's tool.
fn one_by_one(daemon: &mut Daemon<'_>, task: Task, changes: impl Iterator<Item = Change>) -> Result<()> {
    for change in changes {
        let batch = ChangeSet { changes: vec![change.clone()], ..ChangeSet::default() };
        match daemon.client(task)?.apply(batch) {
            Err(ClientError::Refused(refusal)) => {
                return Err(task.error(refusal.errno, explained(&change, &refusal)));
            }
            applied => drop(applied.map_err(task.refused())?),
        }
    }
    Ok(())
}

/// The node's refusal of a change, behind the words that LNet's tool has for it.
pub(super) fn explained(change: &Change, refusal: &Refusal) -> String {
    let words = match (change, refusal.errno) {
        (Change::AddRoute(_), Errno::INVAL) => "invalid settings for route creation",
        (Change::AddRoute(_), Errno::EXIST) => "Route already exists or the specified network is local",
        (Change::AddRoute(_), Errno::HOSTUNREACH) => "No interface configured on the same net as gateway",
        (Change::DeleteRoute { .. }, Errno::NOENT) => "failed to delete route",
        _ => return refusal.message.clone(),
    };
    format!("{words}: {}", refusal.message)
}

fn show(daemon: &mut Daemon<'_>, args: &ShowArgs) -> Result<()> {
    let task = Task::new("show", "route");
    let level = args.verbose.level(task)?;
    let nets = |text: &str| text.split(',').map(remote_net).collect::<std::result::Result<Vec<_>, _>>();
    let nets = task.parsed(args.net.as_deref(), nets)?;
    let filter = RouteFilter {
        net: None,
        gateways: task.parsed(args.gateway.as_deref(), gateways)?,
        hops: task.parsed(args.hop.as_deref(), hops)?,
        priority: task.parsed(args.priority.as_deref(), route_priority)?,
    };
    let routes = daemon.ask(task, Client::routes)?;
    let is_to = |route: &&RouteRecord| nets.as_ref().is_none_or(|nets| nets.contains(&route.spec.net));
    let shown: Vec<_> = filter.of(&routes).filter(is_to).cloned().collect();
    daemon.print(&document::routes(&shown, Detail::Level(level)));
    Ok(())
}
