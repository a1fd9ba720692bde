//! Hosts without a daemon: their kernels say so, by ICMP, to programs that ask by a socket of the kernel's.
//!
//! Frames that leave by rings are none of the kernel's, and a socket that speaks with many peers is not told
//! which of them an error is about. So each NI of a shard has a socket beside the carrier of its frames. It
//! asks the port of a peer whose first HELLO was not answered in time ([`RefusalProbe`]). A node leaves the
//! empty datagram unanswered: its port is taken.
//!
//! Invariant: an answer ends messages that wait for the first session with a peer, and nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use lnet_core::lnd::{Cause, Uplink};
use lnet_core::time::Instant;
use lnet_io::uring::udp::RefusalProbe;
use lnet_wire::Nid;
use rustix::io::Errno;

use super::{Port, XdpLnd};

/// How long a peer has the socket to itself.
const TURN: Duration = Duration::from_millis(100);
/// How long an answer may take before the port is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks peers of an NI, one after the other.
#[derive(Debug)]
pub(super) struct AbsenceProbe {
    /// None where the kernel has refused the socket: peers without a daemon are silent then.
    probe: Option<RefusalProbe>,
    /// The peer that was asked last, and when.
    asked: Option<(Nid, Instant)>,
}

impl AbsenceProbe {
    pub(super) fn new(port: &Port) -> Self {
        let probe = RefusalProbe::new(port.udp_address(), port.interface_index);
        let probe =
            probe.inspect_err(|error| tracing::debug!(%error, "peers without a daemon are not told apart"));
        Self { probe: probe.ok(), asked: None }
    }

    /// A peer has not answered in time: whether its host has said that no program has the port.
    fn is_refused(&mut self, now: Instant, nid: Nid, at: SocketAddr) -> bool {
        let Some(probe) = &self.probe else { return false };
        match self.asked {
            Some((asked, _)) if asked == nid && probe.is_refused() => {
                self.asked = None;
                return true;
            }
            Some((asked, since)) if now < since + if asked == nid { PATIENCE } else { TURN } => return false,
            _ => {}
        }
        // Without a route there is no answer either.
        self.asked = probe.ask(at).is_ok().then_some((nid, now));
        false
    }
}

impl XdpLnd {
    /// Asks the hosts of peers that have not answered, and ends what waits for those that have no daemon.
    pub(super) fn follow_refusals(&mut self, now: Instant, up: &mut impl Uplink) {
        while let Some((ni, nid)) = self.xfer.poll_unanswered() {
            let sockets = self.nis.sockets.iter_mut().map(|open| (&open.port, &mut open.refusals));
            let rings = self.nis.ports.iter_mut().map(|open| (&open.port, &mut open.refusals));
            let Some((port, refusals)) = sockets.chain(rings).find(|(port, _)| port.ni == ni) else {
                continue;
            };
            let Some(at) = nid.ip().map(|address| port.remote(address)) else { continue };
            if refusals.is_refused(now, nid, at) {
                let cause = Cause::System(Errno::CONNREFUSED.raw_os_error() as u8);
                self.xfer.refused(now, (ni, nid), cause, up);
            }
        }
    }
}
