//! Files made from the options: completions and the man page.

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;
use lnet_control::output;

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
        output::print(String::from_utf8_lossy(&script)).map(drop).context("stdout")
    })
}
