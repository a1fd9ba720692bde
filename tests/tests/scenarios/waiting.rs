//! The first requests to a peer wait until it is discovered.

use std::time::Duration;

use lnet_core::node::peer_state;
use lnet_tests::fleet::Stage;
use lnet_wire::Discovery;

use crate::common::{A, B, C, MULTI_RAIL, at, both, check_acquainted, check_knows, check_quiet};

/// Each end knows the other one before the first request is there, by whichever NID that was asked for.
#[test]
fn waiting_the_first_request_arrives_under_the_primary_nid() {
    for rail in [0, 1] {
        let mut stage = Stage::new(&both());
        let puts = [0, 1, 2].map(|_| stage.put(A, at(B, rail)));
        assert_eq!(stage.under_way(), [format!("ping a{rail}>b{rail}")], "they wait");
        stage.deliver(&["ping", "reply"]);
        assert_eq!(stage.under_way(), ["push a0>b0"], "they wait until the peer knows as well");
        stage.run();
        check_acquainted(&stage, &[0, 1]);
        for put in puts {
            assert_eq!((stage.ended(put), stage.initiator(put)), (Some(true), Some(at(A, 0))));
        }
        let by_rail = [0, 1].map(|rail| stage.sent(&format!("put a{rail}>b{rail}")));
        assert!(by_rail.iter().all(|count| *count > 0), "the first ones use all rails: {by_rail:?}");
        check_quiet(&mut stage, 2);
    }
}

/// Both ask for each other at once: neither waits for what the other one waits with.
#[test]
fn waiting_two_nodes_that_send_to_each_other_at_once() {
    for seed in 0..100 {
        let mut stage = Stage::new(&both());
        let puts = [stage.put(A, at(B, 0)), stage.put(B, at(A, 1))];
        stage.run_in_any_order(seed);
        check_acquainted(&stage, &[0, 1]);
        assert!(puts.iter().all(|put| stage.ended(*put) == Some(true)), "seed {seed}");
        check_quiet(&mut stage, 2);
    }
}

/// A peer that answers no ping costs its first requests five seconds at most, and later ones nothing; peers
/// beside it nothing.
#[test]
fn waiting_for_a_peer_that_answers_no_ping_ends_soon() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0, 1]]);
    let first = stage.put(A, at(B, 0));
    stage.lose("ping");
    let other = stage.put(A, at(C, 0));
    stage.run();
    assert_eq!((stage.ended(first), stage.ended(other)), (None, Some(true)));
    stage.pass(Duration::from_secs(4));
    assert_eq!(stage.ended(first), Some(true), "a third of the transaction timeout of 10 s");
    check_knows(&stage, A, B, &[0], peer_state::DISCOVERING | peer_state::PING_SENT);
    // The attempt fails after the transaction timeout; the next one goes on beside the requests.
    stage.pass(Duration::from_secs(7));
    let next = stage.put(A, at(B, 0));
    assert_eq!(stage.under_way(), ["ping a0>b0", "put a0>b0"]);
    stage.run();
    assert_eq!(stage.ended(next), Some(true));
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 3);
}

/// Where discovery was never on, the first requests go at once, each to the NID that it was given, and
/// nothing is found out but by one ping for statuses.
#[test]
fn waiting_never_begins_without_discovery() {
    let mut stage = Stage::new(&both());
    stage.set_discovery(A, Discovery::Off);
    let puts = [0, 1].map(|rail| stage.put(A, at(B, rail)));
    for rail in [0, 1] {
        let name = format!("put a{rail}>b{rail}");
        assert!(stage.under_way().contains(&name.as_str()), "{name}: {:?}", stage.under_way());
    }
    stage.lose("ping");
    stage.lose("ping");
    stage.run();
    assert_eq!(puts.map(|put| stage.ended(put)), [Some(true); 2], "whether pings are answered or not");
    stage.check_rest();
}

/// Without discovery nothing is waited for, also by what waits already.
#[test]
fn waiting_ends_when_discovery_is_switched_off() {
    let mut stage = Stage::new(&both());
    let put = stage.put(A, at(B, 0));
    stage.set_discovery(A, Discovery::Off);
    assert!(stage.under_way().contains(&"put a0>b0"), "{:?}", stage.under_way());
    stage.run();
    let next = stage.put(A, at(B, 1));
    assert!(stage.under_way().contains(&"put a1>b1"), "{:?}", stage.under_way());
    stage.run();
    assert_eq!([put, next].map(|put| stage.ended(put)), [Some(true); 2]);
    stage.check_rest();
}
