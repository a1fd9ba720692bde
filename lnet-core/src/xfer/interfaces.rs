//! The interfaces of the node, which come and go while messages are under way.
//!
//! Invariants: what is addressed by an interface that was removed is let go, and comes again by another way to
//! the same peer; a message whose peer has none ends. The peer's windows stay, so that what it sends again by
//! whichever way is recognised, also when the interface has come back.

use lnet_wire::Nid;
use lnet_wire::frame::Certificate;

use super::identity::Identity;
use super::inflow::AckDue;
use super::message::Stage;
use super::peer::Address;
use super::reply::Reply;
use super::state::Xfer;
use super::timeout::unfinished;
use crate::list::NONE;
use crate::lnd::{Cause, NiId, Uplink};
use crate::time::Instant;

/// The interface of addresses that nothing leads to any more; no driver has it.
pub(super) const NOWHERE: NiId = NiId(u16::MAX);

/// The longest datagram by an interface that is gone: nobody gets it.
const NOWHERE_BYTES: u32 = 1024;

/// A local interface, as this shard sees it.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    nid: Nid,
    /// The longest UDP payload that it can send and take.
    datagram_max_bytes: u32,
    /// What shows that this node lives there.
    certificate: Certificate,
}

impl Interface {
    pub(super) fn new(nid: Nid, datagram_max_bytes: u32, identity: &Identity) -> Self {
        Self { nid, datagram_max_bytes, certificate: identity.certify(&nid) }
    }
}

impl Xfer {
    /// Sends and takes by a further interface from now on. May allocate, where no interface has had so high a
    /// number.
    ///
    /// # Panics
    /// If there is one of this number.
    pub fn add_interface(&mut self, ni: NiId, nid: Nid, datagram_max_bytes: u32) {
        let place = usize::from(ni.0);
        if place >= self.interfaces.len() {
            self.interfaces.resize(place + 1, None);
        }
        let former = self.interfaces[place].replace(Interface::new(nid, datagram_max_bytes, &self.identity));
        assert!(former.is_none(), "there is an interface {} already", ni.0);
    }

    /// The longest UDP payload that an interface can send and take has changed. Peers learn it with their
    /// next session; frames that were cut before are cut again when they are sent again.
    pub fn set_datagram_max(&mut self, ni: NiId, bytes: u32) {
        if let Some(Some(interface)) = self.interfaces.get_mut(usize::from(ni.0)) {
            interface.datagram_max_bytes = bytes;
        }
    }

    /// The NID of an interface that there is.
    #[inline]
    #[must_use]
    pub fn nid_of(&self, ni: NiId) -> Option<&Nid> {
        self.interfaces.get(usize::from(ni.0))?.as_ref().map(|interface| &interface.nid)
    }

    /// The longest UDP payload that an interface can send and take.
    #[inline]
    pub(super) fn own_datagram_max(&self, ni: NiId) -> u32 {
        match self.interfaces.get(usize::from(ni.0)) {
            Some(Some(interface)) => interface.datagram_max_bytes,
            _ => NOWHERE_BYTES,
        }
    }

    /// What shows that this node lives at the address of an interface.
    pub(super) fn certificate(&self, ni: NiId) -> Certificate {
        match self.interfaces.get(usize::from(ni.0)) {
            Some(Some(interface)) => interface.certificate,
            // Nobody gets it.
            _ => Certificate { key: [0; 32], signature: [0; 64] },
        }
    }

    /// The interface that has a NID.
    #[inline]
    pub(super) fn interface_of(&self, nid: &Nid) -> Option<NiId> {
        let its =
            |interface: &Option<Interface>| interface.as_ref().is_some_and(|interface| interface.nid == *nid);
        self.interfaces.iter().position(its).map(|place| NiId(place as u16))
    }

    /// Makes all acknowledgements that wait due at once: before an interface goes by which some of them do.
    pub fn acknowledge_now(&mut self, now: Instant) {
        let mut at = self.busy_inflows.first();
        while at != NONE {
            if matches!(self.inflows[at].ack, AckDue::At(_)) {
                self.ack_soon(now, at, true);
            }
            at = Self::next_busy(&self.inflows, at);
        }
    }

    /// An interface is gone. Messages that went by it go by another way to the same peer, if one is known; others
    /// end. So do those that arrive from a peer that nothing leads to any more.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn remove_interface(&mut self, now: Instant, ni: NiId, up: &mut impl Uplink) {
        self.catch_up(up);
        let place = self.interfaces.get_mut(usize::from(ni.0)).and_then(Option::take);
        assert!(place.is_some(), "there is no interface {}", ni.0);
        self.replies.retain(|reply| reply.ni() != ni);
        for peer in 0..self.peers.slab.capacity() {
            self.move_peer(now, peer, ni, up);
        }
        for slot in 0..self.messages.capacity() {
            let its = |contact: u32| self.contacts.slab[contact].ni == ni;
            if self.messages.get(slot).is_some_and(|message| its(message.contact)) {
                self.move_message(now, slot, up);
            }
        }
        for contact in 0..self.contacts.slab.capacity() {
            if self.contacts.slab.get(contact).is_some_and(|contact| contact.ni == ni) {
                self.contacts.answered(contact);
                self.contacts.remove(contact);
            }
        }
    }

    /// Speaks to a peer by another way than this interface.
    fn move_peer(&mut self, now: Instant, peer: u32, ni: NiId, up: &mut impl Uplink) {
        let Some(entry) = self.peers.slab.get(peer) else { return };
        let (former, nid) = entry.address;
        let heard = entry.other_address.filter(|(other, _)| *other != ni && *other != NOWHERE);
        self.peers.slab[peer].other_address = heard;
        let address = if former == ni {
            let other = heard.or_else(|| self.contacts.way_to(peer, ni)).unwrap_or((NOWHERE, nid));
            self.peers.slab[peer].address = other;
            other
        } else {
            (former, nid)
        };
        for shard in 0..self.peers.slab[peer].inflows.len() {
            let inflow = self.peers.slab[peer].inflows[shard];
            if inflow == NONE {
                continue;
            }
            if self.inflows[inflow].address.0 == ni {
                self.inflows[inflow].address = address;
                // The peer learns by which way it is spoken to now.
                if address.0 != NOWHERE && self.inflows[inflow].frames.is_some() {
                    self.ack_soon(now, inflow, true);
                }
            }
            while address.0 == NOWHERE && !self.inflows[inflow].arriving.is_empty() {
                let first = self.inflows[inflow].arriving.first();
                self.abandon(now, first, Cause::Device, up);
            }
        }
    }

    /// Sends a message to its peer by the way by which that is spoken to; ends it if there is none.
    fn move_message(&mut self, now: Instant, slot: u32, up: &mut impl Uplink) {
        let former = self.messages[slot].contact;
        let Some(contact) = self.other_contact(self.contacts.slab[former].peer) else {
            let status = unfinished(self.messages[slot].polled, Cause::Device);
            return self.finish(now, slot, status, up);
        };
        let waits = self.messages[slot].stage == Stage::Waiting;
        if waits {
            self.detach(slot);
        }
        self.messages[slot].contact = contact;
        self.contacts.release(former);
        if waits {
            self.dispatch(now, slot);
        }
    }

    /// The contact by which a peer is spoken to, with a reference on it.
    fn other_contact(&mut self, peer: u32) -> Option<u32> {
        let (ni, nid): Address = self.peers.slab.get(peer)?.address;
        if ni == NOWHERE {
            return None;
        }
        let contact = self.contacts.acquire(ni, &nid)?;
        if self.contacts.slab[contact].peer == NONE {
            self.contacts.slab[contact].peer = peer;
        }
        Some(contact)
    }
}

impl Reply {
    /// The interface that it is to be sent by.
    const fn ni(&self) -> NiId {
        match self {
            Self::Hello { ni, .. }
            | Self::Welcome { ni, .. }
            | Self::Reset { ni, .. }
            | Self::Ack { ni, .. } => *ni,
        }
    }
}
