//! The server of the process, which all transfer machines share.
//!
//! Invariants: it lives from the start of the first transfer machine to the stop of the last one. A
//! connection has a thread, which handles its calls one behind the other; the number of connections is
//! bounded, and so is what each may occupy: a record of the size that has come, and a reply.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_user::locks::{Condvar, Mutex, MutexGuard};

use super::connection::errno_of;
use super::handlers;
use super::program::RECORD_BYTES_MAX;
use super::record;
use crate::errno::Errno;

/// How long accepting pauses after a failure, such as a want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The server, if a transfer machine needs one.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

struct Server {
    address: SocketAddrV4,
    tm_count: usize,
    listener: TcpListener,
    served: Arc<Served>,
    thread: JoinHandle<()>,
}

/// The terms on which the server starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerSpec {
    pub(super) connections_max: usize,
    /// How long a record or a reply may take.
    pub(super) record_timeout: Duration,
}

fn lock() -> MutexGuard<'static, Option<Server>> {
    SERVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the server run for one more transfer machine.
///
/// # Errors
/// `EADDRNOTAVAIL` where it has another address; what the socket says.
pub(super) fn acquire(address: SocketAddrV4, spec: ServerSpec) -> Result<(), Errno> {
    let mut server = lock();
    match &mut *server {
        Some(server) if server.address == address => server.tm_count += 1,
        Some(_) => return Err(Errno::AddressNotAvailable),
        None => *server = Some(Server::start(address, spec).map_err(|error| errno_of(&error))?),
    }
    Ok(())
}

/// One transfer machine needs it no longer; without any it ends before this returns.
pub(super) fn release() {
    let mut slot = lock();
    let Some(server) = &mut *slot else { return };
    server.tm_count -= 1;
    if server.tm_count == 0
        && let Some(server) = slot.take()
    {
        // Under the lock: the next one may have the same address.
        server.stop();
    }
}

impl Server {
    fn start(address: SocketAddrV4, spec: ServerSpec) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let served = Arc::new(Served::new(spec));
        let (accepting, handled) = (listener.try_clone()?, Arc::clone(&served));
        let thread = std::thread::Builder::new().name("rpc-accept".to_owned());
        let thread = thread.spawn(move || handled.accept(&accepting))?;
        Ok(Self { address, tm_count: 1, listener, served, thread })
    }

    fn stop(self) {
        self.served.lock().is_stopping = true;
        // The thread wakes; a listener that cannot be shut down is not one.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        drop(self.listener);
        // A panic has been printed by then.
        let _ = self.thread.join();
        self.served.end();
    }
}

/// The connections that are being served.
struct Served {
    spec: ServerSpec,
    state: Mutex<State>,
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    connections: HashMap<u64, Connection>,
    is_stopping: bool,
}

struct Connection {
    stream: TcpStream,
    /// Since when no call is on it; `None` while one is.
    idle_since: Option<Instant>,
}

impl Served {
    fn new(spec: ServerSpec) -> Self {
        Self { spec, state: Mutex::default(), emptied: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            match listener.accept() {
                Ok((stream, _)) => self.take(number, stream),
                Err(_) if self.lock().is_stopping => return,
                Err(error) => {
                    tracing::warn!("no connection is accepted: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Serves one more connection. Where there are as many as may be, that goes which was idle longest; where
    /// none is idle, the new one.
    fn take(self: &Arc<Self>, number: u64, stream: TcpStream) {
        let Ok(clone) = stream.try_clone() else { return };
        let mut state = self.lock();
        if state.connections.len() >= self.spec.connections_max {
            let idle = state.connections.values_mut().filter(|connection| connection.idle_since.is_some());
            let Some(oldest) = idle.min_by_key(|connection| connection.idle_since) else { return };
            oldest.idle_since = None;
            // Its thread ends, and removes it.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        state.connections.insert(number, Connection { stream: clone, idle_since: Some(Instant::now()) });
        drop(state);
        let served = Arc::clone(self);
        let thread = std::thread::Builder::new().name("rpc-serve".to_owned());
        let spawned = thread.spawn(move || {
            let listed = ListedConnection { served: &served, number };
            // Whatever is wrong with a connection, closing it is the answer.
            let _ = served.serve(number, stream);
            drop(listed);
        });
        if spawned.is_err() {
            self.remove(number);
        }
    }

    fn serve(&self, number: u64, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            record::wait(&stream)?;
            self.mark_idle(number, None);
            let deadline = Instant::now() + self.spec.record_timeout;
            let call = record::read(&mut stream, RECORD_BYTES_MAX, deadline)?;
            let reply = handlers::answer(&call).ok_or(io::ErrorKind::InvalidData)?;
            drop(call);
            let deadline = Instant::now() + self.spec.record_timeout;
            record::write(&mut stream, &reply, deadline).map_err(|not_written| not_written.error)?;
            self.mark_idle(number, Some(Instant::now()));
        }
    }

    fn mark_idle(&self, number: u64, idle_since: Option<Instant>) {
        if let Some(connection) = self.lock().connections.get_mut(&number) {
            connection.idle_since = idle_since;
        }
    }

    fn remove(&self, number: u64) {
        let mut state = self.lock();
        let removed = state.connections.remove(&number);
        if state.connections.is_empty() {
            self.emptied.notify_all();
        }
        drop((state, removed));
    }

    /// Closes all connections, and waits for their threads.
    fn end(&self) {
        let mut state = self.lock();
        for connection in state.connections.values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        while !state.connections.is_empty() {
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes a connection off the list when its thread ends, however that is: the end of the server waits for it.
struct ListedConnection<'a> {
    served: &'a Served,
    number: u64,
}

impl Drop for ListedConnection<'_> {
    fn drop(&mut self) {
        self.served.remove(self.number);
    }
}
