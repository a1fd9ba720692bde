//! The console of LNet selftest: it tells a node's daemon what to do, which has the session, and prints what came of it.
//!
//! Invariants: what is shown goes to stdout, what failed to stderr; the status is 0 if everything was done that was asked,
//! 1 if not, 2 for options and words that a command does not know or lacks.

#![forbid(unsafe_code)]

mod cli;
mod show;
mod stat;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use lnet_control::client::Client;
use lnet_control::path;
use lnet_control::pattern;
use lnet_control::records::{
    SelftestAnswer, SelftestBatch, SelftestCommand, SelftestNode, SelftestRequest, SelftestState,
};

use cli::{Command, Options, Ping, States};

/// What users of a session know, in the environment.
const KEY: &str = "LST_SESSION";

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lst: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The console that commands go to.
struct Console {
    client: Client,
    key: u32,
    /// Seconds that a node may take to answer, if not as long as the session says.
    timeout_s: Option<u32>,
}

impl Console {
    fn ask(&mut self, command: SelftestCommand) -> Result<SelftestAnswer> {
        Ok(self.client.selftest(SelftestRequest { key: self.key, command, timeout_s: self.timeout_s })?)
    }

    fn batches(&mut self) -> Result<Vec<SelftestBatch>> {
        match self.ask(SelftestCommand::ListBatches)? {
            SelftestAnswer::Batches(batches) => Ok(batches),
            answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
        }
    }

    /// A command that is answered for each node.
    fn nodes(&mut self, command: SelftestCommand) -> Result<Vec<SelftestNode>> {
        match self.ask(command)? {
            SelftestAnswer::Nodes(nodes) => Ok(nodes),
            answer => bail!("the daemon answered something else than it was asked: {answer:?}"),
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
            let (name, force) = (name.clone(), *force);
            let asked = SelftestCommand::NewSession { name, timeout_s: *timeout, force, features: *feats };
            if let SelftestAnswer::Session(session) = console.ask(asked)? {
                let force = if force { "Yes" } else { "No" };
                println!(
                    "SESSION: {} FEATURES: {:x} TIMEOUT: {} FORCE: {force}",
                    session.name, session.features, session.timeout_s
                );
            }
            Ok(())
        }
        Command::EndSession => show::failures(&console.nodes(SelftestCommand::EndSession)?, "end"),
        Command::ShowSession => {
            if let SelftestAnswer::Session(session) = console.ask(SelftestCommand::ShowSession)? {
                show::session(&session);
            }
            Ok(())
        }
        Command::AddGroup { name, nids } => {
            let nids = nids.iter().map(|text| pattern::nids_resolved(text)).collect::<Result<Vec<_>, _>>()?;
            let asked = SelftestCommand::AddGroup { name: name.clone(), nids: nids.concat() };
            let nodes = console.nodes(asked)?;
            let added = nodes.iter().filter(|node| node.state == SelftestState::Active);
            let added: Vec<String> = added.map(|node| node.nid.to_string()).collect();
            if !added.is_empty() {
                println!("{} are added to session", added.join(", "));
            }
            let failed = show::failures(&nodes, "join");
            if added.is_empty() {
                println!("No nodes added successfully, deleting group {name}");
                console.ask(SelftestCommand::DeleteGroup { name: name.clone() })?;
                println!("Group is deleted");
            }
            failed
        }
        Command::UpdateGroup { refresh, clean, remove, name } => {
            let remove = remove.as_deref().map(pattern::nids).transpose()?.unwrap_or_default();
            let clean = clean.iter().flat_map(|States(states)| states.clone()).collect();
            let (name, refresh) = (name.clone(), *refresh);
            let asked = SelftestCommand::UpdateGroup { name, remove, clean, refresh };
            show::failures(&console.nodes(asked)?, "join")?;
            println!("Group is updated");
            Ok(())
        }
        Command::DelGroup { name } => {
            console.ask(SelftestCommand::DeleteGroup { name: name.clone() })?;
            println!("Group is deleted");
            Ok(())
        }
        Command::ListGroup { active, busy, down, unknown, all, names } => {
            let chosen = [active, busy, down, unknown].map(|chosen| *chosen || *all);
            let SelftestAnswer::Groups(groups) = console.ask(SelftestCommand::ListGroups)? else {
                return Ok(());
            };
            show::groups(&groups, names, chosen)
        }
        Command::AddBatch { name } => console.ask(SelftestCommand::AddBatch { name: name.clone() }).map(drop),
        Command::AddTest(test) => {
            let nodes = console.nodes(test.command()?)?;
            show::failures(&nodes, "take the test")?;
            println!("Test was added successfully");
            Ok(())
        }
        Command::Run { batch } => {
            show::failures(&console.nodes(SelftestCommand::Run { batch: batch.clone() })?, "run the batch")?;
            println!("{batch} is running now");
            Ok(())
        }
        Command::Stop { force, batch } => {
            let (batch, force) = (batch.clone(), *force);
            show::failures(&console.nodes(SelftestCommand::Stop { batch: batch.clone(), force })?, "stop")?;
            stat::wait_until_idle(console, &batch)?;
            println!("Batch is stopped");
            Ok(())
        }
        Command::ListBatch(options) => show::batches(&console.batches()?, options),
        Command::Query { test, all, server, patience, loop_count, delay, batch } => {
            console.timeout_s = patience.timeout;
            for round in 0..*loop_count {
                if round != 0 {
                    std::thread::sleep(Duration::from_secs((*delay).into()));
                }
                let (batch, test, of_servers) = (batch.clone(), *test, *server);
                let asked = SelftestCommand::Query { batch, test, of_servers };
                show::activity(&console.nodes(asked)?, *all)?;
            }
            Ok(())
        }
        Command::Ping(options) => ping(options, console),
        Command::Stat(options) => {
            console.timeout_s = options.patience.timeout;
            stat::run(console, options)
        }
        Command::ShowError { session, targets } => stat::show_errors(console, targets, *session),
        Command::Man { .. } | Command::Completions { .. } => Ok(()),
    }
}

/// Asks nodes for their session: those of groups, batches and lists of NIDs, or all.
fn ping(options: &Ping, console: &mut Console) -> Result<()> {
    console.timeout_s = options.patience.timeout;
    let mut targets = options.targets.clone();
    targets.extend(options.group.iter().chain(&options.nodes).cloned());
    if let Some(name) = &options.batch {
        let batches = console.batches()?;
        let batch = show::batch(&batches, name)?;
        let nodes = if options.server { &batch.servers } else { &batch.clients };
        if nodes.is_empty() {
            bail!("batch {name} has no nodes; add a test to it with add_test");
        }
        targets.extend(nodes.iter().map(|node| node.nid.to_string()));
    }
    let nodes = console.nodes(SelftestCommand::Ping { targets })?;
    show::pinged(&nodes);
    match nodes.iter().filter(|node| node.failed.is_some()).count() {
        0 => Ok(()),
        count => bail!("{count} of {} nodes did not answer", nodes.len()),
    }
}
