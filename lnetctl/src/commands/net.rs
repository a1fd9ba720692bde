//! Nets and local NIs.

use std::str::FromStr;

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document::{self, Detail, Failure};
use lnet_control::legacy::{LegacyKind, LegacyText};
use lnet_control::resolve;
use lnet_model::Errno;
use lnet_model::choice::ChoiceForm;
use lnet_model::lnd::nets_of_lnds;
use lnet_model::ni::{NiName, NiOptions, NiSpec};
use lnet_model::pattern::{self, InterfaceName};
use lnet_model::request::Change;
use lnet_wire::{Net, Nid};

use super::Result;
use super::cli::Verbose;
use super::document::{document_errors, on_its_host};
use crate::arguments::Offered;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task};
use crate::options::{Changeable, OptionWords};
use crate::output::eprint_text;

#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// Add local NIs, one for each interface
    #[command(after_help = "Examples:
  lnetctl net add --net xdp --if eth0
  lnetctl net add --net xdp1 --if eth0,eth1 --mode socket --port 1988
  lnetctl net add --nid 10.0.0.1@xdp --credits 512
  lnetctl net add --ip2net 'tcp(eth0) 10.0.0.*; xdp 10.1.[0-3].*'")]
    Add(Box<NetAddArgs>),
    /// Delete a net, or some of its NIs
    #[command(
        after_help = "Examples:\n  lnetctl net del --net xdp\n  lnetctl net del --net xdp --if eth0,eth1"
    )]
    Del {
        /// The net
        #[arg(long, short)]
        net: Option<String>,
        /// Only the NIs of these interfaces
        #[arg(long = "if", short = 'i')]
        interfaces: Option<String>,
        /// NIs by their addresses, instead of a net
        #[arg(long)]
        nid: Option<String>,
    },
    /// Show nets and their NIs
    #[command(after_help = "Examples:\n  lnetctl net show\n  lnetctl net show --net xdp,tcp1 -v 4")]
    Show {
        /// Only these nets, with commas
        #[arg(long, short, value_name = "NETS")]
        net: Option<String>,
        #[command(flatten)]
        verbose: Verbose,
    },
    /// Set the health of NIs, or what their LND does
    #[command(after_help = "Examples:
  lnetctl net set --nid 10.0.0.1@tcp --health 500
  lnetctl net set --all --conns-per-peer 4
  lnetctl net set --nid 10.0.0.1@xdp --carrier socket
  lnetctl net set --net tcp --lnd-timeout 20")]
    Set(Settings),
}

#[derive(Debug, Args)]
pub(crate) struct NetAddArgs {
    /// The net
    #[arg(long, short, value_parser = Offered::of(&nets_of_lnds()), hide_possible_values = true)]
    pub(crate) net: Option<String>,
    /// Interfaces, with commas between them
    #[arg(long = "if", short = 'i')]
    pub(crate) interfaces: Option<String>,
    /// NIs by their addresses, instead of a net and interfaces
    #[arg(long)]
    pub(crate) nid: Option<String>,
    /// CPTs (shards) that serve the interfaces, such as [0,2-3]; all without it
    #[arg(long, short = 's', value_name = "LIST")]
    pub(crate) cpt: Option<String>,
    #[command(flatten)]
    pub(crate) options: OptionWords,
    /// Nets by the addresses of the host, instead of a net and interfaces: rules such as
    /// `tcp(eth0) 10.0.0.*; xdp 10.1.[0-3].*`
    #[arg(long, short = 'p', value_name = "RULES")]
    pub(crate) ip2net: Option<String>,
    /// The system's routes are left alone in any case
    #[arg(long, short = 'k', hide = true)]
    pub(crate) skip_mr_route_setup: bool,
    /// Option of an LND that is not here
    #[arg(long, short = 'a', hide = true)]
    pub(crate) auth_key: Option<String>,
    /// Option of an LND that is not here
    #[arg(long, short = 'T', hide = true)]
    pub(crate) traffic_class: Option<String>,
}

// What `net set` is given.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// The NI; all if it is not given
    #[arg(long, short)]
    nid: Option<String>,
    /// All NIs
    #[arg(long, short)]
    all: bool,
    /// Health, 0 to 1000
    #[arg(long, short = 't', allow_hyphen_values = true, value_name = "VALUE")]
    health: Option<String>,
    #[command(flatten)]
    options: Changeable,
    /// A net of the type for whose LND the timeout is
    #[arg(long, short = 'i')]
    net: Option<String>,
    /// Transmit timeout of the LND in seconds; 0 follows the global one
    #[arg(long, short = 'l', allow_hyphen_values = true, value_name = "SECONDS")]
    lnd_timeout: Option<String>,
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: NetCommand) -> Result<()> {
    match command {
        NetCommand::Add(args) => add(daemon, &args),
        NetCommand::Del { net, interfaces, nid } => {
            delete(daemon, net.as_deref(), interfaces.as_deref(), nid.as_deref())
        }
        NetCommand::Show { net, verbose } => show(daemon, net.as_deref(), &verbose),
        NetCommand::Set(settings) => set(daemon, &settings),
    }
}

/// A net that a user may change.
fn own_net(task: Task, text: &str) -> Result<Net> {
    let net =
        Net::from_str(text).map_err(|error| task.error(Errno::NOENT, format!("cannot parse net {error}")))?;
    if net == Net::LO || net.is_any() {
        return Err(task.error(Errno::NODEV, format!("net {net} is not allowed here: it is always as it is")));
    }
    Ok(net)
}

/// The NIDs of a list, all of one net and none of them `lo`.
fn own_nids(task: Task, text: &str) -> Result<Vec<Nid>> {
    let nids = resolve::nids(text).map_err(task.pattern())?;
    let mut nets = nids.iter().map(Nid::net);
    let first = nets.next();
    if nets.any(|net| Some(net) != first) {
        return Err(task.invalid(format!("{text:?}: nids of one net are expected")));
    }
    if first == Some(Net::LO) {
        return Err(task.error(Errno::NODEV, "net lo is not allowed here: it is always as it is"));
    }
    Ok(nids)
}

fn add(daemon: &mut Daemon<'_>, args: &NetAddArgs) -> Result<()> {
    let task = Task::new("add", "net");
    if args.auth_key.is_some() || args.traffic_class.is_some() {
        return Err(task.unsupported("--auth-key and --traffic-class: the LND that they belong to is"));
    }
    let options = args.options.read(task)?;
    let cpts = task.parsed(args.cpt.as_deref(), pattern::cpts)?.unwrap_or_default();
    if let Some(rules) = &args.ip2net {
        return choose(daemon, task, rules, options, &cpts);
    }
    let mut interfaces = task.parsed(args.interfaces.as_deref(), pattern::interfaces)?.unwrap_or_default();
    let spec = |net, nid| NiSpec { net, interface: None, nid, options, cpts: cpts.clone() };
    let on = |spec: NiSpec, InterfaceName { name, cpts }| {
        let cpts = if cpts.is_empty() { spec.cpts } else { cpts };
        NiSpec { interface: Some(name), cpts, ..spec }
    };
    let specs: Vec<_> = match (&args.net, &args.nid) {
        (Some(_), Some(_)) => return Err(task.invalid("--net goes not with --nid: the nid names the net")),
        (None, None) => return Err(task.invalid("missing mandatory parameter: --net, --nid or --ip2net")),
        (Some(net), None) => {
            let net = own_net(task, net)?;
            if interfaces.is_empty() {
                return Err(task.invalid(format!("an NI on {net} needs at least one interface: --if")));
            }
            interfaces.into_iter().map(|interface| on(spec(net, None), interface)).collect()
        }
        (None, Some(nids)) => {
            let nids = own_nids(task, nids)?;
            let specs = nids.iter().map(|nid| spec(nid.net(), Some(*nid)));
            // A NID with an interface is an address of one that has several.
            match (interfaces.pop(), nids.len(), interfaces.len()) {
                (None, ..) => specs.collect(),
                (Some(interface), 1, 0) => specs.map(|spec| on(spec, interface.clone())).collect(),
                (_, 1, _) => return Err(task.invalid("--nid with --if: one interface is expected")),
                _ => return Err(task.invalid("--nid with --if: one nid is expected")),
            }
        }
    };
    daemon.apply(task, specs.into_iter().map(Change::AddNi).collect())
}

/// Adds the NIs that the daemon's host has by rules.
fn choose(daemon: &mut Daemon<'_>, task: Task, rules: &str, options: NiOptions, cpts: &[u32]) -> Result<()> {
    let read = LegacyKind::Ip2nets.read(&LegacyText::new(rules));
    let mut legacy = read.map_err(|errors| document_errors(task, &errors))?;
    for note in &legacy.notes {
        eprint_text(&format_args!("lnetctl: warning: {}: {}\n", note.position, note.value));
    }
    if legacy.is_empty() {
        return Err(
            task.invalid(format!("--ip2net {rules:?}: rules such as tcp(eth0) 10.0.0.* are expected"))
        );
    }
    for entry in legacy.rules.iter_mut().flat_map(|rule| &mut rule.value.nets) {
        if entry.cpts.is_empty() {
            entry.cpts = cpts.to_vec();
        }
    }
    let document = on_its_host(daemon, task, legacy.document(ChoiceForm::Rule, options))?;
    daemon.apply(task, document.changes().cloned().collect())
}

fn delete(
    daemon: &mut Daemon<'_>,
    net: Option<&str>,
    interfaces: Option<&str>,
    nids: Option<&str>,
) -> Result<()> {
    let task = Task::new("del", "net");
    let changes = match (net, nids) {
        (Some(_), Some(_)) => return Err(task.invalid("--net goes not with --nid: the nid names the net")),
        (None, None) => return Err(task.invalid("missing mandatory parameter: --net, or --nid")),
        (None, Some(nids)) => {
            let nids = own_nids(task, nids)?.into_iter();
            nids.map(|nid| Change::DeleteNi(NiName::Nid(nid))).collect()
        }
        (Some(net), None) => {
            let net = own_net(task, net)?;
            match interfaces {
                None => vec![Change::DeleteNet(net)],
                Some(interfaces) => {
                    let interfaces = pattern::interfaces(interfaces).map_err(task.pattern())?.into_iter();
                    let names = interfaces.map(|one| NiName::Interface { net, interface: one.name });
                    names.map(Change::DeleteNi).collect()
                }
            }
        }
    };
    daemon.apply(task, changes)
}

fn show(daemon: &mut Daemon<'_>, net: Option<&str>, verbose: &Verbose) -> Result<()> {
    let task = Task::new("show", "net");
    let level = verbose.level(task)?;
    let named =
        net.map(|text| text.split(',').map(Net::from_str).collect::<std::result::Result<Vec<_>, _>>());
    let named = named.transpose();
    let named = named.map_err(|error| task.error(Errno::NOENT, format!("no such net: {error}")))?;
    let mut nets = daemon.ask(task, Client::nets)?;
    let Some(named) = named else {
        daemon.print(&document::nets(&nets, Detail::Level(level)));
        return Ok(());
    };
    nets.retain(|one| named.contains(&one.net));
    if !nets.is_empty() {
        daemon.print(&document::nets(&nets, Detail::Level(level)));
    }
    let missing = named.iter().filter(|net| nets.iter().all(|one| one.net != **net));
    let failures: Vec<_> = missing
        .map(|net| Failure {
            entity: task.entity,
            seq_no: None,
            errno: Errno::SRCH,
            message: format!("net {net} is not configured"),
        })
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(CommandError::several(task.operation, failures)) }
}

fn set(daemon: &mut Daemon<'_>, what: &Settings) -> Result<()> {
    let task = Task::new("set", "net");
    if what.nid.is_some() && what.all {
        return Err(task.invalid("--nid goes not with --all"));
    }
    let nid = match &what.nid {
        Some(nid) if !nid.contains('@') => {
            return Err(task.invalid(format!("{nid:?}: a nid with @ is expected")));
        }
        nid => task.parsed(nid.as_deref(), resolve::nid)?,
    };
    let mut changes = Vec::new();
    if let Some(value) = task.health(what.health.as_ref())? {
        changes.push(Change::SetHealth { nid, value });
    }
    // Options that ask for the default are passed over, as LNet has it.
    let options = what.options.0.read(task)?;
    changes.extend(options.entries().map(|(row, value)| Change::SetOption {
        nid,
        option: row.option,
        value,
    }));
    match (&what.net, task.optional("lnd-timeout", what.lnd_timeout.as_ref(), 0..=i64::from(i32::MAX))?) {
        (None, None) => {}
        (Some(net), Some(timeout_s)) => {
            let net = Net::from_str(net).map_err(|error| task.invalid(error.to_string()))?;
            changes.push(Change::SetLndTimeout { net, timeout_s });
        }
        (None, Some(_)) => return Err(task.invalid("--lnd-timeout without --net")),
        (Some(_), None) => return Err(task.invalid("--net without --lnd-timeout")),
    }
    if changes.is_empty() && what.options.0.is_empty() {
        return Err(task
            .invalid("nothing to set: --health, --conns-per-peer, --carrier or --lnd-timeout is expected"));
    }
    daemon.apply(task, changes)
}
