//! The LNDs that there are: the registry. A node has a kind of each ([`Kinds`]), a shard has drivers of those
//! whose NIs it has ([`Lnds`]), and all that depends on which LNDs there are comes from the one list below.
//!
//! Invariants: a message goes to the LND of its NI, by a closed choice and no virtual call; the names that
//! the LNDs have for messages that arrive do not overlap, so that each is resumed by the LND that has it.
//!
//! The tcp LND has one name for each connection that there may be, as each has one message that arrives:
//! nothing is shared that slow or hostile peers could use up. Memory behind names is touched when they are
//! first used, so that many cost nothing.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::{self, Instant};
use lnet_io::capture::Tap;
use lnet_io::driver::{Counted, Driver, Part, Port as _};
use lnet_io::kind::{Host, LndKind, NiRequest, OpenNi};
use lnet_io::memory::Memory;
use lnet_model::lnd::nets_of_lnds;
use lnet_model::ni::NiOptions;
use lnet_tcp::{TcpKind, TcpNiError};
use lnet_tcp_proto::SockTunables;
use lnet_wire::Nid;
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_xdp::{Programs, XdpConfig, XdpError, XdpKind};
use thiserror::Error;

use super::in_process::{InProcessKind, NidInUse};
use super::lo::LoKind;
use super::registry::{DriverOf, lnds};

// The order is that of the names for messages that arrive. The xdp LND names its own from 0 on; those of tcp
// are the last ones, since they are many: memory for names that were never used is not touched.
lnds! {
    /// Over `AF_XDP` rings and UDP sockets.
    Xdp xdp: XdpKind, XdpError = |config: &KindConfig<'_>| {
        let KindConfig { xdp, timeout, queues_max, programs, .. } = config;
        XdpKind::new((*xdp).clone(), *timeout, *queues_max, Arc::clone(programs))
    };
    /// Over queues in memory, between nodes of one process.
    InProcess in_process: InProcessKind, NidInUse = |config: &KindConfig<'_>| InProcessKind::new(config.timeout);
    /// Between buffers, to the node itself.
    Lo lo: LoKind, Infallible = |_| LoKind;
    /// Over TCP streams.
    Tcp tcp: TcpKind, TcpNiError = |config: &KindConfig<'_>| TcpKind::new(config.sock);
}

/// The part of a node's configuration that its LNDs need.
pub(crate) struct KindConfig<'a> {
    pub(crate) xdp: &'a XdpConfig,
    pub(crate) sock: SockTunables,
    /// How long a message may be under way by LNDs that are not tcp.
    pub(crate) timeout: Duration,
    /// Receive queues of NIs over rings, and NIs over sockets, that there may be at once.
    pub(crate) queues_max: u32,
    /// The XDP programs of the node.
    pub(crate) programs: &'a Arc<Programs>,
}

impl std::fmt::Debug for ShardPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardPort").field("ni", &self.ni()).finish_non_exhaustive()
    }
}

impl OpenLnd {
    /// Whether it has rings that are found to be deaf.
    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self, Self::Xdp(open) if open.is_deaf())
    }
}

impl Kinds {
    /// Takes deaf rings back, with the parts of the shards that had them.
    pub(crate) fn give_up_rings(&mut self, host: &Host, given_up: Vec<(OpenLnd, Vec<ShardPort>)>) {
        let rings = given_up.into_iter().filter_map(|(open, parts)| match open {
            OpenLnd::Xdp(open) => {
                let parts = parts.into_iter().filter_map(|part| match part {
                    ShardPort::Xdp(part) => Some(part),
                    _ => None,
                });
                Some((open, parts.collect()))
            }
            _ => None,
        });
        self.xdp.give_up_rings(host, rings.collect());
    }

    /// Opens an NI anew whose rings were deaf, by what comes next.
    pub(crate) fn open_instead(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
    ) -> Result<(OpenLnd, Vec<ShardPort>), LndError> {
        let (open, parts) = self.xdp.open_instead(host, request).map_err(LndError::Xdp)?;
        Ok((OpenLnd::Xdp(open), parts.into_iter().map(ShardPort::Xdp).collect()))
    }
}

impl Lnds {
    /// Messages that may arrive at once by all LNDs of a shard with these limits.
    pub(crate) fn names_max(limits: &Limits) -> u32 {
        Names::of(limits).1
    }

    #[inline]
    fn route(&self, ni: NiId) -> Route {
        self.routes.get(usize::from(ni.0)).copied().unwrap_or(Route::None)
    }

    /// Whether an NI is the node's way to itself.
    pub(crate) fn is_lo(&self, ni: NiId) -> bool {
        self.route(ni) == Route::Lo
    }
}

/// Adds the port of a part to the shard's LND, or to that which comes with it, which names messages from
/// `first_name` on.
fn join<L: Driver>(part: Part<L>, lnd: &mut Option<Box<L>>, first_name: u32, tap: &mut Tap) {
    if let Some(mut fresh) = part.lnd {
        fresh.set_first_name(first_name);
        if let Some(own) = fresh.tap_mut() {
            *own = std::mem::take(tap);
        }
        assert!(lnd.is_none(), "an LND came for a second time");
        *lnd = Some(fresh);
    }
    lnd.as_mut().expect("the first NI of a kind brings its LND").add_port(*part.port);
}

/// Takes the port of an NI off its LND, and with the last one that itself.
fn detach<L: Driver>(lnd: &mut Option<Box<L>>, ni: NiId, tap: &mut Tap) -> Part<L> {
    let port = lnd.as_mut().expect("an NI has an LND").remove_port(ni);
    let mut lnd = lnd.take_if(|lnd| lnd.is_empty());
    if let Some(own) = lnd.as_mut().and_then(|lnd| lnd.tap_mut()) {
        *tap = std::mem::take(own);
    }
    Part { lnd, port: Box::new(port) }
}
