//! Scenarios 7 to 12.

use std::time::Duration;

use lnet_core::node::{PeerEdit, peer_state};
use lnet_model::peer::PeerSpec;
use lnet_tests::fleet::Stage;
use lnet_wire::Discovery;

use crate::common::{
    A, B, MULTI_RAIL, PLAIN, acquainted, all_talk, at, both, check_acquainted, check_knows, check_quiet,
    configured,
};

/// A node that takes no part is known by the NID that it uses, unless it is configured.
#[test]
fn scenario_07_the_active_node_has_discovery_switched_off() {
    let mut stage = Stage::new(&both());
    stage.set_discovery(A, Discovery::Off);
    stage.put(A, at(B, 0));
    stage.run();
    // Node `a` asks once how the peer's NIs are.
    assert_eq!((stage.sent("ping a0>b0"), stage.discovery_traffic()), (1, 1));
    check_knows(&stage, A, B, &[0], PLAIN);
    check_knows(&stage, B, A, &[0], 0);
    stage.put(B, at(A, 0));
    stage.run();
    check_knows(&stage, B, A, &[0], PLAIN);
    check_quiet(&mut stage, 2);

    // What the passive node has configured stays, and both NIs are used.
    let mut stage = Stage::new(&both());
    stage.set_discovery(A, Discovery::Off);
    stage.edit(B, configured(A, &[0, 1]));
    stage.put(A, at(B, 0));
    stage.run();
    for _ in 0..8 {
        stage.put(B, at(A, 0));
        stage.run();
    }
    check_knows(&stage, B, A, &[0, 1], PLAIN | peer_state::MULTI_RAIL | peer_state::CONFIGURED);
    assert!(stage.sent("put b0>a0") >= 3 && stage.sent("put b1>a1") >= 3, "both rails");
    assert_eq!(stage.sent("push"), 0);
    all_talk(&mut stage, 2);
    check_quiet(&mut stage, 2);
}

/// Switching discovery on sends nothing by itself, and peers that were in use go on as they are; new ones are
/// discovered.
#[test]
fn scenario_08_discovery_is_switched_on_among_known_peers() {
    let mut stage = Stage::new(&[&[0, 1], &[0, 1], &[0, 1]]);
    stage.set_discovery(A, Discovery::Off);
    stage.put(A, at(B, 0));
    stage.edit(
        A,
        PeerEdit::Add(PeerSpec {
            primary_nid: at(2, 1),
            nids: vec![],
            multi_rail: false,
            lock_primary: false,
        }),
    );
    stage.run();
    let before = stage.discovery_traffic();
    stage.set_discovery(A, Discovery::On);
    stage.pass(Duration::from_secs(60));
    assert_eq!(stage.discovery_traffic(), before, "nothing by itself");
    stage.put(A, at(B, 0));
    stage.run();
    assert_eq!(stage.discovery_traffic(), before, "a peer in use goes on as it is");
    check_knows(&stage, A, B, &[0], PLAIN);
    // A peer that was configured and not used yet is discovered with its first message, and stays as it is
    // configured.
    stage.put(A, at(2, 1));
    stage.run();
    assert_eq!(stage.sent("ping a1>c1"), 1);
    let plain = PLAIN & !peer_state::NO_DISCOVERY | peer_state::CONFIGURED;
    check_knows(&stage, A, 2, &[1], plain);
    // A peer that is known is discovered when that is asked for.
    stage.discover(A, at(B, 0), true);
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    all_talk(&mut stage, 3);
    check_quiet(&mut stage, 3);
}

/// A push that was thought lost arrives after the next one: it changes nothing, and its sender is asked.
#[test]
fn scenario_09_a_push_is_overtaken_by_the_next_one() {
    for (teller, hearer) in [(A, B), (B, A)] {
        let mut stage = acquainted();
        let (of_teller, of_hearer) = if teller == A { ("a", "b") } else { ("b", "a") };
        stage.add_ni(teller, 2);
        let push = format!("push {of_teller}0>{of_hearer}0");
        assert_eq!(stage.under_way(), [push.as_str()]);
        // Its ACK does not come in time; the next change is told with the next use.
        stage.wait(Duration::from_secs(11));
        stage.add_ni(teller, 3);
        stage.put(teller, at(hearer, 0));
        assert_eq!(stage.under_way().iter().filter(|name| **name == push).count(), 2);
        stage.swap_first_two(&push);
        stage.deliver(&[&push]);
        check_knows(&stage, hearer, teller, &[0, 1, 2, 3], MULTI_RAIL);
        stage.deliver(&[&push]);
        assert_eq!(
            stage.peer(hearer, at(teller, 0)).unwrap().nids().len(),
            4,
            "the older one changes nothing"
        );
        stage.run();
        check_knows(&stage, hearer, teller, &[0, 1, 2, 3], MULTI_RAIL);
        check_knows(&stage, teller, hearer, &[0, 1], MULTI_RAIL);
        check_quiet(&mut stage, 2);
    }
}

/// A push overtakes the reply to a ping: what the reply says is out of date.
#[test]
fn scenario_09_a_reply_is_overtaken_by_a_push() {
    let mut stage = acquainted();
    stage.discover(B, at(A, 0), true);
    stage.deliver(&["ping b0>a0"]);
    stage.add_ni(A, 2);
    stage.deliver(&["push a0>b0"]);
    assert_eq!(stage.peer(B, at(A, 0)).unwrap().nids().len(), 3);
    stage.deliver(&["reply a0>b0"]);
    stage.run();
    check_knows(&stage, B, A, &[0, 1, 2], MULTI_RAIL);
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 2);
}

/// The ping of the other node comes before this one begins: the peer is there by its traffic, and is
/// discovered all the same.
#[test]
fn scenario_10_a_ping_comes_before_the_own_discovery_begins() {
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.deliver(&["ping a0>b0"]);
    check_knows(&stage, B, A, &[0], 0);
    stage.put(B, at(A, 0));
    assert!(stage.under_way().contains(&"ping b0>a0"));
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    check_quiet(&mut stage, 2);
}

#[test]
fn scenario_10_a_ping_comes_while_the_own_ping_is_under_way() {
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.put(B, at(A, 0));
    let discovering = peer_state::DISCOVERING | peer_state::PING_SENT;
    stage.deliver(&["ping a0>b0"]);
    check_knows(&stage, B, A, &[0], discovering);
    stage.deliver(&["ping b0>a0"]);
    check_knows(&stage, A, B, &[0], discovering);
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    assert_eq!((stage.sent("ping"), stage.sent("push")), (2, 2));
    check_quiet(&mut stage, 2);
}

#[test]
fn scenario_10_the_reply_comes_before_the_own_reply_is_sent() {
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.put(B, at(A, 0));
    stage.deliver(&["ping a0>b0", "reply b0>a0"]);
    assert!(stage.under_way().contains(&"ping b0>a0"), "its ping has not even come");
    assert_eq!(stage.peer(A, at(B, 0)).unwrap().nids(), [at(B, 0), at(B, 1)]);
    stage.deliver(&["ping b0>a0"]);
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    assert_eq!((stage.sent("ping"), stage.sent("push")), (2, 2));
    check_quiet(&mut stage, 2);
}

#[test]
fn scenario_10_a_push_comes_before_the_own_push_is_sent() {
    let mut stage = Stage::new(&both());
    stage.put(A, at(B, 0));
    stage.put(B, at(A, 0));
    stage.deliver(&["ping a0>b0", "reply b0>a0", "push a0>b0"]);
    // Node `b` knows all, and waits for its reply before it pushes.
    let peer = stage.peer(B, at(A, 0)).unwrap();
    assert_eq!((peer.nids(), peer.is(peer_state::PING_SENT)), (vec![at(A, 0), at(A, 1)], true));
    assert_eq!(stage.sent("push b"), 0);
    stage.run();
    check_acquainted(&stage, &[0, 1]);
    assert_eq!((stage.sent("ping"), stage.sent("push")), (2, 2));
    check_quiet(&mut stage, 2);
}

/// All orders in which the messages of two nodes that discover each other can arrive, one after the other.
#[test]
fn scenario_10_every_order_of_a_simultaneous_discovery_ends_the_same() {
    let mut orders = 0;
    // The choice at each step, and among how many.
    let mut choices: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut stage = Stage::without_waiting(&both());
        // What is put need not arrive: only discovery is ordered.
        for (node, other) in [(A, B), (B, A)] {
            stage.put(node, at(other, 0));
            stage.lose("put");
        }
        let mut step = 0;
        stage.run_by(|count| {
            if step == choices.len() {
                choices.push((0, count));
            }
            step += 1;
            choices[step - 1].0
        });
        check_acquainted(&stage, &[0, 1]);
        assert!(stage.sent("ping") == 2 && stage.sent("push") == 2, "{choices:?}");
        orders += 1;
        while choices.last().is_some_and(|(choice, count)| choice + 1 == *count) {
            choices.pop();
        }
        match choices.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => break,
        }
    }
    assert!(orders >= 70, "only {orders} orders");
}

/// One node pings the other under two NIDs; the second reply comes when the push is acknowledged: no other
/// push follows.
#[test]
fn scenario_11_one_node_discovers_two_nids_of_another_one() {
    let mut stage = Stage::without_waiting(&both());
    stage.put(A, at(B, 0));
    stage.put(A, at(B, 1));
    stage.deliver(&["put", "put", "ping a0>b0", "reply b0>a0", "push a0>b0", "ack b0>a0"]);
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    assert_eq!(stage.peers(B).count(), 1, "it has one peer though two NIDs have spoken");
    stage.deliver(&["ping a1>b1", "reply b1>a1"]);
    check_knows(&stage, A, B, &[0, 1], MULTI_RAIL);
    stage.run();
    assert_eq!((stage.sent("ping a"), stage.sent("push a")), (2, 1));
    check_acquainted(&stage, &[0, 1]);
    check_quiet(&mut stage, 2);
}

/// Both pings come from one source NID: the passive node has one peer from the first ping on.
#[test]
fn scenario_11_both_pings_come_from_one_nid() {
    let mut stage = Stage::new(&[&[0, 1], &[0]]);
    stage.discover(B, at(A, 0), false);
    stage.discover(B, at(A, 0), true);
    stage.deliver(&["ping b0>a0"]);
    check_knows(&stage, A, B, &[0], 0);
    stage.run();
    check_knows(&stage, A, B, &[0], MULTI_RAIL);
    check_knows(&stage, B, A, &[0, 1], MULTI_RAIL);
    check_quiet(&mut stage, 2);
}

/// Both nodes discover both NIDs of the other one at once, in many orders.
#[test]
fn scenario_12_two_nodes_discover_each_other_on_two_nids() {
    for seed in 0..300 {
        let mut stage = Stage::new(&both());
        for (node, other) in [(A, B), (B, A)] {
            stage.put(node, at(other, 0));
            stage.put(node, at(other, 1));
        }
        stage.run_in_any_order(seed);
        check_acquainted(&stage, &[0, 1]);
        let (pings, pushes) = (stage.sent("ping"), stage.sent("push"));
        assert!(pings <= 6 && pushes <= 4, "seed {seed}: {pings} pings, {pushes} pushes");
        if seed % 10 == 0 {
            check_quiet(&mut stage, 2);
        }
    }
}

/// Both nodes discover each other while each gets an NI and loses another one.
#[test]
fn scenario_12_and_nis_come_and_go_meanwhile() {
    for seed in 0..100 {
        let mut stage = Stage::new(&both());
        for (node, other) in [(A, B), (B, A)] {
            stage.put(node, at(other, 0));
            stage.put(node, at(other, 1));
        }
        stage.deliver(&["ping", "ping", "ping"]);
        stage.add_ni(A, 2);
        stage.run_some(seed, 4);
        stage.add_ni(B, 2);
        stage.run_some(seed + 1, 4);
        stage.run_in_any_order(seed);
        check_acquainted(&stage, &[0, 1, 2]);
        if seed % 10 == 0 {
            check_quiet(&mut stage, 2);
        }
    }
}
