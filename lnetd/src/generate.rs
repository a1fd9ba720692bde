//! Files made from the options: completions and the man page.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

use crate::options::Options;

/// Makes what was asked for; `None` if nothing was.
pub(crate) fn generate(options: &Options) -> Option<Result<()>> {
    if let Some(directory) = &options.generate_man {
        // Section 8 is that of daemons.
        let written = Man::new(Options::command()).section("8").generate_to(directory).map(drop);
        let cannot = || format!("cannot write the man page to {}", directory.display());
        return Some(written.with_context(cannot));
    }
    options.generate_completions.map(|shell| {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Options::command(), "lnetd", &mut script);
        match std::io::stdout().write_all(&script) {
            // A reader that has gone wants no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.context("writing the completions"),
        }
    })
}
