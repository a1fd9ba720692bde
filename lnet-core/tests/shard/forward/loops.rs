//! Routes of routers that go round: what is on its way there ends.

use std::collections::VecDeque;

use lnet_core::lnd::{NiId, RxId, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::shard::{LOOP_HOLD, PROBE_INTERVAL};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::{Forwarding, Topology};
use lnet_wire::{Body, Header, Nid, WireHandle};

use super::{Router, put};
use crate::common::{NOW, local_ni, nid};
use crate::routes::{gateway, routes};

const ROUTERS: usize = 3;
/// Arrivals after which a run is taken for endless.
const ARRIVALS_MAX: usize = 10_000;

/// The host that sends, behind a router of its own, and that router.
fn source() -> Nid {
    nid(9, 5)
}

fn entry() -> Nid {
    nid(10, 9)
}

/// The host that messages are for.
fn far() -> Nid {
    nid(50, 5)
}

/// A router in a ring of three: on a net with the next one, where it is host 1 and that is host 2, and on one
/// with the former. The first is on the net of the entry as well, and has routes that contradict each other.
fn router(at: usize) -> Router {
    let (own, former) = (at as u16 + 1, (at + ROUTERS - 1) as u16 % ROUTERS as u16 + 1);
    let mut nis = vec![nid(own, 1), nid(former, 2)];
    let mut by = vec![(far(), gateway(own, 2))];
    if at == 0 {
        nis.push(nid(10, 1));
        by.extend([(source(), gateway(10, 9)), (nid(60, 1), gateway(former, 1))]);
    } else {
        by.push((source(), gateway(former, 1)));
    }
    let nis = nis.into_iter().map(|nid| local_ni(nid, 64, 64)).collect();
    let topology = Topology::new(nis).with_forwarding(Forwarding::On).with_net_routes(routes(&by));
    Router::keyed(topology, [8, 56, 0], [at as u64, 7])
}

/// A message on its way to an NI of a router, and the one that has sent it.
struct Leg {
    to: (usize, NiId),
    from: Nid,
    sender: Option<(usize, TxId)>,
    header: Header,
}

struct Ring {
    now: Instant,
    routers: Vec<Router>,
    under_way: VecDeque<Leg>,
    arrivals: usize,
}

impl Ring {
    fn new() -> Self {
        Self {
            now: NOW,
            routers: (0..ROUTERS).map(router).collect(),
            under_way: VecDeque::new(),
            arrivals: 0,
        }
    }

    fn come(&mut self, header: Header) {
        self.under_way.push_back(Leg { to: (0, NiId(2)), from: entry(), sender: None, header });
    }

    /// Runs until nothing is under way.
    fn run(&mut self) {
        while let Some(Leg { to: (router, ni), from, sender, header }) = self.under_way.pop_front() {
            self.arrivals += 1;
            assert!(self.arrivals < ARRIVALS_MAX, "{header:?} does not end");
            let shard = &mut self.routers[router].node.shard;
            match shard.header(self.now, ni, &from, RxId(0), &header) {
                Verdict::Deliver(_) => shard.received(self.now, RxId(0), Status::Ok),
                Verdict::Drop => {}
                Verdict::Delay => panic!("there are buffers for {header:?}"),
            }
            if let Some((router, tx)) = sender {
                self.routers[router].node.shard.sent(self.now, tx, Status::Ok);
            }
            for router in 0..ROUTERS {
                self.send(router);
            }
        }
    }

    fn send(&mut self, router: usize) {
        for ni in (0..3).map(NiId) {
            while let Some(lent) = self.routers[router].node.shard.poll_transmit(self.now, ni) {
                let Transmit { tx, next_hop, header, .. } = *lent.transmit;
                let from = self.routers[router].node.shard.topology().ni(ni).unwrap().nid;
                let next = (0..ROUTERS).find_map(|next| {
                    let mut nis = self.routers[next].node.shard.topology().local_nis();
                    let (ni, _) = nis.find(|(_, local)| local.nid == next_hop)?;
                    Some((next, ni))
                });
                let to = next.unwrap_or_else(|| panic!("{header:?} leaves the ring for {next_hop}"));
                self.under_way.push_back(Leg { to, from, sender: Some((router, tx)), header });
            }
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.routers.iter().map(|router| router.drops(reason)).sum()
    }

    fn check_rest(&mut self) {
        self.routers.iter_mut().for_each(Router::check_rest);
    }
}

#[test]
fn a_message_in_a_ring_of_routers_ends_after_one_round() {
    let mut ring = Ring::new();
    ring.come(put(source(), far(), 8));
    ring.run();
    // The message, and the probe of each router.
    assert_eq!((ring.dropped(DropReason::Loop), ring.arrivals), (4, 4 + 3 * 3));
    ring.check_rest();
}

/// Messages that look alike, and some of each type.
#[test]
fn all_that_goes_round_ends() {
    let mut ring = Ring::new();
    let md = WireHandle { interface_cookie: 1, object_cookie: 5 };
    let bodies = [Body::Reply { md }, Body::Ack { md, match_bits: 5, manipulated_length: 7 }];
    let mut all = 0;
    for second in 0..30 {
        ring.now = NOW + PROBE_INTERVAL * second;
        for _ in 0..20 {
            ring.come(put(source(), far(), 8));
            all += 1;
        }
        for body in bodies {
            ring.come(Header { body, payload_length: 0, ..put(source(), far(), 0) });
            all += 1;
        }
        ring.run();
    }
    let probes = ring.dropped(DropReason::Loop) - all;
    // One goes round when the time of the proof is over, and some before the first.
    assert!(probes <= 3 * 4, "{probes} probes");
    assert!(ring.arrivals < 2 * all as usize, "{} arrivals of {all} messages", ring.arrivals);
    ring.check_rest();
}

/// A router with a router on each side, and no loop; the host behind may have a second one.
fn between(gateways: &[u8]) -> Router {
    let mut by: Vec<_> = gateways.iter().map(|host| (far(), gateway(2, *host))).collect();
    by.push((source(), gateway(1, 9)));
    Router::new(super::topology().with_net_routes(routes(&by)), [8, 8, 0])
}

/// A message of the source comes by its router; what leaves then.
fn pass(router: &mut Router, header: &Header) -> Vec<Transmit> {
    if router.header(0, nid(1, 9), 0, header) == Verdict::Drop {
        return Vec::new();
    }
    router.received(0);
    let sent = router.sent_at(router.now);
    sent.iter().for_each(|sent| router.end(sent, Status::Ok));
    sent
}

#[test]
fn a_router_asks_no_more_than_once_in_a_while() {
    let mut router = between(&[7]);
    let header = put(source(), far(), 8);
    for second in 0..3 {
        router.now = NOW + PROBE_INTERVAL * second;
        let sent = pass(&mut router, &header);
        let [probe, message] = sent[..] else { panic!("{sent:?}") };
        assert_eq!((message.header, message.next_hop), (header, nid(2, 7)));
        let Body::Ack { manipulated_length: 0, .. } = probe.header.body else { panic!("{probe:?}") };
        let ends = (probe.header.source, probe.header.destination, probe.header.payload_length);
        assert_eq!(ends, (header.source, header.destination, 0));
        assert_eq!((probe.next_hop, probe.payload), (nid(2, 7), None));
        for _ in 0..5 {
            assert_eq!(pass(&mut router, &header).len(), 1, "it was just asked");
        }
    }
    assert_eq!(router.node.shard.counters().dropped().messages, 0);
    router.check_rest();
}

/// Messages straight from their source, or straight to their destination, are in no loop that goes unnoticed.
#[test]
fn no_probe_goes_where_none_is_needed() {
    let mut router = between(&[7]);
    assert_ne!(router.come(0, &put(nid(1, 2), far(), 8)), Verdict::Drop);
    router.pass_on(0);
    assert_eq!(pass(&mut router, &put(source(), nid(2, 3), 8)).len(), 1);
    router.check_rest();
}

/// Others cannot make a router believe that it is in a loop, and what is old says nothing.
#[test]
fn a_probe_is_believed_by_its_seal_alone() {
    let mut router = between(&[7]);
    let header = put(source(), far(), 8);
    let probe = pass(&mut router, &header)[0].header;
    let Body::Ack { md, .. } = probe.body else { panic!("{probe:?}") };
    let with = |md| Header { body: Body::Ack { md, match_bits: 0, manipulated_length: 0 }, ..probe };
    let mut elsewhere = probe;
    elsewhere.destination.nid = nid(50, 6);
    let guessed = with(WireHandle { interface_cookie: md.interface_cookie + 1, ..md });
    let renamed = with(WireHandle { object_cookie: md.object_cookie ^ 1 << 40, ..md });
    for forged in [elsewhere, guessed, renamed] {
        let verdict = router.header(1, nid(2, 7), 0, &forged);
        assert_eq!((verdict, router.drops(DropReason::Loop)), (Verdict::Drop, 0), "{forged:?}");
        assert!(!pass(&mut router, &header).is_empty(), "{forged:?} is believed");
    }
    router.now = NOW + PROBE_INTERVAL * 61;
    assert_eq!(router.header(1, nid(2, 7), 0, &probe), Verdict::Drop);
    assert_eq!(router.drops(DropReason::Loop), 1);
    assert!(!pass(&mut router, &header).is_empty(), "it is old");
    router.check_rest();
}

/// The destination has the handle, and may have another node send it back.
#[test]
fn a_probe_says_nothing_of_other_destinations() {
    let mut router = between(&[7]);
    let header = put(source(), far(), 8);
    let probe = pass(&mut router, &header)[0].header;
    assert_eq!(router.header(1, nid(2, 7), 0, &probe), Verdict::Drop);
    assert_eq!(router.drops(DropReason::Loop), 1);
    assert!(pass(&mut router, &header).is_empty());
    let other = put(source(), nid(50, 6), 8);
    assert!(pass(&mut router, &other).iter().any(|sent| sent.header == other));
    router.check_rest();
}

#[test]
fn another_gateway_is_taken_while_one_leads_back() {
    let mut router = between(&[7, 8]);
    let header = put(source(), far(), 8);
    let to_first = |sent: &Transmit| sent.next_hop == nid(2, 7);
    let probe = (0..4).find_map(|_| pass(&mut router, &header).into_iter().find(to_first)).unwrap();
    assert_eq!(router.header(1, nid(2, 8), 0, &probe.header), Verdict::Drop);
    assert_eq!(router.drops(DropReason::Loop), 1);
    for second in 0..10 {
        router.now = NOW + PROBE_INTERVAL * second;
        let sent = [pass(&mut router, &header), pass(&mut router, &header)].concat();
        assert!(sent.iter().all(|sent| sent.next_hop == nid(2, 8)) && sent.len() >= 2, "{sent:?}");
    }
    router.now = NOW + LOOP_HOLD;
    let sent = [pass(&mut router, &header), pass(&mut router, &header)].concat();
    assert!(sent.iter().any(to_first), "the routes may have been mended: {sent:?}");
    assert_eq!(router.drops(DropReason::Loop), 1);
    router.check_rest();
}
