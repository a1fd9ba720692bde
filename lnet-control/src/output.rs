//! Text to the standard streams, for all programs.
//!
//! Invariants: what is written has left the program when a call returns, and a failure is told; a reader that
//! has gone wants no more and is no failure.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use lnet_model::pattern::escaped;

/// Fate of a text that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The stream has taken it.
    Whole,
    /// The reader of the stream has gone.
    Unread,
}

/// Writes to stdout.
///
/// # Errors
/// The system's, such as that of a full file system.
pub fn print(text: impl Display) -> io::Result<Written> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::Unread),
        Err(error) => Err(error),
    }
}

/// Writes to stderr, if it has a reader.
pub fn note(text: impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}

/// Prints lines to stderr, if it has a reader. Foreign text in them acts on no terminal.
pub fn note_lines(text: impl Display) {
    text.to_string().lines().for_each(|line| note(format_args!("{}\n", escaped(line))));
}

/// Has a file that stdout is put on its disk: some file systems tell only then that they are full.
///
/// # Errors
/// The system's.
pub fn settle() -> io::Result<()> {
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    if stdout.metadata()?.is_file() { stdout.sync_data() } else { Ok(()) }
}
