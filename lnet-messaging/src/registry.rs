//! The transports of the process, by name.

use std::sync::{Arc, LazyLock, PoisonError};

use lnet_user::locks::{Mutex, MutexGuard};

use crate::errno::{Errno, Error};
use crate::mem::MemTransport;
use crate::rpc::RpcTransport;
use crate::transport::Transport;

/// The transports of a process, in the order in which they were registered.
#[derive(Default)]
pub struct Registry {
    transports: Mutex<Transports>,
}

#[derive(Default)]
struct Transports {
    list: Vec<Arc<dyn Transport>>,
    default: Option<String>,
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { transports: Mutex::new(Transports { list: Vec::new(), default: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, Transports> {
        self.transports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a transport.
    ///
    /// # Errors
    /// `EBUSY` where one of its name is registered.
    pub fn register(&self, transport: Arc<dyn Transport>) -> Result<(), Error> {
        let mut transports = self.lock();
        if transports.position(transport.name()).is_some() {
            let found = format!("a transport `{}` is registered already", transport.name());
            return Err(Error::new(Errno::Busy, found));
        }
        transports.list.push(transport);
        Ok(())
    }

    /// Removes a transport. Its domains go on. Where it was the default there is none any more.
    ///
    /// # Errors
    /// `ENOENT` where none of the name is registered.
    pub fn deregister(&self, name: &str) -> Result<Arc<dyn Transport>, Error> {
        let mut transports = self.lock();
        let position = transports.position(name).ok_or_else(|| unknown(name))?;
        transports.default.take_if(|default| default == name);
        Ok(transports.list.remove(position))
    }

    /// The transport of this name.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<Arc<dyn Transport>> {
        let transports = self.lock();
        transports.position(name).map(|position| Arc::clone(&transports.list[position]))
    }

    /// Whether there is one of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.lock().position(name).is_some()
    }

    /// Names of all transports.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().list.iter().map(|transport| transport.name().to_owned()).collect()
    }

    /// Makes one the default.
    ///
    /// # Errors
    /// `ENOENT` where none of the name is registered.
    pub fn set_default(&self, name: &str) -> Result<(), Error> {
        let mut transports = self.lock();
        transports.position(name).ok_or_else(|| unknown(name))?;
        transports.default = Some(name.to_owned());
        Ok(())
    }

    /// The default, if one was set.
    #[must_use]
    pub fn default_transport(&self) -> Option<Arc<dyn Transport>> {
        let name = self.lock().default.clone()?;
        self.lookup(&name)
    }
}

impl Transports {
    fn position(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|transport| transport.name() == name)
    }
}

fn unknown(name: &str) -> Error {
    Error::new(Errno::NotFound, format!("no transport `{name}` is registered"))
}

/// The registry of the process. It has `mem` and `rpc` from the beginning; `lnet` is over a node, so that the
/// program registers it.
#[must_use]
pub fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
        let list = vec![MemTransport::default().shared(), RpcTransport::default().shared()];
        Registry { transports: Mutex::new(Transports { list, default: None }) }
    });
    &REGISTRY
}
