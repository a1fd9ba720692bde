//! Whole documents: export and import.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use lnet_control::client::{Client, ClientError, errno_of};
use lnet_control::document::{
    self, DOCUMENT_BYTES_MAX, Document, DocumentError, Failure, Instruction, Item, Mode, NodeState, Shown,
};
use lnet_control::file;
use lnet_model::request::{Change, ChangeSet};
use lnet_model::{Errno, Refusal};
use serde_json::json;

use super::{Result, ping, route};
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task};
use crate::output::{eprint_text, json_line, print_lasting, print_text};

/// Plans of one document: each that is out of date is one that another client's came before.
const PLANS_MAX: u32 = 1000;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only what it takes to build the node anew
    #[arg(long, short)]
    pub(crate) backup: bool,
    /// The file to write [default: standard output]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Make what the document says (the default)
    #[arg(long, short)]
    pub(crate) add: bool,
    /// Delete what the document names
    #[arg(long, short, conflicts_with = "add")]
    pub(crate) del: bool,
    /// Carry out the pings of the document, and discover its peers
    #[arg(long, short, conflicts_with_all = ["add", "del", "dry_run"])]
    pub(crate) exec: bool,
    /// Show what the document names
    #[arg(long, short, conflicts_with_all = ["add", "del", "exec", "dry_run"])]
    pub(crate) show: bool,
    /// Change nothing, and print what would change
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Makes no difference here
    #[arg(long, short, hide = true)]
    pub(crate) old_api: bool,
    /// The document [default: standard input]
    pub(crate) file: Option<PathBuf>,
}

pub(super) fn export(daemon: &mut Daemon<'_>, args: &ExportArgs) -> Result<()> {
    let task = Task::new("show", "export");
    let document = document::export(&state(daemon, task, None)?, args.backup);
    let text = daemon.text(&document);
    match &args.file {
        Some(path) if path != Path::new("-") => file::replace(path, text.as_bytes()).map_err(|error| {
            task.error(errno_of(&error), format!("cannot write {}: {error}", path.display())).failed()
        }),
        _ => {
            print_lasting(&text);
            Ok(())
        }
    }
}

/// All that documents are made of, or as much of it as one is about.
fn state(daemon: &mut Daemon<'_>, task: Task, about: Option<&Document>) -> Result<NodeState> {
    let peers = about.and_then(Document::peers_named);
    let has_routes = about.is_none_or(Document::names_routes);
    daemon.ask(task, |client| {
        Ok(NodeState {
            nets: client.nets()?,
            peers: match peers {
                None => client.peers()?,
                Some(nids) => client.peers_of(&nids)?,
            },
            routes: if has_routes { client.routes()? } else { Vec::new() },
            routing: client.routing()?,
            globals: client.globals()?,
            udsp: client.udsp()?,
            drop_rules: client.drop_rules()?,
            delay_rules: client.delay_rules()?,
            steering: client.steering()?,
        })
    })
}

pub(super) fn import(daemon: &mut Daemon<'_>, args: &ImportArgs) -> Result<()> {
    let (mode, operation) = match args {
        ImportArgs { del: true, .. } => (Mode::Delete, "del"),
        ImportArgs { exec: true, .. } => (Mode::Execute, "exec"),
        ImportArgs { show: true, .. } => (Mode::Show, "show"),
        _ => (Mode::Add, "add"),
    };
    let task = Task::new(operation, "import");
    let path = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let text = read(task, path, &name)?;
    let document = document::parse(&text, mode).map_err(|errors| document_errors(task, &errors))?;
    if document.is_blank {
        // Done as it says, and yet seldom what was meant: a backup that was cut off looks like this.
        eprint_text(&format_args!("lnetctl: {name} is empty: nothing is to be done\n"));
    }
    if document.items.is_empty() {
        return Ok(());
    }
    match mode {
        Mode::Execute => execute(daemon, document),
        Mode::Show => show(daemon, task, &document),
        Mode::Add | Mode::Delete => {
            let document = on_its_host(daemon, task, document)?;
            change(daemon, task, &document, args.dry_run)
        }
    }
}

/// Tells the mistakes of a document, or how many things it asks for. Whether a node can do them is not asked.
pub(super) fn check(daemon: &Daemon<'_>, file: Option<&Path>) -> Result<()> {
    let task = Task::new("check", "check");
    let file = file.filter(|file| *file != Path::new("-"));
    let name = file.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let text = read(task, file, &name)?;
    let document = document::parse(&text, Mode::Add).map_err(|errors| document_errors(task, &errors))?;
    let told = json!({"check": {"file": name, "items": document.items.len()}});
    daemon.print(told.as_object().unwrap_or(&document::Map::new()));
    Ok(())
}

/// The document with the NIs that it chooses by the addresses of the daemon's host.
pub(super) fn on_its_host(daemon: &mut Daemon<'_>, task: Task, document: Document) -> Result<Document> {
    let Some(named) = document.interfaces_named() else { return Ok(document) };
    let host = daemon.ask(task, |client| client.interfaces(named))?;
    document.resolve(&host).map_err(|errors| document_errors(task, &errors))
}

/// The text of a file, or of standard input.
fn read(task: Task, path: Option<&Path>, name: &str) -> Result<String> {
    let cannot = |what: &str, error: &io::Error| {
        task.error(errno_of(error), format!("cannot {what} {name}: {error}")).failed()
    };
    let reader: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path).map_err(|error| cannot("open", &error))?),
        None => Box::new(io::stdin()),
    };
    let bytes = file::read(reader, DOCUMENT_BYTES_MAX).map_err(|error| cannot("read", &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let line = error
            .as_bytes()
            .iter()
            .take(error.utf8_error().valid_up_to())
            .filter(|byte| **byte == b'\n')
            .count();
        task.invalid(format!("line {}: {name} is not text in UTF-8", line + 1))
    })
}

fn change(daemon: &mut Daemon<'_>, task: Task, document: &Document, dry_run: bool) -> Result<()> {
    for _ in 0..PLANS_MAX {
        let planned_for = daemon.ask(task, Client::generation)?;
        let state = state(daemon, task, Some(document))?;
        let passed_over = document::passed_over(document, &state);
        let plan = document.plan(&state);
        let (items, changes): (Vec<&Item>, Vec<Change>) = plan.into_iter().unzip();
        let generation = Some(planned_for).filter(|_| !dry_run);
        let batch = ChangeSet { changes: changes.clone(), dry_run, generation };
        let outcomes = match daemon.client(task)?.apply(batch) {
            // Others have changed the node meanwhile.
            Err(ClientError::Refused(refusal)) if refusal.errno == Errno::STALE => continue,
            applied => applied.map_err(|error| refused(task, &items, &changes, &state, error))?,
        };
        let outcomes_of = items.iter().zip(&outcomes);
        let left = outcomes_of.flat_map(|(item, outcome)| outcome.staying().iter().map(|it| (*item, *it)));
        for (item, staying) in passed_over.into_iter().chain(left) {
            eprint_text(&format_args!("lnetctl: {}: {}: {staying}\n", item.position, item.entity));
        }
        if !dry_run && changes.iter().any(Change::adds_nis) {
            daemon.warn(task)?;
        }
        if dry_run {
            let lines = document::diff(&state, &changes, &outcomes);
            if daemon.as_json {
                print_text(&json_line(&json!({"changes": lines})));
            } else {
                lines.iter().for_each(|line| print_text(&format_args!("{line}\n")));
            }
        }
        return Ok(());
    }
    let message =
        format!("others change the node without end: {PLANS_MAX} plans were out of date when they were made");
    Err(task.error(Errno::STALE, message))
}

/// The daemon's refusal, with the places of the items that it is about.
fn refused(
    task: Task,
    items: &[&Item],
    changes: &[Change],
    state: &NodeState,
    error: ClientError,
) -> CommandError {
    let ClientError::Refused(refusal) = error else {
        return task.refused()(error);
    };
    let failure = |refusal: &Refusal| {
        let item = refusal.change.and_then(|position| items.get(position));
        let change = refusal.change.and_then(|position| changes.get(position));
        let differences = change.map(|change| document::differences(change, state)).unwrap_or_default();
        let said = change.map_or_else(|| refusal.message.clone(), |change| route::explained(change, refusal));
        let mut message = match item {
            Some(item) => format!("{}: {}: {said}", item.position, item.entity),
            None => said,
        };
        if !differences.is_empty() {
            message += &format!(": {}", differences.join(", "));
        }
        Failure { entity: "import", seq_no: item.and_then(|item| item.seq_no), errno: refusal.errno, message }
    };
    let failures = core::iter::once(&refusal).chain(&refusal.further).map(failure).collect();
    CommandError::several(task.operation, failures)
}

fn execute(daemon: &mut Daemon<'_>, document: Document) -> Result<()> {
    let mut result = Ok(());
    for item in document.items {
        if let Instruction::Ping(request) = item.action {
            result = ping::send(daemon, request).and(result);
        }
    }
    result
}

/// Shows what a document names, as far as it is there.
fn show(daemon: &mut Daemon<'_>, task: Task, document: &Document) -> Result<()> {
    let state = state(daemon, task, Some(document))?;
    let (mut shown, mut failures) = (document::Map::new(), Vec::new());
    for Item { position, seq_no, action, .. } in &document.items {
        let Instruction::Show(what) = action else { continue };
        match what.document(&state) {
            Ok(_) if *what == Shown::Statistics => {
                let statistics = daemon.ask(task, Client::statistics)?;
                document::join(&mut shown, document::statistics(&statistics));
            }
            Ok(more) => document::join(&mut shown, more),
            Err(refusal) => failures.push(Failure {
                entity: "import",
                seq_no: *seq_no,
                errno: refusal.errno,
                message: format!("{position}: {}", refusal.message),
            }),
        }
    }
    daemon.print(&shown);
    if failures.is_empty() { Ok(()) } else { Err(CommandError::several(task.operation, failures)) }
}

/// The mistakes of a document.
pub(super) fn document_errors(task: Task, errors: &[DocumentError]) -> CommandError {
    let failure = |error: &DocumentError| Failure {
        entity: task.entity,
        seq_no: error.seq_no,
        errno: error.errno,
        message: error.to_string(),
    };
    CommandError::several(task.operation, errors.iter().map(failure).collect())
}
