//! Portals and the match test, case by case.

use lnet_core::event::Event;
use lnet_core::handle::{Cookie, CookieKind, MdHandle, MeHandle, ShardId};
use lnet_core::lnd::{Span, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::{EntryError, EntrySpec, Position};
use lnet_core::stats::DropReason;
use lnet_wire::{Body, Header, ProcessId, WireHandle};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::{ANYONE, Node, PID, acked_put_header, config, entry, get_header, host, nid, put_header};

fn deliver(md: MdHandle, offset_bytes: u64, length_bytes: u32) -> Verdict {
    Verdict::Deliver(Span { buffer: md.into(), offset_bytes, length_bytes })
}

fn with_offset(header: Header, new: u32) -> Header {
    let Body::Put { ack_md, match_bits, hdr_data, portal, .. } = header.body else { panic!("no PUT") };
    Header { body: Body::Put { ack_md, match_bits, hdr_data, portal, offset: new }, ..header }
}

proptest! {
    /// Entries that all take a message take messages in their order, however many of them there are, wherever
    /// each was put and whichever of the portal's lists it is in.
    #[test]
    fn entries_for_one_message_are_taken_in_their_order(
        posts in proptest::collection::vec((0..4, any::<Index>(), any::<bool>()), 1..24),
        unlinked in any::<Index>(),
    ) {
        let mut node = Node::new(config());
        let mut order: Vec<(MeHandle, MdHandle)> = Vec::new();
        for (position, other, is_exact) in posts {
            let other = (!order.is_empty()).then(|| other.index(order.len()));
            let (position, at) = match (position, other) {
                (0, _) => (Position::First, 0),
                (1, Some(other)) => (Position::Before(order[other].0), other),
                (2, Some(other)) => (Position::After(order[other].0), other + 1),
                _ => (Position::Last, order.len()),
            };
            let ignore_bits = if is_exact { 0 } else { 6 };
            let me = node.shard.attach_entry(&EntrySpec { ignore_bits, position, ..entry(1) }).unwrap();
            let spec = MdSpec { options: MdOptions::PUT, event_queue: None, ..node.md(8) };
            order.insert(at, (me, node.shard.attach(me, &spec).unwrap()));
        }
        let (me, _) = order.remove(unlinked.index(order.len()));
        prop_assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Done));
        for (_, md) in order {
            prop_assert_eq!(node.arrive(&put_header(1, 3)), deliver(md, 0, 3));
        }
        node.assert_drop(&put_header(1, 3), DropReason::NoMatch);
    }
}

#[test]
fn an_entry_without_descriptor_is_skipped() {
    let mut node = Node::new(config());
    node.shard.attach_entry(&entry(1)).unwrap();
    node.assert_drop(&put_header(1, 3), DropReason::NoMatch);
    let md = node.md(8);
    let (_, md) = node.post(1, &MdSpec { options: MdOptions::PUT, ..md });
    assert_eq!(node.arrive(&put_header(1, 3)), deliver(md, 0, 3));
}

#[test]
fn an_exhausted_descriptor_is_skipped() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, auto_unlink: false, ..node.md(8) };
    let (_, first) = node.post(1, &spec);
    let (_, second) = node.post(1, &spec);
    assert_eq!(node.arrive(&put_header(1, 3)), deliver(first, 0, 3));
    assert_eq!(node.arrive(&put_header(1, 3)), deliver(second, 0, 3), "the first threshold is used up");
    node.assert_drop(&put_header(1, 3), DropReason::NoMatch);
}

#[test]
fn max_size_exhausts_a_descriptor_before_it_is_full() {
    let mut node = Node::new(config());
    let spec = MdSpec {
        options: MdOptions::PUT,
        threshold: Threshold::Infinite,
        max_size_bytes: Some(4),
        ..node.md(10)
    };
    let (_, first) = node.post(1, &spec);
    let (_, second) = node.post(1, &spec);
    assert_eq!(node.arrive(&put_header(1, 4)), deliver(first, 0, 4));
    assert!(!node.event().unlinked());
    assert_eq!(node.arrive(&put_header(1, 3)), deliver(first, 4, 3));
    assert!(node.event().unlinked(), "3 bytes are left, fewer than a message may have");
    assert_eq!(node.arrive(&put_header(1, 4)), deliver(second, 0, 4));
    node.assert_drop(&put_header(1, 5), DropReason::TooLong);
}

#[test]
fn the_operation_must_be_allowed() {
    let mut node = Node::new(config());
    let spec = node.md(8);
    let (_, get) = node.post(1, &MdSpec { options: MdOptions::GET, ..spec });
    let (_, put) = node.post(1, &MdSpec { options: MdOptions::PUT, ..spec });
    assert_eq!(node.arrive(&put_header(1, 8)), deliver(put, 0, 8));
    assert_eq!(node.arrive(&get_header(1, 8)), deliver(get, 0, 0));
    node.assert_drop(&get_header(1, 8), DropReason::NoMatch);
}

#[test]
fn ignored_bits_need_not_be_equal() {
    let mut node = Node::new(config());
    let spec =
        MdSpec { options: MdOptions::PUT, threshold: Threshold::Infinite, event_queue: None, ..node.md(8) };
    let me = node.shard.attach_entry(&EntrySpec { ignore_bits: 0xF0, ..entry(0x105) }).unwrap();
    node.shard.attach(me, &spec).unwrap();
    for (bits, taken) in [(0x105, true), (0x1F5, true), (0x104, false), (0x205, false)] {
        assert_eq!(node.arrive(&put_header(bits, 0)) != Verdict::Drop, taken, "{bits:#x}");
    }
}

#[test]
fn source_nid_and_pid_are_filtered_each_for_itself() {
    let stranger = ProcessId { nid: nid(1, 3), pid: 9 };
    let cases = [
        (ANYONE, true, true),
        (ProcessId { pid: PID, ..ANYONE }, true, false),
        (ProcessId { nid: nid(1, 3), ..ANYONE }, false, true),
    ];
    for (source, from_host_2, from_stranger) in cases {
        let mut node = Node::new(config());
        let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(9), ..node.md(8) };
        let me = node.shard.attach_entry(&EntrySpec { source, ..entry(1) }).unwrap();
        node.shard.attach(me, &spec).unwrap();
        assert_eq!(node.arrive(&put_header(1, 0)) != Verdict::Drop, from_host_2, "{source:?}");
        let header = Header { source: stranger, ..put_header(1, 0) };
        assert_eq!(node.arrive(&header) != Verdict::Drop, from_stranger, "{source:?}");
    }
}

#[test]
fn too_long_ends_the_search() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    node.post(1, &MdSpec { length_bytes: 4, ..spec });
    node.post(1, &spec);
    node.assert_drop(&put_header(1, 5), DropReason::TooLong);
    assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    assert_ne!(node.arrive(&put_header(1, 5)), Verdict::Drop, "now the longer one is first");
}

#[test]
fn truncate_cuts_to_what_is_allowed() {
    let mut node = Node::new(config());
    let spec = MdSpec {
        options: MdOptions::PUT | MdOptions::TRUNCATE,
        threshold: Threshold::Count(3),
        ..node.md(8)
    };
    let (_, md) = node.post(1, &spec);
    assert_eq!(node.arrive(&put_header(1, 6)), deliver(md, 0, 6));
    assert_eq!(node.arrive(&put_header(1, 6)), deliver(md, 6, 2));
    assert_eq!(
        node.arrive(&put_header(1, 6)),
        deliver(md, 8, 0),
        "a full descriptor takes nothing, and counts"
    );
    let events = node.events();
    assert_eq!(events.iter().map(|event| event.manipulated_bytes()).collect::<Vec<_>>(), [6, 2, 0]);
    assert!(events.iter().all(|event| matches!(event, Event::Put { requested_bytes: 6, .. })));
}

#[test]
fn a_remote_offset_counts_only_where_it_may() {
    let mut node = Node::new(config());
    let spec = MdSpec {
        options: MdOptions::PUT | MdOptions::MANAGE_REMOTE,
        threshold: Threshold::Infinite,
        event_queue: None,
        ..node.md(8)
    };
    let (_, md) = node.post(1, &spec);
    assert_eq!(node.arrive(&with_offset(put_header(1, 3), 5)), deliver(md, 5, 3));
    assert_eq!(node.arrive(&with_offset(put_header(1, 2), 1)), deliver(md, 1, 2));
    node.assert_drop(&with_offset(put_header(1, 4), 5), DropReason::TooLong);
    node.assert_drop(&with_offset(put_header(1, 1), 9), DropReason::TooLong);
    node.assert_drop(&with_offset(put_header(1, 1), u32::MAX), DropReason::TooLong);
    assert_eq!(node.arrive(&with_offset(put_header(1, 0), 9)), deliver(md, 8, 0), "nothing always fits");

    let (_, local) = node.post(2, &MdSpec { options: MdOptions::PUT, ..spec });
    assert_eq!(node.arrive(&with_offset(put_header(2, 3), 5)), deliver(local, 0, 3));
    assert_eq!(node.arrive(&with_offset(put_header(2, 3), 5)), deliver(local, 3, 3));
}

#[test]
fn a_remote_offset_cannot_reach_beyond_the_buffer_with_max_size() {
    let mut node = Node::new(config());
    let spec = MdSpec {
        options: MdOptions::PUT | MdOptions::MANAGE_REMOTE | MdOptions::TRUNCATE,
        threshold: Threshold::Infinite,
        max_size_bytes: Some(4),
        event_queue: None,
        auto_unlink: false,
        ..node.md(8)
    };
    let (_, md) = node.post(1, &spec);
    assert_eq!(node.arrive(&with_offset(put_header(1, 9), 0)), deliver(md, 0, 4));
    assert_eq!(node.arrive(&with_offset(put_header(1, 9), 7)), deliver(md, 7, 1));
}

#[test]
fn one_order_over_exact_and_ignoring_entries() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let mut post = |ignore_bits, position| {
        let me = node.shard.attach_entry(&EntrySpec { ignore_bits, position, ..entry(1) }).unwrap();
        node.shard.attach(me, &spec).unwrap()
    };
    let third = post(0xF0, Position::Last);
    let fourth = post(0, Position::Last);
    let fifth = post(0x0F, Position::Last);
    let second = post(0, Position::First);
    let first = post(0xF0, Position::First);
    for expected in [first, second, third, fourth, fifth] {
        assert_eq!(node.arrive(&put_header(1, 1)), deliver(expected, 0, 1));
    }
    node.assert_drop(&put_header(1, 1), DropReason::NoMatch);
}

#[test]
fn portals_are_apart() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let me = node.shard.attach_entry(&EntrySpec { portal: 63, ..entry(1) }).unwrap();
    node.shard.attach(me, &spec).unwrap();
    node.assert_drop(&put_header(1, 1), DropReason::NoMatch);
    assert_eq!(node.shard.attach_entry(&EntrySpec { portal: 64, ..entry(1) }), Err(EntryError::Portal(64)));
}

#[test]
fn sm_01_the_first_entry_fixes_the_kind_and_the_last_takes_it_along() {
    let unique = EntrySpec { source: host(2), ..entry(1) };
    let wildcards = [
        entry(1),
        EntrySpec { ignore_bits: 1, ..unique },
        EntrySpec { source: ProcessId { pid: PID, ..ANYONE }, ..entry(1) },
        EntrySpec { source: ProcessId { nid: nid(1, 2), ..ANYONE }, ..entry(1) },
    ];
    for wildcard in wildcards {
        let mut node = Node::new(config());
        let refused = Err(EntryError::Kind { portal: 4 });
        let me = node.shard.attach_entry(&unique).unwrap();
        assert_eq!(node.shard.attach_entry(&wildcard), refused);
        assert_eq!(node.shard.usage().match_entries, 1);
        assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Done));
        let me = node.shard.attach_entry(&wildcard).unwrap();
        assert_eq!(node.shard.attach_entry(&unique), refused);
        assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Done));
        assert!(node.shard.attach_entry(&unique).is_ok());
    }
}

#[test]
fn a_unique_portal_matches_by_nid_and_pid_in_order_of_arrival() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let mut post = |source| {
        let me = node.shard.attach_entry(&EntrySpec { source, ..entry(1) }).unwrap();
        node.shard.attach(me, &spec).unwrap()
    };
    let other_pid = ProcessId { pid: 9, ..host(2) };
    let (stranger, first, other, second) = (post(host(3)), post(host(2)), post(other_pid), post(host(2)));
    let from = |source| Header { source, ..put_header(1, 1) };
    assert_eq!(node.arrive(&from(host(2))), deliver(first, 0, 1));
    assert_eq!(node.arrive(&from(host(2))), deliver(second, 0, 1));
    assert_eq!(node.arrive(&from(host(3))), deliver(stranger, 0, 1));
    assert_eq!(node.arrive(&from(other_pid)), deliver(other, 0, 1));
    node.assert_drop(&from(host(2)), DropReason::NoMatch);
}

#[test]
fn sm_02_a_unique_portal_knows_no_before_and_a_request_portal_does() {
    let mut node = Node::new(config());
    let spec = EntrySpec { source: host(2), position: Position::First, ..entry(1) };
    assert_eq!(node.shard.attach_entry(&spec), Err(EntryError::Position { portal: 4 }));
    assert_eq!(node.shard.usage().match_entries, 0);
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let me = node.shard.attach_entry(&entry(1)).expect("the refused one did not fix the kind");
    let after = node.shard.attach(me, &spec).unwrap();
    let me = node.shard.attach_entry(&EntrySpec { position: Position::First, ..entry(1) }).unwrap();
    let before = node.shard.attach(me, &spec).unwrap();
    for md in [before, after] {
        assert_eq!(node.arrive(&put_header(1, 1)), deliver(md, 0, 1));
    }
}

#[test]
fn beside_an_entry_is_refused_where_that_is_not_in_the_list() {
    let mut node = Node::new(config());
    let me = node.shard.attach_entry(&entry(1)).unwrap();
    let gone = node.shard.attach_entry(&entry(2)).unwrap();
    assert_eq!(node.shard.unlink_entry(gone), Ok(Unlinked::Done));
    let Cookie(bits) = me.0;
    let strange = MeHandle(Cookie(bits | 1 << lnet_wire::steer::COOKIE_SHARD_SHIFT));
    let no_entry = MeHandle(Cookie(bits ^ CookieKind::MatchEntry as u64));
    let portal = entry(1).portal;
    for beside in [Position::Before, Position::After] {
        let refusals = [
            (EntrySpec { position: beside(gone), ..entry(1) }, EntryError::Gone(gone)),
            (
                EntrySpec { position: beside(strange), ..entry(1) },
                EntryError::OtherShard { entry: strange, shard: ShardId(1), expected: ShardId(0) },
            ),
            (EntrySpec { position: beside(no_entry), ..entry(1) }, EntryError::Gone(no_entry)),
            (
                EntrySpec { position: beside(me), ..EntrySpec::new(portal + 1, 1) },
                EntryError::OtherPortal { entry: me, portal, expected: portal + 1 },
            ),
        ];
        for (spec, error) in refusals {
            assert_eq!(node.shard.attach_entry(&spec), Err(error), "{spec:?}");
        }
    }
    assert_eq!(node.shard.usage().match_entries, 1);
    assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Done));
    let unique = EntrySpec { source: host(2), ..entry(1) };
    let me = node.shard.attach_entry(&unique).unwrap();
    for position in [Position::Before(me), Position::After(me)] {
        let refused = node.shard.attach_entry(&EntrySpec { position, ..unique });
        assert_eq!(refused, Err(EntryError::Position { portal }));
    }
}

#[test]
fn entries_run_out() {
    let mut node = Node::new(config());
    for bits in 0..64 {
        node.shard.attach_entry(&entry(bits)).unwrap();
    }
    assert_eq!(node.shard.attach_entry(&entry(64)), Err(EntryError::Full));
}

#[test]
fn a_retained_entry_outlives_its_descriptor() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let me = node.shard.attach_entry(&EntrySpec { auto_unlink: false, ..entry(1) }).unwrap();
    for _ in 0..2 {
        let md = node.shard.attach(me, &spec).unwrap();
        assert_eq!(node.arrive(&put_header(1, 1)), deliver(md, 0, 1));
        assert!(node.event().unlinked());
        node.assert_drop(&put_header(1, 1), DropReason::NoMatch);
        assert_eq!((node.shard.usage().match_entries, node.shard.usage().memory_descs), (1, 0));
    }
    assert_eq!(node.shard.unlink_entry(me), Ok(Unlinked::Done));
    assert_eq!(node.shard.unlink_entry(me), Err(me), "a stale handle misses");
}

#[test]
fn nothing_matches_after_exhaustion_though_the_operation_goes_on() {
    use lnet_core::lnd::{RxId, Status, Uplink};

    use crate::common::{NI, NOW};
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    let (me, md) = node.post(1, &spec);
    assert_eq!(
        node.shard.header(NOW, NI, &put_header(1, 2).source.nid, RxId(5), &put_header(1, 2)),
        deliver(md, 0, 2)
    );
    assert_eq!(node.shard.unlink_entry(me), Err(me), "the entry went at once");
    node.assert_drop(&acked_put_header(1, 2), DropReason::NoMatch);
    assert_eq!(node.shard.usage().memory_descs, 1);
    node.shard.received(NOW, RxId(5), Status::Ok);
    assert!(node.event().unlinked());
    assert_eq!(node.shard.usage().memory_descs, 0);
}

#[test]
fn an_ack_handle_is_none_only_if_both_words_are() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, threshold: Threshold::Count(2), ..node.md(8) };
    node.post(1, &spec);
    for (ack_md, acked) in
        [(WireHandle::NONE, false), (WireHandle { object_cookie: 1, ..WireHandle::NONE }, true)]
    {
        let body = Body::Put { ack_md, match_bits: 1, hdr_data: 0, portal: 4, offset: 0 };
        node.arrive(&Header { body, ..put_header(1, 0) });
        assert_eq!(node.transmit().is_some(), acked);
    }
}
