//! What the runtime knows of an LND besides [`Lnd`]: ports that come, close and go, policies, what to wait
//! for, counters, captures.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Lnd, NiId, Uplink};
use lnet_core::time::Instant;
use lnet_model::ni::NiOptions;
use lnet_wire::Nid;
use lnet_wire::steer::{PORTALS, PolicyWord};

use crate::capture::Tap;
use crate::memory::Memory;

/// What a counter of an LND is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Frames that XDP had arrive at another shard than their key says, and that were handed over.
    Misdirected,
    /// Frames that arrived by interfaces that have gone, or whose last NI was closed, or that their rings had
    /// no room for.
    ArrivedByGone,
    /// Frames, by what became of them.
    Handled,
    /// What loss recovery has done and dropped.
    Recovery,
    /// Frames and messages that were dropped, by reason.
    Drops,
    /// Fate of connections, and of the bytes that they carried.
    Connections,
    /// The kernel's counters of rings.
    Rings,
    /// Frames of UDP sockets, which XDP does not see.
    Sockets,
}

/// One shard's part of an NI, as its LND has it.
pub trait Port {
    /// The NI.
    fn ni(&self) -> NiId;

    /// Descriptors to be watched while the shard sleeps.
    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// One shard's part of an NI of this LND, on its way to the shard or back.
pub struct Part<L: Driver> {
    /// The LND, with the first NI of its kind that the shard gets, and with the last that it gives back.
    pub lnd: Option<Box<L>>,
    /// The LND's port of the NI.
    pub port: Box<L::Port>,
}

impl<L: Driver> Part<L> {
    /// The parts of all shards, with their LNDs if these were made for this NI.
    #[must_use]
    pub fn of_shards(lnds: Vec<L>, ports: Vec<L::Port>) -> Vec<Self> {
        let mut lnds = lnds.into_iter().map(Box::new);
        ports.into_iter().map(|port| Self { lnd: lnds.next(), port: Box::new(port) }).collect()
    }
}

/// An LND whose NIs come and go.
pub trait Driver: Lnd<Memory = Memory> {
    /// One shard's part of an NI.
    type Port: Port;

    /// Messages that may arrive at once on a shard with these limits: names that it uses.
    fn names_max(limits: &Limits) -> u32;

    /// Names messages that arrive from here on. To be called before the first port comes.
    fn set_first_name(&mut self, first: u32);

    /// Takes part in an NI from now on, or takes in what has come to an NI that it has.
    fn add_port(&mut self, port: Self::Port);

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory);

    /// Gives up an NI, after it was closed.
    fn remove_port(&mut self, ni: NiId) -> Self::Port;

    /// Gives up what carries the frames of an NI, if it can do without for a while: the NI and its messages
    /// stay, and wait for the port that comes instead ([`Driver::add_port`]).
    fn suspend_port(&mut self, _ni: NiId) -> Option<Self::Port> {
        None
    }

    /// Whether it has no NI, closed ones included.
    fn is_empty(&self) -> bool;

    /// Steers by other policies from now on.
    fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]);

    /// How long a message may take from now on; the LND has one time for all its NIs.
    fn set_timeout(&mut self, now: Instant, timeout: Duration);

    /// Has an NI go by other options from now on, those that can be changed while it is open.
    fn change(&mut self, _ni: NiId, _options: &NiOptions) {}

    /// Ends the connections that come in the name of a NID from other addresses than its own. An LND that
    /// verifies addresses has none.
    fn end_from_elsewhere(&mut self, _now: Instant, _nid: &Nid, _up: &mut impl Uplink) {}

    /// Whether there is something to do that nothing watched would report.
    fn has_work(&mut self) -> bool;

    /// Prepares for a sleep of its driver: what has only been looked for is told by something watched from
    /// now on, or by [`Driver::has_work`].
    fn prepare_sleep(&mut self) {}

    /// Whether something has arrived, as far as that costs no more than a look at memory, or at a socket or
    /// two.
    fn has_arrivals(&mut self) -> bool;

    /// Whether something may have come that [`Driver::has_arrivals`] does not see.
    fn may_hide_arrivals(&self) -> bool {
        false
    }

    /// Whether it has what the kernel gives to the thread alone that drives: then another driver makes that
    /// anew.
    fn is_bound_to_driver(&self) -> bool {
        false
    }

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
