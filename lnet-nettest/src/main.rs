//! The load tool of the messaging layer: ping and bulk tests between transfer machines, over any transport.
//!
//! ```text
//!  client                                   server
//!  ping  message with a sequence number --> the same bytes, sent back
//!  bulk  message with two descriptors   --> active receive from the one, active send of the same bytes to the other
//! ```
//!
//! Invariants: what is measured goes to stdout as one JSON object, progress and errors to stderr; the status
//! is 0 if every message came back as it was, 1 if not, 2 for wrong options.

#![forbid(unsafe_code)]

mod client;
mod console;
mod node;
mod options;
mod orders;
mod output;
mod place;
mod report;
mod server;
mod wire;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use lnet_model::pattern::mistaken_word;

use client::Watch;
use options::{Command, Kind, Options, Test};
use output::{note, tell};
use place::Place;
use report::{Report, Tally};

/// Status of words that are not understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(message) = std::env::args_os().find_map(|word| mistaken_word(&word.to_string_lossy())) {
        note(format_args!("lnet-nettest: {message}"));
        return ExitCode::from(USAGE);
    }
    let done = match Options::try_parse() {
        Ok(options) => run(options.command),
        Err(error) if error.use_stderr() => {
            note(error.render().to_string().trim_end());
            return ExitCode::from(USAGE);
        }
        Err(help) => tell(help.render().to_string().trim_end()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("lnet-nettest: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Server { place, service } => {
            let place = Place::new(&place, service.room())?;
            let server = server::start(&place, &service)?;
            note(format_args!("serving at {}", server.address()));
            server.join()
        }
        Command::Client { place, server, test } => {
            test.check()?;
            let room = test.concurrency.max(test.messages());
            conclude(&measure(&Place::new(&place, room)?, &server, &test)?)
        }
        Command::Local { transport, test, workers } => {
            test.check()?;
            let [client, place] =
                Place::both(transport, workers, test.service().room().max(test.messages()))?;
            let server = server::start(&place, &test.service())?;
            let report = measure(&client, server.address(), &test)?;
            server.stop()?;
            conclude(&report)
        }
        Command::Node { place, depth } => node::node(&place, depth),
        Command::Console { place, console, test } => {
            test.check()?;
            conclude(&console::run(&place, &console, &test)?)
        }
        Command::Man { directory } => options::write_man_page(&directory),
        Command::Completions { shell } => options::print_completions(shell),
    }
}

/// Tests a server from here.
fn measure(place: &Place, server: &str, test: &Test) -> Result<Report> {
    let counts = client::run(place, &[server.to_owned()], test, &Watch::default())?;
    Ok(counts.report(test, &place.address, server))
}

/// Prints a report. What was not right is a failure.
fn conclude(report: &Report) -> Result<()> {
    tell(serde_json::to_string_pretty(report)?)?;
    let Report { test, tally, silent, .. } = report;
    let Tally { done, failed, first_error, bad, lost } = tally;
    if failed + bad + lost > 0 || *done == 0 && test.kind != Kind::Stub {
        let why = first_error.as_ref().map(|error| format!(" (the first with {error})")).unwrap_or_default();
        bail!(
            "{done} exchanges went well, {failed} failed{why}, {bad} came back changed, {lost} did not come back"
        );
    }
    if !silent.is_empty() {
        bail!("nodes that do not answer: {}", silent.join(", "));
    }
    Ok(())
}
