//! The options of `cargo xtask run`, and what they may be.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use serde::Serialize;

/// The longest message of LNet, in bytes.
const MESSAGE_BYTES_MAX: i64 = 1 << 20;
/// Loss beyond which nothing would come through in time.
const LOSS_MAX_PER_MILLION: u32 = 200_000;

/// How frames reach the shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The first of the others that works
    Auto,
    /// XDP in the driver
    Native,
    /// XDP in the kernel's generic receive path (SKB mode)
    Generic,
    /// UDP sockets, without XDP
    Socket,
}

impl Mode {
    /// The mode's name in documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Socket => "socket",
        }
    }
}

/// What `cargo xtask run` takes.
#[derive(Clone, Debug, Serialize, Parser)]
// The last word counts, so that a run can be begun anew with other ones behind.
#[command(args_override_self = true)]
#[command(after_help = "Examples:
  cargo xtask run
  cargo xtask run --count 1000000 --size 64
  cargo xtask run --loss 1 --plot latency.svg
  cargo xtask run --mode socket --keep")]
pub(crate) struct Options {
    /// Number of messages, half of them Puts, half Gets
    #[arg(long, visible_alias = "messages", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    pub(crate) count: u64,

    /// Payload of each message, at most 1048576 [default: 0 to that, most of them short]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=MESSAGE_BYTES_MAX))]
    pub(crate) size: Option<u32>,

    /// What all payloads and choices follow from
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 63))]
    pub(crate) seed: u64,

    /// Frames that XDP drops at either end, in percent, such as 0.5
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub(crate) loss: f64,

    /// MTU of the veth pairs
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    pub(crate) mtu: u16,

    /// How frames reach the shards; without root only `socket` can be had
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    pub(crate) mode: Mode,

    /// Leave the namespaces and the daemons up, and say what to try
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print the whole result as one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Also draw the latencies of each size
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// How long the messages may take in all [default: 60 and 1 more per 500 messages]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,

    /// Take lnetd, lnetctl and the XDP program from this directory and build nothing
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) programs: Option<PathBuf>,
}

impl Options {
    /// A run of `count` messages, all else as by default.
    pub(crate) fn with_count(count: u64) -> Self {
        Self::parse_from(["run", &format!("--count={count}")])
    }

    /// Checks what the options must be to each other.
    ///
    /// # Errors
    /// Says which value is wrong and what it may be.
    pub(crate) fn check(&self) -> Result<()> {
        let most = f64::from(LOSS_MAX_PER_MILLION) / 1e4;
        ensure!((0.0..=most).contains(&self.loss), "--loss {}: 0 to {most} percent are expected", self.loss);
        ensure!(
            self.loss_per_million() == 0 || self.mode != Mode::Socket,
            "--loss {}: it is XDP that drops frames, and mode socket has none",
            self.loss
        );
        Ok(())
    }

    /// Frames of a million that XDP is to drop.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 20 percent, as checked"
    )]
    pub(crate) fn loss_per_million(&self) -> u32 {
        (self.loss * 1e4).round() as u32
    }

    /// How long the messages may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(60 + self.count / 500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn parse(arguments: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once("run").chain(arguments.split_whitespace()))
    }

    /// What `arguments` end in: `""`, or an error that contains `expected`.
    fn check(arguments: &str, expected: &str) {
        let error = match parse(arguments) {
            Ok(options) => options.check().err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        match error {
            None => assert_eq!(expected, "", "{arguments} was taken"),
            Some(error) => {
                assert!(!expected.is_empty() && error.contains(expected), "{arguments}: {error}");
            }
        }
    }

    #[test]
    fn options_out_of_range_are_refused_with_their_limits() {
        check("", "");
        check("--count 1 --size 1 --mtu 1280 --mode generic --keep --json --timeout 5 --plot x.svg", "");
        check("--count 0", "--count");
        check("--count many", "--count");
        check("--messages 268435456", "");
        check("--count 268435457", "--count");
        check("--size 0", "");
        check("--size 1048576", "");
        check("--size 1048577", "1048576");
        check("--mtu 1279", "1280..");
        check("--mtu 65536", "65535");
        check("--mode fast", "auto, native, generic, socket");
        check("--timeout 0", "--timeout");
        check("--loss 0.5", "");
        check("--loss 20", "");
        check("--loss 20.1", "0 to 20 percent");
        check("--loss=-1", "0 to 20 percent");
        check("--loss NaN", "0 to 20 percent");
        check("--loss 1 --mode socket", "mode socket has none");
    }

    #[test]
    fn loss_is_counted_in_millionths() {
        assert_eq!(parse("--loss 0.5").unwrap().loss_per_million(), 5000);
        assert_eq!(parse("--loss 0.29").unwrap().loss_per_million(), 2900);
    }

    #[test]
    fn the_last_word_counts() {
        let options = parse("--mode auto --keep --programs here --mode=socket --programs there").unwrap();
        assert_eq!((options.mode, options.keep), (Mode::Socket, true));
        assert_eq!(options.programs, Some("there".into()));
    }

    #[test]
    fn a_short_run_has_the_defaults_of_the_command_line() {
        let parsed = parse("--count 20000").unwrap();
        let [ours, parsed] = [Options::with_count(20_000), parsed].map(|one| format!("{one:?}"));
        assert_eq!(ours, parsed);
    }
}
