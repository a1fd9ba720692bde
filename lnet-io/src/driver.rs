//! What the runtime knows of an LND besides [`Lnd`]: ports that come, close and go, policies, what to wait
//! for, counters, captures.

use std::time::Duration;

use lnet_core::lnd::{Lnd, NiId, Uplink};
use lnet_core::time::Instant;
use lnet_wire::steer::{PORTALS, PolicyWord};

use crate::capture::Tap;
use crate::memory::Memory;

/// What a counter of an LND is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Frames that arrived at another shard than their key says, and were handed over.
    Misdirected,
    /// Frames, by what became of them.
    Handled,
    /// What loss recovery has done and dropped.
    Recovery,
    /// Frames and messages that were dropped, by reason.
    Drops,
    /// What became of connections.
    Connections,
    /// The kernel's counters of rings.
    Rings,
}

/// An LND whose NIs come and go.
pub trait Driver: Lnd<Memory = Memory> {
    /// One shard's part of an NI.
    type Port;

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

    /// How long a message may take from now on; the LND has one time for all its NIs.
    fn set_timeout(&mut self, now: Instant, timeout: Duration);

    /// Whether there is something to do that nothing watched would report.
    fn has_work(&mut self) -> bool;

    /// Whether something has arrived, as far as that costs no more than a look at memory.
    fn has_arrivals(&mut self) -> bool;

    /// Whether completions are waited for that wake no thread.
    fn awaits_completions(&self) -> bool;

    /// Tells what it has counted: what about, a name, and how many.
    ///
    /// # Errors
    /// The kernel's refusal to tell its counters.
    fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()>;

    /// Where its frames are shown to captures, if it has any.
    fn tap_mut(&mut self) -> Option<&mut Tap> {
        None
    }
}
