//! What the tests of the XDP program are made of: network namespaces, frames, and a model of the program
//! that runs on the host.

pub mod frames;
pub mod model;
pub mod netns;
pub mod random;

use std::path::PathBuf;

use lnet_user::bpf::{OBJECT_VARIABLE, ObjectKind, XdpProgram};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::CapabilitySet;

/// Leaves the privileged tests out when it is `1`.
pub const UNPRIVILEGED_VARIABLE: &str = "LNET_TESTS_UNPRIVILEGED";

/// Whether `test` may go on: it needs root's capabilities. Says so when they are missing and the tests were
/// told to leave such tests out.
///
/// # Panics
/// When a capability is missing otherwise, naming it.
#[must_use]
pub fn privileged(test: &str) -> bool {
    let needed = [
        ("CAP_BPF", CapabilitySet::BPF),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ];
    let held = rustix::thread::capabilities(None).expect("capabilities of this thread").effective;
    let missing: Vec<_> =
        needed.iter().filter(|(_, set)| !held.contains(*set)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return true;
    }
    let missing = missing.join(", ");
    assert!(
        std::env::var(UNPRIVILEGED_VARIABLE).is_ok_and(|value| value == "1"),
        "{test} needs {missing}: run as root, or leave such tests out with {UNPRIVILEGED_VARIABLE}=1"
    );
    println!("{test}: left out, it needs {missing}");
    false
}

/// The XDP program's object: what `LNET_BPF_OBJECT` names (for the default kind), or the workspace's own.
///
/// # Panics
/// When there is none, saying how to build it.
#[must_use]
pub fn object(kind: ObjectKind) -> PathBuf {
    let named = std::env::var_os(OBJECT_VARIABLE).filter(|_| kind == ObjectKind::Default);
    let built =
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bpf")).join(kind.file_name());
    let path = named.map_or_else(built, PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `cargo xtask build-ebpf`", path.display());
    path
}

/// Loads the XDP program.
///
/// # Panics
/// When it does not load.
#[must_use]
pub fn load(kind: ObjectKind) -> XdpProgram {
    XdpProgram::load(&object(kind)).unwrap_or_else(|error| panic!("{error}"))
}

/// An `AF_XDP` socket that a slot takes: it has a receive ring, and nothing is ever delivered to it.
///
/// # Panics
/// When the kernel refuses.
#[must_use]
pub fn idle_socket() -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).expect("AF_XDP socket");
    rustix::net::sockopt::set_xdp_rx_ring_size(&socket, 64).expect("receive ring");
    socket
}
