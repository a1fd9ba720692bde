//! Files of modprobe (modprobe.d(5)): the options of modules.

use std::collections::HashMap;

use super::LegacyKind;
use super::text::LegacyText;
use crate::document::Position;

/// A parameter of a module, as a file sets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleOption {
    /// The module, with `_` where the file may have `-`.
    pub module: String,
    /// The parameter.
    pub name: String,
    /// Its value, without the quotes around it.
    pub value: LegacyText,
    /// Where it stands.
    pub position: Position,
}

/// An option, and the file that it stands in.
pub type FileOption = (String, ModuleOption);

/// The options of a module that are in force, of all that stand in files, in their order; and what is to be
/// told of the others. Of several values of a parameter modprobe gives the module all, which takes the last
/// one.
#[must_use]
pub fn taken(module: &str, options: Vec<FileOption>) -> (Vec<FileOption>, Vec<String>) {
    let mut own: Vec<FileOption> = options;
    own.retain(|(_, option)| option.module == module);
    let location = |(file, option): &FileOption| format!("{file}: {}", option.position);
    let (mut in_force, mut notes) = (Vec::new(), Vec::new());
    let mut last = HashMap::new();
    for one in own.into_iter().rev() {
        let (name, here) = (&one.1.name, location(&one));
        match last.get(name) {
            None => {
                last.insert(name.clone(), here);
                in_force.push(one);
            }
            Some(last) => {
                notes.push(format!("{here}: {name} is passed over: modprobe takes the last one, in {last}"));
            }
        }
    }
    in_force.reverse();
    notes.reverse();
    (in_force, notes)
}

/// Characters of a file, with their places.
type Placed = Vec<(char, Position)>;

/// The options that a file has, in their order. Lines of other kinds say nothing of these.
#[must_use]
pub fn module_options(text: &str) -> Vec<ModuleOption> {
    lines(text).iter().flat_map(|line| options_of(line)).collect()
}

/// A string with its name, such as `networks="tcp(eth0)"`; none where it has none.
#[must_use]
pub fn inline_option(text: &str) -> Option<(LegacyKind, LegacyText)> {
    let (mut line, mut column) = (1, 0);
    let located = |one| {
        column += 1;
        let position = Position { line, column };
        if one == '\n' {
            (line, column) = (line + 1, 0);
        }
        (one, position)
    };
    let line: Placed = text.chars().map(located).collect();
    let (start, end) = (
        line.iter().position(|(one, _)| !one.is_whitespace())?,
        line.iter().rposition(|(one, _)| !one.is_whitespace())?,
    );
    let option = option("", line.get(start..=end)?)?;
    Some((LegacyKind::of_name(option.name.trim())?, option.value))
}

/// The lines of a file; a backslash at the end of one joins it with the next.
fn lines(text: &str) -> Vec<Placed> {
    let mut lines = vec![Vec::new()];
    let (mut line, mut column) = (1, 0);
    let mut characters = text.chars().peekable();
    while let Some(one) = characters.next() {
        column += 1;
        let is_joined = one == '\\' && characters.next_if_eq(&'\n').is_some();
        if is_joined || one == '\n' {
            (line, column) = (line + 1, 0);
            if !is_joined {
                lines.push(Vec::new());
            }
            continue;
        }
        if let Some(last) = lines.last_mut() {
            last.push((one, Position { line, column }));
        }
    }
    lines
}

fn options_of(line: &[(char, Position)]) -> Vec<ModuleOption> {
    let words = words(line);
    let text = |word: &&[(char, Position)]| word.iter().map(|(one, _)| *one).collect::<String>();
    let mut words = words.iter();
    if words.next().map(text).as_deref() != Some("options") {
        return Vec::new();
    }
    let Some(module) = words.next().map(text) else { return Vec::new() };
    words.filter_map(|word| option(&module.replace('-', "_"), word)).collect()
}

/// The words of a line: blanks between quotes are part of one (`lib/cmdline.c: next_arg`). Older files have
/// single quotes too.
fn words(line: &[(char, Position)]) -> Vec<&[(char, Position)]> {
    let mut quote = None;
    let is_gap = |(one, _): &(char, Position)| {
        match quote {
            None if matches!(one, '"' | '\'') => quote = Some(*one),
            Some(open) if open == *one => quote = None,
            _ => {}
        }
        one.is_whitespace() && quote.is_none()
    };
    line.split(is_gap).filter(|word| !word.is_empty()).collect()
}

/// `NAME=VALUE`, with quotes around the value or the whole, or both, one in the other.
fn option(module: &str, word: &[(char, Position)]) -> Option<ModuleOption> {
    let word = unquoted(word);
    let equals = word.iter().position(|(one, _)| *one == '=')?;
    let (name, value) = word.split_at(equals);
    let position = word.first()?.1;
    Some(ModuleOption {
        module: module.to_owned(),
        name: name.iter().map(|(one, _)| *one).collect(),
        value: unquoted(value.get(1..)?).iter().copied().collect(),
        position,
    })
}

/// A text without the quotes around it.
fn unquoted(text: &[(char, Position)]) -> &[(char, Position)] {
    match text {
        [('"', _), inside @ .., ('"', _)] | [('\'', _), inside @ .., ('\'', _)] => inside,
        // The kernel takes a value whose quote does not end up to the end of the line.
        [('"' | '\'', _), inside @ ..] => inside,
        text => text,
    }
}
