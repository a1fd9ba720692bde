//! The end of a node: a thread of it that panics ends the node as a whole, and all who wait are told why.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lnet_core::handle::ShardId;
use thiserror::Error;
use tokio::sync::Notify;

/// How long a panic may take from the first thing that it drops until it is noted.
const MOMENT_MS: u32 = 100;

/// Why a node has ended: which of its threads panicked first, and what it said.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct Ended(Arc<str>);

/// End of a node, which its threads have in common: whether it has come, and why.
#[derive(Default, Debug)]
pub struct Fate {
    cause: OnceLock<Ended>,
    told: Notify,
}

impl Fate {
    /// Notes that a shard has panicked; the first cause stays.
    pub(super) fn end_by_shard(&self, shard: ShardId, panic: &(dyn Any + Send)) -> Ended {
        self.end(&format!("shard {} has panicked: {}", shard.0, said(panic)))
    }

    /// Notes a cause; the first one stays, and is returned.
    pub(crate) fn end(&self, cause: &str) -> Ended {
        let ended = self.cause.get_or_init(|| Ended(cause.into())).clone();
        self.told.notify_one();
        ended
    }

    /// Why the node has ended; `None` while it has not.
    #[must_use]
    pub fn cause(&self) -> Option<Ended> {
        self.cause.get().cloned()
    }

    /// Why what a caller has relied on is gone. An answer is dropped while a panic unwinds, a moment before
    /// the panic is noted: that moment is waited for.
    #[must_use]
    pub fn why(&self) -> Ended {
        for _ in 0..MOMENT_MS {
            if let Some(cause) = self.cause() {
                return cause;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cause().unwrap_or_else(|| Ended("its last handle is gone".into()))
    }

    /// Ready when the node has ended, for one task.
    pub(crate) async fn ended(&self) -> Ended {
        loop {
            if let Some(cause) = self.cause() {
                return cause;
            }
            self.told.notified().await;
        }
    }
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(said), _) => said,
        (_, Some(said)) => said,
        _ => "it did not say why",
    }
}
