//! Prefetch hints: memory is fetched in time, and of no consequence otherwise.

use std::cell::Cell;

use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::{PrefetchHint, PrefetchHints, Status, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use proptest::prelude::*;

use crate::common::{NI, NOW, Node, acked_put_header, config, get_header, host, put_header};

thread_local! {
    static FETCHED: Cell<u32> = const { Cell::new(0) };
}

fn fetch(_: *const u8) {
    FETCHED.set(FETCHED.get() + 1);
}

fn announced(match_bits: u64) -> PrefetchHint {
    PrefetchHint { portal: 4, match_bits, source: host(2) }
}

/// A node with an entry for bits 1 that stays and one for bits 2 that is used up; their descriptors.
fn node() -> (Node, MdHandle, MdHandle) {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::GET;
    let once = MdSpec { options, event_queue: None, ..node.md(8) };
    let (_, first) = node.post(1, &MdSpec { threshold: Threshold::Infinite, ..once });
    let (_, second) = node.post(2, &once);
    (node, first, second)
}

fn expected_md<const N: usize>(node: &Node) -> [Option<u32>; N] {
    std::array::from_fn(|distance| node.shard.expected_md(distance))
}

#[test]
fn lines_are_fetched_step_by_step() {
    let (mut node, first, second) = node();
    let [first, second] = [first, second].map(|md| Some(md.0.slot()));
    // Buckets; descriptors with their generations, where there are any; the entry that is used up, with its
    // own.
    node.shard.hint(&[1, 3, 2].map(announced), fetch);
    assert_eq!(FETCHED.take(), 3 + 2 * 2 + 2);
    assert_eq!(expected_md(&node), [first, None, second, None]);
    node.arrive(&put_header(1, 8));
    node.arrive(&put_header(3, 8));
    node.arrive(&put_header(2, 8));
    assert_eq!((FETCHED.take(), expected_md(&node)), (0, [None]));

    // Many messages are hinted at, the later ones as those before them come: each of them once, and no more
    // than 64 at a time.
    node.shard.hint(&[announced(1); 200], fetch);
    assert_eq!(FETCHED.take(), 24 + 2 * 12);
    for come in 1..=200_u32 {
        // The LND goes by nine.
        let known = 64_u32.saturating_sub(come - 1).min(12) as usize;
        assert_eq!(expected_md::<12>(&node), std::array::from_fn(|at| if at < known { first } else { None }));
        node.arrive(&put_header(1, 8));
        let bucket = u32::from(come + 24 <= 64);
        let md = 2 * u32::from(come + 12 <= 64);
        assert_eq!(FETCHED.take(), bucket + md, "message {come}");
    }
}

#[test]
fn what_comes_otherwise_loses_no_step() {
    let (mut node, first, second) = node();
    let [first, second] = [first, second].map(|md| Some(md.0.slot()));
    node.shard.hint(&[1, 1, 2, 1].map(announced), fetch);
    // Messages that were not announced have no hints.
    node.arrive(&put_header(7, 8));
    node.arrive(&acked_put_header(9, 8));
    assert_eq!(expected_md(&node), [first, first, second, first, None]);
    // Two that were announced have been dropped on the way.
    node.arrive(&put_header(2, 8));
    assert_eq!(expected_md(&node), [first, None]);
    // More come before that one, and some of them turn out to be frames of several.
    node.shard.hint(&[3, 2].map(announced), fetch);
    assert_eq!(expected_md(&node), [None, None, first, None]);
    node.shard.hint(&[3, 1, 1].map(announced), fetch);
    assert_eq!(expected_md(&node), [None, first, first, None, first, None]);
    node.shard.hint(&[], fetch);
    node.arrive(&get_header(1, 8));
    assert_eq!(expected_md(&node), [first, None, first, None]);
}

/// What happens to two nodes, one of which is told what comes, rightly or not.
#[derive(Clone, Debug)]
enum Step {
    Post { match_bits: u64, count: Option<u32> },
    Unlink(prop::sample::Index),
    Announce(Vec<(u32, u64)>),
    Arrive { match_bits: u64, length_bytes: u32, is_get: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let match_bits = 0..6_u64;
    let count = prop::option::of(1..4_u32);
    prop_oneof![
        (match_bits.clone(), count).prop_map(|(match_bits, count)| Step::Post { match_bits, count }),
        any::<prop::sample::Index>().prop_map(Step::Unlink),
        prop::collection::vec((prop_oneof![9 => Just(4), 1 => any::<u32>()], match_bits.clone()), 0..100)
            .prop_map(Step::Announce),
        (match_bits, 0..20_u32, any::<bool>()).prop_map(|(match_bits, length_bytes, is_get)| Step::Arrive {
            match_bits,
            length_bytes,
            is_get
        }),
    ]
}

proptest! {
    #[test]
    fn announcing_changes_nothing(steps in prop::collection::vec(step(), 1..200)) {
        let mut nodes = [Node::new(config()), Node::new(config())];
        let mut posted: Vec<(MeHandle, MdHandle)> = Vec::new();
        for step in steps {
            match step {
                Step::Post { match_bits, count } => {
                    let threshold = count.map_or(Threshold::Infinite, Threshold::Count);
                    let made = nodes.each_mut().map(|node| {
                        let options = MdOptions::PUT | MdOptions::GET;
                        let entry = node.shard.attach_entry(&crate::common::entry(match_bits)).ok()?;
                        let md = MdSpec { options, threshold, ..node.md(16) };
                        Some((entry, node.shard.attach(entry, &md).ok()?))
                    });
                    prop_assert_eq!(made[0], made[1]);
                    posted.extend(made[0]);
                }
                Step::Unlink(index) if !posted.is_empty() => {
                    let (_, md) = posted.swap_remove(index.index(posted.len()));
                    let unlinked = nodes.each_mut().map(|node| node.shard.unlink(md));
                    prop_assert_eq!(unlinked[0], unlinked[1]);
                }
                Step::Unlink(_) => {}
                Step::Announce(messages) => {
                    let announced = |(portal, match_bits)| PrefetchHint { portal, ..announced(match_bits) };
                    let arrivals: Vec<_> = messages.into_iter().map(announced).collect();
                    nodes[1].shard.hint(&arrivals, fetch);
                }
                Step::Arrive { match_bits, length_bytes, is_get } => {
                    let header =
                        if is_get { get_header(match_bits, length_bytes) } else { put_header(match_bits, length_bytes) };
                    let verdicts = nodes.each_mut().map(|node| node.arrive(&header));
                    prop_assert_eq!(verdicts[0], verdicts[1]);
                    for node in &mut nodes {
                        while let Some(sent) = node.shard.poll_transmit(NOW, NI).map(|lent| *lent.transmit) {
                            node.shard.sent(NOW, sent.tx, Status::Ok);
                        }
                    }
                }
            }
            let [one, other] = nodes.each_mut().map(|node| (node.events(), node.shard.usage(), *node.shard.counters()));
            prop_assert_eq!(one, other);
        }
    }
}
