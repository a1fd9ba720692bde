//! GETs that kernel nodes die of: a load has them for tcp nodes with a target alone.

use std::time::Duration;

use lnet_load::{FaultKind, Initiator, LoadPlan, Scheme, SizeClass, Target};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Lnet, Net, NetType, NiConfig, Nid, NodeConfig};

fn nid(host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::TCP, 7), [10, 9, 7, host].into()).unwrap()
}

fn node(host: u8) -> Lnet {
    let config = NodeConfig::new(vec![NiConfig::new(nid(host), "in-process:load")]);
    let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    lnet.open().unwrap();
    lnet
}

#[test]
fn a_load_gets_nothing_from_a_tcp_node_without_its_target() {
    let (near, far) = (node(1), node(2));
    let (sizes, puts_percent) = (vec![SizeClass::of(64)], 0);
    let scheme = Scheme { sizes, puts_percent, ..Scheme::default() };
    let plan =
        LoadPlan { messages: 40, window: 4, timeout_ms: 2000, ..LoadPlan::new(scheme.clone(), vec![nid(2)]) };
    let done = Initiator::start(&near, &plan).unwrap().wait();
    assert!(done.has_given_up);
    assert_eq!((done.faults.count, done.faults.of(FaultKind::NoTarget)), (1, 1), "{:?}", done.faults);
    assert_eq!(done.faults.first[0].peer, nid(2));
    // The empty Put alone has come.
    let dropped = far.shard(0).unwrap().counters().unwrap().dropped();
    assert_eq!(dropped.messages, 1, "{dropped:?}");

    let target = Target::start(&far, &scheme).unwrap();
    let done = Initiator::start(&near, &LoadPlan { timeout_ms: 20_000, ..plan }).unwrap().wait();
    assert_eq!((done.faults.count, done.gets().messages), (0, 40), "{:?}", done.faults);
    let seen = target.stop();
    assert_eq!((seen.gets.messages, seen.puts.messages, seen.faults.count), (40, 0, 0), "{seen:?}");
}
