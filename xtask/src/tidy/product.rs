//! Rust sources, cut into product and what is there for tests alone.
//!
//! - Test code is an item under `#[cfg(test)]` or `#[cfg(all(.., test, ..))]`, a file of a module that is
//!   declared so, and a file whose path says so (`tests/`, `tests.rs`, `*_tests.rs`).
//! - [`Product::code`] has the lines of the source, with all that is not product as spaces.

use std::collections::BTreeSet;
use std::ops::Range;

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

use super::source::{Source, blank};

/// A word or sign of code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// Bytes before it.
    pub(super) start: usize,
    /// Its line, from 1.
    pub(super) line: usize,
}

/// The words and signs of code that has no comments.
pub(super) fn tokens(code: &str) -> Vec<Token<'_>> {
    let (mut found, mut start, mut line) = (Vec::new(), 0, 1);
    for token in tokenize(code, FrontmatterAllowed::No) {
        let text = &code[start..start + token.len as usize];
        if token.kind != TokenKind::Whitespace {
            found.push(Token { text, start, line });
        }
        line += text.matches('\n').count();
        start += text.len();
    }
    found
}

/// A Rust source that is product.
#[derive(Debug)]
pub(super) struct Product<'a> {
    pub(super) source: &'a Source,
    /// Its code without comments, the insides of literals, and tests.
    pub(super) code: String,
    /// The bytes of the source that are tests.
    tests: Vec<Range<usize>>,
}

impl Product<'_> {
    /// The numbers, from 1, of the lines that have code: no blank ones, none of comments alone, no tests.
    pub(super) fn lines(&self) -> BTreeSet<usize> {
        let (mut lines, mut start, mut line) = (BTreeSet::new(), 0, 1);
        for token in tokenize(&self.source.text, FrontmatterAllowed::No) {
            let text = &self.source.text[start..start + token.len as usize];
            let last = line + text.matches('\n').count();
            let is_code = !matches!(
                token.kind,
                TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
            );
            if is_code && !self.tests.iter().any(|tests| tests.contains(&start)) {
                lines.extend(line..=last);
            }
            (start, line) = (start + text.len(), last);
        }
        lines
    }

    /// The comments, each with the number of its first line, from 1, and what stands in that behind its mark.
    /// Lines of one mark that follow each other are one comment.
    pub(super) fn comments(&self) -> Vec<(usize, &str)> {
        let (mut found, mut start, mut line) = (Vec::new(), 0, 1);
        // The mark of the line above, where that is a comment.
        let mut above = None;
        for token in tokenize(&self.source.text, FrontmatterAllowed::No) {
            let text = &self.source.text[start..start + token.len as usize];
            match token.kind {
                TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => {
                    let words = text.trim_start_matches(['/', '!', '*']);
                    let mark = &text[..text.len() - words.len()];
                    let is_test = self.tests.iter().any(|tests| tests.contains(&start));
                    if above != Some(mark) && !is_test {
                        found.push((line, words.lines().next().unwrap_or_default().trim()));
                    }
                    above = Some(mark);
                }
                TokenKind::Whitespace if text.matches('\n').count() < 2 => {}
                _ => above = None,
            }
            line += text.matches('\n').count();
            start += text.len();
        }
        found
    }
}

/// The Rust sources that are product, in their order: what is below the `src` of a crate.
pub(super) fn product(sources: &[Source]) -> Vec<Product<'_>> {
    let is_rust = |source: &&Source| source.path.ends_with(".rs") && !is_test(&source.path);
    let mut of_tests = BTreeSet::new();
    let mut found = Vec::new();
    for source in sources.iter().filter(is_rust) {
        let (code, tests, modules) = without_tests(source);
        of_tests.extend(modules);
        found.push(Product { source, code, tests });
    }
    // A module that is declared under `cfg(test)` is a file, or a directory with all that is in it.
    found.retain(|one| {
        let path = &one.source.path;
        let mut above = path.match_indices('/').map(|(end, _)| &path[..end]);
        !of_tests.contains(path.trim_end_matches(".rs"))
            && !above.any(|directory| of_tests.contains(directory))
    });
    found
}

/// Whether a path is that of tests, or of what stands beside the sources of a crate.
pub(super) fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_beside = !parts.any(|part| part == "src");
    is_beside || path.ends_with("tests.rs") || parts.any(|part| part == "tests")
}

/// The code of a source with what is under `cfg(test)` as spaces, where that stands, and the modules that
/// are declared there: their paths without `.rs`.
fn without_tests(source: &Source) -> (String, Vec<Range<usize>>, Vec<String>) {
    let tokens = tokens(&source.code);
    let (mut code, mut tests, mut modules) = (source.code.clone(), Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let Some(attribute) = attribute(&tokens[at..]).filter(|one| is_test_attribute(one)) else {
            at += 1;
            continue;
        };
        let is_inner = attribute[1].text == "!";
        let end = if is_inner { tokens.len() } else { item_end(&tokens, at + attribute.len()) };
        let item = &tokens[at..end];
        modules.extend(module_file(source, item));
        let (first, last) = (item[0], item[item.len() - 1]);
        let range = first.start..last.start + last.text.len();
        code.replace_range(range.clone(), &blank(&code[range.clone()]));
        tests.push(range);
        at = end;
    }
    (code, tests, modules)
}

/// The attribute that the tokens begin with, brackets included.
fn attribute<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t [Token<'a>]> {
    let mut texts = tokens.iter().map(|token| token.text);
    let opening = match (texts.next()?, texts.next()?) {
        ("#", "[") => 1,
        ("#", "!") if texts.next()? == "[" => 2,
        _ => return None,
    };
    Some(&tokens[..closing(tokens, opening)])
}

/// Behind the bracket that closes the one at `opening`.
fn closing(tokens: &[Token<'_>], opening: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(opening) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// Whether an attribute has its item compiled in tests alone.
fn is_test_attribute(attribute: &[Token<'_>]) -> bool {
    let text: Vec<_> = attribute.iter().map(|token| token.text).filter(|text| *text != "!").collect();
    let all = ["#", "[", "cfg", "(", "all", "("];
    if text == ["#", "[", "cfg", "(", "test", ")", "]"] {
        return true;
    }
    let Some(conditions) = text.strip_prefix(&all) else { return false };
    let mut depth = 0;
    conditions.iter().any(|text| {
        depth += i32::from(*text == "(") - i32::from(*text == ")");
        depth == 0 && *text == "test"
    })
}

/// Behind the item, statement or field that begins at `start`, its other attributes included.
fn item_end(tokens: &[Token<'_>], mut start: usize) -> usize {
    while let Some(attribute) = attribute(&tokens[start..]) {
        start += attribute.len();
    }
    let is_use = tokens[start..].iter().take(8).any(|token| token.text == "use");
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].text {
            ";" | "," => return at + 1,
            "}" => return at,
            "{" if !is_use => {
                let end = closing(tokens, at);
                let has_more = tokens.get(end).is_some_and(|token| [";", ","].contains(&token.text));
                return end + usize::from(has_more);
            }
            "(" | "[" | "{" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// The path without `.rs` of the module that an item declares with `mod name;`.
fn module_file(source: &Source, item: &[Token<'_>]) -> Option<String> {
    let [.., word, name, end] = item else { return None };
    if word.text != "mod" || end.text != ";" {
        return None;
    }
    let (directory, file) = source.path.rsplit_once('/')?;
    let text = &source.text[item[0].start..end.start];
    if let Some((_, path)) = text.split_once("#[path = \"") {
        return Some(format!("{directory}/{}", path.split('"').next()?.trim_end_matches(".rs")));
    }
    let own = match file {
        "mod.rs" | "lib.rs" | "main.rs" => directory.to_owned(),
        _ => source.path.trim_end_matches(".rs").to_owned(),
    };
    Some(format!("{own}/{}", name.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path.to_owned(), text.to_owned())
    }

    /// The words and signs of `text` that are product.
    fn check(text: &str, expected: &str) {
        let source = source("a/src/b.rs", text);
        let (code, ..) = without_tests(&source);
        assert_eq!(code.len(), text.len(), "{text}");
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
    }

    #[test]
    fn what_is_under_cfg_test_is_no_product() {
        check("a(); #[cfg(test)] mod tests { fn b() { c } } d", "a(); d");
        check("#[cfg(test)] #[allow(x)] fn a() -> [u8; 2] { [1, 2] } b", "b");
        check("#[cfg(test)] use a::{b, c}; d", "d");
        check("#[cfg(test)] const A: B = B { c: 1 }; d", "d");
        check("struct A { #[cfg(test)] a: u8, b: u8 }", "struct A { b: u8 }");
        check("struct A { b: u8, #[cfg(test)] a: u8 }", "struct A { b: u8, }");
        check("#[cfg(all(test, not(loom)))] mod a { b } c", "c");
        check("#[cfg(all(loom, test))] mod a { b } c", "c");
        check("#[cfg(all(loom, not(test)))] fn a() {}", "#[cfg(all(loom, not(test)))] fn a() {}");
        check("#[cfg(any(test, x))] fn a() {}", "#[cfg(any(test, x))] fn a() {}");
        check("#![cfg(test)] a b", "");
        check("// #[cfg(test)]\nmod tests { a }", "mod tests { a }");
        check("#[cfg(test)]\nfn ä() {}\nb", "b");
    }

    #[test]
    fn modules_of_tests_are_files_of_tests() {
        let sources = [
            source("a/src/lib.rs", "#[cfg(test)] mod testing; mod b;"),
            source("a/src/testing.rs", "x"),
            source("a/src/testing/more.rs", "x"),
            source("a/src/b.rs", "#[cfg(test)] #[path = \"models.rs\"] mod tests;\n#[cfg(test)] mod c;"),
            source("a/src/models.rs", "x"),
            source("a/src/b/c.rs", "x"),
            source("a/src/b/d.rs", "x"),
            source("a/src/b/tests.rs", "x"),
            source("a/src/b/d_tests.rs", "x"),
            source("a/tests/e.rs", "x"),
            source("a/examples/f.rs", "x"),
            source("a/README.md", "x"),
        ];
        let found: Vec<_> = product(&sources).iter().map(|one| one.source.path.as_str()).collect();
        assert_eq!(found, ["a/src/lib.rs", "a/src/b.rs", "a/src/b/d.rs"]);
    }

    #[test]
    fn lines_of_code_are_counted() {
        let text = "//! Head.\n\nfn a() {\n    b(\"c\n\n// d\") // e\n}\n/* f\n*/ g\n#[cfg(test)]\nmod tests {\n  h\n}\n";
        let sources = [source("a/src/lib.rs", text)];
        let lines: Vec<_> = product(&sources)[0].lines().into_iter().collect();
        assert_eq!(lines, [3, 4, 5, 6, 7, 9]);
    }

    #[test]
    fn comments_are_found_by_their_first_lines() {
        let text = "//! A\n//! b\n\n// C\n/// D\nfn e() {} // F\n// g\n/* H\ni */\n\n// J\n#[cfg(test)]\nfn k() { // L\n}\n";
        let sources = [source("a/src/lib.rs", text)];
        let product = product(&sources);
        let comments = product[0].comments();
        assert_eq!(comments, [(1, "A"), (4, "C"), (5, "D"), (6, "F"), (8, "H"), (11, "J")]);
    }

    #[test]
    fn tokens_know_their_lines() {
        let found = tokens("a\n  bc::d\n\n;");
        let found: Vec<_> = found.iter().map(|token| (token.text, token.start, token.line)).collect();
        assert_eq!(found, [("a", 0, 1), ("bc", 4, 2), (":", 6, 2), (":", 7, 2), ("d", 8, 2), (";", 11, 4)]);
    }
}
