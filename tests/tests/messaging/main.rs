//! The messaging layer between nodes over veth, in network namespaces: rings, sockets and tcp. Needs root,
//! and the objects that `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

#[path = "../../../lnet-messaging/tests/any/mod.rs"]
mod any;
mod catalogue;
#[path = "../../../lnet-messaging/tests/common/mod.rs"]
mod common;
mod killed;
mod load;
mod nets;
mod processes;
mod rails;
#[path = "../../../lnet-messaging/tests/scenarios/mod.rs"]
mod scenarios;
mod steering;

use nets::on_each_net;

#[test]
fn ln_24_messages_and_bulk_go_both_ways() {
    on_each_net(|nodes| {
        scenarios::messages_and_bulk(nodes.parties());
        let [near, far] = nodes.parties();
        scenarios::messages_and_bulk([far, near]);
    });
}

#[test]
fn ln_07_to_ln_10_receive_buffers_fill_and_messages_without_one_are_lost() {
    on_each_net(|nodes| {
        common::received::several_messages_in_one_buffer(nodes.parties());
        common::received::a_second_buffer(nodes.parties());
        scenarios::a_message_that_is_too_long(nodes.parties());
        scenarios::messages_to_nowhere(nodes.parties());
    });
}

#[test]
fn ln_17_and_ln_18_refused_bulk_operations_leave_the_passive_buffer_alone() {
    on_each_net(|nodes| {
        scenarios::refused_bulk_operations(nodes.parties());
        scenarios::a_passive_buffer_that_has_gone(nodes.parties());
    });
}

#[test]
fn a_pool_feeds_a_receive_queue() {
    on_each_net(|nodes| scenarios::a_pool_that_runs_empty(nodes.parties()));
}

#[test]
fn ln_20_and_ln_23_buffers_end_by_their_deadlines_and_by_being_deleted() {
    on_each_net(|nodes| load::deadlines_and_cancels(nodes.parties()));
}

#[test]
fn me_01_me_09_and_me_12_segments_descriptors_and_stops() {
    on_each_net(|nodes| {
        scenarios::bytes_across_segments(nodes.parties());
        scenarios::a_descriptor_of_an_earlier_use(nodes.parties());
        scenarios::a_stop_with_all_queues_loaded(nodes.parties());
        scenarios::a_stop_that_drains(nodes.parties());
    });
}

#[test]
fn provisioning_under_load() {
    on_each_net(|nodes| load::provisioning(nodes.parties()));
}

#[test]
fn what_finds_no_event_slots_is_refused_and_goes_well_later() {
    on_each_net(|nodes| load::out_of_slots(nodes.parties()));
}
