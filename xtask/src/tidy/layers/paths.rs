//! The paths in Rust code that lead to other modules of the same crate.
//!
//! Macros that make paths of pieces are not seen through; a `use` with groups, in any nesting, is.

use crate::tidy::product::Token;

/// A path, with each group of a `use` taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Path {
    /// The index of its first token.
    pub(super) at: usize,
    /// Its line, from 1.
    pub(super) line: usize,
    /// Its parts; `*` for all of a module.
    pub(super) parts: Vec<String>,
    /// The name that `as` gives it.
    pub(super) alias: Option<String>,
}

/// The paths that begin with `crate`, `super`, `self` or one of `names`: of `use` declarations and of any
/// other code.
pub(super) fn paths(tokens: &[Token<'_>], names: &[&str]) -> Vec<Path> {
    let begins = |text: &str| ["crate", "super", "self"].contains(&text) || names.contains(&text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_inside = at >= 2 && is_separator(tokens, at - 2);
        if !is_inside && begins(tokens[at].text) && is_separator(tokens, at + 1) {
            at = tree(tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// All paths of the `use` declarations.
pub(super) fn uses(tokens: &[Token<'_>]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at += 1;
        if tokens[at - 1].text == "use" {
            let start = if is_separator(tokens, at) { at + 2 } else { at };
            at = tree(tokens, start, &[], &mut found);
        }
    }
    found
}

/// The module, as parts of its path, that the code of each token is in: the file's own and those in braces
/// around it.
pub(super) fn modules<'a>(tokens: &[Token<'a>], file: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut all = Vec::with_capacity(tokens.len());
    let mut now = file.to_vec();
    // Depths of braces at which the modules inside the file end.
    let (mut depth, mut ends) = (0, Vec::new());
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => {
                depth += 1;
                if index >= 2 && tokens[index - 2].text == "mod" {
                    now.push(tokens[index - 1].text);
                    ends.push(depth);
                }
            }
            "}" => {
                if ends.last() == Some(&depth) {
                    ends.pop();
                    now.pop();
                }
                depth -= 1;
            }
            _ => {}
        }
        all.push(now.clone());
    }
    all
}

fn is_separator(tokens: &[Token<'_>], at: usize) -> bool {
    match tokens.get(at..at + 2) {
        Some([first, second]) => first.text == ":" && second.text == ":" && first.start + 1 == second.start,
        _ => false,
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|one: char| one.is_alphabetic() || one == '_')
}

/// Takes a path, or a tree of them, that begins at `at`; gives the index behind it.
fn tree(tokens: &[Token<'_>], mut at: usize, prefix: &[String], found: &mut Vec<Path>) -> usize {
    let Some(first) = tokens.get(at) else { return at };
    let (start, line) = (at, first.line);
    let mut parts = prefix.to_vec();
    loop {
        match tokens.get(at).map_or("", |token| token.text) {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    let end = tree(tokens, at, &parts, found);
                    at = end.max(at + 1);
                    if tokens.get(at).is_some_and(|token| token.text == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {
                parts.push("*".to_owned());
                found.push(Path { at: start, line, parts, alias: None });
                return at + 1;
            }
            text if is_name(text) => {
                parts.push(text.trim_start_matches("r#").to_owned());
                at += 1;
            }
            _ => break,
        }
        if is_separator(tokens, at) {
            at += 2;
        } else {
            break;
        }
    }
    // `a::{self}` is `a`.
    if parts.len() > 1 && parts.last().is_some_and(|last| last == "self") {
        parts.pop();
    }
    let mut alias = None;
    if let Some([word, name]) = tokens.get(at..at + 2)
        && word.text == "as"
        && is_name(name.text)
    {
        alias = Some(name.text.to_owned());
        at += 2;
    }
    found.push(Path { at: start, line, parts, alias });
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::product::tokens;

    fn text(paths: &[Path]) -> Vec<String> {
        let text = |path: &Path| {
            let alias = path.alias.as_ref().map(|alias| format!(" as {alias}"));
            format!("{} {}{}", path.line, path.parts.join("::"), alias.unwrap_or_default())
        };
        paths.iter().map(text).collect()
    }

    fn check(code: &str, expected: &[&str]) {
        assert_eq!(text(&paths(&tokens(code), &["own"])), expected, "{code}");
    }

    #[test]
    fn paths_are_found_in_code() {
        check("use crate::a;", &["1 crate::a"]);
        check("a(crate::b::C, super::d()); x::crate_::y", &["1 crate::b::C", "1 super::d"]);
        check("pub(crate) fn a(self) {} self.b(); std::a::b", &[]);
        check("own::a::b(); other::own::c", &["1 own::a::b"]);
        check("$crate::a!()", &["1 crate::a"]);
        check("crate::a::B::<crate::c::D>::e()", &["1 crate::a::B", "1 crate::c::D"]);
        check("impl crate::a::B for super::super::c::D {}", &["1 crate::a::B", "1 super::super::c::D"]);
        check("pub(in crate::a) fn b()", &["1 crate::a"]);
    }

    #[test]
    fn groups_are_taken_apart() {
        check("use crate::{a, b::c};", &["1 crate::a", "1 crate::b::c"]);
        check(
            "use crate::{\n    a::{self, b as c},\n    d::*,\n    e::{f::{g}, h},\n};\nuse super::i;",
            &[
                "2 crate::a",
                "2 crate::a::b as c",
                "3 crate::d::*",
                "4 crate::e::f::g",
                "4 crate::e::h",
                "6 super::i",
            ],
        );
        check("use super::{super::a, b};", &["1 super::super::a", "1 super::b"]);
        check("use crate::{", &[]);
        let all = uses(&tokens("pub use a::{B, C as D};\nuse ::e::f; fn g() {}"));
        assert_eq!(text(&all), ["1 a::B", "1 a::C as D", "2 e::f"]);
    }

    #[test]
    fn modules_in_braces_are_parts_of_the_path() {
        let tokens = tokens("a mod b { c mod d { e } f { g } } h");
        let modules = modules(&tokens, &["m"]);
        let of = |name: &str| {
            let index = tokens.iter().position(|token| token.text == name).unwrap();
            modules[index].join("::")
        };
        for (name, expected) in [("a", "m"), ("c", "m::b"), ("e", "m::b::d"), ("g", "m::b"), ("h", "m")] {
            assert_eq!(of(name), expected, "{name}");
        }
    }
}
