//! Transfer machines that others of the process find by address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, PoisonError};

use lnet_user::locks::{Mutex, MutexGuard};

use super::work::Work;
use crate::errno::{Errno, Error};
use crate::transport::TmLink;

/// A transfer machine that others find.
#[derive(Clone)]
pub(crate) struct Listed<A> {
    pub(crate) address: A,
    pub(crate) link: TmLink,
    pub(crate) work: Arc<Work>,
}

/// All transfer machines of the process that a transport has started, by address. Its lock is taken under any
/// other.
pub(crate) struct Directory<A>(LazyLock<Mutex<HashMap<A, Listed<A>>>>);

impl<A: Copy + Eq + Hash + Display> Directory<A> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(HashMap::new())))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<A, Listed<A>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has others find a transfer machine from now on.
    ///
    /// # Errors
    /// `EADDRINUSE` where another one has the address.
    pub(crate) fn enlist(&self, own: &Listed<A>) -> Result<(), Error> {
        match self.lock().entry(own.address) {
            Entry::Vacant(free) => {
                free.insert(own.clone());
                Ok(())
            }
            Entry::Occupied(_) => {
                let expected = "one that no transfer machine of the process has is expected";
                Err(Error::new(Errno::AddressInUse, format!("address {}: {expected}", own.address)))
            }
        }
    }

    pub(crate) fn find(&self, address: A) -> Option<Listed<A>> {
        self.lock().get(&address).cloned()
    }

    /// Takes a transfer machine off the list: no other finds it any more.
    pub(crate) fn delist(&self, address: A, work: &Arc<Work>) {
        let mut listed = self.lock();
        let is_own = listed.get(&address).is_some_and(|found| Arc::ptr_eq(&found.work, work));
        let removed = if is_own { listed.remove(&address) } else { None };
        drop(listed);
        // The last reference to the transfer machine may be here.
        drop(removed);
    }
}
