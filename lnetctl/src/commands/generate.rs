//! Files made from the command tree: completions and man pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use lnet_model::Errno;

use super::{Cli, Result};
use crate::failure::Task;
use crate::output::print_text;

pub(super) fn completions(shell: Shell) -> Result<()> {
    // A reader that closes the pipe early wants no more: clap's generator would panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lnetctl", &mut script);
    print_text(&String::from_utf8_lossy(&script));
    Ok(())
}

/// A page for the tool and one for each command, such as `lnetctl-net-add.8`: section 8 is that of
/// administration, where LNet's own page is.
pub(super) fn man(directory: &Path) -> Result<()> {
    let mut tool = Cli::command().disable_help_subcommand(true);
    tool.build();
    pages(&tool, directory).map_err(|error| {
        let message = format!("cannot write man pages to {}: {error}", directory.display());
        Task::new("add", "man").error(Errno::IO, message).failed()
    })
}

fn pages(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| pages(command, directory))?;
    Man::new(command.clone()).section("8").generate_to(directory).map(drop)
}
