//! Routes, and routing between nets: commands, documents, and what LNet's own tool says of them.

use lnet_model::records::{PoolRecord, RoutingRecord, RoutingState};
use xtask::testing::paths;

use crate::model::Model;
use crate::model_records::peer;
use crate::reference::same_text;
use crate::run::{Node, data};

/// State bits of a peer that discovery knows: Multi-Rail, discovered, up to date.
const DISCOVERED: u32 = 273;

/// A node with two NIs on net `tcp`, and a peer with two NIDs.
fn end_node() -> Node {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.13@tcp", "10.78.0.13@tcp"], DISCOVERED));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0,eth1");
    node
}

/// The routes of a kernel node, made as they were there.
fn routed() -> Node {
    let node = end_node();
    node.good("route add --net tcp5 --gateway 10.77.0.[13-14]@tcp --hop 2 --priority 3");
    node.good("route add --net tcp6 --gateway 10.77.0.13@tcp");
    node
}

/// A kernel node's backup without what ours does not have: a route by the node itself, which is refused here,
/// and peers that traffic has found.
fn ours(backup: &str) -> String {
    let route = "-     net: tcp8\n      gateway: 10.77.0.11@tcp\n      hop: -1\n      priority: 0\n";
    let peer = |primary: &str, multi_rail: bool, nids: &[&str]| {
        let nids: String = nids.iter().map(|nid| format!("      -     nid: {nid}\n")).collect();
        format!("-     primary nid: {primary}\n      Multi-Rail: {multi_rail}\n      peer ni:\n{nids}")
    };
    let found = [
        route.to_owned(),
        peer("10.77.0.12@tcp", false, &["10.77.0.12@tcp"]),
        peer("10.77.0.11@tcp", true, &["10.77.0.11@tcp", "10.78.0.11@tcp", "0@lo"]),
        peer("10.77.0.99@tcp7", false, &["10.77.0.99@tcp7"]),
    ];
    found.iter().fold(backup.to_owned(), |backup, item| {
        assert!(backup.contains(item), "{item}");
        backup.replace(item, "")
    })
}

/// The paths of some blocks of a document.
fn of_blocks(document: &str, blocks: &[&str]) -> Vec<(String, String)> {
    let is_of = |path: &str| blocks.contains(&path.split('/').next().unwrap());
    paths(document).into_iter().filter(|(path, _)| is_of(path)).collect()
}

#[test]
fn routes_are_shown_as_by_a_kernel_node() {
    let node = routed();
    // States and types follow from what the gateways are.
    same_text(&node, "route show", "route_show.yaml", &[]);
    same_text(&node, "route show -v", "route_show_1.yaml", &["state", "type"]);
    let shown = |filter: &str| node.good(&format!("route show {filter}")).matches("-     net: ").count();
    for (filter, count) in [
        ("--net tcp6", 1),
        ("--net tcp66", 0),
        ("--gateway 10.77.0.14@tcp -v", 1),
        ("--gateway 10.77.0.[13-14]@tcp", 3),
        ("--hop 2", 2),
        ("--hop_count -1", 1),
        ("-c 2 -p 3 -n tcp5 -g 10.77.0.13@tcp", 1),
        ("--priority 0", 1),
    ] {
        assert_eq!(shown(filter), count, "{filter}");
    }
    assert_eq!(node.good("route show --net tcp66"), "");
    node.bad("route show --net foo", 234, &["show:\n-     route:\n            errno: -6"]);
    node.bad("route show --hop 0", 234, &["errno: -22", "invalid hop count"]);
    assert_eq!(
        node.good("--json route show --net tcp6"),
        "{\"route\":[{\"net\":\"tcp6\",\"gateway\":\"10.77.0.13@tcp\"}]}\n"
    );
    // Gateways are told to be alive or not, others are not looked at.
    let peers = node.good("peer show");
    assert_eq!((peers.matches("state: down").count(), peers.matches("state: NA").count()), (3, 0));
    node.good("route del --net tcp5 --gateway 10.77.0.[13-14]@tcp");
    node.good("route del --net tcp6 --gateway 10.78.0.13@tcp");
    assert_eq!(node.good("route show"), "");
    assert_eq!(node.good("peer show").matches("state: NA").count(), 3);
}

/// The refusals of LNet's tool, in its words. Where it takes what makes no sense, this one does not.
#[test]
fn what_is_no_route_is_refused() {
    let node = routed();
    let before = node.good("route show -v");
    let check = |words: &str, errno: i32, said: &str| {
        let (operation, _) = words.split_once(' ').unwrap();
        let expected =
            format!("{operation}:\n-     route:\n            errno: {errno}\n            descr: \"{said}");
        node.bad(&format!("route {words}"), 234, &[&expected]);
    };
    let gateway = "--gateway 10.77.0.13@tcp";
    let exists = "Route already exists or the specified network is local: ";
    let settings = "invalid settings for route creation: ";
    check(&format!("add --net tcp6 {gateway}"), -17, exists);
    check("add --net tcp6 --gateway 10.78.0.13@tcp", -17, exists);
    check("add --net tcp --gateway 10.77.0.13@tcp", -22, settings);
    check("add --net tcp8 --gateway 10.77.0.13@tcp8", -22, settings);
    check("add --net tcp8 --gateway 0@lo", -22, settings);
    check("add --net tcp8 --gateway 10.77.0.11@tcp", -22, settings);
    let nowhere = "No interface configured on the same net as gateway: ";
    check("add --net tcp8 --gateway 10.77.0.13@tcp7", -113, nowhere);
    for operation in ["add", "del"] {
        check(&format!("{operation} --net lo {gateway}"), -13, "setting @lo not allowed");
        check(&format!("{operation} --net foo {gateway}"), -6, "setting LNET_NET_ANY not allowed");
        check(&format!("{operation} --net tcp8 --gateway foo@"), -22, "Unable to parse nidlist: ");
        check(&format!("{operation} --net tcp8 --gateway *@tcp"), -22, "Unable to parse nidlist: ");
        check(
            &format!("{operation} --net tcp8 --gateway 10.77.[0-1].[0-127]@tcp"),
            -7,
            "Unable to parse nidlist: ",
        );
        let missing = |names: &str| format!("missing mandatory parameters:'{names}'\"\n");
        check(&format!("{operation} --net tcp8"), -22, &missing("gateway"));
        check(&format!("{operation} {gateway}"), -22, &missing("net"));
        node.bad(&format!("route {operation}"), 234, &[&missing("net , gateway")]);
    }
    for hop in ["0", "256", "-2", "many"] {
        let words = format!("add --net tcp8 {gateway} --hop {hop}");
        check(&words, -22, "invalid hop count must be between 1 and 255");
    }
    for priority in ["-1", "high", "4294967296"] {
        check(&format!("add --net tcp8 {gateway} --priority {priority}"), -22, "invalid priority");
    }
    check(&format!("del --net tcp77 {gateway}"), -2, "failed to delete route: ");
    check("del --net tcp6 --gateway 10.77.0.14@tcp", -2, "failed to delete route: ");
    node.bad(&format!("route add --net tcp8 {gateway} --health_sensitivity 1"), 2, &["--health-sensitivity"]);
    // Routes tell which peers are gateways, and a net that is routed is none of the node's own.
    node.bad("peer add --prim_nid 10.77.0.14@tcp", 234, &["errno: -16"]);
    node.bad("peer del --prim_nid 10.77.0.13@tcp", 234, &["errno: -16"]);
    node.bad("net add --net tcp5 --if eth2", 234, &["errno: -87"]);
    assert_eq!(node.good("route show -v"), before);
    let unconfigured = Node::start(Model::new(1));
    for words in
        ["route show", "routing show", "route add --net tcp1 --gateway 10.0.0.1@tcp", "set routing 0"]
    {
        unconfigured.bad(words, 234, &["errno: -100"]);
    }
    for words in ["route", "routing"] {
        let help = node.run(words);
        assert!(help.status == 234 && help.stdout.contains("Usage: lnetctl rout"), "{help:?}");
    }
    node.bad("route list", 255, &["'list' is not a valid command"]);
    node.bad("setup-mrrouting", 255, &["errno: -95", "NIs are bound to their interfaces and need no rules"]);
}

/// A list of gateways stops at the first that is refused, and what came before stays.
#[test]
fn a_list_of_gateways_is_no_batch() {
    let node = routed();
    let list = "10.77.0.21@tcp,10.77.0.13@tcp,10.77.0.22@tcp";
    node.bad(&format!("route add --net tcp6 --gateway {list}"), 234, &["errno: -17", "10.77.0.13@tcp"]);
    let shown = node.good("route show --net tcp6");
    assert!(shown.contains("10.77.0.21@tcp") && !shown.contains("10.77.0.22@tcp"), "{shown}");
    node.bad("route del --net tcp6 --gateway 10.77.0.[21-22]@tcp", 234, &["errno: -2", "10.77.0.22@tcp"]);
    assert!(!node.good("route show").contains("10.77.0.21@tcp"));
    // 499 by one gateway, as test 111 of the catalogue has them.
    let document: String =
        (100..599).map(|number| format!("- {{net: tcp{number}, gateway: 10.77.0.13@tcp}}\n")).collect();
    node.good_with("import", &format!("route:\n{document}"));
    assert_eq!(node.good("route show --gateway 10.77.0.13@tcp").matches("-     net: ").count(), 501);
}

#[test]
fn a_backup_with_routes_is_that_of_a_kernel_node() {
    let node = routed();
    node.good("route add --net tcp8 --gateway 10.77.0.13@tcp");
    let backup = node.good("export --backup");
    let expected = ours(&data("routes_backup.yaml"));
    let blocks = ["route", "peer"];
    assert_eq!(of_blocks(&backup, &blocks), of_blocks(&expected, &blocks), "{backup}");
    let order: Vec<_> = backup.lines().filter(|line| !line.starts_with([' ', '-'])).collect();
    assert_eq!(order, ["net:", "route:", "peer:", "global:"]);
    // A node that is made of it has the routes, and gateways as its routes make them.
    let other = Node::start(Model::configured(1));
    other.good_with("import", &backup);
    let again = other.good("export --backup");
    assert_eq!(of_blocks(&again, &["route"]), of_blocks(&backup, &["route"]));
    for node in [&node, &other] {
        for document in [&node.good("export --backup"), &node.good("export"), &backup] {
            assert_eq!(node.good_with("import --dry-run", document), "", "{document}");
        }
    }
    // The kernel node's own is taken as well, up to the route by the node itself.
    let third = Node::start(Model::configured(1));
    third.bad_with(
        "import",
        &data("routes_backup.yaml"),
        234,
        &["errno: -22", "route: invalid settings for route"],
    );
    third.good_with("import", &expected);
    assert_eq!(of_blocks(&third.good("export --backup"), &["route"]), of_blocks(&backup, &["route"]));
    // All of it goes again.
    other.good_with("import --del", &backup);
    assert_eq!(other.good("route show") + &other.good("net show --net lo"), other.good("net show"));
}

/// Gateways with NIDs that a user has given them are made before the routes by them.
#[test]
fn gateways_that_a_user_has_made_stay_so() {
    let node = Node::start(Model::configured(1));
    node.good("net add --net tcp --if eth0");
    node.good("peer add --prim_nid 10.77.0.13@tcp --nid 10.78.0.13@tcp1");
    node.good("route add --net tcp5 --gateway 10.77.0.13@tcp");
    let backup = node.good("export --backup");
    assert!(backup.contains("peer state: 8\n"), "{backup}");
    for text in [&backup, &node.good("export")] {
        let other = Node::start(Model::configured(1));
        other.good_with("import", text);
        assert_eq!(other.good("export --backup"), backup);
        assert_eq!(node.good_with("import --dry-run", text), "");
    }
}

#[test]
fn documents_have_routes() {
    let node = end_node();
    let item = "- net: tcp5\n  gateway: 10.77.0.[21-22]@tcp\n";
    node.good_with(
        "import",
        &format!("route:\n{item}  hop: 2\n  priority: 1\n  state: up\n  type: multi-hop\n"),
    );
    let expected = "+ route tcp9 by 10.77.0.21@tcp, hop 7\n";
    let document = "route:\n- {net: tcp9, gateway: 10.77.0.21@tcp, hop: 7}\n- {net: tcp5, gateway: 10.77.0.22@tcp, hop: 2, priority: 1}\n";
    assert_eq!(node.good_with("import --dry-run", document), expected);
    let other = "route:\n- net: tcp5\n  gateway: 10.77.0.21@tcp\n  hop: 3\n  seq_no: 4\n";
    let refused = [
        "seq_no: 4\n            errno: -17",
        "line 2, column 3: route: Route already exists",
        "hop is 2 and not 3, priority is 1 and not 0",
    ];
    node.bad_with("import", other, 234, &refused);
    for (document, errno, said) in [
        ("route:\n- net: tcp5\n", -19, "line 2, column 3: a route without 'gateway'"),
        ("route:\n- gateway: 10.0.0.1@tcp\n", -19, "line 2, column 3: a route without 'net'"),
        ("route:\n- {net: lo, gateway: 10.0.0.1@tcp}\n", -13, "'net': setting @lo not allowed"),
        ("route:\n- {net: foo, gateway: 10.0.0.1@tcp}\n", -6, "'net': setting LNET_NET_ANY not allowed"),
        ("route:\n- {net: tcp9, gateway: foo}\n", -22, "'gateway': Unable to parse nidlist"),
        ("route:\n- {net: tcp9, gateway: 10.0.0.1@tcp, hop: 0}\n", -22, "'hop': invalid hop count"),
        ("route:\n- {net: tcp9, gateway: 10.0.0.1@tcp, priority: -1}\n", -22, "'priority': invalid priority"),
        (
            "route:\n- {net: tcp9, gatway: 10.0.0.1@tcp}\n",
            -22,
            "unknown key 'gatway' in 'route'; did you mean 'gateway'?",
        ),
        (
            "route:\n- {net: tcp9, gateway: 10.0.0.1@tcp7}\n",
            -113,
            "route: No interface configured on the same net",
        ),
        ("route: 1\n", -22, "a list is expected"),
        (
            "route:\n- {net: tcp9, gateway: 10.77.0.1@tcp}\n- {net: tcp9, gateway: 10.77.0.1@tcp, hop: 1}\n",
            -22,
            "line 3, column 3: the route to tcp9 by 10.77.0.1@tcp is to be hop 1, priority 0 here and hop -1, priority 0 in line 2",
        ),
    ] {
        node.bad_with("import", document, 234, &[&format!("errno: {errno}\n"), said]);
    }
    // A net comes before the routes by it, wherever it stands, and goes behind them.
    let whole =
        "route:\n- {net: tcp9, gateway: 10.79.0.1@tcp2}\nnet:\n- {net type: tcp2, interfaces: {0: eth2}}\n";
    node.good_with("import", whole);
    let shown = |words: &str| node.good_with("import --show", words);
    assert_eq!(shown("route:\n- net: tcp9\n  detail: 1\n"), node.good("route show --net tcp9 -v"));
    assert_eq!(shown("route:\n"), node.good("route show"));
    assert_eq!(
        shown("route:\n- gateway: 10.77.0.21@tcp\n  hop: 2\n- priority: 7\n"),
        node.good("route show -g 10.77.0.21@tcp")
    );
    node.good_with("import --del", whole);
    node.bad_with("import --del", whole, 234, &["errno: -2", "failed to delete route"]);
    node.good_with("import --del", &format!("route:\n{item}"));
    assert_eq!(node.good("route show"), "");
}

#[test]
fn pools_are_shown_as_by_a_router() {
    let pool = |buffer_count: u32| {
        let credits = buffer_count.into();
        PoolRecord { buffer_count, credits, min_credits: credits }
    };
    let mut model = Model::configured(1);
    model.routing = RoutingRecord { state: RoutingState::Off, cpts: vec![[620, 320, 35].map(pool)] };
    let node = Node::start(model.clone());
    same_text(&node, "routing show", "routing_show.yaml", &[]);
    assert_eq!(node.good_with("import --show", "routing:\nbuffers:\n"), node.good("routing show"));
    let blocks = ["routing", "buffers"];
    for (state, told) in [(RoutingState::On, 1), (RoutingState::Stopping, 2), (RoutingState::Starting, 3)] {
        model.routing.state = state;
        let node = Node::start(model.clone());
        assert!(node.good("routing show").contains(&format!("\n-     enable: {told}\nbuffers:\n")));
        // A backup has what is to be.
        let backup = node.good("export --backup");
        let enable = if told == 2 { "enable: 0" } else { "enable: 1" };
        let expected = data("router_backup.yaml").replace("enable: 1", enable);
        assert_eq!(of_blocks(&backup, &blocks), of_blocks(&expected, &blocks), "{backup}");
    }
    let node = Node::start(model);
    let exported = of_blocks(&node.good("export"), &blocks).into_iter().map(|(path, _)| path);
    let expected = of_blocks(&data("router_export.yaml"), &blocks).into_iter().map(|(path, _)| path);
    assert_eq!(exported.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn routing_is_set_by_words_and_by_documents() {
    let node = Node::start(Model::configured(2));
    let shown = |words: &str| node.good("routing show").contains(words);
    // Without pools nothing is shown, and their sizes are forgotten.
    assert_eq!(
        node.good("set large_buffers 512") + &node.good("set routing 0") + &node.good("routing show"),
        ""
    );
    node.good("set routing 1");
    assert!(shown("enable: 1\n") && shown("      large: 1024\n") && shown("nbuffers: 512\n"));
    node.good("set tiny_buffers 4096");
    node.good("set small-buffers 64");
    assert!(shown("      tiny: 4096\n      small: 64\n"));
    for (words, status, said) in [
        ("routing 2", 234, "0 or 1 is expected"),
        ("routing on", 255, "cannot parse routing value"),
        ("tiny_buffers -1", 234, "a number from 0 is expected"),
        ("tiny_buffers 2147483648", 234, "a number from 0 is expected"),
        ("small_buffers", 234, "no value for small_buffers"),
    ] {
        node.bad(&format!("set {words}"), status, &[said]);
    }
    for (document, done) in [
        ("routing: {enable: 0}\n", "~ routing: off\n"),
        ("routing:\n- cpt[0]: {tiny: {nbuffers: 3}}\n- enable: 2\n", "~ routing: off\n"),
        (
            "routing: {enable: 3}\nbuffers: {tiny: 100, large: 8}\n",
            "~ buffers: tiny 100\n~ buffers: large 8\n",
        ),
        ("routing: {enable: yes}\nbuffers: {tiny: ~}\n", ""),
    ] {
        assert_eq!(node.good_with("import --dry-run", document), done, "{document}");
    }
    for (document, said) in [
        ("routing: {enable: x}\n", "for 'enable': 0 or 1 is expected"),
        ("routing: {enable: 4}\n", "0 or 1 is expected"),
        ("routing: {enabled: 1}\n", "unknown key 'enabled' in 'routing'; did you mean 'enable'?"),
        ("routing: 1\n", "a map is expected"),
        ("buffers: {huge: 1}\n", "unknown key 'huge' in 'buffers'"),
        ("buffers: {tiny: -1}\n", "a number from 0 to 2147483647 is expected"),
        (
            "routing: [{enable: 0}, {enable: 1}]\n",
            "line 1, column 33: routing is to be on here and off in line 1",
        ),
    ] {
        node.bad_with("import", document, 234, &["errno: -", said]);
    }
    // A node is made from its export.
    let backup = node.good("export --backup");
    let other = Node::start(Model::configured(2));
    other.good_with("import", &backup);
    assert_eq!(other.good("export --backup"), backup);
    node.good_with("import --del", "routing: {enable: 1}\nbuffers: {tiny: 7}\n");
    assert!(shown("enable: 0\n"));
}
