//! The command whose readers have gone.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

use std::process::{Command, Stdio};

/// A pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn lst(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lst"));
    command.args(arguments).env_remove("LST_SESSION");
    command
}

#[test]
fn a_command_whose_reader_has_gone_ends_quietly() {
    let output = lst(&["completions", "bash"]).stdout(unread()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn a_stream_that_is_full_is_a_failure() {
    for arguments in [&["completions", "bash"][..], &["--help"], &["--version"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = lst(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(255) && said.starts_with("lst: stdout: "),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_failure_that_cannot_be_told_keeps_its_status() {
    let output = lst(&["show_session"]).stderr(unread()).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
}
