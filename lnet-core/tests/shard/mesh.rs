//! Shards that lend each other spans, step by step.

use std::sync::Arc;

use lnet_core::event::EventKind;
use lnet_core::handle::{MdHandle, ShardId};
use lnet_core::lnd::{Cause, PING_MATCH_BITS, PING_PORTAL, RxId, Span, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::stats::DropReason;
use lnet_core::topology::{Forwarding, Steering, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::steer::{PORTALS, Policy};
use lnet_wire::{Body, Header};

use crate::common::{
    NI, NOW, Node, ack_header, acked_put_header, config, entry, from, get_header, get_request, host,
    local_ni, nid, poll_mesh, put_header, put_request, reply_header,
};
use crate::pair::Pair;

/// The shards of host 1; portal 4 has this policy.
pub(crate) struct Shards(pub(crate) Vec<Node>);

impl Shards {
    pub(crate) fn new(count: u8, policy: Policy) -> Self {
        Self::with_limits(count, policy, config().limits)
    }

    pub(crate) fn with_limits(count: u8, policy: Policy, limits: Limits) -> Self {
        let mut policies = [Policy::Pin(0).pack().unwrap(); PORTALS];
        policies[4] = policy.pack().unwrap();
        let topology = Topology::new(vec![local_ni(nid(1, 1), 64, 64)]);
        let topology = Arc::new(topology.with_steering(Steering { shard_count: count, policies }));
        let node = |shard| {
            let (topology, shard) = (Arc::clone(&topology), ShardId(shard));
            Node::new(ShardConfig { topology, shard, shard_count: count, limits, ..config() })
        };
        Self((0..count).map(node).collect())
    }

    pub(crate) fn header(&mut self, shard: usize, rx: u32, header: &Header) -> Verdict {
        self.0[shard].shard.header(NOW, NI, &header.source.nid, RxId(rx), header)
    }

    pub(crate) fn received(&mut self, shard: usize, rx: u32, status: Status) {
        self.0[shard].shard.received(NOW, RxId(rx), status);
    }

    /// A shard says something to this sibling, which hears it.
    #[track_caller]
    pub(crate) fn carry(&mut self, from: u8, to: u8) -> MeshMessage {
        let message = self.0[usize::from(from)].shard.poll_mesh_to(ShardId(to));
        let message = message.expect("nothing is said");
        self.0[usize::from(to)].shard.handle_mesh(NOW, ShardId(from), message);
        message
    }

    /// A question goes this way and an answer comes back.
    #[track_caller]
    pub(crate) fn refused(&mut self, by: u8, from: u8) -> DropReason {
        assert!(matches!(self.carry(from, by), MeshMessage::Route { .. }));
        let MeshMessage::Refuse { reason, .. } = self.carry(by, from) else { panic!("not refused") };
        reason
    }

    #[track_caller]
    pub(crate) fn lent(&mut self, by: u8, from: u8) -> Span {
        assert!(matches!(self.carry(from, by), MeshMessage::Route { .. }));
        let MeshMessage::Lend { span, .. } = self.carry(by, from) else { panic!("not lent") };
        span
    }

    pub(crate) fn resume(&mut self, shard: usize) -> Option<(u32, Verdict)> {
        self.0[shard].shard.poll_resume().map(|(_, RxId(rx), verdict)| (rx, verdict))
    }

    /// Nothing is left to say, and no message waits.
    #[track_caller]
    fn assert_quiet(&mut self) {
        for node in &mut self.0 {
            assert_eq!((poll_mesh(&mut node.shard), node.shard.poll_resume()), (None, None));
            assert_eq!(node.shard.usage().delayed, 0);
        }
    }

    /// So many messages wait on shard 0, and nothing is left to say.
    #[track_caller]
    pub(crate) fn assert_delayed(&mut self, count: u32) {
        assert_eq!(self.0[0].shard.usage().delayed, count);
        self.0.iter_mut().for_each(|node| assert_eq!(poll_mesh(&mut node.shard), None));
    }

    pub(crate) fn post(&mut self, shard: usize, match_bits: u64, spec: &MdSpec) -> MdHandle {
        self.0[shard].post(match_bits, spec).1
    }

    pub(crate) fn spec(&self, shard: usize, options: MdOptions) -> MdSpec {
        MdSpec { options, ..self.0[shard].md(100) }
    }
}

const LOST: Status = Status::Unknown(Cause::Reset);

#[test]
fn a_header_goes_to_the_shard_where_it_belongs() {
    let mut shards = Shards::new(3, Policy::Pin(2));
    let spec = shards.spec(2, MdOptions::PUT);
    let md = shards.post(2, 1, &spec);
    assert_eq!(shards.header(0, 5, &acked_put_header(1, 4)), Verdict::Delay);
    let span = shards.lent(2, 0);
    assert_eq!(span, Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 });
    assert_eq!(md.0.shard(), ShardId(2));
    assert_eq!(shards.resume(0), Some((5, Verdict::Deliver(span))));
    assert!(shards.0[2].events().is_empty(), "the payload is not there yet");
    shards.received(0, 5, Status::Ok);
    assert!(matches!(shards.carry(0, 2), MeshMessage::Returned { status: Status::Ok, .. }));
    let event = shards.0[2].event();
    assert_eq!((event.kind(), event.unlinked(), event.manipulated_bytes()), (EventKind::Put, true, 4));
    assert!(shards.0[2].transmit().is_some(), "the lender acknowledges");
    let counters = [0, 2].map(|shard: usize| *shards.0[shard].shard.counters());
    assert_eq!(counters.map(|counters| (counters.received.bytes, counters.lent)), [(4, 0), (0, 1)]);
    shards.assert_quiet();
    // And where no shard takes it, it is dropped where it arrived.
    assert_eq!(shards.header(1, 0, &put_header(9, 4)), Verdict::Delay);
    assert_eq!(shards.refused(2, 1), DropReason::NoMatch);
    assert_eq!(shards.resume(1), Some((0, Verdict::Drop)));
    assert_eq!(shards.0[1].shard.counters().drops(DropReason::NoMatch).bytes, 4);
    assert_eq!(shards.0[2].shard.counters().dropped().messages, 0);
    shards.post(2, 9, &spec);
    shards.assert_quiet();
}

/// A ping that arrives at another shard than the one that answers it tells a router that it was pinged.
#[test]
fn a_ping_of_a_router_is_news_wherever_it_arrives() {
    for (arrives_at, is_router) in [(0, true), (1, true), (1, false)] {
        let mut shards = Shards::new(2, Policy::Pin(0));
        let forwarding = if is_router { Forwarding::On } else { Forwarding::Off };
        for node in &mut shards.0 {
            let newer = Topology::clone(node.shard.topology()).with_forwarding(forwarding);
            node.shard.update(NOW, Arc::new(newer.with_generation(1)));
            assert_eq!(node.shard.poll_pinged(), None);
        }
        let answer = shards.spec(0, MdOptions::GET);
        let entry = EntrySpec::new(PING_PORTAL, PING_MATCH_BITS);
        let entry = shards.0[0].shard.attach_entry(&entry).unwrap();
        shards.0[0].shard.attach(entry, &answer).unwrap();
        let mut ping = get_header(PING_MATCH_BITS, 100);
        let Body::Get { portal, .. } = &mut ping.body else { unreachable!() };
        *portal = PING_PORTAL;
        let verdict = shards.header(arrives_at, 0, &ping);
        if arrives_at == 1 {
            assert_eq!(verdict, Verdict::Delay);
            shards.lent(0, 1);
            assert!(matches!(shards.resume(1), Some((0, Verdict::Deliver(_)))));
        }
        shards.received(arrives_at, 0, Status::Ok);
        let pinged: Vec<_> = shards.0.iter_mut().map(|node| node.shard.poll_pinged()).collect();
        let mut expected = [None; 2];
        expected[arrives_at] = is_router.then_some(NI);
        assert_eq!(pinged, expected);
    }
}

/// It counts what it takes by the span that it is lent.
#[test]
fn a_sibling_discards_nothing() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    let spec = shards.spec(1, MdOptions::PUT | MdOptions::DISCARD);
    let md = shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    let span = shards.lent(1, 0);
    assert_eq!(span, Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 });
    assert_eq!(shards.resume(0), Some((0, Verdict::Deliver(span))));
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    assert_eq!(shards.0[1].event().manipulated_bytes(), 4);
    assert_eq!(shards.0[0].shard.counters().received.bytes, 4);
    shards.assert_quiet();
}

#[test]
fn a_get_is_answered_by_the_shard_that_has_the_entry() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    let spec = shards.spec(1, MdOptions::GET);
    let md = shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 0, &get_header(1, 7)), Verdict::Delay);
    let span = shards.lent(1, 0);
    assert_eq!(span.length_bytes, 0, "nothing comes in with a GET");
    assert_eq!(shards.resume(0), Some((0, Verdict::Deliver(span))));
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    let reply = shards.0[1].transmit().unwrap();
    assert_eq!(reply.payload, Some(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 7 }));
    shards.assert_quiet();
}

#[test]
fn responses_go_to_the_shard_in_the_handle() {
    let mut shards = Shards::new(2, Policy::Rotor);
    let spec = MdSpec { threshold: Threshold::Count(3), ..shards.0[1].md(8) };
    let md = shards.0[1].shard.bind(&spec).unwrap();
    for header in [ack_header(md), reply_header(md, 8)] {
        assert_eq!(shards.header(0, 0, &header), Verdict::Delay);
        let span = shards.lent(1, 0);
        assert_eq!(span, Span { buffer: md.into(), offset_bytes: 0, length_bytes: header.payload_length });
        assert_eq!(shards.resume(0), Some((0, Verdict::Deliver(span))));
        shards.received(0, 0, Status::Ok);
        shards.carry(0, 1);
    }
    let kinds: Vec<_> = shards.0[1].events().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [EventKind::Ack, EventKind::Reply]);
    let mut foreign = ack_header(md);
    let lnet_wire::Body::Ack { md, .. } = &mut foreign.body else { unreachable!() };
    md.interface_cookie += 1;
    assert_eq!(shards.header(0, 0, &foreign), Verdict::Delay, "the shard that has asked knows its seals");
    shards.carry(0, 1);
    shards.carry(1, 0);
    assert_eq!(shards.resume(0), Some((0, Verdict::Drop)));
    shards.assert_quiet();
}

/// Answers come by another shard than the one that has asked: their round trips count where they came.
#[test]
fn round_trips_count_whichever_shard_an_answer_comes_by() {
    let mut shards = Shards::new(2, Policy::Rotor);
    let spec = MdSpec { threshold: Threshold::Count(4), ..shards.0[1].md(8) };
    let md = shards.0[1].shard.bind(&spec).unwrap();
    shards.0[1].shard.get(NOW, &get_request(md)).unwrap();
    shards.0[1].shard.put(NOW, &put_request(md, 8)).unwrap();
    while let Some(lent) = shards.0[1].shard.poll_transmit(NOW, NI) {
        let tx = lent.transmit.tx;
        shards.0[1].shard.sent(NOW, tx, Status::Ok);
    }
    for header in [ack_header(md), reply_header(md, 8)] {
        assert_eq!(shards.header(0, 0, &header), Verdict::Delay);
        shards.lent(1, 0);
        shards.resume(0).unwrap();
        shards.received(0, 0, Status::Ok);
        shards.carry(0, 1);
    }
    let counters = shards.0[0].shard.ni_usage(NI).unwrap().counters;
    assert_eq!((counters.get_rtt.samples, counters.put_ack.samples), (1, 1));
    let peer = shards.0[0].shard.peer(&ack_header(md).source.nid).unwrap().counters;
    assert_eq!((peer.get_rtt.samples, peer.put_ack.samples), (1, 1));
}

#[test]
fn an_owner_keeps_what_waits_for_its_entry() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    shards.0[1].shard.set_lazy(4).unwrap();
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    shards.carry(0, 1);
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None);
    let spec = shards.spec(1, MdOptions::PUT);
    let md = shards.post(1, 1, &spec);
    assert!(matches!(shards.carry(1, 0), MeshMessage::Lend { .. }));
    let taken = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 };
    assert_eq!(shards.resume(0), Some((0, Verdict::Deliver(taken))));
    // Another one, and the portal is lazy no more.
    assert_eq!(shards.header(0, 1, &put_header(1, 4)), Verdict::Delay);
    shards.carry(0, 1);
    shards.0[1].shard.clear_lazy(4).unwrap();
    assert!(matches!(shards.carry(1, 0), MeshMessage::Refuse { reason: DropReason::NotLazy, .. }));
    assert_eq!(shards.resume(0), Some((1, Verdict::Drop)));
}

#[test]
fn what_is_given_up_is_withdrawn() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    shards.0[1].shard.set_lazy(4).unwrap();
    let spec = shards.spec(1, MdOptions::PUT);
    // Before the question is asked.
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    shards.received(0, 0, LOST);
    shards.assert_quiet();
    // While it is parked.
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    shards.carry(0, 1);
    shards.received(0, 0, LOST);
    assert!(matches!(shards.carry(0, 1), MeshMessage::Withdraw { .. }));
    assert!(matches!(shards.carry(1, 0), MeshMessage::Refuse { .. }));
    shards.assert_quiet();
    // When it is lent already, whichever shard learns of it first.
    for withdraw_first in [false, true] {
        shards.post(1, 1, &spec);
        assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
        shards.carry(0, 1);
        shards.received(0, 0, LOST);
        if withdraw_first {
            shards.carry(0, 1);
        }
        shards.carry(1, 0);
        shards.carry(0, 1);
        let event = shards.0[1].event();
        assert_eq!((event.status(), event.unlinked()), (Status::Unknown(Cause::Cancelled), true));
        shards.assert_quiet();
    }
    // Between the answer and the resumption, and after that.
    for resumed in [false, true] {
        shards.post(1, 1, &spec);
        assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
        shards.lent(1, 0);
        if resumed {
            shards.resume(0).unwrap();
        }
        shards.received(0, 0, LOST);
        shards.carry(0, 1);
        assert_eq!(shards.0[1].event().status(), LOST);
        shards.assert_quiet();
    }
    let counters = shards.0[0].shard.counters();
    assert_eq!((counters.receive_failures, counters.dropped().messages), (6, 0));
    assert_eq!(shards.0[1].shard.counters().lent, 0);
}

#[test]
fn an_unlinked_descriptor_lives_until_its_span_is_returned() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    let spec = shards.spec(1, MdOptions::PUT);
    let md = shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 0, &acked_put_header(1, 4)), Verdict::Delay);
    shards.lent(1, 0);
    assert_eq!(shards.0[1].shard.unlink(md), Ok(Unlinked::Pending));
    assert_eq!(shards.0[1].shard.usage().memory_descs, 1);
    shards.resume(0).unwrap();
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    let event = shards.0[1].event();
    assert_eq!((event.status(), event.unlinked()), (Status::Unknown(Cause::Timeout), true));
    assert!(shards.0[1].transmit().is_none(), "what was aborted is not acknowledged");
    assert_eq!(shards.0[1].shard.usage().memory_descs, 0);
}

#[test]
fn spans_that_may_overlap_are_lent_one_at_a_time() {
    let mut shards = Shards::new(3, Policy::Pin(1));
    let options = MdOptions::PUT | MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { threshold: Threshold::Count(9), ..shards.spec(1, options) };
    let md = shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    assert_eq!(shards.header(2, 0, &put_header(1, 4)), Verdict::Delay);
    shards.lent(1, 0);
    shards.carry(2, 1);
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "the second waits");
    assert_eq!(shards.header(1, 0, &put_header(1, 4)), Verdict::Delay, "so does its own");
    assert_eq!(shards.header(1, 1, &get_header(1, 4)), Verdict::Delay, "and one that reads");
    shards.resume(0).unwrap();
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    assert!(matches!(shards.carry(1, 2), MeshMessage::Lend { .. }));
    assert_eq!(shards.resume(1), None, "they came later");
    shards.resume(2).unwrap();
    shards.received(2, 0, Status::Ok);
    shards.carry(2, 1);
    let both = [shards.resume(1), shards.resume(1)].map(|resumed| resumed.unwrap().0);
    assert_eq!(both, [0, 1], "two of one shard may write at the same time");
    // What is under way here holds up a loan, and what comes then waits behind it.
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    shards.carry(0, 1);
    assert_eq!(shards.header(1, 2, &put_header(1, 4)), Verdict::Delay);
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None);
    shards.received(1, 0, Status::Ok);
    shards.received(1, 1, Status::Ok);
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "the REPLY is not sent");
    let reply = shards.0[1].transmit().unwrap();
    shards.0[1].shard.sent(NOW, reply.tx, Status::Ok);
    assert!(
        matches!(shards.carry(1, 0), MeshMessage::Lend { span: Span { buffer: lent, .. }, .. } if lent == md)
    );
    assert_eq!(shards.resume(1), None);
    shards.resume(0).unwrap();
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    assert_eq!(shards.resume(1).unwrap().0, 2);
}

#[test]
fn a_lent_span_stays_lent_whatever_else_is_returned() {
    let mut shards = Shards::new(2, Policy::Rotor);
    let spec = MdSpec { threshold: Threshold::Count(9), ..shards.0[1].md(8) };
    let md = shards.0[1].shard.bind(&spec).unwrap();
    for (rx, header) in [reply_header(md, 8), ack_header(md)].into_iter().enumerate() {
        assert_eq!(shards.header(0, rx as u32, &header), Verdict::Delay);
        shards.lent(1, 0);
        shards.resume(0).unwrap();
    }
    assert_eq!(shards.header(1, 0, &reply_header(md, 8)), Verdict::Delay, "a sibling writes");
    shards.received(0, 1, Status::Ok);
    shards.carry(0, 1);
    assert_eq!(shards.0[1].event().kind(), EventKind::Ack);
    assert_eq!(shards.resume(1), None, "it still writes");
    shards.received(0, 0, Status::Ok);
    shards.carry(0, 1);
    assert_eq!(shards.resume(1).unwrap().0, 0);
}

#[test]
fn a_shard_asks_about_so_many_at_once_and_half_of_them_may_wait() {
    let limits = Limits { delayed: 8, ..config().limits };
    let mut shards = Shards::with_limits(2, Policy::Pin(1), limits);
    shards.0[1].shard.set_lazy(4).unwrap();
    for rx in 0..7 {
        let header = from(2 + rx as u8, put_header(1, 4));
        assert_eq!(shards.header(0, rx, &header), Verdict::Delay);
    }
    (0..4).for_each(|_| assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. })));
    assert_eq!(poll_mesh(&mut shards.0[0].shard), None, "four are asked about");
    for rx in 2..4 {
        assert!(matches!(shards.carry(1, 0), MeshMessage::Refuse { reason: DropReason::DelayedFull, .. }));
        assert_eq!(shards.resume(0), Some((rx, Verdict::Drop)));
    }
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "two are parked");
    assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. }), "their places are free again");
    shards.0[1].shard.clear_lazy(4).unwrap();
    (0..3).for_each(|_| assert!(matches!(shards.carry(1, 0), MeshMessage::Refuse { .. })));
    (0..2).for_each(|_| assert_eq!(shards.refused(1, 0), DropReason::NoMatch));
    while shards.resume(0).is_some() {}
    shards.assert_quiet();
}

/// A peer whose messages wait at a sibling leaves as much of that room as they take.
#[test]
fn no_peer_takes_all_room_for_what_waits_at_a_sibling() {
    let limits = Limits { delayed: 24, peers: 16, ..config().limits };
    let mut shards = Shards::with_limits(3, Policy::Pin(1), limits);
    shards.0[1].shard.set_lazy(4).unwrap();
    // Eight may be asked about; of the four that may wait, of the two that are left, of the last.
    for (peer, share) in [(2, 2), (3, 1), (4, 1), (5, 0)] {
        let header = from(peer, put_header(1, 4));
        for _ in 0..share {
            let rx = shards.0[0].shard.usage().delayed;
            assert_eq!(shards.header(0, rx, &header), Verdict::Delay);
            assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. }));
            assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "parked");
        }
        assert_eq!(shards.header(0, 15, &header), Verdict::Delay);
        assert_eq!(shards.refused(1, 0), DropReason::DelayedFull);
        assert_eq!(shards.resume(0), Some((15, Verdict::Drop)));
    }
    // What reached another shard has room of its own.
    assert_eq!(shards.header(2, 0, &put_header(1, 4)), Verdict::Delay);
    assert!(matches!(shards.carry(2, 1), MeshMessage::Route { .. }));
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "parked");
    // What has ended can wait again.
    shards.received(0, 0, LOST);
    shards.carry(0, 1);
    shards.carry(1, 0);
    assert_eq!(shards.header(0, 0, &from(5, put_header(1, 4))), Verdict::Delay);
    assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. }));
    shards.assert_delayed(4);
}

/// A peer whose messages stay half received in a sibling's buffers leaves as many questions to others.
#[test]
fn no_peer_takes_all_questions_with_messages_that_do_not_end() {
    let limits = Limits { delayed: 8, ..config().limits };
    let mut shards = Shards::with_limits(2, Policy::Pin(1), limits);
    let spec = shards.spec(1, MdOptions::PUT);
    shards.post(1, 1, &MdSpec { threshold: Threshold::Infinite, event_queue: None, ..spec });
    for rx in 0..4 {
        assert_eq!(shards.header(0, rx, &put_header(1, 4)), Verdict::Delay);
    }
    for rx in 0..2 {
        shards.lent(1, 0);
        assert!(matches!(shards.resume(0), Some((at, Verdict::Deliver(_))) if at == rx));
    }
    assert_eq!(poll_mesh(&mut shards.0[0].shard), None, "two of four are the peer's share");
    assert_eq!(shards.header(0, 4, &from(3, put_header(1, 4))), Verdict::Delay);
    shards.lent(1, 0);
    assert!(matches!(shards.resume(0), Some((4, Verdict::Deliver(_)))), "another peer's passes");
    // What ends makes room for what waits.
    shards.received(0, 0, LOST);
    shards.received(0, 4, Status::Ok);
    (0..2).for_each(|_| assert!(matches!(shards.carry(0, 1), MeshMessage::Returned { .. })));
    shards.lent(1, 0);
    assert!(matches!(shards.resume(0), Some((2, Verdict::Deliver(_)))));
}

#[test]
fn a_message_of_one_peer_too_many_does_not_wait_at_a_sibling() {
    let limits = Limits { delayed: 24, peers: 2, ..config().limits };
    let mut shards = Shards::with_limits(3, Policy::Pin(1), limits);
    shards.0[1].shard.set_lazy(4).unwrap();
    for rx in 0..2 {
        assert_eq!(shards.header(0, rx, &from(2 + rx as u8, put_header(1, 4))), Verdict::Delay);
        assert!(matches!(shards.carry(0, 1), MeshMessage::Route { .. }));
        assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "parked");
    }
    assert_eq!(shards.header(2, 0, &from(4, put_header(1, 4))), Verdict::Delay);
    assert_eq!(shards.refused(1, 2), DropReason::PeersFull);
    assert_eq!(shards.resume(2), Some((0, Verdict::Drop)));
    shards.assert_delayed(2);
}

#[test]
fn without_steering_a_shard_takes_everything_for_its_own() {
    let mut node = Node::new(ShardConfig { shard: ShardId(1), shard_count: 2, ..config() });
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
    node.post(1, &spec);
    assert_ne!(node.arrive(&put_header(1, 4)), Verdict::Drop);
    node.assert_drop(&put_header(1, 4), DropReason::NoMatch);
}

#[test]
#[should_panic(expected = "headers are steered to 2 shards, not 1")]
fn shards_agree_on_their_number() {
    let steering = Steering { shard_count: 2, policies: [Default::default(); PORTALS] };
    let topology = Topology::clone(&config().topology).with_steering(steering);
    Node::new(ShardConfig { topology: Arc::new(topology), ..config() });
}

#[test]
#[should_panic(expected = "a span is returned that is not lent")]
fn a_span_is_returned_once() {
    let mut shards = Shards::new(2, Policy::Pin(1));
    let spec = MdSpec { threshold: Threshold::Count(2), ..shards.spec(1, MdOptions::PUT) };
    shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 0, &put_header(1, 4)), Verdict::Delay);
    shards.lent(1, 0);
    shards.resume(0).unwrap();
    shards.received(0, 0, Status::Ok);
    let returned = shards.carry(0, 1);
    shards.0[1].shard.handle_mesh(NOW, ShardId(0), returned);
}

#[test]
fn payload_goes_straight_into_a_siblings_buffer() {
    let mut policies = [Policy::Pin(0); PORTALS];
    policies[4] = Policy::Rotor;
    let mut pair = Pair::with_shards(3, policies, 8);
    let spec = MdSpec { options: MdOptions::PUT, auto_unlink: false, ..pair.sides[1].nodes[1].md(8) };
    let target = pair.post(1, 1, &entry(5), &spec);
    let spec = MdSpec { threshold: Threshold::Count(2), ..pair.sides[0].nodes[0].md(3) };
    let md = pair.bind(0, 0, &spec, vec![1, 2, 3]);
    let put = PutRequest { ack: true, target: host(2), ..put_request(md, 2) };
    pair.sides[0].nodes[0].shard.put(pair.now, &put).unwrap();
    pair.settle();
    assert_eq!(pair.sides[1].memory[&target], [1, 2, 3, 0, 0, 0, 0, 0]);
    let last = pair.events(0, 0).pop().unwrap();
    assert_eq!((last.kind(), last.unlinked()), (EventKind::Ack, true), "it came by another shard as well");
    assert_eq!(pair.events(1, 1).len(), 1);
}
