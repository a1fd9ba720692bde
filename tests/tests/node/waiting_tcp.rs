//! Connections of the tcp LND whose messages have to wait, with more behind each: what waits must not use up
//! the buffers that others receive by, nor memory without end.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lnet_core::limits::Limits;
use lnet_tests::netns::{Netns, Wiring, enter, ip};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_wire::socklnd::{PrefixKind, Version};

use crate::dialler::{Dialler, Greeting, header, message, nid, prefix, privileged, put};
use crate::privileged as is_privileged;

const LAZY_PORTAL: u32 = 9;
const PATIENCE: Duration = Duration::from_secs(20);

/// A node of one shard, so that all share its buffers.
fn start(namespace: &lnet_tests::netns::Namespace) -> Lnet {
    let interface = namespace.interface();
    let config = NodeConfig::new(vec![NiConfig::new(nid(interface.ipv4), &interface.name)]);
    let config = config.limits(Limits { peers: 1 << 12, ..Limits::DEFAULT });
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.set_lazy(LAZY_PORTAL, true).unwrap();
    lnet.open().unwrap();
    lnet
}

#[test]
fn messages_that_wait_leave_buffers_for_others() {
    const STRANGERS: u8 = 100;
    // Names that an address may have on a shard besides its own.
    const EACH: u8 = 4;
    const BEHIND_BYTES: usize = 24_000;
    if !is_privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [near, far] = [netns.a(), netns.b()].map(|side| side.interface().ipv4);
    let lnet = start(netns.a());
    let healthy = start(netns.b());
    healthy.ping(nid(near), None, PATIENCE).unwrap();
    let mut waiting = Vec::new();
    for number in 0..STRANGERS {
        let address = Ipv4Addr::new(10, 211, 0, 50 + number);
        ip(netns.b(), &format!("address add {address}/24 dev {}", netns.b().interface().name));
        let mut below = 1024;
        for index in 1..=EACH {
            let (stream, port) = enter(netns.b(), || privileged(address, near, below));
            below = port;
            let name = nid(Ipv4Addr::new(10, 211, 100 + number, index));
            let mut dialler = Dialler::connected(stream, Greeting::new(name, nid(near)));
            let message = message(Version::V3, &header(name, nid(near), 0, put(LAZY_PORTAL, 1)));
            let behind = prefix(PrefixKind::Noop, 0, [0; 2]).repeat(BEHIND_BYTES / 24);
            dialler.say(&[message, behind].concat());
            waiting.push(dialler);
        }
    }
    for _ in 0..10 {
        let begun = Instant::now();
        healthy.ping(nid(near), None, PATIENCE).unwrap();
        lnet.ping(nid(far), None, PATIENCE).unwrap();
        assert!(begun.elapsed() < PATIENCE / 2, "pings took {:?}", begun.elapsed());
    }
    // What has waited is used once it need not any more.
    lnet.set_lazy(LAZY_PORTAL, false).unwrap();
    waiting.iter_mut().for_each(Dialler::ping);
}
