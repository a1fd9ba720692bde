//! The node's view of its nets: an immutable snapshot that all shards share.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use lnet_wire::steer::{PORTALS, Policy, PolicyWord};
use lnet_wire::{Net, Nid};

use crate::lnd::NiId;
use crate::tunables::Tunables;

/// A local network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalNi {
    /// Its NID.
    pub nid: Nid,
    /// The net it is on.
    pub net: Net,
    /// Messages that it may have in flight, over all shards.
    pub credits: u32,
    /// Messages that it may have in flight to one peer interface, over all shards; what exceeds `credits`
    /// counts as `credits`.
    pub peer_credits: u32,
    /// How long a message may wait for its credits.
    pub message_timeout: Duration,
}

/// Where headers belong, among the shards of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    /// Shards of the node.
    pub shard_count: u8,
    /// The policy of each portal.
    pub policies: [PolicyWord; PORTALS],
}

/// The local interfaces, in order of configuration (their [`NiId`]s are their positions), the node's
/// tunables, and where headers belong.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Topology {
    interfaces: Vec<LocalNi>,
    loopback: Option<NiId>,
    tunables: Tunables,
    steering: Option<Steering>,
    /// Portals whose messages are no shard's in particular, a bit each.
    open: u64,
}

/// No local interface leads to the destination (`-EHOSTUNREACH`), or not the one asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreachable;

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no local interface leads to the destination")
    }
}

impl core::error::Error for Unreachable {}

impl LocalNi {
    /// The interface by which a node reaches itself (LNet's `lo`, `lo.c`), NID `0@lo`. Its credits never run
    /// out: a message that leaves nothing waits for none.
    #[must_use]
    pub const fn loopback(message_timeout: Duration) -> Self {
        Self { nid: Nid::LO, net: Net::LO, credits: u32::MAX, peer_credits: u32::MAX, message_timeout }
    }
}

impl Topology {
    /// A snapshot of these interfaces, with the default tunables. If one of them is
    /// [`LocalNi::loopback`], what is for any of them goes by that one.
    #[must_use]
    pub fn new(interfaces: Vec<LocalNi>) -> Self {
        let loopback = interfaces.iter().position(|ni| ni.nid.is_loopback());
        let loopback = loopback.map(|position| NiId(position as u16));
        Self { interfaces, loopback, tunables: Tunables::DEFAULT, steering: None, open: 0 }
    }

    /// The same with these tunables.
    #[must_use]
    pub fn with_tunables(self, tunables: Tunables) -> Self {
        Self { tunables, ..self }
    }

    /// The same with shards that hand headers to each other ([`crate::shard::mesh`]). Without, each shard
    /// takes what its LNDs bring for its own.
    #[must_use]
    pub fn with_steering(self, steering: Steering) -> Self {
        let portals = |policy: Policy| {
            let policies = steering.policies.iter().enumerate();
            policies.fold(0, |bits, (portal, word)| bits | u64::from(word.unpack() == Some(policy)) << portal)
        };
        let open = portals(Policy::Rotor) | portals(Policy::Initiator);
        Self { steering: Some(steering), open, ..self }
    }

    /// Where headers belong, if shards hand them to each other.
    #[must_use]
    pub const fn steering(&self) -> Option<&Steering> {
        self.steering.as_ref()
    }

    /// Whether the messages of a portal below [`PORTALS`] are no shard's in particular, as far as their headers
    /// tell: `Rotor` goes by the message's id, `Initiator` by the primary NID of a node that may have others.
    pub(crate) const fn is_open(&self, portal: u32) -> bool {
        self.open >> portal & 1 != 0
    }

    /// The node's tunables.
    #[must_use]
    pub const fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// The local interfaces; [`NiId`] n is at position n.
    #[must_use]
    pub fn interfaces(&self) -> &[LocalNi] {
        &self.interfaces
    }

    /// Whether a NID is that of a local interface.
    #[must_use]
    pub fn is_local(&self, nid: &Nid) -> bool {
        self.interfaces.iter().any(|ni| ni.nid == *nid)
    }

    /// The loopback interface, if there is one and `destination` is this node.
    pub(crate) fn loopback_to(&self, destination: &Nid) -> Option<NiId> {
        self.loopback.filter(|_| self.is_local(destination))
    }

    /// The interface whose NID a message to `destination` comes from, and which it leaves by unless that is
    /// this node ([`LocalNi::loopback`]): with `self_nid` exactly the interface with that NID, else the first
    /// one on the destination's net. To `0@lo` everything comes from there (LNet `lib-move.c:
    /// lnet_handle_lo_send`).
    ///
    /// # Errors
    /// [`Unreachable`] when that interface does not exist or is on another net.
    pub fn select(&self, destination: &Nid, self_nid: Option<&Nid>) -> Result<NiId, Unreachable> {
        let net = destination.net();
        self.interfaces
            .iter()
            .position(|ni| {
                ni.net == net && (ni.nid.is_loopback() || self_nid.is_none_or(|nid| ni.nid == *nid))
            })
            .map(|position| NiId(position as u16))
            .ok_or(Unreachable)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::testing::nid;

    fn interface(nid: Nid) -> LocalNi {
        LocalNi { nid, net: nid.net(), credits: 8, peer_credits: 4, message_timeout: Duration::from_secs(50) }
    }

    #[test]
    fn selection_follows_the_net_and_the_self_nid() {
        let topology =
            Topology::new(vec![interface(nid(1, 10)), interface(nid(2, 10)), interface(nid(1, 11))]);
        assert_eq!(topology.select(&nid(1, 99), None), Ok(NiId(0)));
        assert_eq!(topology.select(&nid(2, 99), None), Ok(NiId(1)));
        assert_eq!(topology.select(&nid(1, 99), Some(&nid(1, 11))), Ok(NiId(2)));
        assert_eq!(topology.select(&nid(2, 99), Some(&nid(1, 11))), Err(Unreachable), "another net");
        assert_eq!(topology.select(&nid(1, 99), Some(&nid(1, 12))), Err(Unreachable), "no such interface");
        assert_eq!(topology.select(&nid(3, 99), None), Err(Unreachable));
        assert_eq!(topology.select(&Nid::LO, None), Err(Unreachable), "no such interface either");
        assert_eq!(topology.loopback_to(&nid(1, 10)), None);
    }

    #[test]
    fn what_is_for_this_node_goes_by_the_loopback_interface() {
        let loopback = LocalNi::loopback(Duration::from_secs(50));
        let topology = Topology::new(vec![interface(nid(1, 10)), interface(nid(1, 11)), loopback]);
        let lo = Some(NiId(2));
        assert_eq!(topology.select(&Nid::LO, None), Ok(NiId(2)));
        assert_eq!(topology.select(&Nid::LO, Some(&nid(1, 10))), Ok(NiId(2)), "whoever is to send it");
        assert_eq!(topology.select(&nid(1, 11), None), Ok(NiId(0)), "the NID that it comes from");
        assert_eq!(topology.select(&nid(1, 10), Some(&nid(1, 11))), Ok(NiId(1)));
        assert_eq!([Nid::LO, nid(1, 10), nid(1, 11)].map(|nid| topology.loopback_to(&nid)), [lo; 3]);
        assert_eq!(topology.loopback_to(&nid(1, 12)), None);
    }
}
