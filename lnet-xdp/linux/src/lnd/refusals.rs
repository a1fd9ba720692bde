//! Hosts without a daemon: their kernels say so, by ICMP, to programs that ask by a socket of the kernel's.
//!
//! Frames that leave by rings are none of the kernel's, and a socket that speaks with many peers is not told
//! which of them an error is about. So each NI of a shard has a socket beside the carrier of its frames. The
//! shard asks the ports of peers that do not answer HELLOs, one after the other ([`RefusalProbe`]). A node
//! leaves the empty datagram unanswered: its port is taken.
//!
//! Invariant: an answer ends messages that wait for the first session with a peer, and nothing else.

use std::time::Duration;

use lnet_core::lnd::{Cause, NiId, Uplink};
use lnet_core::time::Instant;
use lnet_io::uring::udp::RefusalProbe;
use lnet_wire::Nid;
use rustix::io::Errno;

use super::{Port, XdpLnd};

/// How long a host has to answer before the next one is asked.
const TURN: Duration = Duration::from_millis(100);

/// A host that was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    ni: NiId,
    nid: Nid,
    until: Instant,
}

/// Makes the socket that asks for an NI. Where the kernel refuses it, peers without a daemon are silent.
pub(super) fn probe(port: &Port) -> Option<RefusalProbe> {
    let probe = RefusalProbe::new(port.udp_address(), port.interface_index);
    probe.inspect_err(|error| tracing::debug!(%error, "peers without a daemon are not told apart")).ok()
}

impl XdpLnd {
    /// Asks the hosts of peers that have not answered, and ends what waits for those that have no daemon.
    pub(super) fn follow_refusals(&mut self, now: Instant, up: &mut impl Uplink) {
        if let Some(Asked { ni, nid, until }) = self.asked {
            if self.probe_of(ni).is_some_and(|(_, probe)| probe.is_refused()) {
                let cause = Cause::System(Errno::CONNREFUSED.raw_os_error() as u8);
                self.xfer.refused(now, (ni, nid), cause, up);
                self.asked = None;
            } else if now >= until {
                self.asked = None;
            }
        }
        while self.asked.is_none()
            && let Some((ni, nid)) = self.xfer.poll_unanswered()
        {
            let Some(((port, probe), address)) = self.probe_of(ni).zip(nid.ip()) else { continue };
            // Without a route there is no answer either.
            let is_asked = probe.ask(port.remote(address)).is_ok();
            self.asked = is_asked.then_some(Asked { ni, nid, until: now + TURN });
        }
    }

    /// When the next host is asked, if one has yet to answer.
    pub(super) fn refusal_timeout(&self) -> Option<Instant> {
        self.asked.map(|asked| asked.until)
    }

    fn probe_of(&self, ni: NiId) -> Option<(&Port, &RefusalProbe)> {
        let sockets = self.nis.sockets.iter().map(|open| (&open.port, &open.refusals));
        let rings = self.nis.ports.iter().map(|open| (&open.port, &open.refusals));
        let (port, probe) = sockets.chain(rings).find(|(port, _)| port.ni == ni)?;
        Some((port, probe.as_ref()?))
    }
}
