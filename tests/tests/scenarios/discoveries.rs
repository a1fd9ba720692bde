//! What one who has a peer discovered is told: all NIDs of the peer, whatever is under way meanwhile.

use lnet_core::node::{Outcome, RequestId};
use lnet_tests::fleet::Stage;

use crate::common::{A, B, MULTI_RAIL, at, both, check_knows, check_quiet, nids};

/// Discoveries of a peer by its NIDs have ended, and told both.
#[track_caller]
fn check_told(stage: &Stage, requests: &[RequestId], what: &str) {
    for request in requests {
        let result = stage.result(A, *request);
        let Some(Ok(Outcome::Pinged(pinged))) = result else { panic!("{what}: {result:?}") };
        let mut told = pinged.nids.clone();
        told.sort();
        assert_eq!(told, nids(B, &[0, 1]), "{what}: {pinged:?}");
    }
}

/// A peer is known by one NID, which is all that it had, and has got another one. That is discovered before
/// the peer's push of it comes: the peer is asked again by the NID that is known, whether both are its own,
/// and its answer comes last.
#[test]
fn a_nid_that_came_to_a_known_peer_is_told_with_the_others() {
    for (rail, seed) in (0..50).flat_map(|seed| [(0, seed), (1, seed)]) {
        let mut stage = Stage::new(&[&[0, 1], &[rail]]);
        stage.put(A, at(B, rail));
        stage.run();
        stage.add_ni(B, 1 - rail);
        stage.lose("push b");
        let request = stage.discover(A, at(B, 1 - rail), true);
        stage.run_in_any_order(seed);
        check_told(&stage, &[request], &format!("rail {rail}, seed {seed}"));
    }
}

/// A discovery by either NID and in any order, with the push.
#[test]
fn a_discovery_tells_all_nids_in_every_order_of_what_is_under_way() {
    for (rail, seed) in (0..200).flat_map(|seed| [(0, seed), (1, seed)]) {
        let mut stage = Stage::new(&[&[0, 1], &[rail]]);
        stage.put(A, at(B, rail));
        stage.run();
        stage.add_ni(B, 1 - rail);
        let asked: &[u8] = [&[0, 1][..], &[0], &[1]][seed as usize % 3];
        let requests = asked.iter().map(|rail| stage.discover(A, at(B, *rail), true)).collect::<Vec<_>>();
        stage.put(B, at(A, rail));
        stage.run_in_any_order(seed);
        check_told(&stage, &requests, &format!("rail {rail}, seed {seed}"));
        check_knows(&stage, A, B, &[rail, 1 - rail], MULTI_RAIL);
        check_quiet(&mut stage, 2);
    }
}

/// Nodes that do not know each other yet, one that begins anew, and one that is used meanwhile.
#[test]
fn a_discovery_tells_all_nids_of_a_node_that_is_new() {
    for (begins_anew, seed) in (0..200).flat_map(|seed| [(false, seed), (true, seed)]) {
        let mut stage = Stage::new(&both());
        if begins_anew {
            stage.put(A, at(B, 1));
            stage.run();
            stage.restart(B, false);
        }
        stage.put(B, at(A, 1));
        stage.put(A, at(B, 1));
        let requests = [0, 1].map(|rail| stage.discover(A, at(B, rail), true));
        stage.run_in_any_order(seed);
        check_told(&stage, &requests, &format!("begins anew: {begins_anew}, seed {seed}"));
    }
}
