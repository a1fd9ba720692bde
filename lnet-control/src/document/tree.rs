//! Reading YAML: a tree in which each value knows where it stands.
//!
//! Invariants: nothing is interpreted here, a scalar is its text; a key stands once in its map; aliases,
//! which could make much out of little, are refused; depth and size are bounded.
//!
//! YAML is read from a tree of marked values (`saphyr-parser`), not by serde. LNet's documents have keys with
//! several shapes, every mistake is reported at once with line and column, and what is known but unsupported
//! is told apart from a typo.

use std::collections::HashMap;
use std::fmt;

use lnet_model::pattern::quoted;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use super::DocumentError;

/// Most bytes of a document.
pub const DOCUMENT_BYTES_MAX: usize = 32 << 20;
/// Most levels of a document; ours have seven.
const DEPTH_MAX: usize = 24;

/// Where something stands, both from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl From<&Marker> for Position {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

/// A value and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Marked {
    pub(super) position: Position,
    pub(super) value: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// A text; whether it stands without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Marked>),
    Map(Vec<MapEntry>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MapEntry {
    pub(super) position: Position,
    pub(super) key: String,
    pub(super) value: Marked,
}

impl Marked {
    /// Whether nothing stands there.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain } => *plain && matches!(text.as_str(), "" | "~" | "null"),
            _ => false,
        }
    }

    /// Whether nothing stands there, or a text without letters: in the place of a map or a list both say
    /// nothing.
    pub(super) fn is_blank(&self) -> bool {
        self.is_null() || matches!(&self.value, Value::Scalar { text, .. } if text.is_empty())
    }

    /// Whether a text stands there.
    pub(super) fn is_text(&self) -> bool {
        !self.is_blank() && matches!(self.value, Value::Scalar { .. })
    }

    /// What stands there, as an error names it.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } => quoted(text),
            Value::Sequence(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// The value of the only document of a text; `None` where there is nothing.
pub(super) fn load(text: &str) -> Result<Option<Marked>, DocumentError> {
    if text.len() > DOCUMENT_BYTES_MAX {
        let position = Position { line: 1, column: 1 };
        let message = format!("{} bytes, expected at most {DOCUMENT_BYTES_MAX}", text.len());
        return Err(DocumentError::new(position, message));
    }
    let mut loader = Loader { text, parser: Parser::new_from_str(text) };
    let mut root = None;
    loop {
        match loader.next()? {
            (Event::StreamEnd, _) => return Ok(root.filter(|root: &Marked| !root.is_null())),
            (Event::StreamStart | Event::DocumentEnd | Event::Nothing, _) => {}
            (Event::DocumentStart(_), span) => {
                if root.is_some() {
                    let position = Position::from(&span.start);
                    return Err(DocumentError::new(position, "another document: one is expected".to_owned()));
                }
                let (event, span) = loader.next()?;
                root = Some(loader.value(event, span, 0)?);
            }
            (_, span) => {
                let message = "a value outside of a document".to_owned();
                return Err(DocumentError::new(Position::from(&span.start), message));
            }
        }
    }
}

struct Loader<'a> {
    text: &'a str,
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), DocumentError> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                let position = Position::from(error.marker());
                // The parser may name the end of the line before.
                let mut lines = self.text.lines().zip(1..).skip(position.line - 1).take(2);
                let tab = lines.find_map(|(text, line)| {
                    Some(Position { line, column: text.chars().position(|one| one == '\t')? + 1 })
                });
                Err(match tab {
                    Some(tab) => {
                        DocumentError::new(tab, "not YAML: a tab where blanks are expected".to_owned())
                    }
                    None => DocumentError::new(position, format!("not YAML: {}", error.info())),
                })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn value(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Marked, DocumentError> {
        let position = Position::from(&span.start);
        let refused = |message: String| Err(DocumentError::new(position, message));
        if depth > DEPTH_MAX {
            return refused(format!("nested too deeply, expected at most {DEPTH_MAX} levels"));
        }
        let value = match event {
            Event::Scalar(text, style, _, _) => {
                Value::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => Value::Sequence(self.sequence(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            Event::Alias(_) => return refused("an alias: write the value out".to_owned()),
            _ => return refused("the document ends where a value was expected".to_owned()),
        };
        Ok(Marked { position, value })
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Marked>, DocumentError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.value(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<MapEntry>, DocumentError> {
        let mut entries = Vec::new();
        let mut lines = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let Marked { position, value } = self.value(event, span, depth + 1)?;
            let Value::Scalar { text: key, .. } = value else {
                let message = "a list or map as a key: a word is expected".to_owned();
                return Err(DocumentError::new(position, message));
            };
            if let Some(line) = lines.insert(key.clone(), position.line) {
                let message = format!("key {} again: it stands already in line {line}", quoted(&key));
                return Err(DocumentError::new(position, message));
            }
            let (event, span) = self.next()?;
            let value = self.value(event, span, depth + 1)?;
            entries.push(MapEntry { position, key, value });
        }
    }
}
