//! Files made from the command tree: completions and man pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use lnet_control::Errno;

use super::Result;
use crate::cli::Cli;
use crate::failure::Task;
use crate::session::print_text;

pub(super) fn completions(shell: Shell) -> Result<()> {
    // A reader that closes the pipe early wants no more: clap's generator would panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lnetctl", &mut script);
    print_text(&String::from_utf8_lossy(&script));
    Ok(())
}

/// A page for the tool and one for each command, such as `lnetctl-net-add.1`.
pub(super) fn man(directory: &Path) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), directory).map_err(|error| {
        let message = format!("cannot write man pages to {}: {error}", directory.display());
        Task::new("add", "man").error(Errno::IO, message).failed()
    })
}
