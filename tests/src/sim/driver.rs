//! The driver of a lane: that of the LND whose NIs its node has. A closed choice, as in the runtime.

use lnet_core::lnd::{Cause, NiId, RxId, Transmit, Verdict};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_xdp_proto::{XferConfig, XferNi};

use super::datagrams::{Arrival, Datagrams};
use super::report::Counts;
use super::sock::{SockConfig, SockDriver};
use super::uplink::Up;

/// What the drivers of a node's lanes are made from.
#[derive(Clone)]
pub(super) enum DriverConfig {
    Xdp(Box<XferConfig>),
    Tcp(Box<SockConfig>),
}

/// Needs of an NI that opens.
pub(super) struct Fresh {
    pub(super) config: DriverConfig,
    /// The longest datagrams, by rail.
    pub(super) datagram_max_bytes: [u32; 2],
    /// Whether the node's NIs want checksums.
    pub(super) checksum: bool,
}

/// The driver of a lane.
pub(super) enum LaneDriver {
    Xdp(Box<Datagrams>),
    Tcp(Box<SockDriver>),
}

impl LaneDriver {
    /// The driver of the xdp LND, if it is that.
    pub(super) fn datagrams(&mut self) -> Option<&mut Datagrams> {
        match self {
            Self::Xdp(driver) => Some(driver),
            Self::Tcp(_) => None,
        }
    }

    /// The driver of the tcp LND, if it is that.
    pub(super) fn sock(&mut self) -> Option<&mut SockDriver> {
        match self {
            Self::Xdp(_) => None,
            Self::Tcp(driver) => Some(driver),
        }
    }

    /// A frame has arrived for the shard.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        self.datagrams().expect("frames go to lanes of the xdp LND").arrived.push_back(arrival);
    }

    /// Works off timers and what has arrived.
    pub(super) fn receive(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.receive(now, up),
            Self::Tcp(driver) => driver.receive(now, up),
        }
    }

    /// Goes on with a message that was delayed.
    pub(super) fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.resume(now, rx, verdict, up),
            Self::Tcp(driver) => driver.resume(now, rx, verdict, up),
        }
    }

    /// More of a message that goes on while it arrives is there, or the rest does not come.
    pub(super) fn follow(&mut self, now: Instant, transmit: &Transmit, comes: bool, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.follow(now, transmit, comes, up),
            Self::Tcp(_) => unreachable!("a stream takes no parts of messages"),
        }
    }

    /// Goes on with what messages that were resumed have held up.
    pub(super) fn settle(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.replay(now, up),
            Self::Tcp(driver) => driver.settle(now, up),
        }
    }

    /// Takes a message; `false` if there is no room for it.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        transmit: &Transmit,
        more: bool,
        up: &mut Up<'_, '_>,
    ) -> bool {
        match self {
            Self::Xdp(driver) => driver.submit(now, transmit, more, up),
            Self::Tcp(driver) => driver.submit(now, transmit, up),
        }
    }

    /// Sends what there is to be sent.
    pub(super) fn transmit(&mut self, now: Instant, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.transmit(now, up),
            Self::Tcp(driver) => driver.transmit(now, up),
        }
    }

    /// Gives up a device. A tcp LND has none.
    pub(super) fn fail_interface(&mut self, now: Instant, ni: NiId, cause: Cause, up: &mut Up<'_, '_>) {
        if let Self::Xdp(driver) = self {
            driver.fail_interface(now, ni, cause, up);
        }
    }

    pub(super) fn has_interface(&self, ni: NiId) -> bool {
        match self {
            Self::Xdp(driver) => driver.xfer.nid_of(ni).is_some(),
            Self::Tcp(driver) => driver.has_interface(ni),
        }
    }

    pub(super) fn add_interface(&mut self, ni: NiId, nid: Nid, fresh: &Fresh, up: &mut Up<'_, '_>) {
        match (self, &fresh.config) {
            (Self::Xdp(driver), DriverConfig::Xdp(config)) => {
                let datagram_max_bytes = fresh.datagram_max_bytes[usize::from(ni.0)];
                let xfer_ni = XferNi { nid, datagram_max_bytes, checksum: fresh.checksum, runs: false };
                driver.add_interface(ni, xfer_ni, config, up);
            }
            (Self::Tcp(driver), DriverConfig::Tcp(config)) => driver.add_interface(ni, nid, config),
            _ => unreachable!("all NIs of a node are of one LND"),
        }
    }

    pub(super) fn remove_interface(&mut self, now: Instant, ni: NiId, up: &mut Up<'_, '_>) {
        match self {
            Self::Xdp(driver) => driver.remove_interface(now, ni, up),
            Self::Tcp(driver) => driver.remove_interface(now, ni, up),
        }
    }

    /// Whether the next turn has something to do at once; `has_frames`: frames can be sent.
    pub(super) fn has_work(&self, has_frames: bool) -> bool {
        match self {
            Self::Xdp(driver) => driver.has_work(has_frames),
            Self::Tcp(driver) => driver.has_work(),
        }
    }

    /// When the next turn is to be, if nothing arrives.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Xdp(driver) => driver.xfer.poll_timeout(),
            Self::Tcp(driver) => driver.sock.poll_timeout(),
        }
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        match self {
            Self::Xdp(driver) => driver.is_at_rest(),
            Self::Tcp(driver) => driver.is_at_rest(),
        }
    }

    /// Adds what was counted.
    pub(super) fn count(&self, counts: &mut Counts) {
        match self {
            Self::Xdp(driver) => counts.add_xfer(driver.xfer.counters()),
            Self::Tcp(driver) => counts.add_socklnd(driver.sock.counters()),
        }
    }

    /// What is left, for a message.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Xdp(driver) => format!("{:?}", driver.xfer.usage()),
            Self::Tcp(driver) => driver.describe(),
        }
    }
}
