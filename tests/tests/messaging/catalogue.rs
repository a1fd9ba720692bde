//! What the catalogue asks of transfer machines by themselves and in pairs, between nodes over veth.

use lnet_messaging::{Operation, QueueType};

use crate::nets::{Carrier, Nodes, on_each_net, on_nets};
use crate::{any, scenarios};

/// The net whose frames the XDP program steers, and the one that is served by another LND altogether.
const TWO: [Carrier; 2] = [Carrier::Rings, Carrier::Tcp];

/// Two addresses more on the far node.
fn others(nodes: &Nodes) -> [String; 2] {
    [8, 9].map(|tmid| {
        let [_, (_, address)] = nodes.ends([tmid; 2]);
        address
    })
}

#[test]
fn if_06_to_if_20_the_front() {
    on_nets(&TWO, |nodes| {
        any::front::starts_and_stops(nodes.parties(), &others(nodes)[0]);
        any::front::end_points(nodes.parties());
        any::front::refusals(nodes.parties());
        any::front::additions_deletions_and_counters(nodes.parties());
        any::front::a_callback_uses_the_front(nodes.parties());
        any::front::domains_come_and_go(nodes.parties());
        any::front::deadlines(nodes.parties());
        any::a_stop_while_callbacks_run(nodes.parties());
    });
}

#[test]
fn pv_02_to_pv_13_pools() {
    on_nets(&TWO, |nodes| {
        let others = others(nodes);
        let two = others.each_ref().map(String::as_str);
        any::pooled::the_queue_is_filled_behind_the_start(nodes.parties(), two[0]);
        any::pooled::two_queues_of_one_pool(nodes.parties(), two);
        any::pooled::a_message_is_made_up_for(nodes.parties(), two[0]);
        any::pooled::buffers_by_their_colours(nodes.parties(), two);
        any::pooled::a_stop_feeds_another(nodes.parties(), two);
        any::pooled::starts_and_stops_share_a_pool(nodes.parties(), two);
    });
}

#[test]
fn a_message_is_lost_while_the_buffers_of_a_pool_are_held() {
    on_each_net(|nodes| any::a_pool_whose_buffers_are_held(nodes.parties(), &others(nodes)[0], false));
}

#[test]
fn ln_03_to_ln_19_a_transfer_machine_by_itself() {
    on_nets(&TWO, |nodes| {
        let [(near, near_address), (far, far_address)] = nodes.ends([1, 2]);
        let (node, _) = far_address.rsplit_once(':').unwrap();
        scenarios::alone::starts_that_fail(&far, node);
        scenarios::alone::addresses_that_are_chosen(&far, node);
        scenarios::alone::waiting_buffers_are_deleted(&far, node);
        scenarios::alone::descriptors_that_are_none(&far, node);
        scenarios::alone::the_application_delivers([&near, &far], [&near_address, &far_address]);
    });
}

/// Match bits of passive buffers are drawn below the identifier: peers find each buffer.
#[test]
fn ln_15_match_bits_of_passive_buffers_are_drawn() {
    on_nets(&TWO, |nodes| {
        let [mut near, mut far] = nodes.parties();
        let mut names = Vec::new();
        for number in 0..4_u64 {
            let bytes = number.to_le_bytes();
            let initiator = Some(far.tm.create_end_point(&near.address()).unwrap());
            let send = Operation::PassiveSend { initiator, length_bytes: 8 };
            let passive = far.tm.add(far.filled(&bytes), send).unwrap();
            let from = passive.descriptor.unwrap();
            let match_bits = u64::from_le_bytes(*from.as_bytes().first_chunk().unwrap());
            assert_eq!(match_bits >> 52, 7);
            names.push(match_bits);
            near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
            let event = near.buffer_event();
            assert_eq!((event.queue(), event.status), (QueueType::ActiveReceive, Ok(())));
            assert_eq!(event.payload_bytes(), bytes);
            drop(event);
            assert_eq!(far.end_of(passive.id).0, Ok(()));
        }
        assert!(names.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1000), "{names:x?}");
        near.end();
        far.end();
    });
}
