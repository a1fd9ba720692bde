//! Texts whose characters know where they stand in a file.

use crate::document::Position;

/// A text, and where its parts stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LegacyText {
    text: String,
    /// Offsets from which on characters stand side by side, each with its place.
    marks: Vec<(usize, Position)>,
}

impl LegacyText {
    /// A text of its own, which begins in line 1 and column 1.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let (mut line, mut column) = (1, 1);
        let located = |one| {
            let position = Position { line, column };
            (line, column) = if one == '\n' { (line + 1, 1) } else { (line, column + 1) };
            (one, position)
        };
        text.chars().map(located).collect()
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the character at an offset stands; behind the last one, where the next would.
    #[must_use]
    pub fn position(&self, offset: usize) -> Position {
        let mark = self.marks.partition_point(|(start, _)| *start <= offset).checked_sub(1);
        let Some((start, position)) = mark.and_then(|mark| self.marks.get(mark)) else {
            return Position { line: 1, column: 1 };
        };
        let before = self.text.get(*start..offset).map_or(0, |text| text.chars().count());
        Position { column: position.column + before, ..*position }
    }
}

/// Characters of a file, those between which others were left out among them.
impl FromIterator<(char, Position)> for LegacyText {
    fn from_iter<I: IntoIterator<Item = (char, Position)>>(characters: I) -> Self {
        let (mut text, mut marks) = (String::new(), Vec::new());
        let mut next = None;
        for (one, position) in characters {
            // Marks stand at separators too, so that none has a long text behind it.
            if next != Some(position) || text.ends_with([';', ',']) {
                marks.push((text.len(), position));
            }
            next = Some(Position { column: position.column + 1, ..position });
            text.push(one);
        }
        Self { text, marks }
    }
}
