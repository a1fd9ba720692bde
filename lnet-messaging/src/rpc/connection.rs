//! Connections to the servers of other processes, cached for the next call.
//!
//! Invariants: one call at a time is on a connection. One that a call has failed on is closed: a late reply
//! meets no other call. A call whose bytes have begun to leave is never repeated.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lnet_user::locks::{Mutex, MutexGuard};

use super::message::{self, NoResults, Procedure};
use super::program::RECORD_BYTES_MAX;
use super::record::{self, NotWritten};
use crate::errno::Errno;

/// The connections of a domain.
pub(super) struct Connections {
    idle: Mutex<HashMap<SocketAddrV4, Vec<Idle>>>,
    next_xid: AtomicU32,
    call_timeout: Duration,
}

/// A connection that no call is on.
struct Idle {
    stream: TcpStream,
    since: Instant,
}

impl Idle {
    /// Whether the server has neither closed it nor sent what was not asked for.
    fn is_usable(&self) -> bool {
        let peek = || {
            self.stream.set_nonblocking(true)?;
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        };
        peek().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Connections {
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self { idle: Mutex::default(), next_xid: AtomicU32::new(1), call_timeout }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddrV4, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a procedure with the arguments that `put` appends, and waits for the results, which `take` gets.
    ///
    /// # Errors
    /// What the server or the network says, or `take`.
    pub(super) fn call<R>(
        &self,
        server: SocketAddrV4,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        take: impl FnOnce(&[u8]) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let xid = self.next_xid.fetch_add(1, Ordering::Relaxed);
        let call = record::build(|to| {
            message::put_call(to, xid, procedure);
            put(to);
        });
        let deadline = Instant::now() + self.call_timeout;
        let mut stream = self.write(server, &call, deadline).map_err(|error| errno_of(&error))?;
        drop(call);
        let reply =
            record::read(&mut stream, RECORD_BYTES_MAX, deadline).map_err(|error| errno_of(&error))?;
        match message::results(&reply, xid) {
            Err(NoResults::Unrelated) => Err(NoResults::Unrelated.into()),
            results => {
                let idle = Idle { stream, since: Instant::now() };
                self.lock().entry(server).or_default().push(idle);
                results.map_err(Errno::from).and_then(take)
            }
        }
    }

    /// The connection that a call was written to.
    fn write(&self, server: SocketAddrV4, call: &[u8], deadline: Instant) -> io::Result<TcpStream> {
        if let Some(mut stream) = self.take(server) {
            match record::write(&mut stream, call, deadline) {
                Ok(()) => return Ok(stream),
                Err(NotWritten { error, has_begun: true }) => return Err(error),
                // The server closed it a moment ago.
                Err(NotWritten { has_begun: false, .. }) => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut stream = TcpStream::connect_timeout(&server.into(), left)?;
        stream.set_nodelay(true)?;
        match record::write(&mut stream, call, deadline) {
            Ok(()) => Ok(stream),
            Err(NotWritten { error, .. }) => Err(error),
        }
    }

    /// A cached one, the last that was used.
    fn take(&self, server: SocketAddrV4) -> Option<TcpStream> {
        let mut idle = self.lock();
        let cached = idle.get_mut(&server)?;
        let found = std::iter::from_fn(|| cached.pop()).find(Idle::is_usable);
        if cached.is_empty() {
            idle.remove(&server);
        }
        found.map(|idle| idle.stream)
    }

    /// Closes those that no call was on for so long.
    pub(super) fn close_idle(&self, idle_max: Duration) {
        self.lock().retain(|_, cached| {
            cached.retain(|idle| idle.since.elapsed() < idle_max);
            !cached.is_empty()
        });
    }

    /// Closes all that no call is on.
    pub(super) fn flush(&self) {
        self.lock().clear();
    }
}

impl From<NoResults> for Errno {
    fn from(why: NoResults) -> Self {
        match why {
            NoResults::Unrelated => Self::ConnectionReset,
            NoResults::Unsupported => Self::ProtocolNotSupported,
            NoResults::Denied => Self::AccessDenied,
            NoResults::Unreadable => Self::BadMessage,
            NoResults::Failed => Self::Io,
            NoResults::Unknown => Self::Protocol,
        }
    }
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Errno::TimedOut,
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::WriteZero => {
            Errno::ConnectionReset
        }
        io::ErrorKind::InvalidData => Errno::Protocol,
        _ => error.raw_os_error().and_then(Errno::from_number).unwrap_or(Errno::Io),
    }
}
