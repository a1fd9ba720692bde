//! How the console asks nodes.

use std::rc::Rc;

use lnet_model::Errno;
use lnet_user::api::LnetError;
use lnet_user::{Nid, ProcessId};
use lnet_wire::selftest::{Body, Message};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Terms;
use crate::exchange::{Bulk, Call, Exchange, ORDERS_MAX};
use crate::failure::CallError;

/// Nodes that a command asks at once; more wait.
pub(crate) const COMMANDS_MAX: usize = 64;
/// Nodes that are asked whether they are there, which do not wait behind the silent ones of a command: nodes
/// that hear nothing end the session.
const KEEPALIVES_MAX: usize = 64;
const _: () = assert!(COMMANDS_MAX + KEEPALIVES_MAX <= ORDERS_MAX);

/// Asks nodes, so many at once as there is room for.
pub(super) struct Asker {
    pub(super) exchange: Rc<Exchange>,
    commands: Semaphore,
    keepalives: Semaphore,
}

impl Asker {
    pub(super) fn new(exchange: Rc<Exchange>) -> Self {
        let [commands, keepalives] = [COMMANDS_MAX, KEEPALIVES_MAX].map(Semaphore::new);
        Self { exchange, commands, keepalives }
    }

    /// A request to the framework of a node, and the reply that says that it went well. A node has its time
    /// from when it is asked: those that do not answer take none of others'.
    pub(super) async fn call(
        &self,
        nid: Nid,
        Terms { features, patience, is_keepalive }: Terms,
        bulk: Bulk,
        body: impl FnOnce(u64, u64) -> Body,
    ) -> Result<Body, Errno> {
        let permits = if is_keepalive { &self.keepalives } else { &self.commands };
        let _permit = permits.acquire().await.map_err(|_| Errno::SHUTDOWN)?;
        let request = Call { to: ProcessId::lustre(nid), features, bulk };
        let called = timeout(patience, self.exchange.call(request, body)).await;
        let (Message { body, .. }, _) = match called {
            Err(_) | Ok(Err(CallError::Expired)) => return Err(Errno::TIMEDOUT),
            Ok(Err(CallError::Lnet(LnetError::NotSent { .. }))) => return Err(Errno::HOSTUNREACH),
            Ok(Err(error)) => {
                tracing::debug!(%nid, %error, "a selftest node has not answered");
                return Err(Errno::IO);
            }
            Ok(Ok(replied)) => replied,
        };
        match body.status() {
            Some(status) if status.0 == 0 => Ok(body),
            Some(status) => Err(Errno(u8::try_from(status.0).unwrap_or(Errno::IO.0))),
            None => Err(Errno::IO),
        }
    }
}
