//! A node that talks to itself.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::fault::DelayRule;
use lnet_core::lnd::{Cause, NiId, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_core::stats::DropReason;
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_model::fault::{DropRule, Filter, HealthError};
use lnet_wire::{Header, Nid, ProcessId};

use crate::common::{MESSAGE_TIMEOUT, NOW, Node, acked_put_header, config, host, local_ni, nid, put_header};
use crate::faults::ALL;

const LO: NiId = NiId(2);

/// Host 1 with NIDs on two nets, of which one has a single credit, and the loopback NI.
fn node() -> Node {
    let nis = vec![local_ni(nid(1, 1), 1, 1), local_ni(nid(2, 1), 8, 4), LocalNi::loopback(MESSAGE_TIMEOUT)];
    let limits = Limits { nis: 3, peers: 4, ..config().limits };
    Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), limits, ..config() })
}

fn process(nid: Nid) -> ProcessId {
    ProcessId::lustre(nid)
}

/// Carries everything that the node sends to itself.
fn carry(node: &mut Node) -> Vec<Header> {
    let mut headers = Vec::new();
    while let Some(Transmit { tx, ni, header, .. }) =
        node.shard.poll_transmit(NOW, LO).map(|lent| *lent.transmit)
    {
        assert_eq!(ni, LO);
        if node.shard.header(NOW, LO, &header.source.nid, RxId(0), &header) != Verdict::Drop {
            node.shard.received(NOW, RxId(0), Status::Ok);
        }
        node.shard.sent(NOW, tx, Status::Ok);
        headers.push(header);
    }
    headers
}

fn kinds(events: &[Event]) -> Vec<(EventKind, Status)> {
    events.iter().map(|event| (event.kind(), event.status())).collect()
}

#[test]
fn puts_and_gets_to_oneself_are_answered() {
    for (target, source) in [(Nid::LO, Nid::LO), (nid(1, 1), nid(1, 1)), (nid(2, 1), nid(2, 1))] {
        let mut node = node();
        let md = node.md(10);
        node.post(5, &MdSpec { options: MdOptions::PUT, ..md });
        node.post(6, &MdSpec { options: MdOptions::GET, ..md });
        let bound = node.shard.bind(&MdSpec { threshold: Threshold::Count(4), ..md }).unwrap();
        let (self_nid, target) = (None, process(target));
        let put = PutRequest {
            md: bound,
            part: None,
            ack: true,
            self_nid,
            target,
            portal: 4,
            match_bits: 5,
            offset: 0,
            hdr_data: 7,
        };
        node.shard.put(NOW, &put).unwrap();
        let headers = carry(&mut node);
        assert_eq!(headers.len(), 2);
        for header in &headers {
            assert_eq!((header.source, header.destination), (process(source), target));
        }
        let events = node.events();
        let ok = Status::Ok;
        assert_eq!(kinds(&events), [(EventKind::Put, ok), (EventKind::Send, ok), (EventKind::Ack, ok)]);
        assert_eq!(events[0].origin().map(|origin| origin.source), Some(process(source).nid));
        assert!(matches!(events[0], Event::Put { hdr_data: 7, .. }));
        let get = GetRequest { md: bound, part: None, self_nid, target, portal: 4, match_bits: 6, offset: 0 };
        node.shard.get(NOW, &get).unwrap();
        assert_eq!(carry(&mut node).len(), 2);
        let events = node.events();
        assert_eq!(kinds(&events), [(EventKind::Send, ok), (EventKind::Reply, ok), (EventKind::Get, ok)]);
        assert!(events[1].unlinked());
        assert_eq!(node.shard.usage().messages, 0);
    }
}

#[test]
fn the_own_nid_that_was_asked_for_is_the_source() {
    let mut node = node();
    let md = node.md(0);
    let bound = node.shard.bind(&MdSpec { threshold: Threshold::Infinite, ..md }).unwrap();
    let mut put = |target, self_nid| {
        let put = PutRequest {
            md: bound,
            part: None,
            ack: false,
            self_nid,
            target: process(target),
            portal: 4,
            match_bits: 5,
            offset: 0,
            hdr_data: 0,
        };
        node.shard.put(NOW, &put).unwrap();
        node.shard.poll_transmit(NOW, LO).map(|lent| lent.transmit.header.source.nid)
    };
    assert_eq!(put(nid(1, 1), Some(nid(1, 1))), Some(nid(1, 1)));
    assert_eq!(put(Nid::LO, Some(nid(1, 1))), Some(Nid::LO));
    assert_eq!(put(nid(1, 1), Some(nid(2, 1))), None, "on another net");
    let events = node.events();
    assert_eq!(kinds(&events), [(EventKind::Send, Status::NeverSent(Cause::Unreachable))]);
}

#[test]
fn neither_credits_nor_peers_bar_the_path_to_oneself() {
    let mut node = node();
    let md = node.md(0);
    // One peer besides the node itself, busy: it does not answer and its credit is out.
    let bound = node.shard.bind(&MdSpec { threshold: Threshold::Infinite, ..md }).unwrap();
    let put = |target| PutRequest {
        md: bound,
        part: None,
        ack: false,
        self_nid: None,
        target: process(target),
        portal: 4,
        match_bits: 5,
        offset: 0,
        hdr_data: 0,
    };
    node.shard.put(NOW, &put(nid(1, 2))).unwrap();
    assert_eq!(node.shard.put(NOW, &put(nid(1, 3))), Err(SubmitError::PeersFull));
    assert_eq!(node.shard.ni_credits(NiId(0)), Some(0));
    let _ = node.shard.poll_transmit(NOW, NiId(0)).unwrap();
    let mut sent = 0;
    while node.shard.put(NOW, &put([nid(1, 1), nid(2, 1), Nid::LO][sent % 3])).is_ok() {
        sent += 1;
        let Some(transmit) = node.shard.poll_transmit(NOW, LO).map(|lent| *lent.transmit) else {
            panic!("{sent} wait for a credit")
        };
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        node.events();
        if sent == 100 {
            return;
        }
    }
    panic!("{sent} were sent");
}

/// A message to the node itself holds no credits and no LND transmits it, which is where those rules act. It
/// is received, though.
#[test]
fn rules_act_on_what_a_node_sends_to_itself_where_it_arrives() {
    let everything = Filter::EVERYTHING;
    let delay = DelayRule { filter: everything, rate: 1, interval: Duration::ZERO, latency: MESSAGE_TIMEOUT };
    let failure = DropRule { health_errors: vec![HealthError::Random], ..ALL };
    for target in [Nid::LO, nid(1, 1)] {
        let mut node = node();
        let md = node.md(10);
        node.post(5, &MdSpec { options: MdOptions::PUT, ..md });
        let bound = node.shard.bind(&MdSpec { threshold: Threshold::Count(3), ..md }).unwrap();
        let target = process(target);
        let (self_nid, portal, match_bits) = (None, 4, 5);
        let put = PutRequest {
            md: bound,
            part: None,
            ack: false,
            self_nid,
            target,
            portal,
            match_bits,
            offset: 0,
            hdr_data: 0,
        };
        node.shard.faults_mut().add_drop_rule(NOW, &failure, 1).unwrap();
        node.shard.put(NOW, &put).unwrap();
        assert_eq!(carry(&mut node).len(), 1, "it is not failed");
        let ok = Status::Ok;
        assert_eq!(kinds(&node.events()), [(EventKind::Put, ok), (EventKind::Send, ok)]);
        assert_eq!(node.shard.faults().drop_rules().next().unwrap().1.count, 0);

        node.shard.faults_mut().add_delay_rule(NOW, &delay, 1).unwrap();
        node.shard.put(NOW, &put).unwrap();
        let transmit = *node.shard.poll_transmit(NOW, LO).expect("it is not held up").transmit;
        assert_eq!(
            node.shard.header(NOW, LO, &transmit.header.source.nid, RxId(0), &transmit.header),
            Verdict::Delay
        );
        node.shard.received(NOW, RxId(0), Status::Unknown(Cause::Reset));
        node.shard.sent(NOW, transmit.tx, Status::Ok);

        node.shard.faults_mut().add_drop_rule(NOW, &ALL, 1).unwrap();
        node.shard.put(NOW, &put).unwrap();
        assert_eq!(carry(&mut node).len(), 1);
        assert_eq!(node.shard.counters().drops(DropReason::Fault).messages, 1);
    }
}

#[test]
fn nobody_else_is_this_node() {
    let mut node = node();
    let md = node.md(10);
    node.post(5, &MdSpec { options: MdOptions::PUT, ..md });
    for header in [put_header(5, 0), acked_put_header(5, 0)] {
        node.assert_drop(&Header { source: process(Nid::LO), ..header }, DropReason::NoSource);
        node.assert_drop(&Header { destination: process(Nid::LO), ..header }, DropReason::NotLocal);
    }
    let foreign = Header { destination: host(9), ..put_header(5, 0) };
    assert_eq!(node.shard.header(NOW, LO, &foreign.source.nid, RxId(0), &foreign), Verdict::Drop);
    assert_eq!(node.shard.counters().drops(DropReason::NotLocal).messages, 3);
}

/// What a node has sent to itself by an NI is not traffic with a peer once the NI has gone.
#[test]
fn a_nid_that_is_no_longer_own_has_had_no_traffic() {
    let mut node = node();
    let md = node.md(10);
    node.post(5, &MdSpec { options: MdOptions::PUT, ..md });
    let bound = node.shard.bind(&md).unwrap();
    let put =
        PutRequest { target: process(nid(1, 1)), match_bits: 5, ..crate::common::put_request(bound, 1) };
    node.shard.put(NOW, &put).unwrap();
    carry(&mut node);
    let counted = |node: &Node| {
        let peers = node.shard.peers().filter(|peer| peer.nid == nid(1, 1));
        peers.map(|peer| (peer.is_own, peer.counters.sent.total())).collect::<Vec<_>>()
    };
    assert!(matches!(counted(&node)[..], [(true, 1..)]), "{:?}", counted(&node));
    let slots = vec![None, Some(local_ni(nid(2, 1), 8, 4)), Some(LocalNi::loopback(MESSAGE_TIMEOUT))];
    node.shard.update(NOW, Arc::new(Topology::with_slots(slots).with_generation(1)));
    assert_eq!(counted(&node), [(false, 0)]);
}
