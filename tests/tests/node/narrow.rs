//! Nodes whose interfaces have long frames, with a link between them that has not.

use lnet_core::limits::Limits;
use lnet_tests::netns::{Namespace, Netns, Wiring, ip};
use lnet_tests::node::{By, LIMITS, Plan, config, nid_v4, process, start};
use lnet_user::node::XdpMode;
use lnet_user::runtime::Worker;

use crate::privileged;
use crate::traffic::carry_out_with_losses;

/// Joins two namespaces by a bridge in a third one. The bridge drops what is longer than the MTU of its
/// ports, and tells no sender.
fn bridge(netns: &Netns, middle: &Namespace, mtu_bytes: u16) {
    ip(middle, "link add name bridge0 type bridge");
    ip(middle, "link set dev bridge0 up");
    ip(netns.a(), &format!("link delete dev {}", netns.a().interface().name));
    for (end, port) in [(netns.a(), "port-a"), (netns.b(), "port-b")] {
        let interface = end.interface();
        let (name, queues) = (&interface.name, "mtu 9000 numrxqueues 2 numtxqueues 2");
        let far_end = format!("peer name {port} mtu 9000 netns {}", middle.name());
        ip(end, &format!("link add {name} {queues} type veth {far_end}"));
        ip(end, &format!("address add {}/24 dev {name}", interface.ipv4));
        ip(end, &format!("link set dev {name} up"));
        ip(middle, &format!("link set dev {port} master bridge0 mtu {mtu_bytes}"));
        ip(middle, &format!("link set dev {port} up"));
    }
}

fn narrowed(workers: &[Worker]) -> u64 {
    workers
        .iter()
        .map(|worker| worker.xdp().expect("there is an NI").transfer_counters().paths_narrowed)
        .sum()
}

/// Puts and Gets, the first ones long, there and back; both ends find out.
fn there_and_back(modes: [XdpMode; 2]) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 9000, ..Wiring::default() });
    let middle = Netns::new(Wiring::default());
    bridge(&netns, middle.a(), 1500);
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let limits = Limits { event_queues: 64, ..LIMITS };
    let start_as = |mode, namespace, nid| start(namespace, &config(namespace, nid).mode(mode).limits(limits));
    let near = start_as(modes[0], netns.a(), a);
    let far = start_as(modes[1], netns.b(), b);
    let plan = |from, to| {
        let sizes = [1 << 20, 0, 64, 1300, 5000, 66_000, 1 << 20];
        Plan::of_sizes(vec![(process(from), process(to))], &[9, 12, 16], &sizes)
    };
    let ((near, far), _) = carry_out_with_losses(plan(a, b), near, far, &[By::ShardThread]);
    let (near, far) = ((near.node, near.workers), (far.node, far.workers));
    let ((far, near), _) = carry_out_with_losses(plan(b, a), far, near, &[By::ShardThread]);
    assert!(narrowed(&near.workers) != 0 && narrowed(&far.workers) != 0);
}

/// The kernel of one end knows that the path is narrow, and refuses long datagrams there. The NI takes long
/// ones all the same, so the other end sends them.
#[test]
fn a_path_that_the_kernel_knows_to_be_narrow_is_so_one_way() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 9000, ..Wiring::default() });
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (to, by) = (netns.b().interface().ipv4, &netns.a().interface().name);
    ip(netns.a(), &format!("route add {to}/32 dev {by} mtu 1500"));
    let limits = Limits { event_queues: 64, ..LIMITS };
    let start_as =
        |namespace, nid| start(namespace, &config(namespace, nid).mode(XdpMode::Socket).limits(limits));
    let (near, far) = (start_as(netns.a(), a), start_as(netns.b(), b));
    let plan = |from, to| Plan::of_sizes(vec![(process(from), process(to))], &[9, 12, 16], &[1 << 20, 64]);
    let ((near, far), _) = carry_out_with_losses(plan(a, b), near, far, &[By::ShardThread]);
    let (near, far) = ((near.node, near.workers), (far.node, far.workers));
    let ((far, near), _) = carry_out_with_losses(plan(b, a), far, near, &[By::ShardThread]);
    assert!(narrowed(&near.workers) != 0);
    assert_eq!(narrowed(&far.workers), 0);
}

#[test]
fn a_bridge_between_rings_is_narrow() {
    there_and_back([XdpMode::Native; 2]);
}

#[test]
fn a_bridge_between_sockets_is_narrow() {
    there_and_back([XdpMode::Socket; 2]);
}

#[test]
fn a_bridge_between_sockets_and_rings_is_narrow() {
    there_and_back([XdpMode::Socket, XdpMode::Generic]);
}
