//! Responses that are awaited: which, until when, and what becomes of those that do not come.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_core::tunables::{ResponseTracking, Tunables};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::ProcessId;

use crate::common::{
    MESSAGE_TIMEOUT, NI, NOW, Node, ack_header, config, get_request, local_ni, nid, put_request, reply_header,
};

const TIMEOUT: Duration = Tunables::DEFAULT.transaction_timeout;
const LATE: Status = Status::Unknown(Cause::Timeout);

fn after(seconds: u64) -> Instant {
    NOW + Duration::from_secs(seconds)
}

/// A node with these tunables.
fn tuned(tunables: Tunables) -> Node {
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4)]).with_tunables(tunables);
    Node::new(ShardConfig { topology: Arc::new(topology), ..config() })
}

/// Binds a descriptor for so many operations.
fn bind(node: &mut Node, operations: u32) -> MdHandle {
    let spec = MdSpec { threshold: Threshold::Count(operations), ..node.md(10) };
    node.shard.bind(&spec).unwrap()
}

fn acked(md: MdHandle) -> PutRequest {
    PutRequest { ack: true, ..put_request(md, 2) }
}

/// The LND takes the next message.
fn take(node: &mut Node) -> Transmit {
    node.transmit().unwrap()
}

/// The LND takes the next message and sends it.
fn send(node: &mut Node) {
    let transmit = take(node);
    node.shard.sent(NOW, transmit.tx, Status::Ok);
}

fn said(event: &Event) -> (EventKind, Status, bool) {
    (event.kind(), event.status(), event.unlinked())
}

#[test]
fn the_defaults_are_those_of_lnet() {
    assert_eq!(TIMEOUT, Duration::from_secs(150));
    assert_eq!(*Topology::new(vec![]).tunables(), Tunables::default());
    assert_eq!(ResponseTracking::default(), ResponseTracking::Both);
    assert_eq!((MdOptions::TRACK_RESPONSE.bits(), MdOptions::NO_TRACK_RESPONSE.bits()), (0x400, 0x800));
}

#[test]
fn an_idle_descriptor_whose_response_does_not_come_is_unlinked() {
    let mut node = Node::new(config());
    let md = bind(&mut node, 2);
    assert_eq!((node.shard.poll_timeout(), node.shard.usage().trackers), (None, 0));
    node.shard.get(after(1), &get_request(md)).unwrap();
    assert_eq!((node.shard.poll_timeout(), node.shard.usage().trackers), (Some(after(151)), 1));
    send(&mut node);
    assert_eq!(said(&node.event()), (EventKind::Send, Status::Ok, false));

    node.shard.handle_timeout(Instant(after(151).0 - 1));
    assert!(node.events().is_empty(), "too early");
    assert_eq!(node.shard.counters().response_timeouts, 0);
    node.shard.handle_timeout(after(151));
    let event = node.event();
    assert_eq!(said(&event), (EventKind::Unlink, LATE, true));
    assert_eq!((event.md(), event.match_bits()), (md, None));
    assert_eq!(node.shard.counters().response_timeouts, 1);
    assert_eq!((node.shard.poll_timeout(), node.shard.usage().trackers), (None, 0));
    assert_eq!(node.shard.usage().memory_descs, 0);
    node.assert_drop(&reply_header(md, 3), DropReason::UnknownMd);
    assert_eq!(node.shard.unlink(md), Err(md));
    node.shard.handle_timeout(after(1000));
    assert!(node.events().is_empty());
    assert_eq!(node.shard.free_event_queue(node.queue), Ok(()), "no event slot is lost");
}

#[test]
fn a_busy_descriptor_ends_late_with_its_last_operation() {
    let mut node = Node::new(config());
    let md = bind(&mut node, 4);
    node.shard.put(NOW, &acked(md)).unwrap();
    node.shard.put(NOW, &acked(md)).unwrap();
    let (first, second) = (take(&mut node), take(&mut node));
    node.shard.handle_timeout(NOW + TIMEOUT);
    assert!(node.events().is_empty(), "the LND has the buffer");
    assert_eq!((node.shard.counters().response_timeouts, node.shard.usage().trackers), (1, 0));
    assert_eq!(node.shard.unlink(md), Err(md), "nothing finds it any more");
    node.assert_drop(&ack_header(md), DropReason::UnknownMd);
    assert_eq!(node.shard.put(NOW, &acked(md)), Err(SubmitError::UnknownMd(md)));
    node.shard.sent(NOW, first.tx, Status::Ok);
    node.shard.sent(NOW, second.tx, Status::Unknown(Cause::Device));
    let events: Vec<_> = node.events().iter().map(said).collect();
    let broken = Status::Unknown(Cause::Device);
    assert_eq!(events, [(EventKind::Send, LATE, false), (EventKind::Send, broken, true)]);
}

#[test]
fn a_response_that_is_arriving_at_the_deadline_is_late() {
    for threshold in [2, 3] {
        let mut node = Node::new(config());
        let md = bind(&mut node, threshold);
        node.shard.get(NOW, &get_request(md)).unwrap();
        send(&mut node);
        node.events();
        assert_ne!(
            node.shard.header(NOW, NI, &reply_header(md, 3).source.nid, RxId(1), &reply_header(md, 3)),
            Verdict::Drop
        );
        assert_eq!(node.shard.usage().trackers, 1, "its payload is to come");
        node.shard.handle_timeout(NOW + TIMEOUT);
        node.shard.received(NOW + TIMEOUT, RxId(1), Status::Ok);
        assert_eq!(said(&node.event()), (EventKind::Reply, LATE, true));
        assert_eq!((node.shard.usage().trackers, node.shard.usage().memory_descs), (0, 0));
    }
}

#[test]
fn the_response_ends_the_waiting() {
    for get in [false, true] {
        let mut node = Node::new(config());
        let md = bind(&mut node, 3);
        if get {
            node.shard.get(NOW, &get_request(md)).unwrap();
        } else {
            node.shard.put(NOW, &acked(md)).unwrap();
        }
        send(&mut node);
        let (right, wrong) =
            if get { (reply_header(md, 3), ack_header(md)) } else { (ack_header(md), reply_header(md, 3)) };
        node.arrive(&right);
        assert_eq!((node.shard.usage().trackers, node.shard.poll_timeout()), (0, None));
        node.shard.handle_timeout(NOW + TIMEOUT);
        assert!(node.events().iter().all(|event| event.status() == Status::Ok));
        assert_eq!(node.shard.usage().memory_descs, 1, "it has an operation left");
        node.arrive(&wrong);
        assert_eq!(node.shard.usage().memory_descs, 0);
    }
}

#[test]
fn a_response_that_was_not_asked_for_ends_no_waiting() {
    let mut node = Node::new(config());
    let md = bind(&mut node, 4);
    node.shard.get(NOW, &get_request(md)).unwrap();
    send(&mut node);
    node.arrive(&ack_header(md));
    assert_eq!(node.shard.usage().trackers, 1);
    node.arrive(&reply_header(md, 3));
    assert_eq!(node.shard.usage().trackers, 0);
}

#[test]
fn a_further_request_moves_the_deadline_and_awaits_one_response_more() {
    let mut node = Node::new(config());
    let (md, other) = (bind(&mut node, 8), bind(&mut node, 8));
    node.shard.get(after(0), &get_request(md)).unwrap();
    node.shard.get(after(5), &get_request(other)).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(after(150)));
    node.shard.put(after(9), &acked(md)).unwrap();
    assert_eq!(node.shard.usage().trackers, 2, "one for each descriptor");
    assert_eq!(node.shard.poll_timeout(), Some(after(155)));
    // A REPLY waits for PUTs that are being sent from its descriptor.
    while let Some(transmit) = node.transmit() {
        node.shard.sent(after(9), transmit.tx, Status::Ok);
    }
    node.arrive(&reply_header(md, 3));
    assert_eq!(node.shard.usage().trackers, 2, "the ACK has not come");
    node.shard.unlink(other).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(after(159)));
    node.arrive(&ack_header(md));
    assert_eq!(node.shard.poll_timeout(), None);
}

#[test]
fn a_lowered_timeout_keeps_the_order() {
    let mut node = Node::new(config());
    let (md, other) = (bind(&mut node, 2), bind(&mut node, 2));
    node.shard.get(after(9), &get_request(md)).unwrap();
    // An earlier `now` is all that a lowered timeout looks like here.
    node.shard.get(after(4), &get_request(other)).unwrap();
    node.shard.unlink(md).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(after(159)), "put off until the deadline before it");
}

#[test]
fn mode_and_options_say_what_is_tracked() {
    let (track, never) = (MdOptions::TRACK_RESPONSE, MdOptions::NO_TRACK_RESPONSE);
    // Options, then what is tracked in modes 0 to 3: acked PUTs, GETs.
    let table = [
        (MdOptions::NONE, [(false, false), (false, true), (true, false), (true, true)]),
        (track, [(true, true); 4]),
        (never, [(false, false); 4]),
        (track | never, [(false, false); 4]),
    ];
    for (options, expected) in table {
        for (mode, (put, get)) in expected.into_iter().enumerate() {
            let response_tracking = ResponseTracking::from_number(mode as u32).unwrap();
            let mut node = tuned(Tunables { response_tracking, ..Tunables::DEFAULT });
            let spec = MdSpec { options, threshold: Threshold::Count(2), ..node.md(10) };
            let mut tracked = |request: fn(&mut Node, MdHandle)| {
                let md = node.shard.bind(&spec).unwrap();
                request(&mut node, md);
                let tracked = node.shard.usage().trackers == 1;
                node.shard.unlink(md).unwrap();
                tracked
            };
            assert!(!tracked(|node, md| node.shard.put(NOW, &put_request(md, 2)).unwrap()), "no ACK");
            assert_eq!(
                tracked(|node, md| node.shard.put(NOW, &acked(md)).unwrap()),
                put,
                "{mode} {options:?}"
            );
            assert_eq!(tracked(|node, md| node.shard.get(NOW, &get_request(md)).unwrap()), get, "{mode}");
        }
    }
}

#[test]
fn the_timeout_is_a_tunable() {
    let mut node = tuned(Tunables { transaction_timeout: Duration::from_secs(7), ..Tunables::DEFAULT });
    let md = bind(&mut node, 2);
    node.shard.get(after(1), &get_request(md)).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(after(8)));
}

#[test]
fn an_explicit_unlink_ends_the_waiting() {
    for busy in [false, true] {
        let mut node = Node::new(config());
        let md = bind(&mut node, 2);
        node.shard.get(NOW, &get_request(md)).unwrap();
        if !busy {
            send(&mut node);
        }
        let expected = if busy { Unlinked::Pending } else { Unlinked::Done };
        assert_eq!(node.shard.unlink(md), Ok(expected));
        assert_eq!((node.shard.usage().trackers, node.shard.poll_timeout()), (0, None));
        node.shard.handle_timeout(NOW + TIMEOUT);
        assert_eq!(node.shard.counters().response_timeouts, 0);
        if busy {
            send(&mut node);
            assert_eq!(said(&node.event()), (EventKind::Send, LATE, true));
        } else {
            // The REPLY may still have come.
            let lost = Status::Unknown(Cause::Cancelled);
            assert_eq!(said(node.events().last().unwrap()), (EventKind::Unlink, lost, true));
        }
    }
}

#[test]
fn a_descriptor_that_goes_by_itself_takes_its_tracker_along() {
    let mut node = Node::new(config());
    let md = bind(&mut node, 3);
    node.shard.get(NOW, &get_request(md)).unwrap();
    assert_eq!(node.shard.usage().trackers, 1);
    send(&mut node);
    node.events();
    for _ in 0..2 {
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
        send(&mut node);
    }
    assert!(node.events().last().unwrap().unlinked(), "its threshold leaves no operation for the REPLY");
    assert_eq!((node.shard.usage().trackers, node.shard.poll_timeout()), (0, None));
}

#[test]
fn without_a_threshold_a_descriptor_is_watched_while_it_is_busy() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Infinite, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    let (first, second) = (take(&mut node), take(&mut node));
    node.shard.sent(NOW, first.tx, Status::Ok);
    assert_eq!(node.shard.usage().trackers, 1);
    node.shard.sent(NOW, second.tx, Status::Ok);
    assert_eq!((node.shard.usage().trackers, node.shard.poll_timeout()), (0, None));
    node.events();

    node.shard.get(after(3), &get_request(md)).unwrap();
    let third = take(&mut node);
    node.shard.handle_timeout(after(3) + TIMEOUT);
    node.shard.sent(NOW, third.tx, Status::Ok);
    assert_eq!(said(&node.event()), (EventKind::Send, LATE, true));
    assert_eq!(node.shard.counters().response_timeouts, 1);
}

#[test]
fn a_request_that_could_not_be_sent_is_tracked_like_any_other() {
    let mut node = Node::new(config());
    let md = bind(&mut node, 2);
    let target = ProcessId::lustre(nid(9, 2));
    node.shard.put(NOW, &PutRequest { target, ..acked(md) }).unwrap();
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Unreachable));
    assert_eq!(node.shard.poll_timeout(), Some(NOW + TIMEOUT));
    node.shard.handle_timeout(NOW + TIMEOUT);
    assert_eq!(said(&node.event()), (EventKind::Unlink, LATE, true));
}

#[test]
fn a_request_that_does_not_start_awaits_nothing() {
    let limits = Limits { requests: 0, ..config().limits };
    let mut node = Node::new(ShardConfig { limits, ..config() });
    let md = bind(&mut node, 2);
    assert_eq!(node.shard.get(NOW, &get_request(md)), Err(SubmitError::RequestsFull));
    assert_eq!((node.shard.usage().trackers, node.shard.poll_timeout()), (0, None));
}

#[test]
fn the_earlier_of_credit_and_response_is_the_next_timeout() {
    let nis = vec![local_ni(nid(1, 1), 1, 1)];
    let mut node = Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() });
    let (md, waiting) = (bind(&mut node, 2), bind(&mut node, 2));
    node.shard.get(NOW, &get_request(md)).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(NOW + TIMEOUT));
    node.shard.get(after(1), &get_request(waiting)).unwrap();
    assert_eq!(node.shard.poll_timeout(), Some(after(1) + MESSAGE_TIMEOUT));
    node.shard.handle_timeout(after(1) + MESSAGE_TIMEOUT);
    assert_eq!(node.event().status(), Status::NeverSent(Cause::CreditTimeout));
    assert_eq!(node.shard.poll_timeout(), Some(NOW + TIMEOUT));
}

#[test]
fn without_a_queue_a_descriptor_goes_in_silence() {
    let mut node = Node::new(config());
    let spec = MdSpec { threshold: Threshold::Count(2), event_queue: None, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(NOW, &get_request(md)).unwrap();
    send(&mut node);
    node.shard.handle_timeout(NOW + TIMEOUT);
    assert!(node.events().is_empty());
    assert_eq!((node.shard.usage().memory_descs, node.shard.counters().response_timeouts), (0, 1));
}
