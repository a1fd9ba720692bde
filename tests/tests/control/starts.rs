//! How daemons begin, and how they do not.

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

/// A start-up document that never comes does not keep the daemon from ending.
#[test]
fn the_first_signal_ends_a_daemon_that_is_still_starting() {
    let directory = Directory::new();
    let fifo = directory.0.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let mut child = directory.command(None, &format!("--config {}", fifo.display())).spawn().unwrap();
    let begun = std::time::Instant::now();
    // Long enough for it to wait for the document, whose other end is never opened.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "{}", directory.log());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
