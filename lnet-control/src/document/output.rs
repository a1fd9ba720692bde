//! Writing documents: values in the layout of LNet's tools.
//!
//! Invariants: keys keep their order; nesting takes six columns, a sequence stands in its key's own column;
//! what is written is read back as it was.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

use serde_json::Value;

/// Columns of a level.
const INDENT: usize = 6;
/// The key of texts for people, which stand in quotes whatever they say.
const DESCRIPTION: &str = "descr";

/// Keys and values, in order.
pub type Map = serde_json::Map<String, Value>;

/// A document as YAML.
#[derive(Clone, Copy, Debug)]
pub struct Yaml<'a>(pub &'a Map);

impl Display for Yaml<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_map(self.0, 0, f)
    }
}

fn write_map(map: &Map, indent: usize, f: &mut Formatter<'_>) -> fmt::Result {
    for (position, (key, value)) in map.iter().enumerate() {
        let key = key_text(key);
        // The first key of a sequence's item stands behind the dash.
        if position > 0 {
            write!(f, "{:indent$}", "")?;
        }
        match value {
            Value::Object(map) => {
                writeln!(f, "{key}:")?;
                if !map.is_empty() {
                    write!(f, "{:1$}", "", indent + INDENT)?;
                }
                write_map(map, indent + INDENT, f)?;
            }
            Value::Array(items) => {
                writeln!(f, "{key}:")?;
                items.iter().try_for_each(|item| write_item(item, indent, f))?;
            }
            Value::String(text) if *key == *DESCRIPTION => writeln!(f, "{key}: {}", quoted(text))?,
            other => writeln!(f, "{key}: {}", scalar(other))?,
        }
    }
    Ok(())
}

fn write_item(item: &Value, indent: usize, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "{:indent$}-{:2$}", "", "", INDENT - 1)?;
    match item {
        Value::Object(map) => write_map(map, indent + INDENT, f),
        other => writeln!(f, "{}", scalar(other)),
    }
}

/// A value in one line; a text in quotes where it needs them.
pub(super) fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A key, in quotes where it would mean something else; the numbers of a map stand without.
fn key_text(key: &str) -> Cow<'_, str> {
    let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || is_plain(key) { Cow::Borrowed(key) } else { Cow::Owned(quoted(key)) }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for one in text.chars() {
        match one {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\'' => quoted.push('\''),
            // Also what ends lines elsewhere, or changes the order of what is read.
            one if one.escape_debug().len() > 1 => {
                let _ = write!(quoted, "\\U{:08X}", one as u32);
            }
            one => quoted.push(one),
        }
    }
    quoted + "\""
}

/// Whether a text means itself without quotes, to this reader and to others. Where a value is `on` or `off`,
/// the truth that YAML 1.1 takes it for is what it means.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 7] = ["null", "true", "false", "yes", "no", "y", "n"];
    let inside = |one: char| one.is_ascii_alphanumeric() || "_./@+-<>()[]*=,:? ".contains(one);
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
    use serde_json::json;

    use super::*;

    #[test]
    fn the_layout_is_that_of_lnet() {
        let ni = json!({"nid": "10.7.0.11@tcp", "interfaces": {"0": "veth0"}});
        let document = json!({
            "net": [{"net type": "tcp", "local NI(s)": [ni, ni]}],
            "empty": [],
            "words": ["a", "b"],
            "global": {"discovery": 1},
            "error": {"descr": "plain"},
        });
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
error:
      descr: \"plain\"
";
        assert_eq!(Yaml(document.as_object().unwrap()).to_string(), expected);
    }

    #[test]
    fn texts_are_quoted_where_they_would_mean_something_else() {
        for plain in [
            "eth0",
            "eth0:1",
            "10.7.0.11@tcp",
            "0@lo",
            "<?>",
            "tcp",
            "2001:db8::1@tcp",
            "/tmp/a b",
            "tcp*",
            "10.[1-2].0.*@tcp",
        ] {
            assert_eq!(scalar(&json!(plain)), plain);
        }
        for other in
            ["", "0", "1.5", "0x1f", "true", "No", "~", "*@tcp", "a: b", "a:", " a", "a ", "#a", "[0]", "é"]
        {
            assert_eq!(scalar(&json!(other)), format!("\"{other}\""));
        }
        assert_eq!(quoted("a\"b\\c\nd\u{7}"), "\"a\\\"b\\\\c\\nd\\U00000007\"");
        assert_eq!(quoted("it's \u{202e}\u{9b}"), "\"it's \\U0000202E\\U0000009B\"");
        let keys = json!({"a\nb: 1": 1, "\u{1b}[2J": 2, "": 3, "local NI(s)": 4, "0": 5});
        let expected = "\"a\\nb: 1\": 1\n\"\\U0000001B[2J\": 2\n\"\": 3\nlocal NI(s): 4\n0: 5\n";
        assert_eq!(Yaml(keys.as_object().unwrap()).to_string(), expected);
    }
}
