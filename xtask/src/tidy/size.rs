//! `cargo xtask tidy --size`: how much code there is.
//!
//! A line of code is one that is neither blank nor a comment, nor a test's (`product`). Programs and examples
//! beside the sources of a crate are not counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::manifest::package;
use super::product::Product;
use super::source::Source;

/// Crates that are no product, whose size is told apart.
const APART: [&str; 2] = ["bench", "xtask"];
/// Directories of crates that are tests.
const TESTS: &str = "tests";

/// A table of the lines of code of each crate, with their sum over the product.
pub(super) fn table(sources: &[Source], product: &[Product<'_>]) -> String {
    let manifests = sources.iter().filter(|source| package(&source.text).is_some());
    let mut crates: BTreeMap<&str, usize> = manifests
        .filter_map(|source| source.path.strip_suffix("/Cargo.toml"))
        .filter(|directory| directory.split('/').next() != Some(TESTS))
        .map(|directory| (directory, 0))
        .collect();
    for one in product {
        if let Some((directory, _)) = one.source.path.split_once("/src/")
            && let Some(lines) = crates.get_mut(directory)
        {
            *lines += one.lines().len();
        }
    }
    let (apart, product): (Vec<_>, Vec<_>) = crates.into_iter().partition(|(name, _)| APART.contains(name));
    let total = product.iter().map(|(_, lines)| lines).sum();
    let mut text = String::new();
    for (name, lines) in product.into_iter().chain([("product", total)]).chain(apart) {
        // Nothing can go wrong with a string.
        let _ = writeln!(text, "{name:<20} {lines:>7}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::product::product;
    use super::*;

    #[test]
    fn crates_are_counted_and_added() {
        let source = |path: &str, text: &str| Source::new(path.to_owned(), text.to_owned());
        let manifest =
            |directory: &str| source(&format!("{directory}/Cargo.toml"), "[package]\nname = \"x\"");
        let mut sources: Vec<_> =
            ["a", "a/proto", "bench", "tests", "tests/loom", "xtask"].map(manifest).into();
        sources.extend([
            source("a/src/lib.rs", "fn a() {}\n\nfn b() {}\n#[cfg(test)]\nmod tests {}"),
            source("a/src/tests.rs", "fn c() {}"),
            source("a/tests/d.rs", "fn d() {}"),
            source("a/examples/d.rs", "fn d() {}"),
            source("a/proto/src/lib.rs", "// One.\nfn e() {}"),
            source("bench/src/lib.rs", "fn f() {}"),
            source("tests/src/lib.rs", "fn g() {}"),
            source("xtask/src/main.rs", "fn h()\n{\n}\n"),
        ]);
        let table = table(&sources, &product(&sources));
        let rows: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(rows, [["a", "2"], ["a/proto", "1"], ["product", "3"], ["bench", "1"], ["xtask", "3"]]);
    }
}
