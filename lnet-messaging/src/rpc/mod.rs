//! The rpc transport: transfer machines of several processes and hosts, over ONC RPC (RFC 5531) on TCP.
//!
//! Calls between processes are in the place of the copies of [`mem`](crate::mem):
//!
//! ```text
//!  worker: send, read, write -> Connections -> TCP -> server of the process -> handlers -> list of work of the target
//! ```
//!
//! Addresses are `a.b.c.d:port:service`. A process has one server, on one `a.b.c.d:port`, and its transfer
//! machines differ in the service. A message is one call; bulk data goes in one call for each segment of the
//! buffer that it comes from.
//!
//! Invariants: nothing is believed of what comes over a connection, and what it may occupy is bounded. A
//! worker waits for calls, without any lock. Deadlines of buffers are looked at by the workers, and by the
//! domain's skulker while those wait.

mod address;
mod connection;
mod handlers;
mod message;
mod operate;
mod program;
mod record;
mod server;
mod xdr;

#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_user::locks::{Mutex, MutexGuard};

use crate::crew::Crew;
use crate::crew::directory::Directory;
use crate::errno::{Errno, Error};
use crate::memory::Limits;
use crate::transport::{TmLink, Transport, TransportDomain, TransportTm};

use address::RpcAddress;
use connection::Connections;
use program::DESCRIPTOR_BYTES;

/// The limits of buffers of rpc.
pub const LIMITS: Limits = Limits {
    buffer_bytes: program::MESSAGE_BYTES_MAX as u64,
    segment_bytes: program::SEGMENT_BYTES_MAX as u64,
    segments: 16,
    descriptor_bytes: DESCRIPTOR_BYTES,
    preferred_alignment_bytes: 8,
    preferred_segment_bytes: program::SEGMENT_BYTES_MAX as u64,
    rpc_segment_bytes: program::SEGMENT_BYTES_MAX as u64,
    rpc_segments: 16,
};

/// The number of the program.
pub const PROGRAM: u32 = message::PROGRAM;
/// Its version.
pub const VERSION: u32 = message::VERSION;

/// Longest time of a call: a year. Beyond that no clock need tell.
const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(31_536_000);

/// The rpc transport.
#[derive(Clone, Copy, Debug)]
pub struct RpcTransport {
    workers: usize,
    idle_max: Duration,
    tick: Duration,
    call_timeout: Duration,
    connections_max: usize,
}

impl Default for RpcTransport {
    /// One worker; connections are cached for a minute; a call may take 30 s; the server has 128 connections.
    fn default() -> Self {
        Self {
            workers: 1,
            idle_max: Duration::from_secs(60),
            tick: Duration::from_secs(1),
            call_timeout: Duration::from_secs(30),
            connections_max: 128,
        }
    }
}

impl RpcTransport {
    /// Transfer machines with so many threads each, one at least: so many calls are under way. With more than
    /// one, events of different buffers come in any order.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Connections that no call was on for so long are closed.
    #[must_use]
    pub fn idle_max(mut self, idle_max: Duration) -> Self {
        self.idle_max = idle_max;
        self
    }

    /// How often the skulker of a domain looks for such connections, and for deadlines that have passed.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick.max(Duration::from_millis(1));
        self
    }

    /// How long a call may take, a year at most; for the server, how long a call may take to arrive, and a
    /// reply to leave.
    #[must_use]
    pub fn call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout.clamp(Duration::from_millis(1), CALL_TIMEOUT_MAX);
        self
    }

    /// Connections that the server serves at the same time, one at least; three quarters of them may be from
    /// one address. Each may occupy 4 MiB and some. The number that the first transfer machine of the process
    /// asks for holds.
    #[must_use]
    pub fn connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max.max(1);
        self
    }

    /// The transport as [`Domain::new`](crate::Domain::new) takes it.
    #[must_use]
    pub fn shared(self) -> Arc<dyn Transport> {
        Arc::new(self)
    }
}

impl Transport for RpcTransport {
    fn name(&self) -> &str {
        "rpc"
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error> {
        let connections = Connections::new(self.call_timeout);
        let calls = Arc::new(Calls { transport: *self, connections, watched: Mutex::default() });
        let (stop, stopped) = mpsc::channel();
        let skulker = Arc::clone(&calls);
        let thread = std::thread::Builder::new().name("rpc-skulker".to_owned());
        let thread = thread.spawn(move || skulker.skulk(&stopped));
        let thread = thread.map_err(|error| Error::new(Errno::NoMemory, format!("no thread: {error}")))?;
        Ok(Box::new(RpcDomain { calls, skulker: Some((stop, thread)) }))
    }
}

/// The calls of a domain: what its transfer machines and its skulker share.
struct Calls {
    transport: RpcTransport,
    connections: Connections,
    /// Transfer machines whose deadlines the skulker looks at. Their locks are taken under this one, which is
    /// never taken under theirs.
    watched: Mutex<Vec<TmLink>>,
}

impl Calls {
    fn watched(&self) -> MutexGuard<'_, Vec<TmLink>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwatch(&self, link: &TmLink) {
        let mut watched = self.watched();
        let position = watched.iter().position(|watched| watched.is(link));
        let removed = position.map(|position| watched.swap_remove(position));
        // The last reference may be here: dropped without the lock.
        drop(watched);
        drop(removed);
    }

    fn skulk(&self, stopped: &mpsc::Receiver<()>) {
        while stopped.recv_timeout(self.transport.tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            self.connections.close_idle(self.transport.idle_max);
            for link in self.watched().iter() {
                link.expire(Instant::now());
            }
        }
    }
}

struct RpcDomain {
    calls: Arc<Calls>,
    skulker: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Drop for RpcDomain {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.skulker.take() {
            drop(stop);
            // A panic has been printed by then.
            let _ = thread.join();
        }
        self.calls.connections.flush();
    }
}

impl TransportDomain for RpcDomain {
    fn create_tm(&mut self) -> Result<Box<dyn TransportTm>, Error> {
        Ok(Box::new(Crew::new(Arc::clone(&self.calls), self.calls.transport.workers)))
    }
}

/// All transfer machines of the process that were started.
static LISTED: Directory<RpcAddress> = Directory::new();
