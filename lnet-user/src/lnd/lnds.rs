//! The LNDs of one shard, seen as one. Which there are stands in `registry!`, and nowhere else.
//!
//! Invariants: a message goes to the LND of its interface; the names that the LNDs have for messages that arrive do
//! not overlap, so that each is resumed by the LND that has it: they have them in the order of the registry, and
//! `lo` has the last ones.

use std::os::fd::BorrowedFd;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_wire::steer::{PORTALS, PolicyWord};

use super::driver::{Driver, Names};
use super::in_process::InProcessLnd;
use super::lo::LoLnd;
use super::xdp::XdpLnd;
use crate::capture::Tap;
use crate::memory::Memory;

/// Makes what depends on which LNDs there are, besides `lo`.
macro_rules! registry {
    ($($(#[$doc:meta])* $kind:ident, $field:ident: $lnd:ty;)*) => {
        /// What carries an NI, as one shard gets it: the port of its LND.
        pub(crate) enum LndPort {
            $($(#[$doc])* $kind(Box<<$lnd as Driver>::Port>),)*
        }

        /// An LND that comes with its first port and goes with its last.
        pub(crate) enum AnyLnd {
            $($(#[$doc])* $kind(Box<$lnd>),)*
        }

        /// A shard's LNDs.
        pub(crate) struct Lnds {
            pub(crate) lo: LoLnd,
            $($(#[$doc])* pub(crate) $field: Option<Box<$lnd>>,)*
            /// By number: which of them an NI has.
            routes: Vec<Route>,
            names: AllNames,
            /// What captures want while there is no LND that has frames.
            tap: Tap,
        }

        /// Which LND an NI has.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Route {
            None,
            $($kind,)*
        }

        #[derive(Clone, Copy, Debug)]
        struct AllNames {
            $($field: Names,)*
            lo: Names,
        }

        impl AllNames {
            fn new(limits: &Limits) -> Self {
                let mut first = 0;
                let mut next = |count| {
                    let names = Names { first, count };
                    first = u32::saturating_add(first, count);
                    names
                };
                Self { $($field: next(<$lnd>::names_max(limits)),)* lo: next(LoLnd::names_max(limits)) }
            }
        }

        impl LndPort {
            fn ni(&self) -> NiId {
                match self {
                    $(Self::$kind(port) => <$lnd>::ni_of(port),)*
                }
            }

            fn watched(&self) -> Vec<BorrowedFd<'_>> {
                match self {
                    $(Self::$kind(port) => <$lnd>::watched(port),)*
                }
            }
        }

        impl Lnds {
            /// Those of a shard with these limits that has no NI but `lo` yet, which is `lo_ni`.
            pub(crate) fn new(lo_ni: NiId, limits: &Limits) -> Self {
                let names = AllNames::new(limits);
                let lo = LoLnd::new(lo_ni, names.lo.first, limits);
                Self { lo, $($field: None,)* routes: Vec::new(), names, tap: Tap::default() }
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
                match port.lnd {
                    None => {}
                    $(Some(AnyLnd::$kind(mut lnd)) => {
                        assert!(self.$field.is_none(), "an LND came for a second time");
                        lnd.set_first_name(self.names.$field.first);
                        if let Some(tap) = lnd.tap_mut() {
                            *tap = std::mem::take(&mut self.tap);
                        }
                        self.$field = Some(lnd);
                    })*
                }
                match port.port {
                    $(LndPort::$kind(port) => {
                        self.routes[index] = Route::$kind;
                        self.$field.as_mut().expect("the first NI of a kind brings its LND").add_port(*port);
                    })*
                }
            }

            /// Gives up an NI that was closed; with the last one of a kind its LND as well.
            ///
            /// # Panics
            /// If it has not closed one of this number.
            pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
                match self.route(ni) {
                    Route::None => panic!("there is no NI {}", ni.0),
                    $(Route::$kind => {
                        let lnd = self.$field.as_mut().expect("an NI has an LND");
                        let port = LndPort::$kind(Box::new(lnd.remove_port(ni)));
                        self.routes[usize::from(ni.0)] = Route::None;
                        let mut lnd = self.$field.take_if(|lnd| lnd.is_empty());
                        if let Some(tap) = lnd.as_mut().and_then(|lnd| lnd.tap_mut()) {
                            self.tap = std::mem::take(tap);
                        }
                        ShardPort { lnd: lnd.map(AnyLnd::$kind), port }
                    })*
                }
            }

            /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
            pub(crate) fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
                match self.route(ni) {
                    Route::None => {}
                    $(Route::$kind => {
                        if let Some(lnd) = &mut self.$field {
                            lnd.close_port(now, ni, up, memory);
                        }
                    })*
                }
            }

            /// Where frames are shown to captures.
            pub(crate) fn tap_mut(&mut self) -> &mut Tap {
                $(if let Some(tap) = self.$field.as_mut().and_then(|lnd| lnd.tap_mut()) {
                    return tap;
                })*
                &mut self.tap
            }

            /// Steers by other policies from now on.
            pub(crate) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.set_policies(policies);
                })*
            }

            /// Whether there is something to do that nothing watched would report.
            pub(crate) fn has_work(&mut self) -> bool {
                self.lo.has_work() $(|| self.$field.as_mut().is_some_and(|lnd| lnd.has_work()))*
            }

            /// Whether something has come from other nodes, as far as that costs no more than a look at memory.
            #[inline]
            pub(crate) fn has_arrivals(&mut self) -> bool {
                false $(|| self.$field.as_mut().is_some_and(|lnd| lnd.has_arrivals()))*
            }

            /// Whether something may have come that [`Lnds::has_arrivals`] does not see.
            #[inline]
            pub(crate) fn may_hide_arrivals(&self) -> bool {
                false $(|| self.$field.as_ref().is_some_and(|lnd| lnd.may_hide_arrivals()))*
            }

            /// Whether completions are waited for that wake no thread.
            pub(crate) fn awaits_completions(&self) -> bool {
                false $(|| self.$field.as_ref().is_some_and(|lnd| lnd.awaits_completions()))*
            }
        }

        impl Lnd for Lnds {
            type Memory = Memory;

            #[inline]
            fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
                let ni = message.transmit.ni;
                match self.route(ni) {
                    $(Route::$kind => match &mut self.$field {
                        Some(lnd) => lnd.submit(now, message, memory),
                        None => unreachable!("an NI has an LND"),
                    },)*
                    Route::None => {
                        assert!(ni == self.lo.ni(), "there is no NI {}", ni.0);
                        self.lo.submit(now, message, memory)
                    }
                }
            }

            #[inline]
            fn flush(&mut self, now: Instant, memory: &Memory) {
                $(if let Some(lnd) = &mut self.$field {
                    lnd.flush(now, memory);
                })*
            }

            #[inline]
            fn drive(
                &mut self,
                now: Instant,
                budget: u32,
                up: &mut impl Uplink,
                memory: &mut Memory,
            ) -> Progress {
                let mut progress = self.lo.drive(now, budget, up, memory);
                $(if let Some(lnd) = &mut self.$field {
                    let Progress { received, completed } = lnd.drive(now, budget, up, memory);
                    progress.received += received;
                    progress.completed += completed;
                })*
                progress
            }

            fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
                if self.names.lo.have(rx) {
                    return self.lo.resume(now, rx, verdict, up);
                }
                $(if self.names.$field.have(rx) && let Some(lnd) = &mut self.$field {
                    lnd.resume(now, rx, verdict, up);
                })*
            }

            #[inline]
            fn poll_timeout(&self) -> Option<Instant> {
                time::earliest([$(self.$field.as_ref().and_then(|lnd| lnd.poll_timeout()),)*])
            }
        }
    };
}

registry! {
    /// Over `AF_XDP` rings and UDP sockets.
    Xdp, xdp: XdpLnd;
    /// Over queues in memory, between nodes of one process.
    InProcess, in_process: InProcessLnd;
}

/// One shard's part of an NI. It is made by [`NodeDriver::open_ni`](crate::node::NodeDriver::open_ni), works while a
/// [`Worker`](crate::runtime::Worker) has it, and goes back to [`NodeDriver::close_ni`](crate::node::NodeDriver::close_ni),
/// whether a worker had it or not.
pub(crate) struct ShardPort {
    /// The LND, with the first NI of its kind that the shard gets, and with the last that it gives back.
    pub(crate) lnd: Option<AnyLnd>,
    pub(crate) port: LndPort,
}

impl ShardPort {
    /// The NI.
    #[must_use]
    pub(crate) fn ni(&self) -> NiId {
        self.port.ni()
    }

    /// What is to be watched while the shard sleeps ([`Driver::watched`]).
    pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
        self.port.watched()
    }
}

impl std::fmt::Debug for ShardPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardPort").field("ni", &self.ni()).finish_non_exhaustive()
    }
}

impl Lnds {
    /// Messages that may arrive at once by all LNDs of a shard with these limits.
    pub(crate) fn names_max(limits: &Limits) -> u32 {
        let last = AllNames::new(limits).lo;
        last.first.saturating_add(last.count)
    }

    #[inline]
    fn route(&self, ni: NiId) -> Route {
        self.routes.get(usize::from(ni.0)).copied().unwrap_or(Route::None)
    }
}
