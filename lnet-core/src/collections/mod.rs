//! Tables of a fixed size, for the shard and for the protocols of LNDs: slabs, lists and hash tables over
//! them, schedules, the hash and the random numbers that these use.
//!
//! Invariants: nothing grows after it was made; a peer cannot aim at one bucket; the order in which a table
//! is gone through never depends on a hash.

mod hash;
mod list;
mod random;
mod schedule;
mod slab;
mod table;

pub use hash::{Seed, nid_words};
pub use list::{Link, Linked, List};
pub use random::Random;
pub use schedule::Schedule;
pub use slab::{Full, NONE, Prefetch, Slab, slot_bytes};
pub use table::{Chain, Keyed, Table};

pub use crate::linked;
