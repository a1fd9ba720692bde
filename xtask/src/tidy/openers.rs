//! The first words of comments: the noun that a sentence is about, or the verb of what a function does.
//!
//! A crate whose comments are not clean has a row in [`LEFT`], and its number never grows. A crate without a
//! row is clean, or its files come from one that has a row: the sum of all does not grow either.

use std::collections::BTreeMap;

use super::product::Product;

/// Words that no comment begins with: a reader who comes to it first does not know what they stand for.
const OPENERS: &[&str] = &[
    "As",
    "But",
    "It",
    "It's",
    "None does",
    "Of",
    "One at",
    "One by",
    "One for",
    "One from",
    "One in",
    "One of",
    "One on",
    "One that",
    "One to",
    "One which",
    "One who",
    "One whose",
    "One with",
    "So",
    "Such",
    "That",
    "The same",
    "Their",
    "These are",
    "They",
    "This has",
    "This is",
    "Those",
];

/// Crates with comments that begin so, and how many each may have. What is mended is taken off here.
const LEFT: &[(&str, usize)] = &[];

/// The file of the table.
const FILE: &str = "xtask/src/tidy/openers.rs";

/// Findings of [`check`].
#[derive(Default)]
pub(super) struct Found {
    /// Findings, as `path:line: opener: what`, of crates that have more than is left.
    pub(super) findings: Vec<String>,
    /// Crates that have fewer, where their row can be lowered.
    pub(super) lower: Vec<String>,
}

/// Looks at the comments of all crates.
pub(super) fn check(product: &[Product<'_>]) -> Found {
    check_against(LEFT, product)
}

fn check_against(left: &[(&str, usize)], product: &[Product<'_>]) -> Found {
    let mut crates: BTreeMap<&str, Vec<String>> = left.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for one in product {
        let path = &one.source.path;
        let directory = path.split_once("/src/").map_or("", |(directory, _)| directory);
        let openers = one.comments().into_iter().filter_map(|(line, text)| Some((line, opener(text)?)));
        let found = openers
            .map(|(line, opener)| format!("{path}:{line}: opener: a comment begins with \"{opener}\""));
        crates.entry(directory).or_default().extend(found);
    }
    let mut found = Found::default();
    let (sum, sum_max) =
        (crates.values().map(Vec::len).sum::<usize>(), left.iter().map(|(_, count)| count).sum());
    for (name, its) in crates {
        let allowed = left.iter().find(|(left, _)| *left == name).map(|(_, count)| *count);
        if allowed.map_or(sum > sum_max, |allowed| its.len() > allowed) {
            found.findings.extend(its);
        } else if allowed.is_some_and(|allowed| its.len() < allowed) {
            found.lower.push(format!("{name} {}", its.len()));
        }
    }
    if !found.findings.is_empty() {
        found.findings.push(format!("{FILE}:1: opener: {sum} comments begin so, where {sum_max} are left"));
    }
    found
}

/// The opener that the text of a comment begins with.
fn opener(text: &str) -> Option<&'static str> {
    let is_next =
        |rest: &str| !rest.starts_with(|one: char| one.is_alphanumeric() || one == '_' || one == '\'');
    OPENERS.iter().copied().find(|opener| text.strip_prefix(opener).is_some_and(is_next))
}

#[cfg(test)]
mod tests {
    use super::super::product::product;
    use super::super::source::Source;
    use super::*;

    #[test]
    fn openers_are_whole_words() {
        for opened in OPENERS {
            assert_eq!(opener(&format!("{opened} ends.")), Some(*opened));
            assert_eq!(opener(&format!("{opened}ends")), None);
            assert_eq!(opener(&format!("The end. {opened} ends.")), None);
        }
        assert_eq!(opener("One slot is free."), None);
        assert_eq!(opener("Its name."), None);
    }

    #[test]
    fn crates_have_no_more_than_is_left() {
        let text = "//! It is.\n/// As that.\n/// It goes on.\nfn a() {} // That\n\n// Words.\n\n// Those\nfn b() {}\n\
                    #[cfg(test)]\nmod tests {\n    // It\n}\n";
        let sources = [
            Source::new("a/b/src/lib.rs".to_owned(), text.to_owned()),
            Source::new("c/src/lib.rs".to_owned(), "// Words.\n".to_owned()),
        ];
        let found = |left: &[(&str, usize)]| check_against(left, &product(&sources));
        let lines = ["1", "2", "4", "8"].map(|line| format!("a/b/src/lib.rs:{line}: opener: "));
        let sum = |count: u32| {
            format!("xtask/src/tidy/openers.rs:1: opener: 4 comments begin so, where {count} are left")
        };
        for (left, count) in
            [(&[][..], 0), (&[("a/b", 3)], 3), (&[("a/b", 3), ("d", 9)], 12), (&[("d", 3)], 3)]
        {
            let findings = found(left).findings;
            let are =
                findings.len() == 5 && findings.iter().zip(&lines).all(|(one, line)| one.starts_with(line));
            assert!(are && findings[4] == sum(count), "{findings:?}");
        }
        assert!(found(&[("d", 4)]).findings.is_empty());
        let exact = found(&[("a/b", 4)]);
        assert!(exact.findings.is_empty() && exact.lower.is_empty());
        let more = found(&[("a/b", 5), ("c", 1)]);
        assert!(more.findings.is_empty());
        assert_eq!(more.lower, ["a/b 4", "c 0"]);
    }
}
