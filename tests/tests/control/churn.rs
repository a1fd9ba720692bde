//! NIs that come and go under pings.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, Namespace, require_privilege, wait_until};

use crate::hostile_tcp::load_number;
use crate::run::{PATIENCE, Two};

const ROUNDS: usize = 6;

#[test]
fn nis_come_and_go_while_others_are_pinged() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "--drain 1");
    let [[a0, b0], [_, b1]] = [two.nids(0), two.nids(1)];
    let (is_over, pings) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // Pings from these sources need the rail that stays.
        let steady = || {
            while !is_over.load(Ordering::Relaxed) {
                two.a.good(&format!("ping --timeout 20 --source {a0} {b0}"));
                two.b.good(&format!("ping --timeout 20 --source {b0} {a0}"));
                pings.fetch_add(2, Ordering::Relaxed);
            }
        };
        // What comes by the rail that goes may fail, in time.
        let unsteady = || {
            while !is_over.load(Ordering::Relaxed) {
                two.a.run(&format!("ping --timeout 1 {b1}"));
            }
        };
        scope.spawn(steady);
        scope.spawn(unsteady);
        let interface = &two.netns.b().interfaces()[1].name;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..ROUNDS {
                two.b.good(&format!("net del --net xdp1 --if {interface}"));
                assert!(!two.b.good("net show").contains(&b1), "round {round}");
                let mode = if round % 2 == 0 { "socket" } else { "native" };
                two.b.good(&format!("net add --net xdp1 --if {interface} --mode {mode}"));
                assert!(two.b.good("net show").contains(&b1), "round {round}");
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(pings.load(Ordering::Relaxed) > 4, "{pings:?} pings");
    two.a.good(&format!("ping --timeout 20 {b1}"));
    two.b.stop();
    two.a.stop();
}

/// An NI goes and comes back while a peer sends by it. The peer is told, what is under way arrives, and the
/// rest goes by the other rail.
#[test]
fn a_peer_loses_nothing_when_an_ni_goes_that_it_sends_to() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    for nets in [["xdp", "xdp1"], ["tcp", "tcp1"]] {
        let two = Two::on(&nets, "");
        let nid = |namespace: &Namespace, rail: usize| {
            format!("{}@{}", namespace.interfaces()[rail].ipv4, nets[rail])
        };
        let (a0, [b0, b1]) = (nid(two.netns.a(), 0), [0, 1].map(|rail| nid(two.netns.b(), rail)));
        two.a.good(&format!("discover {b0}"));
        two.b.good(&format!("discover {a0}"));
        two.b.good("load start target");
        let interface = &two.netns.b().interfaces()[1].name;
        let sent_by_second = || {
            let shown = two.a.good(&format!("net show -v --net {}", nets[1]));
            let count = shown.lines().find_map(|line| line.trim().strip_prefix("send_count: "));
            count.unwrap().parse::<u64>().unwrap()
        };
        for round in 0..ROUNDS {
            let words =
                format!("load start initiator --to {b0} --messages 6000 --window 16 --timeout-ms 9000");
            let load = load_number(&two.a.good(&words));
            let before = sent_by_second();
            wait_until("the second rail is used", PATIENCE, || sent_by_second() > before + 200);
            two.b.good(&format!("net del --net {} --if {interface}", nets[1]));
            assert!(!two.b.good("net show").contains(&b1), "round {round}");
            std::thread::sleep(Duration::from_millis(50));
            two.b.good(&format!("net add --net {} --if {interface}", nets[1]));
            two.a.good(&format!("load wait {load}"));
            wait_until("the NI is known again", PATIENCE, || two.a.good("peer show").contains(&b1));
        }
        two.a.stop();
        two.b.stop();
    }
}

/// A program goes on naming the NID of an NI that goes: what it sends takes the peer's other NI, the drain
/// ends long before its limit, and nothing is said against the peer.
#[test]
fn a_peer_that_goes_on_naming_a_nid_that_goes_is_served_by_the_other_one() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let nets = ["tcp", "tcp1"];
    let two = Two::on(&nets, "--drain 60");
    let nid =
        |namespace: &Namespace, rail: usize| format!("{}@{}", namespace.interfaces()[rail].ipv4, nets[rail]);
    let (a0, [b0, b1]) = (nid(two.netns.a(), 0), [0, 1].map(|rail| nid(two.netns.b(), rail)));
    two.a.good(&format!("discover {b0}"));
    two.b.good(&format!("discover {a0}"));
    two.b.good("load start target");
    let words = format!("load start initiator --to {b1} --messages 6000 --window 16 --timeout-ms 9000");
    let load = load_number(&two.a.good(&words));
    let interface = &two.netns.b().interfaces()[1].name;
    let begun = Instant::now();
    two.b.good(&format!("net del --net tcp1 --if {interface}"));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    two.a.good(&format!("load wait {load}"));
    let shown = two.a.good("stats show");
    assert!(shown.contains("answers_refused: 0"), "{shown}");
    let log = two.a.stop();
    assert!(!log.contains("not about their senders"), "{log}");
    two.b.stop();
}
