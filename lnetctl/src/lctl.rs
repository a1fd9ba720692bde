//! `lctl`: the commands of Lustre's tool of this name by which scripts drive LNet, asked of the same daemon.
//!
//! Invariants: names, options and output are those of Lustre's `lctl`, as far as they are here; what fails is
//! a line on stderr, and the status is not 0. Sources: Lustre `utils/portals.c`, `utils/lctl.c`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use lnet_control::client::Client;
use lnet_control::resolve;
use lnet_model::fault::{Filter, RuleCounters};
use lnet_model::parameter::ParameterValue;
use lnet_model::pattern::fault_nid_text;
use lnet_model::records::{ConnectionRecord, RouteState};
use lnet_model::request::{Change, PingPurpose, PingRequest};
use lnet_model::{Errno, pattern};
use lnet_wire::{Global, Net, Nid, Parameter};

use crate::arguments;
use crate::commands::fault::{self, DelayAddArgs, DropAddArgs, RuleEnds};
use crate::commands::generate;
use crate::commands::tables::ParamTable;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task, USAGE};
use crate::output::{eprint_text, print_text};

/// The process of a NID that stands for LNet itself (LNet `lnet-types.h: LNET_PID_LUSTRE`).
const LUSTRE_PID: u32 = 12345;

type Result<T> = std::result::Result<T, CommandError>;

/// Commands of Lustre's lctl about LNet, for scripts; lnetctl has the rest.
#[derive(Debug, Parser)]
#[command(name = "lctl", version, infer_long_args = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  lctl list_nids
  lctl ping 10.0.0.2@tcp 5
  lctl net_drop_add -s '*@tcp' -d 10.0.0.2@tcp -r 10 -m PUT
  lctl set_param lnet.transaction_timeout=60")]
struct Lctl {
    /// Control socket of the daemon [default: that of the only node there is; LNET_SOCKET overrides it]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Name of the node whose daemon to talk to
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "socket")]
    node: Option<String>,
    /// The net that conn_list is about [default: all tcp nets]
    #[arg(long, global = true, value_name = "NET")]
    net: Option<String>,
    #[command(subcommand)]
    command: LctlCommand,
}

#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
enum LctlCommand {
    /// Print the NIDs of this node
    ListNids {
        /// `all` prints that of the loopback NI too
        #[arg(value_parser = ["all"])]
        all: Option<String>,
    },
    /// Ping a NID, and print the NIDs that its node has
    Ping {
        /// The NID
        nid: String,
        /// Seconds that it may take
        timeout: Option<String>,
    },
    /// Print which of some NIDs of a node is the nearest one
    WhichNid {
        /// The NIDs
        #[arg(required = true, value_name = "NID")]
        nids: Vec<String>,
    },
    /// Bring LNet up, or down
    #[command(visible_alias = "net")]
    Network {
        /// The state that it is to have
        #[arg(value_parser = ["up", "down", "unconfigure"])]
        state: String,
    },
    /// Add a rule by which messages are dropped
    NetDropAdd(DropAddArgs),
    /// Delete rules by which messages are dropped
    NetDropDel(RuleEnds),
    /// Set the counters of these rules to zero
    NetDropReset,
    /// Print these rules
    NetDropList,
    /// Add a rule by which messages are held up
    NetDelayAdd(DelayAddArgs),
    /// Delete rules by which messages are held up
    NetDelayDel(RuleEnds),
    /// Set the counters of these rules to zero
    NetDelayReset,
    /// Print these rules
    NetDelayList,
    /// Print the connections of tcp nets
    ConnList,
    /// Print the routes
    #[command(visible_alias = "route_list")]
    ShowRoute,
    /// Print parameters and global tunables
    GetParam(GetParamArgs),
    /// Set parameters and global tunables
    SetParam {
        /// Do not print what is set
        #[arg(short)]
        n: bool,
        /// Parameters with their values; `lnet.` may stand before a name
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// Print completions for a shell
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
    /// Write man pages
    #[command(hide = true)]
    Man { directory: PathBuf },
}

#[derive(Debug, Args)]
struct GetParamArgs {
    /// Print values alone
    #[arg(short, conflicts_with = "names_only")]
    n: bool,
    /// Print names alone
    #[arg(short = 'N')]
    names_only: bool,
    /// Names, with * for any text; `lnet.` may stand before one
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Carries out one command; returns the status.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let words = arguments::normalized(&words);
    let lctl = match Lctl::try_parse_from([OsString::from("lctl")].into_iter().chain(words)) {
        Ok(lctl) => lctl,
        Err(error) if error.use_stderr() => {
            eprint_text(&error.render());
            return USAGE;
        }
        Err(error) => {
            print_text(&error.render());
            return 0;
        }
    };
    let mut connection = None;
    let Lctl { socket, node, net, command } = lctl;
    let mut daemon = Daemon { connection: &mut connection, socket, node, as_json: false };
    match carry_out(&mut daemon, net.as_deref(), command) {
        Ok(()) => 0,
        Err(error) => {
            error.messages().for_each(|message| eprint_text(&format_args!("{message}\n")));
            error.status()
        }
    }
}

fn carry_out(daemon: &mut Daemon<'_>, net: Option<&str>, command: LctlCommand) -> Result<()> {
    match command {
        LctlCommand::ListNids { all } => list_nids(daemon, all.is_some()),
        LctlCommand::Ping { nid, timeout } => ping(daemon, &nid, timeout.as_ref()),
        LctlCommand::WhichNid { nids } => which_nid(daemon, &nids),
        LctlCommand::Network { state } => network(daemon, &state),
        LctlCommand::NetDropAdd(args) => {
            let task = Task::new("add", "net_drop_add");
            add_rule(daemon, task, fault::drop_rule(task, &args)?)
        }
        LctlCommand::NetDelayAdd(args) => {
            let task = Task::new("add", "net_delay_add");
            add_rule(daemon, task, fault::delay_rule(task, &args)?)
        }
        LctlCommand::NetDropDel(ends) => {
            let task = Task::new("del", "net_drop_del");
            let change = fault::drop_deletion(task, &ends)?;
            let mut count = |daemon: &mut Daemon<'_>| Ok(daemon.ask(task, Client::drop_rules)?.len());
            delete_rules(daemon, task, change, "drop", &mut count)
        }
        LctlCommand::NetDelayDel(ends) => {
            let task = Task::new("del", "net_delay_del");
            let change = fault::delay_deletion(task, &ends)?;
            let mut count = |daemon: &mut Daemon<'_>| Ok(daemon.ask(task, Client::delay_rules)?.len());
            delete_rules(daemon, task, change, "delay", &mut count)
        }
        LctlCommand::NetDropReset => daemon.apply(Task::new("reset", "fault"), vec![Change::ResetDropRules]),
        LctlCommand::NetDelayReset => {
            daemon.apply(Task::new("reset", "fault"), vec![Change::ResetDelayRules])
        }
        LctlCommand::NetDropList => {
            let rules = daemon.ask(Task::new("show", "net_drop_list"), Client::drop_rules)?;
            let pace = |rate, interval| format!("(1/{rate} | {interval})");
            let line = |one: &lnet_model::fault::DropRuleRecord| {
                let pace = pace(one.rule.rate, one.rule.interval_s);
                rule_line(&one.rule.filter, &pace, one.dropped, &one.counters)
            };
            list_rules("drop", rules.iter().map(line).collect());
            Ok(())
        }
        LctlCommand::NetDelayList => {
            let rules = daemon.ask(Task::new("show", "net_delay_list"), Client::delay_rules)?;
            let line = |one: &lnet_model::fault::DelayRuleRecord| {
                let rule = &one.rule;
                let pace = format!("(1/{} | {}, latency {})", rule.rate, rule.interval_s, rule.latency_s);
                rule_line(&rule.filter, &pace, one.delayed, &one.counters)
            };
            list_rules("delay", rules.iter().map(line).collect());
            Ok(())
        }
        LctlCommand::ConnList => list_connections(daemon, net),
        LctlCommand::ShowRoute => show_route(daemon),
        LctlCommand::GetParam(args) => get_param(daemon, &args),
        LctlCommand::SetParam { n, settings } => set_param(daemon, n, &settings),
        LctlCommand::Completions { shell } => {
            generate::completions(Lctl::command(), shell);
            Ok(())
        }
        LctlCommand::Man { directory } => generate::man(Lctl::command(), &directory),
    }
}

fn list_nids(daemon: &mut Daemon<'_>, all: bool) -> Result<()> {
    let nets = daemon.ask(Task::new("show", "list_nids"), Client::nets)?;
    let nids = nets.iter().flat_map(|net| &net.nis).map(|ni| ni.nid);
    nids.filter(|nid| all || !nid.is_loopback()).for_each(|nid| print_text(&format_args!("{nid}\n")));
    Ok(())
}

fn nid(task: Task, text: &str) -> Result<Nid> {
    resolve::nid(text).map_err(task.pattern())
}

fn ping(daemon: &mut Daemon<'_>, text: &str, timeout: Option<&String>) -> Result<()> {
    let task = Task::new("manage", "ping");
    let seconds: Option<u32> = task.optional("timeout", timeout, 1..=i64::from(u32::MAX))?;
    let timeout_ms = seconds.map(|seconds| u64::from(seconds) * 1000);
    let request =
        PingRequest { nids: vec![nid(task, text)?], source: None, timeout_ms, purpose: PingPurpose::Ping };
    let mut answer = Ok(());
    daemon.ask(task, |client| {
        client.ping(request, |reply| match reply.result {
            Ok(record) => {
                for nid in [Nid::LO].iter().chain(&record.nids) {
                    print_text(&format_args!("{LUSTRE_PID}-{nid}\n"));
                }
            }
            Err(refusal) => {
                let message = format!("failed to ping {LUSTRE_PID}-{}: {}", reply.nid, refusal.message);
                answer = Err(task.error(refusal.errno, message).failed());
            }
        })
    })?;
    answer
}

/// Prints the NID with the fewest hops, of several the first (LNet `lib-move.c: LNetDist`).
fn which_nid(daemon: &mut Daemon<'_>, texts: &[String]) -> Result<()> {
    let task = Task::new("show", "which_nid");
    let nids = texts.iter().map(|text| nid(task, text)).collect::<Result<Vec<_>>>()?;
    let nets = daemon.ask(task, Client::nets)?;
    let routes = daemon.ask(task, Client::routes)?;
    let distance = |nid: &Nid| {
        if nets.iter().flat_map(|net| &net.nis).any(|ni| ni.nid == *nid) {
            return Some(0);
        }
        if nets.iter().any(|net| net.net == nid.net()) {
            return Some(1);
        }
        let behind =
            routes.iter().filter(|route| route.spec.net == nid.net() && route.state == RouteState::Up);
        behind.map(|route| u32::from(route.spec.distance()) + 1).min()
    };
    let reached = nids.iter().filter_map(|nid| Some((distance(nid)?, nid)));
    match reached.min_by_key(|(distance, _)| *distance) {
        Some((_, nid)) => print_text(&format_args!("{nid}\n")),
        None => return Err(task.error(Errno::HOSTUNREACH, "No reachable NID").failed()),
    }
    Ok(())
}

/// Configures LNet as at the start of the daemon, or takes it down.
fn network(daemon: &mut Daemon<'_>, state: &str) -> Result<()> {
    let (change, said) = match state {
        "up" => (Change::Configure { all: true, large: false }, "LNET configured"),
        _ => (Change::Unconfigure, "LNET ready to unload"),
    };
    daemon.apply(Task::new("configure", "network"), vec![change])?;
    print_text(&format_args!("{said}\n"));
    Ok(())
}

fn add_rule(daemon: &mut Daemon<'_>, task: Task, change: Change) -> Result<()> {
    let (kind, filter, rate) = match &change {
        Change::AddDropRule(rule) => ("drop", rule.filter, rule.rate),
        Change::AddDelayRule(rule) => ("delay", rule.filter, rule.rate),
        _ => unreachable!("a rule is made"),
    };
    daemon.apply(task, vec![change])?;
    print_text(&format_args!("Added {kind} rule {} (1/{rate})\n", ends(&filter)));
    Ok(())
}

fn delete_rules(
    daemon: &mut Daemon<'_>,
    task: Task,
    change: Change,
    kind: &str,
    count: &mut dyn FnMut(&mut Daemon<'_>) -> Result<usize>,
) -> Result<()> {
    let before = count(daemon)?;
    daemon.apply(task, vec![change])?;
    let gone = before.saturating_sub(count(daemon)?);
    print_text(&format_args!("Removed {gone} {kind} rules\n"));
    Ok(())
}

fn ends(filter: &Filter) -> String {
    format!("{}->{}", fault_nid_text(&filter.source), fault_nid_text(&filter.destination))
}

fn rule_line(filter: &Filter, pace: &str, hit: u64, counters: &RuleCounters) -> String {
    let RuleCounters { count, put, ack, get, reply } = counters;
    let (portals, messages) = (filter.portals, filter.messages.bits());
    let ends = ends(filter);
    format!(
        "{ends} {pace} ptl {portals:#x}, msg {messages:x}, {hit}/{count}, PUT {put}, ACK {ack}, GET {get}, REP {reply}\n"
    )
}

fn list_rules(kind: &str, lines: Vec<String>) {
    let count = lines.len();
    print_text(&format_args!("LNet {kind} rules:\n{}found total {count}\n", lines.concat()));
}

/// Prints connections in the form of LNet's tool. Sizes of their buffers are the kernel's affair: 0.
fn list_connections(daemon: &mut Daemon<'_>, net: Option<&str>) -> Result<()> {
    let task = Task::new("show", "conn_list");
    let net = task.parsed(net, |text| Ok(text.parse::<Net>()?))?;
    let mut connections = daemon.ask(task, Client::connections)?;
    connections.retain(|one| net.is_none_or(|net| one.nid.net() == net));
    for ConnectionRecord { nid, pid, kind, shard, local, remote } in &connections {
        let id = format!("{pid}-{nid}");
        print_text(&format_args!("{id:<20} {kind}[{shard}]{local}->{remote} 0/0 nonagle\n"));
    }
    if connections.is_empty() {
        print_text(&"<no connections>\n");
    }
    Ok(())
}

fn show_route(daemon: &mut Daemon<'_>) -> Result<()> {
    for route in daemon.ask(Task::new("show", "show_route"), Client::routes)? {
        // LNet's -1, as a number without a sign.
        let hops = route.spec.hops.map_or(u32::MAX, u32::from);
        let (net, gateway) = (route.spec.net.to_string(), route.spec.gateway.to_string());
        let (state, priority) = (route.state, route.spec.priority);
        print_text(&format_args!("net {net:>18} hops {hops} gw {gateway:>32} {state} pri {priority}\n"));
    }
    Ok(())
}

/// A thing that parameters name.
enum Param {
    Value(u32),
    /// Lines that are asked for where they are wanted.
    Table(ParamTable),
}

/// All that has a name: parameters, global tunables and tables.
fn params(daemon: &mut Daemon<'_>, task: Task) -> Result<BTreeMap<&'static str, Param>> {
    let parameters = daemon.ask(task, Client::parameters)?;
    let value = |parameter: Parameter| (parameter.name(), Param::Value(parameters.get(parameter)));
    let mut params: BTreeMap<_, _> = Parameter::ALL.into_iter().map(value).collect();
    // A node that is not configured has no others.
    if let Ok(globals) = daemon.ask(task, Client::globals) {
        params.extend(globals.entries().map(|(global, value)| (global.name(), Param::Value(value))));
        params.extend(ParamTable::ALL.map(|table| (table.name(), Param::Table(table))));
    }
    Ok(params)
}

/// Whether a name fits a pattern in which * stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((front, behind)) => name.strip_prefix(front).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| fits(behind, rest)))
        }),
    }
}

fn bare(name: &str) -> &str {
    name.strip_prefix("lnet.").unwrap_or(name)
}

fn get_param(daemon: &mut Daemon<'_>, args: &GetParamArgs) -> Result<()> {
    let task = Task::new("show", "get_param");
    let params = params(daemon, task)?;
    for asked in &args.names {
        let found: Vec<_> = params.iter().filter(|(name, _)| fits(bare(asked), name)).collect();
        if found.is_empty() {
            let shown = pattern::escaped(asked);
            let message = format!("error: get_param: param_path '{shown}': No such file or directory");
            return Err(task.error(Errno::NOENT, message));
        }
        for (name, param) in found {
            if args.names_only {
                print_text(&format_args!("{name}\n"));
                continue;
            }
            let text = match param {
                Param::Value(value) => format!("{value}\n"),
                Param::Table(table) => daemon.ask(task, |client| table.text(client))?,
            };
            // Several lines stand below their name.
            let separator = if text.lines().count() > 1 { "=\n" } else { "=" };
            print_text(&if args.n { text } else { format!("{name}{separator}{text}") });
        }
    }
    Ok(())
}

fn set_param(daemon: &mut Daemon<'_>, is_silent: bool, settings: &[String]) -> Result<()> {
    let task = Task::new("add", "set_param");
    for setting in settings {
        let wrong = |what: &str| {
            let shown = pattern::escaped(setting);
            task.invalid(format!("error: set_param: setting '{shown}': {what}"))
        };
        let (name, text) = setting.split_once('=').ok_or_else(|| wrong("NAME=VALUE is expected"))?;
        let name = bare(name);
        let change = if ParamTable::named(name) == Some(ParamTable::Stats) {
            // Whatever is written, LNet sets the counters to zero.
            Change::ResetStatistics
        } else if let Ok(parameter) = name.parse::<Parameter>() {
            ParameterValue::read(parameter, text).map_err(|expected| wrong(&expected.to_string()))?.change()
        } else {
            let global: Global = name.parse().map_err(|_| wrong("No such file or directory"))?;
            let value = pattern::integer(text).and_then(|value| u32::try_from(value).ok());
            let value = value.or_else(|| global.value_of_word(text)).filter(|_| global.is_settable());
            Change::SetGlobal { global, value: value.ok_or_else(|| wrong("Invalid argument"))? }
        };
        daemon.apply(task, vec![change])?;
        if !is_silent {
            print_text(&format_args!("{name}={text}\n"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_consistent() {
        Lctl::command().debug_assert();
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*a*c", "abc", true),
            ("*x*", "abc", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
