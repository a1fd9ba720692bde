//! The LNDs of one shard, seen as one.
//!
//! Invariants: a message goes to the LND of its interface; the names that the LNDs have for messages that
//! arrive do not overlap, so that each is resumed by the LND that has it: `xdp` has the first ones, `lo` the
//! last.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_io::capture::Tap;
use lnet_io::driver::{Counted, Driver};
use lnet_io::memory::Memory;
use lnet_wire::steer::{PORTALS, PolicyWord};

use super::in_process::InProcessLnd;
use super::lo::LoLnd;
use super::tcp::TcpLnd;
use super::xdp::XdpLnd;

/// One shard's part of an NI. It is made by [`NodeDriver::open_ni`](crate::node::NodeDriver::open_ni), works
/// while a [`Worker`](crate::runtime::Worker) has it, and goes back to
/// [`NodeDriver::close_ni`](crate::node::NodeDriver::close_ni), whether a worker had it or not.
pub(crate) enum ShardPort {
    /// Over `AF_XDP` rings and UDP sockets.
    Xdp(Part<XdpLnd>),
    /// Over TCP streams.
    Tcp(Part<TcpLnd>),
    /// Over queues in memory, between nodes of one process.
    InProcess(Part<InProcessLnd>),
}

/// One shard's part of an NI of this LND.
pub(crate) struct Part<L: Driver> {
    /// The LND, with the first NI of its kind that the shard gets, and with the last that it gives back.
    pub(crate) lnd: Option<Box<L>>,
    pub(crate) port: Box<L::Port>,
}

impl<L: Driver> Part<L> {
    /// The parts of all shards, with their LNDs if these were made for this NI.
    pub(crate) fn of_shards(lnds: Vec<L>, ports: Vec<L::Port>) -> impl Iterator<Item = Self> {
        let mut lnds = lnds.into_iter().map(Box::new);
        ports.into_iter().map(move |port| Self { lnd: lnds.next(), port: Box::new(port) })
    }

    /// Adds the port to the shard's LND, or to that which comes with it.
    fn join(self, lnd: &mut Option<Box<L>>, tap: &mut Tap) {
        if let Some(mut fresh) = self.lnd {
            if let Some(own) = fresh.tap_mut() {
                *own = std::mem::take(tap);
            }
            assert!(lnd.is_none(), "an LND came for a second time");
            *lnd = Some(fresh);
        }
        lnd.as_mut().expect("the first NI of a kind brings its LND").add_port(*self.port);
    }

    /// Takes the port of an NI off its LND, and with the last one that itself.
    fn detach(lnd: &mut Option<Box<L>>, ni: NiId, tap: &mut Tap) -> Self {
        let port = lnd.as_mut().expect("an NI has an LND").remove_port(ni);
        let mut lnd = lnd.take_if(|lnd| lnd.is_empty());
        if let Some(own) = lnd.as_mut().and_then(|lnd| lnd.tap_mut()) {
            *tap = std::mem::take(own);
        }
        Self { lnd, port: Box::new(port) }
    }
}

impl ShardPort {
    /// The NI.
    #[must_use]
    pub(crate) fn ni(&self) -> NiId {
        match self {
            Self::Xdp(part) => part.port.ni(),
            Self::Tcp(part) => part.port.ni(),
            Self::InProcess(part) => part.port.ni(),
        }
    }

    /// What is to be watched while the shard sleeps, from when it gets this port: until it gives up the port
    /// that has it by then.
    pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Xdp(part) => part.port.watched(),
            Self::Tcp(part) => part.port.watched(),
            Self::InProcess(_) => Vec::new(),
        }
    }
}

impl std::fmt::Debug for ShardPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardPort").field("ni", &self.ni()).finish_non_exhaustive()
    }
}

/// A shard's LNDs: each but `lo` comes with its first port and goes with its last.
pub(crate) struct Lnds {
    pub(crate) lo: LoLnd,
    pub(crate) xdp: Option<Box<XdpLnd>>,
    pub(crate) tcp: Option<Box<TcpLnd>>,
    pub(crate) in_process: Option<Box<InProcessLnd>>,
    /// By number: which of them an NI has.
    routes: Vec<Route>,
    first_names: FirstNames,
    /// What captures want while there is no LND that has frames.
    tap: Tap,
}

/// Which LND an NI has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    None,
    Xdp,
    Tcp,
    InProcess,
}

/// The first names that LNDs have for messages that arrive; `xdp` names them from 0 on. Those of `tcp` are
/// the last ones, since they are many: memory for names that were never used is not touched.
#[derive(Clone, Copy, Debug)]
struct FirstNames {
    in_process: u32,
    lo: u32,
    tcp: u32,
}

impl FirstNames {
    fn new(limits: &Limits) -> Self {
        let in_process = limits.incoming;
        let lo = in_process.saturating_add(InProcessLnd::names_max(limits));
        Self { in_process, lo, tcp: lo.saturating_add(LoLnd::names_max(limits)) }
    }
}

impl Lnds {
    /// Those of a shard with these limits that has no NI but `lo` yet, which is `lo_ni`.
    pub(crate) fn new(lo_ni: NiId, limits: &Limits) -> Self {
        let first_names = FirstNames::new(limits);
        let lo = LoLnd::new(lo_ni, first_names.lo, limits);
        Self {
            lo,
            xdp: None,
            tcp: None,
            in_process: None,
            routes: Vec::new(),
            first_names,
            tap: Tap::default(),
        }
    }

    /// Messages that may arrive at once by all LNDs of a shard with these limits.
    pub(crate) fn names_max(limits: &Limits) -> u32 {
        FirstNames::new(limits).tcp.saturating_add(TcpLnd::NAMES_MAX)
    }

    #[inline]
    fn route(&self, ni: NiId) -> Route {
        self.routes.get(usize::from(ni.0)).copied().unwrap_or(Route::None)
    }

    /// Takes part in an NI from now on.
    ///
    /// # Panics
    /// If its LND did not come with it, nor before; or came for a second time.
    pub(crate) fn add_port(&mut self, port: ShardPort) {
        let index = usize::from(port.ni().0);
        if index >= self.routes.len() {
            self.routes.resize(index + 1, Route::None);
        }
        self.routes[index] = match port {
            ShardPort::Xdp(part) => {
                part.join(&mut self.xdp, &mut self.tap);
                Route::Xdp
            }
            ShardPort::Tcp(mut part) => {
                if let Some(lnd) = &mut part.lnd {
                    lnd.set_first_name(self.first_names.tcp);
                }
                part.join(&mut self.tcp, &mut self.tap);
                Route::Tcp
            }
            ShardPort::InProcess(mut part) => {
                if let Some(lnd) = &mut part.lnd {
                    lnd.set_first_name(self.first_names.in_process);
                }
                part.join(&mut self.in_process, &mut self.tap);
                Route::InProcess
            }
        };
    }

    /// Gives up an NI that was closed; with the last one of a kind its LND as well.
    ///
    /// # Panics
    /// If it has not closed one of this number.
    pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
        let port = match self.route(ni) {
            Route::None => panic!("there is no NI {}", ni.0),
            Route::Xdp => ShardPort::Xdp(Part::detach(&mut self.xdp, ni, &mut self.tap)),
            Route::Tcp => ShardPort::Tcp(Part::detach(&mut self.tcp, ni, &mut self.tap)),
            Route::InProcess => ShardPort::InProcess(Part::detach(&mut self.in_process, ni, &mut self.tap)),
        };
        self.routes[usize::from(ni.0)] = Route::None;
        port
    }

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    pub(crate) fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
        if let Some(lnd) = &mut self.xdp {
            lnd.close_port(now, ni, up, memory);
        }
        if let Some(lnd) = &mut self.tcp {
            lnd.close_port(now, ni, up, memory);
        }
        if let Some(lnd) = &mut self.in_process {
            lnd.close_port(now, ni, up, memory);
        }
    }

    /// Where frames are shown to captures.
    pub(crate) fn tap_mut(&mut self) -> &mut Tap {
        let xdp = self.xdp.as_mut().and_then(|lnd| lnd.tap_mut());
        let in_process = self.in_process.as_mut().and_then(|lnd| lnd.tap_mut());
        xdp.or(in_process).unwrap_or(&mut self.tap)
    }

    /// Tells what all of them have counted.
    ///
    /// # Errors
    /// As [`Driver::count`].
    pub(crate) fn count(&self, tell: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        self.xdp.as_ref().map_or(Ok(()), |lnd| lnd.count(tell))?;
        self.tcp.as_ref().map_or(Ok(()), |lnd| lnd.count(tell))?;
        self.in_process.as_ref().map_or(Ok(()), |lnd| lnd.count(tell))
    }

    /// Steers by other policies from now on.
    pub(crate) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
        if let Some(lnd) = &mut self.xdp {
            lnd.set_policies(policies);
        }
        if let Some(lnd) = &mut self.in_process {
            lnd.set_policies(policies);
        }
    }

    /// How long a message may take from now on, of the LND of this NI: all its NIs have the same.
    pub(crate) fn set_timeout(&mut self, now: Instant, ni: NiId, timeout: Duration) {
        match (self.route(ni), &mut self.xdp, &mut self.tcp, &mut self.in_process) {
            (Route::Xdp, Some(lnd), ..) => lnd.set_timeout(now, timeout),
            (Route::Tcp, _, Some(lnd), _) => lnd.set_timeout(now, timeout),
            (Route::InProcess, .., Some(lnd)) => lnd.set_timeout(now, timeout),
            _ => {}
        }
    }

    /// Whether there is something to do that nothing watched would report.
    pub(crate) fn has_work(&mut self) -> bool {
        self.lo.has_work()
            || self.xdp.as_mut().is_some_and(|lnd| lnd.has_work())
            || self.tcp.as_mut().is_some_and(|lnd| lnd.has_work())
            || self.in_process.as_mut().is_some_and(|lnd| lnd.has_work())
    }

    /// Whether something has come from other nodes, as far as that costs no more than a look at memory.
    #[inline]
    pub(crate) fn has_arrivals(&mut self) -> bool {
        self.xdp.as_mut().is_some_and(|lnd| lnd.has_arrivals())
            || self.tcp.as_mut().is_some_and(|lnd| lnd.has_arrivals())
            || self.in_process.as_mut().is_some_and(|lnd| lnd.has_arrivals())
    }

    /// Whether something may have come that [`Lnds::has_arrivals`] does not see.
    #[inline]
    pub(crate) fn may_hide_arrivals(&self) -> bool {
        self.xdp.as_ref().is_some_and(|lnd| lnd.may_hide_arrivals())
    }

    /// Whether completions are waited for that wake no thread.
    pub(crate) fn awaits_completions(&self) -> bool {
        self.xdp.as_ref().is_some_and(|lnd| lnd.awaits_completions())
            || self.tcp.as_ref().is_some_and(|lnd| lnd.awaits_completions())
            || self.in_process.as_ref().is_some_and(|lnd| lnd.awaits_completions())
    }
}

impl Lnd for Lnds {
    type Memory = Memory;

    #[inline]
    fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
        let ni = message.transmit.ni;
        match (self.route(ni), &mut self.xdp, &mut self.tcp, &mut self.in_process) {
            (Route::Xdp, Some(lnd), ..) => lnd.submit(now, message, memory),
            (Route::Tcp, _, Some(lnd), _) => lnd.submit(now, message, memory),
            (Route::InProcess, .., Some(lnd)) => lnd.submit(now, message, memory),
            _ => {
                assert!(ni == self.lo.ni(), "there is no NI {}", ni.0);
                self.lo.submit(now, message, memory)
            }
        }
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        // Those in memory do not wait.
        if let Some(lnd) = &mut self.xdp {
            lnd.flush(now, memory);
        }
        if let Some(lnd) = &mut self.tcp {
            lnd.flush(now, memory);
        }
    }

    #[inline]
    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = self.lo.drive(now, budget, up, memory);
        let mut add = |Progress { received, completed }| {
            progress.received += received;
            progress.completed += completed;
        };
        if let Some(lnd) = &mut self.xdp {
            add(lnd.drive(now, budget, up, memory));
        }
        if let Some(lnd) = &mut self.tcp {
            add(lnd.drive(now, budget, up, memory));
        }
        if let Some(lnd) = &mut self.in_process {
            add(lnd.drive(now, budget, up, memory));
        }
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        if rx.0 >= self.first_names.tcp {
            if let Some(lnd) = &mut self.tcp {
                lnd.resume(now, rx, verdict, up);
            }
        } else if rx.0 >= self.first_names.lo {
            self.lo.resume(now, rx, verdict, up);
        } else if rx.0 >= self.first_names.in_process {
            if let Some(lnd) = &mut self.in_process {
                lnd.resume(now, rx, verdict, up);
            }
        } else if let Some(lnd) = &mut self.xdp {
            lnd.resume(now, rx, verdict, up);
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        let xdp = self.xdp.as_ref().and_then(|lnd| lnd.poll_timeout());
        let tcp = self.tcp.as_ref().and_then(|lnd| lnd.poll_timeout());
        let in_process = self.in_process.as_ref().and_then(|lnd| lnd.poll_timeout());
        time::earliest([xdp, tcp, in_process])
    }
}
