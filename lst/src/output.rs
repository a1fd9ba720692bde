//! Lines to the standard streams.

use std::fmt::Display;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use lnet_control::output::{self, Written};

pub(crate) use lnet_control::output::note_lines as complain;

use crate::failure::OTHER;

static READER_HAS_GONE: AtomicBool = AtomicBool::new(false);

/// Prints a line to stdout. A command goes on where the reader has gone, but repeats nothing any more
/// ([`reader_has_gone`]).
pub(crate) fn tell(line: impl Display) {
    match output::print(format_args!("{line}\n")) {
        Ok(Written::Whole) => {}
        Ok(Written::Unread) => READER_HAS_GONE.store(true, Ordering::Relaxed),
        Err(error) => {
            complain(format_args!("lst: stdout: {error}"));
            exit(OTHER.into());
        }
    }
}

/// Whether a line found no reader of stdout.
pub(crate) fn reader_has_gone() -> bool {
    READER_HAS_GONE.load(Ordering::Relaxed)
}
