//! The command line of an LNet node. It parses words and documents, asks the node's daemon, and prints.
//!
//! Invariants: what is shown goes to stdout, what failed to stderr, each as a YAML document; the status is 0
//! if everything was done that was asked, 1 if what was measured is not as it should be, 234 if the node
//! refused, 255 if there is no such command, or the tool or what it was to reach failed, 2 for options and
//! words that a command does not know or lacks. `convert` has the status of LNet's converter: 1 if there is
//! nothing to convert and for options that it does not know, 2 for what makes no sense or cannot be read.

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod daemon;
mod failure;
mod lctl;
mod options;
mod output;
mod session;
mod table;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use session::Session;

/// Carries out what the words of this process say, as `lnetctl` does.
#[must_use]
pub fn lnetctl() -> ExitCode {
    ExitCode::from(Session::new().run(&words()))
}

/// Carries out what the words of this process say, as `lctl` does.
#[must_use]
pub fn lctl() -> ExitCode {
    ExitCode::from(lctl::run(words()))
}

fn words() -> Vec<OsString> {
    env::args_os().skip(1).collect()
}
