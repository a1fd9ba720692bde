//! The words of the house: `docs/glossary.md` says which word a thing has, and this file finds those that are
//! replaced.
//!
//! - Identifiers are compared word by word: `inflow` is found in `new_inflow` and in `OfInflow`. A word that
//!   is plain English elsewhere (`place`) is no finding in tests, nor in a name of four words and more, which
//!   is a sentence.
//! - Comments and documents are searched for words that are never plain English here, and for riddles:
//!   pronouns in place of the noun that a reader needs.

use std::collections::BTreeMap;

use super::product::{Product, tokens};
use super::rules::Finding;
use super::source::{Source, has_word, numbered};

/// The page that lists the replaced words.
const GLOSSARY: &str = "docs/glossary.md";

/// A word that is replaced.
struct Retired {
    word: &'static str,
    /// What to write instead.
    instead: &'static str,
    scope: Scope,
    /// Parts of names in which it is no finding.
    except: &'static [&'static str],
}

/// Where a replaced word is a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Names, comments and documents.
    Everywhere,
    /// Names of the product's crates, tests excepted, of fewer than [`SENTENCE_WORDS`] words: elsewhere it is
    /// plain English.
    Names,
}

/// Words from which on a name is a sentence, such as a test's.
const SENTENCE_WORDS: usize = 4;

const fn retired(word: &'static str, instead: &'static str, scope: Scope) -> Retired {
    Retired { word, instead, scope, except: &[] }
}

/// All of them, in singular and plural where there are both.
const RETIRED: [Retired; 27] = [
    retired("contact", "path", Scope::Everywhere),
    retired("contacts", "paths", Scope::Everywhere),
    retired("detour", "failover", Scope::Everywhere),
    retired("flow", "send stream", Scope::Names),
    retired("flows", "send streams", Scope::Names),
    retired("foreseen", "prefetch hint", Scope::Everywhere),
    retired("glance", "idle poll", Scope::Everywhere),
    retired("glances", "idle polls", Scope::Everywhere),
    retired("heard", "received from, traffic", Scope::Names),
    retired("held", "buffered frame, delayed message", Scope::Names),
    retired("inflow", "receive stream", Scope::Everywhere),
    retired("inflows", "receive streams", Scope::Everywhere),
    retired("kept", "delayed message, buffered, captured", Scope::Names),
    retired("leave", "detach, enqueue", Scope::Names),
    retired("lingering", "zero-copy send", Scope::Everywhere),
    retired("notice", "control frame, event", Scope::Names),
    retired("notices", "control frames, events", Scope::Names),
    retired("parcel", "hand-off", Scope::Everywhere),
    retired("parcels", "hand-offs", Scope::Everywhere),
    retired("parked", "deferred, unresolved, delayed", Scope::Names),
    Retired { except: &["in_place"], ..retired("place", "slot, index, position", Scope::Names) },
    retired("places", "slots, indices, positions", Scope::Names),
    retired("roused", "retry", Scope::Everywhere),
    retired("visitor", "a sibling's message", Scope::Everywhere),
    retired("visitors", "siblings' messages", Scope::Everywhere),
    Retired { except: &["under_way"], ..retired("way", "path, route", Scope::Names) },
    retired("ways", "paths, return rings", Scope::Names),
];

/// Words that make a reader guess whom they mean.
const RIDDLES: [&str; 8] =
    ["whoever", "whomever", "nobody", "somebody", "anybody", "no one", "someone", "anyone"];

/// Type names that belong to one type at most, over all of [`PRODUCT`].
const ONE_TYPE: [&str; 12] = [
    "Change",
    "DropRule",
    "Interface",
    "NiRecord",
    "Node",
    "NumberRange",
    "Part",
    "Peer",
    "Record",
    "RequestError",
    "ShardPort",
    "Steering",
];

/// The product's crates.
const PRODUCT: [&str; 16] = [
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
    "lnet-ebpf/src/",
    "lnetctl/src/",
    "lnetd/src/",
];

pub(super) fn is_prose_or_code(path: &str) -> bool {
    let names_them = path == GLOSSARY || path == "xtask/src/tidy/words.rs";
    (path.ends_with(".rs") || path.ends_with(".md")) && !names_them
}

fn is_below(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

/// Replaced words, with what to write instead.
pub(super) fn retired_words(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in numbered(&source.code) {
        for name in names(line) {
            let words = words_of(name);
            let joined = format!("_{}_", words.join("_"));
            let is_name = words.len() < SENTENCE_WORDS && is_product(&source.path);
            let its = RETIRED.iter().filter(|retired| is_name || retired.scope == Scope::Everywhere);
            let its = its.filter(|retired| is_in_name(retired, &joined));
            found.extend(its.map(|retired| (number, format!("`{name}`: say {}", retired.instead))));
        }
    }
    for (number, line) in numbered(&source.prose) {
        let lower = line.to_lowercase();
        let its = RETIRED.iter().filter(|retired| retired.scope == Scope::Everywhere);
        let its = its.filter(|retired| has_word(&lower, retired.word));
        found.extend(its.map(|retired| (number, format!("`{}`: say {}", retired.word, retired.instead))));
    }
    found.sort();
    found
}

/// Whether a replaced word is in the name whose words `joined` holds, each between two underscores.
fn is_in_name(retired: &Retired, joined: &str) -> bool {
    let rest = retired.except.iter().fold(joined.to_owned(), |rest, part| rest.replace(part, ""));
    rest.contains(&format!("_{}_", retired.word))
}

/// Pronouns in place of nouns.
pub(super) fn riddles(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in numbered(&source.prose) {
        let lower = line.to_lowercase();
        let its = RIDDLES.iter().filter(|riddle| has_word(&lower, riddle));
        found.extend(its.map(|riddle| (number, format!("`{riddle}`"))));
    }
    found
}

/// The definitions of types that share one of the [`ONE_TYPE`] names, as `path:line`, with the name.
pub(super) fn shared_names(sources: &[Source]) -> Vec<(String, usize, &'static str)> {
    let mut found = Vec::new();
    for name in ONE_TYPE {
        let sources = sources.iter().filter(|source| is_product(&source.path));
        let its: Vec<_> = sources.flat_map(|source| definitions(source, name)).collect();
        if its.len() > 1 {
            found.extend(its.into_iter().map(|(path, line)| (path, line, name)));
        }
    }
    found
}

/// Crates above the node, and beside it, whose types share names with no other crate's.
const ABOVE_THE_NODE: [&str; 10] = [
    "lnet-ebpf",
    "lnet-messaging",
    "lnet-nettest",
    "lnet-selftest",
    "lnetctl",
    "lnetd",
    "lst",
    "bench",
    "tests",
    "xtask",
];

/// Names of three types and more in the crates of the node, at most.
const MANY_MAX: usize = 0;

/// The names that three types and more have, over all crates of the node, with the places where these are
/// defined; and how many such names there may be.
pub(super) fn many(product: &[Product<'_>]) -> (BTreeMap<String, Vec<String>>, usize) {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in product {
        let path = &one.source.path;
        if ABOVE_THE_NODE.contains(&path.split('/').next().unwrap_or_default()) {
            continue;
        }
        let tokens = tokens(&one.code);
        for pair in
            tokens.windows(2).filter(|pair| ["struct", "enum", "union", "trait"].contains(&pair[0].text))
        {
            if pair[1].text.starts_with(|one: char| one.is_uppercase()) {
                names.entry(pair[1].text.to_owned()).or_default().push(format!("{path}:{}", pair[1].line));
            }
        }
    }
    names.retain(|_, places| places.len() > 2);
    (names, MANY_MAX)
}

fn is_product(path: &str) -> bool {
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    is_below(path, &PRODUCT) && !is_test
}

fn definitions(source: &Source, name: &str) -> Vec<(String, usize)> {
    let defines = |line: &str| {
        let mut names = names(line);
        names.any(|one| ["struct", "enum", "union", "trait", "type"].contains(&one))
            && names.next() == Some(name)
    };
    let lines = numbered(&source.code).filter(|(_, line)| defines(line));
    lines.map(|(number, _)| (source.path.clone(), number)).collect()
}

/// The identifiers and keywords of a line of code.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split(|one: char| !one.is_alphanumeric() && one != '_');
    parts.filter(|part| part.starts_with(|one: char| one.is_alphabetic() || one == '_'))
}

/// The words of a name, in lower case: those between underscores, and those that begin with a capital.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for character in name.chars() {
        let begins = before == '_' || character.is_uppercase() && !before.is_uppercase();
        before = character;
        if character == '_' {
            continue;
        }
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(character.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path.to_owned(), text.to_owned())
    }

    /// The replaced words in a text must make `expected` findings, by line.
    fn check(text: &str, expected: &[usize]) {
        let found = retired_words(&source("lnet-core/src/md.rs", text));
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, expected, "{text}: {found:?}");
    }

    #[test]
    fn names_are_taken_apart() {
        let check = |name: &str, expected: &[&str]| assert_eq!(words_of(name), expected, "{name}");
        check("new_inflow", &["new", "inflow"]);
        check("OfInflow", &["of", "inflow"]);
        check("DETOUR_NS", &["detour", "ns"]);
        check("_place", &["place"]);
        check("__", &[]);
        assert_eq!(names("fn f(a_b: &'x Cd) -> 7u8").collect::<Vec<_>>(), ["fn", "f", "a_b", "x", "Cd"]);
    }

    #[test]
    fn replaced_words_are_found_in_names() {
        check("struct OfInflow;\nlet new_inflow = 1;\nconst DETOUR: u8 = 1;", &[1, 2, 3]);
        check("fn leave(self) {}\nlet place = kept;", &[1, 2, 2]);
        check("let inflowing = overflow; sin6_flowinfo(placement, gateway, always)", &[]);
        check("sent_in_place(); is_under_way(); let x = \"a contact\";", &[]);
        check("under_way_by(way)", &[1]);
        check("fn a_place_that_is_kept() {}", &[]);
        check("fn a_visitor_that_is_kept() {}", &[1]);
        for path in ["lnet-xdp/proto/src/tests/wire.rs", "lnet-core/tests/node/main.rs", "bench/src/put.rs"] {
            let found = retired_words(&source(path, "let kept = 1;\nlet contact = 1;"));
            assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2], "{path}");
        }
    }

    #[test]
    fn replaced_nouns_are_found_in_comments_and_documents() {
        check("/// A contact.\nx // Its inflows.\n/* glance */", &[1, 2, 3]);
        check("// It is kept in place, by the way, and contactless.", &[]);
        let found = retired_words(&source("docs/steering.md", "A Contact.\nA place."));
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn riddles_are_found_in_comments_and_documents() {
        let found = |path: &str, text: &str| riddles(&source(path, text)).len();
        for riddle in RIDDLES {
            assert_eq!(found("a.rs", &format!("// Of {riddle}'s.\n")), 1, "{riddle}");
            assert_eq!(found("a.md", &format!("Of {riddle}.\n")), 1, "{riddle}");
            assert_eq!(found("a.rs", &format!("let a = \"{riddle}\";\n")), 0, "{riddle}");
        }
        assert_eq!(found("a.md", "One of them; whose; anyone's, Nobody"), 2);
    }

    #[test]
    fn the_pages_that_name_the_words_may() {
        for path in [GLOSSARY, "xtask/src/tidy/words.rs", "lnet-core/Cargo.toml"] {
            assert!(!is_prose_or_code(path), "{path}");
        }
    }

    #[test]
    fn names_of_three_types_are_found() {
        let sources = [
            source("lnet-core/src/a.rs", "struct Peer;\nenum Link<T> {}\nimpl Peer {}"),
            source("lnet-tcp/proto/src/a.rs", "pub(crate) trait Peer {}\n// struct Link;\nunion Link {}"),
            source(
                "lnet-user/src/a.rs",
                "mod b { struct Peer; }\n#[cfg(test)]\nstruct Link;\ntype Link = u8;",
            ),
            source("lnetctl/src/a.rs", "struct Link;"),
        ];
        let (names, _) = many(&crate::tidy::product::product(&sources));
        let places = ["lnet-core/src/a.rs:1", "lnet-tcp/proto/src/a.rs:1", "lnet-user/src/a.rs:1"];
        assert_eq!(names, BTreeMap::from([("Peer".to_owned(), places.map(str::to_owned).to_vec())]));
    }

    #[test]
    fn definitions_of_types_are_found() {
        let check = |path: &str, text: &str, expected: &[usize]| {
            let found = definitions(&source(path, text), "Peer");
            assert_eq!(found.iter().map(|(_, line)| *line).collect::<Vec<_>>(), expected, "{text}");
        };
        check(
            "lnet-core/src/peer.rs",
            "pub(crate) struct Peer {\nenum Peer<'a> {\ntype Peer = X;",
            &[1, 2, 3],
        );
        check("lnet-core/src/peer.rs", "// struct Peer\nstruct Peers;\nimpl Peer {}\nfn f(p: Peer);", &[]);
        assert!(is_product("lnet-core/src/peer.rs"));
        for path in
            ["lnet-xdp/proto/src/tests/wire.rs", "lnet-io/src/xsk/plain_tests.rs", "tests/src/peer.rs"]
        {
            assert!(!is_product(path), "{path}");
        }
    }
}
