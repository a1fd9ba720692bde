//! Short requests that wait out of the way of what comes behind them on their connection.
//!
//! Where the shard asks by which name a peer goes ([`Uplink::awaits_name`]), the answer may come on the
//! connection of a request that waits for it. So the request is shelved with all of its payload, and comes
//! again in front of what has not been read, as if it had just arrived.
//!
//! Invariants: what is shelved is whole, and unknown to the shard; requests of a connection keep their order;
//! how many there are is bounded, and no connection has more of them than it leaves to others.

use lnet_core::collections::{Link, linked};
use lnet_core::lnd::Uplink;
use lnet_core::shard::NAME_WAIT;
use lnet_core::time::Instant;
use lnet_wire::Header;
use lnet_wire::socklnd::Checksum;

use super::connection::{OnShelf, Reading};
use super::receive::awaited_bytes;
use super::{ConnId, Socklnd};

/// Requests that are shelved at once.
pub(super) const SHELVED_MAX: u32 = 64;

/// A request that waits.
pub(super) struct Shelved {
    slot: u32,
    header: Header,
    cookie: u64,
    checksum: Option<(u32, Checksum)>,
    until: Instant,
    link: Link,
}

linked!(Shelved, OnShelf, link);

impl Socklnd {
    /// Shelves a request whose payload is there, if it is to wait and there is room.
    pub(super) fn shelve(&mut self, now: Instant, slot: u32, header: &Header, up: &mut impl Uplink) -> bool {
        let connection = &self.connections[slot];
        let free = SHELVED_MAX - self.shelved.used_count();
        if connection.is_replaying
            || connection.shelved_count >= free
            || header.payload_length != awaited_bytes(header)
            || !up.awaits_name(header, true)
        {
            return false;
        }
        let connection = &mut self.connections[slot];
        let (cookie, checksum) = connection.incoming.shelve(header.payload_length);
        let (header, until, link) = (*header, now + NAME_WAIT, Link::UNLINKED);
        let Ok(shelved) = self.shelved.insert(Shelved { slot, header, cookie, checksum, until, link }) else {
            unreachable!("there is room")
        };
        connection.shelved_count += 1;
        connection.shelved.push_back(&mut self.shelved, shelved);
        true
    }

    /// Counts so many bytes of those that [`Wants::Shelve`](super::Wants::Shelve) named: they are elsewhere.
    pub fn shelved(&mut self, conn: ConnId, count: u32) {
        let incoming = &mut self.connections[conn.0].incoming;
        let Reading::Shelving { left_bytes } = *incoming.reading() else {
            unreachable!("{conn:?} shelves nothing")
        };
        incoming.shelved(left_bytes - count);
    }

    /// Looks whether requests that are shelved are to go on: [`Socklnd::poll_resumed`] has their connections.
    pub fn look_at_shelved(&mut self, now: Instant, up: &mut impl Uplink) {
        if self.shelved.used_count() == 0 {
            return;
        }
        for at in 0..self.shelved.capacity() {
            let Some(Shelved { slot, header, until, .. }) = self.shelved.get(at) else { continue };
            let goes_on = *until <= now || !up.awaits_name(header, false);
            // The first one of a connection decides.
            if goes_on && self.connections[*slot].shelved.first() == at {
                self.connections[*slot].is_replaying = true;
                self.resumed.add(&mut self.connections, *slot);
            }
        }
    }

    /// When the first of them has waited for as long as it may.
    pub(super) fn next_shelved(&self) -> Option<Instant> {
        if self.shelved.used_count() == 0 {
            return None;
        }
        let waiting = self.shelved.used().filter(|(_, shelved)| !self.connections[shelved.slot].is_replaying);
        waiting.map(|(_, shelved)| shelved.until).min()
    }

    /// Bytes of the request that comes again next, if one does.
    pub(super) fn replays(&self, slot: u32) -> Option<u32> {
        let connection = &self.connections[slot];
        let first = self.shelved.get(connection.shelved.first()).filter(|_| connection.is_replaying)?;
        connection.incoming.collected().is_empty().then_some(first.header.payload_length)
    }

    /// The bytes that [`Wants::Replay`](super::Wants::Replay) named are the next ones.
    pub fn replayed(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        let Some(Shelved { header, cookie, checksum, .. }) = self.unshelve(conn.0) else {
            unreachable!("{conn:?} has nothing shelved")
        };
        let incoming = &mut self.connections[conn.0].incoming;
        incoming.begin(cookie, checksum);
        if header.payload_length == 0 {
            self.arrive(now, conn.0, &header, up);
        } else {
            incoming.wait(header);
        }
    }

    /// Takes the first shelved request of a connection.
    pub(super) fn unshelve(&mut self, slot: u32) -> Option<Shelved> {
        let connection = &mut self.connections[slot];
        let first = connection.shelved.pop_front(&mut self.shelved)?;
        connection.shelved_count -= 1;
        Some(self.shelved.remove(first))
    }
}
