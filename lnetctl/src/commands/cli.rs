//! The tool's own words: names, options, help. Those of the commands stand with them.
//!
//! Invariants: names and short options are those of LNet's `lnetctl`; numbers are texts here and are checked
//! by the commands, which answer in its way.

use std::path::PathBuf;

use clap::{Args, Parser};
use lnet_control::document::Yaml;
use lnet_model::Errno;
use lnet_model::pattern::escaped;

use super::{Command, Result};
use crate::failure::Task;

/// Commands of LNet's tool that this one knows and cannot carry out, and what they are about.
const UNSUPPORTED: [(&str, &str); 3] = [
    ("service-id", "RDMA is not supported by this version"),
    (
        "setup-mrrouting",
        "NIs are bound to their interfaces and need no rules of routing: setting these is not supported by this version",
    ),
    ("setup-sysctl", "setting the system's variables is not supported by this version"),
];

/// What heads the options that each command takes, behind its own.
const OF_ALL: &str = "Options of all commands";

/// Configures, shows and exercises an LNet node.
///
/// Without a command it reads commands from standard input, one a line.
#[derive(Debug, Parser)]
#[command(name = "lnetctl", version, infer_long_args = true)]
#[command(after_help = "Examples:
  lnetctl lnet configure
  lnetctl net add --net xdp --if eth0 --mode native
  lnetctl ping 10.0.0.[1-4]@xdp
  lnetctl export --backup node.yaml
  lnetctl import --dry-run node.yaml")]
pub(crate) struct Cli {
    /// Control socket of the daemon [default: that of the only node there is; LNET_SOCKET overrides it]
    #[arg(long, global = true, value_name = "PATH", help_heading = OF_ALL)]
    pub(crate) socket: Option<PathBuf>,
    /// Name of the node whose daemon to talk to
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "socket", help_heading = OF_ALL)]
    pub(crate) node: Option<String>,
    /// Print what is shown as JSON
    #[arg(long, global = true, help_heading = OF_ALL)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// How much is shown.
#[derive(Debug, Args)]
pub(crate) struct Verbose {
    /// How much to show, 0 to 4; 1 if no number follows
    #[arg(long, short, num_args = 0..=1, default_missing_value = "1", value_name = "LEVEL")]
    verbose: Option<String>,
}

impl Verbose {
    /// The level; numbers beyond the greatest one mean that, as in LNet.
    pub(crate) fn level(&self, task: Task) -> Result<u8> {
        let Some(text) = &self.verbose else { return Ok(0) };
        let text = text.strip_prefix('=').unwrap_or(text);
        let level: i64 = task.number("verbose", text, 0..=i64::MAX)?;
        Ok(level.min(4) as u8)
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
            let error = Task::new("parser", entity).error(Errno::OPNOTSUPP, format!("'{path}': {what}"));
            Yaml(&error.document()).to_string()
        }
        None => {
            let word = escaped(word);
            format!("lnetctl: '{word}' is not a valid command. See 'lnetctl --list-commands'.\n")
        }
    }
}
