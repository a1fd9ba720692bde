//! Daemons as they are in containers: a seccomp profile refuses `io_uring`, and capabilities are few.

use lnet_io::reactor::{Reactor, ReactorChoice};
use lnet_tests::confined::{IO_URING_CALLS, leave_capabilities, refuse_calls, refuse_io_uring};
use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, enter, require_privilege};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use xtask::netns::Namespace;

use crate::run::{Daemon, Directory};

/// A port that needs no privilege.
const PORT: u16 = 7988;

/// A daemon whose container is in this namespace, with these capabilities.
fn contained(namespace: &Namespace, left: CapabilitySet, errno: Errno, options: &str) -> Daemon {
    enter(namespace, || {
        leave_capabilities(left);
        refuse_io_uring(errno);
        Daemon::start(Directory::new(), None, options)
    })
}

/// Pings both ways, and a load whose bytes are checked.
fn assert_carries([a, b]: [&Daemon; 2], [to_a, to_b]: [&str; 2], load: u32) {
    a.good(&format!("ping {to_b}"));
    b.good(&format!("ping {to_a}"));
    b.good("load start target");
    a.good(&format!("load start initiator --to {to_b} --messages 600 --window 16"));
    // A byte that is wrong would have it fail.
    let done = a.good(&format!("load wait {load}"));
    assert!(done.contains("600 messages,"), "{done}");
    for daemon in [a, b] {
        daemon.good(&format!("load stop {load}"));
    }
}

/// What the node says of its reactor.
fn assert_by_epoll(daemon: &Daemon, why: &str) {
    let shown = daemon.good("net show");
    assert!(shown.lines().any(|line| line.contains("no io_uring: ") && line.contains(why)), "{shown}");
    assert!(daemon.good("net show -v").contains("reactor: epoll"));
    // What is shown can be read again, and a backup does not tell it.
    daemon.good_with("import --dry-run", &shown);
    assert!(!daemon.good("export --backup").contains("io_uring"));
    let log = daemon.directory.log();
    let is_told = |line: &str| ["WARN", "reactor epoll", why].iter().all(|part| line.contains(part));
    assert!(log.lines().any(is_told), "{log}");
}

#[test]
fn without_any_capability_there_are_sockets_and_tcp() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for (errno, why) in [(Errno::PERM, "seccomp profile"), (Errno::NOSYS, "system calls")] {
        let netns = Netns::new(Wiring { rails: 2, queues: 2, ..Wiring::default() });
        let start = |namespace: &Namespace| {
            // Engines of containers let any process bind any port.
            let least = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
            enter(namespace, || std::fs::write(least, "0")).unwrap();
            let options = "--configure --shards 2 --mode socket";
            let daemon = contained(namespace, CapabilitySet::empty(), errno, options);
            let [first, second] = namespace.interfaces() else { panic!("two rails") };
            daemon.good(&format!("net add --net xdp --if {} --port {PORT}", first.name));
            daemon.good(&format!("net add --net tcp --if {}", second.name));
            daemon
        };
        let (a, b) = (start(netns.a()), start(netns.b()));
        for (rail, net) in [(0, "xdp"), (1, "tcp")] {
            let nids = [netns.a(), netns.b()].map(|side| format!("{}@{net}", side.interfaces()[rail].ipv4));
            assert_carries([&a, &b], [&nids[0], &nids[1]], rail as u32 + 1);
        }
        for daemon in [a, b] {
            assert!(daemon.good("net show -v").contains("active mode: socket"));
            assert_by_epoll(&daemon, why);
            daemon.stop();
        }
    }
}

#[test]
fn with_few_capabilities_there_are_rings() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { queues: 2, ..Wiring::default() });
    let four =
        CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF | CapabilitySet::IPC_LOCK;
    // The verifier allows sums of pointers to that alone, where the CPU has mitigations.
    let left = four | CapabilitySet::PERFMON;
    let start = |namespace: &Namespace| {
        let daemon = contained(namespace, left, Errno::PERM, "--configure --shards 2");
        daemon.good(&format!("net add --net xdp --if {} --port {PORT}", namespace.interface().name));
        daemon
    };
    let (a, b) = (start(netns.a()), start(netns.b()));
    let nids = [netns.a(), netns.b()].map(|side| format!("{}@xdp", side.interface().ipv4));
    assert_carries([&a, &b], [&nids[0], &nids[1]], 1);
    for daemon in [a, b] {
        assert!(daemon.good("net show -v").contains("active mode: native"));
        assert_by_epoll(&daemon, "seccomp profile");
        daemon.stop();
    }
    if std::fs::read_to_string("/proc/cmdline").unwrap().contains("mitigations=off") {
        return;
    }
    let daemon = contained(netns.a(), four, Errno::PERM, "--configure");
    daemon.good(&format!("net add --net xdp --if {} --port {PORT}", netns.a().interface().name));
    let shown = daemon.good("net show");
    assert!(shown.lines().any(|line| line.contains("no rings: ") && line.contains("CAP_PERFMON")), "{shown}");
    daemon.stop();
}

#[test]
fn a_reactor_that_is_asked_for_is_had_or_refused() {
    let shown = |options: &str| {
        let daemon = Daemon::alone_with(&format!("--configure {options}"));
        let shown = daemon.good("net show -v");
        assert!(!shown.contains("no io_uring"), "{shown}");
        let log = daemon.stop();
        let reactor =
            shown.lines().find_map(|line| line.trim().strip_prefix("reactor: ")).unwrap_or("io_uring");
        assert!(log.contains(&format!("reactor {reactor}")), "{log}");
        reactor.to_owned()
    };
    assert_eq!(shown("--reactor auto"), "io_uring");
    assert_eq!(shown("--reactor io_uring"), "io_uring");
    assert_eq!(shown("--reactor epoll"), "epoll");
    let refused = std::thread::spawn(|| {
        refuse_io_uring(Errno::PERM);
        Directory::new().ends("--configure --reactor io_uring")
    });
    let (status, said) = refused.join().unwrap();
    assert!(status != 0 && said.contains("io_uring is not permitted"), "{status}: {said}");
    let (status, said) = Directory::new().ends("--reactor poll");
    assert!(status != 0 && said.contains("io_uring, epoll"), "{status}: {said}");
}

/// A profile may allow one of the calls and refuse another.
#[test]
fn each_call_of_io_uring_that_is_refused_leaves_epoll() {
    for call in IO_URING_CALLS {
        let chosen = std::thread::spawn(move || {
            refuse_calls(&[call], Errno::PERM);
            ReactorChoice::Auto.choose()
        });
        let chosen = chosen.join().unwrap();
        assert_eq!(chosen.reactor, Reactor::Epoll, "without system call {call}");
        assert!(chosen.refusal.is_some());
    }
}
