//! Words of the command line before clap sees them.
//!
//! Invariants: `_` and `-` are the same in the names of long options; nothing behind `--` is touched.

use std::ffi::{OsStr, OsString};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

/// Words that completions offer for an option. What else it takes, its command says.
#[derive(Clone)]
pub(crate) struct Offered(Vec<&'static str>);

impl Offered {
    pub(crate) fn of(words: &[&'static str]) -> Self {
        Self(words.to_vec())
    }
}

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(&self, tool: &Command, arg: Option<&Arg>, word: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(tool, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

/// The words as clap is to see them.
pub(crate) fn normalized(words: &[OsString]) -> Vec<OsString> {
    let mut options = true;
    let mut normalize = |word: &OsString| {
        options &= word != "--";
        let text = word.to_str().filter(|text| options && text.starts_with("--"));
        text.map_or_else(|| word.clone(), |text| dashed(text).into())
    };
    words.iter().map(&mut normalize).collect()
}

/// The words with shortened long options written out, where they fit one option of the command itself: the
/// options that all commands have must not make ambiguous what scripts have always written.
pub(crate) fn completed(words: Vec<OsString>, tool: &Command) -> Vec<OsString> {
    let mut command = tool;
    let mut takes_value = false;
    let mut complete = |word: OsString| {
        let Some(text) = word.to_str() else { return word };
        if std::mem::take(&mut takes_value) {
            return word;
        }
        let Some(option) = text.strip_prefix("--") else {
            command = command.find_subcommand(text).unwrap_or(command);
            return word;
        };
        takes_value = matches!(option, "socket" | "node");
        let (name, value) = option.find('=').map_or((option, ""), |at| option.split_at(at));
        let fitting = command.get_arguments().filter_map(Arg::get_long).filter(|long| long.starts_with(name));
        match fitting.collect::<Vec<_>>()[..] {
            [long] if !name.is_empty() => format!("--{long}{value}").into(),
            _ => word,
        }
    };
    words.into_iter().map(&mut complete).collect()
}

/// The option's name with dashes; its value as it is.
fn dashed(option: &str) -> String {
    let (name, value) = option.find('=').map_or((option, ""), |at| option.split_at(at));
    name.replace('_', "-") + value
}

/// A word that means the same in place of every subcommand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GlobalWord {
    Version,
    ListCommands,
    Quit,
    IgnoreErrors,
}

/// The global word among these words, if there is one where a subcommand may stand: behind nothing but words.
pub(crate) fn global_word(words: &[OsString], tool: &Command) -> Option<GlobalWord> {
    let of = |word: &OsStr| match word.to_str()? {
        "version" | "--version" => Some(GlobalWord::Version),
        "list-commands" | "--list-commands" => Some(GlobalWord::ListCommands),
        "quit" | "exit" => Some(GlobalWord::Quit),
        "ignore_errors" | "--ignore_errors" | "--ignore-errors" => Some(GlobalWord::IgnoreErrors),
        _ => None,
    };
    let (last, before) = words.split_last()?;
    let mut command = tool;
    let mut words = before.iter();
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--json" => {}
            "--socket" | "--node" => drop(words.next()),
            word if ["--socket=", "--node="].iter().any(|option| word.starts_with(option)) => {}
            word => command = command.find_subcommand(word)?,
        }
    }
    command.has_subcommands().then(|| of(last)).flatten()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn the_command_tree_makes_sense() {
        Cli::command().debug_assert();
    }

    proptest! {
        #[test]
        fn no_words_make_it_panic(
            known in prop::collection::vec(prop::sample::select(vec![
                "net", "add", "show", "set", "fault", "drop", "del", "ping", "import", "--net", "-v", "--", "-", "-x",
                "--health_error", "steering", "--portal", "capture", "start", "help", "version", "-vvv", "--verbose=",
            ]), 0..6),
            other in ".{0,12}",
            position in any::<prop::sample::Index>(),
        ) {
            let mut words: Vec<_> = known.into_iter().map(OsString::from).collect();
            let position = position.index(words.len() + 1);
            words.insert(position, other.into());
            let words = normalized(&words);
            let _ = global_word(&words, &Cli::command());
            let _ = Cli::command().try_get_matches_from([OsString::from("lnetctl")].into_iter().chain(words));
        }
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn underscores_are_dashes_in_names_of_options() {
        let check = |text, expected| assert_eq!(normalized(&words(text)), words(expected));
        check(
            "fault drop add --drop_all --health_error=local_error a_b",
            "fault drop add --drop-all \
              --health-error=local_error a_b",
        );
        check("-a_b --x=a_b -- --a_b", "-a_b --x=a_b -- --a_b");
    }

    #[test]
    fn shortened_options_are_those_of_the_command() {
        let check = |text, expected| assert_eq!(completed(words(text), &Cli::command()), words(expected));
        check("ping --so 1 --s=2 --t 3", "ping --source 1 --source=2 --timeout 3");
        check("peer show --n 1", "peer show --nid 1");
        check("net show --n 1", "net show --net 1");
        check("--socket net peer show --n 1", "--socket net peer show --nid 1");
        check("net add --n 1 --no 2 --nod", "net add --n 1 --no 2 --nod");
        check("fault drop add --s 1 --", "fault drop add --source 1 --");
    }

    #[test]
    fn global_words_stand_where_subcommands_do() {
        let tool = Cli::command();
        let check = |text, expected| assert_eq!(global_word(&words(text), &tool), expected, "{text}");
        check("version", Some(GlobalWord::Version));
        check("net --version", Some(GlobalWord::Version));
        check("fault drop --list-commands", Some(GlobalWord::ListCommands));
        check("load start list-commands", Some(GlobalWord::ListCommands));
        check("--json --socket a net --list-commands", Some(GlobalWord::ListCommands));
        check("--socket=a version", Some(GlobalWord::Version));
        check("--node=a net --list-commands", Some(GlobalWord::ListCommands));
        check("exit", Some(GlobalWord::Quit));
        check("ignore_errors", Some(GlobalWord::IgnoreErrors));
        check("import version", None);
        check("net show", None);
        check("net show version", None);
    }
}
