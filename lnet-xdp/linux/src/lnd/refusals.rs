//! Hosts without a daemon, and hosts that are not there: kernels say so to programs that ask by a socket of
//! theirs.
//!
//! Frames that leave by rings are none of the kernel's, and the socket of an NI is to go on whatever the
//! kernel says of one of its peers. So each NI of a shard has a socket beside the carrier of its frames. The
//! shard asks the ports of peers that do not answer HELLOs ([`RefusalProbe`]). A host without a daemon
//! answers itself, by ICMP. For one that is no neighbour this host's kernel does, and where it has no route
//! it refuses to ask. A node leaves the empty datagram unanswered: its port is taken.
//!
//! Invariant: an answer ends messages that wait for the first session with a peer, and pings of one that was
//! met and is silent, and nothing else.

use std::time::Duration;

use lnet_core::lnd::{Cause, NiId, Uplink};
use lnet_core::time::Instant;
use lnet_io::reactor::udp::RefusalProbe;
use lnet_wire::Nid;
use rustix::io::Errno;

use super::{Port, XdpLnd};

/// How often the answers are looked at while hosts are asked.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long answers are looked at: hosts are asked again each second, while something waits for them.
const PATIENCE: Duration = Duration::from_secs(2);
/// Answers that are taken in at once.
const ANSWERS_MAX: usize = 64;

/// Hosts were asked, and may answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    look_at: Instant,
    until: Instant,
}

/// Makes the socket that asks for an NI. Where the kernel refuses it, peers without a daemon are silent.
pub(super) fn probe(port: &Port) -> Option<RefusalProbe> {
    let probe = RefusalProbe::new(port.udp_address().ip(), port.interface_index);
    probe.inspect_err(|error| tracing::debug!(%error, "peers without a daemon are not told apart")).ok()
}

impl XdpLnd {
    /// Asks the hosts of peers that have not answered. Ends what may be refused where there is no daemon, or
    /// no host.
    pub(super) fn follow_refusals(&mut self, now: Instant, up: &mut impl Uplink) {
        while let Some((ni, nid)) = self.xfer.poll_unanswered() {
            if self.asked.is_none() {
                // Answers to questions of long ago say nothing of now.
                while self.next_answer().is_some() {}
            }
            let Some(((port, probe), address)) = self.probe_of(ni).zip(nid.ip()) else { continue };
            match probe.ask(port.remote(address)) {
                Ok(()) => {
                    let look_at = self.asked.map_or(now + LOOK_INTERVAL, |asked| asked.look_at);
                    self.asked = Some(Asked { look_at, until: now + PATIENCE });
                }
                Err(errno) => self.refused(now, (ni, nid), errno, up),
            }
        }
        let Some(Asked { look_at, until }) = self.asked.filter(|asked| asked.look_at <= now) else { return };
        for _ in 0..ANSWERS_MAX {
            let Some((ni, nid, errno)) = self.next_answer() else { break };
            self.refused(now, (ni, nid), errno, up);
        }
        self.asked = (look_at < until).then_some(Asked { look_at: now + LOOK_INTERVAL, until });
    }

    /// When answers are looked at, if some may come.
    pub(super) fn refusal_timeout(&self) -> Option<Instant> {
        self.asked.map(|asked| asked.look_at)
    }

    /// Ends what may be refused of what goes to a peer, if this error says that no node is there.
    fn refused(&mut self, now: Instant, peer: (NiId, Nid), errno: Errno, up: &mut impl Uplink) {
        if matches!(errno, Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) {
            self.xfer.refused(now, peer, Cause::System(errno.raw_os_error() as u8), up);
        }
    }

    fn next_answer(&self) -> Option<(NiId, Nid, Errno)> {
        self.probes().find_map(|(port, probe)| {
            let (address, errno) = probe?.poll_answer()?;
            Some((port.ni, Nid::new_ip(port.nid.net(), address).ok()?, errno))
        })
    }

    fn probe_of(&self, ni: NiId) -> Option<(&Port, &RefusalProbe)> {
        let (port, probe) = self.probes().find(|(port, _)| port.ni == ni)?;
        Some((port, probe?))
    }

    fn probes(&self) -> impl Iterator<Item = (&Port, Option<&RefusalProbe>)> {
        let sockets = self.nis.sockets.iter().map(|open| (&open.port, open.refusals.as_ref()));
        sockets.chain(self.nis.ports.iter().map(|open| (&open.port, open.refusals.as_ref())))
    }
}
