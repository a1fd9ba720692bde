//! Queues of an interface that come while its NI is open, and those that have no sockets.

use std::process::Command;

use lnet_model::records::FramesRecord;
use lnet_tests::netns::{NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege, wait_until};

use crate::hostile_tcp::load_number;
use crate::run::{Daemon, Directory, PATIENCE, Two, until_shown};

/// Changes the channels of the first interface of a namespace, as an administrator does; whether the kernel
/// took that.
fn channels(namespace: &Namespace, counts: &str) -> bool {
    let name = &namespace.interface().name;
    let words = format!("-L {name} {counts}");
    let set = || Command::new("ethtool").args(words.split(' ')).output().unwrap();
    let output = enter(namespace, set);
    if !output.status.success() {
        eprintln!("ethtool {words}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Two daemons over a veth that can have four queues and has two of each kind.
fn two(options: &str) -> Two {
    let netns = Netns::new(Wiring { queues: 4, ..Wiring::default() });
    for namespace in [netns.a(), netns.b()] {
        assert!(channels(namespace, "rx 2 tx 2"));
    }
    let start = |inside| Daemon::start(Directory::new(), Some(inside), options);
    let two = Two { a: start(netns.a()), b: start(netns.b()), netns };
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        daemon.good(&format!("net add --net xdp --if {}", namespace.interface().name));
    }
    two
}

/// Queues by which frames were steered, and frames that found no socket.
fn queues(daemon: &Daemon) -> (Vec<u32>, u64) {
    let frames: FramesRecord = serde_json::from_str(&daemon.good("frames show --json")).unwrap();
    let mut queues: Vec<u32> =
        frames.slots.iter().filter(|slot| slot.frames != 0).map(|slot| slot.queue).collect();
    queues.sort_unstable();
    queues.dedup();
    (queues, frames.reasons.get("no_socket").copied().unwrap_or(0))
}

/// `ethtool -L` gives both ends more queues under load: all of them have sockets a moment later, messages
/// arrive by them, and none is lost.
#[test]
fn queues_that_come_under_load_get_sockets() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two("--shards 4 --spin 0");
    let [a, b] = two.nids(0);
    two.a.good(&format!("ping --timeout 10 {b}"));
    assert!(queues(&two.a).0.iter().all(|queue| *queue < 2));
    let target = load_number(&two.b.good("load start target"));
    let load = format!("load start initiator --to {b} --messages 20000 --window 32 --timeout-ms 40000");
    let load = load_number(&two.a.good(&load));
    // A veth with a program must have a queue for each that its peer sends by.
    for (namespace, counts) in
        [(two.netns.a(), "rx 4"), (two.netns.b(), "rx 4"), (two.netns.a(), "tx 4"), (two.netns.b(), "tx 4")]
    {
        assert!(channels(namespace, counts), "{counts}");
        if counts == "rx 4" {
            let daemon = if namespace.name() == two.netns.a().name() { &two.a } else { &two.b };
            until_shown(daemon, "net show --net xdp -v", "active queues: 4");
        }
    }
    two.a.good(&format!("load wait {load}"));
    two.a.good(&format!("load stop {load}"));
    two.b.good(&format!("load stop {target}"));
    wait_until("messages arrive by queues that have come", PATIENCE, || {
        // The shards of an initiator send by all queues, and one shard of a target answers.
        for (from, to, nid) in [(&two.a, &two.b, &b), (&two.b, &two.a, &a)] {
            let target = load_number(&to.good("load start target"));
            let load = format!("load start initiator --to {nid} --messages 400 --window 32");
            let load = load_number(&from.good(&load));
            from.good(&format!("load wait {load}"));
            from.good(&format!("load stop {load}"));
            to.good(&format!("load stop {target}"));
        }
        [&two.a, &two.b].iter().all(|daemon| queues(daemon).0 == [0, 1, 2, 3])
    });
    // The kernel takes no queues away that have sockets: the NI stays as it was.
    assert!(!channels(two.netns.a(), "rx 2 tx 2"));
    two.b.good(&format!("ping --timeout 10 {a}"));
    for daemon in [&two.a, &two.b] {
        assert_eq!(queues(daemon).1, 0, "frames found no socket");
        daemon.good("frames check");
        assert!(!daemon.good("net show").contains("alarm"));
    }
    let log = two.a.stop();
    assert!(log.contains("the queues of an interface are others"), "{log}");
}

/// Without memory for their rings, queues that come have no sockets: what arrives there is lost, which is
/// said until they have gone again.
#[test]
fn queues_without_sockets_raise_an_alarm() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    // Frames for two queues that have 2048 each, and what is sent: not 256 for each of 34 queues.
    let netns = Netns::new(Wiring { queues: 40, ..Wiring::default() });
    for namespace in [netns.a(), netns.b()] {
        assert!(channels(namespace, "rx 2 tx 2"));
    }
    let start = |inside| Daemon::start(Directory::new(), Some(inside), "--shards 1 --spin 0 --memory 27M");
    let two = Two { a: start(netns.a()), b: start(netns.b()), netns };
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        daemon.good(&format!("net add --net xdp --if {}", namespace.interface().name));
    }
    let [_, b] = two.nids(0);
    assert!(!two.b.good("net show").contains("alarm"));
    assert!(channels(two.netns.b(), "rx 40"));
    until_shown(&two.b, "net show", "40 receive queues, sockets on 2");
    until_shown(&two.b, "net show", "lnetd --memory");
    let checked = two.b.run("frames check");
    assert!(checked.status == 1 && checked.stderr.contains("receive queues, sockets on 2"), "{checked:?}");
    two.a.good(&format!("ping --timeout 10 {b}"));
    assert!(channels(two.netns.b(), "rx 2"), "those have no sockets");
    wait_until("the alarm is over", PATIENCE, || !two.b.good("net show").contains("alarm"));
    two.b.good("frames check");
    let log = two.b.stop();
    assert_eq!(
        log.lines().filter(|line| line.contains("WARN") && line.contains("sockets on 2")).count(),
        1,
        "{log}"
    );
}

/// Queues share memory that is too little for all of them in mode `auto`; with much too little the NI has
/// sockets. Other modes are refused, and the memory is named that they want.
#[test]
fn queues_share_memory_that_is_too_little_for_them() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { queues: 16, ..Wiring::default() });
    // Frames of 16 queues that have 272 each, and what is sent; and less than that.
    let start = |inside, memory: &str| {
        let options = format!("--shards 1 --spin 0 --memory {memory}");
        Daemon::start(Directory::new(), Some(inside), &options)
    };
    let two = Two { a: start(netns.a(), "27M"), b: start(netns.b(), "12M"), netns };
    for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
        daemon.good("lnet configure");
        let add = format!("net add --net xdp --if {}", namespace.interface().name);
        daemon.bad(&format!("{add} --mode native"), &["16 receive queues", "lnetd --memory 1"]);
        daemon.good(&add);
    }
    let shown = two.a.good("net show -v");
    for part in ["active mode: native", "active queues: 16", "272 frames for a queue instead of 2048"] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown = two.b.good("net show -v");
    for part in ["active mode: socket", "no rings:", "frames are wanted, the node has 3072"] {
        assert!(shown.contains(part), "{shown}");
    }
    let [a, b] = two.nids(0);
    for (from, to, nid) in [(&two.a, &two.b, &b), (&two.b, &two.a, &a)] {
        let target = load_number(&to.good("load start target"));
        let load = format!("load start initiator --to {nid} --messages 2000 --window 32");
        let load = load_number(&from.good(&load));
        from.good(&format!("load wait {load}"));
        from.good(&format!("load stop {load}"));
        to.good(&format!("load stop {target}"));
    }
    for daemon in [&two.a, &two.b] {
        daemon.good("frames check");
        assert!(!daemon.good("net show").contains("alarm"));
    }
    let log = two.a.stop();
    assert!(
        log.lines().any(|line| line.contains("WARN") && line.contains("272 frames for a queue")),
        "{log}"
    );
}

/// All flows come by one queue of four, as on a card that spreads by addresses alone: the NI says so and the
/// log once, with the remedy, and no more once the other queues have frames.
#[test]
fn queues_that_stay_empty_while_one_is_busy_are_told_once() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    const NETS: [&str; 4] = ["xdp", "xdp1", "xdp2", "xdp3"];
    let netns = Netns::new(Wiring { queues: 4, ..Wiring::default() });
    // The queue of a veth that a frame comes by is the one that it was sent by.
    assert!(channels(netns.a(), "tx 1"));
    let start = |inside| Daemon::start(Directory::new(), Some(inside), "--shards 4 --spin 0 --memory 400M");
    let two = Two { a: start(netns.a()), b: start(netns.b()), netns };
    let add = |net: &str, port: u16| {
        for (daemon, namespace) in [(&two.a, two.netns.a()), (&two.b, two.netns.b())] {
            daemon.good(&format!("net add --net {net} --if {} --port {port}", namespace.interface().name));
        }
    };
    [&two.a, &two.b].iter().for_each(|daemon| drop(daemon.good("lnet configure")));
    add(NETS[0], 988);
    let address = two.nids(0)[1].split('@').next().unwrap().to_owned();
    let load = |net: &str, messages: u32| {
        let target = load_number(&two.b.good("load start target"));
        let load = format!("load start initiator --to {address}@{net} --messages {messages} --window 32");
        let load = load_number(&two.a.good(&load));
        two.a.good(&format!("load wait {load}"));
        two.a.good(&format!("load stop {load}"));
        two.b.good(&format!("load stop {target}"));
    };
    let told = "queue 0 has had all of the last";
    load(NETS[0], 2000);
    until_shown(&two.b, "net show --net xdp -v", "frames by queue:");
    wait_until("frames by queue are counted", PATIENCE, || {
        let [first, others @ ..] = by_queue(&two.b);
        assert_eq!(others, [0; 3]);
        first > 2000
    });
    assert!(!two.b.good("net show").contains("idle queues"), "one flow has one queue");
    NETS[1..].iter().zip(989..).for_each(|(net, port)| add(net, port));
    wait_until("the queues that stay empty are told", 3 * PATIENCE, || {
        NETS.iter().for_each(|net| load(net, 200));
        two.b.good("net show").contains(told)
    });
    let remedy = format!("ethtool -N {} rx-flow-hash udp4 sdfn", two.netns.b().interface().name);
    until_shown(&two.b, "net show --net xdp3", &remedy);
    two.b.good("frames check");
    // What is shown can be read again.
    assert_eq!(two.b.good_with("import --dry-run", &two.b.good("net show -v")), "");
    assert!(channels(two.netns.a(), "tx 4"));
    wait_until("the other queues have frames", 2 * PATIENCE, || {
        NETS.iter().for_each(|net| load(net, 500));
        !two.b.good("net show").contains("idle queues") && by_queue(&two.b).iter().all(|frames| *frames > 0)
    });
    let log = two.b.stop();
    assert_eq!(log.lines().filter(|line| line.contains("WARN") && line.contains(told)).count(), 1, "{log}");
}

/// Frames by queue, as the first NI of a node shows them.
fn by_queue(daemon: &Daemon) -> [u64; 4] {
    let shown = daemon.good("net show --net xdp -v");
    let (_, counts) = shown.split_once("frames by queue:\n").unwrap_or_else(|| panic!("{shown}"));
    let mut lines = counts.lines();
    [0, 1, 2, 3].map(|queue| {
        let (number, count) = lines.next().and_then(|line| line.trim().split_once(": ")).unwrap();
        assert_eq!(number.parse(), Ok(queue), "{shown}");
        count.parse().unwrap()
    })
}
