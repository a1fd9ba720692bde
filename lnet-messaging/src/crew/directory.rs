//! Transfer machines that others of the process find by address.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, PoisonError};

use lnet_user::locks::{Mutex, MutexGuard};

use super::work::Work;
use crate::errno::{Errno, Error};
use crate::tm::TmLink;

/// A transfer machine that others find.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) link: TmLink,
    pub(crate) work: Arc<Work>,
}

/// All transfer machines of the process that a transport has started, by address. Its lock is taken under any
/// other.
pub(crate) struct Directory<A>(LazyLock<Mutex<HashMap<A, Listed>>>);

impl<A: Copy + Eq + Hash + Display> Directory<A> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(HashMap::new())))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<A, Listed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others find it from now on.
    ///
    /// # Errors
    /// `EADDRINUSE` where another one has the address.
    pub(crate) fn enlist(&self, address: A, own: &Listed) -> Result<(), Error> {
        let mut listed = self.lock();
        if listed.contains_key(&address) {
            let found =
                format!("address {address}: one that no transfer machine of the process has is expected");
            return Err(Error::new(Errno::AddressInUse, found));
        }
        listed.insert(address, own.clone());
        Ok(())
    }

    pub(crate) fn find(&self, address: A) -> Option<Listed> {
        self.lock().get(&address).cloned()
    }

    /// No other finds it any more.
    pub(crate) fn delist(&self, address: A, work: &Arc<Work>) {
        let mut listed = self.lock();
        let removed = match listed.get(&address) {
            Some(found) if Arc::ptr_eq(&found.work, work) => listed.remove(&address),
            _ => None,
        };
        drop(listed);
        // It may have the last reference to the transfer machine.
        drop(removed);
    }
}
