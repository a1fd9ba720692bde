//! What the tests of the XDP program are made of: frames, and a model of the program that runs on the host.

pub mod frames;
pub mod model;
pub mod random;

use lnet_xdp::bpf::{Object, ObjectKind, XdpProgram};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType};

use crate::netns::{Netns, Wiring, ip};

/// Two namespaces, of which the first has an interface with `queues` queues where nothing arrives but what a
/// test makes up: the other end is down.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn quiet(queues: u16) -> Netns {
    let netns = Netns::new(Wiring { queues, ..Wiring::default() });
    ip(netns.b(), &format!("link set dev {} down", netns.b().interface().name));
    netns
}

/// Loads the XDP program.
///
/// # Panics
/// When it does not load.
#[must_use]
pub fn load(kind: ObjectKind) -> XdpProgram {
    XdpProgram::load(&Object::of(kind)).unwrap_or_else(|error| panic!("{error}"))
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
