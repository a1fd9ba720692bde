//! Text to the standard streams.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use serde::Serialize;

use crate::failure::FAILED;

/// Prints to stdout. A reader that closed it does not want the rest; where the rest is lost otherwise (a full
/// file system), the command has failed.
pub(crate) fn print_text(text: &impl Display) {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprint_text(&format_args!("lnetctl: stdout: {error}\n"));
            exit(FAILED.into());
        }
        _ => {}
    }
}

/// A value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::json!(value))
}

/// Prints to stderr.
pub(crate) fn eprint_text(text: &impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}
