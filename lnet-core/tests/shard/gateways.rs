//! Gateways that fail: what comes by them, and what waits for them.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::lnd::{RxId, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::stats::DropReason;
use lnet_core::topology::{GatewayNi, LocalNi, NetRoutes, NiStatus, Topology};
use lnet_core::tunables::Tunables;
use lnet_wire::{Body, Header, Nid, ProcessId};

use crate::common::{NOW, Node, local_ni, nid};
use crate::routes::{
    NIS, arrive, check_rest, far, fill, gateway, node_of, one, post, put_from, put_from_far, routes, sent,
    topology, update,
};

/// Gateways 7 and 8 of which the first alone leads to the far net, the other one to another net.
fn asymmetric(dead: &[Nid]) -> NetRoutes {
    let gateways = [nid(1, 7), nid(2, 7), nid(1, 8)]
        .map(|nid| (nid, if nid == self::nid(2, 7) { self::nid(1, 7) } else { nid }));
    let behind = vec![(nid(1, 7), far().net()), (nid(1, 8), nid(8, 1).net())];
    NetRoutes::new(Vec::new(), Vec::new()).with_gateways(gateways.to_vec(), behind, dead)
}

/// A node that drops what is asymmetric, or does not.
fn judge(drops_asymmetric: bool, dead: &[Nid]) -> Node {
    let tunables = Tunables { drops_asymmetric, ..Tunables::DEFAULT };
    node_of(topology(&[]).with_net_routes(Some(Arc::new(asymmetric(dead)))).with_tunables(tunables))
}

/// LNet's `lnet_drop_asym_route`: the routes by the gateway count, be they up or down.
#[test]
fn what_comes_without_a_route_back_is_dropped_where_that_is_demanded() {
    for (drops, by, expected) in [
        (true, nid(1, 7), true),
        (true, nid(1, 8), false),
        (false, nid(1, 7), true),
        (false, nid(1, 8), true),
    ] {
        let mut node = judge(drops, &[]);
        post(&mut node);
        let verdict = arrive(&mut node, by, &put_from_far(false));
        assert_eq!(verdict != Verdict::Drop, expected, "{drops} {by}");
        let dropped = node.shard.counters().drops(DropReason::AsymmetricRoute).messages;
        assert_eq!(dropped, u64::from(!expected), "{drops} {by}");
        // Messages of the gateway itself come by no other one.
        node.events();
        post(&mut node);
        let own = Header { source: ProcessId::lustre(by), ..put_from_far(false) };
        assert_ne!(arrive(&mut node, by, &own), Verdict::Drop);
    }
}

#[test]
fn what_comes_by_a_dead_gateway_is_told_once() {
    let mut node = judge(false, &[nid(1, 7)]);
    let told = |node: &mut Node| std::iter::from_fn(|| node.shard.poll_foreign()).collect::<Vec<_>>();
    let wanted = node.shard.wanted_count();
    let come = |node: &mut Node, by| {
        post(node);
        assert_ne!(arrive(node, by, &put_from_far(false)), Verdict::Drop);
        node.events();
    };
    come(&mut node, nid(1, 8));
    assert_eq!(told(&mut node), [], "it is alive");
    come(&mut node, nid(1, 7));
    come(&mut node, nid(1, 7));
    assert_eq!(told(&mut node), [(nid(1, 7), far().net())]);
    assert_eq!(node.shard.wanted_count(), wanted + 1, "the node is to hear of it soon");
    come(&mut node, nid(1, 7));
    assert_eq!(told(&mut node), []);
    // With other routes all begins anew.
    let again = Some(Arc::new(asymmetric(&[nid(1, 7)])));
    update(&mut node, topology(&[]).with_net_routes(again));
    come(&mut node, nid(1, 7));
    assert_eq!(told(&mut node), [(nid(1, 7), far().net())]);
}
