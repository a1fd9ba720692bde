//! Counters of NIs and peers, as `net show` and `peer show` print them.

use std::sync::Arc;

use lnet_core::ShardConfig;
use lnet_core::health::HealthStatus;
use lnet_core::lnd::{Cause, NiId, Path, RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{PeerRecord, PutRequest};
use lnet_core::stats::{Durations, Histogram, NiCounters, NiLatencies, Statistics};
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_wire::{Header, MessageType};

use crate::common::{
    NI, Node, ack_header, acked_put_header, config, get_header, get_request, host, local_ni, nid, put_header,
    put_request, reply_header,
};

const MICROSECOND: u64 = 1000;

fn at(microseconds: u64) -> Instant {
    Instant(microseconds * MICROSECOND)
}

fn node() -> Node {
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)]);
    Node::new(ShardConfig { topology: Arc::new(topology), ..config() })
}

fn peer(node: &Node, host: u8) -> Option<PeerRecord> {
    node.shard.peers().find(|peer| peer.nid == nid(1, host))
}

fn local(node: &Node, ni: u16) -> NiCounters {
    node.shard.ni_usage(NiId(ni)).unwrap().counters
}

fn sent(node: &mut Node, microseconds: u64, status: Status) {
    let transmit = node.transmit().unwrap();
    node.shard.sent(at(microseconds), transmit.tx, status);
}

fn once(microseconds: u64) -> Durations {
    let ns = microseconds * MICROSECOND;
    Durations { samples: 1, min_ns: ns, max_ns: ns, total_ns: ns }
}

fn arrive(node: &mut Node, microseconds: u64, header: &Header) {
    assert_ne!(node.shard.header(at(microseconds), NI, &header.source.nid, RxId(0), header), Verdict::Drop);
    node.shard.received(at(microseconds), RxId(0), Status::Ok);
}

#[test]
fn requests_count_for_their_ni_and_their_peer() {
    let mut node = node();
    let spec = MdSpec { threshold: Threshold::Count(2), ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.put(at(5), &PutRequest { ack: true, ..put_request(md, 2) }).unwrap();
    assert_eq!(
        peer(&node, 2).map(|peer| (peer.queued_bytes, peer.credits, peer.reference_count)),
        Some((82, 3, 1))
    );
    sent(&mut node, 25, Status::Ok);
    arrive(&mut node, 105, &ack_header(md));
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(at(200), &get_request(md)).unwrap();
    sent(&mut node, 210, Status::Ok);
    arrive(&mut node, 500, &reply_header(md, 10));

    let counters = local(&node, 0);
    let of = |message_type| (counters.sent.of(message_type), counters.received.of(message_type));
    let types = [MessageType::Put, MessageType::Get, MessageType::Reply, MessageType::Ack];
    assert_eq!(types.map(of), [(1, 0), (1, 0), (0, 1), (0, 1)]);
    assert_eq!((counters.sent_bytes, counters.received_bytes), (10, 10), "a PUT and a REPLY");
    assert_eq!(counters.put_egress, once(20));
    assert_eq!(counters.put_ack, once(100));
    assert_eq!(counters.get_rtt, once(300));
    let peer = peer(&node, 2).unwrap();
    assert_eq!(peer.counters, counters, "there is but one peer");
    assert_eq!((peer.credits_max, peer.credits, peer.credits_min), (4, 4, 3));
    assert_eq!((peer.queued_bytes, peer.reference_count, peer.is_own), (0, 0, false));
    assert_eq!(local(&node, 1), NiCounters::default());
    let ni = node.shard.ni_usage(NI).unwrap();
    assert_eq!((ni.credits_max, ni.credits, ni.credits_min, ni.counters), (8, 8, 7, counters));
    let only = |histogram: &Histogram| {
        let mut filled = histogram.buckets().filter(|(_, count)| *count > 0);
        (filled.next(), filled.next())
    };
    let NiLatencies { put_egress, put_ack, get_rtt } = &ni.latencies;
    assert_eq!(
        [put_egress, put_ack, get_rtt].map(only),
        [15, 17, 19].map(|bits| (Some((Some(1 << bits), 1)), None)),
        "20, 100 and 300 microseconds"
    );
    assert_eq!(node.shard.ni_usage(NiId(1)).unwrap().latencies, NiLatencies::default());
    assert_eq!(node.shard.ni_usage(NiId(2)), None);
    node.shard.reset_counters();
    assert_eq!(node.shard.ni_usage(NI).unwrap().latencies, NiLatencies::default());
}

#[test]
fn a_request_that_is_not_tracked_has_no_round_trip() {
    let mut node = node();
    let options = MdOptions::NO_TRACK_RESPONSE;
    let spec = MdSpec { threshold: Threshold::Count(2), options, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    node.shard.get(at(0), &get_request(md)).unwrap();
    sent(&mut node, 10, Status::Ok);
    arrive(&mut node, 20, &reply_header(md, 10));
    assert_eq!(local(&node, 0).get_rtt.samples, 0);
    assert_eq!(local(&node, 0).received.of(MessageType::Reply), 1);
}

#[test]
fn who_sends_here_becomes_known() {
    let mut node = node();
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { threshold: Threshold::Infinite, options, event_queue: None, ..node.md(10) };
    node.post(1, &spec);
    let from = |header: Header, last| Header { source: host(last), ..header };
    // Hosts 2 and 66 look alike to what finds peers without hashing.
    for last in [2, 66, 2, 66] {
        arrive(&mut node, 1, &from(put_header(1, 4), last));
    }
    arrive(&mut node, 1, &from(acked_put_header(1, 4), 2));
    arrive(&mut node, 1, &from(get_header(1, 4), 66));
    sent(&mut node, 2, Status::Ok);
    sent(&mut node, 2, Status::Ok);
    for (last, expected) in [(2, (3, 0, 1, 0, 0, 0)), (66, (2, 1, 0, 1, 0, 0))] {
        let NiCounters { received, sent, .. } = peer(&node, last).unwrap().counters;
        let counted = (
            received.of(MessageType::Put),
            received.of(MessageType::Get),
            sent.of(MessageType::Put),
            sent.of(MessageType::Get),
            sent.of(MessageType::Ack),
            sent.of(MessageType::Reply),
        );
        assert_eq!(counted, expected, "host {last}");
    }
    assert_eq!(node.shard.usage().peers, 2);
}

/// What two kernel nodes (Lustre 2.17.57) print of each other, `lnetctl peer show -v 4`, after one of them
/// has pinged the other (a GET) and pushed its NIDs to it (an acknowledged PUT).
#[test]
fn sent_responses_count_as_kernel_nodes_print_them() {
    const TYPES: [MessageType; 4] =
        [MessageType::Put, MessageType::Get, MessageType::Reply, MessageType::Ack];
    let of = |node: &Node| {
        let counters = peer(node, 2).unwrap().counters;
        (TYPES.map(|kind| counters.sent.of(kind)), TYPES.map(|kind| counters.received.of(kind)))
    };
    let mut pinged = node();
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { threshold: Threshold::Infinite, options, event_queue: None, ..pinged.md(10) };
    pinged.post(1, &spec);
    arrive(&mut pinged, 1, &get_header(1, 4));
    sent(&mut pinged, 2, Status::Ok);
    assert_eq!(of(&pinged), ([0, 1, 0, 0], [0, 1, 0, 0]), "sent_stats get: 1, received_stats get: 1");
    pinged.shard.reset_counters();
    arrive(&mut pinged, 3, &acked_put_header(1, 4));
    sent(&mut pinged, 4, Status::Ok);
    assert_eq!(of(&pinged), ([1, 0, 0, 0], [1, 0, 0, 0]), "sent_stats put: 1, received_stats put: 1");
    assert_eq!(peer(&pinged, 2).unwrap().counters.put_egress, Durations::default(), "put_egress_samples: 0");
}

/// Messages that had ended well and are lost with what carried them: a failure of the path, as one message
/// that was being sent would be, and no message that has failed.
#[test]
fn messages_that_are_lost_by_a_path_count_once() {
    let mut node = node();
    let md = node.shard.bind(&node.md(10)).unwrap();
    node.shard.put(at(0), &put_request(md, 2)).unwrap();
    sent(&mut node, 10, Status::Ok);
    let path = |ni| Path { ni: NiId(ni), peer: nid(1, 2) };
    node.shard.lost(&path(0), Cause::Reset);
    let counts = |counters: &NiCounters| HealthStatus::ALL.map(|status| counters.failed.of(status));
    let expected = HealthStatus::ALL.map(|status| u64::from(status == HealthStatus::RemoteError));
    assert_eq!(counts(&local(&node, 0)), expected);
    assert_eq!(counts(&peer(&node, 2).unwrap().counters), expected);
    let all = node.shard.counters();
    assert_eq!((HealthStatus::ALL.map(|status| all.failed.of(status)), all.send_failures), (expected, 0));
    let note = node.shard.poll_health().unwrap();
    assert_eq!((note.nid, note.failures, node.shard.poll_health()), (nid(1, 2), 1, None));
    // A peer that nothing was sent to, by an NI that is not there.
    node.shard.lost(&Path { peer: nid(1, 9), ..path(1) }, Cause::System(110));
    node.shard.lost(&path(7), Cause::Reset);
    assert_eq!(local(&node, 1).failed.of(HealthStatus::RemoteTimeout), 1);
    assert!(peer(&node, 9).is_none());
}

#[test]
fn drops_and_failures_count_too() {
    let mut node = node();
    assert_eq!(
        node.shard.header(at(0), NI, &put_header(1, 4).source.nid, RxId(0), &put_header(1, 4)),
        Verdict::Drop
    );
    assert_eq!(local(&node, 0).dropped.of(MessageType::Put), 1);
    assert_eq!(peer(&node, 2), None, "rubbish makes nobody known");
    for (status, health) in [
        (Status::NeverSent(Cause::Device), HealthStatus::LocalDropped),
        (Status::Unknown(Cause::Timeout), HealthStatus::NetworkTimeout),
    ] {
        let md = node.shard.bind(&node.md(10)).unwrap();
        node.shard.put(at(0), &put_request(md, 2)).unwrap();
        sent(&mut node, 1, status);
        assert_eq!(local(&node, 0).failed.of(health), 1);
        assert_eq!(peer(&node, 2).unwrap().counters.failed.of(health), 1);
        assert_eq!(node.shard.counters().failed.of(health), 1);
    }
    assert_eq!(local(&node, 0).sent.total(), 0);
    assert_eq!(
        node.shard.header(at(0), NI, &put_header(1, 4).source.nid, RxId(0), &put_header(1, 4)),
        Verdict::Drop
    );
    assert_eq!(peer(&node, 2).unwrap().counters.dropped.of(MessageType::Put), 1);

    let mut statistics = Statistics::default();
    statistics.add(node.shard.counters(), &node.shard.usage());
    statistics.add(node.shard.counters(), &node.shard.usage());
    assert_eq!((statistics.dropped.messages, statistics.dropped.bytes), (4, 16));
    assert_eq!((statistics.sent.messages, statistics.messages, statistics.messages_max), (0, 0, 2));
    assert_eq!(statistics.failed.of(HealthStatus::LocalDropped), 2);

    node.shard.reset_counters();
    assert_eq!(local(&node, 0), NiCounters::default());
    assert_eq!(peer(&node, 2).unwrap().counters, NiCounters::default());
    assert_eq!(node.shard.counters().dropped().messages, 0);
}
