//! What kernel nodes die of: GETs are for tcp nodes that have entries for them.

use lnet_user::api::Threads;
use lnet_user::load::{FaultKind, Initiator, Plan, Scheme, SizeClass, Target as LoadTarget};
use lnet_user::runtime::Idle;
use lnet_user::{Buffer, Lnet, LnetError, MdOptions, Net, NetType, NiConfig, Nid, SubmitError, Target};

use crate::common::{config, next, spec};

fn nid(host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::TCP, 7), [10, 9, 7, host].into()).unwrap()
}

fn node(fabric: &str, host: u8) -> Lnet {
    let config = config(1).nis(vec![NiConfig::new(nid(host), &format!("in-process:{fabric}"))]);
    let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(std::time::Duration::ZERO))).unwrap();
    lnet.open().unwrap();
    lnet
}

#[test]
fn a_get_from_a_portal_of_selftest_is_refused() {
    let lnet = node("selftest", 1);
    let mut queue = lnet.shard(0).unwrap().create_event_queue(8).unwrap();
    let sink = lnet.bind(&spec(&queue, 4, 2, MdOptions::NONE), Buffer::zeroed(4)).unwrap();
    for portal in [50, 51] {
        let from = Target::new(nid(2), portal, 1);
        let refused = sink.get(&from).start().unwrap_err();
        assert!(matches!(refused, LnetError::Request(SubmitError::OnlyPuts(_))), "{refused}");
        assert!(refused.to_string().contains("kernel node") && !refused.is_busy(), "{refused}");
        sink.get(&from).queue().unwrap();
        assert_eq!(next(&mut queue).refusal().map(ToString::to_string), Some(refused.to_string()));
    }
}

#[test]
fn a_load_gets_nothing_from_a_tcp_node_without_its_target() {
    let (near, far) = (node("load", 1), node("load", 2));
    let (sizes, puts_percent) = (vec![SizeClass::of(64)], 0);
    let scheme = Scheme { sizes, puts_percent, ..Scheme::default() };
    let plan = Plan { messages: 40, window: 4, timeout_ms: 2000, ..Plan::new(scheme.clone(), vec![nid(2)]) };
    let done = Initiator::start(&near, &plan).unwrap().wait();
    assert!(done.has_given_up);
    assert_eq!((done.faults.count, done.faults.of(FaultKind::NoTarget)), (1, 1), "{:?}", done.faults);
    assert_eq!(done.faults.first[0].peer, nid(2));
    // The empty Put alone has come.
    let dropped = far.shard(0).unwrap().counters().unwrap().dropped();
    assert_eq!(dropped.messages, 1, "{dropped:?}");

    let target = LoadTarget::start(&far, &scheme).unwrap();
    let done = Initiator::start(&near, &Plan { timeout_ms: 20_000, ..plan }).unwrap().wait();
    assert_eq!((done.faults.count, done.gets().messages), (0, 40), "{:?}", done.faults);
    let seen = target.stop();
    assert_eq!((seen.gets.messages, seen.puts.messages, seen.faults.count), (40, 0, 0), "{seen:?}");
}
