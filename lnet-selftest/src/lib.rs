//! LNet selftest: a node answers the requests of a console, which has nodes ping each other and exchange bulk data, and
//! counts what goes wrong.
//!
//! [`Selftest::start`] makes a node a test server and a test client. The console may be a kernel node's `lst`.
//!
//! Invariants: one thread has all state; a request is answered once or not at all; the memory that requests of others
//! may occupy is bounded; what a session has started ends with it.
//!
//! Source: `lnet/selftest/{rpc,framework,ping_test,brw_test}.c`.

#![forbid(unsafe_code)]

mod bulk;
mod client;
mod exchange;
mod server;
mod session;

use std::rc::Rc;
use std::thread::JoinHandle;

use lnet_user::Lnet;
use lnet_user::api::LnetError;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use exchange::Exchange;
use server::Server;

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

/// A node's part in tests, until it is dropped.
#[derive(Debug)]
pub struct Selftest {
    stop: Option<oneshot::Sender<()>>,
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
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error.into()))),
            };
            LocalSet::new().block_on(&runtime, async {
                let exchange = match Exchange::new(&lnet) {
                    Ok((exchange, events)) => {
                        tokio::task::spawn_local(exchange::dispatch(Rc::clone(&exchange), events));
                        exchange
                    }
                    Err(error) => return drop(tell.send(Err(error.into()))),
                };
                match Server::start(&exchange) {
                    Ok(server) => {
                        let _ = tell.send(Ok(()));
                        // Without a sender it is over as well.
                        let _ = stopped.await;
                        server.stop();
                    }
                    Err(error) => drop(tell.send(Err(error.into()))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("lnet-selftest".into()).spawn(run)?;
        let gone = || std::io::Error::other("it has ended before it began");
        told.recv().map_err(|_| SelftestError::Thread(gone()))??;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
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
