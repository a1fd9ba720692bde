//! The receiving side: who may be heard.

use lnet_wire::Nid;

use super::Arrived;
use super::inflow::Inflow;
use super::peer::{Address, Peer};
use super::record::Cargo;
use super::reply::Reply;
use super::session::{self, Holder, Worth};
use super::state::Xfer;
use super::stats::XferDrop;
use crate::list::{List, NONE};
use crate::time::Instant;

impl Xfer {
    /// The inflow that a frame belongs to; made for whoever shows a fresh token, given where the frame comes from.
    #[inline(always)]
    pub(super) fn admit(&mut self, now: Instant, frame: &Arrived<'_>) -> Result<u32, XferDrop> {
        let transfer = &frame.transfer;
        let peer = self.sender(frame);
        let known = peer.map_or(NONE, |peer| self.peers.slab[peer].inflows[usize::from(transfer.shard)]);
        let address = (frame.ni, frame.from);
        let as_before = |inflow: &Inflow| {
            inflow.is_examined && inflow.token == transfer.session && inflow.address.1 == frame.from
        };
        if !self.inflows.get(known).is_some_and(as_before) {
            let worth = self.tokens.worth(now, &Holder::of(frame), transfer.session);
            // An aged one may be of frames that came before its sender was forgotten: it begins nothing.
            let begun = self.inflows.get(known).is_some_and(|inflow| inflow.window_begun);
            if worth != Worth::Fresh && !(worth == Worth::Aged && begun) {
                let (ni, nid) = address;
                self.reply(Reply::Reset { ni, nid, shard: transfer.shard, session: transfer.session });
                return Err(XferDrop::UnknownSession);
            }
            if let Some(&Inflow { token: former, address, .. }) = self.inflows.get(known) {
                let is_aged = || self.tokens.worth(now, &Holder::of(frame), former) != Worth::Fresh;
                // Of two for one address that are fresh the newer; else the fresh one, however far the counts of time
                // are apart.
                if !self.inflows[known].is_examined
                    || address.1 != frame.from
                    || session::is_newer(transfer.session, former)
                    || (worth == Worth::Fresh && is_aged())
                {
                    self.inflows[known].token = transfer.session;
                }
                self.inflows[known].is_examined = true;
            }
        }
        let slot = if known == NONE { self.new_inflow(now, frame)? } else { known };
        let inflow = &mut self.inflows[slot];
        inflow.seen_at = now;
        // As a rule it is the same, and a NID that was written just now is dear to read.
        if inflow.address != address {
            inflow.address = address;
        }
        let was_busy = core::mem::replace(&mut inflow.is_busy, true);
        self.peers.slab[inflow.peer].heard(now, address);
        if self.recent.last() != slot {
            self.recent.remove(&mut self.inflows, slot);
            self.recent.push_back(&mut self.inflows, slot);
        }
        if !was_busy {
            self.busy_inflows.push_back(&mut self.inflows, slot);
            self.busy_inflow_count += 1;
            self.schedule_sweep(now);
        }
        Ok(slot)
    }

    fn new_inflow(&mut self, now: Instant, frame: &Arrived<'_>) -> Result<u32, XferDrop> {
        let transfer = &frame.transfer;
        let address = (frame.ni, frame.from);
        if self.is_over(now, transfer.incarnation) {
            return Err(XferDrop::UnknownSession);
        }
        if self.inflows.is_full() || self.opened_from(&frame.from) >= self.inflows_per_address {
            return Err(XferDrop::PeersFull);
        }
        let peer = match self.sender(frame) {
            Some(peer) => peer,
            None => {
                let peer = self.new_peer(now, transfer.incarnation, address).ok_or(XferDrop::PeersFull)?;
                self.is_new_at(now, address);
                peer
            }
        };
        let Some(window) = self.windows.pop() else { unreachable!("there is one for each inflow") };
        let inflow = Inflow::new((peer, transfer.shard), transfer.session, window, address, now);
        let Ok(slot) = self.inflows.insert(inflow) else { unreachable!("there was room") };
        self.peers.slab[peer].inflows[usize::from(transfer.shard)] = slot;
        self.recent.push_back(&mut self.inflows, slot);
        Ok(slot)
    }

    /// A peer that was not known speaks from an address. What is sent there from now on would be refused under the
    /// session of whoever lived there before, and lost: it waits for another one.
    fn is_new_at(&mut self, now: Instant, (ni, nid): Address) {
        let Some(contact) = self.contacts.find(ni, &nid) else { return };
        let former = self.contacts.slab[contact].peer;
        if former != NONE {
            // Whether it lives on at its other addresses is asked there, where something waits; that it has ended is
            // told here.
            self.contacts.end_sessions(former);
            if !self.peers.slab[former].is_idle() {
                self.ask(now, contact);
            }
        }
    }

    /// Inflows that were opened under this address.
    fn opened_from(&self, from: &Nid) -> u32 {
        let its = |slot: &u32| self.inflows.get(*slot).is_some_and(|inflow| inflow.opened_at == *from);
        (0..self.inflows.capacity()).filter(its).count() as u32
    }

    /// Makes a peer; one that is idle makes room.
    pub(super) fn new_peer(&mut self, now: Instant, incarnation: u64, address: Address) -> Option<u32> {
        if self.peers.slab.is_full() {
            let oldest = self.peers.oldest_idle()?;
            self.forget_peer(oldest);
        }
        self.peers.insert(now, incarnation, self.id_floor, address)
    }

    /// Forgets a peer that is idle.
    pub(super) fn forget_peer(&mut self, slot: u32) {
        self.unread.take_if(|unread| unread.peer == slot);
        for shard in 0..self.peers.slab[slot].flows.len() {
            let flow = self.peers.slab[slot].flows[shard];
            if flow != NONE {
                self.drop_notices(flow);
                self.free_flow(flow);
            }
        }
        self.contacts.forget_peer(slot);
        let Peer { next_id, .. } = self.peers.remove(slot);
        self.id_floor = self.id_floor.max(next_id);
    }

    /// Forgets what a flow still has to tell about messages.
    pub(super) fn drop_notices(&mut self, flow: u32) {
        for outstanding in [true, false] {
            let lists = &self.flows[flow];
            let mut at = if outstanding { lists.outstanding.first() } else { lists.pending.first() };
            while at != NONE {
                let next = List::next(&self.records, at);
                if matches!(self.records[at].cargo, Cargo::Notice { .. }) {
                    self.withdraw(flow, at, outstanding);
                }
                at = next;
            }
        }
    }
}
