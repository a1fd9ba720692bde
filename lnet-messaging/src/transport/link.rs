//! How a transport reaches a transfer machine of its own accord: it posts what happens, and looks at the
//! queues.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::{Completion, TmFront, TransportTm};
use crate::end_point::EndPoint;
use crate::errno::Errno;
use crate::queue::BufferId;

/// A report on a transfer machine as a whole.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// The start went well, under this address in canonical form. A stop that overtook the start makes this
    /// void.
    Started(&'a str),
    /// The start failed, or the transport broke down.
    Failed(Errno),
    /// The transfer machine has stopped: no buffer is queued, and no callback runs.
    Stopped,
    /// There is trouble that concerns no buffer.
    Trouble(Errno),
    /// Words on how the transfer machine is doing, which the program has asked for.
    Diagnostic(&'a str),
}

/// The transfer machine behind a link. The contract knows no more of it, and so stands below it.
pub(crate) trait Linked: Send + Sync {
    /// Runs something under the lock of the transfer machine, once. The transport's part is `None` after the
    /// transfer machine was finished.
    fn locked(&self, run: &mut dyn FnMut(&mut TmFront, Option<&mut dyn TransportTm>));

    /// A number that tells the domain from all others.
    fn domain_id(&self) -> usize;

    /// See [`TmLink::post`].
    fn post(self: Arc<Self>, completion: Completion);

    /// See [`TmLink::report`].
    fn report(self: Arc<Self>, report: Report<'_>);
}

/// The way of a transport to a transfer machine, by which it posts what happens. Unlike a handle it does not
/// keep the transfer machine from stopping.
#[derive(Clone)]
pub struct TmLink(Arc<dyn Linked>);

impl fmt::Debug for TmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TmLink")
    }
}

impl TmLink {
    pub(crate) fn new(tm: Arc<dyn Linked>) -> Self {
        Self(tm)
    }

    fn locked<R>(&self, run: impl FnOnce(&mut TmFront, Option<&mut dyn TransportTm>) -> R) -> R {
        let (mut run, mut result) = (Some(run), None);
        self.0.locked(&mut |front, transport| result = run.take().map(|run| run(front, transport)));
        result.expect("a transfer machine runs what it is given")
    }

    /// Posts what came of a buffer's operation.
    pub fn post(&self, completion: Completion) {
        Arc::clone(&self.0).post(completion);
    }

    /// Posts what has become of the transfer machine.
    pub fn report(&self, report: Report<'_>) {
        Arc::clone(&self.0).report(report);
    }

    /// Runs something under the lock of the transfer machine. It must not post.
    pub fn with_front<R>(&self, run: impl FnOnce(&mut TmFront) -> R) -> R {
        self.locked(|front, _| run(front))
    }

    /// The transport's next pending event ([`TransportTm::next_pending`]).
    #[must_use]
    pub fn next_pending(&self) -> Option<Completion> {
        self.locked(|front, transport| transport?.next_pending(front))
    }

    /// Has those buffers end whose deadline has passed, and whose data is not being moved. Returns how many.
    pub fn expire(&self, now: Instant) -> usize {
        self.locked(|front, transport| {
            let Some(transport) = transport else { return 0 };
            let expired: Vec<BufferId> = front.take_expired(now);
            expired.iter().for_each(|id| transport.del(front, *id));
            expired.len()
        })
    }

    /// The end point of an address in canonical form.
    #[must_use]
    pub fn end_point(&self, address: &str) -> EndPoint {
        self.with_front(|front| front.end_point(address))
    }

    /// Whether they are of the same domain.
    #[must_use]
    pub fn shares_domain_with(&self, other: &Self) -> bool {
        self.0.domain_id() == other.0.domain_id()
    }

    /// Whether they are of the same transfer machine.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}
