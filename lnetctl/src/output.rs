//! Text to the standard streams.

use std::fmt::Display;
use std::io;
use std::process::exit;

use lnet_control::output;
use lnet_model::pattern::acts;
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

/// A value as a line of JSON. What would act on a terminal can stand in texts alone, and is escaped there.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    let mut line = String::new();
    for one in serde_json::json!(value).to_string().chars() {
        match one {
            // All of these have numbers of four digits.
            one if acts(one) => line.push_str(&format!("\\u{:04x}", u32::from(one))),
            one => line.push(one),
        }
    }
    line + "\n"
}

/// Prints lines to stderr. Foreign text in them acts on no terminal.
pub(crate) fn eprint_text(text: &impl Display) {
    output::note_lines(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Foreign text is escaped in JSON too, and reads as it was.
    #[test]
    fn text_in_json_acts_on_no_terminal() {
        let text = "a\u{1b}[2J\u{9b}\u{202e}\u{7f}\n\u{e9}";
        let line = json_line(&text);
        assert!(!line.trim_end().contains(acts), "{line}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
