//! Memory descriptors as the application holds them.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use lnet_core::event::Event;
use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::md::MdSpec;
use lnet_core::portal::EntrySpec;
use lnet_wire::{Nid, ProcessId};

use super::calls::Command;
use super::error::LnetError;
use super::queue::EventQueue;
use super::request::{PutOrGet, Refusals, UnsentRequest};
use super::{Lnet, ShardHandle};
use crate::runtime::{Home, LendError, SteeringError, entry_home};

/// Where a PUT goes, or a GET asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The process.
    pub process: ProcessId,
    /// Portal index there, 0 to 63.
    pub portal: u32,
    /// Match bits.
    pub match_bits: u64,
    /// Offset in bytes, for descriptors that are managed remotely.
    pub offset: u32,
    /// The local NID to send from; `None` leaves the choice to the node.
    pub self_nid: Option<Nid>,
}

impl Target {
    /// The node with this NID (or [`Nid::LO`]: this one), at offset 0.
    #[must_use]
    pub fn new(nid: Nid, portal: u32, match_bits: u64) -> Self {
        let process = ProcessId::lustre(nid);
        Self { process, portal, match_bits, offset: 0, self_nid: None }
    }

    /// The process that a message came from, by the NIDs that it came from and was sent to: the answer takes
    /// the same path. `None` for the event of a message that this node has sent.
    #[must_use]
    pub fn reply_to(event: &Event, portal: u32, match_bits: u64) -> Option<Self> {
        let origin = event.origin()?;
        let self_nid = Some(origin.target.nid);
        let process = ProcessId { nid: origin.source, ..origin.initiator };
        Some(Self { process, portal, match_bits, offset: 0, self_nid })
    }
}

/// Whether the target is to acknowledge a PUT (LNet `LNET_ACK_REQ`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// An ACK event tells what it has taken.
    Wanted,
    /// There is none.
    NotWanted,
}

/// A bound descriptor: what PUTs and GETs of this node take bytes from, or fill. Dropping it unlinks it; its
/// buffer comes home with its last event all the same. Of an ACK or a REPLY that may still come nothing is
/// told then, which is what the status of that event says: `Unknown`. To wait for it, keep or
/// [detach](Self::detach) the descriptor.
pub struct Descriptor {
    handle: MdHandle,
    shard: ShardHandle,
    refusals: Arc<Refusals>,
    is_detached: bool,
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handle: MdHandle(md), shard, .. } = self;
        f.debug_struct("Descriptor").field("md", md).field("shard", &shard.id().0).finish()
    }
}

impl Descriptor {
    pub(super) fn new(handle: MdHandle, md: &MdSpec, shard: ShardHandle) -> Self {
        Self { handle, shard, refusals: Refusals::new(handle, md), is_detached: false }
    }

    /// What events name it by.
    #[must_use]
    pub fn handle(&self) -> MdHandle {
        self.handle
    }

    pub(super) fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    /// The shard that it is on.
    #[must_use]
    pub fn shard(&self) -> &ShardHandle {
        &self.shard
    }

    /// Puts its bytes to a portal. What comes of it are a SEND when the bytes are not read any more, and an
    /// ACK if that is wanted.
    pub fn put(&self, to: &Target, ack: Ack, hdr_data: u64) -> UnsentRequest<'_> {
        UnsentRequest { descriptor: self, message: PutOrGet::put(self.handle, to, ack, hdr_data) }
    }

    /// Gets bytes from a portal, at most as many as it has room for. What comes of it are a SEND, and a REPLY
    /// when the bytes are there.
    ///
    /// # Kernel nodes
    /// A kernel node trips an assertion, and dies, at a GET for a portal where it has never had an entry.
    /// Over tcp a GET is for portals where the peer is known to have posted one; a node of this library drops
    /// such a GET.
    pub fn get(&self, from: &Target) -> UnsentRequest<'_> {
        UnsentRequest { descriptor: self, message: PutOrGet::get(self.handle, from) }
    }

    /// Lets it be until its threshold is used up or its queue is dropped.
    pub fn detach(mut self) {
        self.is_detached = true;
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.is_detached {
            // A shard that has ended has unlinked everything.
            let _ = self.shard.end().enqueue(Command::Unlink(self.handle));
        }
    }
}

/// A match entry with its descriptor: what PUTs and GETs of others find. Dropping it unlinks both; the buffer
/// comes home with the last event all the same.
pub struct Entry {
    entry: MeHandle,
    md: MdHandle,
    shard: ShardHandle,
    is_detached: bool,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry: MeHandle(entry), md: MdHandle(md), shard, .. } = self;
        f.debug_struct("Entry").field("entry", entry).field("md", md).field("shard", &shard.id().0).finish()
    }
}

impl Entry {
    pub(super) fn new(entry: MeHandle, md: MdHandle, shard: ShardHandle) -> Self {
        Self { entry, md, shard, is_detached: false }
    }

    /// The shard that it is on.
    #[must_use]
    pub fn shard(&self) -> &ShardHandle {
        &self.shard
    }

    /// Handle by which the positions of other entries name it:
    /// [`Position::Before`](lnet_core::portal::Position), and `After`.
    #[must_use]
    pub fn entry_handle(&self) -> MeHandle {
        self.entry
    }

    /// What events name its descriptor by.
    #[must_use]
    pub fn handle(&self) -> MdHandle {
        self.md
    }

    /// Lets it be until its threshold is used up or its queue is dropped.
    pub fn detach(mut self) {
        self.is_detached = true;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_detached {
            // A shard that has ended has unlinked everything.
            let _ = self.shard.end().enqueue(Command::UnlinkEntry(self.entry, self.md));
        }
    }
}

impl Lnet {
    /// Makes an event queue of `slots` places on each shard ([`ShardHandle::create_event_queue`]): for
    /// descriptors of any of them.
    ///
    /// # Errors
    /// [`LnetError::Queue`] when a shard has no room for it.
    pub fn create_event_queue(&self, slots: u32) -> Result<EventQueue, LnetError> {
        EventQueue::create(self.shards(), slots)
    }

    /// Makes an event queue of `slots` places for descriptors of entries like this one, whose `ignore_bits`
    /// say in which bits they differ: on the shard where their messages belong, or on each shard where no
    /// single one is theirs.
    ///
    /// # Errors
    /// [`LnetError::Lend`] where there is no such portal, [`LnetError::Queue`] when a shard has no room for
    /// it.
    pub fn create_event_queue_for(&self, entries: &EntrySpec, slots: u32) -> Result<EventQueue, LnetError> {
        let EntrySpec { portal, ref source, match_bits, ignore_bits, .. } = *entries;
        match entry_home(&self.steering(), portal, source, match_bits, ignore_bits) {
            Ok(Home::Shard(shard)) => EventQueue::create([self.shard(shard as usize)?], slots),
            // Any shard will do: queues are spread over all of them.
            Ok(Home::Any) => {
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(match_bits);
                EventQueue::create([self.shard((hash % self.shard_count() as u64) as usize)?], slots)
            }
            Ok(Home::Each) | Err(SteeringError::IgnoresSteeringBits { .. }) => self.create_event_queue(slots),
            Err(error) => Err(LendError::from(error).into()),
        }
    }
}
