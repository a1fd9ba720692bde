//! What a node or an NI is to be, checked before anything is built: first what the configuration says by
//! itself, then what the kernel says of its interfaces.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_core::handle::ShardSet;
use lnet_core::lnd::NiId;
use lnet_core::node::policy_word;
use lnet_io::netlink::{Interface, Neighbours};
use lnet_io::uring::WATCHES_MAX;
use lnet_io::xsk::CHUNK_BYTES;
use lnet_wire::packet::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES, endpoint};
use lnet_wire::steer::{PORTALS, PolicyWord, QUEUES_MAX, SHARDS_MAX};
use lnet_wire::{NetType, Nid};

use super::tcp::TcpPlan;
use super::{ConfigError, LO, NiConfig, NodeConfig, NodeError, XdpMode, XdpNi, fabric_of};
use crate::lnd::xdp::{DATAGRAM_MIN_BYTES, Port};

/// How long an interface may take to run that was brought up just before the node: the kernel looks at
/// carriers once a second.
const CARRIER_PATIENCE: Duration = Duration::from_millis(1500);
const CARRIER_INTERVAL: Duration = Duration::from_millis(20);

/// An NI as it is to be opened: what was found out and checked before anything is built.
pub(super) enum NiPlan {
    Xdp(XdpPlan),
    Tcp(TcpPlan),
    InProcess { fabric: String, serving: ShardSet },
}

/// An NI of the xdp LND as it is to be opened.
pub(super) struct XdpPlan {
    pub(super) interface: Interface,
    pub(super) port: Port,
    pub(super) mode: XdpMode,
    pub(super) serving: ShardSet,
}

impl NiPlan {
    /// Looks at the interface of `ni`, whose own settings go before those of the node.
    pub(super) fn new(config: &NodeConfig, id: NiId, ni: &NiConfig) -> Result<Self, NodeError> {
        check_ni(ni)?;
        let serving = serving(ni, config.shards)?;
        if let Some(fabric) = fabric_of(&ni.interface) {
            return Ok(Self::InProcess { fabric: fabric.to_owned(), serving });
        }
        if ni.is_tcp() {
            let interface = usable_interface(&ni.interface, None)?;
            let address = address_of(ni, &interface)?;
            return Ok(Self::Tcp(TcpPlan { interface, address, serving }));
        }
        let mode = ni.mode.unwrap_or(config.mode);
        let interface = usable_interface(&ni.interface, ni.queues.or(config.queues))?;
        let port = port(id, ni, &interface, ni.udp_port.unwrap_or(config.udp_port))?;
        if mode != XdpMode::Socket {
            check_queues(&interface)?;
            check_transmit_ring(&port, &interface, config.rings.tx)?;
        }
        Ok(Self::Xdp(XdpPlan { interface, port, mode, serving }))
    }

    pub(super) fn xdp(&self) -> Option<&XdpPlan> {
        match self {
            Self::Xdp(plan) => Some(plan),
            Self::Tcp(_) | Self::InProcess { .. } => None,
        }
    }
}

impl XdpPlan {
    /// The NI, once it is open.
    pub(super) fn opened(
        &self,
        mode: XdpMode,
        neighbours: Arc<Neighbours>,
        reserved: Option<UdpSocket>,
    ) -> XdpNi {
        let queues = self.interface.rx_queues;
        XdpNi { port: self.port, mode, queues, neighbours, no_rings: None, _reserved: reserved }
    }
}

/// Checks what a configuration says by itself and the state machine does not know; the words of its policies.
pub(super) fn check(config: &NodeConfig) -> Result<[PolicyWord; PORTALS], ConfigError> {
    check_numbers(config)?;
    let mut words = [PolicyWord::default(); PORTALS];
    for (index, (portal, policy)) in config.policies.iter().enumerate() {
        if config.policies[..index].iter().any(|(other, _)| other == portal) {
            return Err(ConfigError::DuplicatePolicy(*portal));
        }
        let word = policy_word((*portal).into(), policy, config.shards as u8)?;
        words[usize::from(*portal)] = word;
    }
    Ok(words)
}

/// The NIs that a node has at first.
pub(super) fn first(config: &NodeConfig) -> Result<Vec<NiPlan>, NodeError> {
    let numbered = (LO.0 + 1..).map(NiId).zip(&config.nis);
    numbered.map(|(id, ni)| NiPlan::new(config, id, ni)).collect()
}

/// Checks the NIs that a node has at first, each by itself and beside the others.
pub(super) fn check_nis(nis: &[NiConfig], shards: u32) -> Result<(), ConfigError> {
    nis.iter().enumerate().try_for_each(|(index, ni)| {
        check_ni(ni)?;
        serving(ni, shards)?;
        check_address(ni.nid, nis[..index].iter().map(|other| other.nid))
    })
}

/// The shards that serve an NI, of so many.
fn serving(ni: &NiConfig, shards: u32) -> Result<ShardSet, ConfigError> {
    if let Some(&shard) = ni.serving_shards.iter().find(|shard| **shard >= shards) {
        return Err(ConfigError::NoShard { nid: ni.nid, shard, last: shards - 1 });
    }
    Ok(ShardSet::of(ni.serving_shards.iter().copied()).unwrap_or(ShardSet::all(shards as u8)))
}

/// Checks what an NI's configuration says by itself.
pub(super) fn check_ni(ni: &NiConfig) -> Result<(), ConfigError> {
    if ni.udp_port == Some(0) {
        return Err(ConfigError::UdpPort);
    }
    if fabric_of(&ni.interface).is_some() {
        let mode = ni.mode.map(|mode| ("mode", mode.to_string()));
        let udp_port = ni.udp_port.map(|port| ("UDP port", port.to_string()));
        let queues = ni.queues.map(|count| ("number of queues", count.to_string()));
        if let Some((what, value)) = mode.or(udp_port).or(queues) {
            return Err(ConfigError::NotInProcess { what, value, interface: ni.interface.clone() });
        }
    }
    check_lnd(ni)?;
    xdp_address(ni.nid).map(drop)
}

/// Checks that an NI has no options of another LND.
fn check_lnd(ni: &NiConfig) -> Result<(), ConfigError> {
    let of_xdp = ni.mode.map(|mode| ("mode", mode.to_string()));
    let of_xdp = of_xdp.or(ni.udp_port.map(|port| ("UDP port", port.to_string())));
    let of_xdp = of_xdp.or(ni.queues.map(|count| ("number of queues", count.to_string())));
    let of_tcp = ni.conns_per_peer.map(|count| ("conns_per_peer", count.to_string()));
    let of_tcp = of_tcp.or(ni.tos.map(|tos| ("tos", tos.to_string())));
    let (foreign, lnd) = if ni.is_tcp() { (of_xdp, "tcp") } else { (of_tcp, "xdp") };
    if ni.is_tcp() && ni.nid.net().net_type() != NetType::TCP {
        return Err(ConfigError::NoTcp(ni.nid));
    }
    foreign.map_or(Ok(()), |(what, value)| Err(ConfigError::OtherLnd { nid: ni.nid, what, value, lnd }))
}

fn check_numbers(config: &NodeConfig) -> Result<(), ConfigError> {
    if config.shards == 0 || config.shards > SHARDS_MAX {
        return Err(ConfigError::Shards(config.shards));
    }
    if config.udp_port == 0 {
        return Err(ConfigError::UdpPort);
    }
    if !config.limits.is_valid() || !super::shard_limits(config).is_valid() {
        return Err(ConfigError::Limits(config.limits));
    }
    if config.queues_max == 0 || config.queues_max > WATCHES_MAX {
        return Err(ConfigError::QueuesMax(config.queues_max));
    }
    config.rings.check().map_err(ConfigError::Rings)
}

/// Checks the address of a NID that is to stand beside others. Diallers of tcp nets name the NID that they
/// want, so NIDs of such nets share addresses with others.
pub(super) fn check_address(nid: Nid, mut others: impl Iterator<Item = Nid>) -> Result<(), ConfigError> {
    let address = xdp_address(nid)?;
    let is_tcp = |nid: &Nid| nid.net().net_type() == NetType::TCP;
    let is_told_apart = |other: &Nid| *other != nid && (is_tcp(&nid) || is_tcp(other));
    let first = others.find(|other| other.ip() == Some(address) && !is_told_apart(other));
    first.map_or(Ok(()), |first| Err(ConfigError::DuplicateAddress { first, second: nid }))
}

fn xdp_address(nid: Nid) -> Result<IpAddr, ConfigError> {
    nid.ip().ok_or(ConfigError::NoAddress(nid))
}

fn usable_interface(name: &str, queues: Option<u32>) -> Result<Interface, NodeError> {
    let interface = settled_interface(name)?;
    let (rx_queues, tx_queues) = (interface.rx_queues, interface.tx_queues);
    let wanted = queues.unwrap_or(1).max(1);
    if rx_queues < wanted || tx_queues < wanted {
        let present = format!(
            "{rx_queues} receive and {tx_queues} transmit queues, {wanted} of each are needed: `ethtool -L {name} ...` \
             gives a device more, a veth is made with `numrxqueues {wanted} numtxqueues {wanted}`"
        );
        return Err(NodeError::Unsuitable { interface: interface.name, present });
    }
    Ok(interface)
}

/// Frames of further queues would pass up.
fn check_queues(Interface { name, rx_queues, .. }: &Interface) -> Result<(), NodeError> {
    if *rx_queues > QUEUES_MAX {
        let present = format!(
            "{rx_queues} receive queues, steering reaches {QUEUES_MAX}: `ethtool -L {name} ...` gives it fewer"
        );
        return Err(NodeError::Unsuitable { interface: name.clone(), present });
    }
    Ok(())
}

/// Waits a little for the carrier of an interface that was brought up just before: the kernel events it a
/// while later (`net/core/link_watch.c`). Without one the node starts all the same.
fn settled_interface(name: &str) -> Result<Interface, NodeError> {
    let begun = Instant::now();
    loop {
        let interface = Interface::by_name(name)?;
        if !interface.enabled {
            return Err(NodeError::Down(interface.name));
        }
        if interface.up || begun.elapsed() >= CARRIER_PATIENCE {
            return Ok(interface);
        }
        std::thread::sleep(CARRIER_INTERVAL);
    }
}

/// The address of an NI, which the interface has.
fn address_of(ni: &NiConfig, interface: &Interface) -> Result<IpAddr, NodeError> {
    let address = xdp_address(ni.nid)?;
    if !interface.addresses.iter().any(|(present, _)| *present == address) {
        let present: Vec<String> =
            interface.addresses.iter().map(|(address, _)| address.to_string()).collect();
        return Err(NodeError::NoSuchAddress {
            nid: ni.nid,
            interface: interface.name.clone(),
            present: if present.is_empty() { "none".to_owned() } else { present.join(", ") },
        });
    }
    Ok(address)
}

fn port(id: NiId, ni: &NiConfig, interface: &Interface, udp_port: u16) -> Result<Port, NodeError> {
    let address = address_of(ni, interface)?;
    let port = Port {
        ni: id,
        nid: ni.nid,
        address,
        udp_port,
        endpoint: endpoint(address, udp_port),
        interface_index: interface.index,
        mac: interface.mac,
        mtu_bytes: interface.mtu_bytes as usize,
    };
    let needed_bytes = packet_min_bytes(address);
    if port.mtu_bytes < needed_bytes {
        let present = format!("an MTU of {} bytes: more than {needed_bytes} are needed", interface.mtu_bytes);
        return Err(NodeError::Unsuitable { interface: interface.name.clone(), present });
    }
    Ok(port)
}

/// A frame that the transmit ring can never hold would wait for ever.
fn check_transmit_ring(port: &Port, interface: &Interface, entries: u32) -> Result<(), NodeError> {
    let needed = (port.mtu_bytes + ETHERNET_BYTES).div_ceil(CHUNK_BYTES as usize) as u32;
    if entries < needed {
        let (interface, mtu_bytes) = (interface.name.clone(), interface.mtu_bytes);
        return Err(NodeError::TransmitRing { interface, mtu_bytes, entries, needed });
    }
    Ok(())
}

/// Bytes of the shortest IP packet that must pass: one of a handshake.
fn packet_min_bytes(address: IpAddr) -> usize {
    let ip = if address.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    ip + UDP_BYTES + DATAGRAM_MIN_BYTES
}

// Keeps the arithmetic of frames honest: a frame's headers leave room in the smallest chunk.
const _: () = assert!(ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + DATAGRAM_MIN_BYTES < CHUNK_BYTES as usize);
