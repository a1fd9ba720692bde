//! Documents whose commands are run, and whose output is compared with what the commands print.
//!
//! A block marked `console` has commands behind `$`, which go on behind `>`, and what they print. `console
//! peer` is for the other node. A comment `<!-- run: COMMAND -->` or `<!-- peer: COMMAND -->` is run and not
//! shown.
//! `...` stands for any text in a line, and by itself for any lines.

use anyhow::{Result, bail, ensure};

/// Which node runs a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Node,
    Peer,
}

/// A command of a document.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Its line, from 1.
    pub(super) line: usize,
    pub(super) side: Side,
    pub(super) command: String,
    /// Lines that it prints; `None` for a command that is not shown, which is to go well.
    pub(super) printed: Option<Vec<String>>,
}

/// The commands of a document, in their order.
///
/// # Errors
/// Names the line that is no part of a transcript.
pub(super) fn steps(text: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut side = None;
    for (line, content) in (1..).zip(text.lines()) {
        let shown = |side, command: &str| Step { line, side, command: command.into(), printed: Some(vec![]) };
        match (side, content) {
            (None, "```console") => side = Some(Side::Node),
            (None, "```console peer") => side = Some(Side::Peer),
            (None, _) => {
                let inside = content.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
                let hidden = inside.and_then(|inside| inside.split_once(": "));
                let hidden_side = match hidden {
                    Some(("run", _)) => Side::Node,
                    Some(("peer", _)) => Side::Peer,
                    _ => continue,
                };
                let command = hidden.map(|(_, command)| command.to_owned()).unwrap_or_default();
                steps.push(Step { line, side: hidden_side, command, printed: None });
            }
            (Some(_), "```") => side = None,
            (Some(side), _) => {
                let last = steps.last_mut();
                if let Some(command) = content.strip_prefix("$ ") {
                    steps.push(shown(side, command));
                } else if let (Some(more), Some(last)) = (content.strip_prefix("> "), last) {
                    last.command.push('\n');
                    last.command.push_str(more);
                } else if let Some(printed) = steps.last_mut().and_then(|last| last.printed.as_mut()) {
                    printed.push(content.to_owned());
                } else {
                    bail!("line {line}: a command is expected before what it prints");
                }
            }
        }
    }
    ensure!(side.is_none(), "a block does not end");
    Ok(steps)
}

/// Whether lines that a command has printed are as a document has them.
pub(super) fn fits(expected: &[String], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, others)| line_fits(first.trim_end(), line.trim_end()) && fits(rest, others)),
    }
}

fn line_fits(expected: &str, line: &str) -> bool {
    let Some((head, tail)) = expected.split_once("...") else { return expected == line };
    let Some(rest) = line.strip_prefix(head) else { return false };
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.into_iter().any(|at| line_fits(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_what_they_print_are_read() {
        let text = "words\n<!-- peer: a -->\n```console\n$ b <<E\n> c\n> E\nd\n\n$ e\n```\n```sh\n$ f\n```\n";
        let steps = steps(text).unwrap();
        let step = |line, side, command: &str, printed: Option<&[&str]>| Step {
            line,
            side,
            command: command.into(),
            printed: printed.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect()),
        };
        let expected = [
            step(2, Side::Peer, "a", None),
            step(4, Side::Node, "b <<E\nc\nE", Some(&["d", ""])),
            step(9, Side::Node, "e", Some(&[])),
        ];
        assert_eq!(steps, expected);
        assert!(super::steps("```console\nprinted\n```").is_err());
        assert!(super::steps("```console\n$ a").is_err());
    }

    #[test]
    fn output_fits_where_the_document_is_silent() {
        let check = |expected: &str, printed: &str, fit: bool| {
            let expected: Vec<_> = expected.lines().map(str::to_owned).collect();
            let printed: Vec<_> = printed.lines().collect();
            assert_eq!(fits(&expected, &printed), fit, "{expected:?} {printed:?}");
        };
        check("a\nb", "a\nb", true);
        check("a\nb", "a\nc", false);
        check("a", "a\nb", false);
        check("a\nb", "a", false);
        check("...", "", true);
        check("a\n...\nd", "a\nb\nc\nd", true);
        check("a\n...\nd", "a\nb\nc", false);
        check("took ... us", "took 12.5 us", true);
        check("took ... us", "took 12.5 ms", false);
        check("at ... of ...", "at 3 of 4", true);
        check("", "a", false);
    }
}
