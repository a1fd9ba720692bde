//! The thread behind [`Neighbours`](super::Neighbours): route lookups, the neighbour table, events.
//!
//! Questions of strangers are answered so many at a time, and then none for a while: each may have the kernel
//! ask the whole link for an address that there is not.
//!
//! An address leads to a next hop (one route lookup); a next hop has an answer that neighbour events keep
//! current. Whatever can move an address to another next hop causes a refresh: all routes, and the next hops
//! whose answers are in doubt, are asked for again, soon, but at most once a second unless an interface has
//! come up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use ethtool::{EthtoolHandle, EthtoolMessage};
use futures_util::{FutureExt, Stream, StreamExt};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::neighbour::{NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::{AsyncSocket, SocketAddr};
use rtnetlink::{Handle, MulticastGroup};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::interface::{self, is_local_to, is_up};
use super::messages::{
    is_managed, is_permanent, managed_neighbour, neighbour, neighbour_address, next_hop, route_question,
    valid_mac,
};
use super::neighbours::{
    Asker, ENTRIES_MAX, FollowedInterface, Published, Questions, Resolution, Table, Unreachable, Use,
};
use super::{NetlinkError, SameHost, connect, request, to_io};

/// An unreachable address is tried again on request after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two refreshes, but for those of an interface that has come up.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// How often queues are counted: drivers change them without a word.
const COUNT_INTERVAL: Duration = Duration::from_secs(3);
/// A refresh waits this long for further events of the same change.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Room for an event of every entry at once, as when the kernel gives up on all of them.
const EVENT_BUFFER_BYTES: usize = ENTRIES_MAX * 1024;
/// Questions, and events, that are handled between two snapshots.
const BATCH_MAX: usize = 64;
/// Questions of strangers that are handled between two pauses: some thousand are answered in a second.
const STRANGERS_BATCH_MAX: usize = 32;
/// How long further questions of strangers wait then.
const STRANGERS_PAUSE: Duration = Duration::from_millis(25);

/// Part of an asker's table that is freed when it is full.
const SPARE_PART: usize = 64;

/// Neighbours and links, and everything that decides a route lookup.
const GROUPS: [MulticastGroup; 9] = [
    MulticastGroup::Neigh,
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Nexthop,
];

type Message = NetlinkMessage<RouteNetlinkMessage>;
type Events = Pin<Box<dyn Stream<Item = (Message, SocketAddr)>>>;
/// Changes that were made by ethtool, of whichever interface.
type Changes = Pin<Box<dyn Stream<Item = ()>>>;

struct Destination {
    /// The next hop.
    via: Result<IpAddr, Unreachable>,
    attempted: Instant,
    used: Arc<Use>,
}

struct Hop {
    resolution: Resolution,
    /// Destinations that lead here; the last one takes the hop along.
    users: usize,
    /// Whether we made the kernel's entry a managed one, and so delete it.
    added: bool,
    trust: Trust,
}

/// Whether a next hop's answer holds when an address leads to it again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Events keep it current.
    Current,
    /// Events may have been lost: to be read from the kernel again.
    Doubtful,
    /// Doubtful, and to be probed at once if it is not resolved.
    Probe,
}

struct Resolver {
    handle: Handle,
    shared: Arc<FollowedInterface>,
    destinations: HashMap<IpAddr, Destination>,
    hops: HashMap<IpAddr, Hop>,
    refresh_at: Option<Instant>,
    refreshed: Instant,
    /// Counts queues; `None` where the kernel has no ethtool by netlink.
    ethtool: Option<EthtoolHandle>,
    /// Whether its queues are those of slaves.
    is_bond: bool,
    count_at: Instant,
    /// When the next questions of strangers are answered at the earliest.
    strangers_at: Instant,
    /// Whether an answer may differ from the published one.
    dirty: bool,
    /// Whether something about the interface itself is new: its MTU, its name, its addresses, its queues,
    /// whether it carries frames.
    interface_changed: bool,
}

/// Answers questions until their senders are gone, unless it only follows the interface. `ready` is told once
/// whether it could start.
pub(super) async fn run(
    (shared, resolves): (Arc<FollowedInterface>, bool),
    [mut strangers, mut peers, mut own]: Questions,
    ready: SyncSender<Result<(), NetlinkError>>,
) {
    // The receiver waits for exactly one word; if it is gone, so are the questions.
    let (mut resolver, mut events, mut changes) = match Resolver::new(shared, resolves).await {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(error))),
    };
    drop(ready.send(Ok(())));
    loop {
        let refresh_at = resolver.refresh_at;
        let refresh = async {
            match refresh_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let (count_at, strangers_at) = (resolver.count_at, resolver.strangers_at);
        let stranger = async {
            tokio::time::sleep_until(strangers_at).await;
            strangers.recv().await
        };
        tokio::select! {
            event = events.next() => {
                match event {
                    Some((event, _)) => resolver.event(event),
                    None => events = resolver.subscribe_again(events).await,
                }
                for _ in 1..BATCH_MAX {
                    let Some(Some((event, _))) = events.next().now_or_never() else { break };
                    resolver.event(event);
                }
            }
            address = own.recv() => match address {
                Some(address) => resolver.answer(address, &mut own, Asker::Own).await,
                None => break,
            },
            Some(address) = peers.recv() => resolver.answer(address, &mut peers, Asker::Peer).await,
            Some(address) = stranger => {
                resolver.answer(address, &mut strangers, Asker::Stranger).await;
                resolver.strangers_at = Instant::now() + STRANGERS_PAUSE;
            }
            () = refresh => resolver.refresh().await,
            Some(()) = changes.next() => resolver.count_soon(),
            () = tokio::time::sleep_until(count_at) => resolver.count_queues().await,
        }
        resolver.publish();
    }
    resolver.clear().await;
}

/// Opens a socket for events alone, so that a flood of them loses no answer to a request.
fn subscribe() -> Result<Events, NetlinkError> {
    let failed = |source| NetlinkError::from_io("subscribe to netlink events", source);
    let (mut connection, _, events) = rtnetlink::new_multicast_connection(&GROUPS).map_err(failed)?;
    let socket = connection.socket_mut().socket_ref();
    // Programs without the privilege have the usual buffer: a program that loses events asks again.
    match set_socket_recv_buffer_size_force(socket, EVENT_BUFFER_BYTES) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    tokio::spawn(connection);
    Ok(Box::pin(events))
}

/// Subscribes to what is changed by ethtool: channels, rings (`Documentation/networking/ethtool-netlink.rst`,
/// the multicast group `monitor`). Without it, as where the kernel has no ethtool by netlink, changes are
/// found when queues are counted.
async fn ethtool_changes(ethtool: Option<&EthtoolHandle>) -> Changes {
    let none = || Box::pin(futures_util::stream::pending());
    let Some(ethtool) = ethtool else { return none() };
    let Ok(family) = ethtool.handle.resolve_family::<EthtoolMessage>().await else { return none() };
    let Some(group) = family.multicast_groups.get("monitor") else { return none() };
    let Ok((mut connection, handle, messages)) = ethtool::new_connection() else { return none() };
    if connection.socket_mut().socket_mut().add_membership(*group).is_err() {
        return none();
    }
    tokio::spawn(connection);
    // The connection ends with its last handle.
    Box::pin(messages.map(move |_| {
        let _ = &handle;
    }))
}

impl Resolver {
    async fn new(
        shared: Arc<FollowedInterface>,
        resolves: bool,
    ) -> Result<(Self, Events, Changes), NetlinkError> {
        // Before anything is asked, so that no change falls in between.
        let events = subscribe()?;
        let ethtool = interface::ethtool();
        let changes = ethtool_changes(ethtool.as_ref()).await;
        let mut handle = connect()?;
        look(&mut handle, &shared).await?;
        if shared.is_gone() {
            return Err(NetlinkError::NoSuchIndex { index: shared.interface_index });
        }
        // Deleting nothing is refused for another reason to those who may delete something.
        let nothing = RouteNetlinkMessage::DelNeighbour(NeighbourMessage::default());
        if resolves && let Err(error) = request(&mut handle, nothing, NLM_F_ACK).await {
            let error = NetlinkError::from_request("follow neighbours", error);
            if matches!(error, NetlinkError::NoPermission { .. }) {
                return Err(error);
            }
        }
        let is_bond = interface::is_bond(&handle, shared.interface_index).await;
        let (destinations, hops, refreshed) = (HashMap::new(), HashMap::new(), Instant::now());
        let (refresh_at, dirty, interface_changed) = (None, false, false);
        let mut resolver = Self {
            handle,
            shared,
            destinations,
            hops,
            refresh_at,
            refreshed,
            ethtool,
            is_bond,
            count_at: refreshed,
            strangers_at: refreshed,
            dirty,
            interface_changed,
        };
        resolver.count_queues().await;
        Ok((resolver, events, changes))
    }

    /// Counts the queues of the interface; where it has gone, there is nothing to count any more.
    async fn count_queues(&mut self) {
        self.count_at = Instant::now() + COUNT_INTERVAL;
        if self.shared.is_gone() {
            return;
        }
        let name = self.shared.name();
        if let Some(ethtool) = &mut self.ethtool
            && let Some(queues) = match self.is_bond {
                true => interface::in_use(&self.handle, ethtool, &name).await,
                false => interface::channels(ethtool, &name).await,
            }
        {
            self.interface_changed |= self.shared.set_queues(queues);
        }
    }

    /// Has the queues counted once the change is over that was told just now.
    fn count_soon(&mut self) {
        self.count_at = self.count_at.min(Instant::now() + SETTLE_TIME);
    }

    /// Answers a question, and others of its kind that wait.
    async fn answer(&mut self, first: IpAddr, waiting: &mut mpsc::Receiver<IpAddr>, asker: Asker) {
        let batch_max = if asker == Asker::Stranger { STRANGERS_BATCH_MAX } else { BATCH_MAX };
        let further = std::iter::from_fn(|| waiting.try_recv().ok());
        let batch: Vec<_> = std::iter::once(first).chain(further.take(batch_max - 1)).collect();
        self.make_room(asker, batch.len()).await;
        for address in batch {
            self.question(address, asker).await;
        }
    }

    async fn question(&mut self, address: IpAddr, asker: Asker) {
        if let Some(destination) = self.destinations.get(&address) {
            destination.used.note(destination.used.age(), asker);
            let unreachable = matches!(self.resolution(destination), Resolution::Unreachable(_));
            if !unreachable || destination.attempted.elapsed() < RETRY_INTERVAL {
                return;
            }
            if let Ok(hop) = destination.via
                && let Some(hop) = self.hops.get_mut(&hop)
            {
                hop.trust = Trust::Probe;
            }
        }
        self.resolve(address, asker).await;
    }

    fn resolution(&self, destination: &Destination) -> Resolution {
        match destination.via {
            Ok(hop) => self.hops.get(&hop).map_or(Resolution::Unknown, |hop| hop.resolution),
            Err(reason) => Resolution::Unreachable(reason),
        }
    }

    /// Drops destinations of an asker that were looked up longest ago, where so many further ones need room;
    /// some more of them then, so that they are not looked through for each question.
    async fn make_room(&mut self, asker: Asker, more: usize) {
        if self.destinations.len() + more <= asker.entries_max() {
            return;
        }
        let its = self.destinations.iter().filter(|(_, destination)| destination.used.asker() == asker);
        let mut its: Vec<_> = its.map(|(address, destination)| (destination.used.age(), *address)).collect();
        let surplus = (its.len() + more).saturating_sub(asker.entries_max());
        if surplus == 0 {
            return;
        }
        let count = (surplus + asker.entries_max() / SPARE_PART).min(its.len());
        its.select_nth_unstable(count - 1);
        its.truncate(count);
        self.dirty = true;
        for (_, address) in its {
            if let Some(Destination { via: Ok(hop), .. }) = self.destinations.remove(&address) {
                self.release(hop).await;
            }
        }
    }

    /// Finds the next hop of a destination, new or known, and follows it.
    async fn resolve(&mut self, address: IpAddr, asker: Asker) {
        let via = self.route(address).await;
        if let Ok(hop) = via {
            self.follow(hop).await;
        }
        let used = match self.destinations.get(&address) {
            Some(known) => Arc::clone(&known.used),
            None => Arc::new(Use::new(self.shared.age.fetch_add(1, Ordering::Relaxed) + 1, asker)),
        };
        let destination = Destination { via, attempted: Instant::now(), used };
        self.dirty = true;
        let before = self.destinations.insert(address, destination);
        let is_local = |via: &Result<IpAddr, Unreachable>| *via == Err(Unreachable::Local);
        // A stranger may write any address into its frames.
        if asker != Asker::Stranger
            && is_local(&via)
            && !before.as_ref().is_some_and(|before| is_local(&before.via))
        {
            tracing::warn!("{}", SameHost(address));
        }
        // Taken before the old one is released: it may be the same.
        if let Ok(hop) = via
            && let Some(hop) = self.hops.get_mut(&hop)
        {
            hop.users += 1;
        }
        if let Some(Destination { via: Ok(hop), .. }) = before {
            self.release(hop).await;
        }
    }

    /// Where the kernel would send a packet for this address that must leave by this interface.
    async fn route(&mut self, address: IpAddr) -> Result<IpAddr, Unreachable> {
        let index = self.shared.interface_index;
        if !self.shared.is_up() {
            return Err(Unreachable::InterfaceDown);
        }
        let question = RouteNetlinkMessage::GetRoute(route_question(Some(index), address));
        let hop = match request(&mut self.handle, question, 0).await {
            Ok(Some(RouteNetlinkMessage::NewRoute(route))) => next_hop(&route, index, address),
            Ok(_) => Err(Unreachable::NoRoute),
            Err(error) => {
                tracing::debug!(index, %address, error = %to_io(error), "no route");
                Err(Unreachable::NoRoute)
            }
        };
        // The address of another interface of this host is none of this one's.
        match hop {
            Err(Unreachable::NoRoute) if is_local_to(&mut self.handle, address).await.unwrap_or(false) => {
                Err(Unreachable::Local)
            }
            hop => hop,
        }
    }

    /// Makes sure that the kernel resolves the next hop and keeps it fresh.
    async fn follow(&mut self, address: IpAddr) {
        let index = self.shared.interface_index;
        let trust = self.hops.get(&address).map_or(Trust::Probe, |hop| hop.trust);
        if trust == Trust::Current {
            return;
        }
        let get = RouteNetlinkMessage::GetNeighbour(neighbour(index, address));
        let known = match request(&mut self.handle, get, 0).await {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(message))) => Some(message),
            _ => None,
        };
        let mac = known.as_ref().and_then(valid_mac);
        let managed = known.as_ref().is_some_and(is_managed);
        let mut added = false;
        let mut refused = false;
        let failed = known.as_ref().is_some_and(|known| known.header.state == NeighbourState::Failed);
        // What was entered by hand needs no refreshing. Adding one that failed makes the kernel probe anew:
        // not for all at once after lost events, since that would lose more of them.
        let probe = failed && trust == Trust::Probe;
        if !known.as_ref().is_some_and(is_permanent) && (!managed || probe) {
            let add = RouteNetlinkMessage::NewNeighbour(managed_neighbour(index, address));
            match request(&mut self.handle, add, NLM_F_ACK | NLM_F_CREATE).await {
                Ok(_) => added = !managed,
                Err(error) => {
                    tracing::warn!(index, %address, error = %to_io(error), "cannot follow this neighbour");
                    refused = true;
                }
            }
        }
        let fresh = Hop { resolution: Resolution::Unknown, users: 0, added: false, trust };
        let hop = self.hops.entry(address).or_insert(fresh);
        hop.trust = Trust::Current;
        hop.added |= added;
        hop.resolution = match (mac, hop.resolution) {
            (Some(mac), _) => Resolution::Mac(mac),
            (None, _) if refused => Resolution::Unreachable(Unreachable::Refused),
            // Stays so until the new probes are answered: messages fail at once instead of waiting each time.
            (None, before) if (failed && managed) || matches!(before, Resolution::Unreachable(_)) => {
                Resolution::Unreachable(Unreachable::NoNeighbour)
            }
            (None, _) => Resolution::Unknown,
        };
    }

    async fn release(&mut self, address: IpAddr) {
        let Some(hop) = self.hops.get_mut(&address) else { return };
        hop.users -= 1;
        if hop.users == 0
            && let Some(hop) = self.hops.remove(&address)
        {
            self.forget(address, &hop).await;
        }
    }

    async fn forget(&mut self, address: IpAddr, hop: &Hop) {
        if hop.added {
            let index = self.shared.interface_index;
            let delete = RouteNetlinkMessage::DelNeighbour(neighbour(index, address));
            if let Err(error) = request(&mut self.handle, delete, NLM_F_ACK).await {
                tracing::debug!(index, %address, error = %to_io(error), "neighbour not deleted");
            }
        }
    }

    async fn clear(&mut self) {
        for (address, hop) in std::mem::take(&mut self.hops) {
            self.forget(address, &hop).await;
        }
    }

    /// The event socket ended: opens another after a pause, and asks for everything that may be missed.
    async fn subscribe_again(&mut self, ended: Events) -> Events {
        tracing::error!("the netlink event socket failed, opening another");
        tokio::time::sleep(REFRESH_INTERVAL).await;
        self.lost_events();
        subscribe().unwrap_or_else(|error| {
            tracing::error!(%error, "no netlink events");
            ended
        })
    }

    fn lost_events(&mut self) {
        self.hops.values_mut().for_each(|hop| hop.trust = Trust::Doubtful);
        self.schedule_refresh();
    }

    fn event(&mut self, message: Message) {
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
                self.neighbour_changed(&message, false);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message)) => {
                self.neighbour_changed(&message, true);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) => {
                self.link_changed(&message, is_up(message.header.flags), false);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message)) => {
                self.link_changed(&message, false, true);
            }
            // Routes, rules and addresses.
            NetlinkPayload::InnerMessage(_) => self.schedule_refresh(),
            NetlinkPayload::Overrun(_) => self.lost_events(),
            _ => {}
        }
    }

    fn neighbour_changed(&mut self, message: &NeighbourMessage, deleted: bool) {
        if message.header.ifindex != self.shared.interface_index {
            return;
        }
        let hop = neighbour_address(message).and_then(|address| self.hops.get_mut(&address));
        let Some(hop) = hop else { return };
        let before = hop.resolution;
        if deleted {
            (hop.resolution, hop.trust) = (Resolution::Unknown, Trust::Doubtful);
        } else if let Some(mac) = valid_mac(message) {
            hop.resolution = Resolution::Mac(mac);
        } else if message.header.state == NeighbourState::Failed {
            hop.resolution = Resolution::Unreachable(Unreachable::NoNeighbour);
        }
        self.dirty |= hop.resolution != before;
        if deleted {
            self.schedule_refresh();
        }
    }

    fn link_changed(&mut self, message: &LinkMessage, up: bool, is_deleted: bool) {
        let was_up = self.shared.is_up();
        let bond_index = self.shared.bond_index.load(Ordering::Relaxed);
        if bond_index != 0 && message.header.index == bond_index && !is_deleted {
            let mac = interface::mac(message);
            self.interface_changed |= mac.is_some_and(|mac| self.shared.set_mac(mac));
            return;
        }
        // Bridges report the leaving of a port as a deleted link of their own address family.
        if message.header.interface_family != AddressFamily::Unspec
            || message.header.index != self.shared.interface_index
        {
            return;
        }
        self.interface_changed |= follow_link(&self.shared, message, up);
        self.count_soon();
        if is_deleted {
            self.interface_changed |= self.shared.set_gone();
        }
        if self.shared.bond_index.load(Ordering::Relaxed) != bond_index {
            // The Ethernet address of the bond is to be asked for.
            self.schedule_refresh_from(Instant::now());
        }
        if was_up != up {
            // Messages wait for one that comes up, and the kernel tells of it a second late, and no more
            // often than that.
            let earliest = if up { Instant::now() } else { self.refreshed + REFRESH_INTERVAL };
            self.schedule_refresh_from(earliest);
        }
    }

    fn schedule_refresh(&mut self) {
        self.schedule_refresh_from(self.refreshed + REFRESH_INTERVAL);
    }

    fn schedule_refresh_from(&mut self, earliest: Instant) {
        let at = earliest.max(Instant::now() + SETTLE_TIME);
        self.refresh_at = Some(self.refresh_at.map_or(at, |scheduled| scheduled.min(at)));
    }

    async fn refresh(&mut self) {
        self.refresh_at = None;
        match look(&mut self.handle, &self.shared).await {
            Ok(is_new) => self.interface_changed |= is_new,
            Err(error) => tracing::debug!(%error, "the interface is not looked at"),
        }
        let asked =
            self.destinations.iter().map(|(address, destination)| (*address, destination.used.asker()));
        for (address, asker) in asked.collect::<Vec<_>>() {
            self.resolve(address, asker).await;
        }
        self.refreshed = Instant::now();
    }

    /// Publishes what is known now; shards are woken only where an answer differs.
    fn publish(&mut self) {
        let interface_changed = std::mem::take(&mut self.interface_changed);
        if !std::mem::take(&mut self.dirty) && !interface_changed {
            return;
        }
        let answer = |(&address, destination): (&IpAddr, &Destination)| {
            let resolution = self.resolution(destination);
            (address, Published { resolution, used: Arc::clone(&destination.used) })
        };
        let table: Table = self.destinations.iter().map(answer).collect();
        self.shared.publish(table, interface_changed);
    }
}

/// Asks the kernel for the interface: its link and its addresses; whether something of that is new.
async fn look(handle: &mut Handle, shared: &FollowedInterface) -> Result<bool, NetlinkError> {
    let index = shared.interface_index;
    let mut link = LinkMessage::default();
    link.header.index = index;
    let mut is_new = match request(handle, RouteNetlinkMessage::GetLink(link), 0).await {
        Ok(Some(RouteNetlinkMessage::NewLink(link))) => follow_link(shared, &link, is_up(link.header.flags)),
        Ok(_) => false,
        Err(error) if Errno::from_io_error(&to_io(error.clone())) == Some(Errno::NODEV) => {
            return Ok(shared.set_gone());
        }
        Err(error) => return Err(NetlinkError::from_request("ask for an interface", error)),
    };
    let bond_index = shared.bond_index.load(Ordering::Relaxed);
    if bond_index != 0 {
        let mut bond = LinkMessage::default();
        bond.header.index = bond_index;
        // Slaves of a bond that has gone just now tell so themselves.
        if let Ok(Some(RouteNetlinkMessage::NewLink(bond))) =
            request(handle, RouteNetlinkMessage::GetLink(bond), 0).await
        {
            is_new |= interface::mac(&bond).is_some_and(|mac| shared.set_mac(mac));
        }
    }
    // Routes go with the link. They are back a moment after it.
    if shared.is_up() {
        is_new |= shared.set_reach(interface::reach(handle, index).await?);
    }
    let addresses = interface::addresses(handle, index).await?;
    Ok(shared.set_addresses(addresses.into_iter().map(|(address, _)| address).collect()) | is_new)
}

/// Takes in the MTU of the link, its name, the Ethernet address that frames to it have, unless that is a
/// bond's, and whether it carries frames; whether something of that is new.
fn follow_link(shared: &FollowedInterface, link: &LinkMessage, up: bool) -> bool {
    let mtu = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(bytes) => Some(*bytes),
        _ => None,
    });
    let name = interface::name(link);
    let mac = interface::mac(link);
    let bond_index = interface::bond_index(link);
    // Not every message has what a link is.
    if mac.is_some() {
        shared.bond_index.store(bond_index.unwrap_or(0), Ordering::Relaxed);
    }
    mac.filter(|_| bond_index.is_none()).is_some_and(|mac| shared.set_mac(mac))
        | mtu.is_some_and(|bytes| shared.set_mtu(bytes))
        | name.is_some_and(|name| shared.set_name(name))
        | shared.set_up(up)
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::link::{InfoPortKind, LinkInfo};

    use super::*;
    /// A slave has the Ethernet address of its bond, until it is released.
    #[test]
    fn the_ethernet_address_of_a_slave_is_its_bonds() {
        let shared = FollowedInterface::new(3);
        let own = |last: u8, attributes: &[LinkAttribute]| {
            let mut link = LinkMessage::default();
            link.header.index = 3;
            link.attributes.push(LinkAttribute::Address(vec![2, 0, 0, 0, 0, last]));
            link.attributes.extend_from_slice(attributes);
            link
        };
        let slave = [
            LinkAttribute::Controller(9),
            LinkAttribute::LinkInfo(vec![LinkInfo::PortKind(InfoPortKind::Bond)]),
        ];
        let follow = |link: &LinkMessage| {
            let is_new = follow_link(&shared, link, true);
            (is_new, shared.mac(), shared.bond_index.load(Ordering::Relaxed))
        };
        let mac = |last: u8| Some([2, 0, 0, 0, 0, last]);
        assert_eq!(follow(&own(1, &[])).1, mac(1));
        assert_eq!(follow(&own(2, &[])), (true, mac(2), 0));
        assert_eq!(follow(&own(2, &[])), (false, mac(2), 0));
        assert_eq!(follow(&own(3, &slave)), (false, mac(2), 9), "the bond is to be asked");
        shared.set_mac([2, 0, 0, 0, 0, 77]);
        assert_eq!(follow(&own(4, &slave)), (false, mac(77), 9));
        // A message that says nothing of it.
        assert_eq!(follow(&LinkMessage::default()), (false, mac(77), 9));
        assert_eq!(follow(&own(4, &[])), (true, mac(4), 0));
    }
}
