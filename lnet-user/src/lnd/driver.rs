//! What the runtime knows of an LND besides [`Lnd`]: ports that come, close and go, policies, what to wait for,
//! captures.

use std::os::fd::BorrowedFd;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Lnd, NiId, RxId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::steer::{PORTALS, PolicyWord};

use crate::capture::Tap;
use crate::memory::Memory;

/// An LND whose NIs come and go.
pub(crate) trait Driver: Lnd<Memory = Memory> {
    /// One shard's part of an NI.
    type Port;

    /// Messages that may arrive at once on a shard with these limits: names that the LND needs for them.
    fn names_max(limits: &Limits) -> u32;

    /// Names messages that arrive from here on. Called once, before the first port comes.
    fn set_first_name(&mut self, first: u32);

    /// The NI of a port.
    fn ni_of(port: &Self::Port) -> NiId;

    /// What is to be watched while the shard sleeps, from when it gets this port: until it gives up the port that has
    /// it by then.
    fn watched(_port: &Self::Port) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Takes part in an NI from now on.
    fn add_port(&mut self, port: Self::Port);

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory);

    /// Gives up an NI, after it was closed.
    fn remove_port(&mut self, ni: NiId) -> Self::Port;

    /// Whether it has no NI, closed ones included.
    fn is_empty(&self) -> bool;

    /// Steers by other policies from now on.
    fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]);

    /// Whether there is something to do that nothing watched would report.
    fn has_work(&mut self) -> bool;

    /// Whether something has arrived, as far as that costs no more than a look at memory.
    fn has_arrivals(&mut self) -> bool;

    /// Whether something may have come that [`Driver::has_arrivals`] does not see.
    fn may_hide_arrivals(&self) -> bool {
        false
    }

    /// Whether completions are waited for that wake no thread.
    fn awaits_completions(&self) -> bool {
        false
    }

    /// Where its frames are shown to captures, if it has frames.
    fn tap_mut(&mut self) -> Option<&mut Tap> {
        None
    }
}

/// Names of messages that arrive, of one LND.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Names {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Names {
    /// Whether a message has one of them.
    #[inline]
    pub(crate) fn have(self, rx: RxId) -> bool {
        rx.0.wrapping_sub(self.first) < self.count
    }
}
