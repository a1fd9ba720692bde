//! Commands from standard input, a line each.
//!
//! Invariants: there is a prompt only where it can be seen; where it cannot, the first command that fails
//! ends the run with its status, or, with `ignore_errors`, determines the status at the end.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Read};

use clap::CommandFactory;

use super::Session;
use crate::commands::{Cli, unknown_command};
use crate::failure::FAILED;
use crate::output::{eprint_text, print_text};

/// Most bytes of a command: as many as the kernel takes for one word of a program.
const LINE_BYTES_MAX: usize = 128 << 10;
/// Words that stand in place of a command.
const GLOBAL_WORDS: [&str; 6] = ["help", "version", "list-commands", "quit", "exit", "ignore_errors"];

/// Reads and carries out commands until the input ends; returns the status.
pub(super) fn run(session: &mut Session) -> u8 {
    let stdin = io::stdin();
    let is_terminal = stdin.is_terminal();
    let mut first_failure = 0;
    loop {
        if is_terminal {
            print_text(&"> ");
        }
        let line = match read_line(&mut stdin.lock()) {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                eprint_text(&format!("lnetctl: cannot read commands: {error}\n"));
                return FAILED;
            }
        };
        let status = carry_out(session, &line);
        if session.quits {
            break;
        }
        if status != 0 && !is_terminal {
            if first_failure == 0 {
                first_failure = status;
            }
            if !session.ignores_errors {
                break;
            }
        }
    }
    first_failure
}

/// The next line, of at most so many bytes as a line may have.
fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let length = input.take(LINE_BYTES_MAX as u64 + 1).read_line(&mut line)?;
    if length > LINE_BYTES_MAX {
        let message = format!("a line of more than {LINE_BYTES_MAX} bytes: a command is expected");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok((length != 0).then_some(line))
}

fn carry_out(session: &mut Session, line: &str) -> u8 {
    let mut words = line.split_ascii_whitespace();
    let Some(first) = words.next().filter(|word| !word.starts_with('#')) else { return 0 };
    let command = match completed(first) {
        Ok(command) => command,
        Err(message) => {
            eprint_text(&message);
            return FAILED;
        }
    };
    let words: Vec<_> = [OsString::from(command)].into_iter().chain(words.map(OsString::from)).collect();
    session.run(&words)
}

/// The command that this word is, or is the beginning of.
fn completed(word: &str) -> Result<String, String> {
    let lower = word.to_lowercase();
    let cli = Cli::command();
    let commands = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<_> = commands.map(clap::Command::get_name).chain(GLOBAL_WORDS).collect();
    if word.starts_with('-') || names.contains(&lower.as_str()) {
        return Ok(lower);
    }
    let fitting: Vec<_> = names.into_iter().filter(|name| name.starts_with(&lower)).collect();
    match fitting.as_slice() {
        [] => Err(unknown_command(&lower, &lower)),
        [one] => Ok((*one).to_owned()),
        several => Err(format!("lnetctl: '{word}' may be {}\n", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_may_be_shortened() {
        let check = |word, expected: &str| assert_eq!(completed(word), Ok(expected.to_owned()));
        check("net", "net");
        check("NET", "net");
        check("pi", "ping");
        check("exi", "exit");
        check("--version", "--version");
        assert!(completed("e").unwrap_err().contains("may be explain, export, exit"));
        assert!(completed("frob").unwrap_err().contains("not a valid command"));
        check("route", "route");
        assert!(completed("rout").unwrap_err().contains("may be route, routing"));
        assert!(completed("setup-mrrouting").unwrap_err().contains("not supported by this version"));
    }
}
