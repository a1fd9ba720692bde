//! Messages of other nodes: which are forwarded, by which path, and what they take.

mod cut;
mod loops;
mod model;
mod ring;
mod shares;

use std::sync::Arc;
use std::time::Duration;

use lnet_core::fault::DelayRule;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, ShardId};
use lnet_core::lnd::{Cause, NiId, Path, PathReport, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::shard::{BUFFER_WAIT, NEXT_HOP_PATIENCE, PoolUsage};
use lnet_core::stats::{DelayReason, DropReason};
use lnet_core::time::Instant;
use lnet_core::topology::{Forwarding, HEALTH_MAX, LocalNi, NiStatus, PeerMap, PeerNid, PeerView, Topology};
use lnet_core::tunables::Tunables;
use lnet_core::{Limits, ShardConfig};
use lnet_model::fault::Filter;
use lnet_model::pool::PoolKind;
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use crate::common::{FOREIGN, MESSAGE_TIMEOUT, NOW, Node, config, local_ni, nid};
use crate::routes::{gateway, routes};

/// The NIs of the router, which is host 1 of `tcp1` and of `tcp2`.
const NIS: [NiId; 2] = [NiId(0), NiId(1)];
/// A page, the most that a buffer of the small pool takes.
const PAGE: u32 = 4096;

/// A buffer of a pool, by its number.
fn buffer(kind: PoolKind, number: u32) -> BufferHandle {
    let slot = kind as u32 * 1000 + number;
    BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), slot, 1))
}

fn locals() -> Vec<LocalNi> {
    vec![local_ni(nid(1, 1), 16, 4), local_ni(nid(2, 1), 16, 4)]
}

/// A router between two nets.
fn topology() -> Topology {
    Topology::new(locals()).with_forwarding(Forwarding::On)
}

struct Router {
    node: Node,
    now: Instant,
}

impl Router {
    /// A router with so many buffers of each pool.
    fn new(topology: Topology, pools: [u32; 3]) -> Self {
        Self::keyed(topology, pools, config().seal_key)
    }

    /// A router with a key of its own.
    fn keyed(topology: Topology, pools: [u32; 3], seal_key: [u64; 2]) -> Self {
        let limits = Limits { forwards: 64, incoming: 64, peers: 64, nis: 4, ..config().limits };
        let mut node = Node::new(ShardConfig { topology: Arc::new(topology), limits, seal_key, ..config() });
        node.shard.set_router_pools(pools);
        let mut router = Self { node, now: NOW };
        router.add_buffers();
        router
    }

    /// Adds the buffers that are missing.
    fn add_buffers(&mut self) {
        for (kind, count) in PoolKind::ALL.iter().zip(self.node.shard.missing_router_buffers()) {
            (0..count).for_each(|number| self.node.shard.add_router_buffer(*kind, buffer(*kind, number)));
        }
    }

    /// A message comes by an NI from a peer NI.
    fn header(&mut self, at: usize, from: Nid, rx: u32, header: &Header) -> Verdict {
        self.node.shard.header(self.now, NIS[at], &from, RxId(rx), header)
    }

    /// A message of a host of `tcp1` comes from there.
    fn come(&mut self, rx: u32, header: &Header) -> Verdict {
        self.header(0, header.source.nid, rx, header)
    }

    fn received(&mut self, rx: u32) {
        self.node.shard.received(self.now, RxId(rx), Status::Ok);
    }

    /// Messages that have found their buffers, or are dropped.
    fn resumed(&mut self) -> Vec<(u32, bool)> {
        let resumed = std::iter::from_fn(|| self.node.shard.poll_resume());
        resumed.map(|(_, rx, verdict)| (rx.0, verdict != Verdict::Drop)).collect()
    }

    /// Messages that leave.
    fn sent(&mut self) -> Vec<Transmit> {
        self.sent_at(NOW)
    }

    fn sent_at(&mut self, now: Instant) -> Vec<Transmit> {
        let shard = &mut self.node.shard;
        let mut by =
            |ni| std::iter::from_fn(|| shard.poll_transmit(now, ni).map(|lent| *lent.transmit)).collect();
        NIS.into_iter().flat_map(|ni| -> Vec<_> { by(ni) }).collect()
    }

    /// The only message that leaves.
    #[track_caller]
    fn one(&mut self) -> Transmit {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0]
    }

    /// The message that has come is received, and is the only one that leaves.
    #[track_caller]
    fn pass_on(&mut self, rx: u32) {
        self.received(rx);
        let sent = self.one();
        self.end(&sent, Status::Ok);
    }

    fn end(&mut self, message: &Transmit, status: Status) {
        self.node.shard.sent(NOW, message.tx, status);
    }

    fn pool(&self, kind: PoolKind) -> PoolUsage {
        self.node.shard.router_pools()[kind as usize]
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.node.shard.counters().drops(reason).messages
    }

    fn update(&mut self, topology: Topology) {
        let generation = self.node.shard.topology().generation() + 1;
        self.node.shard.update(NOW, Arc::new(topology.with_generation(generation)));
    }

    /// All has come home.
    #[track_caller]
    fn check_rest(&mut self) {
        assert_eq!((self.sent(), self.resumed()), (vec![], vec![]));
        assert_eq!((self.node.shard.usage().messages, self.node.shard.poll_timeout()), (0, None));
        for pool in self.node.shard.router_pools() {
            assert_eq!(pool.credits, i64::from(pool.buffers), "{pool:?}");
        }
        for peer in self.node.shard.peers() {
            assert_eq!(peer.credits, i64::from(peer.credits_max), "{peer:?}");
            assert_eq!((peer.queued_bytes, peer.reference_count), (0, 0), "{peer:?}");
        }
        assert!(NIS.iter().all(|ni| self.node.shard.is_quiet(*ni)));
    }
}

/// A PUT between these NIDs, to be acknowledged.
fn put(source: Nid, destination: Nid, payload_length: u32) -> Header {
    let body = Body::Put { ack_md: FOREIGN, match_bits: 5, hdr_data: 99, portal: 4, offset: 0 };
    let [source, destination] = [source, destination].map(ProcessId::lustre);
    Header { source, destination, payload_length, body }
}

/// A PUT of a host of `tcp1` to one of `tcp2`.
fn over(source: u8, destination: u8, payload_length: u32) -> Header {
    put(nid(1, source), nid(2, destination), payload_length)
}

#[test]
fn a_message_goes_on_with_its_header() {
    let mut router = Router::new(topology(), [2, 2, 2]);
    let lengths =
        [(0, PoolKind::Tiny), (1, PoolKind::Small), (PAGE, PoolKind::Small), (PAGE + 1, PoolKind::Large)];
    for (length_bytes, kind) in lengths {
        let before = *router.node.shard.counters();
        let header = over(2, 9, length_bytes);
        let Verdict::Deliver(span) = router.come(7, &header) else { panic!("{length_bytes} bytes wait") };
        assert_eq!((span.offset_bytes, span.length_bytes), (0, length_bytes));
        assert_eq!(span.buffer.0.slot() / 1000, kind as u32, "{length_bytes} bytes");
        assert_eq!(router.pool(kind).credits, 1);
        router.received(7);
        let sent = router.one();
        assert_eq!((sent.ni, sent.next_hop, sent.header), (NIS[1], nid(2, 9), header));
        assert_eq!(sent.payload, Some(span).filter(|_| length_bytes > 0));
        assert_eq!(router.node.shard.peer_credits(&nid(2, 9)), Some(3), "its credit is that of the next hop");
        router.end(&sent, Status::Ok);
        assert_eq!(router.pool(kind), PoolUsage { buffers: 2, credits: 2, credits_min: 1 });
        let after = router.node.shard.counters();
        let routed =
            (after.routed.messages - before.routed.messages, after.routed.bytes - before.routed.bytes);
        assert_eq!(routed, (1, u64::from(length_bytes)));
        assert_eq!((after.sent, after.received), (before.sent, before.received), "it is not this node's");
        router.check_rest();
    }
    assert!(router.node.events().is_empty());
    let by_ni = |ni: NiId| router.node.shard.ni_usage(ni).unwrap().counters;
    assert_eq!((by_ni(NIS[0]).received.total(), by_ni(NIS[1]).sent.total()), (4, 4));
}

#[test]
fn all_types_are_forwarded_both_ways() {
    let mut router = Router::new(topology(), [2, 2, 0]);
    let (near, far) = (ProcessId::lustre(nid(1, 2)), ProcessId::lustre(nid(2, 9)));
    let get = Body::Get { return_md: FOREIGN, match_bits: 5, portal: 4, offset: 0, sink_length: 1 << 20 };
    let ack = Body::Ack {
        md: WireHandle { interface_cookie: 1, object_cookie: 3 },
        match_bits: 5,
        manipulated_length: 7,
    };
    let reply = Body::Reply { md: FOREIGN };
    for (body, payload_length) in [(get, 0), (ack, 0), (reply, 8)] {
        for (at, [source, destination]) in [[near, far], [far, near]].into_iter().enumerate() {
            let header = Header { source, destination, payload_length, body };
            assert_ne!(router.header(at, source.nid, 0, &header), Verdict::Drop);
            router.received(0);
            let sent = router.one();
            assert_eq!((sent.ni, sent.next_hop, sent.header), (NIS[1 - at], destination.nid, header));
            router.end(&sent, Status::Ok);
        }
    }
    router.check_rest();
}

#[test]
fn what_may_not_be_forwarded_is_dropped_and_counted() {
    let mut router = Router::new(
        topology().with_net_routes(routes(&[(nid(9, 1), gateway(1, 7)), (nid(8, 1), gateway(2, 7))])),
        [1, 1, 0],
    );
    let host = nid(1, 2);
    for (from, header, expected) in [
        (host, put(host, nid(7, 9), 8), DropReason::NoNextHop),
        (host, put(host, nid(2, 9), PAGE + 1), DropReason::RouterTooLong),
        (host, put(host, nid(1, 3), 8), DropReason::NotLocal),
        (host, put(host, nid(2, 1), 8), DropReason::NotLocal),
        (nid(1, 7), put(nid(9, 5), nid(9, 6), 8), DropReason::LeadsBack),
        (host, put(nid(9, 5), nid(2, 9), 8), DropReason::ForgedSource),
        (nid(1, 7), put(nid(2, 5), nid(8, 6), 8), DropReason::ForgedSource),
        (host, put(nid(1, 1), nid(2, 9), 8), DropReason::ForgedSource),
        (host, put(Nid::ANY, nid(2, 9), 8), DropReason::NoSource),
        (host, put(host, nid(2, 9), (1 << 20) + 1), DropReason::Malformed),
    ] {
        let (before, pools) = (router.drops(expected), router.node.shard.router_pools());
        assert_eq!(router.header(0, from, 0, &header), Verdict::Drop, "{header:?}");
        assert_eq!(router.drops(expected), before + 1, "{header:?}");
        assert_eq!(router.node.shard.router_pools(), pools);
    }
    assert_eq!(router.node.shard.counters().dropped().messages, 10);
    router.update(Topology::new(locals()));
    assert_eq!(router.come(0, &over(2, 9, 8)), Verdict::Drop);
    assert_eq!(router.drops(DropReason::RoutingOff), 1);
    router.check_rest();
}

/// LNet drops what is for this node alone (`lib-move.c: lnet_check_route_inconsistency`).
#[test]
fn what_comes_by_an_asymmetric_route_is_forwarded() {
    let tunables = Tunables { drops_asymmetric: true, ..Tunables::DEFAULT };
    let by = routes(&[(nid(8, 1), gateway(1, 7))]);
    let mut router = Router::new(topology().with_net_routes(by).with_tunables(tunables), [1, 1, 0]);
    let from = nid(1, 7);
    assert_eq!(router.header(0, from, 0, &put(nid(9, 5), nid(1, 1), 8)), Verdict::Drop);
    assert_eq!(router.drops(DropReason::AsymmetricRoute), 1);
    assert_ne!(router.header(0, from, 0, &put(nid(9, 5), nid(2, 9), 8)), Verdict::Drop);
}

#[test]
fn a_shard_without_room_forwards_nothing() {
    let limits = Limits { forwards: 0, ..config().limits };
    let mut node = Node::new(ShardConfig { topology: Arc::new(topology()), limits, ..config() });
    node.shard.set_router_pools([8, 8, 8]);
    assert_eq!(node.shard.missing_router_buffers(), [0; 3]);
    let verdict = node.shard.header(NOW, NIS[0], &nid(1, 2), RxId(0), &over(2, 9, 8));
    assert_eq!(verdict, Verdict::Drop);
    assert_eq!(node.shard.counters().drops(DropReason::RouterTooLong).messages, 1);
}

/// A message for a net that this node is not on goes to a gateway, one from there to its destination.
#[test]
fn routers_stand_in_a_row() {
    let far = nid(9, 5);
    let mut router = Router::new(topology().with_net_routes(routes(&[(far, gateway(2, 7))])), [2, 2, 2]);
    assert_ne!(router.come(0, &put(nid(1, 2), far, 8)), Verdict::Drop);
    router.received(0);
    let sent = router.one();
    assert_eq!((sent.ni, sent.next_hop, sent.header.destination.nid), (NIS[1], nid(2, 7), far));
    router.end(&sent, Status::Ok);
    assert_ne!(router.header(1, nid(2, 7), 0, &put(far, nid(1, 2), 8)), Verdict::Drop);
    router.received(0);
    let sent = router.one();
    assert_eq!((sent.ni, sent.next_hop, sent.header.source.nid), (NIS[0], nid(1, 2), far));
    router.end(&sent, Status::Ok);
    router.check_rest();
}

/// `peer_timeout` 0 says that peers of a net are not given up.
#[test]
fn a_net_may_take_no_next_hop_for_dead() {
    let mut nis = locals();
    nis[1].drops_for_silent = false;
    let mut router = Router::new(Topology::new(nis).with_forwarding(Forwarding::On), [2, 2, 2]);
    let path = Path { ni: NIS[1], peer: nid(2, 9) };
    router.node.shard.path_health(NOW, &path, PathReport::Silent);
    router.now = NOW + NEXT_HOP_PATIENCE;
    router.node.shard.path_health(router.now, &path, PathReport::Silent);
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Drop);
    router.pass_on(0);
    router.check_rest();
}

#[test]
fn a_next_hop_that_does_not_answer_gets_nothing() {
    let mut router = Router::new(topology(), [8, 8, 8]);
    let path = Path { ni: NIS[1], peer: nid(2, 9) };
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Drop);
    router.node.shard.path_health(NOW, &path, PathReport::Silent);
    assert_ne!(router.come(1, &over(2, 9, 8)), Verdict::Drop, "it may be busy");
    router.pass_on(1);
    router.now = NOW + NEXT_HOP_PATIENCE;
    router.node.shard.path_health(router.now, &path, PathReport::Silent);
    assert_eq!(router.come(1, &over(2, 9, 8)), Verdict::Drop);
    // The message that was on its way is dropped when it is there.
    router.received(0);
    assert_eq!(router.sent(), []);
    assert_eq!(router.drops(DropReason::NextHopSilent), 2);
    assert_ne!(router.come(1, &over(2, 8, 8)), Verdict::Drop, "others are not meant");
    router.pass_on(1);
    router.node.shard.path_health(NOW, &path, PathReport::Answers { round_trip: None });
    assert_ne!(router.come(1, &over(2, 9, 8)), Verdict::Drop);
    router.pass_on(1);
    router.check_rest();
}

/// LNet takes the credit of the sender first, and returns it last (`lnet_return_rx_credits_locked`).
#[test]
fn credits_of_the_sender_come_before_buffers() {
    let mut router = Router::new(topology(), [1, 8, 1]);
    for rx in 0..4 {
        assert!(matches!(router.come(rx, &over(2, 9 + rx as u8, 8)), Verdict::Deliver(_)), "message {rx}");
    }
    assert_eq!(router.come(4, &over(2, 9, 8)), Verdict::Delay, "its sender has four credits");
    assert_eq!(router.come(5, &over(2, 9, 0)), Verdict::Delay, "for whatever pool");
    assert!(matches!(router.come(6, &over(3, 9, 8)), Verdict::Deliver(_)), "another one has its own");
    assert_eq!(router.node.shard.counters().delays(DelayReason::RouterBuffer), 2);
    assert_eq!(router.pool(PoolKind::Tiny).credits, 1, "it waits for no buffer yet");
    let credits = [2, 3, 4].map(|host| router.node.shard.router_credits(&nid(1, host)));
    assert_eq!(credits, [Some([4, -2, -2]), Some([4, 3, 3]), None]);
    assert_eq!(router.resumed(), []);
    for rx in 0..2 {
        router.pass_on(rx);
        assert_eq!(router.resumed(), [(4 + rx, true)]);
    }
    for rx in [2, 3, 4, 5, 6] {
        router.received(rx);
    }
    for sent in router.sent() {
        router.end(&sent, Status::Ok);
    }
    assert_eq!(router.node.shard.counters().dropped().messages, 0);
    router.check_rest();
}

#[test]
fn router_credits_are_those_of_the_ni() {
    let mut nis = locals();
    nis[0].router_credits = 2;
    let few = || Topology::new(nis.clone()).with_forwarding(Forwarding::On);
    let mut router = Router::new(few(), [8, 16, 8]);
    let verdicts =
        |router: &mut Router, rxs: [u32; 2]| rxs.map(|rx| router.come(rx, &over(2, 9, 8)) == Verdict::Delay);
    assert_eq!([verdicts(&mut router, [0, 1]), verdicts(&mut router, [2, 3])], [[false; 2], [true; 2]]);
    // Credits that come are for who waits.
    router.update(topology());
    assert_eq!(router.come(4, &over(2, 9, 8)), Verdict::Delay);
    assert_eq!(router.resumed(), [(2, true), (3, true)]);
    router.update(few());
    router.pass_on(0);
    assert_eq!(router.come(5, &over(2, 9, 8)), Verdict::Delay, "three have two credits");
    assert_eq!(router.resumed(), [(4, true)], "it was granted before the sender had fewer");
    [1, 2, 3, 4].into_iter().for_each(|rx| router.received(rx));
    for sent in router.sent() {
        router.end(&sent, Status::Ok);
    }
    assert_eq!(router.resumed(), [(5, true)]);
    router.pass_on(5);
    router.check_rest();
}

#[test]
fn who_waits_too_long_is_dropped() {
    let mut router = Router::new(topology(), [1, 1, 0]);
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Delay);
    assert_eq!([1, 2].map(|rx| router.come(rx, &over(3, 9, 8))), [Verdict::Delay; 2]);
    let deadline = router.node.shard.poll_timeout().unwrap();
    assert_eq!(deadline, NOW + BUFFER_WAIT);
    router.node.shard.handle_timeout(deadline);
    assert_eq!(router.resumed(), [(1, false), (2, false)]);
    assert_eq!(router.drops(DropReason::RouterFull), 2);
    router.pass_on(0);
    router.check_rest();
}

#[test]
fn an_lnd_gives_up_in_each_state() {
    let mut router = Router::new(topology(), [1, 1, 0]);
    let lost =
        |router: &mut Router, rx| router.node.shard.received(NOW, RxId(rx), Status::Unknown(Cause::Reset));
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Delay);
    for rx in 1..=4 {
        assert_eq!(router.come(rx, &over(2, 9, 8)), Verdict::Delay);
    }
    lost(&mut router, 4); // It waits for a credit.
    lost(&mut router, 3); // It waits for a buffer.
    lost(&mut router, 0); // It is put in place; the next one is to be resumed.
    assert!(router.node.shard.has_resumed());
    lost(&mut router, 1);
    assert_eq!(router.resumed(), [(2, true)]);
    lost(&mut router, 2);
    assert_eq!(router.node.shard.counters().receive_failures, 5);
    router.check_rest();
}

#[test]
fn what_waits_ends_with_routing() {
    let mut router = Router::new(topology(), [1, 1, 0]);
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Delay);
    router.received(0);
    let sent = router.one();
    assert_eq!(router.come(1, &over(2, 9, 8)), Verdict::Delay);
    assert!(!router.node.shard.confirmation().is_forwarding, "nobody has asked");
    router.update(topology().with_forwarding(Forwarding::Ending));
    assert!(router.node.shard.confirmation().is_forwarding);
    assert_eq!(router.come(2, &over(3, 9, 8)), Verdict::Delay, "peers may not know yet");
    router.update(topology().with_forwarding(Forwarding::Off));
    assert_eq!(router.resumed(), [(1, false), (2, false)]);
    assert_eq!(router.drops(DropReason::RoutingOff), 2);
    router.node.shard.set_router_pools([0; 3]);
    assert_eq!(router.node.shard.poll_surplus(), Some(buffer(PoolKind::Tiny, 0)));
    assert_eq!(router.node.shard.poll_surplus(), None, "the other one is in use");
    router.end(&sent, Status::Ok);
    assert_eq!(router.node.shard.poll_surplus(), Some(buffer(PoolKind::Small, 0)));
    assert_eq!(router.node.shard.router_pools(), [PoolUsage::default(); 3]);
    router.check_rest();
}

#[test]
fn pools_grow_and_shrink_under_way() {
    let mut router = Router::new(topology(), [0, 1, 0]);
    let verdicts = [0, 1, 2].map(|rx| router.come(rx, &over(2 + rx as u8, 9, 8)) == Verdict::Delay);
    assert_eq!(verdicts, [false, true, true]);
    assert_eq!(router.pool(PoolKind::Small), PoolUsage { buffers: 1, credits: -2, credits_min: -2 });
    router.node.shard.set_router_pools([0, 6, 0]);
    assert_eq!(router.node.shard.missing_router_buffers(), [0, 5, 0]);
    router.add_buffers();
    assert_eq!(router.resumed(), [(1, true), (2, true)]);
    router.node.shard.set_router_pools([0, 2, 64]);
    assert_eq!(std::iter::from_fn(|| router.node.shard.poll_surplus()).count(), 3, "three are in use");
    // The large ones have the room that is left.
    assert_eq!(router.node.shard.missing_router_buffers(), [0, 0, 61]);
    [0, 1, 2].into_iter().for_each(|rx| router.received(rx));
    for sent in router.sent() {
        router.end(&sent, Status::Ok);
    }
    assert_eq!(std::iter::from_fn(|| router.node.shard.poll_surplus()).count(), 3);
    assert_eq!(router.node.shard.missing_router_buffers(), [0, 0, 64], "and there is room for no others");
    router.check_rest();
}

#[test]
fn an_ni_that_goes_takes_what_came_by_it() {
    let mut router = Router::new(topology(), [1, 1, 0]);
    assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Delay);
    assert_eq!(router.come(1, &over(2, 9, 8)), Verdict::Delay);
    let with = |at: usize, status| {
        let mut nis = locals();
        nis[at].status = status;
        Topology::new(nis).with_forwarding(Forwarding::On)
    };
    router.update(with(0, NiStatus::Closed));
    assert!(!router.node.shard.is_quiet(NIS[0]));
    assert_eq!(router.resumed(), [(1, false)]);
    assert_eq!(router.drops(DropReason::NiClosed), 1);
    router.received(0);
    assert!(router.node.shard.is_quiet(NIS[0]) && !router.node.shard.is_quiet(NIS[1]));
    // The other one goes before the message has left.
    router.update(with(1, NiStatus::Leaving));
    assert_eq!(router.sent(), []);
    assert!(router.node.shard.is_quiet(NIS[1]));
    assert_eq!(router.node.shard.counters().send_failures, 1);
    router.check_rest();
}

#[test]
fn what_a_gateway_does_not_take_goes_by_another_one() {
    let far = nid(9, 5);
    let by = routes(&[(far, gateway(2, 7)), (far, gateway(2, 8))]);
    let mut router = Router::new(topology().with_net_routes(by.clone()), [1, 2, 0]);
    let header = put(nid(1, 2), far, 8);
    let Verdict::Deliver(span) = router.come(0, &header) else { panic!("it waits") };
    router.received(0);
    let first = router.one();
    router.end(&first, Status::NeverSent(Cause::Unreachable));
    let second = router.one();
    assert_ne!(first.next_hop, second.next_hop);
    assert_eq!((second.header, second.payload), (header, Some(span)), "its source stays");
    assert_eq!(router.node.shard.counters().resends, 1);
    // The buffer is of the share of the gateway that has the message now.
    router.node.shard.path_health(
        NOW,
        &Path { ni: NIS[1], peer: first.next_hop },
        PathReport::Answers { round_trip: None },
    );
    router.end(&second, Status::Unknown(Cause::Timeout));
    assert_eq!(router.node.shard.counters().send_failures, 1, "it may have arrived");
    router.check_rest();
    // A route that goes takes along what waits for it.
    router.update(topology().with_net_routes(routes(&[(far, gateway(2, 7))])));
    assert_ne!(router.come(0, &header), Verdict::Drop);
    router.received(0);
    router.update(topology().with_net_routes(routes(&[(far, gateway(2, 8))])));
    assert_eq!(router.one().next_hop, nid(2, 8));
}

#[test]
fn what_a_gateway_has_sent_does_not_go_back() {
    let far = nid(9, 5);
    let [back, on] = [gateway(1, 7), gateway(2, 8)];
    let by = routes(&[(nid(8, 1), back), (far, back), (far, on)]);
    let mut router = Router::new(topology().with_net_routes(by), [1, 2, 0]);
    let (from, header) = (nid(1, 7), put(nid(8, 5), far, 8));
    for _ in 0..4 {
        assert_ne!(router.header(0, from, 0, &header), Verdict::Drop);
        router.received(0);
        // A probe goes before the first one.
        let sent = router.sent();
        assert!(sent.iter().all(|sent| sent.next_hop == nid(2, 8)), "{sent:?}");
        sent.iter().for_each(|sent| router.end(sent, Status::Ok));
    }
    // Neither when the other gateway fails, nor when its route goes.
    assert_ne!(router.header(0, from, 0, &header), Verdict::Drop);
    router.received(0);
    let sent = router.one();
    router.end(&sent, Status::NeverSent(Cause::Unreachable));
    assert_eq!(router.node.shard.counters().resends, 0);
    let path = Path { ni: NIS[1], peer: sent.next_hop };
    router.node.shard.path_health(NOW, &path, PathReport::Answers { round_trip: None });
    router.check_rest();
    assert_ne!(router.header(0, from, 0, &header), Verdict::Drop);
    router.received(0);
    router.update(topology().with_net_routes(routes(&[(nid(8, 1), back), (far, back)])));
    router.check_rest();
    assert_eq!(router.header(0, from, 0, &header), Verdict::Drop);
    assert_eq!(router.drops(DropReason::LeadsBack), 1);
}

/// Another NID of the destination is taken only for a source that takes answers from there (LNet `lib-move.c:
/// lnet_mr_forwarding_allowed`; the reference's tests 237 and 238).
#[test]
fn an_ill_nid_is_changed_for_one_of_its_peer() {
    let target = |health| {
        let ill = PeerNid::new(nid(2, 9), health);
        PeerView::new(true, vec![ill, PeerNid::new(nid(2, 19), HEALTH_MAX)]).unwrap()
    };
    let source =
        |is_multi_rail| PeerView::new(is_multi_rail, vec![PeerNid::new(nid(1, 2), HEALTH_MAX)]).unwrap();
    for (health, is_multi_rail, expected) in
        [(HEALTH_MAX, true, 9), (HEALTH_MAX - 1, true, 19), (HEALTH_MAX - 1, false, 9)]
    {
        let mut peers = PeerMap::default();
        for view in [target(health), source(is_multi_rail)] {
            peers.insert(view);
        }
        let mut router = Router::new(topology().with_peers(peers), [1, 1, 0]);
        for _ in 0..3 {
            assert_ne!(router.come(0, &over(2, 9, 8)), Verdict::Drop);
            router.received(0);
            let sent = router.one();
            let expected = nid(2, expected);
            assert_eq!((sent.next_hop, sent.header.destination.nid), (expected, expected), "{health}");
            assert_eq!(sent.header.source.nid, nid(1, 2));
            router.end(&sent, Status::Ok);
        }
    }
}

#[test]
fn fault_rules_see_what_is_forwarded() {
    let mut router = Router::new(topology(), [1, 2, 0]);
    let latency = Duration::from_secs(3);
    let rule = DelayRule { filter: Filter::EVERYTHING, rate: 1, interval: Duration::ZERO, latency };
    router.node.shard.faults_mut().add_delay_rule(NOW, &rule, 1).unwrap();
    assert_eq!([0, 1].map(|rx| router.come(rx, &over(2, 9, 8))), [Verdict::Delay; 2]);
    assert_eq!(router.node.shard.counters().delays(DelayReason::Fault), 2);
    assert_eq!(router.resumed(), []);
    router.node.shard.delete_delay_rules(NOW, &Nid::ANY, &Nid::ANY);
    assert_eq!(router.resumed(), [(0, true)], "the other one waits for a buffer");
    router.pass_on(0);
    assert_eq!(router.resumed(), [(1, true)]);
    router.pass_on(1);
    router.check_rest();
}

#[test]
fn a_message_waits_for_credits_of_its_next_hop_until_its_time_is_over() {
    let mut router = Router::new(topology(), [1, 16, 0]);
    for rx in 0..6 {
        assert_ne!(router.come(rx, &over(2 + rx as u8 / 3, 9, 8)), Verdict::Delay);
        router.received(rx);
    }
    let sent = router.sent();
    assert_eq!(sent.len(), 4, "the next hop has four credits");
    let deadline = router.node.shard.poll_timeout().unwrap();
    assert_eq!(deadline, NOW + MESSAGE_TIMEOUT);
    router.node.shard.handle_timeout(deadline);
    assert_eq!(router.node.shard.counters().send_failures, 2);
    sent.iter().for_each(|sent| router.end(sent, Status::Ok));
    router.check_rest();
}
