//! What kernel nodes must not be sent.

use lnet_core::ShardConfig;
use lnet_core::lnd::LndFacts;
use lnet_core::md::{MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_core::topology::{LocalNi, Topology};
use lnet_wire::{Net, Nid, ProcessId};

use crate::common::{NOW, Node, config, get_request, host, local_ni, nid, put_request};

#[test]
fn nothing_is_sent_that_kernel_nodes_die_of() {
    let mut node = Node::new(config());
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(4), ..node.md(8) }).unwrap();
    for portal in [50, 51] {
        let get = GetRequest { portal, ..get_request(md) };
        assert_eq!(node.shard.get(NOW, &get), Err(SubmitError::OnlyPuts(portal)));
        assert!(node.transmit().is_none());
    }
    // PUTs go there, and GETs go to other portals, to this node itself, and to other nets.
    node.shard.put(NOW, &PutRequest { portal: 51, ..put_request(md, 2) }).unwrap();
    node.shard.get(NOW, &GetRequest { portal: 52, ..get_request(md) }).unwrap();
    assert_eq!(std::iter::from_fn(|| node.transmit()).count(), 2);
    let get = GetRequest { portal: 50, target: host(1), ..get_request(md) };
    assert_ne!(node.shard.get(NOW, &get), Err(SubmitError::OnlyPuts(50)));
    let target = ProcessId::lustre(Nid::new_ip(Net::XDP, [10, 0, 0, 2].into()).unwrap());
    let get = GetRequest { portal: 50, target, ..get_request(md) };
    assert_ne!(node.shard.get(NOW, &get), Err(SubmitError::OnlyPuts(50)));
}

#[test]
fn peers_of_another_lnd_are_asked_for_anything() {
    let facts = LndFacts { takes_any_get: true, ..LndFacts::KERNEL };
    let topology = Topology::new(vec![LocalNi { facts, ..local_ni(nid(1, 1), 8, 4) }]);
    let mut node = Node::new(ShardConfig { topology: topology.into(), ..config() });
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(4), ..node.md(8) }).unwrap();
    node.shard.get(NOW, &GetRequest { portal: 50, ..get_request(md) }).unwrap();
    assert!(node.transmit().is_some());
}
