//! LNet selftest: a node answers the requests of a console, which has nodes ping each other and exchange bulk
//! data, and counts what goes wrong.
//!
//! [`Selftest::start`] makes a node a test server and a test client, and gives it a [`Console`]. Nodes and
//! consoles may be kernel nodes.
//!
//! Invariants: one thread has all state; a request is answered once or not at all; the memory that requests
//! of others may occupy is bounded, and so is the part of it that one of them has; what a session has started
//! ends with it.
//!
//! Source: `lnet/selftest/{rpc,framework,ping_test,brw_test}.c`.

#![forbid(unsafe_code)]

mod bulk;
mod client;
mod console;
mod exchange;
mod failure;
mod server;
mod session;
mod source;
mod turns;

#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use console::Order;
use exchange::Exchange;
use lnet_model::records::{SelftestAnswer, SelftestRequest};
use lnet_model::{Errno, Refusal};
use lnet_user::Lnet;
use lnet_user::api::{Guest, LnetError};
use server::Server;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// Why a node takes part in no test.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum SelftestError {
    /// The node lacks what it takes.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// The thread or its runtime was not made.
    #[error("the selftest thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The console of a node.
#[derive(Clone, Debug)]
pub struct Console {
    orders: mpsc::UnboundedSender<Order>,
}

impl Console {
    /// Carries out a command, behind those that came before.
    ///
    /// # Errors
    /// [`Refusal`]: what was asked makes no sense now, or the node has ended. What became of it at other
    /// nodes is part of the answer.
    pub async fn run(&self, request: SelftestRequest) -> Result<SelftestAnswer, Refusal> {
        let (answer, answered) = oneshot::channel();
        let gone = || Refusal::new(Errno::SHUTDOWN, "the node takes part in tests no more");
        self.orders.send((request, answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// A node's part in tests, until it is dropped.
#[derive(Debug)]
pub struct Selftest {
    stop: Option<oneshot::Sender<()>>,
    console: Console,
    thread: Option<JoinHandle<()>>,
}

impl Selftest {
    /// Makes a node a server and a client of tests. Portals 50 to 52 are the tests' from then on.
    ///
    /// # Errors
    /// [`SelftestError`]: the kernel's refusal of a thread, or what the node has no room for.
    pub fn start(lnet: &Lnet) -> Result<Self, SelftestError> {
        let lnet = lnet.clone();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::sync_channel::<Result<(), SelftestError>>(1);
        let (orders, ordered) = mpsc::unbounded_channel();
        let run = move || {
            let (runtime, guest) = match runtime(&lnet) {
                Ok(made) => made,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let tasks = LocalSet::new();
            let all = tasks.run_until(async {
                let exchange = match Exchange::new(&lnet) {
                    Ok((exchange, events)) => {
                        tokio::task::spawn_local(exchange::dispatch(Rc::clone(&exchange), events));
                        exchange
                    }
                    Err(error) => return drop(tell.send(Err(error.into()))),
                };
                match Server::start(&exchange) {
                    Ok(server) => {
                        tokio::task::spawn_local(console::serve(Rc::clone(&exchange), ordered));
                        let _ = tell.send(Ok(()));
                        // Without a sender it is over as well.
                        let _ = stopped.await;
                        server.stop();
                    }
                    Err(error) => drop(tell.send(Err(error.into()))),
                }
            });
            match &guest {
                Some(guest) => runtime.block_on(guest.run(all)),
                None => runtime.block_on(all),
            }
        };
        let thread = std::thread::Builder::new().name("lnet-selftest".into()).spawn(run)?;
        let gone = || std::io::Error::other("it has ended before it began");
        told.recv().map_err(|_| SelftestError::Thread(gone()))??;
        Ok(Self { stop: Some(stop), console: Console { orders }, thread: Some(thread) })
    }

    /// Its console.
    #[must_use]
    pub fn console(&self) -> Console {
        self.console.clone()
    }
}

/// The runtime of a node's tasks: its thread drives the shard of a node that has no other.
fn runtime(lnet: &Lnet) -> Result<(Runtime, Option<Arc<Guest>>), SelftestError> {
    let mut builder = Builder::new_current_thread();
    builder.enable_time();
    let mut guest = None;
    if lnet.shard_count() == 1 {
        let made = Arc::new(Guest::new(&lnet.shard(0)?));
        builder.on_thread_park(made.parks());
        guest = Some(made);
    }
    Ok((builder.build()?, guest))
}

impl Drop for Selftest {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed there.
            let _ = thread.join();
        }
    }
}
