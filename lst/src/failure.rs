//! Why a command fails, and the status that tells of it: those of the reference.

use std::fmt;

use clap::error::ErrorKind;
use lnet_model::Errno;

/// Words or options that a command does not know, or lacks.
pub(crate) const USAGE: u8 = 4;
/// Nodes have refused what they were asked.
const REFUSED: u8 = 253;
/// Nodes have not answered.
const SILENT: u8 = 254;
/// There is nothing that groups could be listed of.
const NO_LIST: u8 = 234;
/// All else.
pub(crate) const OTHER: u8 = 255;

/// A failure that has a status of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Words that make no sense to a command.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: USAGE, message: message.into() }
    }

    /// Groups that cannot be listed.
    pub(crate) fn no_list(error: &anyhow::Error) -> Self {
        Self { status: NO_LIST, message: format!("{error:#}") }
    }

    /// Nodes that did not do what they were asked, each for its reason.
    pub(crate) fn nodes(reasons: impl IntoIterator<Item = Errno>, message: String) -> Self {
        let status = if reasons.into_iter().any(is_silence) { SILENT } else { REFUSED };
        Self { status, message }
    }
}

/// Whether a node is lost, rather than unwilling.
pub(crate) const fn is_silence(errno: Errno) -> bool {
    matches!(errno, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::IO)
}

/// The status of a command that has failed.
pub(crate) fn status(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Failure>().map_or(OTHER, |failure| failure.status)
}

/// The status of words that were not understood: values of no use and unknown commands are told from unknown
/// options and words that are too many or too few.
pub(crate) fn status_of_words(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidSubcommand => OTHER,
        _ if error.use_stderr() => USAGE,
        _ => 0,
    }
}
