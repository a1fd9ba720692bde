//! Handlers and callbacks, which are called with the events of a transfer machine and its buffers.

use std::fmt;
use std::sync::Arc;

use super::TransferMachine;
use crate::event::{BufferEvent, TmEvent};

/// A handler of a transfer machine, which is called with its events. It runs on a thread of the transport,
/// without any lock of the layer: it may call what it likes, but for what waits for the transfer machine to
/// be quiet.
pub trait Handler: Send + Sync {
    /// Something happened to the transfer machine.
    fn tm_event(&self, tm: &TransferMachine, event: &TmEvent) {
        let _ = (tm, event);
    }

    /// Something happened to a buffer that was added without a callback of its own. By default the buffer is
    /// dropped.
    fn buffer_event(&self, tm: &TransferMachine, event: BufferEvent) {
        let _ = (tm, event);
    }
}

type Called = dyn Fn(&TransferMachine, BufferEvent) + Send + Sync;

/// A callback with the events of one buffer.
#[derive(Clone)]
pub struct Callback(Arc<Called>);

impl Callback {
    /// A callback that runs on a thread of the transport, or on that which delivers
    /// ([`TransferMachine::deliver_all`]).
    pub fn new(callback: impl Fn(&TransferMachine, BufferEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn call(&self, tm: &TransferMachine, event: BufferEvent) {
        (self.0)(tm, event);
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}
