//! Links that go for a while: messages wait for them, and NIs that are added.

use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, ip, require_privilege};

use crate::hostile_tcp::load_number;
use crate::run::{Two, until_shown};

/// How long the link is away: longer than any patience that drivers had.
const AWAY: Duration = Duration::from_secs(6);

/// The far end of the link is switched off under load: the near end has no carrier. Nothing is lost.
fn check_carrier(mode: &str) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, &format!("--mode {mode}"));
    let [_, b] = two.nids(0);
    two.a.good(&format!("ping --timeout 10 {b}"));
    let target = load_number(&two.b.good("load start target"));
    let load = format!("load start initiator --to {b} --messages 60000 --window 64 --timeout-ms 40000");
    let load = load_number(&two.a.good(&load));
    let name = &two.netns.b().interface().name;
    ip(two.netns.b(), &format!("link set dev {name} down"));
    until_shown(&two.a, "net show --net xdp", "status: down");
    let begun = Instant::now();
    // New messages wait as well.
    let pinged = std::thread::scope(|scope| {
        let ping = scope.spawn(|| two.a.good(&format!("ping --timeout 30 {b}")));
        std::thread::sleep(AWAY);
        assert!(!ping.is_finished(), "{:?}", begun.elapsed());
        ip(two.netns.b(), &format!("link set dev {name} up"));
        ping.join().unwrap()
    });
    assert!(pinged.contains(&b), "{pinged}");
    two.a.good(&format!("load wait {load}"));
    two.a.good(&format!("load stop {load}"));
    two.b.good(&format!("load stop {target}"));
    two.a.good("frames check");
}

#[test]
fn messages_wait_for_a_carrier_over_rings() {
    check_carrier("native");
}

#[test]
fn messages_wait_for_a_carrier_over_sockets() {
    check_carrier("socket");
}

/// `net add` returns when the link carries, or says that it does not.
#[test]
fn net_add_waits_for_the_carrier() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(1, "");
    let [near, far] = [two.netns.a(), two.netns.b()].map(|namespace| &namespace.interface().name);
    let [_, b] = two.nids(0);
    two.a.good("lnet configure");
    two.b.good("lnet configure");
    two.b.good(&format!("net add --net xdp --if {far}"));
    ip(two.netns.b(), &format!("link set dev {far} down"));
    let begun = Instant::now();
    let added = two.a.run(&format!("net add --net xdp --if {near}"));
    let waited = begun.elapsed();
    assert_eq!((added.status, added.stdout.as_str()), (0, ""), "{added:?}");
    let is_told = added.stderr.starts_with("lnetctl: warning: ") && added.stderr.lines().count() == 1;
    assert!(is_told && added.stderr.contains(&format!("the link of {near} does not carry")), "{added:?}");
    assert!((4..8).contains(&waited.as_secs()), "{waited:?}");
    assert!(two.a.good("net show --net xdp").contains("status: down"));
    two.a.good("net del --net xdp");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            ip(two.netns.b(), &format!("link set dev {far} up"));
        });
        let begun = Instant::now();
        two.a.good(&format!("net add --net xdp --if {near}"));
        assert!((2..5).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    });
    two.a.good(&format!("ping --timeout 2 {b}"));
    let log = two.a.stop();
    let lines = log.lines().filter(|line| line.contains("WARN") && line.contains("does not carry"));
    assert_eq!(lines.count(), 1, "{log}");
}
