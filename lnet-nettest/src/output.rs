//! Lines to the standard streams, whose readers may have gone: a test goes on without them.

use std::fmt::Display;

use anyhow::{Context, Result};
use lnet_control::output;

pub(crate) use lnet_control::output::note_lines as note;

/// Prints what was measured.
///
/// # Errors
/// When it cannot be written, but for a reader that has gone.
pub(crate) fn tell(text: impl Display) -> Result<()> {
    output::print(format_args!("{text}\n")).map(drop).context("stdout")
}
