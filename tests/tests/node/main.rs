//! Nodes on real veth pairs and AF_XDP rings, in network namespaces. Needs root, and the objects that
//! `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

mod captures;
#[path = "../control/dialler.rs"]
#[allow(dead_code, reason = "the tests of daemons use all of it")]
mod dialler;
mod embedded;
mod helping;
mod hostile;
mod killed;
mod lent_tcp;
mod load;
mod losses;
mod messaging;
mod modes;
mod multi_rail;
mod names_tcp;
mod narrow;
mod others;
mod placed_tcp;
mod ports;
mod refusals;
mod refusing;
mod registered;
mod routers;
mod served;
mod shapes;
mod shared_tcp;
mod silent;
mod tcp;
mod traffic;
mod vanish;
mod waiting_tcp;
mod wakeups;

use lnet_tests::confined::assert_reactor;
use lnet_tests::netns::{NETNS_NODES, require_privilege};

/// Whether a test of nodes is to run; a panic says what is missing.
fn privileged() -> bool {
    assert_reactor();
    require_privilege("nodes over veth", &NETNS_NODES)
}
