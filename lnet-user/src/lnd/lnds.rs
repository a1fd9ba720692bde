//! The LNDs of one shard, seen as one.
//!
//! Invariants: a message goes to the LND of its interface; the names that the LNDs have for messages that
//! arrive do not overlap, so that each is resumed by the LND that has it: those of the rings come first, then
//! those of the sockets, then those of `lo`.

use lnet_core::lnd::{
    Full, Lent, Lnd, NiId, Path, PathReport, Prefetch, PrefetchHint, PrefetchHints, Progress, RxId, Status,
    TxId, Uplink, Verdict,
};
use lnet_core::time::Instant;
use lnet_wire::{Header, Nid};

use super::lo::LoLnd;
use super::port::Part;
use super::{AnyLnd, ShardPort};
use crate::capture::Tap;
use crate::memory::Memory;

/// A shard's LNDs.
pub(crate) struct Lnds {
    /// What carries messages to other nodes over rings, while there is an NI of that kind.
    rings: Option<AnyLnd>,
    /// The same over sockets.
    sockets: Option<AnyLnd>,
    pub(crate) lo: LoLnd,
    /// By number: which of them an NI has.
    routes: Vec<Route>,
    /// Messages that may arrive at once, by either of them.
    incoming_max: u32,
    /// What captures want of the rings and of the sockets, while there is no LND of that kind.
    taps: [Tap; 2],
}

/// Which LND an NI has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    None,
    Rings,
    Sockets,
}

impl Lnds {
    /// Networks that may have names for messages at once: so many times as many names there are.
    pub(crate) const NETWORKS: u32 = 2;

    /// Those of a shard that has no NI but `lo` yet. Either network has at most `incoming_max` messages that arrive.
    pub(crate) fn new(lo: LoLnd, incoming_max: u32) -> Self {
        Self { rings: None, sockets: None, lo, routes: Vec::new(), incoming_max, taps: Default::default() }
    }

    /// The LNDs that carry messages to other nodes.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &AnyLnd> {
        self.rings.iter().chain(&self.sockets)
    }

    fn networks_mut(&mut self) -> impl Iterator<Item = &mut AnyLnd> {
        self.rings.iter_mut().chain(&mut self.sockets)
    }

    /// Whether something has come from other nodes, as far as that can be seen at a glance.
    #[inline]
    pub(crate) fn has_arrivals(&mut self) -> bool {
        self.networks_mut().any(AnyLnd::sees_arrivals)
    }

    /// Whether something may have come that [`Lnds::has_arrivals`] does not see.
    #[inline]
    pub(crate) fn may_hide_arrivals(&self) -> bool {
        self.networks().any(|network| matches!(network, AnyLnd::Socket(_)))
    }

    /// Takes part in an NI from now on.
    pub(crate) fn add_port(&mut self, port: ShardPort) {
        let ni = port.ni();
        let ShardPort { lnd, part } = port;
        let [rings_tap, sockets_tap] = &mut self.taps;
        let (network, route, tap) = match &part {
            Part::Rings(_) => (&mut self.rings, Route::Rings, rings_tap),
            Part::Socket(_) => (&mut self.sockets, Route::Sockets, sockets_tap),
        };
        if let Some(mut lnd) = lnd {
            assert!(network.is_none(), "an LND came for a second time");
            *lnd.tap_mut() = std::mem::take(tap);
            *network = Some(lnd);
        }
        let place = usize::from(ni.0);
        if place >= self.routes.len() {
            self.routes.resize(place + 1, Route::None);
        }
        self.routes[place] = route;
        match (network, part) {
            (Some(AnyLnd::Xdp(lnd)), Part::Rings(part)) => lnd.add_port(part),
            (Some(AnyLnd::Socket(lnd)), Part::Socket(part)) => lnd.add_port(*part),
            _ => panic!("the first NI of a kind brings its LND"),
        }
    }

    /// Ends all that is under way by an NI, as far as it can go no other way; nothing begins any more.
    pub(crate) fn close_port(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink, memory: &Memory) {
        let first_rx = self.incoming_max;
        match self.route(ni) {
            Route::Rings => {
                if let Some(AnyLnd::Xdp(lnd)) = &mut self.rings {
                    lnd.close_port(now, ni, up, memory);
                }
            }
            Route::Sockets => {
                if let Some(AnyLnd::Socket(lnd)) = &mut self.sockets {
                    lnd.close_port(now, ni, &mut Renamed { up, first_rx }, memory);
                }
            }
            Route::None => {}
        }
    }

    /// Gives up an NI that was closed; with the last one of a kind its LND as well.
    ///
    /// # Panics
    /// If it has not closed one of this number.
    pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
        let route = self.route(ni);
        let [rings_tap, sockets_tap] = &mut self.taps;
        let (network, tap) = match route {
            Route::Rings => (&mut self.rings, rings_tap),
            Route::Sockets => (&mut self.sockets, sockets_tap),
            Route::None => panic!("there is no NI {}", ni.0),
        };
        self.routes[usize::from(ni.0)] = Route::None;
        let (part, is_empty) = match network {
            Some(AnyLnd::Xdp(lnd)) => (Part::Rings(lnd.remove_port(ni)), lnd.is_empty()),
            Some(AnyLnd::Socket(lnd)) => (Part::Socket(Box::new(lnd.remove_port(ni))), lnd.is_empty()),
            None => unreachable!("an NI has an LND"),
        };
        let mut lnd = network.take_if(|_| is_empty);
        if let Some(lnd) = &mut lnd {
            *tap = std::mem::take(lnd.tap_mut());
        }
        ShardPort { lnd, part }
    }

    /// Where frames are shown to captures, over rings and over sockets.
    pub(crate) fn taps_mut(&mut self) -> [&mut Tap; 2] {
        let [rings, sockets] = &mut self.taps;
        [
            self.rings.as_mut().map_or(rings, AnyLnd::tap_mut),
            self.sockets.as_mut().map_or(sockets, AnyLnd::tap_mut),
        ]
    }

    /// Steers by other policies from now on.
    pub(crate) fn set_policies(
        &mut self,
        policies: &[lnet_wire::steer::PolicyWord; lnet_wire::steer::PORTALS],
    ) {
        for network in self.networks_mut() {
            match network {
                AnyLnd::Xdp(lnd) => lnd.set_policies(policies),
                AnyLnd::Socket(lnd) => lnd.set_policies(policies),
            }
        }
    }

    /// Whether there is something to do that no watched descriptor would report.
    pub(crate) fn has_work(&mut self) -> bool {
        self.lo.has_work() || self.networks_mut().any(AnyLnd::has_work)
    }

    /// Whether the network is waited for in a way that wakes nobody.
    pub(crate) fn awaits_completions(&self) -> bool {
        self.networks().any(AnyLnd::awaits_completions)
    }

    #[inline]
    fn route(&self, ni: NiId) -> Route {
        self.routes.get(usize::from(ni.0)).copied().unwrap_or(Route::None)
    }
}

impl Lnd for Lnds {
    type Memory = Memory;

    #[inline]
    fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Memory) -> Result<(), Full<TxId>> {
        let ni = message.transmit.ni;
        let network = match self.route(ni) {
            Route::Rings => &mut self.rings,
            Route::Sockets => &mut self.sockets,
            Route::None => {
                assert!(ni == self.lo.ni(), "there is no NI {}", ni.0);
                return self.lo.submit(now, message, memory);
            }
        };
        match network {
            Some(network) => network.submit(now, message, memory),
            None => unreachable!("an NI has an LND"),
        }
    }

    #[inline]
    fn flush(&mut self, now: Instant, memory: &Memory) {
        for network in self.networks_mut() {
            network.flush(now, memory);
        }
    }

    #[inline]
    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut progress = self.lo.drive(now, budget, up, memory);
        let mut add = |Progress { received, completed }| {
            progress.received += received;
            progress.completed += completed;
        };
        if let Some(network) = &mut self.rings {
            add(network.drive(now, budget, up, memory));
        }
        if let Some(network) = &mut self.sockets {
            let mut up = Renamed { up, first_rx: self.incoming_max };
            add(network.drive(now, budget, &mut up, memory));
        }
        progress
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        let first_rx = self.incoming_max;
        if self.lo.has_named(rx) {
            self.lo.resume(now, rx, verdict, up);
        } else if let Some(own) = rx.0.checked_sub(first_rx) {
            let Some(network) = &mut self.sockets else { return };
            network.resume(now, RxId(own), verdict, &mut Renamed { up, first_rx });
        } else if let Some(network) = &mut self.rings {
            network.resume(now, rx, verdict, up);
        }
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        self.networks().filter_map(AnyLnd::poll_timeout).min()
    }
}

/// An uplink to which the names of messages that arrive begin elsewhere.
struct Renamed<'a, U> {
    up: &'a mut U,
    first_rx: u32,
}

impl<U: Uplink> PrefetchHints for Renamed<'_, U> {
    #[inline]
    fn wants_hints(&self) -> bool {
        self.up.wants_hints()
    }

    #[inline]
    fn hint(&mut self, arrivals: &[PrefetchHint], prefetch: Prefetch) {
        self.up.hint(arrivals, prefetch);
    }

    #[inline]
    fn expected_md(&self, distance: usize) -> Option<u32> {
        self.up.expected_md(distance)
    }
}

impl<U: Uplink> Uplink for Renamed<'_, U> {
    #[inline]
    fn header(&mut self, now: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        self.up.header(now, ni, from, RxId(rx.0 + self.first_rx), header)
    }

    #[inline]
    fn received(&mut self, now: Instant, rx: RxId, status: Status) {
        self.up.received(now, RxId(rx.0 + self.first_rx), status);
    }

    #[inline]
    fn sent(&mut self, now: Instant, tx: TxId, status: Status) {
        self.up.sent(now, tx, status);
    }

    #[inline]
    fn path_health(&mut self, now: Instant, path: &Path, report: PathReport) {
        self.up.path_health(now, path, report);
    }

    #[inline]
    fn reroute(&mut self, now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.up.reroute(now, silent, candidates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shard that matches nothing, and would like to be told of what comes.
    struct Eager {
        announced: usize,
        named: Option<RxId>,
    }

    impl PrefetchHints for Eager {
        fn wants_hints(&self) -> bool {
            true
        }

        fn hint(&mut self, arrivals: &[PrefetchHint], _: Prefetch) {
            self.announced += arrivals.len();
        }

        fn expected_md(&self, distance: usize) -> Option<u32> {
            Some(distance as u32 + 1)
        }
    }

    impl Uplink for Eager {
        fn header(&mut self, _: Instant, _: NiId, _: &Nid, rx: RxId, _: &Header) -> Verdict {
            self.named = Some(rx);
            Verdict::Drop
        }

        fn received(&mut self, _: Instant, rx: RxId, _: Status) {
            self.named = Some(rx);
        }

        fn sent(&mut self, _: Instant, _: TxId, _: Status) {}
    }

    #[test]
    fn names_begin_elsewhere_and_all_else_is_the_same() {
        let mut up = Eager { announced: 0, named: None };
        let mut renamed = Renamed { up: &mut up, first_rx: 100 };
        assert!(renamed.wants_hints());
        let source = lnet_wire::ProcessId { nid: lnet_wire::Nid::ANY, pid: 0 };
        renamed.hint(&[PrefetchHint { portal: 4, match_bits: 1, source }], |_| {});
        assert_eq!(renamed.expected_md(7), Some(8));
        renamed.received(Instant(0), RxId(3), Status::Ok);
        assert_eq!(renamed.up.named, Some(RxId(103)));
        let process = lnet_wire::ProcessId { nid: lnet_wire::Nid::ANY, pid: 1 };
        let body = lnet_wire::Body::Reply { md: lnet_wire::WireHandle::NONE };
        let header = Header { destination: process, source: process, payload_length: 0, body };
        assert_eq!(renamed.header(Instant(0), NiId(0), &process.nid, RxId(4), &header), Verdict::Drop);
        assert_eq!((up.announced, up.named), (1, Some(RxId(104))));
    }
}
