//! What route and neighbour messages say: no I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};

use super::Mac;
use super::neighbours::Unreachable;

/// Asks where a packet for this address would go that must leave by this interface, or by any.
pub(super) fn route_question(index: Option<u32>, address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, prefix_bits, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = prefix_bits;
    message.header.flags = RouteFlags::LookupTable;
    message.attributes.push(RouteAttribute::Destination(destination));
    message.attributes.extend(index.map(RouteAttribute::Oif));
    message
}

/// The next hop, by this interface, that a route lookup found. A gateway of an IPv4 route may be an IPv6
/// address (RFC 5549).
pub(super) fn next_hop(route: &RouteMessage, index: u32, address: IpAddr) -> Result<IpAddr, Unreachable> {
    match route.header.kind {
        RouteType::Unicast => {}
        RouteType::Local => return Err(Unreachable::Local),
        RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast => {
            return Err(Unreachable::NotUnicast);
        }
        _ => return Err(Unreachable::NoRoute),
    }
    let (mut hop, mut interface, mut table) = (address, None, u32::from(route.header.table));
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(gateway))
            | RouteAttribute::Via(RouteVia::Inet(gateway)) => hop = IpAddr::V4(*gateway),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway))
            | RouteAttribute::Via(RouteVia::Inet6(gateway)) => hop = IpAddr::V6(*gateway),
            RouteAttribute::Oif(oif) => interface = Some(*oif),
            RouteAttribute::Table(id) => table = *id,
            _ => {}
        }
    }
    // Asked for an interface and without a route, the kernel takes an IPv4 address to be on that link
    // (net/ipv4/route.c: ip_route_output_key_hash_rcu); that answer comes from no table.
    if interface != Some(index) || table == 0 {
        return Err(Unreachable::NoRoute);
    }
    Ok(hop)
}

/// The prefix that a route of a dump leads to, with its length in bits, if it does so by this interface, or
/// within the host.
pub(super) fn route_to(route: &RouteMessage, index: u32) -> Option<(IpAddr, u8)> {
    let (mut to, mut leads_by) = (None, route.header.kind == RouteType::Local);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = Some(IpAddr::V4(*address)),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => to = Some(IpAddr::V6(*address)),
            RouteAttribute::Oif(oif) => leads_by |= *oif == index,
            RouteAttribute::MultiPath(hops) => {
                leads_by |= hops.iter().any(|hop| hop.interface_index == index);
            }
            _ => {}
        }
    }
    // A default route has no destination.
    let to = to.or(match route.header.address_family {
        AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    });
    let is_used = leads_by && matches!(route.header.kind, RouteType::Unicast | RouteType::Local);
    Some((to?, route.header.destination_prefix_length)).filter(|_| is_used)
}

/// A message that names a neighbour and nothing more.
pub(super) fn neighbour(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}

/// Asks the kernel to resolve a neighbour, to keep it resolved (`NTF_EXT_MANAGED`), and to spare it when it
/// collects garbage (`NTF_EXT_LEARNED`): otherwise the limits of its table hold for ours as well.
pub(super) fn managed_neighbour(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = neighbour(index, address);
    message.header.flags = NeighbourFlags::ExtLearned;
    message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    message
}

/// The address of the neighbour that a message is about.
pub(super) fn neighbour_address(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

/// The neighbour's Ethernet address, if its state is one in which the kernel itself would use it
/// (include/net/neighbour.h: `NUD_VALID`).
pub(super) fn valid_mac(message: &NeighbourMessage) -> Option<Mac> {
    let valid = matches!(
        message.header.state,
        NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe
    ) || is_permanent(message);
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) if valid => Mac::try_from(bytes.as_slice()).ok(),
        _ => None,
    })
}

/// Whether the entry was made by hand or needs no resolving, so that the kernel never probes it.
pub(super) fn is_permanent(message: &NeighbourMessage) -> bool {
    matches!(message.header.state, NeighbourState::Permanent | NeighbourState::Noarp)
}

/// Whether the kernel keeps the entry resolved.
pub(super) fn is_managed(message: &NeighbourMessage) -> bool {
    message.attributes.iter().any(|attribute| {
        matches!(attribute, NeighbourAttribute::ExtFlags(flags) if flags.contains(NeighbourExtFlags::Managed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

    fn route(kind: RouteType, table: u8, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        (message.header.kind, message.header.table) = (kind, table);
        message.attributes = attributes;
        message
    }

    #[test]
    fn a_route_leads_to_its_gateway_or_straight_on() {
        let (oif, gateway) = (RouteAttribute::Oif(7), IpAddr::from([10, 1, 0, 1]));
        let on_link = route(RouteType::Unicast, 254, vec![oif.clone()]);
        assert_eq!(next_hop(&on_link, 7, ASKED), Ok(ASKED));
        let via = RouteAttribute::Gateway(RouteAddress::Inet([10, 1, 0, 1].into()));
        let routed = route(RouteType::Unicast, 254, vec![via, oif.clone()]);
        assert_eq!(next_hop(&routed, 7, ASKED), Ok(gateway));
        // Tables from 256 up are named by an attribute, beside RT_TABLE_COMPAT.
        let far_table = route(RouteType::Unicast, 0, vec![oif, RouteAttribute::Table(1000)]);
        assert_eq!(next_hop(&far_table, 7, ASKED), Ok(ASKED));
    }

    #[test]
    fn a_route_of_a_dump_is_that_of_its_interfaces() {
        use rtnetlink::packet_route::route::RouteNextHop;
        let dumped = |kind, attributes, bits| {
            let mut message = route(kind, 254, attributes);
            message.header.address_family = AddressFamily::Inet;
            message.header.destination_prefix_length = bits;
            message
        };
        let to = RouteAttribute::Destination(RouteAddress::Inet([10, 1, 2, 0].into()));
        let subnet = Some((IpAddr::from([10, 1, 2, 0]), 24));
        let oif = RouteAttribute::Oif(7);
        let direct = dumped(RouteType::Unicast, vec![to.clone(), oif.clone()], 24);
        assert_eq!([7, 8].map(|index| route_to(&direct, index)), [subnet, None]);
        let default = dumped(RouteType::Unicast, vec![oif.clone()], 0);
        assert_eq!(route_to(&default, 7), Some((IpAddr::from([0, 0, 0, 0]), 0)));
        let hops = [7, 9].map(|index| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            hop
        });
        let several =
            dumped(RouteType::Unicast, vec![to.clone(), RouteAttribute::MultiPath(hops.into())], 24);
        assert_eq!([7, 8, 9].map(|index| route_to(&several, index)), [subnet, None, subnet]);
        let own = dumped(RouteType::Local, vec![to.clone(), oif.clone()], 24);
        assert_eq!([7, 8].map(|index| route_to(&own, index)), [subnet; 2], "by lo, from everywhere");
        for kind in [RouteType::BlackHole, RouteType::Broadcast, RouteType::Unreachable] {
            assert_eq!(route_to(&dumped(kind, vec![to.clone(), oif.clone()], 24), 7), None, "{kind:?}");
        }
    }

    #[test]
    fn what_the_kernel_merely_assumes_is_no_route() {
        let assumed = route(RouteType::Unicast, 0, vec![RouteAttribute::Oif(7), RouteAttribute::Table(0)]);
        assert_eq!(next_hop(&assumed, 7, ASKED), Err(Unreachable::NoRoute));
        let elsewhere = route(RouteType::Unicast, 254, vec![RouteAttribute::Oif(8)]);
        assert_eq!(next_hop(&elsewhere, 7, ASKED), Err(Unreachable::NoRoute));
    }

    #[test]
    fn an_address_is_valid_only_in_valid_states() {
        let mac = [2, 0, 0, 0, 0, 1];
        let mut message = neighbour(7, ASKED);
        assert_eq!((message.header.ifindex, neighbour_address(&message)), (7, Some(ASKED)));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        for (state, expected) in [
            (NeighbourState::None, None),
            (NeighbourState::Incomplete, None),
            (NeighbourState::Failed, None),
            (NeighbourState::Reachable, Some(mac)),
            (NeighbourState::Stale, Some(mac)),
            (NeighbourState::Delay, Some(mac)),
            (NeighbourState::Probe, Some(mac)),
            (NeighbourState::Permanent, Some(mac)),
            (NeighbourState::Noarp, Some(mac)),
        ] {
            message.header.state = state;
            assert_eq!(valid_mac(&message), expected, "{state}");
        }
    }
}
