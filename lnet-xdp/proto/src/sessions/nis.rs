//! The NIs of this node, as one shard sees them.

use lnet_core::collections::NONE;
use lnet_core::lnd::{NiId, Path, Uplink};
use lnet_wire::Nid;
use lnet_wire::frame::{Certificate, Handshake};

use super::Sessions;
use super::paths::Session;
use crate::config::XferNi;
use crate::contract::{Address, PATH_CANDIDATES_MAX, SMALL_BYTES_MAX};
use crate::identity::Identity;

/// The NI of addresses that nothing leads to any more; no driver has it.
pub(crate) const NOWHERE: NiId = NiId(u16::MAX);

/// The longest datagram by an NI that is gone: it is not sent.
const NOWHERE_BYTES: u32 = 1024;

/// Payload of the shortest message that may leave in a run: smaller ones are under way sooner alone.
const RUN_MIN_BYTES: u32 = SMALL_BYTES_MAX + 1;

/// What a HELLO by it would carry.
const NOT_SENT: Certificate = Certificate { key: [0; 32], signature: [0; 64] };

/// A local NI, as this shard sees it.
#[derive(Clone, Debug)]
pub(crate) struct OwnNi {
    ni: XferNi,
    /// What shows that this node lives there.
    certificate: Certificate,
    /// Payload of the shortest message whose frames leave in runs, where the peer takes them.
    run_min_bytes: u32,
}

impl OwnNi {
    pub(crate) fn new(ni: XferNi, identity: &Identity) -> Self {
        Self { ni, certificate: identity.certify(&ni.nid), run_min_bytes: RUN_MIN_BYTES }
    }
}

impl Sessions {
    /// Has a further NI, which was not there before.
    pub(crate) fn add_ni(&mut self, number: NiId, ni: XferNi) {
        let index = usize::from(number.0);
        if index >= self.nis.len() {
            self.nis.resize(index + 1, None);
        }
        let former = self.nis[index].replace(OwnNi::new(ni, &self.identity));
        assert!(former.is_none(), "there is an NI {} already", number.0);
    }

    /// Changes the longest UDP payload that an NI can send and take, if there is such an NI.
    pub(crate) fn set_datagram_max(&mut self, ni: NiId, bytes: u32) {
        if let Some(Some(own)) = self.nis.get_mut(usize::from(ni.0)) {
            own.ni.datagram_max_bytes = bytes;
            self.paths.end_changed(ni);
        }
    }

    /// Changes which messages leave in runs, if there is such an NI.
    pub(crate) fn set_run_min(&mut self, ni: NiId, bytes: u32) {
        if let Some(Some(own)) = self.nis.get_mut(usize::from(ni.0)) {
            own.run_min_bytes = bytes.max(RUN_MIN_BYTES);
        }
    }

    /// Changes whether what comes to an NI may come in runs, if there is such an NI: frames under tokens that
    /// say otherwise are refused.
    pub(crate) fn set_runs(&mut self, ni: NiId, runs: bool) {
        if let Some(Some(own)) = self.nis.get_mut(usize::from(ni.0)) {
            own.ni.runs = runs;
        }
    }

    /// Payload of the shortest message whose frames leave in runs by an NI, where the peer takes them.
    #[inline]
    pub(crate) fn run_min_bytes(&self, ni: NiId) -> u32 {
        self.own_ni(ni).map_or(RUN_MIN_BYTES, |own| own.run_min_bytes)
    }

    /// What a HELLO or WELCOME tells of this node that is sent by `ni`.
    pub(crate) fn handshake(&self, ni: NiId) -> Handshake {
        Handshake {
            shards: self.shards,
            checksum: self.wants_checksum(ni),
            runs: self.takes_runs(ni),
            datagram_max_bytes: self.own_datagram_max(ni),
            policies: self.policies,
            certificate: self.own_ni(ni).map_or(NOT_SENT, |own| own.certificate),
        }
    }

    /// The NID of an NI that there is.
    #[inline]
    #[must_use]
    pub(crate) fn nid_of(&self, ni: NiId) -> Option<&Nid> {
        self.own_ni(ni).map(|own| &own.ni.nid)
    }

    #[inline]
    fn own_ni(&self, ni: NiId) -> Option<&OwnNi> {
        self.nis.get(usize::from(ni.0))?.as_ref()
    }

    /// The longest UDP payload that an NI can send and take.
    #[inline]
    pub(crate) fn own_datagram_max(&self, ni: NiId) -> u32 {
        self.own_ni(ni).map_or(NOWHERE_BYTES, |own| own.ni.datagram_max_bytes)
    }

    /// Whether an NI wants checksums with payloads.
    #[inline]
    pub(super) fn wants_checksum(&self, ni: NiId) -> bool {
        self.own_ni(ni).is_none_or(|own| own.ni.checksum)
    }

    /// Whether what comes to an NI may come in runs.
    #[inline]
    pub(super) fn takes_runs(&self, ni: NiId) -> bool {
        self.own_ni(ni).is_some_and(|own| own.ni.runs)
    }

    /// Whether payloads that go by an NI to where a peer has given a session have checksums: unless neither
    /// end wants them.
    #[inline]
    pub(crate) fn has_checksums(&self, ni: NiId, session: Option<&Session>) -> bool {
        self.wants_checksum(ni) || session.is_none_or(|session| session.checksum)
    }

    /// The longest datagram that goes by a path with a session.
    #[inline]
    pub(crate) fn datagram_max(&self, path: u32) -> u32 {
        self.ends_max(path).min(self.paths[path].width.bytes())
    }

    /// The longest datagram that both ends of a path with a session take.
    #[inline]
    pub(crate) fn ends_max(&self, path: u32) -> u32 {
        let path = &self.paths[path];
        let own = self.own_datagram_max(path.ni);
        path.session.map_or(own, |session| own.min(session.datagram_max_bytes))
    }

    /// The NI that has a NID.
    #[inline]
    pub(crate) fn ni_of(&self, nid: &Nid) -> Option<NiId> {
        let its = |own: &Option<OwnNi>| own.as_ref().is_some_and(|own| own.ni.nid == *nid);
        self.nis.iter().position(its).map(|index| NiId(index as u16))
    }

    /// Forgets an NI.
    ///
    /// # Panics
    /// If there is no such NI.
    pub(crate) fn remove_ni(&mut self, ni: NiId) {
        let own = self.nis.get_mut(usize::from(ni.0)).and_then(Option::take);
        assert!(own.is_some(), "there is no NI {}", ni.0);
        self.replies.retain(|reply| reply.to.0 != ni);
    }

    /// The address by which a peer is spoken to once this NI is gone: as before, or another one that
    /// is chosen.
    pub(crate) fn move_peer(&mut self, peer: u32, ni: NiId, up: &mut impl Uplink) -> Address {
        let now = self.local.now;
        let entry = &self.peers[peer];
        let (former, nid) = entry.address;
        let other = entry.other_address.filter(|(other, _)| *other != ni && *other != NOWHERE);
        let mut address = (former, nid);
        if former == ni {
            let silent = Path { ni, peer: nid };
            let mut candidates = [silent; PATH_CANDIDATES_MAX];
            let paths = self.paths.of_peer(peer).map(|path| (self.paths[path].ni, self.paths[path].nid));
            let others = other.into_iter().chain(paths.filter(|(other, _)| *other != ni));
            let filled = candidates.iter_mut().zip(others).map(|(candidate, (ni, peer))| {
                *candidate = Path { ni, peer };
            });
            let count = filled.count();
            let chosen = if count == 0 { None } else { up.reroute(now, &silent, &candidates[..count]) };
            let chosen = chosen.and_then(|index| candidates[..count].get(index));
            address = chosen.map_or((NOWHERE, nid), |path| (path.ni, path.peer));
        }
        let entry = &mut self.peers[peer];
        (entry.address, entry.other_address) = (address, other);
        address
    }

    /// The path by which a peer is spoken to, with a reference on it.
    pub(crate) fn other_path(&mut self, peer: u32) -> Option<u32> {
        let (ni, nid) = self.peers.get(peer)?.address;
        let path = (ni != NOWHERE).then(|| self.acquire(ni, &nid)).flatten()?;
        if self.paths[path].peer == NONE {
            self.paths.set_peer(path, peer);
        }
        Some(path)
    }
}
