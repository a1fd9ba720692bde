//! Who may use whom: the crates of the workspace, and the modules at the top of each.
//!
//! - [`TABLE`] has all arrows. A dependency of a manifest, or a path in the sources, that is no arrow of the
//!   table is a finding; so is a row for what is no longer there.
//! - A row names what has its row before it, so the table has no circles, neither among crates nor among the
//!   modules of one.
//! - Tests, examples, benches and the programs in `src/bin` stand above all modules and are not looked at.
//!   A root (`lib.rs`, `main.rs`) knows all modules of its crate. What the root takes from a module is the
//!   module's; what the root defines itself is the module [`ROOT`]'s.

mod paths;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::{dependencies, package};
use super::product::{Product, Token, tokens};
use super::source::Source;
pub(super) use table::TABLE;

/// The rule, as one would say it.
pub(super) const WHY: &str =
    "what may use what is in xtask/src/tidy/layers/table.rs; a new arrow is a change of the design";

/// The file of the table.
const TABLE_FILE: &str = "xtask/src/tidy/layers/table.rs";

/// The name in rows of what a crate's root defines itself.
const ROOT: &str = "crate";

/// A crate, and what it may use.
pub(super) struct Crate {
    /// The package.
    name: &'static str,
    /// Its directory, below the workspace's root.
    directory: &'static str,
    /// The crates of this workspace that its code may depend on.
    crates: &'static [&'static str],
    /// The crates of others.
    others: Others,
    /// Crates that its tests may depend on besides.
    tests: Tests,
    /// A row for each of its modules.
    modules: &'static [Module],
}

/// The crates of others that a crate may depend on.
enum Others {
    Any,
    Only(&'static [&'static str]),
}

/// The crates that tests of a crate may depend on.
#[derive(PartialEq, Eq)]
enum Tests {
    Any,
    /// The crates that its code may, since other crates' tests depend on this crate.
    AsCode,
}

/// A module at the top of a crate, with the others that it may name.
type Module = (&'static str, &'static [&'static str]);

/// Compares the manifests and the product's sources with the table.
/// Findings are `path:line: layer: what`.
pub(super) fn check(table: &[Crate], sources: &[Source], product: &[Product<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let manifests: BTreeMap<_, _> = sources
        .iter()
        .filter(|source| source.path.ends_with("/Cargo.toml"))
        .filter_map(|source| Some((package(&source.text)?, source)))
        .collect();
    for (name, manifest) in &manifests {
        if !table.iter().any(|row| row.name == name) {
            found.push(format!("{}:1: layer: {name} lacks rows", manifest.path));
        }
    }
    for row in table {
        match manifests
            .get(row.name)
            .filter(|manifest| manifest.path == format!("{}/Cargo.toml", row.directory))
        {
            Some(manifest) => {
                check_manifest(row, manifest, &manifests.keys().map(String::as_str).collect(), &mut found);
                check_modules(row, product, &mut found);
            }
            None => found.push(format!("{}:1: layer: a row for a crate that is not there", row.directory)),
        }
    }
    let crates = table.iter().map(|row| (row.name, row.crates));
    found.extend(upward(crates).map(|what| format!("{TABLE_FILE}:1: layer: {what}")));
    found
}

fn check_manifest(row: &Crate, manifest: &Source, ours: &BTreeSet<&str>, found: &mut Vec<String>) {
    for dependency in dependencies(&manifest.text) {
        let package = dependency.package.as_str();
        let is_free = dependency.dev && row.tests == Tests::Any;
        let is_allowed = match &row.others {
            _ if is_free || row.crates.contains(&package) => true,
            _ if ours.contains(package) => false,
            Others::Any => true,
            Others::Only(packages) => dependency.dev || packages.contains(&package),
        };
        if !is_allowed {
            let line = dependency.line;
            found.push(format!("{}:{line}: layer: {} depends on {package}", manifest.path, row.name));
        }
    }
}

fn check_modules(row: &Crate, product: &[Product<'_>], found: &mut Vec<String>) {
    let rows = row.modules;
    let sources = format!("{}/src/", row.directory);
    let files: Vec<_> = product
        .iter()
        .filter_map(|one| Some((module_path(one.source.path.strip_prefix(&sources)?)?, one)))
        .collect();
    let modules: BTreeSet<_> = files.iter().filter_map(|(path, _)| path.first().copied()).collect();
    for (module, below) in rows {
        for name in below.iter().chain([module]).filter(|name| **name != ROOT && !modules.contains(*name)) {
            found.push(format!("{sources}:1: layer: a row for {name}, which is not there"));
        }
    }
    found.extend(upward(rows.iter().copied()).map(|what| format!("{TABLE_FILE}:1: layer: {what}")));
    let library = row.name.replace('-', "_");
    let roots = files.iter().filter(|(path, _)| path.is_empty());
    let root = roots.flat_map(|(_, root)| root_names(root, &modules, &library));
    let macros = files.iter().flat_map(|(path, one)| macro_names(one).map(|name| (name, path.first())));
    let macros = macros.filter_map(|(name, module)| Some((name, Some((*module?).to_owned()))));
    let root: BTreeMap<_, _> = root.chain(macros).collect();
    for (path, one) in &files {
        let Some(module) = path.first() else { continue };
        let Some((_, below)) = rows.iter().find(|(name, _)| name == module) else {
            found.push(format!("{}:1: layer: `{module}` has no row", one.source.path));
            continue;
        };
        for (line, name) in foreign(one, path, &library) {
            let target = if modules.contains(name.as_str()) {
                name.as_str()
            } else {
                match root.get(&name) {
                    Some(Some(module)) => module,
                    Some(None) => continue,
                    None => ROOT,
                }
            };
            if target != *module && !below.contains(&target) {
                let via = if target == name { String::new() } else { format!(" (by `{name}`)") };
                let path = &one.source.path;
                found.push(format!("{path}:{line}: layer: `{module}` names `{target}`{via}"));
            }
        }
    }
}

/// The module of a file below `src`, as parts of its path; empty for a root, `None` for a program of
/// `src/bin`.
fn module_path(file: &str) -> Option<Vec<&str>> {
    let file = file.strip_suffix(".rs")?;
    let mut parts: Vec<_> = file.split('/').collect();
    if parts[0] == "bin" {
        return None;
    }
    if matches!(parts[..], ["lib" | "main"]) || parts.last() == Some(&"mod") {
        parts.pop();
    }
    Some(parts)
}

/// The names that a root takes from elsewhere, with the module that each is from; `None` for those of other
/// crates.
fn root_names(root: &Product<'_>, modules: &BTreeSet<&str>, library: &str) -> Vec<(String, Option<String>)> {
    let uses = paths::uses(&tokens(&root.code));
    let name = |path: paths::Path| {
        let name = path.alias.or_else(|| path.parts.last().cloned())?;
        let mut parts = path.parts.into_iter();
        let is_here = |part: &String| ["crate", "self", library].contains(&part.as_str());
        let module = parts.find(|part| !is_here(part))?;
        Some((name, modules.contains(module.as_str()).then_some(module)))
    };
    uses.into_iter().filter_map(name).collect()
}

/// The macros that a file defines: exported ones are named as if they were the root's.
fn macro_names(one: &Product<'_>) -> impl Iterator<Item = String> {
    let tokens = tokens(&one.code);
    let names = tokens.windows(3).filter(|three| three[0].text == "macro_rules" && three[1].text == "!");
    names.map(|three| three[2].text.to_owned()).collect::<Vec<_>>().into_iter()
}

/// Names at the top of its crate that a file uses, each once, with its line.
fn foreign(one: &Product<'_>, file: &[&str], library: &str) -> BTreeSet<(usize, String)> {
    let tokens: Vec<Token<'_>> = tokens(&one.code);
    let modules = paths::modules(&tokens, file);
    let names = paths::paths(&tokens, &[library]).into_iter().filter_map(|path| {
        let mut parts = path.parts.iter().map(String::as_str).peekable();
        let mut above = match parts.peek() {
            Some(&part) if part == "crate" || part == library => {
                parts.next();
                0
            }
            _ => modules[path.at].len(),
        };
        while let Some(part) = parts.next_if(|part| ["self", "super"].contains(part)) {
            above -= usize::from(part == "super" && above > 0);
        }
        (above == 0).then(|| Some((path.line, parts.next()?.to_owned()))).flatten()
    });
    names.collect()
}

/// The first row that names what has a row at or behind its own. Where there is none, there is no circle.
fn upward<'a>(rows: impl Iterator<Item = (&'a str, &'a [&'a str])>) -> Option<String> {
    let rows: Vec<_> = rows.collect();
    rows.iter().enumerate().find_map(|(index, (name, below))| {
        let above = rows[index..].iter().map(|(name, _)| name).find(|name| below.contains(name))?;
        Some(format!("the row of {name} names {above}, whose row does not stand before it"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::product::product;
    use super::*;

    const MODULES: &[Module] = &[("a", &[]), ("b", &["a"]), ("c", &["b", ROOT])];
    const LOW: Crate = Crate {
        name: "low",
        directory: "low",
        crates: &[],
        others: Others::Only(&["serde"]),
        tests: Tests::Any,
        modules: &[],
    };
    const HIGH: Crate = Crate {
        name: "high-up",
        directory: "up/high",
        crates: &["low"],
        others: Others::Any,
        tests: Tests::AsCode,
        modules: MODULES,
    };
    const LOW_MANIFEST: (&str, &str) = ("low/Cargo.toml", "[package]\nname = \"low\"");
    const HIGH_MANIFEST: (&str, &str) = ("up/high/Cargo.toml", "[package]\nname = \"high-up\"");

    fn check_files(table: &[Crate], files: &[(&str, &str)], expected: &[&str]) {
        let source = |(path, text): &(&str, &str)| Source::new((*path).to_owned(), (*text).to_owned());
        let sources: Vec<_> = files.iter().map(source).collect();
        let found = check(table, &sources, &product(&sources));
        assert_eq!(found, expected, "{files:?}");
    }

    /// Checks files of the crate `high-up` whose modules there are.
    fn check_high(files: &[(&str, &str)], expected: &[&str]) {
        let table = &[LOW, HIGH];
        let mut all = vec![LOW_MANIFEST, HIGH_MANIFEST];
        for file in ["a", "b", "c", "lib"] {
            let path = format!("up/high/src/{file}.rs");
            if !files.iter().any(|(given, _)| *given == path || path == given.replace("/mod.rs", ".rs")) {
                all.push((path.leak(), ""));
            }
        }
        all.extend(files);
        check_files(table, &all, expected);
    }

    #[test]
    fn crates_depend_on_what_the_table_says() {
        let table = &[LOW, Crate { modules: &[], ..HIGH }];
        let check = |low: &str, high: &str, expected: &[&str]| {
            let low = format!("{}\n{low}", LOW_MANIFEST.1);
            let high = format!("{}\n{high}", HIGH_MANIFEST.1);
            check_files(table, &[(LOW_MANIFEST.0, &low), (HIGH_MANIFEST.0, &high)], expected);
        };
        check("", "", &[]);
        check("[dependencies]\nserde = \"1\"", "[dependencies]\nlow = \"1\"\nclap = \"1\"", &[]);
        check("[dependencies]\nclap = \"1\"", "", &["low/Cargo.toml:4: layer: low depends on clap"]);
        check("[dev-dependencies]\nclap = \"1\"\nhigh-up = \"1\"", "", &[]);
        check(
            "[dependencies]\nx = { package = \"high-up\", path = \"..\" }",
            "",
            &["low/Cargo.toml:4: layer: low depends on high-up"],
        );
        let table = &[LOW, Crate { crates: &[], modules: &[], ..HIGH }];
        let high = format!("{}\n[dev-dependencies]\nlow = \"1\"\nclap = \"1\"", HIGH_MANIFEST.1);
        let expected = ["up/high/Cargo.toml:4: layer: high-up depends on low"];
        check_files(table, &[LOW_MANIFEST, (HIGH_MANIFEST.0, &high)], &expected);
    }

    #[test]
    fn modules_name_what_the_table_says() {
        check_high(&[("up/high/src/b.rs", "use crate::a::A; fn f() { crate::b::g(); super::a::h() }")], &[]);
        check_high(&[("up/high/src/a.rs", "\nuse crate::b;")], &["up/high/src/a.rs:2: layer: `a` names `b`"]);
        check_high(
            &[
                ("up/high/src/a/mod.rs", ""),
                ("up/high/src/a/d.rs", "use super::e;\nuse super::super::{c::D, a};"),
            ],
            &["up/high/src/a/d.rs:2: layer: `a` names `c`"],
        );
        check_high(
            &[("up/high/src/b.rs", "mod x { mod y { use super::super::super::{\na,\nc}; use super::c; } }")],
            &["up/high/src/b.rs:3: layer: `b` names `c`"],
        );
        check_high(
            &[("up/high/src/b.rs", "fn f() { high_up::c::g() }")],
            &["up/high/src/b.rs:1: layer: `b` names `c`"],
        );
        let tests = "#[cfg(test)]\nmod tests { use crate::c; }\n// crate::c\nconst A: &str = \"crate::c\";";
        check_high(&[("up/high/src/a.rs", tests), ("up/high/src/bin/d.rs", "use high_up::c;")], &[]);
    }

    #[test]
    fn what_a_root_takes_from_a_module_is_the_modules() {
        let root =
            "mod a; mod b; mod c;\npub use a::A;\nuse low::L;\npub use crate::c::{C, D as E};\nstruct R;";
        let check = |file: &str, text: &str, expected: &[&str]| {
            let path = format!("up/high/src/{file}.rs");
            check_high(&[("up/high/src/lib.rs", root), (&path, text)], expected);
        };
        check("b", "use crate::{A, L};", &[]);
        check("b", "use crate::E;", &["up/high/src/b.rs:1: layer: `b` names `c` (by `E`)"]);
        check("b", "use super::R;", &["up/high/src/b.rs:1: layer: `b` names `crate` (by `R`)"]);
        check("c", "use crate::R;", &[]);
        check("b", "use crate::*;", &["up/high/src/b.rs:1: layer: `b` names `crate` (by `*`)"]);
    }

    #[test]
    fn a_macro_is_its_modules() {
        let (defined, used) = ("#[macro_export]\nmacro_rules! named { () => {} }", "use crate::named;");
        check_high(&[("up/high/src/a.rs", defined), ("up/high/src/b.rs", used)], &[]);
        check_high(
            &[("up/high/src/c.rs", defined), ("up/high/src/b.rs", used)],
            &["up/high/src/b.rs:1: layer: `b` names `c` (by `named`)"],
        );
    }

    #[test]
    fn rows_and_modules_are_the_same_ones() {
        check_high(&[("up/high/src/d.rs", "")], &["up/high/src/d.rs:1: layer: `d` has no row"]);
        let table = &[Crate { crates: &[], ..HIGH }];
        let files = [HIGH_MANIFEST, ("up/high/src/b.rs", ""), ("up/high/src/c.rs", "")];
        let expected = ["up/high/src/:1: layer: a row for a, which is not there"; 2];
        check_files(table, &files, &expected);
        check_files(
            table,
            &[LOW_MANIFEST],
            &[
                "low/Cargo.toml:1: layer: low lacks rows",
                "up/high:1: layer: a row for a crate that is not there",
            ],
        );
    }

    #[test]
    fn rows_that_name_what_is_above_them_are_found() {
        let check = |rows: &[Module], expected: Option<&str>| {
            let found = upward(rows.iter().copied());
            let expected =
                expected.map(|what| format!("the row of {what}, whose row does not stand before it"));
            assert_eq!(found, expected, "{rows:?}");
        };
        check(MODULES, None);
        check(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])], Some("a names b"));
        check(&[("a", &["a"])], Some("a names a"));
        check(&[("a", &["x"]), ("b", &["a", "c"]), ("c", &[])], Some("b names c"));
        check_files(
            &[Crate { crates: &["low"], ..LOW }],
            &[LOW_MANIFEST],
            &[
                "xtask/src/tidy/layers/table.rs:1: layer: the row of low names low, whose row does not stand before it",
            ],
        );
    }

    /// The rules are for the sources as they are: a table that no longer says anything of them has no use.
    #[test]
    fn the_table_says_something_of_every_crate_that_it_names() {
        for row in TABLE {
            assert!(!row.name.is_empty() && !row.directory.ends_with('/'), "{}", row.name);
            let rows = row.modules;
            let names: BTreeSet<_> = rows.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), rows.len(), "{}: a module has two rows", row.name);
        }
        let names: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len(), "a crate has two rows");
    }
}
