//! The thread behind [`Neighbours`](super::Neighbours): route lookups, the neighbour table, events.
//!
//! An address leads to a next hop (one route lookup); a next hop has an answer that neighbour events keep
//! current. Whatever can move an address to another next hop causes a refresh: all routes, and the next hops
//! whose answers are in doubt, are asked for again, soon, but at most once a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::interface::is_up;
use super::neighbours::{ENTRIES_MAX, Key, Published, Resolution, Shared, Table, Unreachable};
use super::{Mac, NetlinkError, connect, request, to_io};

/// An unreachable address is tried again on request after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// A refresh waits this long for further events of the same change.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Questions, and events, that are handled between two snapshots.
const BATCH_MAX: usize = 64;

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

struct Destination {
    /// The next hop.
    via: Result<Key, Unreachable>,
    attempted: Instant,
    used: Arc<AtomicU64>,
}

struct Hop {
    resolution: Resolution,
    /// Destinations that lead here; the last one takes the hop along.
    users: usize,
    /// Whether we made the kernel's entry a managed one, and so delete it.
    added: bool,
    /// To be asked for again although there is an answer.
    stale: bool,
}

struct Resolver {
    handle: Handle,
    shared: Arc<Shared>,
    up: HashMap<u32, bool>,
    destinations: HashMap<Key, Destination>,
    hops: HashMap<Key, Hop>,
    refresh_at: Option<Instant>,
    refreshed: Instant,
    /// Whether an answer may differ from the published one.
    dirty: bool,
}

/// Answers questions until their senders are gone. `ready` is told once whether it could start.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut questions: mpsc::Receiver<Key>,
    ready: SyncSender<Result<(), NetlinkError>>,
) {
    // The receiver waits for exactly one word; if it is gone, so are the questions.
    let (mut resolver, mut events) = match Resolver::new(shared).await {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(error))),
    };
    drop(ready.send(Ok(())));
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        let refresh_at = resolver.refresh_at;
        let refresh = async {
            match refresh_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
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
            count = questions.recv_many(&mut batch, BATCH_MAX) => {
                if count == 0 {
                    break;
                }
                for key in batch.drain(..) {
                    resolver.question(key).await;
                }
            }
            () = refresh => resolver.refresh().await,
        }
        resolver.publish();
    }
    resolver.clear().await;
}

/// Opens a socket for events alone, so that a flood of them loses no answer to a request.
fn subscribe() -> Result<Events, NetlinkError> {
    let (connection, _, events) = rtnetlink::new_multicast_connection(&GROUPS)
        .map_err(|source| NetlinkError::from_io("subscribe to netlink events", source))?;
    tokio::spawn(connection);
    Ok(Box::pin(events))
}

impl Resolver {
    async fn new(shared: Arc<Shared>) -> Result<(Self, Events), NetlinkError> {
        // Before anything is asked, so that no change falls in between.
        let events = subscribe()?;
        let mut handle = connect()?;
        let mut up = HashMap::new();
        for &index in &shared.interfaces {
            let mut link = LinkMessage::default();
            link.header.index = index;
            let answer = request(&mut handle, RouteNetlinkMessage::GetLink(link), 0).await;
            let Ok(Some(RouteNetlinkMessage::NewLink(link))) = answer else {
                return Err(NetlinkError::NoSuchIndex { index });
            };
            up.insert(index, is_up(link.header.flags));
        }
        // Deleting nothing is refused for another reason to those who may delete something.
        let nothing = RouteNetlinkMessage::DelNeighbour(NeighbourMessage::default());
        if let Err(error) = request(&mut handle, nothing, NLM_F_ACK).await {
            let error = NetlinkError::from_request("follow neighbours", error);
            if matches!(error, NetlinkError::NoPermission { .. }) {
                return Err(error);
            }
        }
        let (destinations, hops, refreshed) = (HashMap::new(), HashMap::new(), Instant::now());
        let resolver =
            Self { handle, shared, up, destinations, hops, refresh_at: None, refreshed, dirty: false };
        Ok((resolver, events))
    }

    async fn question(&mut self, key: Key) {
        if let Some(destination) = self.destinations.get(&key) {
            let unreachable = matches!(self.resolution(destination), Resolution::Unreachable(_));
            if !unreachable || destination.attempted.elapsed() < RETRY_INTERVAL {
                return;
            }
            if let Ok(hop) = destination.via
                && let Some(hop) = self.hops.get_mut(&hop)
            {
                hop.stale = true;
            }
        } else if self.destinations.len() >= ENTRIES_MAX {
            self.evict().await;
        }
        self.resolve(key).await;
    }

    fn resolution(&self, destination: &Destination) -> Resolution {
        match destination.via {
            Ok(hop) => self.hops.get(&hop).map_or(Resolution::Unknown, |hop| hop.resolution),
            Err(reason) => Resolution::Unreachable(reason),
        }
    }

    /// Drops the destination that was looked up longest ago.
    async fn evict(&mut self) {
        let used = |destination: &Destination| destination.used.load(Ordering::Relaxed);
        let oldest = self.destinations.iter().min_by_key(|(_, destination)| used(destination));
        if let Some((&key, _)) = oldest
            && let Some(Destination { via: Ok(hop), .. }) = self.destinations.remove(&key)
        {
            self.release(hop).await;
        }
    }

    /// Finds the next hop of a destination, new or known, and follows it.
    async fn resolve(&mut self, key: Key) {
        let via = self.route(key).await;
        if let Ok(hop) = via {
            self.follow(hop).await;
        }
        let used = match self.destinations.get(&key) {
            Some(known) => Arc::clone(&known.used),
            None => Arc::new(AtomicU64::new(self.shared.age.fetch_add(1, Ordering::Relaxed) + 1)),
        };
        let destination = Destination { via, attempted: Instant::now(), used };
        self.dirty = true;
        let before = self.destinations.insert(key, destination);
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
    async fn route(&mut self, (index, address): Key) -> Result<Key, Unreachable> {
        if !*self.up.get(&index).ok_or(Unreachable::NotFollowed)? {
            return Err(Unreachable::InterfaceDown);
        }
        let mut message = RouteMessage::default();
        (message.header.address_family, message.header.destination_prefix_length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.flags = RouteFlags::LookupTable;
        let destination = match address {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        message.attributes.push(RouteAttribute::Destination(destination));
        message.attributes.push(RouteAttribute::Oif(index));
        match request(&mut self.handle, RouteNetlinkMessage::GetRoute(message), 0).await {
            Ok(Some(RouteNetlinkMessage::NewRoute(route))) => next_hop(&route, (index, address)),
            Ok(_) => Err(Unreachable::NoRoute),
            Err(error) => {
                tracing::debug!(index, %address, error = %to_io(error), "no route");
                Err(Unreachable::NoRoute)
            }
        }
    }

    /// Makes sure that the kernel resolves the next hop and keeps it fresh.
    async fn follow(&mut self, key: Key) {
        if self.hops.get(&key).is_some_and(|hop| !hop.stale) {
            return;
        }
        let get = RouteNetlinkMessage::GetNeighbour(neighbour(key));
        let known = match request(&mut self.handle, get, 0).await {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(message))) => Some(message),
            _ => None,
        };
        let mac = known.as_ref().and_then(valid_mac);
        let managed = known.as_ref().is_some_and(is_managed);
        let mut added = false;
        let mut refused = false;
        // What was entered by hand needs no refreshing. Adding one that failed makes the kernel probe anew.
        if !known.as_ref().is_some_and(is_permanent) && (!managed || mac.is_none()) {
            let mut message = neighbour(key);
            message.header.flags = NeighbourFlags::ExtLearned;
            message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
            let add = RouteNetlinkMessage::NewNeighbour(message);
            match request(&mut self.handle, add, NLM_F_ACK | NLM_F_CREATE).await {
                Ok(_) => added = !managed,
                Err(error) => {
                    let (index, address) = key;
                    tracing::warn!(index, %address, error = %to_io(error), "cannot follow this neighbour");
                    refused = true;
                }
            }
        }
        let fresh = Hop { resolution: Resolution::Unknown, users: 0, added: false, stale: false };
        let hop = self.hops.entry(key).or_insert(fresh);
        hop.stale = false;
        hop.added |= added;
        hop.resolution = match (mac, hop.resolution) {
            (Some(mac), _) => Resolution::Mac(mac),
            (None, _) if refused => Resolution::Unreachable(Unreachable::Refused),
            // Stays so until the new probes are answered: messages fail at once instead of waiting each time.
            (None, Resolution::Unreachable(_)) => Resolution::Unreachable(Unreachable::NoNeighbour),
            (None, _) => Resolution::Unknown,
        };
    }

    async fn release(&mut self, key: Key) {
        let Some(hop) = self.hops.get_mut(&key) else { return };
        hop.users -= 1;
        if hop.users == 0
            && let Some(hop) = self.hops.remove(&key)
        {
            self.forget(key, &hop).await;
        }
    }

    async fn forget(&mut self, key: Key, hop: &Hop) {
        if hop.added {
            let delete = RouteNetlinkMessage::DelNeighbour(neighbour(key));
            if let Err(error) = request(&mut self.handle, delete, NLM_F_ACK).await {
                let (index, address) = key;
                tracing::debug!(index, %address, error = %to_io(error), "neighbour not deleted");
            }
        }
    }

    async fn clear(&mut self) {
        for (key, hop) in std::mem::take(&mut self.hops) {
            self.forget(key, &hop).await;
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
        self.hops.values_mut().for_each(|hop| hop.stale = true);
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
                self.link_changed(&message, is_up(message.header.flags));
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(message)) => {
                self.link_changed(&message, false);
            }
            // Routes, rules and addresses.
            NetlinkPayload::InnerMessage(_) => self.schedule_refresh(),
            NetlinkPayload::Overrun(_) => self.lost_events(),
            _ => {}
        }
    }

    fn neighbour_changed(&mut self, message: &NeighbourMessage, deleted: bool) {
        let Some(hop) = neighbour_key(message).and_then(|key| self.hops.get_mut(&key)) else { return };
        self.dirty = true;
        if deleted {
            (hop.resolution, hop.stale) = (Resolution::Unknown, true);
            self.schedule_refresh();
        } else if let Some(mac) = valid_mac(message) {
            hop.resolution = Resolution::Mac(mac);
        } else if message.header.state == NeighbourState::Failed {
            hop.resolution = Resolution::Unreachable(Unreachable::NoNeighbour);
        }
    }

    fn link_changed(&mut self, message: &LinkMessage, up: bool) {
        // Bridges report the leaving of a port as a deleted link of their own address family.
        if message.header.interface_family != AddressFamily::Unspec {
            return;
        }
        if let Some(known) = self.up.get_mut(&message.header.index)
            && *known != up
        {
            *known = up;
            self.schedule_refresh();
        }
    }

    fn schedule_refresh(&mut self) {
        let soonest = (self.refreshed + REFRESH_INTERVAL).max(Instant::now() + SETTLE_TIME);
        self.refresh_at.get_or_insert(soonest);
    }

    async fn refresh(&mut self) {
        self.refresh_at = None;
        let keys: Vec<Key> = self.destinations.keys().copied().collect();
        for key in keys {
            self.resolve(key).await;
        }
        self.refreshed = Instant::now();
    }

    /// Publishes what is known now; nobody is woken unless an answer differs.
    fn publish(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let before = self.shared.table.load();
        let answers: HashMap<Key, Published> = self
            .destinations
            .iter()
            .map(|(&key, destination)| {
                let resolution = self.resolution(destination);
                (key, Published { resolution, used: Arc::clone(&destination.used) })
            })
            .collect();
        let table = Table { answers };
        let same = |key: &Key| before.resolution(key) == table.resolution(key);
        let changed = !table.answers.keys().all(same) || !before.answers.keys().all(same);
        self.shared.publish(table, changed);
    }
}

/// The next hop that a route lookup found. A gateway of an IPv4 route may be an IPv6 address (RFC 5549).
fn next_hop(route: &RouteMessage, (index, address): Key) -> Result<Key, Unreachable> {
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
    Ok((index, hop))
}

/// A message that names a neighbour and nothing more.
fn neighbour((index, address): Key) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}

fn neighbour_key(message: &NeighbourMessage) -> Option<Key> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    Some((message.header.ifindex, address))
}

/// The neighbour's Ethernet address, if its state is one in which the kernel itself would use it
/// (include/net/neighbour.h: `NUD_VALID`).
fn valid_mac(message: &NeighbourMessage) -> Option<Mac> {
    let valid = matches!(
        message.header.state,
        NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe
    ) || is_permanent(message);
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) if valid => Mac::try_from(bytes.as_slice()).ok(),
        _ => None,
    })
}

fn is_permanent(message: &NeighbourMessage) -> bool {
    matches!(message.header.state, NeighbourState::Permanent | NeighbourState::Noarp)
}

fn is_managed(message: &NeighbourMessage) -> bool {
    message.attributes.iter().any(|attribute| {
        matches!(attribute, NeighbourAttribute::ExtFlags(flags) if flags.contains(NeighbourExtFlags::Managed))
    })
}
