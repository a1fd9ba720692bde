//! What the kernel says about an interface. Asked through netlink, which answers for the network
//! namespace of the calling thread; `/sys/class/net` shows the one it was mounted in.

use std::io;

use rustix::io::Errno;

use super::error::BpfError;
use super::netlink::{self, Netlink};

/// `RTM_GETLINK` and `struct ifinfomsg`, of `uapi/linux/rtnetlink.h`.
const RTM_GETLINK: u16 = 18;
const IFINFO_BYTES: usize = 16;
const IFINFO_INDEX_OFFSET: usize = 4;
/// Attributes of `uapi/linux/if_link.h`.
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
/// Ids of the program per mode, where several modes hold one.
const IFLA_XDP_MODE_PROG_IDS: [u16; 3] = [5, 6, 7];
/// Longest interface name with its zero byte (`IFNAMSIZ`).
const NAME_BYTES_MAX: usize = 16;

/// Generic netlink's controller, of `uapi/linux/genetlink.h`.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `ETHTOOL_MSG_CHANNELS_GET` and attributes, of `uapi/linux/ethtool_netlink.h`.
const CHANNELS_GET: u8 = 17;
const CHANNELS_HEADER: u16 = 1;
const HEADER_DEVICE_INDEX: u16 = 1;
const CHANNELS_RX_COUNT: u16 = 6;
const CHANNELS_COMBINED_COUNT: u16 = 9;
/// Bytes of `struct genlmsghdr`.
const GENERIC_HEADER_BYTES: usize = 4;

/// An interface as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mtu: u32,
    /// Queues that the driver allocated; not all need be in use.
    allocated_rx_queues: u32,
    /// The XDP program attached to it.
    pub(super) xdp_program: Option<u32>,
}

/// Looks an interface up in the calling thread's network namespace.
pub(super) fn interface(name: &str) -> Result<Interface, BpfError> {
    let unknown = || BpfError::UnknownInterface { name: name.to_owned() };
    if name.is_empty() || name.len() >= NAME_BYTES_MAX || name.contains('\0') {
        return Err(unknown());
    }
    let mut body = vec![0; IFINFO_BYTES];
    netlink::push_attribute(&mut body, IFLA_IFNAME, format!("{name}\0").as_bytes());
    let answer = Netlink::route().and_then(|netlink| netlink.ask(RTM_GETLINK, &body));
    let answer = answer.map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NODEV) => unknown(),
        _ => query("the description", name, source),
    })?;
    parse_link(&answer).ok_or_else(|| {
        let source = io::Error::new(io::ErrorKind::InvalidData, "attributes missing in the answer");
        query("the description", name, source)
    })
}

fn query(query: &'static str, interface: &str, source: io::Error) -> BpfError {
    BpfError::Query { query, interface: interface.to_owned(), source }
}

fn parse_link(answer: &[u8]) -> Option<Interface> {
    let attributes = answer.get(IFINFO_BYTES..)?;
    let xdp_program = netlink::attribute(attributes, IFLA_XDP).and_then(|xdp| {
        let ids = [IFLA_XDP_PROG_ID].into_iter().chain(IFLA_XDP_MODE_PROG_IDS);
        ids.filter_map(|id| netlink::attribute_u32(xdp, id)).find(|id| *id != 0)
    });
    Some(Interface {
        index: netlink::u32_at(answer, IFINFO_INDEX_OFFSET)?,
        mtu: netlink::attribute_u32(attributes, IFLA_MTU)?,
        allocated_rx_queues: netlink::attribute_u32(attributes, IFLA_NUM_RX_QUEUES)?,
        xdp_program,
    })
}

/// Receive queues in use of an interface in the calling thread's network namespace: its channels that
/// receive, as `ethtool -l` shows them. For a driver that has no channels, all queues that it allocated.
///
/// # Errors
/// [`BpfError::UnknownInterface`]; [`BpfError::Query`] when the kernel does not answer.
pub fn rx_queue_count(name: &str) -> Result<u32, BpfError> {
    let interface = interface(name)?;
    match channels(interface.index) {
        Ok(channels) if channels > 0 => Ok(channels),
        Ok(_) => Ok(interface.allocated_rx_queues),
        Err(error) => match Errno::from_io_error(&error) {
            // The driver has no channels, or the kernel no ethtool family.
            Some(Errno::OPNOTSUPP | Errno::NOENT) => Ok(interface.allocated_rx_queues),
            _ => Err(query("the channels", name, error)),
        },
    }
}

fn channels(index: u32) -> io::Result<u32> {
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "attributes missing in the answer");
    let netlink = Netlink::generic()?;
    let mut body = vec![GET_FAMILY, 1, 0, 0];
    netlink::push_attribute(&mut body, FAMILY_NAME, b"ethtool\0");
    let answer = netlink.ask(CONTROLLER, &body)?;
    let attributes = answer.get(GENERIC_HEADER_BYTES..).ok_or_else(missing)?;
    let family = netlink::attribute_u16(attributes, FAMILY_ID).ok_or_else(missing)?;

    let mut header = Vec::new();
    netlink::push_attribute(&mut header, HEADER_DEVICE_INDEX, &index.to_ne_bytes());
    let mut body = vec![CHANNELS_GET, 1, 0, 0];
    netlink::push_nested(&mut body, CHANNELS_HEADER, &header);
    let answer = netlink.ask(family, &body)?;
    let attributes = answer.get(GENERIC_HEADER_BYTES..).ok_or_else(missing)?;
    let count = |kind| netlink::attribute_u32(attributes, kind).unwrap_or(0);
    Ok(count(CHANNELS_RX_COUNT).saturating_add(count(CHANNELS_COMBINED_COUNT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_and_has_a_queue() {
        let lo = interface("lo").unwrap();
        assert_eq!(lo.index, rustix_index("lo"));
        assert!(lo.mtu >= 1280, "{lo:?}");
        assert_eq!(rx_queue_count("lo").unwrap(), 1);
    }

    fn rustix_index(name: &str) -> u32 {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        rustix::net::netdevice::name_to_index(&socket, name).unwrap()
    }

    use rustix::net::{AddressFamily, SocketType};

    #[test]
    fn unknown_interfaces_are_named() {
        for name in ["nosuchif0", "", "a-name-that-is-far-too-long", "a\0b"] {
            match interface(name).unwrap_err() {
                BpfError::UnknownInterface { name: named } => assert_eq!(named, name),
                other => panic!("{name:?}: {other}"),
            }
        }
    }
}
