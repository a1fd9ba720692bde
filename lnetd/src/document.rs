//! Options of the command line that stand in the start-up document, in its block `daemon`. Those of the
//! command line come behind them, and have the last word.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use lnet_control::document::{DOCUMENT_BYTES_MAX, DaemonOption, daemon_options};
use lnet_control::file;

use crate::options::Options;

/// Options that say where the document is, or do something else than to serve a node.
const NOT_IN_DOCUMENTS: [&str; 6] =
    ["config", "help", "version", "generate-man", "generate-completions", "verbose"];

/// Why there are no options.
#[derive(Debug)]
pub(crate) enum OptionsError {
    /// The words make no sense.
    Words(clap::Error),
    /// The document's options make none: a line for each.
    Document(Vec<String>),
}

/// The options of a command line, and of the document that it names.
pub(crate) fn options(words: impl Iterator<Item = OsString>) -> Result<Options, OptionsError> {
    let words: Vec<OsString> = words.collect();
    let given = Options::try_parse_from(&words).map_err(OptionsError::Words)?;
    let Some(path) = given.config() else { return Ok(given) };
    // A file that cannot be read is told when the node starts.
    let bytes = file::read_regular(path, DOCUMENT_BYTES_MAX).ok();
    let Some(text) = bytes.and_then(|bytes| String::from_utf8(bytes).ok()) else { return Ok(given) };
    let wrong = |message: String| format!("{}: {message}", path.display());
    let options = match daemon_options(&text) {
        Ok(options) if options.is_empty() => return Ok(given),
        Ok(options) => options,
        Err(errors) => {
            let lines = errors.iter().map(|error| wrong(error.to_string())).collect();
            return Err(OptionsError::Document(lines));
        }
    };
    let (mut known, mut lines) = (Vec::new(), Vec::new());
    for option in &options {
        let (program, argument) = (OsString::from("lnetd"), words_of(option));
        let checked = argument.and_then(|argument| {
            let alone = Options::try_parse_from([&program].into_iter().chain(&argument));
            alone.map(|_| argument).map_err(|error| first_line(&error))
        });
        match checked {
            Ok(argument) => known.extend(argument),
            Err(message) => lines.push(wrong(format!("{}: {message}", option.position))),
        }
    }
    if !lines.is_empty() {
        return Err(OptionsError::Document(lines));
    }
    let program = words.iter().take(1).cloned();
    let all = program.chain(known).chain(words.iter().skip(1).cloned());
    Options::try_parse_from(all).map_err(OptionsError::Words)
}

/// An option as words of the command line.
fn words_of(option: &DaemonOption) -> Result<Vec<OsString>, String> {
    let DaemonOption { name, values, .. } = option;
    let command = Options::command();
    let known = command.get_arguments().find(|known| known.get_long() == Some(name));
    let known = known.filter(|_| !NOT_IN_DOCUMENTS.contains(&name.as_str()));
    let known =
        known.ok_or_else(|| format!("unknown option '{name}' in 'daemon'; `lnetd --help` lists them"))?;
    if known.get_action().takes_values() {
        return Ok(values.iter().map(|value| format!("--{name}={value}").into()).collect());
    }
    match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["true" | "yes" | "on" | "1"] => Ok(vec![format!("--{name}").into()]),
        ["false" | "no" | "off" | "0"] => Ok(Vec::new()),
        _ => Err(format!("'{name}': true or false is expected")),
    }
}

/// What is wrong with words, in one line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of a document and further words, or what is wrong with them.
    fn read(document: &str, words: &str) -> Result<Options, Vec<String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), document).unwrap();
        let config = format!("--config={}", file.path().display());
        let words = ["lnetd", &config].into_iter().chain(words.split_whitespace()).map(OsString::from);
        options(words).map_err(|error| match error {
            OptionsError::Document(lines) => {
                let bare = |line: &String| line.split_once(": ").unwrap().1.to_owned();
                lines.iter().map(bare).collect()
            }
            OptionsError::Words(error) => vec![error.to_string()],
        })
    }

    #[test]
    fn a_document_has_options_and_the_command_line_the_last_word() {
        let document = "daemon:\n  shards: 2\n  selftest: true\n  configure: false\n  log: warn\n  limit: {nis: 64, events: 0x4000}\nnet:\n";
        let given = read(document, "").unwrap();
        let node = given.node().unwrap();
        assert_eq!((node.shards, node.limits.nis, node.limits.events), (2, 64, 0x4000));
        assert!(given.selftest && given.log() == "warn");
        let given = read(document, "--shards 3 --limit nis=32").unwrap();
        let node = given.node().unwrap();
        assert_eq!((node.shards, node.limits.nis, node.limits.events), (3, 32, 0x4000));
    }

    #[test]
    fn mistakes_are_told_with_their_places() {
        let wrong = read(
            "daemon:\n  shrads: 2\n  shards: many\n  selftest: maybe\n  config: a\n  limit: {nis: 0}\n",
            "",
        );
        let lines = wrong.unwrap_err();
        assert_eq!(
            lines,
            [
                "line 2, column 3: unknown option 'shrads' in 'daemon'; `lnetd --help` lists them",
                "line 3, column 3: invalid value 'many' for '--shards <COUNT>': invalid digit found in string",
                "line 4, column 3: 'selftest': true or false is expected",
                "line 5, column 3: unknown option 'config' in 'daemon'; `lnetd --help` lists them",
                "line 6, column 3: invalid value 'nis=0' for '--limit <NAME=COUNT>': nis=0: a number from 1 to 1024 is expected",
            ]
        );
        assert_eq!(
            read("daemon: 1\n", "").unwrap_err(),
            ["line 1, column 9: \"1\" for 'daemon': a map of options is expected"]
        );
        assert!(read("net: [\n", "").is_err() && read("", "").is_ok());
    }
}
