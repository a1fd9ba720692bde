//! The daemon's end of the control socket, on a tokio runtime of one thread.
//!
//! Invariants: changes are made one after the other, and one that has begun is carried to its end whatever
//! becomes of its client; all else ends when its client goes. Reads are for every client that may open the
//! socket, changes for root and the owner, by the credentials that the kernel vouches for. No client can make
//! the daemon wait. What clients send and are told takes no more memory than [`ServerLimits`] allow, for each
//! and for all of them together: a client that is silent is no reason for others to wait.

mod budget;
mod connection;
mod handler;
mod listen;

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::time::Duration;

use budget::Budgets;
use connection::{Caller, Connection};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lnet_model::{Errno, Refusal};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::Reply;
use crate::protocol::{self, REPLY_BYTES_MAX};

pub use handler::Handler;
pub use listen::{Access, BindError, Listener};

/// What the kernel's refusal to accept is waited out for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the log tells of such refusals.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(10);

/// What clients may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections of root and the owner beside these: others cannot lock them out.
    pub owner_connections: usize,
    /// Connections at once of one user, other than root and the owner.
    pub user_connections: usize,
    /// How long a request may take to arrive, once it has begun.
    pub request_time: Duration,
    /// How long a client may read nothing of a reply.
    pub reply_time: Duration,
    /// How long a client may be silent that holds what others wait for.
    pub stall_time: Duration,
    /// Bytes that all clients may hold together, beside a little for each: of requests that arrive, and as
    /// many of requests under way and replies. Root and the owner have as much again for themselves.
    pub budget_bytes: usize,
    /// How long a ping may take for which the client gives no time.
    pub ping_time: Duration,
    /// NIDs of one request that are pinged at once.
    pub pings: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 128,
            owner_connections: 8,
            user_connections: 32,
            request_time: Duration::from_secs(10),
            reply_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(1),
            budget_bytes: 32 << 20,
            ping_time: crate::client::PING_TIMEOUT,
            pings: 16,
        }
    }
}

/// What the connections of a server share.
struct ServerContext<'a, H> {
    handler: &'a H,
    limits: ServerLimits,
    /// Room while changes are made.
    changing: Mutex<()>,
    /// Bytes that clients may hold.
    budgets: Budgets,
    /// Bytes that root and the owner may hold.
    owner_budgets: Budgets,
}

impl<H> ServerContext<'_, H> {
    fn budgets_of(&self, caller: &Caller) -> &Budgets {
        if caller.may_change { &self.owner_budgets } else { &self.budgets }
    }
}

/// The kernel's refusals to accept connections: for a while after one it is not asked, and the log tells of
/// them once in a while.
#[derive(Default)]
struct Refusals {
    pause_until: Option<Instant>,
    told_at: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// The next connection. Dropping this loses none.
    async fn accept(&self, listener: &Listener) -> io::Result<UnixStream> {
        if let Some(pause_until) = self.pause_until {
            tokio::time::sleep_until(pause_until).await;
        }
        listener.accept().await
    }

    fn note(&mut self, error: &io::Error) {
        let now = Instant::now();
        self.pause_until = Some(now + ACCEPT_PAUSE);
        self.count += 1;
        if self.told_at.is_none_or(|told_at| now - told_at >= REFUSAL_INTERVAL) {
            self.told_at = Some(now);
            let times = std::mem::take(&mut self.count);
            warn!(%error, times, "control socket: cannot accept connections");
        }
    }
}

/// Serves clients until `stop` is ready; then ends what is under way, after the changes among it, and
/// returns. The socket's file is gone afterwards.
pub async fn serve<H: Handler>(
    listener: Listener,
    limits: ServerLimits,
    handler: &H,
    stop: impl Future<Output = ()>,
) {
    let budgets = || Budgets::new(limits.budget_bytes);
    let shared = ServerContext {
        handler,
        limits,
        changing: Mutex::new(()),
        budgets: budgets(),
        owner_budgets: budgets(),
    };
    let mut refusals = Refusals::default();
    let (close, closing) = watch::channel(false);
    let mut connections = FuturesUnordered::new();
    let mut users = HashMap::<u32, usize>::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(uid) = connections.next() => {
                if let Some(count) = users.get_mut(&uid) {
                    *count -= 1;
                }
                users.retain(|_, count| *count > 0);
            }
            accepted = refusals.accept(&listener) => match accepted {
                Ok(stream) => {
                    let count = connections.len();
                    let Some((stream, caller)) = admit(stream, &listener, count, &users, limits) else {
                        continue;
                    };
                    *users.entry(caller.uid).or_default() += 1;
                    let connection = Connection::new(stream, caller, &shared, closing.clone());
                    connections.push(connection.run());
                }
                Err(error) => refusals.note(&error),
            },
        }
    }
    // No client can connect any more, and connections that wait for requests end.
    drop(listener);
    let _ = close.send(true);
    while connections.next().await.is_some() {}
}

/// Who connects, if there is room.
fn admit(
    stream: UnixStream,
    listener: &Listener,
    connection_count: usize,
    users: &HashMap<u32, usize>,
    limits: ServerLimits,
) -> Option<(UnixStream, Caller)> {
    let caller = match caller_of(&stream, listener.owner()) {
        Ok(caller) => caller,
        Err(error) => {
            warn!(%error, "control socket: a client without credentials");
            return None;
        }
    };
    let own = users.get(&caller.uid).copied().unwrap_or_default();
    let is_full = match caller.may_change {
        true => connection_count >= limits.connections + limits.owner_connections,
        false => connection_count >= limits.connections || own >= limits.user_connections,
    };
    if is_full {
        debug!(?caller, connection_count, "control socket: no room for another client");
        refuse(&stream);
        return None;
    }
    debug!(?caller, "control socket: client");
    Some((stream, caller))
}

fn caller_of(stream: &UnixStream, owner: u32) -> io::Result<Caller> {
    let credentials = stream.peer_cred()?;
    let uid = credentials.uid();
    Ok(Caller { uid, pid: credentials.pid(), may_change: uid == 0 || uid == owner })
}

/// Tells a client that there is no room, if it can be told without waiting.
fn refuse(stream: &UnixStream) {
    let refusal = Refusal::new(Errno::BUSY, "the daemon serves as many clients as it may: try again later");
    if let Ok(message) = protocol::encode(&Reply::Refused(refusal), REPLY_BYTES_MAX) {
        let _ = stream.try_write(&message);
    }
}
