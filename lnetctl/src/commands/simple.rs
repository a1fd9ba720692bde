//! Commands that are a request each: the node as a whole, counters, tunables, captures.

use std::path::{Path, PathBuf, absolute};

use clap::{Args, Subcommand};
use lnet_control::client::Client;
use lnet_control::document;
use lnet_model::capture::CaptureSpec;
use lnet_model::parameter::ParameterValue;
use lnet_model::pattern::quoted;
use lnet_model::pool::PoolKind;
use lnet_model::request::Change;
use lnet_model::{Errno, pattern};
use lnet_wire::{Global, Parameter};
use serde_json::json;

use super::Result;
use super::cli::Verbose;
use super::tables::ParamTable;
use super::unknown_command;
use crate::arguments::Offered;
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::{json_line, print_text};

/// Least size of a capture's file.
const CAPTURE_BYTES_MIN: u64 = 4096;

#[derive(Debug, Subcommand)]
pub(crate) enum LnetCommand {
    /// Bring the node up, with the loopback net
    Configure {
        /// Also carry out the start-up file of the daemon
        #[arg(long, short)]
        all: bool,
        /// Where an interface has addresses of both families, prefer IPv6
        #[arg(long, short)]
        large: bool,
    },
    /// Take down all nets, peers and rules
    Unconfigure,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StatsCommand {
    /// Show the counters of the node
    #[command(mut_arg("verbose", |verbose| verbose.hide(true)))]
    Show(Verbose),
    /// Set the counters of the node, of its NIs and of its peers to zero
    Reset,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GlobalCommand {
    /// Show the global tunables
    #[command(mut_arg("verbose", |verbose| verbose.hide(true)))]
    Show(Verbose),
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Name of the tunable: one of `global show`; `routing`, or the size of a pool of buffers, such as
    /// `tiny_buffers`, which has no effect while routing is off
    #[arg(value_parser = settable(), hide_possible_values = true)]
    pub(crate) name: String,
    /// Its value
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ParamCommand {
    /// Show a parameter, or all; or a table of LNet's kernel module: buffers, nis, peers, routers,
    /// routes, stats
    #[command(after_help = "Examples:\n  lnetctl param get router_ping_timeout\n  lnetctl param get nis")]
    Get {
        /// Its name
        #[arg(value_parser = readable_offered(), hide_possible_values = true)]
        name: Option<String>,
    },
    /// Set a parameter
    #[command(after_help = "Examples:\n  lnetctl param set alive_router_check_interval 10\n  \
                            lnetctl param set check_routers_before_use 1")]
    Set {
        /// Its name
        #[arg(value_parser = parameters_offered(), hide_possible_values = true)]
        name: String,
        /// Its value
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Begin to write frames to a file
    #[command(after_help = "Examples:\n  lnetctl capture start /tmp/node.pcapng --limit 16M --if eth0")]
    Start {
        /// The pcapng file; nothing may be there
        file: PathBuf,
        /// Size at which the capture ends, in bytes or with K, M or G
        #[arg(long, short, default_value = "64M", value_name = "SIZE")]
        limit: String,
        /// Bytes of each frame that are kept [default: all]
        #[arg(long, short = 'b', value_name = "BYTES")]
        frame_bytes: Option<String>,
        /// Interfaces [default: all]
        #[arg(long = "if", short = 'i')]
        interfaces: Option<String>,
    },
    /// End a capture
    Stop {
        /// The file that it writes
        file: PathBuf,
    },
    /// Show the captures, or the frames of a file, a line each
    #[command(after_help = "Examples:\n  lnetctl capture show\n  lnetctl capture show /tmp/node.pcapng")]
    Show {
        /// A pcapng file; no daemon is asked
        file: Option<PathBuf>,
    },
}

pub(super) fn lnet(daemon: &mut Daemon<'_>, command: LnetCommand) -> Result<()> {
    let change = match command {
        LnetCommand::Configure { all, large } => Change::Configure { all, large },
        LnetCommand::Unconfigure => Change::Unconfigure,
    };
    daemon.apply(Task::new("configure", "lnet"), vec![change])
}

pub(super) fn usage(daemon: &mut Daemon<'_>) -> Result<()> {
    daemon.show("usage", Client::usage, document::usage)
}

pub(super) fn stats(daemon: &mut Daemon<'_>, command: StatsCommand) -> Result<()> {
    match command {
        StatsCommand::Show(verbose) => {
            verbose.level(Task::new("show", "statistics"))?;
            daemon.show("statistics", Client::statistics, document::statistics)
        }
        StatsCommand::Reset => daemon.apply(Task::new("set", "statistics"), vec![Change::ResetStatistics]),
    }
}

pub(super) fn globals(daemon: &mut Daemon<'_>, GlobalCommand::Show(verbose): &GlobalCommand) -> Result<()> {
    // Levels are taken for the sake of scripts: each shows the same.
    verbose.level(Task::new("show", "global"))?;
    daemon.show("global", Client::globals, document::global_show)
}

/// The parameters that completions offer.
fn parameters_offered() -> Offered {
    Offered::of(&Parameter::ALL.map(Parameter::name))
}

/// Names of the tables, which are offered beside the parameters.
fn readable_offered() -> Offered {
    let tables = ParamTable::ALL.map(ParamTable::name).into_iter();
    Offered::of(&Parameter::ALL.map(Parameter::name).into_iter().chain(tables).collect::<Vec<_>>())
}

pub(super) fn parameters(daemon: &mut Daemon<'_>, command: &ParamCommand) -> Result<()> {
    let task = Task::new(if matches!(command, ParamCommand::Get { .. }) { "show" } else { "add" }, "param");
    let named = |name: &str| ParameterValue::named(name).map_err(|expected| task.invalid(expected));
    match command {
        ParamCommand::Get { name } => {
            if let Some(table) = name.as_deref().and_then(ParamTable::named) {
                let text = daemon.ask(task, |client| table.text(client))?;
                print_text(&if daemon.as_json {
                    json_line(&json!({"param": {table.name(): text}}))
                } else {
                    text
                });
                return Ok(());
            }
            let shown = match name {
                Some(name) => vec![named(name)?],
                None => Parameter::ALL.to_vec(),
            };
            daemon.show("param", Client::parameters, |values| document::parameters(values, &shown))
        }
        ParamCommand::Set { name, value: text } => {
            let set = ParameterValue::read(named(name)?, text).map_err(|expected| task.invalid(expected))?;
            daemon.apply(task, vec![set.change()])
        }
    }
}

pub(super) fn capture(daemon: &mut Daemon<'_>, command: CaptureCommand) -> Result<()> {
    match command {
        CaptureCommand::Start { file, limit, frame_bytes, interfaces } => {
            let task = Task::new("add", "capture");
            let path = absolute_path(task, &file)?;
            let limit_bytes = size(&limit).filter(|size| *size >= CAPTURE_BYTES_MIN).ok_or_else(|| {
                let expected = format!("a size from {CAPTURE_BYTES_MIN} bytes, such as 500K, 64M or 1G");
                task.invalid(format!("--limit {limit:?}: {expected} is expected"))
            })?;
            let frame_bytes = task.optional("frame-bytes", frame_bytes.as_ref(), 64..=65_536)?;
            let interfaces = task.parsed(interfaces.as_deref(), pattern::interfaces)?.unwrap_or_default();
            let interfaces = interfaces.into_iter().map(|interface| interface.name).collect();
            let spec = CaptureSpec { frame_bytes, interfaces, ..CaptureSpec::new(path, limit_bytes) };
            daemon.ask(task, |client| client.start_capture(spec))
        }
        CaptureCommand::Stop { file } => {
            let task = Task::new("del", "capture");
            let path = absolute_path(task, &file)?;
            let capture = daemon.ask(task, |client| client.stop_capture(path))?;
            let failure = capture.failure.clone().map(|why| format!("{}: {why}", quoted(&capture.path)));
            daemon.print(&document::captures(&[capture]));
            task.judged(failure.into_iter().collect())
        }
        CaptureCommand::Show { file: Some(file) } => super::captured::show(daemon, &file),
        CaptureCommand::Show { file: None } => {
            daemon.show("capture", Client::captures, |captures| document::captures(captures))
        }
    }
}

/// Name of the setting by which the node forwards messages between nets.
const ROUTING: &str = "routing";

/// The pool that a setting is the size of.
fn pool_of(name: &str) -> Option<PoolKind> {
    PoolKind::ALL.into_iter().find(|pool| pool.setting() == name)
}

/// Sets what belongs to routing, and is none of the global tunables.
fn set_routing(daemon: &mut Daemon<'_>, name: &'static str, text: Option<&str>) -> Result<()> {
    let (task, parser) = (Task::new("add", name), Task::new("parser", "set"));
    let Some(text) = text else { return Err(task.invalid(format!("no value for {name}"))) };
    let Some(value) = pattern::integer(text) else {
        return Err(parser.error(Errno::PERM, format!("cannot parse {name} value {text:?}")).failed());
    };
    let (change, expected) = match (pool_of(name), value) {
        (None, 0 | 1) => (Some(Change::SetRouting { on: value == 1 }), ""),
        (None, _) => (None, "0 or 1"),
        (Some(pool), _) => {
            let count = u32::try_from(value).ok().filter(|count| i32::try_from(*count).is_ok());
            (count.map(|buffer_count| Change::SetPool { pool, buffer_count }), "a number from 0")
        }
    };
    match change {
        Some(change) => daemon.apply(task, vec![change]),
        None => Err(task.invalid(format!("{name} {value}: {expected} is expected"))),
    }
}

/// The tunables that completions offer.
fn settable() -> Offered {
    let globals = Global::ALL.into_iter().filter(|global| global.is_settable()).map(Global::name);
    let of_routing = [ROUTING].into_iter().chain(PoolKind::ALL.map(PoolKind::setting));
    Offered::of(&globals.chain(of_routing).collect::<Vec<_>>())
}

pub(super) fn set(daemon: &mut Daemon<'_>, args: &SetArgs) -> Result<()> {
    let name = args.name.replace('-', "_");
    let parser = Task::new("parser", "set");
    let of_routing = pool_of(&name).map(PoolKind::setting).or((name == ROUTING).then_some(ROUTING));
    if let Some(name) = of_routing {
        return set_routing(daemon, name, args.value.as_deref());
    }
    match name.as_str() {
        // Interfaces are never bonded, which 0 asks for.
        "use_tcp_bonding" if args.value.as_deref() == Some("0") => return Ok(()),
        "use_tcp_bonding" => return Err(parser.unsupported("bonding of interfaces is").failed()),
        _ => {}
    }
    let wrong = |message: String| parser.error(Errno::PERM, message).failed();
    let global = match name.parse() {
        Ok(Global::LndTimeout) => {
            return Err(wrong(format!("{name} follows from transaction_timeout and retry_count: set these")));
        }
        Ok(global) => global,
        Err(_) => return Err(wrong(unknown_command(&args.name, &args.name).trim_end().to_owned())),
    };
    let task = Task::new("add", global.name());
    let Some(text) = &args.value else { return Err(task.invalid(format!("no value for {global}"))) };
    if let Some(value) = global.value_of_word(text) {
        return daemon.apply(task, vec![Change::SetGlobal { global, value }]);
    }
    let value =
        pattern::integer(text).ok_or_else(|| wrong(format!("cannot parse {global} value {text:?}")))?;
    let (low, high) = global.range();
    let value = match (global, u32::try_from(value)) {
        // Any number but zero is one, as in LNet.
        (Global::Discovery | Global::DropAsymRoute, _) => Some(u32::from(value != 0)),
        (Global::MaxInterfaces, Ok(value)) if value < low => Some(global.default_value()),
        // Obsolete, and taken for the sake of scripts.
        (Global::RecoveryInterval, _) => return daemon.client(task).map(drop),
        // The least one is above `retry_count`, which the node knows and says.
        (Global::TransactionTimeout, value) => value.ok(),
        (_, value) => value.ok().filter(|value| (low..=high).contains(value)),
    };
    let Some(value) = value else {
        return Err(task.invalid(format!("{global} {text}: {low} to {high} is expected")));
    };
    daemon.apply(task, vec![Change::SetGlobal { global, value }])
}

fn absolute_path(task: Task, file: &Path) -> Result<String> {
    let refused = |why: &dyn std::fmt::Display| task.invalid(format!("{}: {why}", file.display()));
    let path = absolute(file).map_err(|error| refused(&error))?;
    path.into_os_string().into_string().map_err(|_| refused(&"a name in UTF-8 is expected"))
}

/// A number of bytes, with K, M or G for powers of 1024.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.chars().last()? {
        'k' | 'K' => (text.get(..text.len() - 1)?, 10),
        'm' | 'M' => (text.get(..text.len() - 1)?, 20),
        'g' | 'G' => (text.get(..text.len() - 1)?, 30),
        _ => (text, 0),
    };
    let size = u64::try_from(pattern::integer(digits)?).ok()?;
    size.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let check = |text, expected| assert_eq!(size(text), expected, "{text}");
        check("4096", Some(4096));
        check("0x10k", Some(16 << 10));
        check("64M", Some(64 << 20));
        check("1G", Some(1 << 30));
        for bad in ["", "M", "-1", "1T", "1 M", "17179869184G"] {
            check(bad, None);
        }
    }
}
