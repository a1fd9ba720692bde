//! Drop rules and simulated peer failures.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::fault::{FAILED_PEERS_MAX, FAULT_RULES_MAX, FailedPeer, FaultError};
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{NiId, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::SubmitError;
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_model::fault::{DropRule, Filter, MessageTypes, RuleCounters};
use lnet_wire::{Body, Header, MessageType, Nid, ProcessId, WireHandle};

use crate::common::{
    FOREIGN, NI, NOW, Node, ack_header, config, get_header, get_request, host, local_ni, nid, put_header,
    put_request, reply_header,
};

/// Drops every message.
pub(crate) const ALL: DropRule = DropRule {
    filter: Filter::EVERYTHING,
    rate: 1,
    interval_s: 0,
    random: false,
    drop_all: false,
    health_errors: Vec::new(),
};

/// A node that takes any number of PUTs and GETs with match bits 1, responses for `md` too.
fn node() -> (Node, MdHandle) {
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(1, 9), 8, 4)]);
    let mut node = Node::new(ShardConfig { topology: Arc::new(topology), ..config() });
    let spec = MdSpec { threshold: Threshold::Infinite, event_queue: None, ..node.md(1000) };
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE;
    node.post(1, &MdSpec { options, ..spec });
    let md = node.shard.bind(&spec).unwrap();
    (node, md)
}

/// A message arrives at `now`; says whether it was dropped by a rule. It is never dropped for any other
/// reason, and a REPLY to it is sent at once.
pub(crate) fn is_dropped(node: &mut Node, now: Instant, header: &Header) -> bool {
    let before = *node.shard.counters();
    let verdict = node.shard.header(now, NI, &header.source.nid, RxId(0), header);
    let after = *node.shard.counters();
    let dropped = after.drops(DropReason::Fault).messages - before.drops(DropReason::Fault).messages == 1;
    assert_eq!(dropped, verdict == Verdict::Drop);
    assert_eq!(after.dropped().messages - before.dropped().messages, u64::from(dropped));
    if !dropped {
        node.shard.received(now, RxId(0), Status::Ok);
        while let Some(transmit) = node.transmit() {
            node.shard.sent(now, transmit.tx, Status::Ok);
        }
    }
    dropped
}

fn filtered(filter: Filter) -> DropRule {
    DropRule { filter, ..ALL }
}

#[test]
fn a_dropped_message_changes_nothing_and_is_counted() {
    let mut node = Node::new(config());
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    node.post(1, &spec);
    node.shard.faults_mut().add_drop_rule(NOW, &ALL, 1).unwrap();
    node.assert_drop(&put_header(1, 5), DropReason::Fault);
    assert!(node.events().is_empty() && node.transmit().is_none(), "nobody is told");
    node.assert_drop(&put_header(2, 5), DropReason::Fault);
    assert_eq!(node.shard.counters().drops(DropReason::Fault).bytes, 10);
    // Invalid headers do not get as far.
    node.assert_drop(&Header { destination: host(3), ..put_header(1, 5) }, DropReason::NotLocal);
    node.assert_drop(&put_header(1, (1 << 20) + 1), DropReason::Malformed);
    let source = ProcessId::lustre(Nid::ANY);
    node.assert_drop(&Header { source, ..put_header(1, 5) }, DropReason::NoSource);
    node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    assert_ne!(node.arrive(&put_header(1, 5)), Verdict::Drop);
}

#[test]
fn nids_match_exactly_or_as_a_net_or_any() {
    let whole_net = |net: u16| Nid::from_small(2 << 48 | u64::from(net) << 32 | 0xFFFF_FFFF).unwrap();
    let (mut node, _) = node();
    let put = put_header(1, 4);
    let cases = [
        (Filter { source: nid(1, 2), ..Filter::EVERYTHING }, true),
        (Filter { source: nid(1, 3), ..Filter::EVERYTHING }, false),
        (Filter { source: whole_net(1), ..Filter::EVERYTHING }, true),
        (Filter { source: whole_net(2), ..Filter::EVERYTHING }, false),
        (Filter { destination: nid(1, 1), ..Filter::EVERYTHING }, true),
        (Filter { destination: nid(1, 2), ..Filter::EVERYTHING }, false),
        (Filter { destination: whole_net(1), ..Filter::EVERYTHING }, true),
        (Filter { local_nid: nid(1, 1), ..Filter::EVERYTHING }, true),
        (Filter { local_nid: nid(1, 9), ..Filter::EVERYTHING }, false),
        (Filter { local_nid: whole_net(1), ..Filter::EVERYTHING }, true),
        (Filter { source: nid(1, 2), destination: nid(1, 3), ..Filter::EVERYTHING }, false),
        (Filter::EVERYTHING, true),
    ];
    for (filter, expected) in cases {
        node.shard.faults_mut().add_drop_rule(NOW, &filtered(filter), 1).unwrap();
        assert_eq!(is_dropped(&mut node, NOW, &put), expected, "{filter:?}");
        let count = node.shard.faults().drop_rules().next().unwrap().1.count;
        assert_eq!(count, u64::from(expected), "what does not match is not counted");
        assert_eq!(node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY), 1);
    }
}

#[test]
fn the_receiving_ni_is_looked_at() {
    let (mut node, _) = node();
    let rule = filtered(Filter { local_nid: nid(1, 9), ..Filter::EVERYTHING });
    node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
    let header = Header { destination: host(9), ..put_header(1, 4) };
    assert_eq!(node.shard.header(NOW, NiId(1), &header.source.nid, RxId(0), &header), Verdict::Drop);
    assert!(!is_dropped(&mut node, NOW, &put_header(1, 4)));
}

#[test]
fn message_types_and_portals() {
    let (mut node, md) = node();
    let messages = [ack_header(md), put_header(1, 4), get_header(1, 4), reply_header(md, 4)];
    let (put, get) = (MessageTypes::PUT, MessageTypes::GET);
    let both = MessageTypes::PUT | MessageTypes::GET;
    // Types and portals asked for; whether ACK, PUT, GET and REPLY match; the types that the list shows.
    let cases = [
        (MessageTypes::NONE, 0, [true; 4], MessageTypes::ALL),
        (MessageTypes::ALL, 0, [true; 4], MessageTypes::ALL),
        (MessageTypes::ACK, 0, [true, false, false, false], MessageTypes::ACK),
        (put, 0, [false, true, false, false], put),
        (get, 0, [false, false, true, false], get),
        (MessageTypes::REPLY, 0, [false, false, false, true], MessageTypes::REPLY),
        (MessageTypes::ALL, 1 << 4, [false, true, true, false], both),
        (MessageTypes::NONE, 1 << 4 | 1 << 63, [false, true, true, false], both),
        (get | MessageTypes::ACK, 1 << 4, [false, false, true, false], get),
        (MessageTypes::ALL, 1 << 5, [false; 4], both),
        (MessageTypes::ALL, !(1 << 4), [false; 4], both),
    ];
    for (types, portals, expected, listed) in cases {
        let rule = filtered(Filter { messages: types, portals, ..Filter::EVERYTHING });
        node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
        let dropped = messages.map(|header| is_dropped(&mut node, NOW, &header));
        assert_eq!(dropped, expected, "{types:?} {portals:#x}");
        let (rule, counters) = node.shard.faults().drop_rules().next().unwrap();
        assert_eq!(rule.filter.messages, listed);
        let [ack, put, get, reply] = expected.map(u64::from);
        let count = ack + put + get + reply;
        assert_eq!(*counters, RuleCounters { count, put, ack, get, reply });
        assert_eq!(counters.fired(), count);
        node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    }
    let every_portal = filtered(Filter { portals: u64::MAX, ..Filter::EVERYTHING });
    node.shard.faults_mut().add_drop_rule(NOW, &every_portal, 1).unwrap();
    for portal in [64, 70, u32::MAX] {
        let body = Body::Put { ack_md: WireHandle::NONE, match_bits: 1, hdr_data: 0, portal, offset: 0 };
        node.assert_drop(&Header { body, ..put_header(1, 4) }, DropReason::Portal);
    }
}

#[test]
fn bits_of_message_types_are_those_of_lnet() {
    let types = [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];
    for (bit, message_type) in types.into_iter().enumerate() {
        let set = MessageTypes::from_bits(1 << bit).unwrap();
        assert!(set.contains(message_type) && !MessageTypes::NONE.contains(message_type));
        assert_eq!(types.into_iter().filter(|&other| set.contains(other)).count(), 1);
    }
    assert!(!MessageTypes::ALL.contains(MessageType::Hello));
    assert_eq!(MessageTypes::from_bits(15), Some(MessageTypes::ALL));
    assert_eq!([16, 256, u32::MAX].map(MessageTypes::from_bits), [None; 3]);
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let mut node = Node::new(config());
    let acks = Filter { messages: MessageTypes::ACK, portals: 16, ..Filter::EVERYTHING };
    let cases = [
        (
            DropRule { rate: 0, drop_all: true, ..ALL },
            "rate 0 and interval 0: exactly one other than zero is expected",
        ),
        (
            DropRule { rate: 5, interval_s: 60, random: true, ..ALL },
            "rate 5 and interval 60: exactly one other than zero is expected",
        ),
        (DropRule { rate: 5, random: true, ..ALL }, "a random rule has an interval, not a rate"),
        (filtered(acks), "portals go with PUT or GET, not with ACK and REPLY alone"),
    ];
    for (rule, text) in cases {
        let error = node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap_err();
        assert!(matches!(error, FaultError::Rule(_)));
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(node.shard.faults().drop_rules().len(), 0);
    for _ in 0..FAULT_RULES_MAX {
        node.shard.faults_mut().add_drop_rule(NOW, &ALL, 1).unwrap();
    }
    assert_eq!(node.shard.faults_mut().add_drop_rule(NOW, &ALL, 1), Err(FaultError::RulesFull));
}

#[test]
fn the_newest_rule_is_asked_first_and_the_first_that_fires_ends_the_search() {
    let (mut node, _) = node();
    let faults = node.shard.faults_mut();
    let never = DropRule { rate: 0, interval_s: u32::MAX, ..ALL };
    let puts = filtered(Filter { messages: MessageTypes::PUT, ..Filter::EVERYTHING });
    for rule in [&ALL, &never, &puts] {
        faults.add_drop_rule(NOW, rule, 1).unwrap();
    }
    assert!(is_dropped(&mut node, NOW, &put_header(1, 4)));
    assert!(is_dropped(&mut node, NOW, &get_header(1, 4)));
    let listed: Vec<_> =
        node.shard.faults().drop_rules().map(|(rule, counters)| (rule.clone(), *counters)).collect();
    let zero = RuleCounters::default();
    assert_eq!(listed[0], (puts, RuleCounters { count: 1, put: 1, ..zero }));
    assert_eq!(listed[1], (never, RuleCounters { count: 1, ..zero }), "asked about the GET alone");
    assert_eq!(listed[2], (ALL, RuleCounters { count: 1, get: 1, ..zero }));
}

#[test]
fn rules_are_deleted_by_their_ends() {
    let mut node = Node::new(config());
    let faults = node.shard.faults_mut();
    let any = Nid::ANY;
    let add = |faults: &mut lnet_core::fault::Faults| {
        for (source, destination) in [(any, any), (nid(1, 2), any), (any, nid(1, 1)), (nid(1, 2), nid(1, 1))]
        {
            let rule = filtered(Filter { source, destination, ..Filter::EVERYTHING });
            faults.add_drop_rule(NOW, &rule, 1).unwrap();
        }
    };
    let cases = [
        (nid(1, 3), any, 0),
        (nid(1, 2), any, 2),
        (any, nid(1, 1), 2),
        (nid(1, 2), nid(1, 1), 1),
        (nid(1, 1), nid(1, 2), 0),
        (any, any, 4),
    ];
    for (source, destination, deleted) in cases {
        add(faults);
        assert_eq!(faults.delete_drop_rules(&source, &destination), deleted);
        assert_eq!(faults.drop_rules().len(), 4 - deleted);
        faults.delete_drop_rules(&any, &any);
    }
}

#[test]
fn all_and_random_go_before_rate_and_interval() {
    let (mut node, _) = node();
    let mut dropped = |rule: DropRule| {
        node.shard.faults_mut().add_drop_rule(NOW, &rule, 3).unwrap();
        let dropped = (0..1000).filter(|_| is_dropped(&mut node, NOW, &put_header(1, 0))).count();
        let counters = *node.shard.faults().drop_rules().next().unwrap().1;
        assert_eq!((counters.count, counters.fired()), (1000, dropped as u64));
        node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
        dropped
    };
    assert_eq!(dropped(ALL), 1000, "rate 1 is every message");
    assert_eq!(dropped(DropRule { rate: 100, ..ALL }), 10);
    assert_eq!(dropped(DropRule { rate: 100, drop_all: true, ..ALL }), 1000);
    let timed = DropRule { rate: 0, interval_s: 3600, ..ALL };
    assert_eq!(dropped(DropRule { drop_all: true, ..timed.clone() }), 1000);
    assert_eq!(dropped(DropRule { drop_all: true, random: true, ..timed.clone() }), 1000);
    assert_eq!(dropped(timed.clone()), 0, "its moment has not come");
    for interval_s in [1, 3600, u32::MAX] {
        // 500 expected; 80 is five standard deviations.
        let count = dropped(DropRule { random: true, interval_s, ..timed.clone() });
        assert!(count.abs_diff(500) < 80, "{count} of 1000 with {interval_s} s");
    }
}

#[test]
fn one_in_two_begins_with_the_first_message_until_reset() {
    let (mut node, _) = node();
    let mut firsts = [0; 2];
    for seed in 0..64 {
        node.shard.faults_mut().add_drop_rule(NOW, &DropRule { rate: 2, ..ALL }, seed).unwrap();
        assert!(is_dropped(&mut node, NOW, &put_header(1, 0)), "seed {seed}");
        assert!(!is_dropped(&mut node, NOW, &put_header(1, 0)), "seed {seed}");
        node.shard.faults_mut().reset_drop_rules(NOW);
        assert_eq!(*node.shard.faults().drop_rules().next().unwrap().1, RuleCounters::default());
        let first = is_dropped(&mut node, NOW, &put_header(1, 0));
        assert_ne!(first, is_dropped(&mut node, NOW, &put_header(1, 0)), "one of each two");
        firsts[usize::from(first)] += 1;
        node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    }
    assert!(firsts.iter().all(|&count| count > 8), "after a reset it is either: {firsts:?}");
}

#[test]
fn a_reset_begins_a_new_time() {
    let (mut node, _) = node();
    let late = NOW + Duration::from_secs(1000);
    node.shard.faults_mut().add_drop_rule(NOW, &DropRule { rate: 0, interval_s: 10, ..ALL }, 1).unwrap();
    node.shard.faults_mut().reset_drop_rules(late);
    assert!(
        !is_dropped(&mut node, late, &put_header(1, 0)),
        "the moment is later, but for one case in 10^10"
    );
    assert!(is_dropped(&mut node, late + Duration::from_secs(10), &put_header(1, 0)));
}

#[test]
fn the_seed_says_what_happens() {
    let decisions = |seed| {
        let (mut node, _) = node();
        let rules = [
            DropRule { rate: 7, ..ALL },
            DropRule { rate: 0, interval_s: 5, ..ALL },
            DropRule { rate: 0, interval_s: 5, random: true, ..ALL },
        ];
        rules.map(|rule| {
            node.shard.faults_mut().add_drop_rule(NOW, &rule, seed).unwrap();
            let dropped: Vec<_> = (0..200)
                .map(|second| is_dropped(&mut node, NOW + Duration::from_secs(second), &put_header(1, 0)))
                .collect();
            node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
            dropped
        })
    };
    assert_eq!(decisions(1), decisions(1));
    for (one, other) in decisions(1).into_iter().zip(decisions(2)) {
        assert_ne!(one, other);
    }
}

#[test]
fn a_failed_peer_is_neither_sent_to_nor_received_from() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(9), ..node.md(10) }).unwrap();
    node.shard.faults_mut().fail_peer(&nid(1, 2), Threshold::Count(4)).unwrap();
    let error = Err(SubmitError::PeerFailed(nid(1, 2)));
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), error);
    assert_eq!(node.shard.get(NOW, &get_request(md)), error);
    assert_eq!((node.shard.usage().messages, node.shard.usage().trackers), (0, 0));
    node.assert_drop(&put_header(1, 5), DropReason::PeerFailed);
    assert_eq!(node.shard.put(NOW, &put_request(md, 3)), Ok(()), "the others are well");
    node.assert_drop(&Header { source: host(3), ..put_header(1, 5) }, DropReason::NoMatch);
    let left = FailedPeer { nid: nid(1, 2), left: Threshold::Count(1) };
    assert_eq!(node.shard.faults().failed_peers(), [left]);
    node.assert_drop(&ack_header(md), DropReason::PeerFailed);
    assert_eq!(node.shard.faults().failed_peers(), [], "used up");
    assert_eq!(node.shard.put(NOW, &put_request(md, 2)), Ok(()));
    assert_ne!(node.arrive(&ack_header(md)), Verdict::Drop);
}

#[test]
fn a_peer_fails_before_its_descriptor_is_looked_at_and_before_rules() {
    let mut node = Node::new(config());
    let stale = node.shard.bind(&node.md(1)).unwrap();
    node.shard.unlink(stale).unwrap();
    node.shard.faults_mut().fail_peer(&Nid::ANY, Threshold::Infinite).unwrap();
    node.shard.faults_mut().add_drop_rule(NOW, &ALL, 1).unwrap();
    assert_eq!(node.shard.put(NOW, &put_request(stale, 7)), Err(SubmitError::PeerFailed(nid(1, 7))));
    for _ in 0..100 {
        node.assert_drop(&put_header(1, 1), DropReason::PeerFailed);
    }
    assert_eq!(node.shard.faults().drop_rules().next().unwrap().1.count, 0);
    assert_eq!(node.shard.faults_mut().restore_peer(&Nid::ANY), 1);
    node.assert_drop(&put_header(1, 1), DropReason::Fault);
}

#[test]
fn failures_are_used_up_oldest_first_and_restored_by_nid() {
    let mut node = Node::new(config());
    let faults = node.shard.faults_mut();
    assert_eq!(faults.fail_peer(&nid(1, 2), Threshold::Count(0)), Err(FaultError::FailureCount));
    faults.fail_peer(&nid(1, 3), Threshold::Count(1)).unwrap();
    faults.fail_peer(&Nid::ANY, Threshold::Count(2)).unwrap();
    faults.fail_peer(&nid(1, 2), Threshold::Count(1)).unwrap();
    for _ in 0..2 {
        node.assert_drop(&put_header(1, 1), DropReason::PeerFailed);
    }
    let left = |host| FailedPeer { nid: nid(1, host), left: Threshold::Count(1) };
    assert_eq!(node.shard.faults().failed_peers(), [left(3), left(2)], "the wildcard was the older one");
    node.assert_drop(&put_header(1, 1), DropReason::PeerFailed);
    node.assert_drop(&put_header(1, 1), DropReason::NoMatch);
    let faults = node.shard.faults_mut();
    assert_eq!(faults.restore_peer(&nid(1, 2)), 0);
    assert_eq!(faults.restore_peer(&nid(1, 3)), 1);
    for _ in 0..FAILED_PEERS_MAX {
        faults.fail_peer(&nid(1, 2), Threshold::Infinite).unwrap();
    }
    assert_eq!(faults.fail_peer(&nid(1, 2), Threshold::Infinite), Err(FaultError::FailedPeersFull));
    assert_eq!(faults.restore_peer(&Nid::ANY), FAILED_PEERS_MAX);
}

#[test]
fn a_reply_can_be_lost_as_well() {
    let (mut node, md) = node();
    let rule = filtered(Filter { messages: MessageTypes::REPLY, ..Filter::EVERYTHING });
    node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
    node.assert_drop(&reply_header(md, 9), DropReason::Fault);
    let body = Body::Reply { md: FOREIGN };
    node.assert_drop(&Header { body, ..put_header(1, 9) }, DropReason::Fault);
}
