//! Owned bytes of which parts can be lent to other threads.
//!
//! A `Region` is what a buffer of a memory descriptor is made of. Its owner, a shard, reads and writes it
//! in place, and may give out a [`WriteLease`] on a run of bytes (a sibling shard receives into it) or a
//! [`ReadLease`] (the application's thread reads an event's payload). Dropping a lease returns it.
//!
//! Invariants:
//! - While a write lease is out only its holder reads or writes its bytes; while a read lease is out they
//!   are not written. A request for such bytes is refused ([`LeaseError`]).
//! - What a lessee did to the bytes is visible to their next holder: a lease's last act is a release
//!   store of its flag, and the owner loads it with acquire before it believes that the bytes are back.
//! - A region may lie in several fragments, each an allocation. Its leases count bytes from the beginning of
//!   the first.
//! - The allocation lives until its region and all of its leases are gone, in whatever order.
//! - The owner alone keeps the books, so there is no lock; while a region has never lent anything, looking at
//!   its bytes costs one comparison more, and otherwise a walk over the leases that are out on it. Lending
//!   allocates until there are as many seats as leases are out at once, and no more.
//!
//! `lease` is model-checked (`cargo test --package lnet-loom`) over a stand-in for `storage` that tells the
//! checker of each access, and of the end of the bytes.

// Bytes that several threads share by agreement: that is what unsafe code is for here.
#![allow(unsafe_code)]

mod lease;
#[cfg(not(loom))]
mod numa;
#[cfg_attr(loom, path = "storage_model.rs")]
mod storage;

#[cfg(not(loom))]
pub use lease::fragments::checksum;
#[cfg(not(loom))]
pub use lease::fragments::{Fragments, FragmentsMut};
pub use lease::{LeaseError, ReadLease};
pub use lease::{Region, WriteLease};
#[cfg(not(loom))]
pub(crate) use numa::memory_node;
