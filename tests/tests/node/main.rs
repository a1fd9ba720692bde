//! Nodes on real veth pairs and AF_XDP rings, in network namespaces. Needs root, and the objects that
//! `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

mod captures;
mod embedded;
mod helping;
mod hostile;
mod killed;
mod load;
mod losses;
mod modes;
mod others;
mod ports;
mod refusals;
mod refusing;
mod registered;
mod shapes;
mod silent;
mod tcp;
mod traffic;
mod vanish;
mod wakeups;

use lnet_tests::netns::{NETNS_NODES, require_privilege};

/// Whether a test of nodes is to run; a panic says what is missing.
fn privileged() -> bool {
    require_privilege("nodes over veth", &NETNS_NODES)
}
