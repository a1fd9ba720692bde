//! Messages of other nodes in any order of events: all that they take comes home, and none is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use lnet_core::lnd::{Cause, RxId, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::topology::{Forwarding, Topology};
use lnet_model::pool::PoolKind;
use lnet_wire::Nid;
use proptest::prelude::*;
use proptest::sample::Index;

use super::cut::taking_parts;
use super::{Router, put, topology};
use crate::common::{NOW, nid};
use crate::routes::{gateway, routes};

/// Names of messages that arrive.
const NAMES: u32 = 48;

#[derive(Clone, Debug)]
enum Operation {
    /// A message comes from a host, or by the gateway from a source behind it.
    Come { from: u8, behind: Option<u8>, to: u8, length_bytes: u32 },
    /// An LND has put a message in place, or gives it up.
    Place { which: Index, well: bool },
    /// An LND has put so much more of a message in place.
    Arrive { which: Index, bytes: u32 },
    /// An LND gives up a message that waits.
    GiveUp { which: Index },
    /// An LND has finished with a message that left.
    End { which: Index, status: Status },
    /// Delayed messages are resumed.
    Resume,
    /// So many buffers of each pool are to be there.
    Resize { pools: [u32; 3] },
    /// Another snapshot comes.
    Update { forwarding: Forwarding, gateways: u8 },
    /// So many seconds pass.
    Wait { seconds: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let behind = prop::option::weighted(0.3, 1..4_u8);
    let length_bytes = prop_oneof![Just(0), 1..100_u32, Just(5000), Just(300_000)];
    let come = (2..6_u8, behind, 9..14_u8, length_bytes)
        .prop_map(|(from, behind, to, length_bytes)| Operation::Come { from, behind, to, length_bytes });
    let status = prop_oneof![
        6 => Just(Status::Ok),
        1 => Just(Status::NeverSent(Cause::Unreachable)),
        1 => Just(Status::Unknown(Cause::Timeout)),
    ];
    let forwarding =
        prop_oneof![4 => Just(Forwarding::On), 1 => Just(Forwarding::Ending), 1 => Just(Forwarding::Off)];
    prop_oneof![
        12 => come,
        8 => (any::<Index>(), prop::bool::weighted(0.9)).prop_map(|(which, well)| Operation::Place { which, well }),
        8 => (any::<Index>(), 1..200_000_u32).prop_map(|(which, bytes)| Operation::Arrive { which, bytes }),
        1 => any::<Index>().prop_map(|which| Operation::GiveUp { which }),
        8 => (any::<Index>(), status).prop_map(|(which, status)| Operation::End { which, status }),
        4 => Just(Operation::Resume),
        1 => [0..6_u32, 0..12, 0..6].prop_map(|pools| Operation::Resize { pools }),
        1 => (forwarding, 1..4_u8).prop_map(|(forwarding, gateways)| Operation::Update { forwarding, gateways }),
        1 => (1..6_u64).prop_map(|seconds| Operation::Wait { seconds }),
    ]
}

/// A topology with so many gateways to `tcp8`, and one that leads to `tcp9`.
fn snapshot(forwarding: Forwarding, gateways: u8) -> Topology {
    let far = (0..gateways).map(|host| (nid(8, 1), gateway(2, 13 + host)));
    let by: Vec<_> = far.chain([(nid(9, 1), gateway(1, 7))]).collect();
    Topology::new(taking_parts()).with_forwarding(forwarding).with_net_routes(routes(&by))
}

struct Run {
    router: Router,
    seconds: u64,
    idle: Vec<u32>,
    arriving: Vec<u32>,
    waiting: Vec<u32>,
    flying: Vec<Transmit>,
    /// Length of each message that arrives, and how much of it is in place.
    arrived: BTreeMap<u32, (u32, u32)>,
    /// Messages that an LND is to end.
    withdrawn: BTreeSet<TxId>,
    /// Messages by how they came to an end: dropped at once, dropped later, given up.
    ended: BTreeMap<&'static str, u64>,
    come: u64,
}

impl Run {
    fn new() -> Self {
        Self {
            router: Router::new(snapshot(Forwarding::On, 2), [2, 6, 2]),
            seconds: 0,
            idle: (0..NAMES).collect(),
            arriving: Vec::new(),
            waiting: Vec::new(),
            flying: Vec::new(),
            arrived: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            ended: BTreeMap::new(),
            come: 0,
        }
    }

    fn now(&self) -> lnet_core::time::Instant {
        NOW + std::time::Duration::from_secs(self.seconds)
    }

    fn end(&mut self, how: &'static str, rx: u32) {
        *self.ended.entry(how).or_default() += 1;
        self.idle.push(rx);
    }

    fn resume(&mut self) {
        while let Some((_, RxId(rx), verdict)) = self.router.node.shard.poll_resume() {
            let at = self.waiting.iter().position(|waits| *waits == rx).expect("it waited");
            self.waiting.remove(at);
            match verdict {
                Verdict::Drop => self.end("dropped late", rx),
                _ => self.arriving.push(rx),
            }
        }
    }

    /// Messages leave, and more of some that have left: what is there of them only grows.
    fn poll(&mut self) {
        for sent in self.router.sent_at(self.now()) {
            assert!(sent.payload.is_some() || sent.header.payload_length == 0, "{sent:?}");
            self.flying.push(sent);
        }
        while let Some((&transmit, comes)) = self.router.node.shard.poll_extended() {
            let known = self.flying.iter_mut().find(|sent| sent.tx == transmit.tx).expect("an LND has it");
            let there = |sent: &Transmit| sent.payload.map(|span| span.length_bytes);
            assert!(!self.withdrawn.contains(&transmit.tx), "{transmit:?}");
            assert!(there(&transmit) > there(known) || !comes, "{transmit:?} after {known:?}");
            assert!(there(known) < Some(known.header.payload_length), "{known:?} was whole");
            *known = transmit;
            if !comes {
                self.withdrawn.insert(transmit.tx);
            }
        }
    }

    /// An LND has finished with a message. It cannot have sent well what it was to withdraw.
    fn finish(&mut self, sent: &Transmit, status: Status) {
        let now = self.now();
        let is_withdrawn = self.withdrawn.remove(&sent.tx);
        let status = if is_withdrawn { Status::Unknown(Cause::Cancelled) } else { status };
        self.router.node.shard.sent(now, sent.tx, status);
    }

    fn receive(&mut self, rx: u32, status: Status) {
        let now = self.now();
        self.router.node.shard.received(now, RxId(rx), status);
        self.end(if status == Status::Ok { "taken" } else { "lost" }, rx);
    }

    fn apply(&mut self, operation: &Operation) {
        let now = self.now();
        match *operation {
            Operation::Come { from, behind, to, length_bytes } => {
                let Some(rx) = self.idle.pop() else { return };
                self.come += 1;
                let (hop, source) = match behind {
                    Some(source) => (nid(1, 7), nid(9, source)),
                    None => (nid(1, from), nid(1, from)),
                };
                let target: Nid = if to == 13 { nid(8, 5) } else { nid(2, to) };
                let header = put(source, target, length_bytes);
                self.arrived.insert(rx, (length_bytes, 0));
                match self.router.node.shard.header(now, super::NIS[0], &hop, RxId(rx), &header) {
                    Verdict::Deliver(_) => self.arriving.push(rx),
                    Verdict::Delay => self.waiting.push(rx),
                    Verdict::Drop => self.end("dropped", rx),
                }
            }
            Operation::Place { which, well } if !self.arriving.is_empty() => {
                let rx = self.arriving.swap_remove(which.index(self.arriving.len()));
                self.receive(rx, if well { Status::Ok } else { Status::Unknown(Cause::Reset) });
            }
            Operation::Arrive { which, bytes } if !self.arriving.is_empty() => {
                let rx = self.arriving[which.index(self.arriving.len())];
                let (length_bytes, arrived) = self.arrived.get_mut(&rx).expect("it has come");
                if *arrived + bytes < *length_bytes {
                    *arrived += bytes;
                    self.router.node.shard.arrived(now, RxId(rx), *arrived);
                }
            }
            Operation::GiveUp { which } if !self.waiting.is_empty() => {
                let rx = self.waiting.swap_remove(which.index(self.waiting.len()));
                self.receive(rx, Status::Unknown(Cause::Reset));
            }
            Operation::End { which, status } if !self.flying.is_empty() => {
                let sent = self.flying.swap_remove(which.index(self.flying.len()));
                self.finish(&sent, status);
            }
            Operation::Resume => self.resume(),
            Operation::Resize { pools } => {
                self.router.node.shard.set_router_pools(pools);
                self.router.add_buffers();
                while self.router.node.shard.poll_surplus().is_some() {}
            }
            Operation::Update { forwarding, gateways } => self.router.update(snapshot(forwarding, gateways)),
            Operation::Wait { seconds } => {
                self.seconds += seconds;
                let now = self.now();
                self.router.node.shard.handle_timeout(now);
            }
            Operation::Place { .. }
            | Operation::Arrive { .. }
            | Operation::GiveUp { .. }
            | Operation::End { .. } => {}
        }
        self.poll();
        for pool in self.router.node.shard.router_pools() {
            assert!(pool.credits >= -i64::from(NAMES) && pool.credits <= i64::from(pool.buffers), "{pool:?}");
        }
    }

    /// Everything that is under way ends well, without time going by: none may wait for ever.
    fn drain(&mut self) {
        self.router.update(topology().with_net_routes(routes(&[(nid(9, 1), gateway(1, 7))])));
        self.apply(&Operation::Resize { pools: [2, 6, 2] });
        loop {
            self.resume();
            let before = (self.arriving.len(), self.flying.len());
            for rx in std::mem::take(&mut self.arriving) {
                self.receive(rx, Status::Ok);
            }
            self.poll();
            for sent in std::mem::take(&mut self.flying) {
                self.finish(&sent, Status::Ok);
            }
            self.poll();
            if before == (0, 0) && self.flying.is_empty() && !self.router.node.shard.has_resumed() {
                break;
            }
        }
        assert_eq!(self.waiting, [], "they wait for what is free");
        assert_eq!(self.ended.values().sum::<u64>(), self.come);
        self.router.check_rest();
        assert_eq!(self.router.pool(PoolKind::Small).credits, 6);
    }
}

proptest! {
    #[test]
    fn all_comes_home(operations in prop::collection::vec(operation(), 1..200)) {
        let mut run = Run::new();
        operations.iter().for_each(|operation| run.apply(operation));
        run.drain();
    }
}
