//! Lines to the standard streams.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use crate::failure::OTHER;

/// Prints a line to stdout. Where its reader has gone, the command is over: no more is wanted of it.
pub(crate) fn tell(line: impl Display) {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(0),
        Err(error) => {
            complain(format_args!("lst: stdout: {error}"));
            exit(OTHER.into());
        }
    }
}

/// Prints a line to stderr, if it has a reader.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
