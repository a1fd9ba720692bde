//! End points: the addresses that a transfer machine knows.
//!
//! Invariant: the same address in the same transfer machine is the same object as long as there is a
//! reference to it. A lookup that meets one whose last reference is being dropped makes a new one, and the
//! drop leaves that alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use lnet_user::locks::{Mutex, MutexGuard};

/// The end points of a transfer machine, by address. Its lock is taken under any other, and no other under
/// it.
#[derive(Debug, Default)]
pub(crate) struct EndPoints {
    by_address: Mutex<HashMap<Arc<str>, Weak<Inner>>>,
}

#[derive(Debug)]
struct Inner {
    address: Arc<str>,
    list: Weak<EndPoints>,
}

/// An address of a transfer machine, its own or another one's, as it is known to one of them. Each clone is a
/// reference.
#[derive(Clone)]
pub struct EndPoint(Arc<Inner>);

impl EndPoint {
    /// Its address in canonical form, which makes it anew elsewhere.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Number of references, this one included.
    #[must_use]
    pub fn reference_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn belongs_to(&self, list: &Arc<EndPoints>) -> bool {
        std::ptr::eq(self.0.list.as_ptr(), Arc::as_ptr(list))
    }
}

/// Whether they are the same object: the same address of the same transfer machine.
impl PartialEq for EndPoint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EndPoint {}

impl fmt::Debug for EndPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndPoint({})", self.0.address)
    }
}

impl EndPoints {
    /// The end point of an address in canonical form.
    pub(crate) fn find_or_create(self: &Arc<Self>, address: &str) -> EndPoint {
        let mut by_address = self.lock();
        if let Some(found) = by_address.get(address).and_then(Weak::upgrade) {
            return EndPoint(found);
        }
        let address: Arc<str> = address.into();
        let made = Arc::new(Inner { address: Arc::clone(&address), list: Arc::downgrade(self) });
        by_address.insert(address, Arc::downgrade(&made));
        EndPoint(made)
    }

    /// The addresses that it has.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.lock().keys().map(|address| address.to_string()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Weak<Inner>>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(list) = self.list.upgrade() else { return };
        let mut by_address = list.lock();
        // Another one of the same address may have been made meanwhile.
        if by_address.get(&self.address).is_some_and(|found| std::ptr::eq(found.as_ptr(), self)) {
            by_address.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_point_goes_with_its_last_reference() {
        let list = Arc::new(EndPoints::default());
        let first = list.find_or_create("a");
        let again = list.find_or_create("a");
        assert_eq!((first == again, first.reference_count()), (true, 2));
        drop(first);
        assert_eq!(list.addresses(), ["a"]);
        drop(again);
        assert!(list.addresses().is_empty());
        assert!(!list.find_or_create("a").belongs_to(&Arc::new(EndPoints::default())));
    }
}
