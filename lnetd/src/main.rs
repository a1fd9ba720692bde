//! `lnetd`: a node in a process of its own, managed by `lnetctl`.
//!
//! Invariants: all that it does it has from the library ([`lnet_admin`]); what goes wrong at the
//! start is one message with the way out; the first signal ends it in order, the second at once.
//!
//! The daemon is a crate of its own: command line, log and signals would be dependencies of the library.

#![forbid(unsafe_code)]

mod allocator;
mod document;
mod generate;
mod group;
mod limits;
mod log;
mod notify;
mod options;
mod signals;
mod sock;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use lnet_admin::{SelftestConsole, serve};
use lnet_control::output;
use lnet_model::Refusal;
use lnet_model::pattern::{escaped, mistaken_word};
use lnet_model::records::{SelftestAnswer, SelftestRequest};
use lnet_selftest::Selftest;
use lnet_user::Lnet;
use log::Log;
use options::Options;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Status of words that are not understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    allocator::settle();
    if let Some(message) = std::env::args_os().find_map(|word| mistaken_word(&word.to_string_lossy())) {
        output::note(format_args!("lnetd: {message}\n"));
        return ExitCode::from(USAGE);
    }
    let options = match document::options(std::env::args_os()) {
        Ok(options) => options,
        Err(document::OptionsError::Words(error)) => return explain(&error),
        Err(document::OptionsError::Document(lines)) => {
            lines.iter().for_each(|line| output::note_lines(format_args!("lnetd: {line}")));
            return ExitCode::FAILURE;
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Messages that were logged before may be filtered out.
            let told = told(&error);
            // A document's mistakes have a line each.
            let lines: Vec<_> = told.lines().map(escaped).collect();
            log::say_last(format!("lnetd: {}", lines.join("\n")));
            ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with the words, or helps where help was asked for.
fn explain(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        output::note(error.render());
        return ExitCode::from(USAGE);
    }
    match output::print(error.render()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("lnetd: stdout: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(done) = generate::generate(options) {
        return done;
    }
    let _log = Log::start(&options.log())?;
    // Before any thread, so that signals are ours from the start.
    raise_descriptor_limit();
    let is_ready = Arc::new(AtomicBool::new(false));
    let signals = signals::signals(Arc::clone(&is_ready))?;
    let serve_options = options.serve()?;
    let config = options.node()?;
    let lnet = Lnet::start_on(&config, &options.threads()?)?;
    info!(
        name = options.name,
        shards = config.shards,
        mode = %config.xdp.mode,
        version = env!("CARGO_PKG_VERSION"),
        "node started"
    );
    let selftest = options.selftest.then(|| Selftest::start(&lnet)).transpose();
    let selftest = selftest.context("--selftest")?;
    let console = selftest.as_ref().map(|selftest| Box::new(Console(selftest.console())) as _);
    let progress = |progress| {
        is_ready.store(true, Ordering::Release);
        notify::tell(&progress);
    };
    serve(&lnet, &serve_options, console, progress, signals)?;
    Ok(())
}

/// The console that `lst` commands.
struct Console(lnet_selftest::Console);

impl SelftestConsole for Console {
    fn run(
        &self,
        request: SelftestRequest,
    ) -> Pin<Box<dyn Future<Output = Result<SelftestAnswer, Refusal>>>> {
        let console = self.0.clone();
        Box::pin(async move { console.run(request).await })
    }
}

/// Each connection of a tcp net is a descriptor: takes as many as there may be.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "the limit of descriptors is left as it is");
    }
}

/// An error with its causes, each said once: those of the library tell theirs in their own text.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        told if told.contains(&cause) => text,
        told => format!("{told}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let options = Options::parse_from(["lnetd", "--cpus", "8191"]);
        let threads = options.threads().unwrap();
        let error = Lnet::start_on(&options.node().unwrap(), &threads).err().unwrap().into();
        let text = told(&error);
        assert_eq!(text.matches("cannot run on cpu 8191").count(), 1, "{text}");
        let error = Err::<(), _>(std::io::Error::other("why")).context("what").unwrap_err();
        assert_eq!(told(&error), "what: why");
    }
}
