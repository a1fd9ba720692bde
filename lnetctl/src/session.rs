//! A run of the tool: where its daemon is, the connection to it, and its commands.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use lnet_control::client::{Client, ClientError};
use lnet_control::document::{Map, Yaml};
use lnet_control::path;
use lnet_model::request::{Batch, Change};
use serde::Serialize;

use crate::arguments::{self, GlobalWord};
use crate::cli::{Cli, UNSUPPORTED};
use crate::failure::{CommandError, FAILED, REFUSED, Task, USAGE};
use crate::{commands, interactive};

/// A run of the tool.
pub(crate) struct Session {
    /// Chosen by the words before interactive mode.
    socket: Option<PathBuf>,
    node: Option<String>,
    client: Option<(PathBuf, Client)>,
    /// Whether interactive mode goes on behind a failure.
    pub(crate) ignores_errors: bool,
    /// Whether interactive mode is to end.
    pub(crate) quits: bool,
}

impl Session {
    pub(crate) fn new() -> Self {
        Self { socket: None, node: None, client: None, ignores_errors: false, quits: false }
    }

    /// Carries out one command; returns the status.
    pub(crate) fn run(&mut self, words: &[OsString]) -> u8 {
        let words = arguments::normalized(words);
        let program = [OsString::from("lnetctl")];
        let tool = Cli::command();
        if let Some(word) = arguments::global_word(&words, &tool) {
            return self.global(word);
        }
        let words = arguments::completed(words, &tool);
        let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let parsed = tool
            .try_get_matches_from(program.into_iter().chain(words))
            .and_then(|matches| Cli::from_arg_matches(&matches));
        let cli = match parsed {
            Ok(cli) => cli,
            Err(error) => return usage(&line, &error),
        };
        let Some(command) = cli.command else {
            self.socket = cli.socket;
            self.node = cli.node;
            return interactive::run(self);
        };
        let socket = cli.socket.or_else(|| self.socket.clone());
        let node = cli.node.or_else(|| self.node.clone());
        let mut daemon = Daemon { session: self, socket, node, as_json: cli.json };
        match commands::run(&mut daemon, command) {
            Ok(()) => 0,
            Err(error) => {
                eprint_text(&error.document());
                // A connection is good for further requests only if nothing went wrong with it.
                self.client = None;
                error.status()
            }
        }
    }

    fn global(&mut self, word: GlobalWord) -> u8 {
        match word {
            GlobalWord::Version => print_text(&format!("lnetctl {}\n", env!("CARGO_PKG_VERSION"))),
            GlobalWord::ListCommands => print_text(&commands::list()),
            GlobalWord::Quit => self.quits = true,
            GlobalWord::IgnoreErrors => self.ignores_errors = true,
        }
        0
    }
}

/// The daemon that a command talks to, connected to when it is first asked.
pub(crate) struct Daemon<'a> {
    session: &'a mut Session,
    socket: Option<PathBuf>,
    node: Option<String>,
    /// Whether what is shown is printed as JSON.
    pub(crate) as_json: bool,
}

impl Daemon<'_> {
    /// The connection; `task` is what it is for.
    pub(crate) fn client(&mut self, task: Task) -> Result<&mut Client, CommandError> {
        let path = path::find(self.socket.clone(), self.node.as_deref())
            .map_err(|error| task.invalid(error.to_string()).failed())?;
        let client = match self.session.client.take() {
            Some((known, client)) if known == path => client,
            _ => Client::connect(&path).map_err(task.refused())?,
        };
        Ok(&mut self.session.client.insert((path, client)).1)
    }

    /// Asks the daemon for something.
    pub(crate) fn ask<T>(
        &mut self,
        task: Task,
        ask: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, CommandError> {
        ask(self.client(task)?).map_err(task.refused())
    }

    /// Asks the daemon for something, and prints it as a document.
    pub(crate) fn show<T>(
        &mut self,
        entity: &'static str,
        ask: impl FnOnce(&mut Client) -> Result<T, ClientError>,
        document: impl FnOnce(&T) -> Map,
    ) -> Result<(), CommandError> {
        let answer = self.ask(Task::new("show", entity), ask)?;
        self.print(&document(&answer));
        Ok(())
    }

    /// Makes changes, all or none.
    pub(crate) fn apply(&mut self, task: Task, changes: Vec<Change>) -> Result<(), CommandError> {
        self.ask(task, |client| client.apply(Batch { changes, dry_run: false })).map(drop)
    }

    /// Prints a document.
    pub(crate) fn print(&self, document: &Map) {
        print_text(&self.text(document));
    }

    /// Prints a record: with `--json` as it is, otherwise as a document.
    pub(crate) fn print_record<T: Serialize>(&self, record: &T, document: impl FnOnce(&T) -> Map) {
        print_text(&if self.as_json { json_line(record) } else { Yaml(&document(record)).to_string() });
    }

    /// A document as YAML, or as a line of JSON with the same keys.
    pub(crate) fn text(&self, document: &Map) -> String {
        if self.as_json { json_line(document) } else { Yaml(document).to_string() }
    }
}

/// Says what is wrong with the words, or helps where help was asked for.
fn usage(line: &str, error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print_text(&error.render());
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            print_text(&error.render());
            REFUSED
        }
        ErrorKind::InvalidSubcommand => {
            let name = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(name)) => name.clone(),
                _ => String::new(),
            };
            eprint_text(&unknown_command(line, &name));
            FAILED
        }
        _ => {
            eprint_text(&error.render());
            USAGE
        }
    }
}

/// The refusal of a word that is no command, in a line of words.
pub(crate) fn unknown_command(line: &str, word: &str) -> String {
    // Options may stand before the command.
    let line = format!(" {line} ");
    let is_it = |path: &str| path.ends_with(word) && line.contains(&format!(" {path} "));
    match UNSUPPORTED.iter().find(|(path, _)| is_it(path)) {
        Some((path, what)) => {
            let entity = path.split(' ').next().unwrap_or(path);
            Task::new("parser", entity).unsupported(&format!("'{path}': {what}")).document()
        }
        None => format!("lnetctl: '{word}' is not a valid command. See 'lnetctl --list-commands'.\n"),
    }
}

/// Prints to stdout. A reader that closed it does not want the rest.
pub(crate) fn print_text(text: &impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// A value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::json!(value))
}

/// Prints to stderr.
pub(crate) fn eprint_text(text: &impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}
