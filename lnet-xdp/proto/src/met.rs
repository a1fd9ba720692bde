//! Addresses where the shards of a node have met peers, as all of its shards know them.
//!
//! Shards note and look up here without a lock: each entry is one atomic word. An address has a bucket, which
//! its hash names. Where that is full, the next address in it takes the room of another one. So memory is
//! bounded however many addresses there are.
//!
//! Invariant: an address that was never noted is not found, but for hashes of 64 bits that are alike.

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use lnet_core::collections::{Seed, nid_words};
use lnet_wire::Nid;

/// Entries of a bucket, which lie in one cache line.
const ENTRIES: usize = 8;
/// Peers of a shard for which there is a bucket, at most.
const PEERS_A_BUCKET: u32 = 4;

/// Bytes for a peer.
pub(crate) const PEER_BYTES: usize = 2 * size_of::<Bucket>() / PEERS_A_BUCKET as usize;

#[repr(align(64))]
#[derive(Default)]
struct Bucket([AtomicU64; ENTRIES]);

/// The addresses where shards of one node have met peers, in this life of the node.
pub struct MetAddresses {
    buckets: Box<[Bucket]>,
    seed: Seed,
}

impl MetAddresses {
    /// Room for the peers of shards that have so many each. `seed` is known to no other node.
    #[must_use]
    pub fn new(peers: u32, seed: u64) -> Self {
        let count = peers.div_ceil(PEERS_A_BUCKET).next_power_of_two();
        Self { buckets: (0..count).map(|_| Bucket::default()).collect(), seed: Seed::new(seed) }
    }

    /// Notes that a peer was met.
    pub(crate) fn note(&self, nid: &Nid) {
        let (hash, Bucket(entries)) = self.find(nid);
        let is_free_or_same = |entry: &AtomicU64| {
            let former = entry.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
            former.is_ok() || former == Err(hash)
        };
        if !entries.iter().any(is_free_or_same) {
            entries[hash as usize % ENTRIES].store(hash, Ordering::Relaxed);
        }
    }

    /// Whether a shard has met a peer there, as far as is remembered.
    pub(crate) fn has(&self, nid: &Nid) -> bool {
        let (hash, Bucket(entries)) = self.find(nid);
        entries.iter().any(|entry| entry.load(Ordering::Relaxed) == hash)
    }

    /// The word for an address, which is not 0, and its bucket.
    fn find(&self, nid: &Nid) -> (u64, &Bucket) {
        let hash = self.seed.hash(nid_words(nid)).max(1);
        (hash, &self.buckets[(hash >> 32) as usize % self.buckets.len()])
    }
}

impl fmt::Debug for MetAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetAddresses").field("buckets", &self.buckets.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::testing::nid;

    #[test]
    fn addresses_are_found_once_they_were_noted() {
        let met = MetAddresses::new(64, 1);
        for host in 0..=u8::MAX {
            let (own, other_net) = (nid(1, host), nid(2, host));
            assert!(!met.has(&own));
            met.note(&own);
            assert!(met.has(&own) && !met.has(&other_net));
        }
    }

    /// More addresses than there is room for: the last one is there always, and a few others are not.
    #[test]
    fn a_full_bucket_forgets_one_address_for_another() {
        let met = MetAddresses::new(1, 1);
        let nids: Vec<Nid> = (0..100).map(|host| nid(1, host)).collect();
        for (count, nid) in nids.iter().enumerate() {
            met.note(nid);
            met.note(nid);
            assert!(met.has(nid));
            let known = nids.iter().filter(|nid| met.has(nid)).count();
            assert!(known <= ENTRIES && (known == count + 1 || count >= ENTRIES), "{known} of {count}");
        }
    }
}
