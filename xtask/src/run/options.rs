//! The options of `cargo xtask run`, and what they may be.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

/// The largest payload of a Put of the load program, in bytes.
pub(crate) const PUT_MAX_BYTES: u32 = 1 << 14;

/// How the XDP program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// In the driver if it can, else generic.
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's generic receive path (SKB mode).
    Generic,
}

impl Mode {
    /// As the load program takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// What `cargo xtask run` takes.
#[derive(Clone, Debug, Serialize, Args)]
pub(crate) struct Options {
    /// Number of Puts
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    pub(crate) count: u64,

    /// Payload of each Put, at most 16384 [default: every size from 0 to that]
    #[arg(long, value_name = "BYTES")]
    pub(crate) size: Option<u32>,

    /// MTU of the veth pair
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    pub(crate) mtu: u16,

    /// How the XDP programs are attached
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    pub(crate) mode: Mode,

    /// Log the frames that XDP refuses
    #[arg(long)]
    pub(crate) log: bool,

    /// Leave the namespaces and a target node up, and say what to try
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print the whole result as one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// How long the Puts may take in all [default: 60 and 1 more per 500 Puts]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,

    /// Use this load program and build nothing
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) load_program: Option<PathBuf>,
}

impl Options {
    /// A run of `count` Puts, all else as by default.
    pub(crate) fn with_count(count: u64) -> Self {
        Self {
            count,
            size: None,
            mtu: 1500,
            mode: Mode::Auto,
            log: false,
            keep: false,
            json: false,
            timeout: None,
            load_program: None,
        }
    }

    /// Checks what the options must be to each other.
    ///
    /// # Errors
    /// Says which value is wrong and what it may be.
    pub(crate) fn check(&self) -> Result<()> {
        let size = self.size.unwrap_or(PUT_MAX_BYTES);
        ensure!(size <= PUT_MAX_BYTES, "--size {size}: a Put has at most {PUT_MAX_BYTES} bytes of payload");
        Ok(())
    }

    /// How long the Puts may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(60 + self.count / 500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    /// What `arguments` end in: `""`, or an error that contains `expected`.
    fn check(arguments: &str, expected: &str) {
        let words = std::iter::once("run").chain(arguments.split_whitespace());
        let error = match Cli::try_parse_from(words) {
            Ok(cli) => cli.options.check().err().map(|error| error.to_string()),
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
        check("--count 1 --size 1 --mtu 1280 --mode generic --log --keep --json --timeout 5", "");
        check("--count 0", "--count");
        check("--count many", "--count");
        check("--count 268435456", "");
        check("--count 268435457", "--count");
        check("--size 0", "");
        check("--size 16384", "");
        check("--mtu 65535 --size 16385", "at most 16384 bytes");
        check("--mtu 1279", "1280..");
        check("--mtu 65536", "65535");
        check("--mode fast", "auto, native, generic");
        check("--timeout 0", "--timeout");
    }

    #[test]
    fn a_short_run_has_the_defaults_of_the_command_line() {
        let cli = Cli::try_parse_from(["run", "--count", "20000"]).unwrap();
        let [ours, parsed] = [Options::with_count(20_000), cli.options].map(|one| format!("{one:?}"));
        assert_eq!(ours, parsed);
    }
}
