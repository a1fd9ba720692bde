//! The console of LNet selftest: it tells a node's daemon what to do, which has the session, and prints what
//! came of it.
//!
//! Invariants: what is shown goes to stdout, what failed to stderr; the status is 0 if everything was done
//! that was asked, else that of the reference (`failure`).

#![forbid(unsafe_code)]

mod cli;
mod console;
mod failure;
mod output;
mod show;
mod stat;

use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use lnet_control::client::Client;
use lnet_control::{path, resolve};
use lnet_model::pattern;
use lnet_model::records::{SelftestAnswer, SelftestCommand, SelftestNode, SelftestState};

use cli::{Command, Options, Ping, Query};
use console::Console;
use failure::Failure;
use output::{complain, reader_has_gone, tell};

/// The key that users of a session know, in the environment.
const KEY: &str = "LST_SESSION";
/// Feature bits of new sessions, in the environment.
const SESSION_FEATURES: &str = "LST_FEATURES";
/// The longest session name that fits into messages.
const SESSION_NAME_BYTES_MAX: usize = 31;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).take_while(|word| word != "--");
    if let Some(message) = words.find_map(|word| pattern::mistaken_word(&word.to_string_lossy())) {
        complain(format_args!("lst: {message}"));
        return ExitCode::from(failure::USAGE);
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            if error.use_stderr() {
                complain(error.render().to_string().trim_end());
            } else {
                tell(error.render().to_string().trim_end());
            }
            return ExitCode::from(failure::status_of_words(&error));
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("lst: {error:#}"));
            ExitCode::from(failure::status(&error))
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(done) = cli::generate(&options.command) {
        return done;
    }
    let key = std::env::var(KEY).ok().and_then(|text| pattern::integer(&text));
    let key = key.and_then(|key| u32::try_from(key).ok()).filter(|key| *key != 0);
    let key = key.with_context(|| {
        format!("the environment variable {KEY} names the session: a number from 1 is expected, as by export {KEY}=$$")
    })?;
    let path = path::find(options.socket.clone(), options.node.as_deref())?;
    let mut console = Console { client: Client::connect(&path)?, key, timeout_s: None };
    carry_out(&options.command, &mut console)
}

fn carry_out(command: &Command, console: &mut Console) -> Result<()> {
    match command {
        Command::NewSession { timeout, force, feats, name } => {
            let name = name.clone().map_or_else(own_name, Ok)?;
            let (features, force) = (feats.unwrap_or_else(features), *force);
            let asked = SelftestCommand::NewSession { name, timeout_s: *timeout, force, features };
            if let SelftestAnswer::Session(session) = console.ask(asked)? {
                let force = if force { "Yes" } else { "No" };
                tell(format_args!(
                    "SESSION: {} FEATURES: {:x} TIMEOUT: {} FORCE: {force}",
                    pattern::escaped(&session.name),
                    session.features,
                    session.timeout_s
                ));
            }
            Ok(())
        }
        Command::EndSession => show::failures(&console.nodes(SelftestCommand::EndSession)?, "remove session"),
        Command::ShowSession => {
            if let SelftestAnswer::Session(session) = console.ask(SelftestCommand::ShowSession)? {
                show::session(&session);
            }
            Ok(())
        }
        Command::AddGroup { name, nids } => add_group(console, name, nids),
        Command::UpdateGroup { refresh, clean, remove, name } => {
            if !refresh && clean.is_empty() && remove.is_none() {
                bail!(Failure::usage("--refresh, --clean or --remove is expected"));
            }
            let remove = remove.as_deref().map(resolve::nodes).transpose()?.unwrap_or_default();
            let clean = clean.iter().flat_map(|word| word.states()).copied().collect();
            let (name, refresh) = (name.clone(), *refresh);
            let asked = SelftestCommand::UpdateGroup { name, remove, clean, refresh };
            show::failures(&console.nodes(asked)?, "Updating group")
        }
        Command::DelGroup { name } => {
            console.ask(SelftestCommand::DeleteGroup { name: name.clone() })?;
            tell("Group is deleted");
            Ok(())
        }
        Command::ListGroup { active, busy, down, unknown, all, names } => {
            let chosen = [active, busy, down, unknown].map(|chosen| *chosen || *all);
            let asked = console.ask(SelftestCommand::ListGroups);
            let asked = asked.map_err(|error| match names.as_slice() {
                [] => Failure::no_list(&error).into(),
                _ => error,
            });
            let SelftestAnswer::Groups(groups) = asked? else { return Ok(()) };
            show::groups(&groups, names, chosen)
        }
        Command::AddBatch { name } => console.ask(SelftestCommand::AddBatch { name: name.clone() }).map(drop),
        Command::AddTest(test) => {
            let nodes = console.nodes(test.command()?)?;
            show::failures(&nodes, "add test")?;
            tell("Test was added successfully");
            Ok(())
        }
        Command::Run { patience, batch } => {
            console.timeout_s = patience.timeout;
            show::failures(&console.nodes(SelftestCommand::Run { batch: batch.clone() })?, "run batch")?;
            tell(format_args!("{} is running now", pattern::escaped(batch)));
            Ok(())
        }
        Command::Stop { force, batch } => {
            let (batch, force) = (batch.clone(), *force);
            show::failures(
                &console.nodes(SelftestCommand::Stop { batch: batch.clone(), force })?,
                "stop batch",
            )?;
            stat::wait_until_idle(console, &batch)?;
            tell("Batch is stopped");
            Ok(())
        }
        Command::ListBatch(options) => show::batches(&console.batches()?, options),
        Command::Query(options) => query(console, options),
        Command::Ping(options) => ping(options, console),
        Command::Stat(options) => {
            console.timeout_s = options.patience.timeout;
            stat::run(console, options)
        }
        Command::ShowError { session, targets } => stat::show_errors(console, targets, *session),
        Command::Man { .. } | Command::Completions { .. } => Ok(()),
    }
}

/// Feature bits that the environment names; as with the reference, 0 and what is no number name none.
fn features() -> u32 {
    let named = std::env::var(SESSION_FEATURES).ok().and_then(|text| pattern::integer(&text));
    named.and_then(|bits| u32::try_from(bits).ok()).filter(|bits| *bits != 0).unwrap_or(1)
}

/// The name of a session that was given none: that of the user, at this host.
fn own_name() -> Result<String> {
    let user = std::fs::metadata("/proc/self").context("the user is not known")?.uid();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    });
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host is not known")?;
    let mut name = format!("{}@{}", name.unwrap_or_else(|| user.to_string()), host.trim());
    while name.len() > SESSION_NAME_BYTES_MAX {
        name.pop();
    }
    Ok(name)
}

/// Makes a group of the nodes of each list; one that none of them joins is deleted.
fn add_group(console: &mut Console, name: &str, lists: &[String]) -> Result<()> {
    let mut resolved = Vec::new();
    for text in lists {
        resolved.push((text, resolve::nodes(text)?));
    }
    let nids = resolved.iter().flat_map(|(_, nids)| nids.clone()).collect();
    let nodes = console.nodes(SelftestCommand::AddGroup { name: name.to_owned(), nids })?;
    let active = nodes.iter().filter(|node| node.state == SelftestState::Active);
    let joined: Vec<_> = active.map(|node| node.nid).collect();
    for (text, nids) in &resolved {
        if nids.iter().all(|nid| joined.contains(nid)) {
            tell(format_args!("{} are added to session", pattern::escaped(text)));
        }
    }
    let failed = show::failures(&nodes, "create session");
    if joined.is_empty() {
        complain(format_args!("No nodes added successfully, deleting group {name}"));
        console.ask(SelftestCommand::DeleteGroup { name: name.to_owned() })?;
        tell("Group is deleted");
    }
    failed
}

/// Shows what of a batch is active, once or more often.
fn query(console: &mut Console, options: &Query) -> Result<()> {
    console.timeout_s = options.patience.timeout;
    for round in 0..options.loop_count {
        if reader_has_gone() {
            break;
        }
        if round != 0 {
            std::thread::sleep(Duration::from_secs(options.delay.into()));
        }
        let (batch, test, of_servers) = (options.batch.clone(), options.test, options.server);
        let nodes = console.nodes(SelftestCommand::Query { batch, test, of_servers })?;
        show::activity(&nodes, options)?;
    }
    Ok(())
}

/// Asks nodes for their session: those of groups, batches and lists of NIDs, or all.
fn ping(options: &Ping, console: &mut Console) -> Result<()> {
    console.timeout_s = options.timeout;
    let mut targets = options.targets.clone();
    targets.extend(options.group.iter().chain(&options.nodes).cloned());
    targets = console.resolved(&targets)?;
    if let Some(name) = &options.batch {
        let batches = console.batches()?;
        let batch = show::batch(&batches, name)?;
        let nodes = if options.server { &batch.servers } else { &batch.clients };
        if nodes.is_empty() {
            tell("Target batch is empty");
            return Ok(());
        }
        targets.extend(nodes.iter().map(|node| node.nid.to_string()));
    }
    let nodes = console.nodes(SelftestCommand::Ping { targets })?;
    show::pinged(&nodes);
    // A node of another session has answered.
    let silent = |node: &&SelftestNode| node.failed.is_some() && node.session.is_none();
    let failed: Vec<_> = nodes.iter().filter(silent).filter_map(|node| node.failed).collect();
    match failed.len() {
        0 => Ok(()),
        count => {
            bail!(Failure::nodes(failed, format!("{count} of {} nodes did not answer", nodes.len())))
        }
    }
}
