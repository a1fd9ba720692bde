//! The daemon that commands ask, and what they print of its answers.
//!
//! Invariants: a daemon is connected to when it is first asked; what commands show is YAML, or with `--json`
//! a line of JSON.

use std::path::PathBuf;

use lnet_control::client::{Client, ClientError};
use lnet_control::document::{Map, Yaml};
use lnet_control::path;
use lnet_model::request::{Change, ChangeSet, Effect};
use serde::Serialize;

use crate::failure::{CommandError, Task};
use crate::output::{eprint_text, json_line, print_text};

/// The daemon that a command talks to, connected to when it is first asked.
pub(crate) struct Daemon<'a> {
    /// The connection and its socket, if there is one; later commands of the run take it over.
    pub(crate) connection: &'a mut Option<(PathBuf, Client)>,
    /// Its socket and its node's name, as far as the words have them.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) node: Option<String>,
    /// Whether what is shown is printed as JSON.
    pub(crate) as_json: bool,
}

impl Daemon<'_> {
    /// The connection; `task` is what it is for.
    pub(crate) fn client(&mut self, task: Task) -> Result<&mut Client, CommandError> {
        let path = path::find(self.socket.clone(), self.node.as_deref())
            .map_err(|error| task.invalid(error.to_string()).failed())?;
        let client = match self.connection.take() {
            Some((known, client)) if known == path => client,
            _ => Client::connect(&path).map_err(task.refused())?,
        };
        Ok(&mut self.connection.insert((path, client)).1)
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

    /// Makes changes, all or none; says what they leave as it is.
    pub(crate) fn apply(&mut self, task: Task, changes: Vec<Change>) -> Result<(), CommandError> {
        let adds_nis = changes.iter().any(Change::adds_nis);
        let batch = ChangeSet { changes, dry_run: false, generation: None };
        let outcomes = self.ask(task, |client| client.apply(batch))?;
        for staying in outcomes.iter().flat_map(Effect::staying) {
            eprint_text(&format_args!("lnetctl: {staying}\n"));
        }
        if adds_nis { self.warn(task) } else { Ok(()) }
    }

    /// Prints what keeps NIs from serving, as is to be told when NIs were added.
    pub(crate) fn warn(&mut self, task: Task) -> Result<(), CommandError> {
        for text in self.ask(task, Client::warnings)? {
            eprint_text(&format_args!("lnetctl: warning: {text}\n"));
        }
        Ok(())
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
