//! A run of the tool: where its daemon is, the connection to it, and its commands.

mod interactive;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use lnet_control::client::Client;
use lnet_model::pattern::mistaken_word;

use crate::arguments::{self, GlobalWord};
use crate::commands::{self, Cli, unknown_command};
use crate::daemon::Daemon;
use crate::failure::{FAILED, REFUSED, UNSOUND, USAGE};
use crate::output::{eprint_text, print_text};

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
        let options = words.iter().take_while(|word| *word != "--");
        if let Some(message) =
            options.map(|word| word.to_string_lossy()).find_map(|word| mistaken_word(&word))
        {
            eprint_text(&format_args!("lnetctl: {message}\n"));
            return USAGE;
        }
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
        let mut daemon = Daemon { connection: &mut self.client, socket, node, as_json: cli.json };
        match commands::run(&mut daemon, command) {
            Ok(()) => 0,
            Err(error) => {
                let document = error.document();
                // Pings have told theirs already.
                if !document.is_empty() {
                    eprint_text(&daemon.text(&document));
                }
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
            // The status of the converter that LNet has.
            if line.split(' ').next() == Some("convert") { UNSOUND } else { USAGE }
        }
    }
}
