//! How daemons begin, and how they do not.

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, require_privilege, wait_until};
use rustix::process::Signal;

use crate::run::{Daemon, Directory, PATIENCE};

const DOCUMENT: &str = "\
global:
    retry_count: 4
    transaction_timeout: 90
steering:
    - portal: 5
      policy: rotor
";

#[test]
fn a_daemon_without_sense_says_why_and_ends() {
    let directory = Directory::new();
    let cases = [
        ("--shards 0", "0 shards: 1 to 64 are expected"),
        ("--shards 65", "65 shards"),
        ("--queues-max 0", "queues_max 0"),
        ("--cpus x", "\"x\": a CPU's number"),
        ("--config /no/such/file", "/no/such/file"),
        ("--group no-such-group", "no-such-group"),
        ("--log a=b=c", "--log"),
    ];
    for (options, part) in cases {
        let (status, said) = directory.ends(options);
        assert!(
            status == 1 && said.contains(part) && !said.contains("panicked"),
            "{options}: {status}: {said}"
        );
        assert!(!directory.socket().exists(), "{options}");
    }
    assert_eq!(directory.ends("--no-such-option").0, 2);
    let (status, said) = directory.ends("--param router_ping_timeout=0");
    assert!(status == 2 && said.contains("1 to 2147483647 is expected"), "{said}");
}

#[test]
fn a_start_up_document_is_carried_out_whole_or_the_daemon_ends() {
    let directory = Directory::new();
    let good = directory.file("good.yaml", DOCUMENT);
    let bad = directory.file("bad.yaml", &format!("{DOCUMENT}net:\n    - net tpye: xdp\n"));
    let (status, said) = directory.ends(&format!("--config {}", bad.display()));
    assert!(
        status == 1 && said.contains("bad.yaml: line 8, column 7") && said.contains("net type"),
        "{said}"
    );
    assert_eq!(said.matches("unknown key").count(), 1, "it is told once: {said}");

    let node = Daemon::start(directory, None, &format!("--config {}", good.display()));
    let is_so = || {
        let globals = node.good("global show");
        let steering = node.good("steering show");
        globals.contains("transaction_timeout: 90") && steering.contains("rotor")
    };
    assert!(is_so());
    node.good("lnet unconfigure");
    node.good("set transaction_timeout 100");
    node.good("lnet configure --all");
    assert!(is_so());
    // A document that is wrong leaves the node unconfigured.
    node.good("lnet unconfigure");
    std::fs::write(&good, "global:\n    no_such: 1\n").unwrap();
    node.bad("lnet configure --all", &["good.yaml: line 2, column 5"]);
    node.bad("net show", &["errno: -100"]);
    node.good("lnet configure");
}

#[test]
fn one_daemon_has_one_name() {
    let mut first = Daemon::alone();
    let (status, said) = first.directory.ends("");
    assert!(status == 1 && said.contains("another daemon serves"), "{said}");
    first.good("net show");
    // What a daemon leaves that was killed is no obstacle.
    first.signal(Signal::KILL);
    first.wait();
    assert!(first.directory.socket().exists());
    let directory = std::mem::replace(&mut first.directory, Directory::new());
    let _ = std::fs::remove_file(directory.0.join("log"));
    let second = Daemon::start(directory, None, "--configure");
    second.good("net show");
    second.stop();
}

/// A service manager's socket as units of type `notify` have it, with a path and with an abstract name.
#[test]
fn a_service_manager_is_told_when_clients_can_connect() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let directory = Directory::new();
    let path = directory.0.join("notify");
    let name = format!("lnet-tests-notify-{}", std::process::id());
    let sockets = [
        (path.display().to_string(), UnixDatagram::bind(&path).unwrap()),
        (
            format!("@{name}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
        ),
    ];
    for (variable, manager) in sockets {
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let directory = Directory::new();
        let mut command = directory.command(None, "--configure");
        command.env("NOTIFY_SOCKET", variable);
        let daemon = Daemon::spawn(directory, command);
        let mut told = [0; 64];
        let length = manager.recv(&mut told).unwrap();
        assert_eq!(&told[..length], b"READY=1\nSTATUS=");
        daemon.good("net show");
        daemon.stop();
    }
}

/// A start-up document that never comes or never ends is refused, at the start and later.
#[test]
fn a_start_up_document_is_a_regular_file() {
    let directory = Directory::new();
    let fifo = |name: &str| {
        let path = directory.0.join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        path
    };
    for (path, found) in
        [(fifo("fifo"), "a FIFO"), ("/dev/zero".into(), "a device"), ("/tmp".into(), "a directory")]
    {
        let (status, said) = Directory::new().ends(&format!("--config {}", path.display()));
        let expected = format!("{}: {found}: a regular file is expected", path.display());
        assert!(status == 1 && said.contains(&expected), "{said}");
    }
    let document = directory.file("node.yaml", "global:\n    retry_count: 1\n");
    let node = Daemon::alone_with(&format!("--config {}", document.display()));
    node.good("lnet unconfigure");
    std::fs::remove_file(&document).unwrap();
    fifo("node.yaml");
    node.bad("lnet configure --all", &["a FIFO: a regular file is expected"]);
    node.good("lnet configure");
    node.stop();
}

/// A signal that ends others by default, such as when a terminal is closed, ends no daemon.
#[test]
fn a_hangup_ends_nothing() {
    let node = Daemon::alone();
    node.signal(Signal::HUP);
    wait_until("the signal is told", PATIENCE, || node.directory.log().contains("SIGHUP"));
    node.good("net show");
    node.stop();
}

/// Text of a document is escaped on the way to the terminal and to the log.
#[test]
fn errors_of_a_start_up_document_act_on_no_terminal() {
    let directory = Directory::new();
    let document = "\"a\\e[2Jb\\nlnetd: forged\": 1\nglobal:\n    \"retry\\e_count\": 1\n";
    let path = directory.file("node.yaml", document);
    let (status, said) = directory.ends(&format!("--config {}", path.display()));
    assert!(status == 1 && !said.contains('\u{1b}') && !said.contains("\nlnetd: forged"), "{said}");
    assert!(said.contains("invalid key 'a\\u{1b}[2Jb\\nlnetd: forged'"), "{said}");
}

/// Items of a start-up document that cannot be had are all told at once, with file and line.
#[test]
fn refusals_of_a_start_up_document_have_their_places() {
    let directory = Directory::new();
    let said = |document: &str| {
        let path = directory.file("node.yaml", document);
        let (status, said) = Directory::new().ends(&format!("--config {}", path.display()));
        assert_eq!(status, 1, "{said}");
        said
    };
    let nets =
        "net:\n- net type: tcp\n  interfaces: {0: none0}\n- net type: tcp1\n  interfaces: {0: none1}\n";
    let both = said(nets);
    for part in
        ["node.yaml: line 3, column 19: net: ", "none0", "node.yaml: line 5, column 19: net: ", "none1"]
    {
        assert!(both.contains(part), "{part:?} is not in {both}");
    }
    let node = Daemon::alone();
    let imported = node.run(&format!("import {}", directory.file("nets.yaml", nets).display()));
    assert!(imported.status == 234 && imported.stderr.matches("errno: ").count() == 2, "{imported:?}");
    for part in ["line 3, column 19: net: ", "line 5, column 19: net: "] {
        assert!(imported.stderr.contains(part), "{imported:?}");
    }
    node.stop();
    // A refusal of the whole is told with file and line too.
    let timeout = said("global:\n  transaction_timeout: 1\n");
    assert!(timeout.contains("node.yaml: line 2, column 3: global: "), "{timeout}");
}

/// Tunables of a net that a later NI asks for otherwise are told by the node: to who adds it, and in the log,
/// where those of a start-up document have their places.
#[test]
fn tunables_that_the_first_ni_has_fixed_are_told() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let [first, second] = [0, 1].map(|rail| &netns.a().interfaces()[rail].name);
    let notes = |net: &str| {
        [("peer_credits 99", 16), ("credits 500", 256)]
            .map(|(asked, has)| format!("{asked} is passed over: net {net} has {has} from its first NI"))
    };
    let node = Daemon::start(Directory::new(), Some(netns.a()), "--configure");
    for net in ["tcp", "xdp"] {
        node.good(&format!("net add --net {net} --if {first} --peer-credits 16 --credits 256"));
        let added = node.run(&format!("net add --net {net} --if {second} --peer-credits 99 --credits 500"));
        assert_eq!(added.status, 0, "{added:?}");
        for note in notes(net) {
            assert!(added.stderr.contains(&format!("lnetctl: {note}\n")), "{added:?}");
            // The log has a thread of its own.
            wait_until("the note is told", PATIENCE, || node.directory.log().contains(&note));
        }
        // Values that the net has are none to tell of.
        node.good(&format!("net del --net {net} --if {second}"));
        node.good(&format!("net add --net {net} --if {second} --peer-credits 16"));
    }
    node.stop();
    let directory = Directory::new();
    let ni =
        |name: &str, credits: &str| format!("  - interfaces: {{0: {name}}}\n    tunables: {{{credits}}}\n");
    let nis = ni(first, "peer_credits: 16") + &ni(second, "peer_credits: 99, credits: 500");
    let document = format!("net:\n- net type: tcp\n  local NI(s):\n{nis}");
    let path = directory.file("node.yaml", &document);
    let node = Daemon::start(directory, Some(netns.a()), &format!("--config {}", path.display()));
    for note in notes("tcp") {
        let placed = format!("node.yaml: line 6, column 21: net: {note}");
        let log = node.directory.log();
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains(&placed)), "{log}");
    }
}

/// A backup of many peers is longer than a part of a request, and comes back whole.
#[test]
fn a_long_backup_is_one_batch() {
    let directory = Directory::new();
    let peers = |last: &str| {
        let peer = |number: u32| {
            let nid = format!("10.{}.{}.1@tcp", number / 200 % 200, number % 200);
            format!("-     primary nid: {nid}\n      peer ni:\n      -     nid: {nid}\n")
        };
        "peer:\n".to_owned() + &(0..12_000).map(peer).collect::<String>() + last
    };
    let node = Daemon::alone();
    // The last of them is wrong: nothing has changed.
    let wrong = directory.file("wrong.yaml", &peers("-     primary nid: 10.0.0.1@tcp\n      lock_prim: true\n      peer ni:\n      -     nid: 10.0.1.1@tcp\n"));
    let refused = node.run(&format!("import {}", wrong.display()));
    assert!(refused.status == 234 && refused.stderr.contains("line 36002"), "{refused:?}");
    assert!(!node.good("export --backup").contains("peer:"));
    let whole = directory.file("peers.yaml", &peers(""));
    node.good(&format!("import {}", whole.display()));
    let backup = node.good("export --backup");
    assert_eq!(backup.matches("primary nid").count(), 12_000);
    let path = directory.file("backup.yaml", &backup);
    assert_eq!(node.good(&format!("import --dry-run {}", path.display())), "");
    node.stop();
}

/// Documents that say all NIDs of one peer, at once: what stands in the end is what one of them says.
#[test]
fn imports_at_once_lose_nothing() {
    let node = Daemon::alone();
    let import = |own: u8| {
        node.good_with("import", &format!("peers:\n- nids: [10.77.0.1@tcp, 10.77.0.{own}@tcp]\n"));
    };
    for round in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| import(10 + 2 * round));
            scope.spawn(|| import(11 + 2 * round));
        });
        let shown = node.good("peer show");
        assert_eq!(shown.matches("-     nid: ").count(), 2, "{shown}");
    }
    node.stop();
}

/// Tunables that limit each other go from a document in an order in which each step is allowed.
#[test]
fn tunables_that_limit_each_other_go_together() {
    let directory = Directory::new();
    let path = directory.file("node.yaml", "global:\n  transaction_timeout: 400\n  retry_count: 200\n");
    let node = Daemon::start(directory, None, &format!("--config {}", path.display()));
    assert!(node.good("global show").contains("retry_count: 200"));
    let told = node.reload(&path, "# nothing\n", "reload: done");
    assert!(told.contains("~ global retry_count: 200 -> 2"), "{told}");
    let shown = node.good("global show");
    assert!(shown.contains("transaction_timeout: 150") && shown.contains("retry_count: 2\n"), "{shown}");
    // One goes, and the other comes to be lower.
    node.reload(&path, "global:\n  transaction_timeout: 400\n  retry_count: 200\n", "reload: done");
    let told = node.reload(&path, "global:\n  retry_count: 30\n", "reload: done");
    assert!(told.contains("~ global retry_count: 200 -> 30"), "{told}");
    assert!(node.good("global show").contains("transaction_timeout: 150"));
    node.stop();
}

/// Sizes of pools and selection policies of the older form go with the lines of the document that say them;
/// those of clients stay.
#[test]
fn pools_and_selections_go_from_a_document() {
    let directory = Directory::new();
    let routing = "routing: {enable: 1}\n";
    let selections = "selection:\n- {type: nid, nid: '10.0.0.*@tcp', priority: 1}\n- {type: net, net: tcp3, priority: 2}\n";
    let udsp = "udsp:\n- {src: tcp7, action: {priority: 5}}\n";
    let document = format!("{routing}buffers: {{small: 256, large: 64}}\n{selections}{udsp}");
    let path = directory.file("node.yaml", &document);
    let node = Daemon::start(directory, None, &format!("--config {}", path.display()));
    node.good("selection net add --net tcp4 --priority 3");
    assert_eq!(node.good("udsp show").matches("selection: ").count(), 4);
    let pools = |node: &Daemon| {
        let shown = node.good("routing show");
        let pool =
            |number: u32| shown.lines().any(|line| line.trim().ends_with(&format!("nbuffers: {number}")));
        ([256, 64].map(pool), shown)
    };
    assert_eq!(pools(&node).0, [true, true], "{}", pools(&node).1);
    // The size of one pool and a selection stay in the document.
    let net = "selection:\n- {type: net, net: tcp3, priority: 2}\n";
    let told = node.reload(&path, &format!("{routing}buffers: {{small: 256}}\n{net}"), "reload: done");
    assert!(told.contains("~ buffers: large 0") && told.contains("of selection 1"), "{told}");
    assert_eq!(pools(&node).0, [true, false], "{}", pools(&node).1);
    let shown = node.good("udsp show");
    assert!(!shown.contains("10.0.0.*") && !shown.contains("tcp7"), "{shown}");
    assert!(shown.contains("tcp3") && shown.contains("tcp4"), "{shown}");
    // Another priority makes a selection anew.
    let net = "selection:\n- {type: net, net: tcp3, priority: 9}\n";
    node.reload(&path, &format!("{routing}{net}"), "reload: done");
    let shown = node.good("udsp show");
    assert!(shown.contains("priority: 9") && !shown.contains("priority: 2"), "{shown}");
    assert_eq!(pools(&node).0, [false, false], "{}", pools(&node).1);
    node.stop();
}

/// A fault rule goes from the document, and those of clients with the same ends stay, in their order.
#[test]
fn fault_rules_of_clients_stay() {
    let directory = Directory::new();
    let rule = |destination: &str, rate: u32| {
        format!("- {{rule_type: drop, fa_src: '*', fa_dst: '{destination}', da_rate: {rate}}}\n")
    };
    let delay = "- {rule_type: delay, fa_src: '*', fa_dst: '*', la_rate: 2, la_latency: 3}\n";
    let stays = rule("10.0.0.1@tcp", 5);
    let path = directory
        .file("node.yaml", &format!("fault:\n{stays}{}{}{delay}", rule("10.0.0.1@tcp", 6), rule("*", 7)));
    let node = Daemon::start(directory, None, &format!("--config {}", path.display()));
    for (destination, rate) in [("10.0.0.1@tcp", 8), ("10.0.0.1@tcp", 8), ("*", 9), ("10.0.0.2@tcp", 10)] {
        node.good(&format!("fault drop add --source * --dest {destination} --rate {rate}"));
    }
    node.good("fault delay add --source * --dest * --rate 11 --latency 4");
    let rates = |what: &str, key: &str| -> Vec<String> {
        let shown = node.good(&format!("fault {what} show"));
        shown.lines().filter_map(|line| line.trim().strip_prefix(key)).map(str::to_owned).collect()
    };
    assert_eq!(rates("drop", "da_rate: "), ["10", "9", "8", "8", "5", "6", "7"]);
    let told = node.reload(&path, &format!("fault:\n{stays}"), "reload: done");
    let mut rest = rates("drop", "da_rate: ");
    assert_eq!(rest.iter().filter(|rate| *rate != "5").collect::<Vec<_>>(), ["10", "9", "8", "8"], "{told}");
    rest.sort();
    assert_eq!(rest, ["10", "5", "8", "8", "9"], "{told}");
    assert_eq!(rates("delay", "la_rate: "), ["11"], "{told}");
    node.stop();
}
