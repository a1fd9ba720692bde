//! Drop rules against naive models: windows are counted out, slots of time are walked through, rules are
//! tried one by one.

use std::time::Duration;

use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::time::Instant;
use lnet_model::fault::{DropRule, Filter, MessageTypes};
use lnet_wire::{Header, Nid};
use proptest::prelude::*;

use crate::common::{NOW, Node, config, get_header, host, nid, put_header};
use crate::faults::{ALL, is_dropped};

/// A node that takes any PUT and GET with match bits 1.
fn node() -> Node {
    let mut node = Node::new(config());
    let spec = MdSpec {
        threshold: Threshold::Infinite,
        event_queue: None,
        options: MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE,
        ..node.md(1000)
    };
    node.post(1, &spec);
    node
}

/// Few ends and types, so that messages meet rules.
fn filters() -> impl Strategy<Value = Filter> {
    let end = |of: Nid| prop_oneof![3 => Just(Nid::ANY), 2 => Just(of), 1 => Just(nid(1, 7))];
    (end(nid(1, 2)), end(nid(1, 1)), 0_u32..16, prop_oneof![Just(0_u64), Just(1 << 4), Just(1 << 5)])
        .prop_map(|(source, destination, messages, portals)| Filter {
            source,
            destination,
            local_nid: Nid::ANY,
            messages: MessageTypes::from_bits(messages).unwrap(),
            portals,
        })
}

/// A rule of the model: what it is about, whether it drops or only counts, what it has counted.
struct ModelRule {
    filter: Filter,
    drops: bool,
    matched: u64,
    dropped: u64,
}

impl ModelRule {
    /// The tests of LNet `net_fault.c: lnet_fault_attr_match` for a message to portal 4 of host 1.
    fn matches(&self, from: Nid, put: bool) -> bool {
        let Filter { source, destination, messages, portals, .. } = self.filter;
        let bit = if put { 2 } else { 4 };
        (source == Nid::ANY || source == from)
            && (destination == Nid::ANY || destination == nid(1, 1))
            && (messages.bits() == 0 || messages.bits() & bit != 0)
            && (portals == 0 || portals & 1 << 4 != 0)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Add(Filter, bool),
    Delete(Nid, Nid),
    Reset,
    Arrive { from: u8, put: bool },
}

fn operations() -> impl Strategy<Value = Operation> {
    let end = || prop_oneof![Just(Nid::ANY), Just(nid(1, 2)), Just(nid(1, 1)), Just(nid(1, 7))];
    prop_oneof![
        3 => (filters(), any::<bool>()).prop_map(|(filter, drops)| Operation::Add(filter, drops)),
        1 => (end(), end()).prop_map(|(source, destination)| Operation::Delete(source, destination)),
        1 => Just(Operation::Reset),
        8 => (2_u8..4, any::<bool>()).prop_map(|(from, put)| Operation::Arrive { from, put }),
    ]
}

fn run(node: &mut Node, model: &mut Vec<ModelRule>, operation: &Operation) {
    match *operation {
        Operation::Add(filter, drops) => {
            // An interval of a century: such a rule counts and does not fire.
            let interval_s = if drops { 0 } else { u32::MAX };
            let rule = DropRule { filter, rate: u32::from(drops), interval_s, ..ALL };
            let added = node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).is_ok();
            let types = filter.messages.bits();
            let sensible = filter.portals == 0 || types == 0 || types & 6 != 0;
            assert_eq!(added, sensible, "{filter:?}");
            if added {
                model.push(ModelRule { filter, drops, matched: 0, dropped: 0 });
            }
        }
        Operation::Delete(source, destination) => {
            let before = model.len();
            model.retain(|rule| {
                let same_source = source == Nid::ANY || rule.filter.source == source;
                let same_destination = destination == Nid::ANY || rule.filter.destination == destination;
                !(same_source && same_destination)
            });
            let deleted = node.shard.faults_mut().delete_drop_rules(&source, &destination);
            assert_eq!(deleted, before - model.len());
        }
        Operation::Reset => {
            node.shard.faults_mut().reset_drop_rules(NOW);
            model.iter_mut().for_each(|rule| (rule.matched, rule.dropped) = (0, 0));
        }
        Operation::Arrive { from, put } => {
            let header = if put { put_header(1, 4) } else { get_header(1, 4) };
            let header = Header { source: host(from), ..header };
            let mut dropped = false;
            for rule in model.iter_mut().rev().filter(|rule| rule.matches(nid(1, from), put)) {
                rule.matched += 1;
                if rule.drops {
                    rule.dropped += 1;
                    dropped = true;
                    break;
                }
            }
            assert_eq!(is_dropped(node, NOW, &header), dropped);
        }
    }
    let listed: Vec<_> = node
        .shard
        .faults()
        .drop_rules()
        .map(|(rule, counters)| (rule.filter.source, counters.count, counters.fired()))
        .collect();
    let expected: Vec<_> =
        model.iter().rev().map(|rule| (rule.filter.source, rule.matched, rule.dropped)).collect();
    assert_eq!(listed, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rules_are_tried_as_in_the_model(operations in proptest::collection::vec(operations(), 1..60)) {
        let (mut node, mut model) = (node(), Vec::new());
        for operation in &operations {
            run(&mut node, &mut model, operation);
        }
    }

    #[test]
    fn each_window_loses_one(seed: u64, rate in 1_u32..20, resets in proptest::collection::vec(0_u32..50, 1..4)) {
        let mut node = node();
        node.shard.faults_mut().add_drop_rule(NOW, &DropRule { rate, ..ALL }, seed).unwrap();
        for partial in resets {
            let count = 5 * rate + partial % rate;
            let dropped: Vec<_> = (0..count).map(|_| is_dropped(&mut node, NOW, &put_header(1, 0))).collect();
            for window in dropped.chunks(rate as usize) {
                let lost = window.iter().filter(|&&dropped| dropped).count();
                prop_assert!(lost == 1 || lost == 0 && window.len() < rate as usize, "{:?}", dropped);
            }
            node.shard.faults_mut().reset_drop_rules(NOW);
        }
    }

    #[test]
    fn each_slot_of_time_loses_its_first_message_after_a_moment(
        seed: u64,
        interval_s in 1_u32..20,
        gaps_ms in proptest::collection::vec(prop_oneof![9 => 0_u64..2000, 1 => 0_u64..60_000], 1..200),
    ) {
        let interval = Duration::from_secs(interval_s.into());
        let mut node = node();
        let rule = DropRule { rate: 0, interval_s, ..ALL };
        node.shard.faults_mut().add_drop_rule(NOW, &rule, seed).unwrap();
        // The slot in which the next message is to be dropped, and the last moment at which none was.
        let (mut begin, mut now) = (NOW, NOW);
        for gap_ms in gaps_ms {
            now = now + Duration::from_millis(gap_ms);
            if is_dropped(&mut node, now, &put_header(1, 0)) {
                prop_assert!(now >= begin, "two in one slot");
                begin = (begin + interval).max(now);
            } else {
                prop_assert!(now < begin + interval, "a slot has passed and no message was dropped");
            }
        }
    }
}

/// Guards the tests above: the moment in a window, and that in a slot, is really a random one.
#[test]
fn every_index_has_its_turn() {
    let mut node = node();
    let mut counts = [0; 8];
    node.shard.faults_mut().add_drop_rule(NOW, &DropRule { rate: 8, ..ALL }, 5).unwrap();
    for place in (0..8).cycle().take(8 * 400) {
        counts[place] += u32::from(is_dropped(&mut node, NOW, &put_header(1, 0)));
    }
    // 50 expected in each; 35 is five standard deviations.
    assert!(counts.iter().all(|count| count.abs_diff(50) < 35), "{counts:?}");

    node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    let rule = DropRule { rate: 0, interval_s: 8, ..ALL };
    node.shard.faults_mut().add_drop_rule(NOW, &rule, 5).unwrap();
    let mut counts = [0; 8];
    for second in 0..8 * 400 {
        // Just before the end of each second: its first message after the moment.
        let now = Instant((second + 1) * 1_000_000_000 - 1);
        counts[second as usize % 8] += u32::from(is_dropped(&mut node, now, &put_header(1, 0)));
    }
    assert!(counts.iter().all(|count| count.abs_diff(50) < 35), "{counts:?}");
}
