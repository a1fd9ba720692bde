//! NIs of the xdp LND as they are to be opened, checked before anything is built.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use lnet_core::handle::ShardSet;
use lnet_io::kind::{InterfaceError, NiRequest, check_address, usable_interface};
use lnet_io::netlink::{Interface, Neighbours};
use lnet_io::xsk::CHUNK_BYTES;
use lnet_model::lnd::{NiOption, ZeroCopy};
use lnet_model::ni::XdpMode;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, endpoint};
use lnet_wire::steer::QUEUES_MAX;

use super::link::LinkState;
use super::{XdpConfig, XdpError, XdpNi};
use crate::bpf::generic_by_role;
use crate::lnd::{DATAGRAM_BYTES_MIN, Port};

/// An NI of the xdp LND as it is to be opened: what was found out and checked before anything is built.
#[derive(Clone, Debug)]
pub struct XdpPlan {
    pub(super) interface: Interface,
    pub(super) port: Port,
    pub(super) mode: XdpMode,
    pub(super) zero_copy: ZeroCopy,
    pub(super) serving: ShardSet,
    /// Whether it takes what works: its mode is `auto`, and it does not insist on zero copy.
    pub(super) is_auto: bool,
    /// Whether rings with zero copy were deaf.
    pub(super) is_zero_copy_deaf: bool,
}

impl XdpPlan {
    /// Looks at the interface of an NI, whose own settings go before those of the node.
    pub(super) fn new(config: &XdpConfig, request: &NiRequest<'_>) -> Result<Self, XdpError> {
        let options = request.options;
        let mode = options.mode().unwrap_or(config.mode);
        let interface =
            usable_interface(request.interface, options.number(NiOption::Queues).or(config.queues))?;
        let port = port(request, &interface, options.number(NiOption::Port).unwrap_or(config.udp_port))?;
        if mode != XdpMode::Socket {
            check_native(mode, &interface)?;
            check_queues(&interface)?;
            check_transmit_ring(&port, &interface, config.rings.tx)?;
        }
        let zero_copy = options.zero_copy();
        let is_auto = mode == XdpMode::Auto && zero_copy != ZeroCopy::On;
        let (serving, is_zero_copy_deaf) = (request.serving, false);
        Ok(Self { interface, port, mode, zero_copy, serving, is_auto, is_zero_copy_deaf })
    }

    /// The NI, once it is open.
    pub(super) fn opened(
        &self,
        mode: XdpMode,
        (neighbours, link): (Arc<Neighbours>, Arc<LinkState>),
        reserved: Option<UdpSocket>,
    ) -> XdpNi {
        XdpNi {
            port: self.port,
            mode,
            link,
            neighbours,
            no_rings: None,
            reason: None,
            zero_copy: None,
            carrier: Box::default(),
            _reserved: reserved,
        }
    }
}

/// Native rings of some devices receive nothing.
fn check_native(mode: XdpMode, Interface { name, role, .. }: &Interface) -> Result<(), InterfaceError> {
    if mode == XdpMode::Native && generic_by_role(*role).is_some() {
        let present = "slaves, by whose queues its frames come: native rings of its own would be deaf; mode auto, \
                       generic or socket is expected, or NIs on the slaves";
        return Err(InterfaceError::Unsuitable { interface: name.clone(), present: present.to_owned() });
    }
    Ok(())
}

/// Frames of further queues would pass up.
fn check_queues(Interface { name, rx_queues, .. }: &Interface) -> Result<(), InterfaceError> {
    if *rx_queues > QUEUES_MAX {
        let present = format!(
            "{rx_queues} receive queues, steering reaches {QUEUES_MAX}: `ethtool -L {name} ...` gives it fewer"
        );
        return Err(InterfaceError::Unsuitable { interface: name.clone(), present });
    }
    Ok(())
}

fn port(request: &NiRequest<'_>, interface: &Interface, udp_port: u16) -> Result<Port, InterfaceError> {
    let &NiRequest { ni, nid, address, options, .. } = request;
    check_address(interface, nid, address)?;
    let port = Port {
        ni,
        nid,
        address,
        udp_port,
        endpoint: endpoint(address, udp_port),
        interface_index: interface.index,
        // Frames of rings alone have it.
        mac: interface.mac.unwrap_or_default(),
        mtu_bytes: interface.mtu_bytes as usize,
        checksum: options.has_checksum(),
    };
    let needed_bytes = packet_min_bytes(address);
    if port.mtu_bytes < needed_bytes {
        let present = format!("an MTU of {} bytes: more than {needed_bytes} are needed", interface.mtu_bytes);
        return Err(InterfaceError::Unsuitable { interface: interface.name.clone(), present });
    }
    Ok(port)
}

/// A frame that the transmit ring can never hold would wait for ever.
fn check_transmit_ring(port: &Port, interface: &Interface, entries: u32) -> Result<(), XdpError> {
    let needed = (port.mtu_bytes + ETHERNET_BYTES).div_ceil(CHUNK_BYTES as usize) as u32;
    if entries < needed {
        let (interface, mtu_bytes) = (interface.name.clone(), interface.mtu_bytes);
        return Err(XdpError::TransmitRing { interface, mtu_bytes, entries, needed });
    }
    Ok(())
}

/// Bytes of the shortest IP packet that must pass: one of a handshake.
fn packet_min_bytes(address: IpAddr) -> usize {
    let ip = if address.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    ip + UDP_BYTES + DATAGRAM_BYTES_MIN
}

// Keeps the arithmetic of frames honest: a frame's headers leave room in the smallest chunk.
const _: () = assert!(ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + DATAGRAM_BYTES_MIN < CHUNK_BYTES as usize);

#[cfg(test)]
mod tests {
    use lnet_io::netlink::Role;

    use super::*;

    /// A bond, a team and `net_failover` have one role, which generic mode and sockets serve.
    #[test]
    fn native_rings_are_refused_on_a_bond_alone() {
        let of = |role| Interface {
            name: "bond0".to_owned(),
            index: 1,
            mac: Some([2; 6]),
            mtu_bytes: 1500,
            enabled: true,
            up: true,
            addresses: Vec::new(),
            rx_queues: 1,
            tx_queues: 1,
            xdp_program_id: None,
            role,
            is_slave: false,
            has_device: false,
        };
        let modes = [XdpMode::Auto, XdpMode::Native, XdpMode::Generic, XdpMode::Socket];
        let refused = |role| modes.map(|mode| check_native(mode, &of(role)).is_err());
        assert_eq!(refused(Role::Bond), [false, true, false, false]);
        for role in [Role::Device, Role::Veth, Role::Bridge] {
            assert_eq!(refused(role), [false; 4], "{role:?}");
        }
        let why = check_native(XdpMode::Native, &of(Role::Bond)).unwrap_err().to_string();
        assert!(why.contains("bond0") && why.contains("native rings of its own would be deaf"), "{why}");
    }
}
