//! What kernel nodes die of: GETs are for tcp nodes that have entries for them.

use lnet_user::api::Threads;
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
