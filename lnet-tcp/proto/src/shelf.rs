//! Short requests that wait out of the way of what comes behind them on their connection.
//!
//! Where the shard asks by which name a peer goes ([`Uplink::awaits_name`]), the answer may come on the
//! connection of a request that waits for it. So the request is shelved with all of its payload, and comes
//! again in front of what has not been read, as if it had just arrived. A request that comes behind another
//! one of its sender waits too, whatever is known by then. Where it is too long for the shelf, or finds no
//! room there, its connection is read no further until its turn comes.
//!
//! Invariants: what is shelved is whole, and unknown to the shard; requests that one NID sends over a
//! connection keep their order; how many there are is bounded, and no connection has more of them than it
//! leaves to others.

use lnet_core::collections::{Link, linked};
use lnet_core::lnd::{PING_PORTAL, Uplink};
use lnet_core::shard::NAME_WAIT;
use lnet_core::time::Instant;
use lnet_wire::socklnd::Checksum;
use lnet_wire::{Body, Header};

use super::connection::{OnShelf, Reading};
use super::receive::awaited_bytes;
use super::{ConnId, Socklnd};

/// Requests that are shelved at once.
pub(super) const SHELVED_MAX: u32 = 64;
/// Requests with which connections stop. Each such connection has had something on the shelf by then, and
/// nothing is shelved while these and the others are as many as the shelf has room for.
pub(super) const STOPPED_MAX: u32 = SHELVED_MAX;

/// A request that waits.
pub(super) struct Shelved {
    slot: u32,
    header: Header,
    /// Bytes of its payload that are elsewhere: all of them, or none where the connection stops with it.
    shelved_bytes: u32,
    cookie: u64,
    checksum: Option<(u32, Checksum)>,
    until: Instant,
    link: Link,
}

linked!(Shelved, OnShelf, link);

impl Socklnd {
    /// Shelves a request whose payload is there, if it is to wait and there is room, or stops its connection
    /// if it is behind another one of its sender; whether it waits.
    pub(super) fn shelve(&mut self, now: Instant, slot: u32, header: &Header, up: &mut impl Uplink) -> bool {
        let connection = &self.connections[slot];
        if connection.is_replaying {
            return false;
        }
        let free = SHELVED_MAX.saturating_sub(self.shelved.used_count());
        let fits = connection.shelved_count < free && header.payload_length == awaited_bytes(header);
        let waits = fits && up.awaits_name(header, true);
        if !waits && !self.is_behind(slot, header) {
            return false;
        }
        let incoming = &mut self.connections[slot].incoming;
        let (shelved_bytes, (cookie, checksum)) = if fits {
            (header.payload_length, incoming.shelve(header.payload_length))
        } else {
            (0, incoming.stop())
        };
        let (header, until, link) = (*header, now + NAME_WAIT, Link::UNLINKED);
        let shelved = Shelved { slot, header, shelved_bytes, cookie, checksum, until, link };
        let Ok(shelved) = self.shelved.insert(shelved) else { unreachable!("there is room") };
        let connection = &mut self.connections[slot];
        connection.shelved_count += 1;
        connection.shelved.push_back(&mut self.shelved, shelved);
        true
    }

    /// Whether a request of the same sender is shelved on its connection. What finds names out passes: the
    /// others may wait for it.
    fn is_behind(&self, slot: u32, header: &Header) -> bool {
        let (Body::Put { portal, .. } | Body::Get { portal, .. }) = header.body else { return false };
        let is_sender = |shelved: &Shelved| shelved.header.source.nid == header.source.nid;
        portal != PING_PORTAL && self.connections[slot].shelved.find(&self.shelved, is_sender).is_some()
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
        connection.incoming.collected().is_empty().then_some(first.shelved_bytes)
    }

    /// The bytes that [`Wants::Replay`](super::Wants::Replay) named are the next ones.
    pub fn replayed(&mut self, now: Instant, conn: ConnId, up: &mut impl Uplink) {
        let Some(Shelved { header, cookie, checksum, .. }) = self.unshelve(conn.0) else {
            unreachable!("{conn:?} has nothing shelved")
        };
        let incoming = &mut self.connections[conn.0].incoming;
        incoming.begin(cookie, checksum);
        if awaited_bytes(&header) == 0 {
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
