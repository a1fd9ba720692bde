//! Options of NIs on the command line, as the table of the model has them.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use lnet_model::lnd::{OPTIONS, OptionRow, OptionValues};
use lnet_model::ni::NiOptions;

use crate::arguments::Offered;
use crate::failure::{CommandError, Task};

/// Words that were given for options of an NI.
#[derive(Debug, Default)]
pub(crate) struct OptionWords(Vec<(&'static OptionRow, String)>);

/// Words that were given for options that can be changed while an NI is there.
#[derive(Debug, Default)]
pub(crate) struct Changeable(pub(crate) OptionWords);

impl OptionWords {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The options that ask for more than the default.
    pub(crate) fn read(&self, task: Task) -> Result<NiOptions, CommandError> {
        let mut options = NiOptions::default();
        for (row, text) in &self.0 {
            options.set(row.option, value(task, row, text)?);
        }
        Ok(options)
    }

    fn of(matches: &ArgMatches) -> Self {
        let given = OPTIONS.iter().filter_map(|row| {
            let text = matches.try_get_one::<String>(row.option.name()).ok()??;
            Some((row.option.row(), text.clone()))
        });
        Self(given.collect())
    }
}

fn value(task: Task, row: &OptionRow, text: &str) -> Result<Option<i64>, CommandError> {
    match row.values {
        OptionValues::Numbers { low, high, .. } => {
            let low = if row.is_lenient { i64::MIN } else { low };
            Ok(row.values.of_number(task.number(&long(row), text, low..=high)?))
        }
        OptionValues::Words(_) => match row.values.value_of(text) {
            None => Err(task.invalid(format!("{text:?}: {} is expected", row.values.expected()))),
            value => Ok(value),
        },
    }
}

fn long(row: &OptionRow) -> String {
    row.option.name().replace('_', "-")
}

fn argument(row: &'static OptionRow) -> Arg {
    let argument = Arg::new(row.option.name())
        .long(long(row))
        .value_name(row.unit)
        .help(format!("{} [{}]", row.meaning, row.values));
    let argument = match row.letter {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    match row.values {
        OptionValues::Numbers { .. } => argument.allow_hyphen_values(true),
        OptionValues::Words(words) => argument.value_parser(Offered::of(words)).hide_possible_values(true),
    }
}

fn with_arguments(command: Command, takes: impl Fn(&OptionRow) -> bool) -> Command {
    OPTIONS
        .iter()
        .filter(|row| takes(row))
        .fold(command, |command, row| command.arg(argument(row.option.row())))
}

impl Args for OptionWords {
    fn augment_args(command: Command) -> Command {
        with_arguments(command, |_| true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionWords {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self::of(matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::of(matches);
        Ok(())
    }
}

impl Args for Changeable {
    fn augment_args(command: Command) -> Command {
        with_arguments(command, |row| row.is_changeable)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Changeable {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self(OptionWords::of(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0 = OptionWords::of(matches);
        Ok(())
    }
}
