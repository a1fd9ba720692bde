//! Pools of registered buffers, which transfer machines take receive buffers from by themselves.
//!
//! A buffer comes back with a *colour*, the number of its last user: the same user gets it again first, while
//! its bytes are still in the user's cache.
//!
//! Invariants: free buffers are registered and not queued; there are never more free ones than buffers in
//! all. The pool's lock is taken before that of a domain or a transfer machine, never under one.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use lnet_user::locks::{Mutex, MutexGuard};

use super::Buffer;
use super::free::FreeBuffers;
use crate::domain::Domain;
use crate::errno::{Errno, Error};

/// The shape of a pool and its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSpec {
    /// Free buffers below which [`PoolHandler::below_threshold`] is called, and at which
    /// [`LockedPool::prune`] stops.
    pub threshold: usize,
    /// Segments of a buffer.
    pub segments: usize,
    /// Bytes of a segment.
    pub segment_bytes: usize,
    /// Number of colours; may be 0.
    pub colours: usize,
}

/// Callbacks of a pool, under its lock: through the [`LockedPool`] that they are given they may do what they
/// like with the pool, and they must neither lock a pool nor wait.
pub trait PoolHandler: Send + Sync {
    /// There is a free buffer, and there was none. By default transfer machines that lack receive buffers get
    /// some.
    fn not_empty(&self, pool: &mut LockedPool<'_>) {
        pool.reprovision();
    }

    /// Fewer buffers are free than the threshold says, after one was taken.
    fn below_threshold(&self, pool: &mut LockedPool<'_>) {
        let _ = pool;
    }
}

/// The handler of a pool that has transfer machines provisioned anew, and no more.
#[derive(Clone, Copy, Debug)]
pub struct Reprovision;

impl PoolHandler for Reprovision {}

/// A transfer machine whose receive queue is filled from a pool, as the pool knows it.
pub(crate) trait Taker: Send + Sync {
    /// Fills the receive queue, if it lacks buffers and takes them from this pool.
    fn take_if_short(&self, pool: &mut LockedPool<'_>);
}

/// A pool of buffers of one domain. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    domain: Domain,
    spec: PoolSpec,
    handler: Arc<dyn PoolHandler>,
    /// Buffers, those that are out included. A buffer that is dropped outside leaves without the lock.
    total: AtomicUsize,
    state: Mutex<PoolState>,
}

struct PoolState {
    free: FreeBuffers,
    takers: Vec<Weak<dyn Taker>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.shared.spec).finish()
    }
}

/// Whether they are the same pool.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Pool {}

impl Pool {
    /// A pool without buffers.
    ///
    /// # Errors
    /// `EINVAL` where the domain takes no buffers of this shape.
    pub fn new(domain: &Domain, spec: PoolSpec, handler: Arc<dyn PoolHandler>) -> Result<Self, Error> {
        let limits = domain.limits();
        let PoolSpec { segments, segment_bytes, .. } = spec;
        if !(1..=limits.segments).contains(&segments)
            || !(1..=limits.segment_bytes).contains(&(segment_bytes as u64))
        {
            return Err(Error::invalid(format!(
                "{segments} segments of {segment_bytes} bytes: 1 to {} of 1 to {} bytes are expected",
                limits.segments, limits.segment_bytes
            )));
        }
        let state = Mutex::new(PoolState { free: FreeBuffers::new(spec.colours), takers: Vec::new() });
        let (domain, total) = (domain.clone(), AtomicUsize::new(0));
        Ok(Self { shared: Arc::new(PoolShared { domain, spec, handler, total, state }) })
    }

    /// Locks it. Not to be called from its handler, which is given the lock, nor while another one is locked.
    #[must_use]
    pub fn lock(&self) -> LockedPool<'_> {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        LockedPool { pool: self, state }
    }

    /// Ends it, and deregisters its buffers. Dropping the last handle does so too. A buffer that was dropped
    /// outside is its buffer no longer.
    ///
    /// # Errors
    /// `EBUSY` while some of them are out.
    pub fn finish(&self) -> Result<(), Error> {
        let mut pool = self.lock();
        let (free, total) = (pool.free_count(), pool.total());
        if free != total {
            let found = format!("{free} of {total} buffers of the pool are free: all of them are expected");
            return Err(Error::new(Errno::Busy, found));
        }
        while pool.remove_oldest() {}
        Ok(())
    }

    /// Counts a buffer less, which is gone.
    pub(crate) fn lose_one(&self) {
        self.shared.total.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// The shape that it was made with.
    #[must_use]
    pub fn spec(&self) -> &PoolSpec {
        &self.shared.spec
    }
}

/// A pool while its lock is taken.
pub struct LockedPool<'a> {
    pool: &'a Pool,
    state: MutexGuard<'a, PoolState>,
}

impl fmt::Debug for LockedPool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockedPool({} of {} free)", self.free_count(), self.total())
    }
}

impl LockedPool<'_> {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.pool
    }

    /// Number of free buffers.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.state.free.len()
    }

    /// Number of buffers, those that are out included.
    #[must_use]
    pub fn total(&self) -> usize {
        self.pool.shared.total.load(Ordering::Relaxed)
    }

    /// Makes so many buffers more, and returns how many there could be.
    pub fn provision(&mut self, count: usize) -> usize {
        let PoolSpec { segments, segment_bytes, .. } = self.pool.shared.spec;
        for made in 0..count {
            let Ok(buffer) = self.pool.domain().allocate(segments, segment_bytes) else { return made };
            self.pool.shared.total.fetch_add(1, Ordering::Relaxed);
            self.insert(buffer, None);
        }
        count
    }

    /// Takes a buffer: the one that came back last with this colour, or else the one that is free for
    /// longest. `None` where none is free.
    pub fn get(&mut self, colour: Option<usize>) -> Option<Buffer> {
        let buffer = self.get_silently(colour)?;
        self.tell_below_threshold();
        Some(buffer)
    }

    /// Takes a buffer for a caller with the lock of a transfer machine, who calls the handler later.
    pub(crate) fn get_silently(&mut self, colour: Option<usize>) -> Option<Buffer> {
        let free = &mut self.state.free;
        let newest = colour.and_then(|colour| free.pop_newest(colour));
        let mut buffer = newest.or_else(|| free.pop_oldest())?;
        buffer.pool = Some(self.pool.clone());
        Some(buffer)
    }

    /// Free buffers that the threshold asks for and that are not there.
    pub(crate) fn lack(&self) -> usize {
        self.pool.shared.spec.threshold.saturating_sub(self.free_count())
    }

    pub(crate) fn tell_below_threshold(&mut self) {
        if self.lack() != 0 {
            let handler = Arc::clone(&self.pool.shared.handler);
            handler.below_threshold(self);
        }
    }

    /// Gives a buffer back, with the colour of its last user. One that was not taken from the pool before
    /// becomes the pool's.
    ///
    /// # Errors
    /// `EINVAL`, with the buffer, where it is of another domain or from another pool, or the colour does not
    /// exist.
    pub fn put(&mut self, buffer: Buffer, colour: Option<usize>) -> Result<(), (Error, Buffer)> {
        let colours = self.state.free.colour_count();
        let error = if buffer.domain() != self.pool.domain() {
            Some("a buffer of another domain: one of the pool's is expected".to_owned())
        } else if buffer.pool().is_some_and(|pool| pool != self.pool) {
            Some("a buffer of another pool: one of this pool or of none is expected".to_owned())
        } else {
            let excess = colour.filter(|colour| *colour >= colours);
            excess.map(|colour| format!("colour {colour}: one below {colours} is expected"))
        };
        if let Some(error) = error {
            return Err((Error::invalid(error), buffer));
        }
        if buffer.pool().is_none() {
            self.pool.shared.total.fetch_add(1, Ordering::Relaxed);
        }
        self.insert(buffer, colour);
        Ok(())
    }

    fn insert(&mut self, buffer: Buffer, colour: Option<usize>) {
        self.put_silently(buffer, colour);
        if self.free_count() == 1 {
            let handler = Arc::clone(&self.pool.shared.handler);
            handler.not_empty(self);
        }
    }

    /// Gives a buffer of the pool back, and calls no handler.
    pub(crate) fn put_silently(&mut self, mut buffer: Buffer, colour: Option<usize>) {
        buffer.pool = None;
        self.state.free.push(buffer, colour);
    }

    /// Deregisters the buffer that is free for longest, and returns its memory to the system. `false` where
    /// no more are free than the threshold says.
    pub fn prune(&mut self) -> bool {
        self.free_count() > self.pool.shared.spec.threshold && self.remove_oldest()
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.state.free.pop_oldest();
        if oldest.is_some() {
            self.pool.lose_one();
        }
        oldest.is_some()
    }

    /// Gives receive buffers to those transfer machines that take them from the pool and lack some.
    pub fn reprovision(&mut self) {
        let takers: Vec<_> = self.state.takers.iter().filter_map(Weak::upgrade).collect();
        takers.iter().for_each(|taker| taker.take_if_short(self));
    }

    /// Has a transfer machine be given buffers by [`LockedPool::reprovision`].
    pub(crate) fn add_taker(&mut self, taker: Weak<dyn Taker>) {
        let takers = &mut self.state.takers;
        takers.retain(|known| known.strong_count() > 0 && !Weak::ptr_eq(known, &taker));
        takers.push(taker);
    }
}
