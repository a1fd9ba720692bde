//! The daemon's end of the control socket, on a tokio runtime of one thread.
//!
//! Invariants: changes are made one after the other, and one that has begun is carried to its end whatever
//! becomes of its client; all else ends when its client goes. Reads are for every client that may open the
//! socket, changes for root and the owner, by the credentials that the kernel vouches for. No client can make
//! the daemon wait, or take more memory than [`ServerLimits`] allow.

mod connection;
mod handler;
mod listen;

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::time::Duration;

use connection::{Caller, Connection};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lnet_model::{Errno, Refusal};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tracing::{debug, warn};

use crate::Reply;
use crate::protocol::{self, REPLY_BYTES_MAX};

pub use handler::Handler;
pub use listen::{Access, BindError, Listener};

/// What the kernel's refusal to accept is waited out for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// How long a client may take to read a reply.
    pub reply_time: Duration,
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
            ping_time: crate::client::PING_TIMEOUT,
            pings: 16,
        }
    }
}

/// What the connections of a server share.
struct ServerContext<'a, H> {
    handler: &'a H,
    limits: ServerLimits,
    /// Held while changes are made.
    changing: Mutex<()>,
}

/// Serves clients until `stop` is ready; then ends what is under way, after the changes among it, and
/// returns. The socket's file is gone afterwards.
pub async fn serve<H: Handler>(
    listener: Listener,
    limits: ServerLimits,
    handler: &H,
    stop: impl Future<Output = ()>,
) {
    let shared = ServerContext { handler, limits, changing: Mutex::new(()) };
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
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let count = connections.len();
                    let Some((stream, caller)) = admit(stream, &listener, count, &users, limits) else {
                        continue;
                    };
                    *users.entry(caller.uid).or_default() += 1;
                    let connection = Connection::new(stream, caller, &shared, closing.clone());
                    connections.push(connection.run());
                }
                Err(error) => {
                    warn!(%error, "control socket: cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
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
