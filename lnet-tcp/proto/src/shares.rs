//! Connections and connected peers, counted by the address at their other end.
//!
//! Invariants: never grows; an address is here while a connection has it; a peer counts for the address of
//! its first connection.

use core::net::IpAddr;

use lnet_core::collections::{Chain, Keyed, Link, Seed, Table, linked};

/// Slots of a table of which one is few, where it is shared by address.
const SHARED: u32 = 64;

/// Slots that an address has.
struct Share {
    address: IpAddr,
    connection_count: u32,
    peer_count: u32,
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
        let new = || Share { address, connection_count: 0, peer_count: 0, chain: Link::UNLINKED };
        let Some(slot) = self.find(address).or_else(|| self.by_address.insert(new())) else {
            unreachable!("there are more addresses than connections")
        };
        self.by_address[slot].connection_count += 1;
    }

    /// A connection that has no peer any more leaves its slot.
    pub(super) fn remove_connection(&mut self, address: IpAddr) {
        let slot = self.known(address);
        let share = &mut self.by_address[slot];
        share.connection_count -= 1;
        if share.connection_count == 0 {
            assert_eq!(share.peer_count, 0, "peers at {address} have no connection");
            self.by_address.remove(slot);
        }
    }

    /// The address of the first connection of a peer changes: it has its first one, or has lost that.
    pub(super) fn move_peer(&mut self, from: Option<IpAddr>, to: Option<IpAddr>) {
        if let Some(from) = from {
            let slot = self.known(from);
            self.by_address[slot].peer_count -= 1;
            self.connected_count -= 1;
        }
        if let Some(to) = to {
            let slot = self.known(to);
            self.by_address[slot].peer_count += 1;
            self.connected_count += 1;
        }
    }

    fn known(&self, address: IpAddr) -> u32 {
        let Some(slot) = self.find(address) else { unreachable!("{address} has no connection") };
        slot
    }

    /// Connections and connected peers of an address.
    pub(super) fn of(&self, address: IpAddr) -> (u32, u32) {
        let share = self.find(address).map(|slot| &self.by_address[slot]);
        share.map_or((0, 0), |share| (share.connection_count, share.peer_count))
    }

    /// Whether an address may have one more of so many connections, of which some are in use.
    pub(super) fn admits_connection(&self, address: IpAddr, most: u32, used: u32) -> bool {
        is_shared(most, used, || self.of(address).0)
    }

    /// Whether an address may have one more of so many peers. Those without connections make room.
    pub(super) fn admits_peer(&self, address: IpAddr, most: u32) -> bool {
        is_shared(most, self.connected_count, || self.of(address).1)
    }
}

/// Whether an address may have one more slot of a table: of the last quarter those have some that have few,
/// one in 64.
fn is_shared(most: u32, used: u32, count: impl FnOnce() -> u32) -> bool {
    let few = most / SHARED;
    let free = most - few * (SHARED / 4);
    few == 0 || used < free || count() < few
}
