//! The command line: the words and options of the reference's `lst`.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_mangen::Man;
use lnet_model::records::{SelftestCommand, SelftestState, SelftestTest};

use crate::output::tell;

const EXAMPLES: &str = "\
Examples:
  export LST_SESSION=$$
  lst new_session --timeout 60 first
  lst add_group clients 10.0.0.[1-4]@tcp
  lst add_group servers 10.0.0.9@tcp
  lst add_batch bulk
  lst add_test --batch bulk --concurrency 8 --loop 1000000 --from clients --to servers brw write check=full size=1M
  lst run bulk
  lst stat --count 3 --delay 5 clients servers
  lst show_error clients servers
  lst stop bulk
  lst end_session

The daemon has the session (lnetd --selftest); the tested nodes are such daemons, and kernel nodes with lnet_selftest.";

/// The console of LNet selftest.
#[derive(Parser, Debug)]
#[command(version, about, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The node whose console it is: its control socket is NAME.sock in /run/lnet or $XDG_RUNTIME_DIR/lnet
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) node: Option<String>,
    /// The control socket, instead of the name's
    #[arg(long, value_name = "PATH", global = true, conflicts_with = "node")]
    pub(crate) socket: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Names of groups, or NIDs.
const TARGETS: &str = "GROUP|NIDS";

#[derive(Subcommand, Debug)]
#[command(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Begin a session
    NewSession {
        /// Seconds within which a node is to answer, else it counts as down: what is not from 3 to 30 is cut
        #[arg(long, short, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
        timeout: u32,
        /// End a session that is there, here and at nodes
        #[arg(long, short)]
        force: bool,
        /// Feature bits: 1 for lengths in bytes, 0 for nodes that know pages alone [default: LST_FEATURES or
        /// 1]
        #[arg(long)]
        feats: Option<u32>,
        /// Its name, up to 31 bytes; without, the user's and the host's
        name: Option<String>,
    },
    /// End the session, here and at its nodes
    EndSession,
    /// Show the session
    ShowSession,
    /// Make a group of nodes, which join the session
    AddGroup {
        /// Its name
        name: String,
        /// NIDs, such as 10.0.0.1@tcp or 10.0.0.[1-4]@tcp
        #[arg(required = true)]
        nids: Vec<String>,
    },
    /// Take nodes out of a group, or ask those again that are not active
    UpdateGroup {
        /// Ask nodes again that are not active
        #[arg(long)]
        refresh: bool,
        /// Take nodes out that are in these states: busy, down, unknown, active, or invalid for all but
        /// active
        #[arg(long, value_delimiter = ',', value_name = "STATES")]
        clean: Vec<States>,
        /// Take these nodes out
        #[arg(long, value_name = "NIDS")]
        remove: Option<String>,
        /// Its name
        name: String,
    },
    /// Delete a group that no test uses
    DelGroup {
        /// Its name
        name: String,
    },
    /// List groups, or the nodes of some
    ListGroup {
        /// Nodes that are active
        #[arg(long, short)]
        active: bool,
        /// Nodes that are in another session
        #[arg(long, short)]
        busy: bool,
        /// Nodes that did not answer
        #[arg(long, short)]
        down: bool,
        /// Nodes that were not asked yet
        #[arg(long, short)]
        unknown: bool,
        /// All nodes
        #[arg(long, short = 'l')]
        all: bool,
        /// Names of groups
        names: Vec<String>,
    },
    /// Make a batch
    AddBatch {
        /// Its name
        name: String,
    },
    /// Add a test to a batch
    AddTest(AddTest),
    /// Start a batch
    Run {
        #[command(flatten)]
        patience: Patience,
        /// Its name
        #[arg(default_value = "batch")]
        batch: String,
    },
    /// Stop a batch
    Stop {
        /// Cut off what is under way
        #[arg(long, short)]
        force: bool,
        /// Its name
        #[arg(default_value = "batch")]
        batch: String,
    },
    /// List batches, or the tests of some, or nodes of these
    ListBatch(ListBatch),
    /// Show what of a batch is active
    Query(Query),
    /// Ask nodes for their session
    Ping(Ping),
    /// Show rates and bandwidth of nodes
    Stat(Stat),
    /// Show the nodes that have counted errors
    ShowError {
        /// Errors of the session's tests alone, without those of requests
        #[arg(long)]
        session: bool,
        #[arg(value_name = TARGETS, required = true)]
        targets: Vec<String>,
    },
    /// Write the man page to a directory
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Print completions for a shell
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
}

/// States of nodes by one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum States {
    Busy,
    Down,
    Unknown,
    Active,
    Invalid,
}

impl States {
    pub(crate) const fn states(&self) -> &'static [SelftestState] {
        use SelftestState::{Active, Busy, Down, Unknown};
        match self {
            Self::Busy => &[Busy],
            Self::Down => &[Down],
            Self::Unknown => &[Unknown],
            Self::Active => &[Active],
            Self::Invalid => &[Busy, Down, Unknown],
        }
    }
}

/// How long nodes may take to answer.
#[derive(Args, Debug)]
pub(crate) struct Patience {
    /// Seconds within which a node is to answer, else it counts as down: from 3 to 30 [default: the
    /// session's]
    #[arg(long, short = 'o', value_parser = clap::value_parser!(u32).range(3..=30))]
    pub(crate) timeout: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct Query {
    /// The number of a test, from 1; 0 for the batch
    #[arg(long, short, default_value_t = 0)]
    pub(crate) test: u32,
    /// Each node
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// The nodes on which it is active
    #[arg(long, short)]
    pub(crate) active: bool,
    /// The nodes on which it is not
    #[arg(long, short)]
    pub(crate) idle: bool,
    /// The nodes that did not answer
    #[arg(long, short)]
    pub(crate) error: bool,
    /// Ask its servers instead of its clients
    #[arg(long, short)]
    pub(crate) server: bool,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// How often it is asked
    #[arg(long = "loop", short = 'c', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) loop_count: u32,
    /// Seconds in between
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) delay: u32,
    /// Its name
    #[arg(default_value = "batch")]
    pub(crate) batch: String,
}

#[derive(Args, Debug)]
pub(crate) struct ListBatch {
    /// The number of a test, from 1: this one alone
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) test: Option<u32>,
    /// The nodes that are active
    #[arg(long, short)]
    pub(crate) active: bool,
    /// The nodes that are not
    #[arg(long, short)]
    pub(crate) invalid: bool,
    /// All nodes
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// The servers instead of the clients, where nodes are listed
    #[arg(long, short)]
    pub(crate) server: bool,
    /// The name of a batch; without, all of them
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Ping {
    /// All nodes of the session, as without a target
    #[arg(long, short, conflicts_with_all = ["targets", "group", "nodes", "batch"])]
    session: bool,
    /// The nodes of a group
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// The nodes with these NIDs
    #[arg(long, short, value_name = "NIDS")]
    pub(crate) nodes: Option<String>,
    /// The clients of a batch
    #[arg(long, short, value_name = "NAME")]
    pub(crate) batch: Option<String>,
    /// The servers of the batch instead
    #[arg(long, short = 'v', requires = "batch")]
    pub(crate) server: bool,
    /// Seconds within which a node is to answer, else it counts as down: from 3 to 30 [default: the
    /// session's]
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(3..=30))]
    pub(crate) timeout: Option<u32>,
    #[arg(value_name = TARGETS)]
    pub(crate) targets: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct AddTest {
    /// The batch
    #[arg(long, short, default_value = "batch")]
    batch: String,
    /// How often each unit does it; -1 for without end
    #[arg(long = "loop", short, default_value_t = -1, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1..))]
    loop_count: i32,
    /// Units of a client for each destination, up to 1024
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// M:N has each M clients send to the same N servers
    #[arg(long, short, default_value = "1:1", value_name = "M:N")]
    distribute: String,
    /// A unit ends with its first error
    #[arg(long)]
    stop_on_error: bool,
    /// The group of the clients
    #[arg(long, short)]
    from: String,
    /// The group of the servers
    #[arg(long, short)]
    to: String,
    /// ping, or brw [read|write] [check=none|simple|full|discard] [size=4K] [off=0], and skip_rx_copy, which
    /// is check=discard
    #[arg(required = true, num_args = 1.., value_name = "TEST")]
    test: Vec<String>,
}

impl AddTest {
    pub(crate) fn command(&self) -> Result<SelftestCommand> {
        let (distribute, span) = self
            .distribute
            .split_once(':')
            .and_then(|(clients, servers)| Some((clients.parse().ok()?, servers.parse().ok()?)))
            .filter(|(clients, servers)| (1..=1024).contains(clients) && (1..=1024).contains(servers))
            .with_context(|| {
                format!("--distribute {}: M:N is expected, each from 1 to 1024", self.distribute)
            })?;
        let words: Vec<&str> = self.test.iter().map(String::as_str).collect();
        Ok(SelftestCommand::AddTest {
            batch: self.batch.clone(),
            // Without end is as often as there are numbers.
            loop_count: self.loop_count.cast_unsigned(),
            concurrency: self.concurrency,
            distribute,
            span,
            stops_on_error: self.stop_on_error,
            from: self.from.clone(),
            to: self.to.clone(),
            test: test(&words)?,
        })
    }
}

/// A test by its words.
fn test(words: &[&str]) -> Result<SelftestTest> {
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let (first, words) = words.split_first().context("ping or brw is expected")?;
    match first.as_str() {
        // The reference takes the words of brw here, too, and does nothing with them.
        "ping" => Ok(SelftestTest::Ping),
        "brw" => brw(words),
        other => bail!("unknown test {other}: ping or brw is expected"),
    }
}

fn brw(words: &[String]) -> Result<SelftestTest> {
    let (mut is_write, mut check, mut length_bytes, mut offset_bytes) = (false, None, 4096, 0);
    let mut skips_copy = false;
    for word in words {
        match word.split_once('=') {
            Some(("check" | "c", value)) => {
                check = Some(match value {
                    "none" => 1,
                    "simple" => 2,
                    "full" => 3,
                    "discard" => 4,
                    _ => bail!("check={value}: none, simple, full or discard is expected"),
                });
            }
            Some(("size" | "s", value)) => {
                length_bytes = bytes(value).ok_or_else(|| anyhow!("size={value}: bytes, as 4K or 1M"))?;
            }
            Some(("off", value)) => {
                offset_bytes = bytes(value).ok_or_else(|| anyhow!("off={value}: bytes, as 8 or 1K"))?;
            }
            None if word == "read" || word == "r" => is_write = false,
            None if word == "write" || word == "w" => is_write = true,
            None if word == "skip_rx_copy" || word == "skip-rx-copy" => skips_copy = true,
            _ => bail!("{word}: read, write, check=, size=, off= or skip_rx_copy is expected"),
        }
    }
    if skips_copy && check.is_some() {
        bail!("skip_rx_copy conflicts with check=");
    }
    // Words that are not copied are not looked at.
    let check = check.unwrap_or(if skips_copy { 4 } else { 1 });
    Ok(SelftestTest::Brw { is_write, check, length_bytes, offset_bytes })
}

/// A number of bytes, with K or M behind.
fn bytes(text: &str) -> Option<u32> {
    let (digits, shift) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 0), |digits| (digits, 20)),
    };
    digits.parse::<u32>().ok()?.checked_mul(1 << shift)
}

#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// Bandwidth alone
    #[arg(long)]
    pub(crate) bw: bool,
    /// Rates alone
    #[arg(long)]
    pub(crate) rate: bool,
    /// What the nodes send, which others read, alone
    #[arg(long)]
    pub(crate) read: bool,
    /// What the nodes receive, which others write, alone
    #[arg(long)]
    pub(crate) write: bool,
    /// The largest alone
    #[arg(long)]
    pub(crate) max: bool,
    /// The smallest alone
    #[arg(long)]
    pub(crate) min: bool,
    /// The average alone
    #[arg(long)]
    pub(crate) avg: bool,
    /// Counters of LNet, as without
    #[arg(long)]
    pub(crate) lnet: bool,
    /// No counters of LNet; those of requests are shown by show_error
    #[arg(long)]
    pub(crate) rpc: bool,
    /// Megabytes of a million bytes
    #[arg(long)]
    pub(crate) mbs: bool,
    /// Seconds between two samples
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) delay: u32,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Samples; without, until it is interrupted
    #[arg(long)]
    pub(crate) count: Option<u32>,
    #[arg(value_name = TARGETS, required = true)]
    pub(crate) targets: Vec<String>,
}

/// Makes what was asked for; `None` if nothing was.
pub(crate) fn generate(command: &Command) -> Option<Result<()>> {
    match command {
        Command::Man { directory } => {
            let written = Man::new(Options::command()).section("8").generate_to(directory).map(drop);
            let cannot = || format!("cannot write the man page to {}", directory.display());
            Some(written.with_context(cannot))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Options::command(), "lst", &mut script);
            tell(String::from_utf8_lossy(&script).trim_end());
            Some(Ok(()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn tests_are_read_from_their_words() {
        let brw = |is_write, check, length_bytes, offset_bytes| SelftestTest::Brw {
            is_write,
            check,
            length_bytes,
            offset_bytes,
        };
        assert_eq!(test(&["ping"]).unwrap(), SelftestTest::Ping);
        assert_eq!(test(&["brw", "read"]).unwrap(), brw(false, 1, 4096, 0));
        let words = ["brw", "w", "check=full", "size=1M", "off=8"];
        assert_eq!(test(&words).unwrap(), brw(true, 3, 1 << 20, 8));
        assert_eq!(test(&["brw"]).unwrap(), brw(false, 1, 4096, 0));
        assert_eq!(test(&["brw", "WRITE", "size=16k"]).unwrap(), brw(true, 1, 16384, 0));
        assert_eq!(test(&["brw", "s=8K", "write", "c=simple"]).unwrap(), brw(true, 2, 8192, 0));
        for word in ["skip_rx_copy", "skip-rx-copy"] {
            assert_eq!(test(&["brw", "read", word]).unwrap(), brw(false, 4, 4096, 0));
        }
        assert_eq!(test(&["ping", "size=8"]).unwrap(), SelftestTest::Ping);
        for words in [
            &["pong"][..],
            &["brw", "skip_rx_copy", "check=full"],
            &["brw", "both"],
            &["brw", "read", "check=half"],
            &["brw", "read", "size=9G"],
        ] {
            assert!(test(words).is_err(), "{words:?}");
        }
    }
}
