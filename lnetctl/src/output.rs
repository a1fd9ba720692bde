//! Text to the standard streams.

use std::fmt::Display;
use std::io;
use std::process::exit;

use lnet_control::output;
use serde::Serialize;

use crate::failure::FAILED;

/// Prints to stdout. A reader that closed it does not want the rest; where the rest is lost otherwise (a full
/// file system), the command has failed.
pub(crate) fn print_text(text: &impl Display) {
    checked(output::print(text).map(drop));
}

/// Prints to stdout what is to last, and has it put on disk where stdout is a file.
pub(crate) fn print_lasting(text: &impl Display) {
    print_text(text);
    checked(output::settle());
}

fn checked(written: io::Result<()>) {
    if let Err(error) = written {
        eprint_text(&format_args!("lnetctl: stdout: {error}\n"));
        exit(FAILED.into());
    }
}

/// A value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    format!("{}\n", serde_json::json!(value))
}

/// Prints to stderr.
pub(crate) fn eprint_text(text: &impl Display) {
    output::note(text);
}
