//! How daemons begin, and how they do not.

use lnet_tests::netns::wait_until;
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
        assert_eq!(&told[..length], b"READY=1");
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

/// What a document says is escaped on the way to the terminal and to the log.
#[test]
fn errors_of_a_start_up_document_act_on_no_terminal() {
    let directory = Directory::new();
    let document = "\"a\\e[2Jb\\nlnetd: forged\": 1\nglobal:\n    \"retry\\e_count\": 1\n";
    let path = directory.file("node.yaml", document);
    let (status, said) = directory.ends(&format!("--config {}", path.display()));
    assert!(status == 1 && !said.contains('\u{1b}') && !said.contains("\nlnetd: forged"), "{said}");
    assert!(said.contains("invalid key 'a\\u{1b}[2Jb\\nlnetd: forged'"), "{said}");
}
