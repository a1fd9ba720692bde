//! The converter of LNet's start-up strings, by the numbers that its tests have in the catalogue (600 to
//! 629).

use std::path::PathBuf;
use std::process::Command;

use crate::run::{Ran, ran};

/// Files for one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Converts by these words, without a daemon.
fn convert(words: &[&str], stdin: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lnetctl"));
    ran(command.arg("convert").args(words).env("LNET_SOCKET", "/nonexistent"), stdin)
}

#[track_caller]
fn good(words: &[&str], stdin: &str, expected: &str) {
    let ran = convert(words, stdin);
    assert!(ran.status == 0 && ran.stderr.is_empty(), "{words:?}: {ran:?}");
    assert_eq!(ran.stdout, expected, "{words:?}");
}

#[track_caller]
fn bad(words: &[&str], stdin: &str, status: i32, expected: &[&str]) {
    let ran = convert(words, stdin);
    let fits = expected.iter().all(|part| ran.stderr.contains(part));
    assert!(ran.status == status && ran.stdout.is_empty() && fits, "{words:?}: {ran:?}");
}

const RULE: &str = "\
ip2nets:
-     net-spec: tcp
      interfaces:
            0: eth0
            1: eth1[1]
      ip-range:
            0: 10.10.10.*
            1: \"10.20.[0-3].[2-8/2]\"
";

const ROUTES: &str = "\
route:
-     net: o2ib
      gateway: \"10.0.0.[1-4]@tcp\"
-     net: tcp2
      gateway: 10.0.0.9@tcp
      hop: 2
      priority: 5
";

/// Tests 600 to 604: rules, routes, priorities and hops, from the command line and from standard input.
#[test]
fn rules_and_routes_become_documents() {
    let rule = "tcp(eth0,eth1[1]) 10.10.10.* 10.20.[0-3].[2-8/2]";
    let routes = "o2ib 10.0.0.[1-4]@tcp; tcp2 2 10.0.0.9@tcp:5";
    let rule_document = convert(&[rule], "");
    assert_eq!((rule_document.status, unquoted(&rule_document.stdout)), (0, unquoted(RULE)));
    for (words, stdin) in
        [(vec![routes], ""), (vec![], routes), (vec![&format!("routes=\"{routes}\"")[..]], "")]
    {
        let ran = convert(&words, stdin);
        assert_eq!((ran.status, unquoted(&ran.stdout)), (0, unquoted(ROUTES)), "{words:?}");
    }
    // All together, in the order net, ip2nets, route.
    let all = convert(&[routes, rule, "networks=xdp"], "");
    assert_eq!(unquoted(&all.stdout), unquoted(&format!("net:\n-     net type: xdp\n{RULE}{ROUTES}")));
}

/// A document without the quotes that some texts need.
fn unquoted(text: &str) -> String {
    text.replace('"', "")
}

/// Tests 605 and 606: hops that are missing are those of `--default-hop`, 1 without a number.
#[test]
fn missing_hops_are_filled() {
    let routes = "o2ib 10.0.0.1@tcp; tcp2 2 10.0.0.9@tcp";
    for (words, hop) in [(vec![routes, "--default-hop"], 1), (vec!["--default-hop", "4", routes], 4)] {
        let expected = format!(
            "route:\n-     net: o2ib\n      gateway: 10.0.0.1@tcp\n      hop: {hop}\n-     net: tcp2\n      gateway: \
             10.0.0.9@tcp\n      hop: 2\n"
        );
        good(&words, "", &expected);
    }
    bad(&["--default-hop", "256", routes], "", 1, &["256"]);
    bad(&["--default-hop", "0", routes], "", 1, &["0"]);
}

/// JSON is as the schema says.
#[test]
fn json_is_as_documented() {
    let text = ["networks=tcp(eth0)[1]", "tcp1(eth1)[0] 10.0.0.*; o2ib 2 10.0.0.1@tcp:1", "--json"];
    crate::schema::check(&convert(&text, "").stdout);
}

/// Test 607: a range that begins with a star stands in quotes.
#[test]
fn stars_are_quoted() {
    let ran = convert(&["tcp *.*.*.*"], "");
    assert!(ran.stdout.contains("0: \"*.*.*.*\"\n"), "{ran:?}");
}

/// Tests 608, 609, 611, 612, 621 and 627 to 629: what makes no sense has status 2, nothing status 1.
#[test]
fn what_makes_no_sense_is_told() {
    let files = Files::new();
    let file = files.file("bad", "tcp(eth0) 10.0.0.*\ntcp1(eth1 10.0.1.*\n");
    let file = file.to_str().unwrap();
    bad(&["tcp(eth0)"], "", 2, &["the command line: line 1, column 1", "a rule without addresses"]);
    bad(&["tcp(eth0 10.0.0.1"], "", 2, &["line 1, column 4", "a ( without its )"]);
    bad(&["o2ib 0 10.0.0.1@tcp"], "", 2, &["line 1, column 6", "between 1 and 255"]);
    bad(&["o2ib 256 10.0.0.1@tcp"], "", 2, &["between 1 and 255"]);
    bad(&["foo 10.0.0.1@tcp"], "", 2, &["line 1, column 1", "foo"]);
    bad(&["routes=o2ib"], "", 2, &["a route without a gateway"]);
    bad(&["-i", file], "", 2, &["bad: line 2, column 5", "a ( without its )"]);
    bad(&["-i", "/no/such/file"], "", 2, &["cannot open /no/such/file", "errno: -2"]);
    bad(&["tcp 10.0.0.1", "-o", "/no/such/file"], "", 2, &["cannot write /no/such/file"]);
    bad(&["tcp 10.0.0.300", "o2ib x@tcp"], "", 2, &["10.0.0.300", "x@tcp"]);
    bad(&[], "", 1, &["nothing to convert"]);
    bad(&[], "# a comment\n\n;\n", 1, &["nothing to convert"]);
    bad(&["--no-such-option"], "", 1, &["--no-such-option"]);
    bad(&["o2ib 10.[0-255].[0-255].[0-255]@tcp"], "", 2, &["16777216 nids"]);
}

/// Tests 610 and 613 to 616: files of each kind, in the order modprobe, ip2nets, routes, networks, inline.
#[test]
fn files_come_in_their_order() {
    let files = Files::new();
    let path = |name: &str, text: &str| files.file(name, text).to_str().unwrap().to_owned();
    let modprobe = path(
        "m.conf",
        "options lnet ip2nets=\"tcp1 10.1.0.*;\\\n tcp2 10.2.0.*\" routes=\"o2ib1 10.1.0.1@tcp1\"\n",
    );
    let rules = path("ip2nets", "# heads\ntcp3 10.3.0.*   # those of hall 3\n\ntcp4 10.4.0.*\n");
    let routes = path("routes", "o2ib2 10.1.0.2@tcp1\n");
    let networks = path("networks", "tcp7(eth7),tcp8\n");
    let out = files.0.path().join("out.yaml");
    let words = ["tcp5 10.5.0.*", "-r", &routes, "-i", &rules, "-n", &networks, "-m", &modprobe];
    let shown = convert(&words, "");
    assert!(shown.status == 0 && shown.stderr.is_empty(), "{shown:?}");
    let order = |key: &str| -> Vec<String> {
        shown.stdout.lines().filter_map(|line| line.split_once(key)).map(|(_, net)| net.to_owned()).collect()
    };
    assert_eq!(order("net-spec: "), ["tcp1", "tcp2", "tcp3", "tcp4", "tcp5"]);
    assert_eq!(order("net type: "), ["tcp7", "tcp8"]);
    assert_eq!(order(" net: "), ["o2ib1", "o2ib2"]);
    let words = [&words[..], &["-o", out.to_str().unwrap()]].concat();
    good(&words, "", "");
    assert_eq!(std::fs::read_to_string(out).unwrap(), shown.stdout);
    // A file of modprobe on standard input.
    let ran = convert(&[], "options lnet networks=\"tcp7(eth7)\"\n");
    assert!(ran.stdout.contains("net type: tcp7") && ran.stdout.contains("0: eth7"), "{ran:?}");
}

/// Tests 618 to 620: the form of lnet_routes.conf.
#[test]
fn the_other_form_of_routes_is_read() {
    let files = Files::new();
    let file = files.file("lnet_routes.conf", "tcp7: { gateway: 10.3.3.[6-12]@tcp, priority: 20, hop: 8 }\n");
    let ran = convert(&["-r", file.to_str().unwrap()], "");
    let expected =
        "route:\n-     net: tcp7\n      gateway: 10.3.3.[6-12]@tcp\n      hop: 8\n      priority: 20\n";
    assert_eq!((ran.status, unquoted(&ran.stdout)), (0, expected.to_owned()));
}

/// Tests 622 to 626: entries of networks.
#[test]
fn networks_become_nets() {
    let expected = "\
net:
-     net type: tcp
      local NI(s):
      -     interfaces:
                  0: eth0
                  1: eth1[0]
            CPT: [1,2]
-     net type: o2ib1
";
    let ran = convert(&["networks=tcp0(eth0,eth1[0])[1,2], o2ib1"], "");
    assert_eq!((ran.status, unquoted(&ran.stdout)), (0, expected.to_owned()));
}

/// More than LNet's own converter does: several gateways in a rule, ranges written out, which of several
/// lines modprobe takes, a rule in a comment.
#[test]
fn more_is_converted_than_by_lnet() {
    let ran = convert(&["--expand", "o2ib[1-2] 3 10.0.0.[1-2]@tcp:7 10.0.0.9@tcp"], "");
    assert_eq!(ran.stdout.matches("gateway: ").count(), 6, "{ran:?}");
    assert_eq!(ran.stdout.matches("priority: 7").count(), 4, "{ran:?}");
    let files = Files::new();
    let first = files.file("a.conf", "options lnet networks=tcp1\n");
    let second = files.file("b.conf", "options lnet networks=tcp2 foo=1\n");
    let ran = convert(&["-m", first.to_str().unwrap(), "-m", second.to_str().unwrap()], "");
    assert!(ran.status == 0 && ran.stdout.contains("tcp2") && !ran.stdout.contains("tcp1"), "{ran:?}");
    for part in [
        "a.conf: line 1, column 14: networks is passed over",
        "b.conf: line 1, column 14",
        "foo is passed over",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
    let ran = convert(&["tcp(eth0) 10.0.0.* # heads tcp1(eth1) 10.1.*.*"], "");
    assert!(ran.status == 0 && ran.stderr.contains("which looks like a rule"), "{ran:?}");
    // This host is on no such net.
    bad(&["--resolve", "tcp 203.0.113.77"], "", 2, &["none of the rules fits this host", "203.0.113.77"]);
}
