//! NIs whose links do not carry.

use lnet_user::netlink::Interface;
use lnet_wire::Nid;

/// A warning for each of the NIs with these NIDs and interfaces whose link does not carry, in the network
/// namespace of the calling thread. Blocks for some netlink round trips.
pub(super) fn warnings(nis: &[(Nid, String)]) -> Vec<String> {
    // The interface itself is asked, not what follows it: news of a link that has come may be on its way.
    let is_silent = |interface: &str| Interface::by_name(interface).is_ok_and(|found| !found.up);
    let silent = nis.iter().filter(|(_, interface)| is_silent(interface));
    let told = |(nid, interface): &(Nid, String)| {
        format!("{nid}: the link of {interface} does not carry, messages wait for it")
    };
    silent.map(told).collect()
}
