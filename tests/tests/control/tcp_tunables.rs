//! Tunables of the tcp LND: what each changes, as the kernel's sockets and `lnetctl` show it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;

use lnet_tests::netns::{NETNS_NODES, Namespace, require_privilege, wait_until};
use rustix::net::sockopt::tcp_user_timeout;
use rustix::net::{getpeername, getsockname};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::hostile_tcp::count;
use crate::run::{Daemon, PATIENCE, Two, until_shown};

/// Lines of `ss`, one for each socket.
fn sockets(namespace: &Namespace, words: &str) -> Vec<String> {
    let output = namespace.command(Path::new("ss")).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ss {words}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Two daemons with these options, and an NI on tcp each.
fn two(options: &str) -> Two {
    Two::on(&["tcp"], options)
}

/// The NIDs of both on this net.
fn nids(two: &Two, net: &str) -> [String; 2] {
    two.nids(0).map(|nid| nid.replace("@xdp", &format!("@{net}")))
}

#[track_caller]
fn check_shown(shown: &str, parts: &[&str]) {
    for part in parts {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
}

/// Test 310 of the catalogue, for all tunables.
#[test]
fn nis_that_say_nothing_have_what_the_daemon_was_started_with() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two =
        two("--sock credits=64 --sock peer_credits=4 --sock peer_buffer_credits=3 --sock peer_timeout=90 \
         --sock conns_per_peer=3 --sock tos=16 --sock sock_timeout=57");
    let of_node = [
        " credits: 64",
        "peer_credits: 4",
        "peer_buffer_credits: 3",
        "peer_timeout: 90",
        "conns_per_peer: 3",
        "tos: 16",
        " timeout: 57",
    ];
    check_shown(&two.a.good("net show --net tcp -v 1"), &of_node);
    // Both have as many, and each connection is seen at either end.
    let [_, b] = nids(&two, "tcp");
    until_shown(&two.a, &format!("ping {b}"), &b);
    wait_until("one and three of each bulk type", PATIENCE, || count(&two.b, "established") == 7);
    // NIs that say something have that, and a net of another LND has its own.
    let name = &two.netns.a().interface().name;
    let own =
        "--credits 32 --peer-credits 2 --peer-buffer-credits 5 --peer-timeout 70 --conns-per-peer 2 --tos 8";
    two.a.good(&format!("net add --net tcp1 --if {name} {own}"));
    let asked = [
        " credits: 32",
        "peer_credits: 2",
        "peer_buffer_credits: 5",
        "peer_timeout: 70",
        "conns_per_peer: 2",
        "tos: 8",
    ];
    check_shown(&two.a.good("net show --net tcp1 -v 1"), &asked);
    two.a.good(&format!("net add --net xdp --if {name}"));
    check_shown(&two.a.good("net show --net xdp -v 1"), &["peer_credits: 128", " credits: 1024"]);
    // 0 and -1 are the daemon's choice.
    two.a.good(&format!("net add --net tcp2 --if {name} --conns-per-peer 0 --tos -1"));
    check_shown(&two.a.good("net show --net tcp2 -v 1"), &of_node);
}

/// Test 291 of the catalogue.
#[test]
fn bulk_connections_go_to_a_port_of_their_own() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two("--sock accept_port=1988 --sock accept_port_bulk=1989 --sock conns_per_peer=2");
    let [a, b] = nids(&two, "tcp");
    until_shown(&two.a, &format!("ping {b}"), &b);
    let connected = |port: u16| {
        let filter = format!("-tnH state established ( sport = :{port} )");
        sockets(two.netns.b(), &filter).len()
    };
    wait_until("one to the one port, four to the other", PATIENCE, || {
        [1988, 1989, 988].map(connected) == [1, 4, 0]
    });
    // NIs with one address share both, and one that stays goes on with them.
    let name = &two.netns.b().interface().name;
    two.b.good(&format!("net add --net tcp1 --if {name}"));
    two.b.good("net del --net tcp");
    two.a.good(&format!("net add --net tcp1 --if {}", two.netns.a().interface().name));
    let [_, b1] = nids(&two, "tcp1");
    until_shown(&two.a, &format!("ping {b1}"), &b1);
    wait_until("the other net has as many", PATIENCE, || [1988, 1989].map(connected) == [1, 4]);
    let hint = format!("tcpdump -i {name} -w FILE port 1988 or port 1989");
    two.b.bad("capture start /none.pcapng --limit 1M", &[&hint]);
    two.b.bad(&format!("ping {a}"), &[]);
}

/// Connections that were accepted for one of them do not have what another one's listener has.
#[test]
fn each_ni_of_an_interface_has_its_own_type_of_service() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "--sock conns_per_peer=2");
    for (daemon, side) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        for (net, option) in [("tcp", "--tos 16"), ("tcp1", "--tos 32"), ("tcp2", "")] {
            daemon.good(&format!("net add --net {net} --if {} {option}", side.interface().name));
        }
    }
    let mut sums = [0; 3];
    for (index, net) in ["tcp", "tcp1", "tcp2"].into_iter().enumerate() {
        let [a, _] = nids(&two, net);
        until_shown(&two.b, &format!("ping {a}"), &a);
        sums[index] += 5;
        for (side, filter) in [(two.netns.a(), "sport"), (two.netns.b(), "dport")] {
            wait_until(&format!("connections of {net} have its type of service"), PATIENCE, || {
                let all = sockets(side, &format!("-tnH --tos state established ( {filter} = :988 )"));
                let with = |tos: &str| all.iter().filter(|line| line.contains(tos)).count();
                let [first, second] = ["tos:0x10 ", "tos:0x20 "].map(with);
                [first, second, all.len() - first - second] == sums
            });
        }
    }
}

#[test]
fn sockets_have_the_buffers_probes_and_backlog_that_were_asked_for() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two(
        "--sock tx_buffer_size=50000 --sock rx_buffer_size=60000 --sock keepalive_idle=7 --sock accept_backlog=33",
    );
    let [_, b] = nids(&two, "tcp");
    let listening = sockets(two.netns.b(), "-ltnH ( sport = :988 )");
    // Sockets listen by its interface, and by `lo` for peers on its host.
    assert_eq!(listening.len(), 2, "{listening:?}");
    // At the address of the NI, and no other one (test 290 of the catalogue).
    let address = format!("{}", two.netns.b().interface().ipv4);
    for listening in listening {
        let local = listening.split_whitespace().nth(3).unwrap();
        assert!(local.starts_with(&address), "{listening}");
        assert_eq!(listening.split_whitespace().nth(2), Some("33"), "{listening}");
    }
    until_shown(&two.a, &format!("ping {b}"), &b);
    for (side, filter) in [(two.netns.a(), "dport"), (two.netns.b(), "sport")] {
        let shown = || sockets(side, &format!("-tnHomO state established ( {filter} = :988 )"));
        let probes_soon = |line: &String| {
            let rest = line.split_once("timer:(keepalive,").map_or("", |(_, rest)| rest);
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().is_ok_and(|left| left <= 7)
        };
        wait_until("all are idle and will be probed", PATIENCE, || {
            let all = shown();
            !all.is_empty() && all.iter().all(probes_soon)
        });
        for line in shown() {
            check_shown(&line, &["rb120000", "tb100000"]);
        }
    }
}

#[test]
fn who_accepts_none_is_not_connected_and_connects_others() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two("--sock accept=none --sock sock_timeout=3");
    let [_, b] = nids(&two, "tcp");
    assert_eq!(sockets(two.netns.b(), "-ltnH ( sport = :988 )"), Vec::<String>::new());
    two.a.bad(&format!("ping --timeout 3 {b}"), &[]);
    wait_until("the dial has failed", PATIENCE, || count(&two.a, "dial_failed") != 0);
}

/// Connections of a daemon that it has accepted, or dialled: after how many milliseconds each ends without
/// acknowledgements.
fn user_timeouts(daemon: &Daemon, is_accepted: bool) -> Vec<u32> {
    let process = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let names = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let numbers = names.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap());
    // Some have been closed by now.
    let all = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
    let ports = |socket: &dyn AsFd| {
        let own = SocketAddr::try_from(getsockname(socket.as_fd()).ok()?).ok()?;
        let other = SocketAddr::try_from(getpeername(socket.as_fd()).ok()??).ok()?;
        Some((own.port(), other.port()))
    };
    all.filter(|socket| {
        ports(socket).is_some_and(|(own, other)| (own == 988, other == 988) == (is_accepted, !is_accepted))
    })
    .map(|socket| tcp_user_timeout(&socket).unwrap())
    .collect()
}

/// The kernel ends a connection without acknowledgements by the timeout that holds when it is made, at either
/// end.
#[test]
fn connections_have_the_lnd_timeout_that_is_set_while_nis_run() {
    /// A control connection, and two of each bulk type.
    const EACH: usize = 5;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two("--sock conns_per_peer=2");
    let [a, b] = [(&two.a, two.netns.a()), (&two.b, two.netns.b())];
    let add = |(daemon, side): (&Daemon, &Namespace), net: &str| {
        daemon.good(&format!("net add --net {net} --if {}", side.interface().name));
    };
    let connect = |from: &Daemon, to: usize, net: &str| {
        let to = &nids(&two, net)[to];
        until_shown(from, &format!("ping {to}"), to);
    };
    let until_all = |daemon: &Daemon, is_accepted: bool, expected_ms: &[u32]| {
        let expected_ms: Vec<u32> = expected_ms.iter().flat_map(|ms| [*ms; EACH]).collect();
        wait_until(&format!("accepted {is_accepted}: {expected_ms:?}"), PATIENCE, || {
            let mut shown = user_timeouts(daemon, is_accepted);
            shown.sort_unstable();
            shown == expected_ms
        });
    };
    connect(b.0, 0, "tcp");
    until_all(a.0, true, &[50_000]);
    a.0.good("net set --net tcp --lnd-timeout 200");
    // The listener of the NI that there was accepts, and that of one that came afterwards.
    b.0.good("net del --net tcp");
    add(b, "tcp");
    connect(b.0, 0, "tcp");
    until_all(a.0, true, &[200_000]);
    add(a, "tcp1");
    add(b, "tcp1");
    connect(b.0, 0, "tcp1");
    until_all(a.0, true, &[200_000, 200_000]);
    a.0.good("net del --net tcp");
    a.0.good("net del --net tcp1");
    add(a, "tcp2");
    add(b, "tcp2");
    connect(b.0, 0, "tcp2");
    until_all(a.0, true, &[200_000]);
    // Connections that `a` dials, and the other end, of which nothing was said.
    add(a, "tcp3");
    add(b, "tcp3");
    connect(a.0, 1, "tcp3");
    until_all(a.0, false, &[200_000]);
    until_all(b.0, true, &[50_000]);
    // Longer than the kernel can count.
    a.0.good("net set --net tcp --lnd-timeout 4000000");
    add(a, "tcp4");
    add(b, "tcp4");
    connect(a.0, 1, "tcp4");
    until_all(a.0, false, &[200_000, i32::MAX as u32]);
}
