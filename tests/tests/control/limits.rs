//! Limits of a node, their use, the options of a daemon that stand in its document, and the log of refusals.

use std::net::UdpSocket;
use std::time::Duration;

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, enter, require_privilege, wait_until};

use crate::run::{Daemon, Directory, PATIENCE};

/// The value of a key of what is in use, such as `used: 3` below `nis:`.
fn used(shown: &str, key: &str) -> u64 {
    let (_, behind) = shown.split_once(&format!("{key}:\n")).unwrap_or_else(|| panic!("{key}: {shown}"));
    let line = behind.lines().find_map(|line| line.trim().strip_prefix("used: ")).unwrap();
    line.parse().unwrap()
}

/// A node has as many NIs as it was told, which are 16 where it was not; what is in use is shown.
#[test]
fn the_limit_of_nis_is_an_option() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let name = &netns.a().interface().name;
    let nets = |count: u32| {
        let net = |number| format!("- net type: tcp{number}\n  interfaces: {{0: {name}}}\n");
        "net:\n".to_owned() + &(0..count).map(net).collect::<String>()
    };
    let node = Daemon::start(Directory::new(), Some(netns.a()), "--configure");
    node.bad_with("import", &nets(17), &["errno: -28", "too many NIs"]);
    node.good_with("import", &nets(16));
    let shown = node.good("usage");
    assert!(used(&shown, "nis") == 16 && shown.contains("limit: 16"), "{shown}");
    node.stop();
    let node = Daemon::start(
        Directory::new(),
        Some(netns.a()),
        "--configure --shards 2 --limit nis=64 --limit match_entries=5000",
    );
    node.good_with("import", &nets(64));
    let shown = node.good("usage");
    assert_eq!(used(&shown, "nis"), 64, "{shown}");
    for part in ["resident_bytes: ", "limit: 5000", "shard: 1", "cpus: ", "peers:"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let resident: u64 = {
        let (_, behind) = shown.split_once("resident_bytes: ").unwrap();
        behind.lines().next().unwrap().parse().unwrap()
    };
    assert!(resident > 1 << 20, "{shown}");
    let entries = used(&shown, "match_entries");
    let peers = used(&shown, "peers");
    node.good("load start target");
    node.good("peer add --prim_nid 10.50.0.1@tcp");
    let shown = node.good("usage");
    assert!(used(&shown, "match_entries") > entries && used(&shown, "peers") == peers + 1, "{shown}");
    assert!(node.good("--json usage").contains("\"nis\":{\"used\":64,\"limit\":64}"));
    node.bad_with("import", "net:\n- net type: tcp99\n  interfaces: {0: lo}\n", &["errno"]);
    node.stop();
}

/// The block `daemon` of a document has options; those of the command line come behind them.
#[test]
fn a_document_has_options_of_its_daemon() {
    let directory = Directory::new();
    let document = "daemon:\n  shards: 2\n  limit: {nis: 40}\nglobal:\n  retry_count: 3\n";
    let path = directory.file("node.yaml", document);
    let node = Daemon::start(directory, None, &format!("--config {} --limit nis=41", path.display()));
    let shown = node.good("usage");
    assert!(shown.contains("limit: 41") && shown.contains("shard: 1"), "{shown}");
    assert!(node.good("global show").contains("retry_count: 3"));
    // Imported, it is passed over.
    assert_eq!(node.good(&format!("import --dry-run {}", path.display())), "");
    node.stop();
    // A document of comments alone, as packages of Lustre have one.
    let directory = Directory::new();
    let path = directory.file("lnet.conf", "# lnet.conf\n#net:\n#    - net type: tcp\n");
    let node = Daemon::start(directory, None, &format!("--config {}", path.display()));
    assert_eq!(node.good("net show").matches("net type: ").count(), 1);
    node.stop();
    let directory = Directory::new();
    let path = directory.file("node.yaml", "daemon:\n  shards: 2\n  shrads: 2\n  limit: {nis: many}\n");
    let (status, said) = directory.ends(&format!("--config {}", path.display()));
    assert_eq!(status, 1, "{said}");
    for part in
        ["node.yaml: line 3, column 3: unknown option 'shrads'", "node.yaml: line 4, column 3: ", "nis=many"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Frames to the node's port that are none of its protocol are told where that was asked for, and only there.
#[test]
fn refusals_are_logged_where_that_is_asked_for() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [near, far] = [netns.a(), netns.b()].map(|namespace| namespace.interface().clone());
    let send = || {
        enter(netns.b(), || {
            let socket = UdpSocket::bind((far.ipv4, 0)).unwrap();
            socket.send_to(&[0xA5; 200], (near.ipv4, 988)).unwrap();
        });
    };
    let start = |options: &str| {
        let node = Daemon::start(Directory::new(), Some(netns.a()), &format!("--configure {options}"));
        node.good(&format!("net add --net xdp --if {} --mode generic", near.name));
        node
    };
    let node = start("--log-refusals");
    let told = || {
        let log = node.directory.log();
        let is_it = |line: &&str| line.contains("frame passed up") && line.contains(&far.ipv4.to_string());
        log.lines().filter(is_it).count()
    };
    wait_until("a refusal is told", PATIENCE, || {
        send();
        told() > 0
    });
    // Off and on, as long as it runs.
    node.good("debug refusals off");
    // Lines of frames before are on their way still.
    std::thread::sleep(Duration::from_millis(500));
    let before = told();
    (0..5).for_each(|_| send());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), before);
    node.good("debug refusals on");
    wait_until("a refusal is told again", PATIENCE, || {
        send();
        told() > before
    });
    node.stop();
    let node = start("");
    send();
    node.good("frames show");
    node.bad("debug refusals on", &["errno: -95", "lnetd --log-refusals"]);
    assert!(!node.stop().contains("frame passed up"));
}
