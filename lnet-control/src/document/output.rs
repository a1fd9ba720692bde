//! Writing documents: a tree of keys and values, and its text in the layout of LNet's tools.
//!
//! Invariants: keys keep their order; nesting takes six columns, a sequence stands in its key's own column; what is
//! written is read back as it was.

use std::fmt::{self, Display, Write};

/// Columns of a level.
const INDENT: usize = 6;

/// A value of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Element {
    /// A text, as it stands in the document.
    Scalar(String),
    /// Keys and values.
    Map(Map),
    /// Values in a row.
    Sequence(Vec<Element>),
}

impl Element {
    /// A number, or another value that needs no quotes ever.
    pub fn plain(value: impl Display) -> Self {
        Self::Scalar(value.to_string())
    }

    /// A text, in quotes where it needs them.
    pub fn text(value: impl Display) -> Self {
        let text = value.to_string();
        if is_plain(&text) { Self::Scalar(text) } else { Self::quoted(&text) }
    }

    /// A text in quotes.
    #[must_use]
    pub fn quoted(text: &str) -> Self {
        let mut quoted = String::from("\"");
        for one in text.chars() {
            match one {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\t' => quoted.push_str("\\t"),
                one if one.is_control() || matches!(one, '\u{2028}' | '\u{2029}' | '\u{FEFF}') => {
                    let _ = write!(quoted, "\\U{:08X}", one as u32);
                }
                one => quoted.push(one),
            }
        }
        quoted.push('"');
        Self::Scalar(quoted)
    }
}

/// Keys and values, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Map(Vec<(String, Element)>);

impl Map {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// These, and this one behind them.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: Element) -> Self {
        self.push(key, value);
        self
    }

    /// These, and this text behind them.
    #[must_use]
    pub fn text(self, key: impl Into<String>, value: impl Display) -> Self {
        self.with(key, Element::text(value))
    }

    /// These, and this number or plain word behind them.
    #[must_use]
    pub fn plain(self, key: impl Into<String>, value: impl Display) -> Self {
        self.with(key, Element::plain(value))
    }

    /// Adds a key and its value.
    pub fn push(&mut self, key: impl Into<String>, value: Element) {
        self.0.push((key.into(), value));
    }

    /// Adds those of another map.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn write(&self, indent: usize, f: &mut impl Write) -> fmt::Result {
        for (position, (key, value)) in self.0.iter().enumerate() {
            // The first key of a sequence's item stands behind the dash.
            if position > 0 {
                write!(f, "{:indent$}", "")?;
            }
            write_value(key, value, indent, f)?;
        }
        Ok(())
    }
}

impl FromIterator<(String, Element)> for Map {
    fn from_iter<I: IntoIterator<Item = (String, Element)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

fn write_value(key: &str, value: &Element, indent: usize, f: &mut impl Write) -> fmt::Result {
    match value {
        Element::Scalar(text) => writeln!(f, "{key}: {text}"),
        Element::Map(map) => {
            writeln!(f, "{key}:")?;
            if !map.is_empty() {
                write!(f, "{:1$}", "", indent + INDENT)?;
            }
            map.write(indent + INDENT, f)
        }
        Element::Sequence(items) => {
            writeln!(f, "{key}:")?;
            items.iter().try_for_each(|item| write_item(item, indent, f))
        }
    }
}

fn write_item(item: &Element, indent: usize, f: &mut impl Write) -> fmt::Result {
    write!(f, "{:indent$}-{:2$}", "", "", INDENT - 1)?;
    match item {
        Element::Scalar(text) => writeln!(f, "{text}"),
        Element::Map(map) => map.write(indent + INDENT, f),
        Element::Sequence(items) => {
            // None of our documents has a sequence in a sequence; still what is written is YAML.
            writeln!(f)?;
            items.iter().try_for_each(|item| write_item(item, indent + INDENT, f))
        }
    }
}

impl Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(0, f)
    }
}

/// Whether a text means itself without quotes, to this reader and to others.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let inside = |one: char| one.is_ascii_alphanumeric() || "_./@+-<>()=,:? ".contains(one);
    let begins = text.starts_with(|one: char| one.is_ascii_alphanumeric() || "_/<(".contains(one));
    let number = text.starts_with(|one: char| one.is_ascii_digit())
        && text.chars().all(|one| one.is_ascii_hexdigit() || "xXoO_.+-:eE".contains(one));
    begins
        && text.chars().all(inside)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !number
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_lnet() {
        let ni = Map::new()
            .text("nid", "10.7.0.11@tcp")
            .with("interfaces", Element::Map(Map::new().text("0", "veth0")));
        let net = Map::new()
            .text("net type", "tcp")
            .with("local NI(s)", Element::Sequence(vec![Element::Map(ni.clone()), Element::Map(ni)]));
        let document = Map::new()
            .with("net", Element::Sequence(vec![Element::Map(net)]))
            .with("empty", Element::Sequence(Vec::new()))
            .with("words", Element::Sequence(vec![Element::text("a"), Element::text("b")]))
            .with("global", Element::Map(Map::new().plain("discovery", 1)));
        let expected = "\
net:
-     net type: tcp
      local NI(s):
      -     nid: 10.7.0.11@tcp
            interfaces:
                  0: veth0
      -     nid: 10.7.0.11@tcp
            interfaces:
                  0: veth0
empty:
words:
-     a
-     b
global:
      discovery: 1
";
        assert_eq!(document.to_string(), expected);
    }

    #[test]
    fn texts_are_quoted_where_they_would_mean_something_else() {
        for plain in ["eth0", "eth0:1", "10.7.0.11@tcp", "0@lo", "<?>", "tcp", "2001:db8::1@tcp", "/tmp/a b"]
        {
            assert_eq!(Element::text(plain), Element::Scalar(plain.to_owned()));
        }
        for other in
            ["", "0", "1.5", "0x1f", "true", "No", "~", "*@tcp", "a: b", "a:", " a", "a ", "#a", "[0]", "é"]
        {
            assert_eq!(Element::text(other), Element::Scalar(format!("\"{other}\"")));
        }
        assert_eq!(
            Element::quoted("a\"b\\c\nd\u{7}"),
            Element::Scalar("\"a\\\"b\\\\c\\nd\\U00000007\"".to_owned())
        );
    }
}
