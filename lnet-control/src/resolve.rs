//! Lists of NIDs in which names of hosts are looked up, IPv4 first.

use std::net::{IpAddr, ToSocketAddrs};

use lnet_model::Refusal;
use lnet_model::pattern::{NIDS_MAX, NODES_MAX, nids_resolved};
use lnet_wire::{Net, Nid};

/// The NIDs of a list, as [`lnet_model::pattern::nids`] reads it.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nids(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NIDS_MAX, &look_up)
}

/// The NIDs of nodes of selftest, as [`lnet_model::pattern::nodes`] reads them.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nodes(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NODES_MAX, &look_up)
}

fn look_up(host: &str, _: Net) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}
