//! Which interface and which address an NI is to have.

use std::net::IpAddr;

use lnet_model::choice::InterfaceRecord;
use lnet_model::ni::NiSpec;
use lnet_model::{Errno, Refusal};
use lnet_user::netlink::{Interface, NetlinkError, default_interfaces, interfaces};
use lnet_wire::{Net, Nid};

use super::error::{check_name, netlink_errno};

/// Labels of aliases that are looked at in one request.
const LABELS_MAX: usize = 128;

/// An NI's interface and NID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NiLocation {
    pub(super) nid: Nid,
    pub(super) interface: String,
    pub(super) is_chosen_by_nid: bool,
}

/// Finds what the request leaves open. Blocks for some netlink round trips.
pub(super) fn find(spec: &NiSpec, prefers_ipv6: bool) -> Result<NiLocation, Refusal> {
    if let Some(nid) = spec.nid.filter(|nid| nid.ip().is_some()) {
        check_name(&nid).map_err(|refused| {
            let message = format!("cannot add LNet NI: {}", refused.message);
            Refusal { message, ..refused }
        })?;
    }
    let interface = match (&spec.interface, spec.nid) {
        (Some(name), _) => Interface::by_name(name).map_err(|error| {
            let Refusal { errno, mut message, .. } = refusal(name, &error);
            if !spec.cpts.is_empty() {
                message.push_str(" (what stands in brackets are CPTs, not interfaces)");
            }
            Refusal::new(errno, message)
        })?,
        (None, Some(nid)) => with_address(nid)?,
        (None, None) => any(spec.net)?,
    };
    if !interface.enabled {
        let name = &interface.name;
        return Err(down(format!(": interface {name} is down: `ip link set dev {name} up` brings it up")));
    }
    let address = first_address(&interface, prefers_ipv6);
    let nid = match (spec.nid, address) {
        (Some(nid), _) => nid,
        (None, Some(address)) => nid_of(address, spec.net)?,
        (None, None) => return Err(down(format!(": interface {} has no address", interface.name))),
    };
    if let Some(wanted) = nid.ip()
        && interface.addresses.iter().all(|(address, _)| *address != wanted)
    {
        let usable = interface.addresses.iter().map(|(address, _)| address).filter(|it| is_global(it));
        let present: Vec<_> = usable.map(ToString::to_string).collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        let name = interface.name;
        return Err(down(format!(": interface {name} does not have the address of {nid}; it has {present}")));
    }
    let is_chosen_by_nid = nid.ip() != address;
    // The label of an alias stays the NI's.
    let interface = spec.interface.clone().unwrap_or(interface.name);
    Ok(NiLocation { nid, interface, is_chosen_by_nid })
}

/// The interfaces of the host but its loopback, and those of these names that are labels of aliases. Blocks
/// for some netlink round trips.
pub(super) fn records(named: &[String]) -> Result<Vec<InterfaceRecord>, Refusal> {
    let record = |name: String, interface: Interface| InterfaceRecord {
        name,
        is_up: interface.enabled,
        addresses: interface.addresses.into_iter().map(|(address, _)| address).collect(),
    };
    let present = interfaces().map_err(|error| Refusal::new(netlink_errno(&error), error.to_string()))?;
    let labels = named.iter().filter(|name| name.contains(':')).take(LABELS_MAX);
    let labels = labels.filter_map(|name| Some(record(name.clone(), Interface::by_name(name).ok()?)));
    Ok(present.into_iter().map(|one| record(one.name.clone(), one)).chain(labels).collect())
}

/// Finds the interface that has a NID's address.
fn with_address(nid: Nid) -> Result<Interface, Refusal> {
    let Some(wanted) = nid.ip() else {
        return Err(Refusal::new(Errno::INVAL, format!("cannot add LNet NI: {nid} is no IP address")));
    };
    let has = |interface: &Interface| interface.addresses.iter().any(|(address, _)| *address == wanted);
    let present = interfaces().map_err(|error| refusal("any", &error))?;
    present.into_iter().find(has).ok_or_else(|| down(format!(": no interface here has the address {wanted}")))
}

/// The first interface that serves of those that a node takes by itself.
fn any(net: Net) -> Result<Interface, Refusal> {
    let serves = |interface: &Interface| interface.enabled && first_address(interface, false).is_some();
    let why = || format!(" to {net}: no interface here but bridges is up and has an address");
    let present = default_interfaces().map_err(|error| refusal("any", &error))?;
    present.into_iter().find(serves).ok_or_else(|| down(why()))
}

/// The address that stands for an interface: the first of the preferred family, else the first. Those that
/// hold on one link only name no node.
fn first_address(interface: &Interface, prefers_ipv6: bool) -> Option<IpAddr> {
    let addresses = || interface.addresses.iter().map(|(address, _)| *address).filter(is_global);
    addresses().find(|address| address.is_ipv6() == prefers_ipv6).or_else(|| addresses().next())
}

/// Whether an address is more than one of a link, which names no NI.
fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

fn nid_of(address: IpAddr, net: Net) -> Result<Nid, Refusal> {
    Nid::new_ip(net, address)
        .map_err(|error| Refusal::new(Errno::INVAL, format!("cannot add LNet NI to {net}: {error}")))
}

/// The refusal of an NI for which no interface is ready.
fn down(why: String) -> Refusal {
    Refusal::new(Errno::NETDOWN, "cannot add LNet NI".to_owned() + &why)
}

fn refusal(name: &str, error: &NetlinkError) -> Refusal {
    Refusal::new(netlink_errno(error), format!("cannot add LNet NI on {name}: {error}"))
}
