//! The facts of one network interface.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ethtool::{EthtoolAttr, EthtoolChannelAttr, EthtoolHandle, EthtoolLinkModeAttr};
use futures_util::{StreamExt, TryStreamExt};
use lnet_core::topology::Reach;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use rtnetlink::packet_route::route::{RouteMessage, RouteType};

use super::messages::{route_question, route_to};
use super::{Mac, NetlinkError, connect, request, runtime};
use crate::blocking;

/// An interface of the calling thread's network namespace, as it was when asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index, unique within the network namespace.
    pub index: u32,
    /// Its Ethernet address: a tunnel, such as tun or WireGuard, and IPoIB have none.
    pub mac: Option<Mac>,
    /// Bytes of the largest IP packet that it carries.
    pub mtu_bytes: u32,
    /// Whether it is switched on (`IFF_UP`).
    pub enabled: bool,
    /// Whether it is switched on and has a carrier (`IFF_UP` and `IFF_RUNNING`). That of a new interface
    /// shows only some milliseconds after it was switched on.
    pub up: bool,
    /// Its addresses and the lengths of their prefixes in bits, in the kernel's order: the primary address
    /// of a subnet comes before its secondary ones.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Receive queues in use: of a bond as many as a slave of it has at most, since frames come by those.
    pub rx_queues: u32,
    /// Transmit queues in use.
    pub tx_queues: u32,
    /// Id of the XDP program that is attached to it, as `ip link` shows it; one of them where several modes
    /// have one each.
    pub xdp_program_id: Option<u32>,
    /// Kind of device that it is for its host.
    pub role: Role,
    /// Whether it is a slave of a bond, which has the addresses.
    pub is_slave: bool,
    /// Whether a device of a bus stands behind it, as far as the kernel says so (Linux 5.14): else it is one
    /// of software.
    pub has_device: bool,
}

/// Kinds of interfaces, by which a node takes one by itself, and a mode for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A card, or a device upon one.
    Device,
    /// A bond, a team, or what stands before a virtio card and its stand-in (`net_failover`): frames come by
    /// the queues of its slaves, and its own are no queues of a driver.
    Bond,
    /// End of a veth pair: within a container the way to its network, outside the way to one container.
    Veth,
    /// A bridge, such as `docker0`, or one of its ports. The bridge of another host often has the same
    /// address.
    Bridge,
}

impl Role {
    /// Whether it is the host's way to a network.
    const fn is_own(self) -> bool {
        matches!(self, Self::Device | Self::Bond)
    }
}

impl Interface {
    /// Asks the kernel about the interface called `name`. The label of an alias (`eth0:1`) is a name too: it
    /// stands for the interface with the addresses of that label alone. Blocks for a few netlink round trips,
    /// on a thread of its own, so that it may also be called from within an async runtime.
    ///
    /// # Errors
    /// [`NetlinkError::NoSuchInterface`], [`NetlinkError::Loopback`], or what the kernel refused.
    pub fn by_name(name: &str) -> Result<Self, NetlinkError> {
        on_a_thread(|| runtime()?.block_on(query(name)))
    }
}

/// The device of an interface that may be named by the label of an alias: no device has a colon in its name
/// (net/core/dev.c: dev_valid_name).
#[must_use]
pub fn device_of(interface: &str) -> &str {
    interface.split(':').next().unwrap_or(interface)
}

/// The speed of an interface's link in Mbit/s, as `ethtool` shows it; `None` where its driver does not know.
/// Blocks as [`Interface::by_name`] does.
#[must_use]
pub fn link_speed_mbits(name: &str) -> Option<u32> {
    on_a_thread(|| Ok(runtime()?.block_on(speed(name)))).ok().flatten()
}

/// Receive and transmit queues of an interface that are in use now; `None` where its driver has no channels
/// to count. Blocks as [`Interface::by_name`] does.
#[must_use]
pub fn queues_now(name: &str) -> Option<(u32, u32)> {
    let count = || {
        runtime()?.block_on(async {
            Ok(match ethtool() {
                Some(mut ethtool) => in_use(&connect()?, &mut ethtool, device_of(name)).await,
                None => None,
            })
        })
    };
    on_a_thread(count).ok().flatten()
}

/// Receive and transmit queues of an interface that are in use now: the channels of its driver, or for a bond
/// those that frames come by.
pub(super) async fn in_use(handle: &Handle, ethtool: &mut EthtoolHandle, name: &str) -> Option<(u32, u32)> {
    let counted = channels(ethtool, name).await;
    if counted.is_some() {
        return counted;
    }
    let links = links(handle).await.ok()?;
    let link = links.iter().find(|link| self::name(link).is_some_and(|other| other == name))?;
    match role(link, &links) {
        Role::Bond => Some(bond_queues(link, &links, ethtool).await),
        Role::Device | Role::Veth | Role::Bridge => None,
    }
}

/// Queues of a bond: frames come by the number of the slave's queue that they came by, and leave by any of
/// the bond's. One that the bond does not have counts as its first (net/core/dev.c: netif_get_rxqueue).
async fn bond_queues(bond: &LinkMessage, links: &[LinkMessage], ethtool: &mut EthtoolHandle) -> (u32, u32) {
    let (receive, transmit) = allocated(bond);
    let mut most = 1;
    for slave in links.iter().filter(|link| controller(link) == Some(bond.header.index)) {
        let counted = match name(slave) {
            Some(name) => channels(ethtool, name).await,
            None => None,
        };
        most = counted.unwrap_or_else(|| allocated(slave)).0.max(most);
    }
    (most.min(receive), transmit)
}

/// Receive and transmit queues that were made with a link.
fn allocated(link: &LinkMessage) -> (u32, u32) {
    let mut queues = (1, 1);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::NumRxQueues(count) => queues.0 = *count,
            LinkAttribute::NumTxQueues(count) => queues.1 = *count,
            _ => {}
        }
    }
    queues
}

/// Packets that the kernel counts on an interface.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkPackets {
    /// Packets that came, those among them that the device or its driver dropped.
    pub received: u64,
    /// Packets that left.
    pub sent: u64,
}

/// Packets that the kernel counts on interfaces of the calling thread's network namespace. Those that have
/// gone are left out. Blocks as [`Interface::by_name`] does.
#[must_use]
pub fn packets(indices: &[u32]) -> BTreeMap<u32, LinkPackets> {
    let ask = async {
        let mut handle = connect()?;
        let mut counted = BTreeMap::new();
        for &index in indices {
            let mut link = LinkMessage::default();
            link.header.index = index;
            if let Ok(Some(RouteNetlinkMessage::NewLink(link))) =
                request(&mut handle, RouteNetlinkMessage::GetLink(link), 0).await
            {
                counted.extend(packets_of(&link).map(|packets| (index, packets)));
            }
        }
        Ok(counted)
    };
    on_a_thread(|| runtime()?.block_on(ask)).unwrap_or_default()
}

fn packets_of(link: &LinkMessage) -> Option<LinkPackets> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some(LinkPackets {
            received: stats.rx_packets
                + stats.rx_dropped
                + stats.rx_missed_errors
                + stats.rx_over_errors
                + stats.rx_fifo_errors,
            sent: stats.tx_packets,
        }),
        _ => None,
    })
}

/// Interfaces of the calling thread's network namespace but its loopback, in the order of their indices.
/// Blocks as [`Interface::by_name`] does.
///
/// # Errors
/// What the kernel refused.
pub fn interfaces() -> Result<Vec<Interface>, NetlinkError> {
    let names = on_a_thread(|| runtime()?.block_on(async { Ok(names(&links(&connect()?).await?)) }))?;
    // An interface that vanishes meanwhile, or is the loopback, is none to choose.
    Ok(names.iter().filter_map(|name| Interface::by_name(name).ok()).collect())
}

/// Interfaces that a node takes by itself, in the order of their indices: never a bridge or a port of one,
/// nor a slave of a bond, and veths and devices without Ethernet only where nothing else has an address.
/// Blocks as [`Interface::by_name`] does.
///
/// # Errors
/// What the kernel refused.
pub fn default_interfaces() -> Result<Vec<Interface>, NetlinkError> {
    Ok(defaults_among(interfaces()?))
}

fn defaults_among(mut present: Vec<Interface>) -> Vec<Interface> {
    present.retain(|one| !one.is_slave);
    let is_card = |one: &Interface| one.role.is_own() && one.mac.is_some();
    let serves = |one: &Interface| is_card(one) && one.enabled && !one.addresses.is_empty();
    let has_card = present.iter().any(serves);
    present.retain(|one| is_card(one) || one.role != Role::Bridge && !has_card);
    present
}

/// Whether an address is one of the host's own, in the calling thread's network namespace. Blocks as
/// [`Interface::by_name`] does.
///
/// # Errors
/// What the kernel refused.
pub fn is_local(address: IpAddr) -> Result<bool, NetlinkError> {
    on_a_thread(|| runtime()?.block_on(async { is_local_to(&mut connect()?, address).await }))
}

pub(super) async fn is_local_to(handle: &mut Handle, address: IpAddr) -> Result<bool, NetlinkError> {
    let question = RouteNetlinkMessage::GetRoute(route_question(None, address));
    let answer = request(handle, question, 0).await;
    let answer = answer.map_err(|error| NetlinkError::from_request("look a route up", error))?;
    Ok(matches!(answer, Some(RouteNetlinkMessage::NewRoute(route)) if route.header.kind == RouteType::Local))
}

/// Addresses that an interface has routes to, by any of the routing tables, and those of the host, which are
/// reached whichever interface a packet is to leave by.
pub(super) async fn reach(handle: &Handle, index: u32) -> Result<Reach, NetlinkError> {
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut dump = RouteMessage::default();
        dump.header.address_family = family;
        let mut answers = handle.route().get(dump).execute();
        while let Some(route) = answers.next().await {
            // A kernel without IPv6 has no routes of it.
            let Ok(route) = route else { break };
            routes.extend(route_to(&route, index));
        }
    }
    Ok(Reach::new(routes))
}

/// Runs `ask` on a new thread, which inherits the network namespace of the calling one.
fn on_a_thread<T: Send>(ask: impl FnOnce() -> Result<T, NetlinkError> + Send) -> Result<T, NetlinkError> {
    blocking::wait(ask).map_err(|source| NetlinkError::Kernel { what: "start a thread", source })?
}

async fn links(handle: &Handle) -> Result<Vec<LinkMessage>, NetlinkError> {
    let links = handle.link().get().execute().try_collect().await;
    links.map_err(|error| NetlinkError::from_request("list the interfaces", error))
}

fn names(links: &[LinkMessage]) -> Vec<String> {
    links.iter().filter_map(name).cloned().collect()
}

pub(super) fn name(link: &LinkMessage) -> Option<&String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

/// The Ethernet address of a link, where the message has one.
pub(super) fn mac(link: &LinkMessage) -> Option<Mac> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => Mac::try_from(bytes.as_slice()).ok(),
        _ => None,
    })
}

/// The bond, or team, of which a link is a slave: what comes by the link has the bond's Ethernet address.
pub(super) fn bond_index(link: &LinkMessage) -> Option<u32> {
    let is_slave =
        facts(link).any(|fact| matches!(fact, LinkInfo::PortKind(InfoPortKind::Bond | InfoPortKind::Team)));
    controller(link).filter(|_| is_slave)
}

fn controller(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Controller(index) => Some(*index).filter(|index| *index != 0),
        _ => None,
    })
}

fn facts(link: &LinkMessage) -> impl Iterator<Item = &LinkInfo> {
    let facts = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(facts) => Some(facts),
        _ => None,
    });
    facts.flatten()
}

/// Whether a link stands before others without being of any kind, as `net_failover` does
/// (drivers/net/net_failover.c).
fn is_failover(link: &LinkMessage, links: &[LinkMessage]) -> bool {
    let has_kind = facts(link).any(|fact| matches!(fact, LinkInfo::Kind(_)));
    let index = link.header.index;
    !has_kind && links.iter().any(|other| index != 0 && controller(other) == Some(index))
}

/// Whether a link is the slave of a bond among the others.
fn is_slave(link: &LinkMessage, links: &[LinkMessage]) -> bool {
    let before = controller(link).and_then(|index| links.iter().find(|other| other.header.index == index));
    before.is_some_and(|before| role(before, links) == Role::Bond)
}

/// Whether an interface is a bond.
pub(super) async fn is_bond(handle: &Handle, index: u32) -> bool {
    let links = links(handle).await.unwrap_or_default();
    let link = links.iter().find(|link| link.header.index == index);
    link.is_some_and(|link| role(link, &links) == Role::Bond)
}

/// Tells the kind of device that a link is for its host, among the others.
fn role(link: &LinkMessage, links: &[LinkMessage]) -> Role {
    let roles = facts(link).filter_map(|fact| match fact {
        LinkInfo::Kind(InfoKind::Bridge) | LinkInfo::PortKind(InfoPortKind::Bridge) => Some(Role::Bridge),
        LinkInfo::Kind(InfoKind::Veth) => Some(Role::Veth),
        LinkInfo::Kind(InfoKind::Bond | InfoKind::Team) => Some(Role::Bond),
        _ => None,
    });
    // A veth that is a port of a bridge is both.
    let role = roles.reduce(|one, other| if one == Role::Bridge { one } else { other });
    role.unwrap_or(if is_failover(link, links) { Role::Bond } else { Role::Device })
}

async fn query(name: &str) -> Result<Interface, NetlinkError> {
    let handle = connect()?;
    let device = device_of(name);
    let links = links(&handle).await?;
    let link = find(&links, device)?;
    let index = link.header.index;
    let addresses = match device == name {
        true => addresses(&handle, index).await?,
        false => aliased(&handle, index, name).await?,
    };
    let (mut mtu_bytes, mut mac, mut xdp_program_id, mut has_device) = (0, None, None, false);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
            LinkAttribute::Mtu(bytes) => mtu_bytes = *bytes,
            LinkAttribute::Xdp(facts) => xdp_program_id = facts.iter().find_map(program_id),
            LinkAttribute::ParentDevName(_) => has_device = true,
            _ => {}
        }
    }
    let kind = link.header.link_layer_type;
    if kind == LinkLayerType::Loopback {
        return Err(NetlinkError::Loopback { name: device.to_owned() });
    }
    let mac = mac.filter(|_| kind == LinkLayerType::Ether);
    // The counts in the link message are those allocated; a driver with channels knows which are in use.
    let role = role(link, &links);
    let (rx_queues, tx_queues) = match ethtool() {
        Some(mut ethtool) if role == Role::Bond => bond_queues(link, &links, &mut ethtool).await,
        Some(mut ethtool) => channels(&mut ethtool, device).await.unwrap_or_else(|| allocated(link)),
        None => allocated(link),
    };
    Ok(Interface {
        name: device.to_owned(),
        index,
        mac,
        mtu_bytes,
        enabled: link.header.flags.contains(LinkFlags::Up),
        // The kernel tells of a carrier that has gone a second late (net/core/link_watch.c).
        up: is_up(link.header.flags) && link.header.flags.contains(LinkFlags::LowerUp),
        addresses,
        rx_queues,
        tx_queues,
        xdp_program_id,
        role,
        is_slave: is_slave(link, &links),
        has_device,
    })
}

/// The kernel gives a common id, or one for each mode where these differ (net/core/rtnetlink.c:
/// rtnl_xdp_fill).
fn program_id(fact: &LinkXdp) -> Option<u32> {
    match fact {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id) => {
            Some(*id).filter(|id| *id != 0)
        }
        _ => None,
    }
}

/// Whether a link with these flags carries frames.
pub(super) fn is_up(flags: LinkFlags) -> bool {
    flags.contains(LinkFlags::Up | LinkFlags::Running)
}

/// All links are listed, so that an unknown name can be answered with those that a node can use.
fn find<'a>(links: &'a [LinkMessage], wanted: &str) -> Result<&'a LinkMessage, NetlinkError> {
    let found = links.iter().find(|link| name(link).is_some_and(|name| name == wanted));
    found.ok_or_else(|| {
        let is_usable = |link: &&LinkMessage| !link.header.flags.contains(LinkFlags::Loopback);
        let usable: Vec<_> = links.iter().filter(is_usable).filter_map(name).cloned().collect();
        let present = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
        NetlinkError::NoSuchInterface { name: wanted.to_owned(), present }
    })
}

/// An address of an interface.
struct Address {
    ip: IpAddr,
    prefix_bits: u8,
    /// The name of the interface, or of an alias; IPv6 has none.
    label: Option<String>,
}

/// The addresses of an interface. Those of its aliases come behind its own.
pub(super) async fn addresses(handle: &Handle, index: u32) -> Result<Vec<(IpAddr, u8)>, NetlinkError> {
    let mut found = labelled(handle, index).await?;
    found.sort_by_key(|address| address.label.as_deref().is_some_and(|label| label.contains(':')));
    Ok(found.into_iter().map(|address| (address.ip, address.prefix_bits)).collect())
}

/// The addresses of an alias.
async fn aliased(handle: &Handle, index: u32, label: &str) -> Result<Vec<(IpAddr, u8)>, NetlinkError> {
    let found = labelled(handle, index).await?;
    let (of, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.label.as_deref() == Some(label));
    if of.is_empty() {
        let mut present: Vec<String> = others.into_iter().filter_map(|address| address.label).collect();
        present.dedup();
        return Err(NetlinkError::NoSuchLabel { label: label.to_owned(), present: present.join(", ") });
    }
    Ok(of.into_iter().map(|address| (address.ip, address.prefix_bits)).collect())
}

async fn labelled(handle: &Handle, index: u32) -> Result<Vec<Address>, NetlinkError> {
    let messages: Vec<_> = handle
        .address()
        .get()
        .set_link_index_filter(index)
        .execute()
        .try_collect()
        .await
        .map_err(|error| NetlinkError::from_request("list the addresses of an interface", error))?;
    let address = |message: &rtnetlink::packet_route::address::AddressMessage| {
        let (mut ip, mut label) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                // On a point-to-point link `Address` is the other end's (rtnetlink(7): IFA_LOCAL).
                AddressAttribute::Local(address) => ip = Some(*address),
                AddressAttribute::Address(address) => ip = ip.or(Some(*address)),
                AddressAttribute::Label(text) => label = Some(text.clone()),
                _ => {}
            }
        }
        ip.map(|ip| Address { ip, prefix_bits: message.header.prefix_len, label })
    };
    Ok(messages.iter().filter_map(address).collect())
}

/// Opens a socket for requests to ethtool, served by a task of the current runtime.
pub(super) fn ethtool() -> Option<EthtoolHandle> {
    let (connection, handle, _) = ethtool::new_connection().ok()?;
    tokio::spawn(connection);
    Some(handle)
}

/// Receive and transmit queues in use (`ethtool -l`); `None` where the driver has no channels to report.
pub(super) async fn channels(handle: &mut EthtoolHandle, name: &str) -> Option<(u32, u32)> {
    let answers = handle.channel().get(Some(name)).execute().await.ok()?;
    let mut answers = std::pin::pin!(answers);
    let (mut receive, mut transmit) = (0, 0);
    while let Some(Ok(answer)) = answers.next().await {
        for attribute in answer.payload.nlas {
            match attribute {
                EthtoolAttr::Channel(EthtoolChannelAttr::RxCount(count)) => receive += count,
                EthtoolAttr::Channel(EthtoolChannelAttr::TxCount(count)) => transmit += count,
                EthtoolAttr::Channel(EthtoolChannelAttr::CombinedCount(count)) => {
                    receive += count;
                    transmit += count;
                }
                _ => {}
            }
        }
    }
    (receive > 0 && transmit > 0).then_some((receive, transmit))
}

async fn speed(name: &str) -> Option<u32> {
    let mut handle = ethtool()?;
    let answers = handle.link_mode().get(Some(name)).execute().await.ok()?;
    let mut answers = std::pin::pin!(answers);
    let mut speed_mbits = None;
    while let Some(Ok(answer)) = answers.next().await {
        for attribute in answer.payload.nlas {
            if let EthtoolAttr::LinkMode(EthtoolLinkModeAttr::Speed(known)) = attribute {
                // What a driver does not know is -1 (uapi/linux/ethtool.h: SPEED_UNKNOWN).
                speed_mbits = Some(known).filter(|known| !matches!(*known, 0 | u32::MAX));
            }
        }
    }
    speed_mbits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about a link with this Ethernet address, below a controller of a kind.
    fn link(mac: Mac, controller: Option<(u32, InfoPortKind)>) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::Address(mac.to_vec()));
        if let Some((index, kind)) = controller {
            link.attributes.push(LinkAttribute::Controller(index));
            link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::PortKind(kind)]));
        }
        link
    }

    #[test]
    fn a_veth_in_a_bridge_is_the_bridges() {
        for (facts, expected) in [
            (vec![], Role::Device),
            (vec![LinkInfo::Kind(InfoKind::Vlan)], Role::Device),
            (vec![LinkInfo::Kind(InfoKind::Veth)], Role::Veth),
            (vec![LinkInfo::Kind(InfoKind::Bridge)], Role::Bridge),
            (vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::PortKind(InfoPortKind::Bridge)], Role::Bridge),
            (vec![LinkInfo::PortKind(InfoPortKind::Bridge)], Role::Bridge),
            (vec![LinkInfo::PortKind(InfoPortKind::Bond)], Role::Device),
            (vec![LinkInfo::Kind(InfoKind::Bond)], Role::Bond),
            (vec![LinkInfo::Kind(InfoKind::Team)], Role::Bond),
        ] {
            let mut message = LinkMessage::default();
            message.attributes.push(LinkAttribute::LinkInfo(facts));
            assert_eq!(role(&message, &[]), expected, "{message:?}");
        }
    }

    /// A card, its stand-in, and what stands before both, which has no kind; and a VRF, which is no bond.
    #[test]
    fn what_stands_before_a_virtio_card_and_its_stand_in_is_a_bond() {
        let mut failover = link([2, 0, 0, 0, 0, 1], None);
        failover.header.index = 5;
        let slave = |controller| {
            let mut slave = link([2, 0, 0, 0, 0, 1], None);
            slave.attributes.push(LinkAttribute::Controller(controller));
            slave
        };
        let links = [failover.clone(), slave(5), slave(5), slave(7)];
        assert_eq!(role(&failover, &links), Role::Bond);
        assert_eq!(role(&failover, &links[3..]), Role::Device, "without slaves a card");
        assert!(is_slave(&links[1], &links));
        assert!(!is_slave(&links[0], &links) && !is_slave(&links[3], &links));
        let mut vrf = link([2, 0, 0, 0, 0, 1], None);
        vrf.header.index = 7;
        vrf.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vrf)]));
        let links = [vrf.clone(), slave(7)];
        assert_eq!(role(&vrf, &links), Role::Device);
        assert!(!is_slave(&links[1], &links));
        let mut bond = link([2, 0, 0, 0, 0, 1], None);
        bond.header.index = 9;
        bond.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bond)]));
        let links = [bond, link([2, 0, 0, 0, 0, 1], Some((9, InfoPortKind::Bond)))];
        assert!(is_slave(&links[1], &links) && !is_slave(&links[0], &links));
    }

    /// A bond is made with 16 queues, and has as many as a slave of it.
    #[test]
    fn a_bond_has_the_queues_of_its_slaves() {
        let with = |index, controller: Option<u32>, receive| {
            let mut message = link([2, 0, 0, 0, 0, 1], controller.map(|index| (index, InfoPortKind::Bond)));
            message.header.index = index;
            message.attributes.push(LinkAttribute::NumRxQueues(receive));
            message.attributes.push(LinkAttribute::NumTxQueues(receive));
            message
        };
        let count = |links: &[LinkMessage]| {
            runtime()
                .unwrap()
                .block_on(async { bond_queues(&links[0], links, &mut ethtool().unwrap()).await })
        };
        assert_eq!(count(&[with(9, None, 16)]), (1, 16), "none yet");
        assert_eq!(count(&[with(9, None, 16), with(3, Some(9), 4), with(4, Some(9), 2)]), (4, 16));
        assert_eq!(count(&[with(9, None, 16), with(3, Some(9), 1), with(4, Some(8), 8)]), (1, 16));
        assert_eq!(count(&[with(9, None, 2), with(3, Some(9), 8)]), (2, 2), "no more than the bond has");
    }

    #[test]
    fn a_veth_is_a_default_only_where_nothing_else_has_an_address() {
        let one = |name: &str, role, has_address| Interface {
            name: name.to_owned(),
            index: 1,
            mac: (!name.starts_with("tun")).then_some([2; 6]),
            mtu_bytes: 1500,
            enabled: true,
            up: true,
            addresses: if has_address { vec![(IpAddr::from([10, 0, 0, 1]), 24)] } else { Vec::new() },
            rx_queues: 1,
            tx_queues: 1,
            xdp_program_id: None,
            role,
            is_slave: false,
            has_device: false,
        };
        let bridge = || one("docker0", Role::Bridge, true);
        let veth = || one("veth0", Role::Veth, true);
        let names = |present: Vec<Interface>| {
            defaults_among(present).into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        let tunnel = || one("tun0", Role::Device, true);
        assert_eq!(names(vec![bridge(), veth(), tunnel(), one("eth0", Role::Device, true)]), ["eth0"]);
        let without_address = vec![bridge(), veth(), tunnel(), one("eth0", Role::Device, false)];
        assert_eq!(names(without_address), ["veth0", "tun0", "eth0"]);
        assert!(names(vec![bridge()]).is_empty());
        let slave = Interface { is_slave: true, ..one("eth1", Role::Device, false) };
        assert_eq!(names(vec![slave, one("bond0", Role::Bond, true)]), ["bond0"]);
    }

    #[test]
    fn a_slave_is_told_from_the_port_of_a_bridge() {
        let own = [2, 0, 0, 0, 0, 1];
        for (controller, bond) in [
            (None, None),
            (Some((7, InfoPortKind::Bond)), Some(7)),
            (Some((8, InfoPortKind::Team)), Some(8)),
            (Some((9, InfoPortKind::Bridge)), None),
            (Some((9, InfoPortKind::Vrf)), None),
            // Released by its bond.
            (Some((0, InfoPortKind::Bond)), None),
        ] {
            let message = link(own, controller);
            assert_eq!((mac(&message), bond_index(&message)), (Some(own), bond), "{message:?}");
        }
        assert_eq!(mac(&LinkMessage::default()), None);
    }

    #[test]
    fn loopback_is_refused() {
        let refused = Interface::by_name("lo").unwrap_err();
        assert!(matches!(&refused, NetlinkError::Loopback { name } if name == "lo"), "{refused}");
        assert!(refused.to_string().contains("loopback"), "{refused}");
    }

    #[test]
    fn an_unknown_interface_is_answered_with_the_known_ones() {
        let refused = Interface::by_name("no-such-if").unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("\"no-such-if\""), "{text}");
        // Loopback is no interface that a node can use.
        let names = std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name());
        let NetlinkError::NoSuchInterface { present, .. } = refused else { panic!("{text}") };
        for name in names.filter_map(|name| name.into_string().ok()) {
            assert_eq!(present.contains(&name), name != "lo", "{name}: {text}");
        }
    }
}
