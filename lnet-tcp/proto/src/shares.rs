//! Connections, handshakes and connected peers, counted by the address at their other end, and those
//! connections of each address whose peers have names: who comes often has no table looked through.
//!
//! Invariants: never grows; an address is here while a connection has it; a peer counts for the address of
//! its first connection.

use core::net::IpAddr;

use lnet_core::collections::{Chain, Keyed, Link, List, Seed, Slab, Table, linked};

use super::connection::{Connection, Named};

/// Slots of a table of which one is few, where it is shared by address.
const SHARED: u32 = 64;

/// How much of everything an address has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    pub(super) connections: u32,
    /// Connections that it has opened and whose handshake is under way.
    pub(super) handshakes: u32,
    pub(super) peers: u32,
}

/// An address with what it has.
struct Share {
    address: IpAddr,
    counts: Counts,
    /// Connections that are established with a peer that has a name, and is not one for its port.
    named: List<Named>,
    chain: Link,
}

linked!(Share, Chain, chain);

impl Keyed for Share {
    fn hash(&self, seed: Seed) -> u64 {
        seed.hash(words(&self.address))
    }
}

fn words(address: &IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// The counts of all addresses.
pub(super) struct Shares {
    by_address: Table<Share>,
    connected_count: u32,
}

impl Shares {
    /// Counts for so many connections.
    pub(super) fn new(connections: u32, seed: Seed) -> Self {
        Self { by_address: Table::new(connections, seed), connected_count: 0 }
    }

    fn find(&self, address: IpAddr) -> Option<u32> {
        self.by_address.find(|| words(&address), |share| share.address == address)
    }

    /// A connection takes a slot.
    pub(super) fn add_connection(&mut self, address: IpAddr) {
        let (counts, chain) = (Counts::default(), Link::UNLINKED);
        let new = || Share { address, counts, named: List::new(), chain };
        let Some(slot) = self.find(address).or_else(|| self.by_address.insert(new())) else {
            unreachable!("there are more addresses than connections")
        };
        self.by_address[slot].counts.connections += 1;
    }

    /// A connection that has no peer any more leaves its slot.
    pub(super) fn remove_connection(&mut self, address: IpAddr) {
        let slot = self.known(address);
        let counts = &mut self.by_address[slot].counts;
        counts.connections -= 1;
        if counts.connections == 0 {
            assert_eq!(*counts, Counts::default(), "{address} has no connection");
            self.by_address.remove(slot);
        }
    }

    /// The handshake of a connection is under way.
    pub(super) fn add_handshake(&mut self, address: IpAddr) {
        let slot = self.known(address);
        self.by_address[slot].counts.handshakes += 1;
    }

    /// The handshake of a connection is over.
    pub(super) fn remove_handshake(&mut self, address: IpAddr) {
        let slot = self.known(address);
        self.by_address[slot].counts.handshakes -= 1;
    }

    /// A connection is established whose peer has a name.
    pub(super) fn add_named(&mut self, connections: &mut Slab<Connection>, slot: u32) {
        let share = self.known(connections[slot].ends.remote.ip());
        self.by_address[share].named.push_back(connections, slot);
    }

    /// An established connection leaves its peer.
    pub(super) fn remove_named(&mut self, connections: &mut Slab<Connection>, slot: u32) {
        let share = self.known(connections[slot].ends.remote.ip());
        self.by_address[share].named.discard(connections, slot);
    }

    /// The connections of an address, which has some, whose peers have names.
    pub(super) fn named(&self, address: IpAddr) -> &List<Named> {
        &self.by_address[self.known(address)].named
    }

    /// The address of the first connection of a peer changes: it has its first one, or has lost that.
    pub(super) fn move_peer(&mut self, from: Option<IpAddr>, to: Option<IpAddr>) {
        if let Some(from) = from {
            let slot = self.known(from);
            self.by_address[slot].counts.peers -= 1;
            self.connected_count -= 1;
        }
        if let Some(to) = to {
            let slot = self.known(to);
            self.by_address[slot].counts.peers += 1;
            self.connected_count += 1;
        }
    }

    fn known(&self, address: IpAddr) -> u32 {
        let Some(slot) = self.find(address) else { unreachable!("{address} has no connection") };
        slot
    }

    /// How much an address has.
    pub(super) fn of(&self, address: IpAddr) -> Counts {
        self.find(address).map_or(Counts::default(), |slot| self.by_address[slot].counts)
    }

    /// Whether an address may have one more of so many connections, of which some are in use.
    pub(super) fn admits_connection(&self, address: IpAddr, most: u32, used: u32) -> bool {
        is_shared(most, used, || self.of(address).connections)
    }

    /// Whether an address may have one more of so many peers. Those without connections make room.
    pub(super) fn admits_peer(&self, address: IpAddr, most: u32) -> bool {
        is_shared(most, self.connected_count, || self.of(address).peers)
    }
}

/// Whether an address may have one more slot of a table: of the last quarter those have some that have few,
/// one in 64.
fn is_shared(most: u32, used: u32, count: impl FnOnce() -> u32) -> bool {
    let few = most / SHARED;
    let free = most - few * (SHARED / 4);
    few == 0 || used < free || count() < few
}
