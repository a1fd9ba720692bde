//! Long messages of NIs over rings, by these or by a socket beside them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lnet_tests::confined::refuse_option;
use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, enter, require_privilege, wait_until};
use xtask::netns::Namespace;

use crate::hostile_tcp::{count, load_number};
use crate::run::{Daemon, Directory, PATIENCE, Two};

/// Name of the counter of frames that left by a socket beside rings.
const BESIDE: &str = "frames beside rings";
/// Sizes of messages: in one short frame, in one frame, and long ones.
const SIZES: [u32; 4] = [200, 5000, 60_000, 1 << 20];

/// Two daemons over rings, in these modes.
fn two_in(modes: [&str; 2]) -> Two {
    let two = Two::new(1, "");
    for ((daemon, namespace), mode) in
        [(&two.a, two.netns.a()), (&two.b, two.netns.b())].into_iter().zip(modes)
    {
        daemon.good("lnet configure");
        daemon.good(&format!("net add --net xdp --if {} --mode {mode}", namespace.interface().name));
    }
    two
}

/// Begins a load of so many messages, Puts and Gets, to a peer with a target.
fn begin(daemon: &Daemon, peer: &str, messages: u32) -> u32 {
    let size = |bytes: &u32| format!(r#"{{"min_bytes":{bytes},"max_bytes":{bytes},"weight":1}}"#);
    let sizes = SIZES.iter().map(size).collect::<Vec<_>>().join(",");
    let scheme = daemon.directory.file("scheme.json", &format!(r#"{{"puts_percent":70,"sizes":[{sizes}]}}"#));
    let words = format!(
        "load start initiator --to {peer} --messages {messages} --window 16 --timeout-ms 20000 --scheme {}",
        scheme.display()
    );
    load_number(&daemon.good(&words))
}

/// The carrier is switched under loads both ways; nothing is lost or wrong, and each frame is accounted for.
fn switched_under_load(modes: [&str; 2], messages: u32) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two_in(modes);
    let [a, b] = two.nids(0);
    two.a.good(&format!("discover {b}"));
    two.b.good("load start target");
    two.a.good("load start target");
    let loads = [begin(&two.a, &b, messages), begin(&two.b, &a, messages)];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ended = [(&two.a, loads[0]), (&two.b, loads[1])]
                .map(|(daemon, load)| daemon.run(&format!("load wait {load}")));
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(|ran| ran.status == 0), "{ended:?}");
        });
        let carriers = ["socket", "rings", "socket", "auto"].into_iter().cycle();
        for carrier in carriers.take_while(|_| !is_over.load(Ordering::Relaxed)) {
            two.a.good(&format!("net set --all --carrier {carrier}"));
            two.b.good(&format!("net set --nid {b} --carrier {carrier}"));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for daemon in [&two.a, &two.b] {
        assert!(count(daemon, BESIDE) > 100, "{}", daemon.good("frames show"));
        daemon.good("frames check");
    }
    two.a.stop();
    two.b.stop();
}

#[test]
fn the_carrier_is_switched_under_load() {
    switched_under_load(["native", "native"], 2000);
}

/// The peer in generic mode takes no runs, and sends some.
#[test]
fn the_carrier_is_switched_under_load_to_a_peer_in_generic_mode() {
    switched_under_load(["native", "generic"], 1000);
}

/// A kernel that knows no runs that are sent: the rings have long messages, and the node says why. Over
/// sockets each frame goes alone, and it says that.
#[test]
fn runs_that_the_kernel_refuses_are_told() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let start = |namespace: &Namespace, mode: &str| {
        let daemon = enter(namespace, || {
            refuse_option(libc::SOL_UDP, libc::UDP_SEGMENT);
            Daemon::start(Directory::new(), None, "--configure")
        });
        daemon.good(&format!("net add --net xdp --if {} --mode {mode}", namespace.interface().name));
        daemon
    };
    let (a, b) = (start(netns.a(), "native"), start(netns.b(), "socket"));
    let refused = "the kernel refuses runs of frames (UDP_SEGMENT): Protocol not available";
    let to_b = format!("{}@xdp", netns.b().interface().ipv4);
    let shown = |daemon: &Daemon, words: &str, expected: &str| {
        let shown = daemon.good(words);
        let is_told = |line: &str| line.contains("carrier: ") && line.contains(expected);
        assert!(shown.lines().any(is_told), "{expected:?} is not in {shown}");
    };
    shown(&a, "net show --net xdp -v", &format!("rings, {refused}"));
    shown(&a, &format!("explain {to_b}"), &format!("rings, {refused}"));
    shown(&b, "net show --net xdp -v", &format!("socket, {refused}"));
    for daemon in [&a, &b] {
        let log = daemon.directory.log();
        let lines = log.lines().filter(|line| line.contains("WARN") && line.contains(refused)).count();
        assert_eq!(lines, 1, "{log}");
    }
    b.good("load start target");
    a.good(&format!("load wait {}", begin(&a, &to_b, 50)));
    assert_eq!(count(&a, BESIDE), 0);
    a.good("net set --all --carrier socket");
    shown(&a, "net show --net xdp -v", &format!("socket, carrier is socket, each frame alone: {refused}"));
    a.good(&format!("load wait {}", begin(&a, &to_b, 50)));
    assert!(count(&a, BESIDE) > 100, "{}", a.good("frames show"));
    a.stop();
    b.stop();
}

#[test]
fn what_takes_long_messages_is_told_and_why() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = two_in(["native", "socket"]);
    let [_, b] = two.nids(0);
    let told = |words: &str, expected: &str| {
        let shown = two.a.good(words);
        assert!(shown.contains(expected), "{expected:?} is not in {shown}");
    };
    let veth = "socket, a run of frames costs a veth less than each alone";
    told("net show --net xdp -v", veth);
    told(&format!("explain {b}"), veth);
    two.b.good("load start target");
    two.a.good("net set --all --carrier rings");
    told(&format!("explain {b}"), "carrier: rings, carrier is rings");
    two.a.good(&format!("load wait {}", begin(&two.a, &b, 50)));
    assert_eq!(count(&two.a, BESIDE), 0);
    two.a.good("net set --all --carrier auto");
    two.a.good(&format!("load wait {}", begin(&two.a, &b, 50)));
    wait_until("frames leave beside the rings", PATIENCE, || count(&two.a, BESIDE) > 100);
    let by_auto = count(&two.a, BESIDE);
    two.a.good("net set --all --carrier socket");
    told("net show --net xdp -v", "carrier: socket\n");
    told("net show --net xdp -v", "active carrier: socket, carrier is socket");
    told(&format!("explain {b}"), "carrier: socket, carrier is socket");
    two.a.good(&format!("load wait {}", begin(&two.a, &b, 50)));
    wait_until("frames leave beside the rings", PATIENCE, || count(&two.a, BESIDE) > by_auto + 100);
    // A node that is made again from its export goes on so.
    let exported = two.a.good("export --backup");
    two.a.good("lnet unconfigure");
    two.a.good("lnet configure");
    two.a.good_with("import", &exported);
    told(&format!("explain {b}"), "carrier: socket, carrier is socket");
    // An NI over sockets keeps the wish, and has nothing to choose.
    two.b.good("net set --all --carrier rings");
    let shown = two.b.good("net show --net xdp -v");
    assert!(shown.contains("carrier: rings\n") && !shown.contains("active carrier"), "{shown}");
    two.a.stop();
    two.b.stop();
}
