//! The command whose readers have gone, or whose output finds no room.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

use std::process::{Command, Output, Stdio};

fn lnetctl(argument: &[&str], stdout: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lnetctl"));
    command.args(argument).stdin(Stdio::null()).stdout(stdout).output().unwrap()
}

#[test]
fn a_command_whose_reader_has_gone_ends_quietly() {
    for arguments in [&["completions", "bash"][..], &["--help"], &["--version"], &["--list-commands"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = lnetctl(arguments, writer.into());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_stream_that_is_full_is_a_failure() {
    for arguments in [&["completions", "bash"][..], &["--help"], &["--version"], &["--list-commands"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = lnetctl(arguments, full.into());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(255) && said.starts_with("lnetctl: stdout: "), "{said}");
    }
}
