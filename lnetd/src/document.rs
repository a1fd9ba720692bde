//! Options of the command line that stand in the start-up document, in its block `daemon`. Those of the
//! command line come behind them, and have the last word: what they exclude of the document is passed over.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use lnet_control::document::{DOCUMENT_BYTES_MAX, DaemonOption, daemon_options};
use lnet_control::file;

use crate::options::Options;

/// Options that say where the document is, exclude one, or do something else than to serve a node.
const NOT_IN_DOCUMENTS: [&str; 7] =
    ["config", "configure", "help", "version", "generate-man", "generate-completions", "verbose"];

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
    let command = Options::command();
    let matches = command.clone().try_get_matches_from(&words).map_err(OptionsError::Words)?;
    let given = Options::from_arg_matches(&matches).map_err(OptionsError::Words)?;
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
        let program = OsString::from("lnetd");
        let checked = words_of(&command, option).and_then(|(arg, argument)| {
            let alone = Options::try_parse_from([&program].into_iter().chain(&argument));
            alone.map(|_| (arg, argument)).map_err(|error| first_line(&error))
        });
        match checked {
            Ok((arg, _)) if is_excluded(&command, arg, &matches) => {}
            Ok((_, argument)) => known.extend(argument),
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

/// Whether an option cannot stand beside one of those that were given as words.
fn is_excluded(command: &Command, option: &Arg, words: &ArgMatches) -> bool {
    let excludes = |one: &Arg, other: &Arg| command.get_arg_conflicts_with(one).contains(&other);
    let is_given =
        |other: &Arg| words.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine);
    let mut given = command.get_arguments().filter(|other| is_given(other));
    given.any(|other| excludes(option, other) || excludes(other, option))
}

/// An option, and the words of the command line that say the same.
fn words_of<'a>(command: &'a Command, option: &DaemonOption) -> Result<(&'a Arg, Vec<OsString>), String> {
    let DaemonOption { name, values, .. } = option;
    let known = command.get_arguments().find(|known| known.get_long() == Some(name));
    let known = known.filter(|_| !NOT_IN_DOCUMENTS.contains(&name.as_str()));
    let known =
        known.ok_or_else(|| format!("unknown option '{name}' in 'daemon'; `lnetd --help` lists them"))?;
    if known.get_action().takes_values() {
        return Ok((known, values.iter().map(|value| format!("--{name}={value}").into()).collect()));
    }
    match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["true" | "yes" | "on" | "1"] => Ok((known, vec![format!("--{name}").into()])),
        ["false" | "no" | "off" | "0"] => Ok((known, Vec::new())),
        _ => Err(format!("'{name}': true or false is expected")),
    }
}

/// The mistake in words, in one line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use lnet_control::legacy::LegacyKind;

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
        let document = "daemon:\n  shards: 2\n  selftest: true\n  log_refusals: false\n  log: warn\n  limit: {nis: 64, events: 0x4000}\nnet:\n";
        let given = read(document, "").unwrap();
        let node = given.node().unwrap();
        assert_eq!((node.shards, node.limits.nis, node.limits.events), (2, 64, 0x4000));
        assert!(given.selftest && given.log() == "warn");
        let given = read(document, "--shards 3 --limit nis=32").unwrap();
        let node = given.node().unwrap();
        assert_eq!((node.shards, node.limits.nis, node.limits.events), (3, 32, 0x4000));
    }

    #[test]
    fn words_exclude_options_of_the_document() {
        let given = read("daemon: {log: warn, shards: 2}\n", "-v").unwrap();
        assert_eq!((given.log().as_str(), given.node().unwrap().shards), ("warn,lnet=debug", 2));
        for (document, words) in [
            ("daemon: {ip2nets: 'tcp 10.*.*.*', networks: xdp}\n", "--networks tcp(eth0)"),
            ("daemon: {networks: tcp(eth0)}\n", "--networks xdp --networks tcp(eth0)"),
        ] {
            let strings = read(document, words).unwrap().start_up().strings;
            assert_eq!(strings, [(LegacyKind::Networks, "tcp(eth0)".to_owned())], "{document}");
        }
        let start_up = read("daemon: {networks: tcp}\n", "--ip2nets a").unwrap().start_up();
        assert_eq!(start_up.strings, [(LegacyKind::Ip2nets, "a".to_owned())]);
        // A mistake is told in any case.
        let wrong = read("daemon: {log: [a, b], shards: x, configure: true}\n", "-v").unwrap_err();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[1].contains("unknown option 'configure' in 'daemon'"), "{wrong:?}");
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
