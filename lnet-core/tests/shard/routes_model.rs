//! The choice of a gateway against a naive one, over random tables and loads.

use std::collections::BTreeMap;
use std::sync::Arc;

use lnet_core::ShardConfig;
use lnet_core::limits::Limits;
use lnet_core::lnd::{NiId, Status, Transmit, Uplink};
use lnet_core::shard::PutRequest;
use lnet_core::topology::{GatewayNi, Topology};
use lnet_wire::{Nid, ProcessId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{NOW, Node, config, local_ni, nid, put_request};
use crate::routes::{gateway, routes};

/// Nets behind gateways.
const FAR: [u16; 2] = [8, 9];
/// Credits of a gateway's NI.
const CREDITS: i64 = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A message goes to a net.
    Put(usize),
    /// One of the messages under way ends.
    End(usize),
    /// Other routes: to which net, by which gateway, and what they are like.
    Table(Vec<(usize, u8, GatewayNi)>),
}

fn route() -> impl Strategy<Value = (usize, u8, GatewayNi)> {
    let values = (any::<bool>(), 0..2_u32, 1..3_u8, 998..1001_u32, 0..2_u32);
    (0..FAR.len(), 0..6_u8, values).prop_map(
        |(to, host, (awaits_link, priority, hops, health, ni_priority))| {
            let ni = gateway(1 + u16::from(host) % 2, 10 + host);
            (to, host, GatewayNi { awaits_link, priority, hops, health, ni_priority, ..ni })
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..FAR.len()).prop_map(Step::Put),
        4 => any::<usize>().prop_map(Step::End),
        1 => vec(route(), 0..10).prop_map(Step::Table),
    ]
}

struct Run {
    node: Node,
    /// The routes to each net, a gateway once.
    table: BTreeMap<(usize, u8), GatewayNi>,
    under_way: Vec<Transmit>,
    /// When each gateway was last used.
    used: BTreeMap<Nid, usize>,
    generation: u64,
}

impl Run {
    fn topology(&self) -> Topology {
        let locals = [1, 2].map(|net| local_ni(nid(net, 1), 64, CREDITS as u32));
        let table: Vec<_> = self.table.iter().map(|((to, _), ni)| (nid(FAR[*to], 1), *ni)).collect();
        Topology::new(locals.to_vec()).with_net_routes(routes(&table)).with_generation(self.generation)
    }

    /// Values that count of a gateway's NI, in their order.
    fn values(&self, ni: &GatewayNi) -> impl Ord + std::fmt::Debug + use<> {
        let known = self.node.shard.peers().find(|peer| peer.nid == ni.nid);
        let (queued, credits) = known.map_or((0, CREDITS), |peer| (peer.queued_bytes, peer.credits));
        let used = self.used.get(&ni.nid).copied();
        (ni.awaits_link, ni.priority, ni.hops, -i64::from(ni.health), ni.ni_priority, queued, -credits, used)
    }

    fn poll(&mut self) {
        for ni in [NiId(0), NiId(1)] {
            while let Some(lent) = self.node.shard.poll_transmit(NOW, ni) {
                self.under_way.push(*lent.transmit);
            }
        }
    }

    fn put(&mut self, at: usize, to: usize) {
        let far = nid(FAR[to], 1);
        let best = self.table.iter().filter(|((net, _), _)| *net == to).map(|(_, ni)| self.values(ni)).min();
        let chosen = self.node.shard.explain(NOW, &far).choice;
        let chosen = chosen.map(|choice| {
            let mut to_net = self.table.iter().filter(|((net, _), _)| *net == to).map(|(_, ni)| *ni);
            to_net.find(|ni| ni.nid == choice.next_hop).unwrap()
        });
        assert_eq!(chosen.as_ref().map(|ni| self.values(ni)), best);
        let md = self.node.shard.bind(&self.node.md(10)).unwrap();
        let request = PutRequest { target: ProcessId::lustre(far), ..put_request(md, 0) };
        self.node.shard.put(NOW, &request).unwrap();
        if let Some(chosen) = chosen {
            self.used.insert(chosen.nid, at);
            let known = self.node.shard.peers().find(|peer| peer.nid == chosen.nid).unwrap();
            assert!(known.reference_count > 0, "{:?} has the message", chosen.nid);
        }
    }

    fn end(&mut self, which: usize) {
        if !self.under_way.is_empty() {
            let message = self.under_way.swap_remove(which % self.under_way.len());
            self.node.shard.sent(NOW, message.tx, Status::Ok);
        }
        self.node.events();
    }
}

proptest! {
    #[test]
    fn the_gateway_is_the_best_one_by_each_criterion(steps in vec(step(), 1..60)) {
        let limits = Limits { requests: 64, peers: 64, ..config().limits };
        let locals = [1, 2].map(|net| local_ni(nid(net, 1), 64, CREDITS as u32));
        let topology = Arc::new(Topology::new(locals.to_vec()));
        let node = Node::new(ShardConfig { limits, topology, ..config() });
        let (table, under_way, used) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let mut run = Run { node, table, under_way, used, generation: 0 };
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(to) => run.put(at, to),
                Step::End(which) => run.end(which),
                Step::Table(table) => {
                    run.table = table.into_iter().map(|(to, host, ni)| ((to, host), ni)).collect();
                    run.generation += 1;
                    let topology = run.topology();
                    run.node.shard.update(NOW, Arc::new(topology));
                }
            }
            run.poll();
        }
        while !run.under_way.is_empty() {
            run.end(0);
            run.poll();
        }
        prop_assert_eq!(run.node.shard.usage().messages, 0);
        prop_assert!(run.node.shard.peers().all(|peer| peer.credits == CREDITS && peer.queued_bytes == 0));
    }
}
