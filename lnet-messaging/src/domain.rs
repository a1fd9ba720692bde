//! Domains: what shares a transport.
//!
//! Invariants: a domain outlives its buffers and transfer machines, which hold it. Locks are taken in the
//! order all domains, domain, transfer machine; a pool's lock before a domain's.

use std::fmt;
use std::sync::{Arc, PoisonError};

use lnet_user::locks::{Mutex, MutexGuard};

use crate::errno::{Errno, Error};
use crate::memory::{Limits, Memory};
use crate::transport::{Transport, TransportDomain, TransportTm};

/// The lock under which domains are made and ended.
static ALL_DOMAINS: Mutex<()> = Mutex::new(());

/// A network that buffers are registered with and transfer machines belong to. Cheap to clone; it ends with
/// the last clone, buffer and transfer machine.
#[derive(Clone)]
pub struct Domain {
    shared: Arc<Shared>,
}

struct Shared {
    transport: Arc<dyn Transport>,
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    transport: Option<Box<dyn TransportDomain>>,
    buffer_count: usize,
    tm_count: usize,
}

impl State {
    /// The transport's part, until the domain was finished.
    fn transport(&mut self) -> Result<&mut dyn TransportDomain, Error> {
        match &mut self.transport {
            Some(transport) => Ok(transport.as_mut()),
            None => Err(Error::new(Errno::Busy, "the domain was finished: a live one is expected")),
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.transport_name()).finish()
    }
}

/// Whether they are the same domain.
impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Domain {}

impl Domain {
    /// A domain of this transport.
    ///
    /// # Errors
    /// The transport's; nothing is left then.
    pub fn new(transport: &Arc<dyn Transport>) -> Result<Self, Error> {
        let _all = ALL_DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        let state = State { transport: Some(transport.create_domain()?), buffer_count: 0, tm_count: 0 };
        let (transport, limits) = (Arc::clone(transport), transport.limits());
        Ok(Self { shared: Arc::new(Shared { transport, limits, state: Mutex::new(state) }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of its buffers, and what the transport likes best.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The name of its transport.
    #[must_use]
    pub fn transport_name(&self) -> &str {
        self.shared.transport.name()
    }

    /// Number of buffers that are registered.
    #[must_use]
    pub fn buffer_count(&self) -> usize {
        self.lock().buffer_count
    }

    /// Number of transfer machines.
    #[must_use]
    pub fn tm_count(&self) -> usize {
        self.lock().tm_count
    }

    /// Ends the domain, and tells why where that cannot be. Dropping the last handle does the same.
    ///
    /// # Errors
    /// `EBUSY` while it has buffers or transfer machines, with the domain.
    pub fn finish(self) -> Result<(), (Error, Self)> {
        let _all = ALL_DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let (buffers, tms) = (state.buffer_count, state.tm_count);
        if buffers != 0 || tms != 0 {
            let found = format!("{buffers} buffers and {tms} transfer machines: none of them are expected");
            drop(state);
            return Err((Error::new(Errno::Busy, found), self));
        }
        drop(state.transport.take());
        Ok(())
    }

    /// Counts a buffer, whose memory the transport registers.
    pub(crate) fn add_buffer(&self, memory: Memory) -> Result<Memory, (Error, Memory)> {
        let mut state = self.lock();
        let memory = match state.transport() {
            Ok(transport) => transport.register(memory)?,
            Err(error) => return Err((error, memory)),
        };
        state.buffer_count += 1;
        Ok(memory)
    }

    /// Counts a buffer less, which is gone.
    pub(crate) fn remove_buffer(&self) {
        let mut state = self.lock();
        state.buffer_count -= 1;
        if let Ok(transport) = state.transport() {
            transport.deregister();
        }
    }

    /// Counts a transfer machine. `take` gets what the transport has made for it, under the domain's lock.
    pub(crate) fn add_tm(
        &self,
        take: impl FnOnce(Box<dyn TransportTm>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        take(state.transport()?.create_tm()?)?;
        state.tm_count += 1;
        Ok(())
    }

    /// Counts a transfer machine less, which is gone.
    pub(crate) fn remove_tm(&self) {
        self.lock().tm_count -= 1;
    }

    /// A number that tells the domain from all others of the process.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.shared.state.try_lock().is_err()
    }
}

/// Whether a domain is made or ended at the moment.
#[cfg(test)]
pub(crate) fn all_are_locked() -> bool {
    ALL_DOMAINS.try_lock().is_err()
}
