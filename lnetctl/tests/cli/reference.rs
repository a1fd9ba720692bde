//! What LNet's own `lnetctl` prints is what this one prints: the same keys, in the same order, at the same
//! depth.

use xtask::testing::{is_ours_alone, paths};

use crate::model::Model;
use crate::model_records::peer;
use crate::run::{Node, data};

/// State bits of a peer that discovery knows: Multi-Rail, discovered, up to date.
const DISCOVERED: u32 = 273;

/// The keys of a document but our own.
fn keys(document: &str) -> Vec<String> {
    let keys = paths(document).into_iter().map(|(path, _)| path);
    keys.filter(|path| !is_ours_alone(path)).collect()
}

/// The output of the command must have the keys of the captured one.
fn same_keys(node: &Node, command: &str, capture: &str) {
    let (found, expected) = (node.good(command), data(capture));
    assert_eq!(keys(&found), keys(&expected), "lnetctl {command}:\n{found}");
}

/// The output must be the captured one to the letter, but for counters and times.
pub(crate) fn same_text(node: &Node, command: &str, capture: &str, differing: &[&str]) {
    let differs = |path: &str| differing.iter().any(|key| path.rsplit('/').next() == Some(key));
    let plain = |document: &str| {
        let mut entries = paths(document);
        entries.iter_mut().filter(|(path, _)| differs(path)).for_each(|(_, value)| value.clear());
        entries
    };
    let (found, expected) = (node.good(command), data(capture));
    assert_eq!(plain(&found), plain(&expected), "lnetctl {command}:\n{found}");
}

fn single() -> Node {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp"], DISCOVERED));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0");
    node
}

#[test]
fn a_node_with_one_ni() {
    let node = single();
    same_text(&node, "net show", "net_show.yaml", &[]);
    same_keys(&node, "net show -v 4", "net_show_4.yaml");
    same_keys(&node, "peer show -v 4", "peer_show_4.yaml");
    same_keys(&node, "stats show", "stats_show.yaml");
    // And the older name of a tunable, for which monitors ask.
    let expected = data("global_show.yaml").trim_end().to_owned() + "\n    max_intf: 4096\n";
    assert_eq!(paths(&node.good("global show")), paths(&expected));
    same_text(&node, "peer list", "peer_list.yaml", &[]);
    same_keys(&node, "export", "export.yaml");
    same_text(&node, "ping 10.77.0.12@tcp", "ping.yaml", &["Multi-Rail"]);
}

#[test]
fn a_backup() {
    // A peer that a user made: others are not in our backups.
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp"], DISCOVERED | 8));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0");
    // An NI that all shards serve has no CPTs in our backups: the next node may have another number of
    // shards.
    let cpts = |(path, _): &(String, String)| !path.ends_with("/CPT");
    let expected: Vec<_> = paths(&data("export_backup.yaml")).into_iter().filter(cpts).collect();
    assert_eq!(paths(&node.good("export --backup")), expected);
}

#[test]
fn a_node_with_two_nis_at_each_level() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.13@tcp", "10.78.0.13@tcp"], DISCOVERED));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0,eth1");
    same_text(&node, "net show -v 0 --net tcp", "net_show_two_0.yaml", &[]);
    for level in 1..=4 {
        same_keys(&node, &format!("net show -v {level} --net tcp"), &format!("net_show_two_{level}.yaml"));
    }
    for level in 0..=4 {
        let capture = format!("peer_show_two_{level}.yaml");
        same_keys(&node, &format!("peer show -v {level} --nid 10.77.0.13@tcp"), &capture);
    }
    same_keys(&node, "net show -v 5 --net tcp", "net_show_two_4.yaml");
    same_keys(&node, "peer show -v 5 --nid 10.78.0.13@tcp", "peer_show_two_4.yaml");
}

/// What LNet's tool refuses in a document, this one refuses in the same words, and with the place.
#[test]
fn documents_that_it_refuses() {
    let node = single();
    let before = node.good("export");
    for (document, words) in [
        ("foobar:\n    x: 1\n", "line 1, column 1: invalid key 'foobar'"),
        ("global:\n    discovery:\n", "line 2, column 14: no value specified for key 'discovery'"),
        ("global:\n    discovery: foo\n", "line 2, column 16: invalid value 'foo' for key 'discovery'"),
        ("global:\n    nosuch: 1\n", "line 2, column 5: invalid key 'nosuch'"),
        ("net: [\n  - a: b\n", "line 2, column 3: not YAML"),
    ] {
        node.bad_with("import", document, 234, &["add:\n-     import:\n            errno: -22\n", words]);
    }
    let net = |rest: &str| {
        format!("net:\n    - net type: tcp7\n      local NI(s):\n        - interfaces:\n              {rest}")
    };
    for (rest, words) in [
        ("0: eth9\n", "line 5, column 18: net: cannot add an NI on eth9"),
        ("0: eth1\n          lnd tunables:\n              conns_per_peer: 200\n", "line 7, column 31"),
        ("0: eth1\n          CPT: \"[1-0]\"\n", "line 6, column 16: 'CPT'"),
    ] {
        node.bad_with("import", &net(rest), 234, &["add:\n-     import:\n", words]);
    }
    assert_eq!(node.good("export"), before);
}

/// The document of its import test. The peer that is a gateway is made by the route, there as well.
#[test]
fn a_document_with_something_of_all() {
    let node = Node::start(Model::configured(1));
    node.good_with("import", &data("import.yaml"));
    let shown = node.good("net show -v --net tcp");
    assert_eq!(shown.matches("credits: 128").count(), 2, "{shown}");
    assert!(node.good("global show").contains("transaction_timeout: 60\n      health_sensitivity: 100"));
    assert!(node.good("global show").contains("lnd_timeout: 14\n"));
    let backup = node.good("export --backup");
    let of = |document: &str| {
        let of_these = |path: &str| ["route", "peer", "udsp"].contains(&path.split('/').next().unwrap());
        paths(document).into_iter().filter(|(path, _)| of_these(path)).collect::<Vec<_>>()
    };
    assert_eq!(of(&backup), of(&data("import_backup.yaml")), "{backup}");
}

#[test]
fn the_layout_of_nets_is_theirs_to_the_letter() {
    let node = single();
    assert_eq!(node.good("net show"), data("net_show.yaml").trim_end().to_owned() + "\n");
}

/// Selection policies in the order in which they were set there, by themselves, in a backup, and after one
/// has gone.
#[test]
fn selection_policies() {
    let node = single();
    assert_eq!(node.good("udsp show"), "");
    for words in [
        "--src 10.77.0.11@tcp --priority 0",
        "--dst 10.78.0.12@tcp --priority 1 --idx 0",
        "--src 10.78.0.11@tcp --dst 10.77.0.12@tcp",
        "--src tcp1 --priority 2",
        "--dst 10.[77-78].0.[1-20]@tcp --src tcp",
    ] {
        node.good(&format!("udsp add {words}"));
    }
    let refused = ["add:\n-     udsp:\n            errno: -22\n", "failed to parse src parameter"];
    node.bad("udsp add --src bogus --priority 2", 234, &refused);
    same_text(&node, "udsp show", "udsp_show.yaml", &[]);
    for command in ["export", "export --backup"] {
        let of_policies = |(path, _): &(String, String)| path.starts_with("udsp");
        let found: Vec<_> = paths(&node.good(command)).into_iter().filter(of_policies).collect();
        assert_eq!(found, paths(&data("udsp_show.yaml")), "{command}");
    }
    node.good("udsp del --idx 1");
    same_text(&node, "udsp show", "udsp_show_less.yaml", &[]);
    node.good("udsp del --all");
    assert_eq!(node.good("udsp show"), "");
    node.good_with("import", &data("udsp_show.yaml"));
    same_text(&node, "udsp show", "udsp_show.yaml", &[]);
}
