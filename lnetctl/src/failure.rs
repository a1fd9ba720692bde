//! What a command did not do, and the status that says so.

use std::ops::RangeInclusive;

use lnet_control::client::ClientError;
use lnet_control::document::{self, Failure, Map};
use lnet_model::ni::HEALTH_MAX;
use lnet_model::pattern::UdspPattern;
use lnet_model::{Errno, Refusal};

/// Status of a request that was refused: the low byte of -EINVAL.
pub(crate) const REFUSED: u8 = 234;
/// Status of a failure of the tool, or of something it was asked to reach: the low byte of -1.
pub(crate) const FAILED: u8 = 255;
/// Status of a load, or of frames, that were measured and are not as they should be.
pub(crate) const UNSOUND: u8 = 1;
/// Status of a usage error.
pub(crate) const USAGE: u8 = 2;

/// Why a command failed, as it is printed.
#[derive(Debug)]
pub(crate) struct CommandError {
    /// The operation: `add`, `show`, ...
    operation: &'static str,
    failures: Vec<Failure>,
    status: u8,
    /// Whether error numbers are printed without their minus, as LNet's tool does it for selection policies.
    is_positive: bool,
}

impl CommandError {
    /// Several failures of one operation.
    pub(crate) fn several(operation: &'static str, failures: Vec<Failure>) -> Self {
        Self { operation, failures, status: REFUSED, is_positive: false }
    }

    /// Turns it into a failure of the tool.
    pub(crate) fn failed(self) -> Self {
        self.with_status(FAILED)
    }

    /// Gives it another status.
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// The failure of LNet's tool where a thing is there already: its error number is the status.
    pub(crate) fn already(task: Task, message: &str) -> Self {
        let errno = Errno::ALREADY;
        Self { status: errno.0, is_positive: true, ..task.error(errno, message) }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// The messages alone.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &str> {
        self.failures.iter().map(|failure| failure.message.as_str())
    }

    /// The error document; nothing where it has been printed.
    pub(crate) fn document(&self) -> Map {
        let mut document = document::failures(self.operation, &self.failures);
        let errors = document.values_mut().flat_map(|errors| errors.as_array_mut().into_iter().flatten());
        for errno in errors.filter_map(|error| error.get_mut(self.failures.first()?.entity)?.get_mut("errno"))
        {
            if self.is_positive {
                *errno = errno.as_i64().unwrap_or_default().abs().into();
            }
        }
        document
    }
}

/// What a command works for: an operation on a kind of object. It makes the errors of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) operation: &'static str,
    pub(crate) entity: &'static str,
}

impl Task {
    pub(crate) const fn new(operation: &'static str, entity: &'static str) -> Self {
        Self { operation, entity }
    }

    /// A value that makes no sense.
    pub(crate) fn invalid(self, message: impl Into<String>) -> CommandError {
        self.error(Errno::INVAL, message)
    }

    pub(crate) fn error(self, errno: Errno, message: impl Into<String>) -> CommandError {
        let failure = Failure { entity: self.entity, seq_no: None, errno, message: message.into() };
        CommandError::several(self.operation, vec![failure])
    }

    /// What LNet's tools can do and this node cannot.
    pub(crate) fn unsupported(self, what: &str) -> CommandError {
        self.error(Errno::OPNOTSUPP, format!("{what} not supported by this version"))
    }

    /// Success if nothing was found wrong with what was measured.
    pub(crate) fn judged(self, found: Vec<String>) -> Result<(), CommandError> {
        let failure = |message| Failure { entity: self.entity, seq_no: None, errno: Errno::IO, message };
        let failures: Vec<Failure> = found.into_iter().map(failure).collect();
        if failures.is_empty() {
            return Ok(());
        }
        Err(CommandError { status: UNSOUND, ..CommandError::several(self.operation, failures) })
    }

    /// Makes the error of what the daemon was asked, for `map_err`.
    pub(crate) fn refused(self) -> impl Fn(ClientError) -> CommandError {
        move |error| {
            let mut refused = self.error(error.errno(), error.to_string());
            if let ClientError::Refused(refusal) = &error {
                let further = refusal.further.iter().map(|further| Failure {
                    entity: self.entity,
                    seq_no: None,
                    errno: further.errno,
                    message: further.message.clone(),
                });
                refused.failures.extend(further);
            }
            if matches!(error, ClientError::Refused(_)) { refused } else { refused.failed() }
        }
    }

    /// Makes the error of a list, for `map_err`.
    pub(crate) fn pattern(self) -> impl Fn(Refusal) -> CommandError {
        move |error| self.error(error.errno, error.message)
    }

    /// What a text means, if it is given.
    pub(crate) fn parsed<T>(
        self,
        text: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Result<Option<T>, CommandError> {
        text.map(parse).transpose().map_err(self.pattern())
    }

    /// A pattern of a selection policy, if it is given.
    pub(crate) fn udsp_pattern(
        self,
        name: &str,
        text: Option<&String>,
    ) -> Result<Option<UdspPattern>, CommandError> {
        let parsed = text.map(|text| text.parse::<UdspPattern>()).transpose();
        parsed.map_err(|error| self.error(error.errno, format!("failed to parse {name} parameter: {error}")))
    }

    /// A number within a range, which is one of `T`'s.
    pub(crate) fn number<T: TryFrom<i64>>(
        self,
        name: &str,
        text: &str,
        range: RangeInclusive<i64>,
    ) -> Result<T, CommandError> {
        let (low, high) = (range.start(), range.end());
        let number = lnet_model::pattern::integer(text);
        let fitting =
            number.filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok());
        fitting.ok_or_else(|| {
            let errno = if number.is_some() { Errno::RANGE } else { Errno::INVAL };
            let expected = match (*low, *high) {
                (i64::MIN, i64::MAX) => "a number".to_owned(),
                (i64::MIN, high) => format!("a number up to {high}"),
                (low, i64::MAX) => format!("a number from {low}"),
                (low, high) => format!("a number from {low} to {high}"),
            };
            self.error(errno, format!("--{name} {text:?}: {expected} is expected"))
        })
    }

    /// A health, if it is given. Any other number is invalid too, and not out of range.
    pub(crate) fn health(self, text: Option<&String>) -> Result<Option<u32>, CommandError> {
        let Some(text) = text else { return Ok(None) };
        let number = lnet_model::pattern::integer(text).and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| *number <= HEALTH_MAX) {
            None => {
                Err(self.invalid(format!("--health {text:?}: a number from 0 to {HEALTH_MAX} is expected")))
            }
            health => Ok(health),
        }
    }

    /// A number within a range, if it is given.
    pub(crate) fn optional<T: TryFrom<i64>>(
        self,
        name: &str,
        text: Option<&String>,
        range: RangeInclusive<i64>,
    ) -> Result<Option<T>, CommandError> {
        text.map(|text| self.number(name, text, range)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lnet_control::document::Yaml;

    #[test]
    fn a_number_that_is_none_is_told_what_is_expected() {
        let task = Task { operation: "set", entity: "net" };
        let said = |text: &str, range| {
            let error = task.number::<i64>("peer-credits", text, range).unwrap_err();
            Yaml(&error.document()).to_string()
        };
        for (range, expected) in [
            (i64::MIN..=i64::MAX, "a number is expected"),
            (i64::MIN..=127, "a number up to 127 is expected"),
            (1..=i64::MAX, "a number from 1 is expected"),
            (1..=9, "a number from 1 to 9 is expected"),
        ] {
            let said = said("banana", range);
            assert!(said.contains(expected), "{said}");
        }
    }
}
