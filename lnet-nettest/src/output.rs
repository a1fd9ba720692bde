//! Lines to the standard streams, whose readers may have gone: a test goes on without them.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Prints what was measured.
///
/// # Errors
/// When it cannot be written, but for a reader that has gone.
pub(crate) fn tell(text: impl Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}

/// Prints a line of progress, or of what went wrong.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
