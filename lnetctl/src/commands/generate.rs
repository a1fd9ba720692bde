//! Files made from the command tree: completions and man pages.

use std::path::Path;

use clap_complete::Shell;
use clap_mangen::Man;
use lnet_model::Errno;

use super::Result;
use crate::failure::Task;
use crate::output::print_text;

/// Prints the completions of a tool.
pub(crate) fn completions(mut tool: clap::Command, shell: Shell) {
    // A reader that closes the pipe early wants no more: clap's generator would panic.
    let mut script = Vec::new();
    let name = tool.get_name().to_owned();
    clap_complete::generate(shell, &mut tool, name, &mut script);
    print_text(&String::from_utf8_lossy(&script));
}

/// Writes a page for a tool and one for each command, such as `lnetctl-net-add.8`: section 8 is that of
/// administration, where LNet's own page is.
pub(crate) fn man(tool: clap::Command, directory: &Path) -> Result<()> {
    let mut tool = tool.disable_help_subcommand(true);
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
