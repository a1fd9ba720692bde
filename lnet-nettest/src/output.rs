//! Lines to the standard streams, whose readers may have gone: a test goes on without them.

use std::fmt::Display;

use anyhow::{Context, Result};
use lnet_control::output;
use lnet_model::pattern::escaped;

/// Prints what was measured.
///
/// # Errors
/// When it cannot be written, but for a reader that has gone.
pub(crate) fn tell(text: impl Display) -> Result<()> {
    output::print(format_args!("{text}\n")).map(drop).context("stdout")
}

/// Prints lines of progress, or of what went wrong. What other nodes have said acts on no terminal.
pub(crate) fn note(text: impl Display) {
    let text = text.to_string();
    text.lines().for_each(|line| output::note(format_args!("{}\n", escaped(line))));
}
