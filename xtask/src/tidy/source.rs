//! A file as the rules see it: Rust text without its comments and literals, and the comments alone.

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// A text file.
#[derive(Debug)]
pub(super) struct Source {
    /// Its path below the workspace's root, with `/` between the parts.
    pub(super) path: String,
    /// All of it.
    pub(super) text: String,
    /// Rust only: `text` with comments and literals as spaces, byte by byte where it was.
    pub(super) code: String,
    /// Rust: `text` with all but the comments as spaces. Other files: `text`.
    pub(super) prose: String,
}

impl Source {
    pub(super) fn new(path: String, text: String) -> Self {
        let is_rust = path.ends_with(".rs");
        let (code, prose) = if is_rust { split(&text) } else { (String::new(), text.clone()) };
        Self { path, text, code, prose }
    }

    /// The numbers, from 1, of the lines of code that have `word` as a whole word.
    pub(super) fn lines_with_word(&self, word: &str) -> Vec<usize> {
        numbered(&self.code).filter(|(_, line)| has_word(line, word)).map(|(number, _)| number).collect()
    }
}

/// The lines of `text` with their numbers from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Whether `word` is in `line` and neither follows nor precedes a letter, digit or underscore.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// A space for each byte of `text`, but for the ends of its lines.
pub(super) fn blank(text: &str) -> String {
    text.bytes().map(|one| if one == b'\n' { '\n' } else { ' ' }).collect()
}

/// `text` twice: with comments and the insides of string and character literals as spaces, and with all but
/// the comments as spaces.
fn split(text: &str) -> (String, String) {
    use LiteralKind::{Float, Int};
    let (mut code, mut prose) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    let mut rest = text;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let (taken, left) = rest.split_at(token.len as usize);
        let spaces = || blank(taken);
        match token.kind {
            TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => {
                code.push_str(&spaces());
                prose.push_str(taken);
            }
            TokenKind::Literal { kind, .. } if !matches!(kind, Int { .. } | Float { .. }) => {
                code.push_str(&spaces());
                prose.push_str(&spaces());
            }
            _ => {
                code.push_str(taken);
                prose.push_str(&spaces());
            }
        }
        rest = left;
    }
    (code, prose)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(split(text).0, expected, "{text}");
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */\nd */ e", "a             \n     e");
        check(r#"x("a\"b", y)"#, "x(      , y)");
        check("r\"a\\\" + r#\"b\"c\"# + d", "      +          + d");
        check("br\"u\" + b\"u\" + c\"u\"", "      +      +     ");
        check("let c = ['\\'', 'x', '\"']; u", "let c = [    ,    ,    ]; u");
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("for_r\"a\" + r#type", "for_r    + r#type");
        check("\"open", "     ");
        check("'ä' + \"ö\nü\" // ß\nx", "     +    \n         \nx");
    }

    #[test]
    fn comments_alone_stay_in_their_lines() {
        assert_eq!(split("a // b\n\"// c\" /* d\ne */ f").1, "  // b\n       /* d\ne */  ");
        assert_eq!(Source::new("a.md".into(), "a // b".into()).prose, "a // b");
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("aya::x", "aya") && has_word("(aya)", "aya") && has_word("not_aya aya", "aya"));
        assert!(!has_word("aya_ebpf malaya ayacht", "aya"));
        let source = Source::new("a.rs".into(), "// aya\nuse aya;\n\"aya\"\naya_log\nx(aya)".into());
        assert_eq!(source.lines_with_word("aya"), [2, 5]);
    }
}
