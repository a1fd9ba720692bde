//! The addresses of the transfer machines that run on a node: each belongs to one of them.
//!
//! Invariant: all transports over a node share one list of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, Weak};

use lnet_user::locks::Mutex;
use lnet_user::{Lnet, ProcessId};

use super::address::{LnetAddress, TMID_MAX};
use crate::errno::{Errno, Error};

/// The lists of nodes over which there are transports.
static NODES: Mutex<Vec<Weak<Addresses>>> = Mutex::new(Vec::new());

/// The identifiers in use, by process and portal.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Whose they are; `None` in tests without one.
    node: Option<Lnet>,
    used: Mutex<HashMap<(ProcessId, u32), BTreeSet<u16>>>,
}

/// An address that is in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    addresses: Arc<Addresses>,
    address: LnetAddress,
    tmid: u16,
}

impl Addresses {
    /// The list of a node.
    pub(crate) fn of(lnet: &Lnet) -> Arc<Self> {
        let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|listed| listed.strong_count() > 0);
        let listed: Vec<_> = nodes.iter().filter_map(Weak::upgrade).collect();
        let same = |listed: &&Arc<Self>| listed.node.as_ref().is_some_and(|node| node.is_same_node(lnet));
        let found = listed.iter().find(same).cloned().unwrap_or_else(|| {
            let made = Arc::new(Self { node: Some(lnet.clone()), used: Mutex::default() });
            nodes.push(Arc::downgrade(&made));
            made
        });
        drop(nodes);
        // A node may end with its last handle: not under the lock.
        drop(listed);
        found
    }

    /// Takes an address into use. One without an identifier gets the highest that is free.
    ///
    /// # Errors
    /// `EADDRINUSE`, or `EADDRNOTAVAIL` where none is free.
    pub(crate) fn claim(self: &Arc<Self>, address: LnetAddress) -> Result<Claim, Error> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let used = used.entry((address.process, address.portal)).or_default();
        let tmid = match address.tmid {
            Some(tmid) if used.contains(&tmid) => {
                let found = format!("address {address}: one that no transfer machine has is expected");
                return Err(Error::new(Errno::AddressInUse, found));
            }
            Some(tmid) => tmid,
            None => {
                // The used ones in descending order, as long as they follow each other.
                let taken =
                    used.iter().rev().zip((1..=TMID_MAX).rev()).take_while(|(used, tmid)| *used == tmid);
                let free = TMID_MAX - taken.count() as u16;
                if free == 0 {
                    let found =
                        format!("all {TMID_MAX} identifiers of {address} are in use: a free one is expected");
                    return Err(Error::new(Errno::AddressNotAvailable, found));
                }
                free
            }
        };
        used.insert(tmid);
        Ok(Claim { addresses: Arc::clone(self), address: LnetAddress { tmid: Some(tmid), ..address }, tmid })
    }
}

impl Claim {
    /// The address, with its identifier.
    pub(crate) fn address(&self) -> LnetAddress {
        self.address
    }

    /// The identifier.
    pub(crate) fn tmid(&self) -> u16 {
        self.tmid
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut used = self.addresses.used.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.address.process, self.address.portal);
        if let Some(tmids) = used.get_mut(&key) {
            tmids.remove(&self.tmid);
            if tmids.is_empty() {
                used.remove(&key);
            }
        }
    }
}
