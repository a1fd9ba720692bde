//! Memory descriptors as the application holds them.

use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_wire::{Nid, ProcessId};

use super::ShardHandle;
use super::calls::Call;
use super::error::LnetError;

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
/// buffer comes home with its last event all the same.
#[derive(Debug)]
pub struct Descriptor {
    handle: MdHandle,
    shard: ShardHandle,
    is_left: bool,
}

impl Descriptor {
    pub(super) fn new(handle: MdHandle, shard: ShardHandle) -> Self {
        Self { handle, shard, is_left: false }
    }

    /// What events name it by.
    #[must_use]
    pub fn handle(&self) -> MdHandle {
        self.handle
    }

    /// Puts its bytes to a portal. What comes of it arrives as events: SEND when the bytes are not read any
    /// more, and ACK if that is wanted.
    ///
    /// # Errors
    /// [`LnetError::Request`] when it does not start; nothing has changed then.
    pub fn put(&self, to: &Target, ack: Ack, hdr_data: u64) -> Result<(), LnetError> {
        let Target { process, portal, match_bits, offset, self_nid } = *to;
        let (md, ack) = (self.handle, ack == Ack::Wanted);
        let request = PutRequest { md, ack, self_nid, target: process, portal, match_bits, offset, hdr_data };
        self.shard.caller().request(|reply| Call::Put(request, reply))
    }

    /// Gets bytes from a portal, at most as many as it has room for. What comes of it arrives as events: SEND,
    /// and REPLY when the bytes are there.
    ///
    /// # Errors
    /// As [`Descriptor::put`].
    pub fn get(&self, from: &Target) -> Result<(), LnetError> {
        let Target { process, portal, match_bits, offset, self_nid } = *from;
        let request = GetRequest { md: self.handle, self_nid, target: process, portal, match_bits, offset };
        self.shard.caller().request(|reply| Call::Get(request, reply))
    }

    /// Lets it be until its threshold is used up or its queue is dropped.
    pub fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.is_left {
            // A shard that has ended has unlinked everything.
            let _ = self.shard.caller().leave(Call::Unlink(self.handle));
        }
    }
}

/// A match entry with its descriptor: what PUTs and GETs of others find. Dropping it unlinks both; the buffer
/// comes home with the last event all the same.
#[derive(Debug)]
pub struct Entry {
    entry: MeHandle,
    md: MdHandle,
    shard: ShardHandle,
    is_left: bool,
}

impl Entry {
    pub(super) fn new(entry: MeHandle, md: MdHandle, shard: ShardHandle) -> Self {
        Self { entry, md, shard, is_left: false }
    }

    /// What events name its descriptor by.
    #[must_use]
    pub fn handle(&self) -> MdHandle {
        self.md
    }

    /// Lets it be until its threshold is used up or its queue is dropped.
    pub fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_left {
            // As for a descriptor.
            let _ = self.shard.caller().leave(Call::UnlinkEntry(self.entry, self.md));
        }
    }
}
