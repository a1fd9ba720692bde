//! The server of the process, which all transfer machines share.
//!
//! Invariants: it lives from the start of the first transfer machine to the stop of the last one. A
//! connection has a thread, which handles its calls one behind the other; the number of connections is
//! bounded, and so are those of one source, and what each may occupy: a record of the size that has come, and
//! a reply. A connection that waits for its client makes room for others, be a part of a call there or not.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
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
/// How often the log tells of calls that were cut off, and of connections that cannot be accepted.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

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

impl ServerSpec {
    /// Connections that one source may have: the others are for everyone else.
    fn source_connections_max(&self) -> usize {
        (self.connections_max - self.connections_max / 4).max(1)
    }
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
    /// Calls that were cut off by the end of their connections, and not told of.
    cut_off: u64,
    told_at: Option<Instant>,
}

struct Connection {
    stream: TcpStream,
    source: IpAddr,
    stage: Stage,
}

/// How far a connection is with its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No part of a call has come since then.
    Idle(Instant),
    /// A part of a call has come, or a reply has begun to leave, since then.
    Partial(Instant),
    /// A call is carried out, which waits for no client.
    Running,
    /// The thread is told to end, and removes it.
    Closing,
}

impl Stage {
    /// Since when it waits for its client.
    fn waits_since(self) -> Option<Instant> {
        match self {
            Self::Idle(since) | Self::Partial(since) => Some(since),
            Self::Running | Self::Closing => None,
        }
    }
}

impl State {
    /// Whether there is room for a connection from `source`. Where all are taken, one of the source that has
    /// the most ends; where this source has its share, one of its own: the one that has waited longest for
    /// its client. Calls that are carried out are left alone.
    fn make_room(&mut self, source: IpAddr, spec: &ServerSpec) -> bool {
        // The new one among them.
        let mut counts = HashMap::from([(source, 1)]);
        let live = self.connections.values_mut().filter(|connection| connection.stage != Stage::Closing);
        let mut live: Vec<_> = live.collect();
        live.iter().for_each(|connection| *counts.entry(connection.source).or_default() += 1);
        let has_share = counts[&source] > spec.source_connections_max();
        if live.len() < spec.connections_max && !has_share {
            return true;
        }
        live.retain(|connection| !has_share || connection.source == source);
        let waiting =
            live.into_iter().filter_map(|connection| Some((connection.stage.waits_since()?, connection)));
        let longest = waiting.min_by_key(|(since, connection)| (Reverse(counts[&connection.source]), *since));
        let Some((_, connection)) = longest else { return false };
        self.cut_off += u64::from(matches!(connection.stage, Stage::Partial(_)));
        connection.stage = Stage::Closing;
        // The thread of the connection ends, and removes it.
        let _ = connection.stream.shutdown(Shutdown::Both);
        self.tell();
        true
    }

    /// Says in the log, once in a while, how many calls were cut off.
    fn tell(&mut self) {
        if self.cut_off == 0 || self.told_at.is_some_and(|told_at| told_at.elapsed() < TELL_INTERVAL) {
            return;
        }
        self.told_at = Some(Instant::now());
        let calls = std::mem::take(&mut self.cut_off);
        tracing::warn!(calls, "connections with a part of a call were closed: all are taken");
    }
}

impl Served {
    fn new(spec: ServerSpec) -> Self {
        Self { spec, state: Mutex::default(), emptied: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        let mut told_at: Option<Instant> = None;
        for number in 0.. {
            match listener.accept() {
                Ok((stream, from)) => self.take(number, stream, from.ip()),
                Err(_) if self.lock().is_stopping => return,
                Err(error) => {
                    // A want of descriptors fails ten times a second.
                    if told_at.is_none_or(|told_at| told_at.elapsed() >= TELL_INTERVAL) {
                        told_at = Some(Instant::now());
                        tracing::warn!("no connection is accepted: {error}");
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Serves one more connection, if there is room or another one makes it.
    fn take(self: &Arc<Self>, number: u64, stream: TcpStream, source: IpAddr) {
        let Ok(clone) = stream.try_clone() else { return };
        let mut state = self.lock();
        if !state.make_room(source, &self.spec) {
            return;
        }
        let stage = Stage::Idle(Instant::now());
        state.connections.insert(number, Connection { stream: clone, source, stage });
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
            self.mark(number, Stage::Partial(Instant::now()));
            let deadline = Instant::now() + self.spec.record_timeout;
            let call = record::read(&mut stream, RECORD_BYTES_MAX, deadline)?;
            self.mark(number, Stage::Running);
            let reply = handlers::answer(&call).ok_or(io::ErrorKind::InvalidData)?;
            drop(call);
            self.mark(number, Stage::Partial(Instant::now()));
            let deadline = Instant::now() + self.spec.record_timeout;
            record::write(&mut stream, &reply, deadline).map_err(|not_written| not_written.error)?;
            self.mark(number, Stage::Idle(Instant::now()));
        }
    }

    /// Notes how far a connection is, unless it was told to end.
    fn mark(&self, number: u64, stage: Stage) {
        let mut state = self.lock();
        let connection = state.connections.get_mut(&number);
        if let Some(connection) = connection.filter(|connection| connection.stage != Stage::Closing) {
            connection.stage = stage;
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
