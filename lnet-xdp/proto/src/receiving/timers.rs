//! Acknowledgements that have waited for long enough, and streams and messages that nothing has come for of
//! late.

use core::time::Duration;

use lnet_core::collections::List;
use lnet_core::lnd::{Cause, Uplink};
use lnet_core::time::Instant;

use super::arrivals::ArrivalStage;
use super::stream::Busy;
use super::{ReceiveContext, ReceivingSide};
use crate::local::SWEEP_INTERVAL;
use crate::sessions::Sessions;

/// A receiver remembers a sender for so long at least, so that no token outlives what is remembered.
const MEMORY_MIN: Duration = Duration::from_secs(10);

impl ReceivingSide {
    /// Makes acknowledgements due that have waited for long enough. When the next one is.
    pub(crate) fn follow_streams(&mut self, sessions: &mut Sessions) -> Option<Instant> {
        let now = sessions.local.now;
        while let Some(at) = self.ack_timers.pop_due(now) {
            match self.streams[at].ack_at {
                Some(when) if when <= now => self.ack_within(at, Duration::ZERO, sessions),
                Some(when) => self.ack_timers.set(at, when),
                None => {}
            }
        }
        self.ack_timers.first()
    }

    /// Whether nothing has come from a shard of a peer within the message timeout.
    pub(crate) fn is_silent(&self, now: Instant, from: (u32, u8), patience: Duration) -> bool {
        self.stream_from(from).is_none_or(|stream| now - self.streams[stream].seen_at > patience)
    }

    /// Looks for streams and messages that were not touched for long.
    pub(crate) fn sweep(&mut self, call: &mut ReceiveContext<'_, impl Uplink>) {
        let now = call.now();
        let patience = call.sessions.local.patience_max;
        let mut next = self.busy.first();
        while let Some(at) = List::<Busy>::step(&self.streams, &mut next) {
            let stream = &self.streams[at];
            let is_settled = stream.ack_at.is_none() && !stream.acks.is_linked();
            if now - stream.seen_at > SWEEP_INTERVAL && is_settled {
                self.busy.remove(&mut self.streams, at);
                self.busy_count -= 1;
            }
        }
        let memory = (patience * 2).max(MEMORY_MIN);
        while let Some(stream) = self.streams.get(self.recent.first())
            && now - stream.seen_at > memory
        {
            self.end_stream(self.recent.first(), Cause::Timeout, call);
        }
        if self.arrivals.used_count() == 0 {
            return;
        }
        for slot in 0..self.arrivals.capacity() {
            let Some(arriving) = self.arrivals.get(slot) else { continue };
            if arriving.is_overdue(now, patience) {
                self.give_up(slot, Cause::Timeout, call);
            } else if arriving.pull_owed {
                self.pull(slot, call);
            } else if arriving.phase == ArrivalStage::Dismissed {
                self.dismiss(slot, call);
            }
        }
    }
}
