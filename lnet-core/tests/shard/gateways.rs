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

/// The node with its first NI without a link, for which messages wait, and these gateways.
fn without_a_link(by: &[GatewayNi]) -> Topology {
    let down = LocalNi { status: NiStatus::Down, ..local_ni(nid(1, 1), 16, 4) };
    let by: Vec<_> = by.iter().map(|ni| (far(), *ni)).collect();
    Topology::new(vec![down, local_ni(nid(2, 1), 16, 4)]).with_net_routes(routes(&by))
}

#[test]
fn what_waits_for_a_link_follows_the_routes() {
    let awaiting = |host| GatewayNi { awaits_link: true, ..gateway(1, host) };
    for (source, by, expected) in
        [(None, gateway(2, 8), nid(2, 8)), (Some(nid(1, 1)), awaiting(8), nid(1, 8))]
    {
        let mut node = node_of(without_a_link(&[awaiting(7)]));
        (0..6).for_each(|_| put_from(&mut node, far(), source));
        let under_way = sent(&mut node);
        assert_eq!(under_way.len(), 4, "the LND has them wait");
        update(&mut node, without_a_link(&[by]));
        let others = sent(&mut node);
        let hops: Vec<_> = others.iter().map(|message| message.next_hop).collect();
        assert_eq!(hops, [expected; 2], "{source:?}");
        for message in under_way.iter().chain(&others) {
            node.shard.sent(NOW, message.tx, Status::Ok);
        }
        assert_eq!(node.events().len(), 6);
        check_rest(&mut node);
    }
}

#[test]
fn answers_that_wait_go_by_another_gateway_if_theirs_is_none_any_more() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    let under_way = fill(&mut node);
    post(&mut node);
    assert_ne!(arrive(&mut node, nid(1, 7), &put_from_far(true)), Verdict::Drop);
    assert_eq!(sent(&mut node), [], "the gateway has no credit");
    update(&mut node, topology(&[gateway(1, 8)]));
    let others = sent(&mut node);
    let acks = others.iter().filter(|message| matches!(message.header.body, Body::Ack { .. }));
    let acks: Vec<_> = acks.map(|ack| (ack.next_hop, ack.header.destination.nid)).collect();
    assert_eq!(acks, [(nid(1, 8), far())]);
    assert_eq!(others.len(), 3);
    for message in under_way.iter().chain(&others) {
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
    node.events();
    check_rest(&mut node);
}

/// An answer whose gateway leads nowhere, and is one still, goes by that.
#[test]
fn answers_go_by_their_gateway_as_long_as_it_is_one() {
    let mut node = node_of(topology(&[gateway(1, 7)]));
    let under_way = fill(&mut node);
    post(&mut node);
    arrive(&mut node, nid(1, 7), &put_from_far(true));
    let gateways = [nid(1, 7), nid(1, 8)].map(|nid| (nid, nid)).to_vec();
    let one_up = NetRoutes::new(vec![(far().net(), gateway(1, 8))], Vec::new());
    let table = one_up.with_gateways(gateways, Vec::new(), &[]);
    update(&mut node, topology(&[]).with_net_routes(Some(Arc::new(table))));
    let moved = sent(&mut node);
    assert_eq!(moved.iter().map(|message| message.next_hop).collect::<Vec<_>>(), [nid(1, 8); 2]);
    under_way.iter().for_each(|message| node.shard.sent(NOW, message.tx, Status::Ok));
    let ack = one(&mut node);
    assert_eq!((ack.next_hop, ack.header.destination.nid), (nid(1, 7), far()));
    moved.iter().chain([&ack]).for_each(|message| node.shard.sent(NOW, message.tx, Status::Ok));
    node.events();
    check_rest(&mut node);
}

#[test]
fn a_late_ack_goes_by_another_gateway_if_its_own_is_none_any_more() {
    for (by, expected) in
        [(vec![gateway(1, 7)], Some(nid(1, 7))), (vec![gateway(1, 8)], Some(nid(1, 8))), (vec![], None)]
    {
        for is_asked in [true, false] {
            let mut node = node_of(topology(&[gateway(1, 7)]));
            let sink = MdSpec { options: MdOptions::PUT | MdOptions::ACK_LATE, ..node.md(100) };
            node.post(5, &sink);
            assert_ne!(
                node.shard.header(NOW, NIS[0], &nid(1, 7), RxId(0), &put_from_far(true)),
                Verdict::Drop
            );
            node.shard.received(NOW, RxId(0), Status::Ok);
            assert_eq!(sent(&mut node), []);
            update(&mut node, topology(&by));
            match is_asked {
                true => node.shard.acknowledge(NOW),
                false => node.shard.handle_timeout(NOW + Duration::from_secs(1)),
            }
            let acks = sent(&mut node);
            assert_eq!(acks.first().map(|ack| ack.next_hop), expected);
            acks.iter().for_each(|ack| node.shard.sent(NOW, ack.tx, Status::Ok));
            node.events();
            check_rest(&mut node);
        }
    }
}
