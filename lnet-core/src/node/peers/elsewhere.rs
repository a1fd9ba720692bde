//! NIDs that speak from other addresses than their own. The word of such a NID on itself proves nothing.
//!
//! Invariants: at most [`REMEMBERED_MAX`] are remembered; the connections of one are ended
//! ([`Action::Disconnect`]) before it is forgotten, so that no NID that is not remembered speaks from
//! elsewhere.
//!
//! [`Action::Disconnect`]: crate::node::Action::Disconnect

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use lnet_wire::Nid;

/// NIDs that are remembered at most.
const REMEMBERED_MAX: usize = 16_384;
/// NIDs among these whose connections are being ended: more than all shards tell of before that is done.
const LEAVING_MAX: usize = 4096;

/// NIDs that speak from other addresses than their own.
#[derive(Clone, Default, Debug)]
pub(super) struct Elsewhere {
    /// The address by NID, with the number under which that was told.
    addresses: BTreeMap<Nid, (u64, IpAddr)>,
    /// The NIDs in the order in which they were told last.
    told: BTreeMap<u64, Nid>,
    /// How often one was told.
    count: u64,
    /// Number of the last one whose connections were ended.
    left: u64,
    /// How many were told later.
    stay_count: usize,
}

impl Elsewhere {
    pub(super) const fn new() -> Self {
        Self { addresses: BTreeMap::new(), told: BTreeMap::new(), count: 0, left: 0, stay_count: 0 }
    }

    /// The address that a NID speaks from, where that is not its own.
    pub(super) fn address(&self, nid: &Nid) -> Option<IpAddr> {
        self.addresses.get(nid).map(|(_, address)| *address)
    }

    /// A NID speaks from an address. Tells whose connections are to be ended, since it was told longest ago.
    pub(super) fn note(&mut self, nid: &Nid, address: IpAddr) -> Option<Nid> {
        if let Some((number, _)) = self.addresses.remove(nid) {
            self.told.remove(&number);
            self.stay_count -= usize::from(number > self.left);
        }
        if nid.ip() == Some(address) {
            return None;
        }
        if self.addresses.len() >= REMEMBERED_MAX
            && let Some((_, oldest)) = self.told.pop_first()
        {
            self.addresses.remove(&oldest);
        }
        self.count += 1;
        self.addresses.insert(*nid, (self.count, address));
        self.told.insert(self.count, *nid);
        self.stay_count += 1;
        if self.stay_count <= REMEMBERED_MAX - LEAVING_MAX {
            return None;
        }
        // One leaves for each one that comes, so that no more than these stay.
        let (&number, &leaves) = self.told.range(self.left + 1..).next()?;
        (self.left, self.stay_count) = (number, self.stay_count - 1);
        Some(leaves)
    }
}
