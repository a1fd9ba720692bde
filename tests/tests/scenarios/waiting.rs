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
        assert_eq!(
            stage.under_way(),
            [format!("push a{rail}>b{rail}")],
            "they wait until the peer knows as well"
        );
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

/// What waits for a peer that answers no ping ends with the attempt, and what comes later waits for the next
/// one; peers beside it cost nothing.
#[test]
fn waiting_for_a_peer_that_answers_no_ping_ends_with_the_attempt() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0, 1]]);
    let first = stage.put(A, at(B, 0));
    stage.lose("ping");
    let other = stage.put(A, at(C, 0));
    stage.run();
    assert_eq!((stage.ended(first), stage.ended(other)), (None, Some(true)));
    stage.pass(Duration::from_secs(9));
    assert_eq!(stage.ended(first), None, "before the transaction timeout of 10 s");
    check_knows(&stage, A, B, &[0], peer_state::DISCOVERING | peer_state::PING_SENT);
    stage.pass(Duration::from_secs(2));
    assert_eq!(stage.ended(first), Some(false));
    check_knows(&stage, A, B, &[0], peer_state::REDISCOVER);
    let next = stage.put(A, at(B, 0));
    assert_eq!(stage.under_way(), ["ping a0>b0"], "it waits for the next attempt");
    stage.run();
    assert_eq!(stage.ended(next), Some(true));
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 3);
}

/// Without discovery the first requests wait for a ping all the same, which tells statuses, and then go each
/// to the NID that it was given (LNet `lib-move.c: lnet_initiate_peer_discovery`).
#[test]
fn waiting_is_for_a_ping_where_discovery_is_off() {
    for is_answered in [true, false] {
        let mut stage = Stage::new(&both());
        stage.set_discovery(A, Discovery::Off);
        let puts = [0, 1].map(|rail| stage.put(A, at(B, rail)));
        assert_eq!(stage.under_way(), ["ping a0>b0", "ping a1>b1"]);
        if !is_answered {
            stage.lose("ping");
            stage.lose("ping");
        }
        stage.run();
        stage.pass(Duration::from_secs(11));
        assert_eq!(puts.map(|put| stage.ended(put)), [Some(is_answered); 2]);
        let sent = [0, 1].map(|rail| stage.sent(&format!("put a{rail}>b{rail}")));
        assert_eq!(sent, if is_answered { [1; 2] } else { [0; 2] });
        let next = stage.put(A, at(B, 0));
        let expected = if is_answered { "put a0>b0" } else { "ping a0>b0" };
        assert_eq!(stage.under_way(), [expected]);
        stage.run();
        assert_eq!(stage.ended(next), Some(true));
        stage.check_rest();
    }
}

/// What waits when discovery is switched off waits for the ping that is under way.
#[test]
fn waiting_goes_on_when_discovery_is_switched_off() {
    let mut stage = Stage::new(&both());
    let put = stage.put(A, at(B, 0));
    stage.set_discovery(A, Discovery::Off);
    assert_eq!((stage.ended(put), stage.under_way()), (None, vec!["ping a0>b0"]));
    stage.run();
    let next = stage.put(A, at(B, 1));
    stage.run();
    assert_eq!([put, next].map(|put| stage.ended(put)), [Some(true); 2]);
    stage.check_rest();
}
