//! Five routers in a ring, with a net between each two: messages go both ways round, over streams that stand
//! still while their first message waits.

use std::collections::{BTreeMap, VecDeque};

use lnet_core::lnd::{NiId, RxId, Status, TxId, Uplink, Verdict};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::{Forwarding, LocalNi, Topology};
use lnet_wire::{Header, MessageType, Nid};

use super::{Router, put};
use crate::common::{NOW, local_ni, nid};
use crate::routes::{gateway, routes};

const ROUTERS: usize = 5;

/// The net after another one, by so many.
fn net(at: usize, by: usize) -> u16 {
    ((at + by) % ROUTERS) as u16 + 1
}

/// The NID of a router on a net.
fn router_nid(net: u16, router: usize) -> Nid {
    nid(net, (router % ROUTERS) as u8 + 1)
}

/// A host of a net, none of whose messages is like another one's.
fn host_nid(net: u16) -> Nid {
    nid(net, 100)
}

/// A router between net `at` and the next one.
fn router(at: usize, buffers: u32, router_credits: u32) -> Router {
    let ni = |by| LocalNi { router_credits, ..local_ni(router_nid(net(at, by), at), 8, 2) };
    let nis = [0, 1].map(ni).to_vec();
    let next = gateway(net(at, 1), ((at + 1) % ROUTERS) as u8 + 1);
    let former = gateway(net(at, 0), ((at + ROUTERS - 1) % ROUTERS) as u8 + 1);
    let by = [(nid(net(at, 2), 1), next), (nid(net(at, 3), 1), next), (nid(net(at, 4), 1), former)];
    let topology = Topology::new(nis).with_forwarding(Forwarding::On).with_net_routes(routes(&by));
    Router::keyed(topology, [8, buffers, 0], [at as u64, 7])
}

/// The router that waits for a message which a stream carries, if it is not its first one.
type Sender = Option<(usize, TxId)>;

/// A stream to a router.
struct Stream {
    /// Messages on their way, the first to arrive in front.
    messages: VecDeque<(Sender, Header)>,
    /// The name of its first message, and whether that waits.
    rx: u32,
    waits: bool,
}

struct Ring {
    now: Instant,
    routers: Vec<Router>,
    /// Streams by the router that they lead to, its NI, and the NID that they come from.
    streams: BTreeMap<(usize, u16, Nid), Stream>,
    /// PUTs, without the probes of routers.
    delivered: usize,
    dropped: usize,
}

impl Ring {
    fn new(buffers: u32, router_credits: u32) -> Self {
        let routers = (0..ROUTERS).map(|at| router(at, buffers, router_credits)).collect();
        Self { now: NOW, routers, streams: BTreeMap::new(), delivered: 0, dropped: 0 }
    }

    fn stream(&mut self, key: (usize, u16, Nid)) -> &mut Stream {
        let rx = self.streams.len() as u32;
        self.streams.entry(key).or_insert(Stream { messages: VecDeque::new(), rx, waits: false })
    }

    /// Has the hosts of all nets send so many to each of three others: two and three nets on, and two back.
    fn load(&mut self, count: usize) -> usize {
        for at in 0..ROUTERS {
            let source = host_nid(net(at, 0));
            // The host's first router on the way on, and that on the way back.
            let [on, back] = [(at, 0), ((at + ROUTERS - 1) % ROUTERS, 1)];
            for ((router, ni), by) in [(on, 2), (on, 3), (back, 3)] {
                let header = put(source, host_nid(net(at, by)), 8);
                self.stream((router, ni, source)).messages.extend(vec![(None, header); count]);
            }
        }
        3 * ROUTERS * count
    }

    /// The first message of a stream is dropped.
    fn drop_first(&mut self, key: (usize, u16, Nid)) {
        let (_, header) = self.streams[&key].messages.front().unwrap();
        self.dropped += usize::from(header.message_type() == MessageType::Put);
        self.end_first(key);
    }

    /// The end of the first message of a stream.
    fn end_first(&mut self, key: (usize, u16, Nid)) {
        let stream = self.streams.get_mut(&key).unwrap();
        stream.waits = false;
        let (sender, _) = stream.messages.pop_front().unwrap();
        if let Some((router, tx)) = sender {
            self.routers[router].node.shard.sent(self.now, tx, Status::Ok);
        }
    }

    fn take(&mut self, key: (usize, u16, Nid)) {
        let rx = self.streams[&key].rx;
        self.routers[key.0].node.shard.received(self.now, RxId(rx), Status::Ok);
        self.end_first(key);
    }

    /// Moves what can be moved; whether anything was.
    fn step(&mut self) -> bool {
        let mut moved = false;
        let keys: Vec<_> = self.streams.keys().copied().collect();
        for key in keys {
            let (router, ni, from) = key;
            let &Stream { ref messages, rx, waits } = &self.streams[&key];
            let Some((_, header)) = messages.front().copied().filter(|_| !waits) else { continue };
            let shard = &mut self.routers[router].node.shard;
            match shard.header(self.now, NiId(ni), &from, RxId(rx), &header) {
                Verdict::Deliver(_) => self.take(key),
                Verdict::Drop => self.drop_first(key),
                Verdict::Delay => {
                    self.stream(key).waits = true;
                    continue;
                }
            }
            moved = true;
        }
        for router in 0..ROUTERS {
            while let Some((_, rx, verdict)) = self.routers[router].node.shard.poll_resume() {
                let its = |(key, stream): &(&(usize, u16, Nid), &Stream)| {
                    key.0 == router && stream.waits && stream.rx == rx.0
                };
                let key = *self.streams.iter().find(its).unwrap().0;
                match verdict {
                    Verdict::Deliver(_) => self.take(key),
                    _ => self.drop_first(key),
                }
                moved = true;
            }
            for sent in self.routers[router].sent_at(self.now) {
                moved = true;
                let own = router_nid(sent.next_hop.net().number(), router);
                let to = (0..ROUTERS).find_map(|at| {
                    let ni = [0, 1].into_iter().find(|ni| router_nid(net(at, *ni), at) == sent.next_hop)?;
                    Some((at, ni as u16, own))
                });
                match to {
                    Some(key) => {
                        let message = (Some((router, sent.tx)), sent.header);
                        self.stream(key).messages.push_back(message);
                    }
                    None => {
                        assert_eq!(sent.next_hop, sent.header.destination.nid);
                        self.delivered += usize::from(sent.header.message_type() == MessageType::Put);
                        self.routers[router].node.shard.sent(self.now, sent.tx, Status::Ok);
                    }
                }
            }
        }
        moved
    }

    fn is_done(&self) -> bool {
        self.streams.values().all(|stream| stream.messages.is_empty())
    }

    /// Runs until nothing is left; how often all stood still before.
    fn run(&mut self) -> usize {
        let mut still = 0;
        loop {
            while self.step() {}
            if self.is_done() {
                return still;
            }
            still += 1;
            let timeouts = self.routers.iter().map(|router| router.node.shard.poll_timeout());
            self.now = timeouts.flatten().min().expect("messages are left, and nothing will ever move");
            assert!(still < 1000, "it takes {:?}", self.now);
            for router in &mut self.routers {
                router.node.shard.handle_timeout(self.now);
            }
        }
    }

    /// Messages that routers have dropped for another reason than that they had no buffer in time.
    fn lost(&self) -> u64 {
        let lost = |router: &Router| {
            router.node.shard.counters().dropped().messages - router.drops(DropReason::RouterFull)
        };
        self.routers.iter().map(lost).sum()
    }

    fn check_rest(&mut self) {
        self.routers.iter_mut().for_each(Router::check_rest);
    }
}

#[test]
fn a_ring_with_all_credits_and_buffers_in_use_comes_to_an_end() {
    let mut ring = Ring::new(2, 2);
    let all = ring.load(20);
    let still = ring.run();
    assert!(still > 0, "it never stood still, so nothing is shown");
    assert_eq!((ring.delivered + ring.dropped, ring.lost()), (all, 0));
    assert!(ring.delivered > all / 4, "{} of {all} have arrived", ring.delivered);
    ring.check_rest();
}

#[test]
fn a_ring_with_room_loses_nothing() {
    let mut ring = Ring::new(64, 64);
    let all = ring.load(5);
    assert_eq!(ring.run(), 0);
    assert_eq!((ring.delivered, ring.dropped, ring.lost()), (all, 0, 0));
    ring.check_rest();
}
