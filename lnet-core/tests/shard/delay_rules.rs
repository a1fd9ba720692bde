//! Delay rules, and drop rules that fail sends.

use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::fault::{DelayRule, FAULT_RULES_MAX, FaultError};
use lnet_core::health::HealthStatus;
use lnet_core::lnd::{Cause, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::stats::{DelayReason, DropReason};
use lnet_core::time::Instant;
use lnet_model::fault::{DropRule, Filter, HealthError, MessageTypes};
use lnet_wire::{MessageType, Nid};

use crate::common::{NI, NOW, Node, config, nid, put_header, put_request};
use crate::faults::ALL;

const SECOND: Duration = Duration::from_secs(1);

/// Holds every message up for a second.
const EVERY: DelayRule =
    DelayRule { filter: Filter::EVERYTHING, rate: 1, interval: Duration::ZERO, latency: SECOND };

/// Takes any PUTs with match bits 1.
fn node() -> Node {
    let mut node = Node::new(config());
    let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { threshold: Threshold::Infinite, event_queue: None, options, ..node.md(100) };
    node.post(1, &spec);
    node
}

fn add(node: &mut Node, rule: DelayRule) {
    node.shard.faults_mut().add_delay_rule(NOW, &rule, 1).unwrap();
}

fn at(seconds: u64) -> Instant {
    NOW + seconds as u32 * SECOND
}

fn resumed(node: &mut Node) -> Option<(u32, bool)> {
    node.shard.poll_resume().map(|(_, RxId(rx), verdict)| (rx, verdict != Verdict::Drop))
}

#[test]
fn what_arrives_is_delayed_and_matched_then() {
    let mut node = node();
    add(&mut node, EVERY);
    for (rx, match_bits) in [(0, 1), (1, 2)] {
        assert_eq!(
            node.shard.header(
                NOW,
                NI,
                &put_header(match_bits, 4).source.nid,
                RxId(rx),
                &put_header(match_bits, 4)
            ),
            Verdict::Delay
        );
    }
    assert_eq!(node.shard.counters().delays(DelayReason::Fault), 2);
    assert_eq!(node.shard.poll_timeout(), Some(at(1)));
    node.shard.handle_timeout(Instant(at(1).0 - 1));
    assert_eq!(node.shard.poll_resume(), None);
    node.shard.handle_timeout(at(1));
    assert_eq!([resumed(&mut node), resumed(&mut node)], [Some((0, true)), Some((1, false))]);
    assert_eq!(node.shard.counters().drops(DropReason::NoMatch).messages, 1);
    assert_eq!(node.shard.poll_timeout(), None);
    let (rule, counters) = node.shard.faults().delay_rules().next().unwrap();
    assert_eq!((*rule, counters.count, counters.put, counters.fired()), (EVERY, 2, 2, 2));
}

#[test]
fn rules_of_several_latencies_release_in_the_order_of_time() {
    let mut node = node();
    for (source, seconds) in [(2, 3), (3, 1), (4, 2)] {
        let filter = Filter { source: nid(1, source), ..Filter::EVERYTHING };
        add(&mut node, DelayRule { filter, latency: seconds * SECOND, ..EVERY });
    }
    for source in 2..5 {
        let header = lnet_wire::Header { source: crate::common::host(source), ..put_header(1, 4) };
        assert_eq!(
            node.shard.header(NOW, NI, &header.source.nid, RxId(source.into()), &header),
            Verdict::Delay
        );
    }
    for (second, rx) in [(1, 3), (2, 4), (3, 2)] {
        assert_eq!(node.shard.poll_timeout(), Some(at(second)));
        node.shard.handle_timeout(at(second));
        assert_eq!((resumed(&mut node), resumed(&mut node)), (Some((rx, true)), None));
        node.shard.received(NOW, RxId(rx), Status::Ok);
    }
}

#[test]
fn what_is_sent_is_delayed_with_its_credits() {
    let mut node = node();
    add(&mut node, DelayRule { rate: 2, ..EVERY });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(3), ..node.md(1) }).unwrap();
    for _ in 0..3 {
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
    }
    assert_eq!(node.shard.ni_credits(NI), Some(5), "all hold their credits");
    let passed = std::iter::from_fn(|| node.transmit()).count();
    assert!(passed == 1 || passed == 2, "of three messages {passed} passed: one of two is held up");
    assert_eq!(node.shard.poll_timeout(), Some(at(1)));
    node.shard.handle_timeout(at(1));
    assert_eq!(std::iter::from_fn(|| node.transmit()).count(), 3 - passed);
    assert_eq!(node.shard.poll_timeout(), None);
}

#[test]
fn deleting_a_rule_releases_its_messages() {
    let mut node = node();
    let named = |source, destination| Filter { source, destination, ..Filter::EVERYTHING };
    add(&mut node, DelayRule { filter: named(nid(1, 2), nid(1, 1)), ..EVERY });
    add(&mut node, DelayRule { filter: named(nid(1, 1), nid(1, 3)), ..EVERY });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(3), ..node.md(1) }).unwrap();
    node.shard.put(NOW, &put_request(md, 3)).unwrap();
    assert_eq!(
        node.shard.header(NOW, NI, &put_header(1, 4).source.nid, RxId(0), &put_header(1, 4)),
        Verdict::Delay
    );
    assert_eq!(node.shard.delete_delay_rules(NOW, &nid(1, 9), &Nid::ANY), 0);
    assert_eq!((node.transmit(), node.shard.poll_resume()), (None, None));
    assert_eq!(node.shard.delete_delay_rules(NOW, &nid(1, 2), &Nid::ANY), 1);
    assert_eq!(resumed(&mut node), Some((0, true)));
    assert_eq!(node.transmit(), None, "that is the other rule's");
    assert_eq!(node.shard.delete_delay_rules(NOW, &Nid::ANY, &Nid::ANY), 1);
    assert!(node.transmit().is_some());
    assert_eq!(node.shard.poll_timeout(), None);
}

#[test]
fn a_delayed_message_may_be_given_up() {
    let mut node = node();
    add(&mut node, EVERY);
    assert_eq!(
        node.shard.header(NOW, NI, &put_header(1, 4).source.nid, RxId(0), &put_header(1, 4)),
        Verdict::Delay
    );
    node.shard.received(NOW, RxId(0), Status::Unknown(Cause::Reset));
    assert_eq!((node.shard.poll_timeout(), node.shard.usage().delayed), (None, 0));
}

#[test]
fn delay_rules_must_make_sense() {
    let mut node = node();
    let faults = node.shard.faults_mut();
    let refused =
        |faults: &mut lnet_core::fault::Faults, rule| faults.add_delay_rule(NOW, &rule, 1).unwrap_err();
    assert_eq!(refused(faults, DelayRule { latency: Duration::ZERO, ..EVERY }), FaultError::Latency);
    let both = refused(faults, DelayRule { interval: SECOND, ..EVERY });
    assert_eq!(both.to_string(), "rate 1 and interval 1: exactly one other than zero is expected");
    let filter = Filter { messages: MessageTypes::ACK, portals: 1, ..Filter::EVERYTHING };
    assert!(refused(faults, DelayRule { filter, ..EVERY }).to_string().starts_with("portals go with"));
    for _ in 0..FAULT_RULES_MAX {
        faults.add_delay_rule(NOW, &EVERY, 1).unwrap();
    }
    assert_eq!(refused(faults, EVERY), FaultError::RulesFull);
}

#[test]
fn a_rule_that_names_an_ni_delays_and_fails_nothing() {
    let mut node = node();
    let filter = Filter { local_nid: nid(1, 1), ..Filter::EVERYTHING };
    add(&mut node, DelayRule { filter, ..EVERY });
    let health_errors = vec![HealthError::Random];
    node.shard.faults_mut().add_drop_rule(NOW, &DropRule { filter, health_errors, ..ALL }, 1).unwrap();
    assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    let md = node.shard.bind(&node.md(1)).unwrap();
    node.shard.put(NOW, &put_request(md, 2)).unwrap();
    assert!(node.transmit().is_some());
}

#[test]
fn a_rule_with_a_health_mask_fails_what_is_sent_and_nothing_else() {
    let mut node = node();
    for (error, status) in HealthError::ALL.into_iter().zip(HealthStatus::ALL) {
        let cause = Cause::Simulated(status);
        let is_unsent = status.name().starts_with("local") || status == HealthStatus::RemoteDropped;
        let expected = if is_unsent { Status::NeverSent(cause) } else { Status::Unknown(cause) };
        let rule = DropRule { health_errors: vec![error], ..ALL };
        node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
        let md = node.shard.bind(&node.md(3)).unwrap();
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
        assert_eq!(node.transmit(), None);
        let event = node.event();
        assert_eq!((event.kind(), event.status(), event.unlinked()), (EventKind::Send, expected, true));
        assert!(matches!(event, Event::Send { message_type: MessageType::Put, .. }));
        assert_eq!((node.shard.ni_credits(NI), node.shard.peer_credits(&nid(1, 2))), (Some(8), Some(4)));
        let peer = node.shard.peers().find(|peer| peer.nid == nid(1, 2)).unwrap();
        let ni = node.shard.ni_usage(NI).unwrap().counters;
        for counted in [node.shard.counters().failed, ni.failed, peer.counters.failed] {
            let expected = HealthStatus::ALL.map(|other| u64::from(other <= status));
            assert_eq!(HealthStatus::ALL.map(|other| counted.of(other)), expected, "{status}");
        }
        assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop, "what arrives is left alone");
        assert_eq!(node.shard.faults().drop_rules().next().unwrap().1.fired(), 1);
        node.shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    }
    assert_eq!(node.shard.counters().send_failures, 10);
}

#[test]
fn many_waiting_sends_fail_one_after_the_other() {
    let mut node = node();
    let spec = MdSpec { threshold: Threshold::Count(30), ..node.md(3) };
    let md = node.shard.bind(&spec).unwrap();
    for _ in 0..30 {
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
    }
    let rule = DropRule { health_errors: vec![HealthError::Random], ..ALL };
    node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
    // Four have their credits; the end of the first lets the others have theirs, and fail.
    let first = node.transmit().unwrap();
    node.shard.sent(NOW, first.tx, Status::Ok);
    let events = node.events();
    assert_eq!(events.iter().filter(|event| event.status() != Status::Ok).count(), 26);
    assert_eq!(std::iter::from_fn(|| node.transmit()).count(), 3);
}
