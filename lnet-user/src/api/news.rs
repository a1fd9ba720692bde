//! What shards have for the runner of their node that cannot wait for its next look: failures, and peers to
//! be found out about.

use tokio::sync::Notify;

use crate::runtime::Worker;

/// What the shards of a node have for its runner.
#[derive(Default, Debug)]
pub(super) struct News {
    /// A shard has noted a failure.
    pub(super) failures: Notify,
    /// A request has gone to a NID, or waits, whose peer is to be found out about.
    pub(super) wanted: Notify,
}

/// What a shard has told: it is told once.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    failures: bool,
    /// Peers to be found out about, of all times: others may come where some are polled.
    wanted_count: u64,
}

impl News {
    /// Tells what a shard has that it has not told.
    #[inline]
    pub(super) fn tell(&self, worker: &Worker, told: &mut Told) {
        let has = Told { failures: worker.has_failures(), wanted_count: worker.wanted_count() };
        if has.failures && !told.failures {
            self.failures.notify_one();
        }
        if has.wanted_count != told.wanted_count {
            self.wanted.notify_one();
        }
        *told = has;
    }
}
