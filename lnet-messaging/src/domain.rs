//! Domains: what shares a transport, with its registered buffers and transfer machines.
//!
//! Invariants: a domain outlives its buffers and transfer machines, which hold it. Locks are taken in the
//! order all domains, domain, transfer machine; a pool's lock before a domain's.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use lnet_user::locks::{Mutex, MutexGuard};

use crate::buffer::{Buffer, Memory, check_shape};
use crate::errno::{Errno, Error};
use crate::tm::{TmLink, TmShared};
use crate::transport::{Limits, Transport, TransportDomain};

/// The lock under which domains are made and ended.
static ALL_DOMAINS: Mutex<()> = Mutex::new(());

/// A network that buffers are registered with and transfer machines belong to. Cheap to clone; it ends with
/// the last clone, buffer and transfer machine.
#[derive(Clone)]
pub struct Domain {
    shared: Arc<DomainShared>,
}

pub(crate) struct DomainShared {
    transport: Arc<dyn Transport>,
    limits: Limits,
    state: Mutex<DomainState>,
}

struct DomainState {
    transport: Option<Box<dyn TransportDomain>>,
    buffer_count: usize,
    tms: Vec<Weak<TmShared>>,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Domain").field(&self.transport_name()).finish()
    }
}

impl Domain {
    /// A domain of this transport.
    ///
    /// # Errors
    /// The transport's; nothing is left then.
    pub fn new(transport: &Arc<dyn Transport>) -> Result<Self, Error> {
        let _all = ALL_DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        let domain = transport.create_domain()?;
        let state = DomainState { transport: Some(domain), buffer_count: 0, tms: Vec::new() };
        let (transport, limits) = (Arc::clone(transport), transport.limits());
        Ok(Self { shared: Arc::new(DomainShared { transport, limits, state: Mutex::new(state) }) })
    }

    pub(crate) fn of(shared: &Arc<DomainShared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    pub(crate) fn shared(&self) -> &Arc<DomainShared> {
        &self.shared
    }

    /// What its buffers may be at most, and what the transport likes best.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The name of its transport.
    #[must_use]
    pub fn transport_name(&self) -> &str {
        self.shared.transport.name()
    }

    /// Registers memory, which makes it a buffer.
    ///
    /// # Errors
    /// `EFBIG` where its shape exceeds a limit of the transport; `EINVAL` without bytes. The memory comes
    /// back.
    pub fn register(&self, memory: Memory) -> Result<Buffer, (Error, Memory)> {
        if memory.size_bytes() == 0 {
            return Err((Error::invalid("memory without bytes: one at least is expected"), memory));
        }
        if let Err(error) = memory.check(&self.shared.limits) {
            return Err((error, memory));
        }
        let mut state = self.shared.lock();
        let registered = match state.transport.as_mut() {
            Some(transport) => transport.register(&memory),
            None => Err(ended()),
        };
        if let Err(error) = registered {
            drop(state);
            return Err((error, memory));
        }
        state.buffer_count += 1;
        drop(state);
        Ok(Buffer::new(memory, Arc::clone(&self.shared)))
    }

    /// A registered buffer of zero bytes in so many segments, in memory that the transport moves with least
    /// copies.
    ///
    /// # Errors
    /// As [`Domain::register`].
    pub fn allocate(&self, segments: usize, segment_bytes: usize) -> Result<Buffer, Error> {
        let size_bytes = (segments as u64).saturating_mul(segment_bytes as u64);
        check_shape(segments, segment_bytes as u64, size_bytes, &self.shared.limits)?;
        if size_bytes == 0 {
            return Err(Error::invalid(format!(
                "{segments} segments of {segment_bytes} bytes: one of each at least is expected"
            )));
        }
        let memory = match self.shared.lock().transport.as_mut() {
            Some(transport) => transport.allocate(segments, segment_bytes)?,
            None => return Err(ended()),
        };
        self.register(memory).map_err(|(error, _)| error)
    }

    /// Number of buffers that are registered.
    #[must_use]
    pub fn buffer_count(&self) -> usize {
        self.shared.lock().buffer_count
    }

    /// Number of transfer machines.
    #[must_use]
    pub fn tm_count(&self) -> usize {
        self.shared.lock().tms.len()
    }

    /// Ends the domain, and tells why where that cannot be. Dropping the last handle does the same.
    ///
    /// # Errors
    /// `EBUSY` while it has buffers or transfer machines, with the domain.
    pub fn finish(self) -> Result<(), (Error, Self)> {
        let _all = ALL_DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.lock();
        let (buffers, tms) = (state.buffer_count, state.tms.len());
        if buffers != 0 || tms != 0 {
            let found = format!("{buffers} buffers and {tms} transfer machines: none of them are expected");
            drop(state);
            return Err((Error::new(Errno::Busy, found), self));
        }
        drop(state.transport.take());
        Ok(())
    }
}

/// Whether a domain is made or ended at the moment.
#[cfg(test)]
pub(crate) fn all_are_locked() -> bool {
    ALL_DOMAINS.try_lock().is_err()
}

fn ended() -> Error {
    Error::new(Errno::Busy, "the domain was finished: a live one is expected")
}

impl DomainShared {
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }

    fn lock(&self) -> MutexGuard<'_, DomainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer is gone.
    pub(crate) fn deregister(&self) {
        let mut state = self.lock();
        state.buffer_count -= 1;
        if let Some(transport) = state.transport.as_mut() {
            transport.deregister();
        }
    }

    /// Lists a transfer machine, with what its transport has made for it.
    pub(crate) fn enlist(&self, tm: &Arc<TmShared>) -> Result<(), Error> {
        let mut state = self.lock();
        let transport = state.transport.as_mut().ok_or_else(ended)?.create_tm()?;
        tm.initialize(transport)?;
        state.tms.push(Arc::downgrade(tm));
        Ok(())
    }

    pub(crate) fn delist(&self, tm: &TmShared) {
        self.lock().tms.retain(|listed| !std::ptr::eq(listed.as_ptr(), tm));
    }

    /// Runs something for each transfer machine, without the lock of the domain.
    pub(crate) fn for_each_tm(&self, run: impl FnMut(TmLink)) {
        let tms: Vec<_> = self.lock().tms.iter().filter_map(Weak::upgrade).collect();
        tms.into_iter().map(TmLink::new).for_each(run);
    }
}
