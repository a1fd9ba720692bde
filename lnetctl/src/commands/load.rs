//! The commands `load` and `frames`: what only this node has.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use lnet_control::document;
use lnet_control::pattern;
use lnet_control::protocol::REQUEST_BYTES_MAX;
use lnet_control::records::{LoadRecord, LoadSpec};
use serde_json::{Map, Value, json};

use super::Result;
use crate::cli::{LoadArgs, LoadRoleCommand};
use crate::failure::Task;
use crate::session::{Daemon, eprint_text, print_text};

/// How often a load that is waited for is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// A plan is smaller.
const PLAN_BYTES_MAX: u64 = REQUEST_BYTES_MAX as u64 / 2;
/// Messages of a load, unless it says how many.
const MESSAGES: i64 = 100_000;
const WINDOW: i64 = 64;
const TIMEOUT_MS: i64 = 60_000;

pub(super) fn frames(daemon: &mut Daemon<'_>, as_json: bool) -> Result<()> {
    let task = Task::new("show", "frames");
    let frames = daemon.client(task)?.frames().map_err(task.refused())?;
    if as_json {
        print_text(&format!("{}\n", json!(frames)));
    } else {
        print_text(&document::frames(&frames));
    }
    Ok(())
}

pub(super) fn show(daemon: &mut Daemon<'_>, as_json: bool) -> Result<()> {
    let task = Task::new("show", "load");
    let loads = daemon.client(task)?.loads().map_err(task.refused())?;
    print(&loads, as_json);
    Ok(())
}

pub(super) fn start(daemon: &mut Daemon<'_>, role: &LoadRoleCommand) -> Result<()> {
    let task = Task::new("add", "load");
    let spec = match role {
        LoadRoleCommand::Target { args } => LoadSpec::Target(scheme(task, args)?),
        LoadRoleCommand::Initiator { args, to, messages, window, timeout_ms, no_ack } => {
            let scheme = scheme(task, args)?;
            let nids = pattern::nids(to).map_err(task.pattern())?;
            let targets: Vec<String> = nids.iter().map(ToString::to_string).collect();
            let number = |name, text: &Option<String>, range| task.optional(name, text.as_ref(), range);
            LoadSpec::Initiator(json!({
                "scheme": scheme,
                "targets": targets,
                "messages": number("messages", messages, 0..=i64::MAX)?.unwrap_or(MESSAGES),
                "window": number("window", window, 1..=4096)?.unwrap_or(WINDOW),
                "timeout_ms": number("timeout-ms", timeout_ms, 1..=86_400_000)?.unwrap_or(TIMEOUT_MS),
                "ack": !no_ack,
            }))
        }
    };
    let id = daemon.client(task)?.start_load(spec).map_err(task.refused())?;
    print_text(&format!("{id}\n"));
    Ok(())
}

pub(super) fn stop(daemon: &mut Daemon<'_>, id: &str, as_json: bool) -> Result<()> {
    let task = Task::new("del", "load");
    let id = load_id(task, id)?;
    let load = daemon.client(task)?.stop_load(id).map_err(task.refused())?;
    print(&[load], as_json);
    Ok(())
}

/// Waits until a load has ended, and says what it became.
pub(super) fn wait(daemon: &mut Daemon<'_>, id: &str, as_json: bool, progress: bool) -> Result<()> {
    let task = Task::new("show", "load");
    let id = load_id(task, id)?;
    let shows = progress || std::io::stderr().is_terminal();
    let mut shown = None;
    loop {
        let loads = daemon.client(task)?.loads().map_err(task.refused())?;
        let Some(load) = loads.into_iter().find(|load| load.id == id) else {
            return Err(task.error(lnet_control::Errno::NOENT, format!("there is no load {id}")));
        };
        if shows && shown != Some(load.messages_done) {
            shown = Some(load.messages_done);
            let total = load.messages_total.map_or_else(|| "?".to_owned(), |total| total.to_string());
            let line = format!("{} of {total} messages", load.messages_done);
            eprint_text(&if progress { format!("{line}\n") } else { format!("\r{line}") });
        }
        if !load.is_running {
            if shows && !progress {
                eprint_text(&"\n");
            }
            print(&[load], as_json);
            return Ok(());
        }
        sleep(INTERVAL);
    }
}

fn print(loads: &[LoadRecord], as_json: bool) {
    if as_json {
        print_text(&format!("{}\n", json!(loads)));
    } else {
        print_text(&document::loads(loads));
    }
}

fn load_id(task: Task, text: &str) -> Result<u32> {
    Ok(task.number("id", text, 0..=i64::from(u32::MAX))? as u32)
}

/// The scheme that the words, or a file, describe. What it may hold is the load service's to say.
fn scheme(task: Task, args: &LoadArgs) -> Result<Value> {
    let mut scheme = match &args.scheme {
        Some(path) => read(task, path)?,
        None => Map::new(),
    };
    if let Some(seed) = task.optional("seed", args.seed.as_ref(), 0..=i64::MAX)? {
        scheme.insert("seed".to_owned(), json!(seed));
    }
    if let Some(percent) = task.optional("puts-percent", args.puts_percent.as_ref(), 0..=100)? {
        scheme.insert("puts_percent".to_owned(), json!(percent));
    }
    Ok(Value::Object(scheme))
}

fn read(task: Task, path: &Path) -> Result<Map<String, Value>> {
    let shown = path.display();
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| task.invalid(format!("{shown}: {error}")))?;
    let read = file.take(PLAN_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| task.invalid(format!("{shown}: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| task.invalid(format!("{shown}: {error}; a JSON object is expected")))
}
