//! Text to the standard streams.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

/// Prints to stdout. A reader that closed it does not want the rest.
pub(crate) fn print_text(text: &impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// A value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::json!(value))
}

/// Prints to stderr.
pub(crate) fn eprint_text(text: &impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}
