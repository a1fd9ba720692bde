//! The house rules, one table.

use super::source::{Source, has_word, numbered};
use super::words;

/// Lines of a file, at most.
const FILE_LINES_MAX: usize = 700;

/// Characters of a line of prose in a comment, at most; `rustfmt` sees to code.
const COMMENT_CHARACTERS_MAX: usize = 110;

/// Where `unsafe` may stand.
const UNSAFE_FENCE: [&str; 5] = [
    "lnet-io/src/xsk/",
    "lnet-io/src/reactor/",
    "lnet-io/src/epoll/",
    "lnet-io/src/region/",
    "lnet-ebpf/src/",
];

/// Crates that speak through their return values and through tracing.
const LIBRARIES: [&str; 13] = [
    "lnet-wire/src/",
    "lnet-model/src/",
    "lnet-core/src/",
    "lnet-io/src/",
    "lnet-xdp/proto/src/",
    "lnet-tcp/proto/src/",
    "lnet-xdp/linux/src/",
    "lnet-tcp/linux/src/",
    "lnet-user/src/",
    "lnet-load/src/",
    "lnet-admin/src/",
    "lnet-messaging/src/",
    "lnet-control/src/",
];

/// Where the clock is looked at again and again.
const ONE_CLOCK: [&str; 7] = [
    "lnet-user/src/runtime/spin.rs",
    "lnet-user/src/runtime/thread.rs",
    "lnet-user/src/runtime/turn.rs",
    "lnet-user/src/runtime/worker.rs",
    "lnet-user/src/api/guest.rs",
    "lnet-user/src/api/queue.rs",
    "lnet-user/src/api/waits.rs",
];

/// What marks unfinished work. Written in parts, so that this file does not find itself.
const UNFINISHED: [&str; 5] = [
    concat!("to", "do!("),
    concat!("unimplemen", "ted!("),
    concat!("#[ign", "ore"),
    concat!("#[ ign", "ore"),
    concat!("cfg(an", "y())"),
];

/// Words in comments that mark unfinished work.
const UNFINISHED_WORDS: [&str; 3] =
    [concat!("place", "holder"), concat!("not yet ", "implemented"), concat!("for ", "now")];

/// Directories of one machine: in no file of ours. Home directories and common places for checkouts.
const MACHINE_DIRECTORIES: [&str; 5] = ["home", "root", "Users", "work", "farm"];

/// A finding: the line, from 1, and what is wrong there.
pub(super) type Finding = (usize, String);

/// A house rule.
pub(super) struct Rule {
    /// Its name in findings.
    pub(super) name: &'static str,
    /// The rule, as one would say it.
    pub(super) why: &'static str,
    /// Whether it is about the file of this path.
    pub(super) applies: fn(&str) -> bool,
    /// What it finds in a file.
    pub(super) check: fn(&Source) -> Vec<Finding>,
}

/// All rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "unsafe",
        why: "unsafe stands in lnet-io/src/{xsk,reactor,epoll,region} and lnet-ebpf only",
        applies: |path| is_rust(path) && !UNSAFE_FENCE.iter().any(|fence| path.starts_with(fence)),
        check: |source| {
            let found = ["unsafe", "unsafe_code"].map(|word| lines_of_word(source, word));
            // `deny` and `forbid` are welcome everywhere.
            let found = found.concat().into_iter().filter(|(line, _)| !forbids(source, *line));
            found.collect()
        },
    },
    Rule {
        name: "length",
        why: "a file has at most 700 lines: find the seam",
        applies: is_rust,
        check: |source| {
            let lines = source.text.lines().count();
            let too_long = lines > FILE_LINES_MAX;
            too_long.then(|| (FILE_LINES_MAX + 1, format!("{lines} lines"))).into_iter().collect()
        },
    },
    Rule {
        name: "width",
        why: "a line of a comment has at most 110 characters",
        applies: is_rust,
        check: |source| wide_prose(&source.text),
    },
    Rule {
        name: "unfinished",
        why: "what is committed works, and every test runs",
        applies: is_rust,
        check: |source| {
            let code = UNFINISHED.iter().flat_map(|part| lines_of(&source.code, part));
            let words = UNFINISHED_WORDS.iter().flat_map(|&words| {
                let lines = numbered(&source.text).filter(move |(_, line)| has_word(line, words));
                lines.map(move |(number, _)| (number, format!("`{words}`")))
            });
            code.chain(words).collect()
        },
    },
    Rule {
        name: "replaced word",
        why: "one word for each thing, docs/glossary.md",
        applies: words::is_prose_or_code,
        check: words::retired_words,
    },
    Rule {
        name: "riddle",
        why: "comments and documents name what they mean",
        applies: words::is_prose_or_code,
        check: words::riddles,
    },
    Rule {
        name: "machine path",
        why: "a path of one machine means nothing on another",
        applies: |_| true,
        check: |source| {
            let lines = numbered(&source.text);
            lines.filter_map(|(number, line)| Some((number, machine_path(line)?.to_owned()))).collect()
        },
    },
    Rule {
        name: "module head",
        why: "a module begins with `//!`: what it is and its invariants",
        // What the tests in `tests.rs` and the like are about, the module that they belong to says.
        applies: |path| is_rust(path) && !path.ends_with("/tests.rs") && !path.ends_with("_tests.rs"),
        check: |source| {
            let mut lines = numbered(&source.text);
            let first = lines.find(|(_, line)| !line.trim().is_empty() && !line.starts_with("#!["));
            let missing = !first.is_some_and(|(_, line)| line.starts_with("//!"));
            missing
                .then(|| (first.map_or(1, |(number, _)| number), "no `//!`".to_owned()))
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "aya",
        why: "only lnet-xdp/linux/src/bpf touches aya",
        applies: |path| is_rust(path) && !path.starts_with("lnet-xdp/linux/src/bpf/"),
        check: |source| [lines_of_word(source, "aya"), lines_of_word(source, "aya_log")].concat(),
    },
    Rule {
        name: "clock",
        why: "a shard, what drives it and what waits for it go by one clock, lnet_user::runtime::Clock",
        applies: |path| ONE_CLOCK.iter().any(|fence| path.starts_with(fence)),
        check: |source| {
            let uses = numbered(&source.code).filter(|(_, line)| line.contains("std::time"));
            let uses = uses.filter(|(_, line)| has_word(line, "Instant"));
            uses.map(|(number, _)| (number, "the standard library's `Instant`".to_owned())).collect()
        },
    },
    Rule {
        name: "print",
        why: "a library does not print",
        applies: |path| {
            let library = LIBRARIES.iter().any(|library| path.starts_with(library));
            library && is_rust(path) && !path.contains("/bin/") && !path.ends_with("/main.rs")
        },
        check: |source| {
            let names = ["print", "println", "eprint", "eprintln", "dbg"];
            names.iter().flat_map(|name| lines_of_word(source, &format!("{name}!"))).collect()
        },
    },
    Rule {
        name: "licence",
        why: "every crate is under MIT OR Apache-2.0",
        applies: |path| path == "Cargo.toml" || path.ends_with("/Cargo.toml"),
        check: |source| {
            let ours = ["license.workspace = true", "license = \"MIT OR Apache-2.0\""];
            let has = source.text.lines().any(|line| ours.contains(&line.trim()));
            (!has).then(|| (1, "no licence, or another one".to_owned())).into_iter().collect()
        },
    },
];

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn lines_of(text: &str, part: &str) -> Vec<Finding> {
    let found = numbered(text).filter(|(_, line)| line.contains(part));
    found.map(|(number, _)| (number, format!("`{part}`"))).collect()
}

fn lines_of_word(source: &Source, word: &str) -> Vec<Finding> {
    source.lines_with_word(word).into_iter().map(|line| (line, format!("`{word}`"))).collect()
}

fn forbids(source: &Source, line: usize) -> bool {
    let line = source.code.lines().nth(line - 1).unwrap_or_default();
    ["forbid", "deny"].iter().any(|word| has_word(line, word))
}

/// The machine's directory in `line`, if there is one: at the beginning of a path, with a name behind it.
fn machine_path(line: &str) -> Option<&str> {
    for directory in MACHINE_DIRECTORIES {
        for (start, _) in line.match_indices(directory) {
            let Some(before) = line[..start].strip_suffix('/') else { continue };
            let Some(after) = line[start + directory.len()..].strip_prefix('/') else { continue };
            let inside = before.ends_with(|one: char| one.is_alphanumeric() || "._-/".contains(one));
            if !inside && after.starts_with(|one: char| one.is_alphanumeric() || one == '.') {
                return Some(&line[start - 1..start + directory.len() + 1]);
            }
        }
    }
    None
}

/// Lines of comments that are too long. Tables, drawings and code in comments are no prose.
fn wide_prose(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (number, line) in numbered(text) {
        let marks = ["/// ", "//! ", "// "];
        let Some(words) = marks.iter().find_map(|mark| line.trim_start().strip_prefix(mark)) else {
            is_code &= line.trim_start().starts_with("//");
            continue;
        };
        is_code ^= words.starts_with("```");
        let characters = line.chars().count();
        let is_prose = !is_code && !words.starts_with([' ', '|']);
        if is_prose && characters > COMMENT_CHARACTERS_MAX {
            found.push((number, format!("{characters} characters")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check as findings;

    /// The findings in a file must be `expected`: line and rule.
    fn check(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = findings(&Source::new(path.to_owned(), text.to_owned()));
        let prefixes: Vec<_> =
            expected.iter().map(|(line, rule)| format!("{path}:{line}: {rule}: ")).collect();
        let same = found.len() == prefixes.len()
            && found.iter().zip(&prefixes).all(|(found, prefix)| found.starts_with(prefix));
        assert!(same, "{text}\nexpected {prefixes:?}\nfound {found:?}");
    }

    const HEAD: &str = "//! Head.\n";

    fn rust(path: &str, body: &str, expected: &[(usize, &str)]) {
        check(path, &format!("{HEAD}{body}"), expected);
    }

    #[test]
    fn unsafe_stays_in_its_fence() {
        // Two pieces, so that no search takes it for the real thing.
        const BLOCK: &str = concat!("fn f() { uns", "afe { g() } }");
        for path in
            ["lnet-core/src/md.rs", "lnet-user/src/lnd/xdp.rs", "tests/src/netns.rs", "xtask/src/main.rs"]
        {
            rust(path, BLOCK, &[(2, "unsafe")]);
            rust(path, "#![allow(unsafe_code)]", &[(2, "unsafe")]);
            rust(path, "#![forbid(unsafe_code)]\n// unsafe\nlet x = \"unsafe\";", &[]);
        }
        for path in ["lnet-io/src/xsk/umem.rs", "lnet-io/src/region/lease.rs", "lnet-ebpf/src/main.rs"] {
            rust(path, &format!("#![allow(unsafe_code)]\n{BLOCK}"), &[]);
        }
    }

    #[test]
    fn files_have_an_end() {
        let path = "lnet-core/src/md.rs";
        rust(path, &"\n".repeat(FILE_LINES_MAX - 1), &[]);
        rust(path, &"\n".repeat(FILE_LINES_MAX), &[(701, "length")]);
    }

    #[test]
    fn lines_of_comments_have_an_end() {
        let path = "lnet-core/src/md.rs";
        let prose = |characters: usize| format!("    /// {}", "a".repeat(characters - 8));
        rust(path, &prose(COMMENT_CHARACTERS_MAX), &[]);
        rust(path, &prose(COMMENT_CHARACTERS_MAX + 1), &[(2, "width")]);
        let wide = "a".repeat(COMMENT_CHARACTERS_MAX);
        for (text, expected) in [
            (format!("// | {wide} |"), &[][..]),
            (format!("//!   {wide}"), &[]),
            (format!("/// ```\n/// {wide}\n/// ```"), &[]),
            (format!("/// ```\n/// a\n/// ```\n/// {wide}"), &[(5, "width")]),
            (format!("/// ```\nfn f() {{}}\n/// {wide}"), &[(4, "width")]),
        ] {
            rust(path, &text, expected);
        }
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_in_words() {
        let path = "lnet-core/src/md.rs";
        for part in UNFINISHED {
            rust(path, &format!("a\n{part}"), &[(3, "unfinished")]);
            rust(path, &format!("let a = r#\"{part}\"#;"), &[]);
        }
        for words in UNFINISHED_WORDS {
            rust(path, &format!("// good {words}"), &[(2, "unfinished")]);
        }
        rust(path, concat!("// wait for ", "nowhere"), &[]);
    }

    #[test]
    fn paths_of_a_machine_are_found_in_any_text() {
        let path = |directory: &str| format!("see {}{directory}{}file", '/', '/');
        for directory in MACHINE_DIRECTORIES {
            check("README.md", &path(directory), &[(1, "machine path")]);
            rust("lnet-core/src/md.rs", &format!("// {}", path(directory)), &[(2, "machine path")]);
        }
        let inside = format!("/sys{}work{}x a{}home{}b", '/', '/', '/', '/');
        check("README.md", &inside, &[]);
        check("README.md", "homework / root /", &[]);
        check("README.md", &format!("homework, {}", path("home")), &[(1, "machine path")]);
    }

    #[test]
    fn modules_begin_with_what_they_are() {
        let path = "lnet-core/src/md.rs";
        check(path, "", &[(1, "module head")]);
        check(path, "use core;\n", &[(1, "module head")]);
        check(path, "\n// words\n", &[(2, "module head")]);
        check(path, "#![no_std]\n\n//! Head.\n", &[]);
        check(path, "//! Head.\n", &[]);
        check("lnet-core/src/md/tests.rs", "use super::*;\n", &[]);
        check("lnet-user/src/xsk/plain_tests.rs", "use super::*;\n", &[]);
        check("tests/src/contests.rs", "use super::*;\n", &[(1, "module head")]);
    }

    #[test]
    fn the_tables_name_what_there_is() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for path in UNSAFE_FENCE.into_iter().chain(LIBRARIES).chain(ONE_CLOCK) {
            assert!(root.join(path).exists(), "{path}");
        }
    }

    #[test]
    fn only_bpf_touches_aya() {
        rust("lnet-xdp/linux/src/bpf/mod.rs", "use aya::Ebpf;", &[]);
        rust("lnet-user/src/lnd/xdp.rs", "use aya::Ebpf;", &[(2, "aya")]);
        rust("tests/src/bpf.rs", "aya_log::x();", &[(2, "aya")]);
        rust("lnet-ebpf/src/main.rs", "use aya_ebpf::x; // aya", &[]);
    }

    #[test]
    fn a_shard_has_one_clock() {
        for line in ["use std::time::{Duration, Instant};", "let now = std::time::Instant::now();"] {
            rust("lnet-user/src/runtime/thread.rs", line, &[(2, "clock")]);
            rust("lnet-user/src/api/waits.rs", line, &[(2, "clock")]);
            rust("lnet-user/src/api/runner.rs", line, &[]);
        }
        rust("lnet-user/src/runtime/thread.rs", "use lnet_core::time::Instant;", &[]);
    }

    #[test]
    fn libraries_do_not_print() {
        for name in ["print", "println", "eprint", "eprintln", "dbg"] {
            rust("lnet-user/src/api.rs", &format!("{name}!(\"x\");"), &[(2, "print")]);
        }
        rust("lnet-user/src/bin/lnetd.rs", "println!();", &[]);
        rust("lnet-user/src/main.rs", "println!();", &[]);
        rust("bench/src/lib.rs", "println!();", &[]);
        rust("lnet-core/src/md.rs", "writeln!(f); // println!", &[]);
    }

    #[test]
    fn crates_name_the_licence() {
        check("a/Cargo.toml", "license.workspace = true", &[]);
        check("Cargo.toml", "license = \"MIT OR Apache-2.0\"", &[]);
        check("a/Cargo.toml", "license = \"GPL-2.0\"", &[(1, "licence")]);
        check("a/Cargo.toml", "[package]", &[(1, "licence")]);
    }
}
