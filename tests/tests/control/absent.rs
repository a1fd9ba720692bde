//! Peers that are not there: what a ping says of them, what the log does, and whose health it costs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, Namespace, enter, ip, require_privilege};
use lnet_tests::node::nid_v4;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use rustix::process::Signal;

use crate::run::{Daemon, Directory, PORT, Two};

/// The value of a key, where it is first shown.
fn value(shown: &str, key: &str) -> String {
    let line = shown.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("{key} is not in {shown}")).to_owned()
}

/// The health of the only NI of a net.
fn health(daemon: &Daemon, net: &str) -> String {
    value(&daemon.good(&format!("net show --net {net} -v 3")), "health value")
}

/// Peers on hosts without a daemon, and on addresses without a host, are told apart, and cost the local NI
/// nothing: others are reached by it.
#[test]
fn absent_peers_are_told_apart_and_cost_the_local_ni_no_health() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let interface = two.netns.a().interface();
    two.a.good("lnet configure");
    two.a.good(&format!("net add --net tcp --if {}", interface.name));
    let shown = two.a.good("net show --net tcp -v");
    assert_eq!(value(&shown, "accept port"), "988");
    // A host without a daemon.
    let refusing = two.nids(0)[1].replace("@xdp", "@tcp");
    let address = refusing.trim_end_matches("@tcp");
    let refused = ["errno: -111", "Connection refused", address, "port 988"];
    for _ in 0..3 {
        two.a.bad(&format!("ping --timeout 10 {refusing}"), &refused);
    }
    let discovered = two.a.run(&format!("discover {refusing}"));
    assert!(discovered.stdout.contains("Connection refused (it was looked for at"), "{discovered:?}");
    // The kernel answers for hosts that no neighbour has.
    let (prefix, _) = address.rsplit_once('.').unwrap();
    let absent = format!("{prefix}.77");
    two.a.bad(&format!("ping --timeout 20 {absent}@tcp"), &["errno: -113", "No route to host", "port 988"]);
    // A host that takes no frames from here.
    ip(two.netns.a(), "route add unreachable 192.0.2.0/24");
    two.a.bad("ping --timeout 20 192.0.2.1@tcp", &["errno: -113"]);
    assert_eq!(health(&two.a, "tcp"), "1000");
    let statistics = two.a.good("stats show");
    assert_ne!(value(&statistics, "remote_dropped_count"), "0", "{statistics}");
    assert_eq!(value(&statistics, "local_no_route_count"), "0", "{statistics}");
    let log = two.a.stop();
    let lines = log.lines().filter(|line| line.contains("cannot be made") && line.contains(&refusing));
    assert_eq!(lines.clone().count(), 1, "{log}");
    let line = lines.clone().next().unwrap_or_default();
    assert!(line.contains(&format!("{address}:988")) && line.contains("refused"), "{line}");
}

/// The checksum of the Internet protocols (RFC 1071), of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// Has a host say many times that a peer's port is free, of datagrams that go there from the LNet port, and
/// from others.
fn forge(from: &Namespace, to: Ipv4Addr, about: Ipv4Addr) {
    enter(from, || {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        for source_port in (0..200).map(|other| if other % 2 == 0 { PORT } else { 40_000 + other }) {
            let mut quoted = vec![0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0];
            quoted.extend(to.octets().into_iter().chain(about.octets()));
            let sum = checksum(&quoted);
            quoted[10..12].copy_from_slice(&sum);
            quoted.extend([source_port, PORT, 40, 0].map(u16::to_be_bytes).as_flattened());
            let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum);
            sendto(&socket, &message, SendFlags::empty(), &SocketAddrV4::new(to, 0)).unwrap();
        }
    });
}

/// A host without a daemon is told from a silent one after a second, in which a daemon may start, whatever
/// carries the frames. So is one that is not there, and none of them costs the local NI health. Nothing that
/// others say of a port ends a session, or the wait for one.
#[test]
fn a_host_without_a_daemon_refuses_over_xdp_too() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for mode in ["native", "socket"] {
        let two = Two::new(1, "");
        let [near, far] = [two.netns.a(), two.netns.b()].map(Namespace::interface);
        let [_, b] = two.nids(0);
        let add = |daemon: &Daemon, name: &str| {
            daemon.good("lnet configure");
            daemon.good(&format!("net add --net xdp --if {name} --mode {mode} --port {PORT}"));
        };
        add(&two.a, &near.name);
        let begun = Instant::now();
        let (address, port) = (far.ipv4.to_string(), format!("port {PORT}"));
        two.a.bad(&format!("ping --timeout 30 {b}"), &["errno: -111", "Connection refused", &address, &port]);
        let took = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&took), "mode {mode}: {took:?}");
        // No host has the address: neighbour discovery takes three seconds.
        let begun = Instant::now();
        two.a.bad("ping --timeout 30 10.211.0.78@xdp", &["errno: -113", "No route to host"]);
        let took = begun.elapsed();
        assert!((Duration::from_secs(2)..Duration::from_secs(6)).contains(&took), "mode {mode}: {took:?}");
        // No route leads there from here.
        ip(two.netns.a(), "route add unreachable 192.0.2.0/24");
        two.a.bad("ping --timeout 20 192.0.2.1@xdp", &["errno: -113", "No route to host"]);
        assert_eq!(health(&two.a, "xdp"), "1000");
        assert_eq!(value(&two.a.good("stats show"), "network_timeout_count"), "0");
        // A host that takes frames for an address that it has not, and says nothing.
        let silent = Ipv4Addr::new(10, 211, 0, 77);
        let mac = ip(two.netns.b(), &format!("-o link show dev {}", far.name));
        let mac = mac.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap();
        ip(two.netns.a(), &format!("neigh add {silent} lladdr {mac} dev {} nud permanent", near.name));
        std::thread::scope(|scope| {
            let ping = scope.spawn(|| two.a.bad(&format!("ping --timeout 3 {silent}@xdp"), &["errno: -110"]));
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(200));
                forge(two.netns.b(), near.ipv4, silent);
            }
            ping.join().unwrap();
        });
        // The daemon is started, and forged words do not end its sessions.
        add(&two.b, &far.name);
        two.a.good(&format!("ping --timeout 10 {b}"));
        two.b.good("load start target");
        two.a.good(&format!("load start initiator --to {b} --messages 500 --window 2"));
        for _ in 0..10 {
            forge(two.netns.b(), near.ipv4, far.ipv4);
        }
        two.a.good("load wait 1");
        two.a.good(&format!("ping --timeout 10 {b}"));
    }
}

/// NIDs of the other family are told so, and cost the local NI nothing.
#[test]
fn addresses_of_the_other_family_cost_the_local_ni_no_health() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "");
    let interface = two.netns.a().interface();
    two.a.good("lnet configure");
    let bare = "net:\n- net type: tcp\n";
    two.a.good_with("import", bare);
    // The net is there: importing twice changes nothing.
    two.a.good_with("import", bare);
    for absent in 1..=5 {
        let nid = format!("fd37::7{absent}@tcp");
        two.a.bad(
            &format!("ping --timeout 10 {nid}"),
            &["errno: -97", "no NI here on tcp has an IPv6 address"],
        );
    }
    assert_eq!(health(&two.a, "tcp"), "1000");
    // A second NI says nothing of tunables that are asked of the first one.
    two.a.good(&format!("net add --net tcp --if {}", two.netns.a().interfaces()[1].name));
    two.a.good_with("import", bare);
    let other = format!("{bare}  tunables: {{peer_credits: 16}}\n");
    let refused = two.a.run_with("import", &other);
    assert!(refused.status != 0 && refused.stderr.contains("peer_credits is 8 and not 16"), "{refused:?}");
    for mode in ["native", "socket"] {
        two.a.good(&format!("net add --net xdp --if {} --mode {mode}", interface.name));
        for absent in 1..=3 {
            let begun = Instant::now();
            two.a.bad(&format!("ping --timeout 30 fd37::7{absent}@xdp"), &["errno: -97"]);
            assert!(begun.elapsed() < Duration::from_secs(5), "mode {mode}: {:?}", begun.elapsed());
        }
        assert_eq!(health(&two.a, "xdp"), "1000", "mode {mode}");
        two.a.good("net del --net xdp");
    }
    // An address that the interface does not have is refused before anything is done.
    let other = format!(
        "net:\n- net type: tcp5\n  local NI(s):\n  - nid: 192.0.2.9@tcp5\n    interfaces: {{0: {}}}\n",
        interface.name
    );
    for command in ["import --dry-run", "import"] {
        let refused = two.a.run_with(command, &other);
        assert!(
            refused.stderr.contains("does not have the address of 192.0.2.9@tcp5; it has"),
            "{refused:?}"
        );
    }
}

/// A ping of a peer whose daemon has ended says so within seconds, by all of its NIs. The peer is reached
/// again once a daemon is there.
#[test]
fn a_peer_whose_daemon_has_ended_refuses_pings() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for (nets, mode) in [(&["xdp"][..], "native"), (&["xdp", "xdp1"], "socket")] {
        let Two { a, mut b, netns } = Two::on(nets, &format!("--mode {mode}"));
        let nid = nid_v4(netns.b().interface(), 0).to_string();
        a.good(&format!("ping {nid}"));
        a.good(&format!("discover {nid}"));
        b.signal(Signal::KILL);
        b.wait();
        let refused = ["errno: -111", "Connection refused", "port 988"];
        let begun = Instant::now();
        a.bad(&format!("ping {nid}"), &refused);
        assert!(begun.elapsed() < Duration::from_secs(20), "{nets:?}: {:?}", begun.elapsed());
        // Known to be away: the same.
        a.bad(&format!("ping {nid}"), &refused);
        assert_eq!(health(&a, "xdp"), "1000");
        let b = Daemon::start(Directory::new(), Some(netns.b()), "--shards 2 --spin 0 --configure");
        for (interface, net) in netns.b().interfaces().iter().zip(nets) {
            b.good(&format!("net add --net {net} --if {} --mode {mode}", interface.name));
        }
        a.good(&format!("ping --timeout 10 {nid}"));
    }
}
