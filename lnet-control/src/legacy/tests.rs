use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::document::{Yaml, parse};

fn read(kind: LegacyKind, text: &str) -> Legacy {
    kind.read(&LegacyText::new(text)).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

/// A string that must be refused with these mistakes.
#[track_caller]
fn refused(kind: LegacyKind, text: &str, expected: &[&str]) {
    let errors = kind.read(&LegacyText::new(text)).unwrap_err();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors, expected, "{text}");
}

/// Checks how a string is printed.
#[track_caller]
fn printed(kind: LegacyKind, text: &str, expected: &str) {
    let legacy = read(kind, text);
    assert_eq!(string(kind, &legacy), expected, "{text}");
    let notes: Vec<_> = legacy.notes.iter().map(|note| note.value.clone()).collect();
    assert_eq!(notes, [""; 0], "{text}");
}

const NETWORKS: LegacyKind = LegacyKind::Networks;
const IP2NETS: LegacyKind = LegacyKind::Ip2nets;
const ROUTES: LegacyKind = LegacyKind::Routes;

#[test]
fn strings_are_read_as_their_authors_have_them() {
    printed(NETWORKS, "tcp0(eth0),o2ib(ib0)", "tcp(eth0),o2ib(ib0)");
    printed(NETWORKS, " tcp (eth0, eth1[0,2-3])[1] , xdp1 ", "tcp(eth0,eth1[0,2,3])[1],xdp1");
    printed(NETWORKS, "tcp(eth0)[0,1]", "tcp(eth0)[0,1]");
    printed(NETWORKS, "", "");
    printed(IP2NETS, "tcp(eth0) 10.0.0.*", "tcp(eth0) 10.0.0.*");
    printed(
        IP2NETS,
        "tcp0(eth0) 192.168.0.[2,4]; tcp1 10.[0-3].*.[8-16/4]\n\n# none\n;",
        "tcp(eth0) 192.168.0.[2,4]; tcp1 10.[0-3].*.[8-16/4]",
    );
    printed(
        IP2NETS,
        "tcp,o2ib2(ib0,ib1)[1] 10.*.*.* [1, 2].0.0.1",
        "tcp,o2ib2(ib0,ib1)[1] 10.*.*.* [1,2].0.0.1",
    );
    printed(IP2NETS, "tcp 10.0.0.0/8 2001:db8::/32", "tcp 10.0.0.0/8 2001:db8::/32");
    printed(IP2NETS, "tcp [10-20].0.0.1", "tcp [10-20].0.0.1");
    printed(IP2NETS, "tcp 10.0.0.1 # the head; tcp1 10.0.0.2", "tcp 10.0.0.1; tcp1 10.0.0.2");
    printed(
        ROUTES,
        "o2ib 10.0.0.[1-4]@tcp; tcp2 2 10.0.0.9@tcp0:1",
        "o2ib 10.0.0.[1-4]@tcp; tcp2 2 10.0.0.9@tcp0:1",
    );
    printed(
        ROUTES,
        "o2ib[1-3] 1 10.0.0.1@tcp 10.0.0.2@tcp:7\ngni 7@kfi",
        "o2ib[1-3] 1 10.0.0.1@tcp 10.0.0.2@tcp:7; gni 7@kfi",
    );
    printed(ROUTES, "tcp1 2001:db8::1@tcp:3", "tcp1 2001:db8::1@tcp:3");
    printed(
        ROUTES,
        "tcp7: { gateway: 10.3.3.[6-12]@tcp, priority: 20, hop: 8 }",
        "tcp7 8 10.3.3.[6-12]@tcp:20",
    );
    printed(ROUTES, "tcp7:{gateway:10.3.3.[6,7]@tcp}", "tcp7 10.3.3.[6,7]@tcp");
}

#[test]
fn mistakes_are_told_with_their_places() {
    let net = "expected a net whose name is one of lo, tcp, o2ib, gni, gip, ptlf, kfi, efa, bxi3f, xdp";
    refused(NETWORKS, "tcp(eth0),foo(eth1)", &[&format!("line 1, column 11: \"foo\": {net}")]);
    refused(NETWORKS, "tcp(eth0", &["line 1, column 4: \"(eth0\": a ( without its )"]);
    refused(NETWORKS, "tcp eth0)", &["line 1, column 5: \"eth0)\": expected a comma before the next net"]);
    refused(
        NETWORKS,
        "tcp(eth0)x",
        &["line 1, column 10: \"x\": expected a blank, a comma, or interfaces in parentheses"],
    );
    refused(NETWORKS, "lo", &["line 1, column 1: net lo is always as it is"]);
    refused(
        NETWORKS,
        "tcp(eth0,eth0)",
        &["line 1, column 5: interface \"eth0\" again: each is expected once"],
    );
    refused(
        NETWORKS,
        "tcp()",
        &["line 1, column 5: \"\": expected interfaces such as eth0,eth1[0,1], with CPTs in the brackets"],
    );
    refused(
        IP2NETS,
        "tcp(eth0) 10.0.0.*; tcp1\ntcp2 10.0.0.256",
        &[
            "line 1, column 21: \"tcp1\": a rule without addresses: expected nets, and behind them addresses \
             such as 10.0.[1-9].*",
            "line 2, column 6: \"10.0.0.256\": expected addresses such as 10.0.[1-9].*, 10.0.0.0/16 or \
             2001:db8::/64",
        ],
    );
    refused(IP2NETS, "tcp,tcp 10.0.0.*", &["line 1, column 5: net tcp again: a rule has each net once"]);
    refused(
        ROUTES,
        "tcp1",
        &[
            "line 1, column 1: \"tcp1\": a route without a gateway: expected a net, and behind it NIDs such as \
         10.0.0.1@tcp",
        ],
    );
    refused(
        ROUTES,
        "tcp1 0 10.0.0.1@tcp",
        &["line 1, column 6: invalid hop count must be between 1 and 255: \"0\""],
    );
    refused(
        ROUTES,
        "tcp1 10.0.0.1",
        &["line 1, column 6: \"10.0.0.1\": expected a gateway such as 10.0.0.1@tcp or \
         10.0.0.[1-4]@tcp:1"],
    );
    refused(
        ROUTES,
        "tcp1 10.0.0.1@tcp:x",
        &["line 1, column 6: invalid priority, it must be from 0 to 4294967295: \"x\""],
    );
    refused(
        ROUTES,
        "tcp1: { gateway: 10.0.0.1@tcp, hops: 1 }",
        &["line 1, column 32: \"hops: 1\": expected gateway, priority or hop"],
    );
}

/// A range that would make millions of NIDs is refused at once, with their number.
#[test]
fn ranges_are_counted_before_they_are_enumerated() {
    refused(
        ROUTES,
        "tcp1 10.[0-255].[0-255].[0-255]@tcp",
        &[
            "line 1, column 6: \"10.[0-255].[0-255].[0-255]@tcp\": 16777216 nids, expected at most 65536 nids \
         in all",
        ],
    );
    refused(
        ROUTES,
        "tcp[1-60000] 10.0.[0-255].[0-255]@tcp",
        &["line 1, column 1: 3932160000 routes, expected at most 65536"],
    );
    refused(
        ROUTES,
        "tcp[1-40000] 10.0.0.1@tcp; o2ib[1-40000] 10.0.0.2@tcp",
        &["line 1, column 28: 80000 routes, expected at most 65536"],
    );
    // Several words of a rule have room together, and so have those of a rule in braces.
    refused(
        ROUTES,
        "tcp1 10.0.[0-255].[0-254]@tcp 10.1.0.[0-255]@tcp 10.2.0.1@tcp",
        &["line 1, column 50: \"10.2.0.1@tcp\": the gateways of a rule have at most 65536 NIDs"],
    );
    refused(
        ROUTES,
        "tcp1: { gateway: 10.0.[0-255].[0-255]@tcp, gateway: 10.2.0.1@tcp }",
        &["line 1, column 53: \"10.2.0.1@tcp\": the gateways of a rule have at most 65536 NIDs"],
    );
    // Addresses of hosts are matched, and not enumerated.
    printed(IP2NETS, "tcp *.*.*.*", "tcp *.*.*.*");
}

/// Strings as long as they may be are read, or refused, in a few seconds and with little memory.
#[test]
fn the_longest_strings_take_little_time() {
    let long = |part: &str| part.repeat(LEGACY_BYTES_MAX / part.len());
    let took = |kind: LegacyKind, text: String| {
        let begun = Instant::now();
        let read = kind.read(&LegacyText::new(&text));
        assert!(begun.elapsed() < Duration::from_secs(60), "{} {:?}", &text[..60], begun.elapsed());
        read.map(|legacy| legacy.notes.len())
    };
    // Gateways: 38,000 words of 65,536 NIDs each, in one rule, in braces, and in comments.
    let word = " 10.0.[0-255].[0-255]@tcp";
    assert!(took(ROUTES, format!("tcp1{}", &long(word)[..LEGACY_BYTES_MAX - 100])).is_err());
    let key = "gateway: 10.0.[0-255].[0-255]@tcp,";
    assert!(
        took(ROUTES, format!("tcp1: {{ {} hop: 1 }}", &long(key)[..LEGACY_BYTES_MAX / 34 * 33])).is_err()
    );
    let comments = |words: &str| long(&format!("tcp1 10.0.0.1@tcp # {}\n", words.repeat(30)));
    assert_ne!(took(ROUTES, comments(&format!("tcp1{word} x "))), Ok(0));
    assert_eq!(took(ROUTES, comments("tcp1 10.0.0.[0-63]@tcp x ")), Ok(0));
    // Many rules and entries, and many names in one of them.
    assert_eq!(took(ROUTES, long("gni 7@kfi;")[..650_000].to_owned()), Ok(0));
    assert_eq!(took(NETWORKS, long("tcp1,").trim_end_matches(',').to_owned()), Ok(0));
    let numbered = |name: &str, most: u32| (1..most).map(|at| format!("{name}{at},")).collect::<String>();
    assert_eq!(took(NETWORKS, format!("tcp({}b)", numbered("a", 140_000))), Ok(0));
    let nets = numbered("tcp", 65_000) + &numbered("gni", 50_000);
    assert_eq!(took(IP2NETS, format!("{nets}xdp 10.*.*.*")), Ok(0));
}

/// The last value of a parameter counts, however many there are.
#[test]
fn the_last_values_of_modprobe_are_found_in_little_time() {
    let line = "options lnet networks=tcp1 networks=tcp2 routes=x other=1\n";
    let lines = line.repeat(LEGACY_BYTES_MAX / line.len());
    let options: Vec<_> = module_options(&lines).into_iter().map(|one| ("a".to_owned(), one)).collect();
    let begun = Instant::now();
    let (in_force, notes) = taken("lnet", options.clone());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(in_force, options[options.len() - 3..]);
    assert_eq!(notes.len(), options.len() - 3);
    let first = "a: line 1, column 14: networks is passed over: modprobe takes the last one, in a: line ";
    assert!(notes[0].starts_with(first), "{}", notes[0]);
}

#[test]
fn a_rule_in_a_comment_is_told() {
    let notes = |kind, text| {
        let legacy = read(kind, text);
        legacy.notes.iter().map(|note| format!("{}: {}", note.position, note.value)).collect::<Vec<_>>()
    };
    let told = notes(IP2NETS, "tcp(eth0) 10.0.0.* # heads  tcp1(eth1) 10.1.*.*");
    assert_eq!(
        told,
        ["line 1, column 29: the comment has \"tcp1(eth1) 10.1.*.*\", which looks like a rule: a comment \
          goes on until the next ; or the end of the line"]
    );
    assert_eq!(notes(ROUTES, "tcp1 10.0.0.1@tcp # also o2ib 10.0.0.2@tcp").len(), 1);
    assert_eq!(notes(ROUTES, "tcp1 10.0.0.1@tcp # also o2ib 10.0.[0-3].[0-255]@tcp").len(), 1);
    assert_eq!(notes(IP2NETS, "tcp 10.0.0.* # tcp is what heads have").len(), 0);
}

#[test]
fn files_of_modprobe_are_read_as_modprobe_reads_them() {
    let file = "\
# options lnet networks=tcp9
alias a b
options lnet networks=\"tcp0(eth0), tcp1(eth1)\" \"routes=o2ib 10.0.0.1@tcp\"
options ko2iblnd-opa peer_credits=128
 options lnet 'ip2nets=\"tcp(eth0) 10.0.0.*; \\
o2ib(ib0) foo\"' check_routers_before_use=1
options
options lnet
options lnet word
";
    let options = module_options(file);
    let told: Vec<_> = options
        .iter()
        .map(|one| format!("{} {} {}={}", one.position.line, one.module, one.name, one.value.text()))
        .collect();
    assert_eq!(
        told,
        [
            "3 lnet networks=tcp0(eth0), tcp1(eth1)",
            "3 lnet routes=o2ib 10.0.0.1@tcp",
            "4 ko2iblnd_opa peer_credits=128",
            "5 lnet ip2nets=tcp(eth0) 10.0.0.*; o2ib(ib0) foo",
            "6 lnet check_routers_before_use=1",
        ]
    );
    // A mistake behind a joined line is told by its own place.
    let errors = IP2NETS.read(&options[3].value).unwrap_err();
    assert!(
        errors[0].to_string().starts_with("line 6, column 11: \"foo\": expected addresses"),
        "{errors:?}"
    );
}

/// Modprobe text and the document that it is converted to say the same (test 617 of the catalogue).
#[test]
fn a_document_says_what_the_strings_say() {
    let strings = "\
options lnet networks=\"tcp(eth0,eth1[1])[0],xdp1\"
options lnet routes=\"o2ib[1-2] 3 10.0.0.[1-2]@tcp:5 10.0.0.9@tcp; gni 10.0.0.7@tcp\"
";
    let mut legacy = Legacy::default();
    for option in module_options(strings) {
        legacy.append(LegacyKind::of_name(&option.name).unwrap().read(&option.value).unwrap());
    }
    for expands in [false, true] {
        let conversion = Conversion { expands, ..Conversion::default() };
        let yaml = Yaml(&conversion.document(&legacy).unwrap()).to_string();
        let changes =
            |document: Document| document.items.into_iter().map(|item| item.action).collect::<Vec<_>>();
        let made = changes(parse(&yaml, crate::document::Mode::Add).unwrap());
        assert_eq!(made, changes(legacy.document(ChoiceForm::Module, NiOptions::default())), "{yaml}");
    }
}

fn word(regex: &'static str) -> impl Strategy<Value = String> {
    proptest::string::string_regex(regex).unwrap()
}

prop_compose! {
    fn number()(low in 0_u32..200, length in 0_u32..50, step in 1_u32..9) -> String {
        match (length, step) {
            (0, _) => low.to_string(),
            (_, 1) => format!("[{low}-{}]", low + length),
            _ => format!("[{low},{}-{}/{step}]", low + 1, low + 1 + length),
        }
    }
}

fn address() -> impl Strategy<Value = String> {
    let octets =
        (number(), number(), number(), number()).prop_map(|(a, b, c, d)| format!("1{a}.{b}.{c}.{d}"));
    prop_oneof![
        (number(), number(), number()).prop_map(|(b, c, d)| format!("10.{b}.{c}.{d}")),
        octets.prop_filter("an octet of a number alone", |text| pattern_of(text)),
        (1_u8..=128).prop_map(|bits| format!("2001:db8::/{bits}")),
        Just("*.*.*.*".to_owned()),
    ]
}

fn pattern_of(text: &str) -> bool {
    lnet_model::pattern::addresses(text).is_ok()
}

fn entry() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["tcp", "tcp3", "o2ib", "xdp7"]),
        prop::collection::btree_set(word("[a-z]{3}[0-9](:[0-9])?"), 0..3),
        prop::option::of(0_u32..4),
    )
        .prop_map(|(net, interfaces, cpt)| {
            let interfaces: Vec<_> = interfaces.into_iter().collect();
            let interfaces =
                if interfaces.is_empty() { String::new() } else { format!("({})", interfaces.join(",")) };
            format!("{net}{interfaces}{}", cpt.map_or_else(String::new, |cpt| format!("[{cpt}]")))
        })
}

fn route() -> impl Strategy<Value = String> {
    let gateway = (0_u8..9, prop::option::of(0_u32..9)).prop_map(|(host, priority)| {
        let priority = priority.map_or_else(String::new, |priority| format!(":{priority}"));
        format!("10.0.[1-2].{host}@tcp{priority}")
    });
    (
        prop::sample::select(vec!["tcp1", "o2ib[1-3]", "gni[1,4]"]),
        prop::option::of(1_u8..255),
        prop::collection::vec(gateway, 1..4),
    )
        .prop_map(|(net, hops, gateways)| {
            let hops = hops.map_or_else(String::new, |hops| format!("{hops} "));
            format!("{net} {hops}{}", gateways.join(" "))
        })
}

proptest! {
    /// Strings that were read are printed, and read again as the same.
    #[test]
    fn what_is_printed_is_read_again(
        networks in prop::collection::vec(entry(), 0..4),
        rules in prop::collection::vec((entry(), prop::collection::vec(address(), 1..4)), 0..4),
        routes in prop::collection::vec(route(), 0..4),
    ) {
        let rules: Vec<_> = rules.iter().map(|(entry, ranges)| format!("{entry} {}", ranges.join(" "))).collect();
        for (kind, text) in [(NETWORKS, networks.join(", ")), (IP2NETS, rules.join(";\n")), (ROUTES, routes.join(" ; "))] {
            let legacy = kind.read(&LegacyText::new(&text));
            let Ok(legacy) = legacy else {
                prop_assert!(false, "{text}: {legacy:?}");
                continue;
            };
            let shown = string(kind, &legacy);
            let again = kind.read(&LegacyText::new(&shown)).unwrap();
            prop_assert_eq!(string(kind, &again), shown);
            let values = |legacy: &Legacy| (
                legacy.networks.iter().map(|one| one.value.clone()).collect::<Vec<_>>(),
                legacy.rules.iter().map(|one| one.value.clone()).collect::<Vec<_>>(),
                legacy.routes.iter().map(|one| one.value.clone()).collect::<Vec<_>>(),
            );
            prop_assert_eq!(values(&again), values(&legacy));
        }
    }

    #[test]
    fn no_text_makes_it_panic(
        text in prop_oneof![".{0,60}", "[a-z0-9()\\[\\],;#@:*./{} \\n\"'=\\\\-]{0,80}"],
        options in any::<bool>(),
    ) {
        let text = if options { format!("options lnet {text}") } else { text };
        let texts = module_options(&text).into_iter().map(|option| option.value).chain([LegacyText::new(&text)]);
        for text in texts {
            let read = LegacyKind::ALL.map(|kind| kind.read(&text)).into_iter().chain([Legacy::read(&text)]);
            for legacy in read.flatten() {
                let _ = Conversion::default().document(&legacy);
            }
        }
    }
}
