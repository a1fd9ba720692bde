//! NIs that come and go under pings.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lnet_tests::netns::{NETNS_NODES, require_privilege};

use crate::run::Two;

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
