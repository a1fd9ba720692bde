//! Match entries and memory descriptors: made, given operations, ended.

use lnet_wire::Body;
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::steer::PORTALS;

use super::Shard;
use super::report::EndedOperation;
use crate::collections::NONE;
use crate::event::Event;
use crate::handle::{Cookie, CookieKind, MdHandle, MeHandle};
use crate::lnd::{Cause, Status};
use crate::md::{Ending, MdError, MdOptions, MdSpec, MemoryDesc, Threshold, Unlinked};
use crate::message::Purpose;
use crate::portal::{EntryError, EntrySpec, Position};
use crate::topology::MemoryNode;

impl Shard {
    /// Makes a match entry. It matches nothing until it is given a descriptor.
    ///
    /// # Errors
    /// [`EntryError`] says what is wrong with the portal or the position, or that the shard is full.
    pub fn attach_entry(&mut self, spec: &EntrySpec) -> Result<MeHandle, EntryError> {
        if (spec.portal as usize) < PORTALS && self.topology.is_frozen(spec.portal) {
            return Err(EntryError::Frozen { portal: spec.portal });
        }
        let beside = self.entry_beside(spec)?;
        let slot = self.tables.insert(spec, beside)?;
        Ok(MeHandle(Cookie::new(CookieKind::MatchEntry, self.id, slot, self.tables.entries.generation(slot))))
    }

    /// The slot of the entry that the position of a new one names, or [`NONE`].
    fn entry_beside(&self, spec: &EntrySpec) -> Result<u32, EntryError> {
        let entry = match spec.position {
            Position::First | Position::Last => return Ok(NONE),
            Position::Before(entry) | Position::After(entry) => entry,
        };
        let (shard, expected) = (entry.0.shard(), self.id);
        if shard != expected {
            return Err(EntryError::OtherShard { entry, shard, expected });
        }
        let slot = self.entry_slot(entry).ok_or(EntryError::Gone(entry))?;
        let (portal, expected) = (u32::from(self.tables.entry(slot).portal), spec.portal);
        if portal != expected {
            return Err(EntryError::OtherPortal { entry, portal, expected });
        }
        Ok(slot)
    }

    /// Makes a descriptor and gives it to a match entry. It needs [`MdOptions::PUT`] or [`MdOptions::GET`]
    /// or both, and reserves the event slots of all operations that it takes, and one.
    ///
    /// Messages that wait for an entry on its portal are tried at once, in the order of their arrival, until
    /// the descriptor takes no more: it may be used up, and even gone but for its operations, on return.
    ///
    /// # Errors
    /// [`MdError`]. The entry is then gone too (LNet `lib-md.c: LNetMDAttach`), unless it has a descriptor
    /// already.
    pub fn attach(&mut self, entry: MeHandle, spec: &MdSpec) -> Result<MdHandle, MdError> {
        let entry_slot = self.entry_slot(entry).ok_or(MdError::UnknownEntry(entry))?;
        if self.tables.entry(entry_slot).md != NONE {
            return Err(MdError::EntryInUse(entry));
        }
        let is_for_others = spec.options.intersects(MdOptions::PUT | MdOptions::GET);
        let made = if is_for_others { self.make(spec) } else { Err(MdError::Options(spec.options)) };
        match made {
            Ok(slot) => {
                self.tables.set_md(entry_slot, slot);
                self.mds[slot].entry = entry_slot;
                let handle = self.md_handle(slot);
                let portal = self.tables.entry(entry_slot).portal;
                self.offer(portal, slot);
                self.tell_of_entry(portal);
                self.wake();
                Ok(handle)
            }
            Err(error) => {
                self.tables.remove(entry_slot);
                Err(error)
            }
        }
    }

    /// Makes a descriptor for PUTs and GETs of this node. It may have neither [`MdOptions::PUT`] nor
    /// [`MdOptions::GET`], and reserves event slots as an attached one does.
    ///
    /// # Errors
    /// [`MdError`].
    pub fn bind(&mut self, spec: &MdSpec) -> Result<MdHandle, MdError> {
        if spec.options.intersects(MdOptions::PUT | MdOptions::GET) {
            return Err(MdError::Options(spec.options));
        }
        if spec.length_bytes > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(MdError::TooLong { length_bytes: spec.length_bytes });
        }
        let slot = self.make(spec)?;
        Ok(self.md_handle(slot))
    }

    /// Unlinks a descriptor: at once if it is idle, else when its last operation ends. From now on nothing
    /// finds it, its messages that wait for credits are cancelled when their turn comes, and what ends well
    /// is reported as a timeout (LNet `lib-md.c: LNetMDUnlink`). Its responses are awaited no longer: where
    /// ACKs or REPLYs may still have come, the UNLINK event of an idle descriptor has the status
    /// `Unknown(Cancelled)`.
    ///
    /// A descriptor that was used up and goes by itself can be unlinked until its last operation ends; that
    /// makes no second event.
    ///
    /// # Errors
    /// The handle, if nothing is found by it (`-ENOENT`).
    pub fn unlink(&mut self, md: MdHandle) -> Result<Unlinked, MdHandle> {
        let slot = self.md_slot(md).ok_or(md)?;
        let unlinked = self.unlink_slot(slot, Status::Ok);
        self.wake();
        Ok(unlinked)
    }

    /// Removes a match entry, and unlinks its descriptor if it has one: then as [`Shard::unlink`].
    ///
    /// # Errors
    /// The handle, if nothing is found by it (`-ENOENT`).
    pub fn unlink_entry(&mut self, entry: MeHandle) -> Result<Unlinked, MeHandle> {
        let slot = self.entry_slot(entry).ok_or(entry)?;
        let md = self.tables.entry(slot).md;
        if md == NONE {
            self.tables.remove(slot);
            return Ok(Unlinked::Done);
        }
        self.tables.set_auto_unlink(slot);
        let unlinked = self.unlink_slot(md, Status::Ok);
        self.wake();
        Ok(unlinked)
    }

    /// Makes a descriptor, its event slots reserved.
    fn make(&mut self, spec: &MdSpec) -> Result<u32, MdError> {
        let length_bytes = spec.length_bytes;
        if let Some(max_size_bytes) = spec.max_size_bytes.filter(|&size| size > length_bytes) {
            return Err(MdError::MaxSize { max_size_bytes, length_bytes });
        }
        if self.mds.is_full() {
            return Err(MdError::Full);
        }
        let mut md = MemoryDesc::new(spec);
        if let Some(queue) = spec.event_queue {
            md.event_queue = self.event_queue_slot(queue).ok_or(MdError::UnknownEventQueue(queue))?;
            let wanted = match spec.threshold {
                Threshold::Count(count) => count.saturating_add(1),
                Threshold::Infinite => self.unlimited_events,
            };
            self.events
                .reserve(md.event_queue, wanted)
                .map_err(|free| MdError::EventSlots { wanted, free })?;
            // No queue has more than a handle can name.
            md.event_slots = wanted as i32;
        }
        let slot = self.mds.insert(md).map_err(|_| MdError::Full)?;
        self.memory_nodes[slot as usize] = None;
        Ok(slot)
    }

    /// Says on which memory node of the machine the buffer of a descriptor lies: of its requests the local NI
    /// is chosen by the distance from there, and else from the memory of this shard (LNet `lib-move.c:
    /// lnet_select_pathway`, `lib-md.c: lnet_cpt_of_md`). It is of use where
    /// [`Topology::has_memory_distances`](crate::topology::Topology::has_memory_distances) says so.
    pub fn set_memory_node(&mut self, md: MdHandle, node: Option<MemoryNode>) {
        if let Some(slot) = self.md_slot(md) {
            self.memory_nodes[slot as usize] = node;
        }
    }

    /// The memory node of what a message is made of, where that is known.
    pub(super) fn memory_node_of(&self, purpose: &Purpose) -> Option<MemoryNode> {
        match purpose {
            Purpose::Request { md } => self.memory_nodes[*md as usize],
            _ => None,
        }
    }

    /// Unlinks a descriptor; `status` is that of its UNLINK event, should it get one.
    pub(super) fn unlink_slot(&mut self, slot: u32, status: Status) -> Unlinked {
        self.note_retry(slot);
        self.detach(slot);
        self.end_tracking(slot);
        let md = &mut self.mds[slot];
        if md.operations > 0 {
            md.ending = Ending::Aborted;
            return Unlinked::Pending;
        }
        md.ending = Ending::Unlinking;
        let is_answer_lost = status == Status::Ok && md.responses > 0;
        let status = if is_answer_lost { Status::Unknown(Cause::Cancelled) } else { status };
        let event = Event::Unlink { md: self.event_md(slot, status, true) };
        let queue = self.mds[slot].event_queue;
        if queue != NONE {
            self.events.push(queue, event, false);
        }
        self.forget(slot, 1);
        Unlinked::Done
    }

    /// Counts an operation in on a descriptor that is not used up and [has a slot](Self::has_event_slot). One
    /// that is used up thereby, and goes by itself, leaves its entry now and itself with its last operation.
    #[inline]
    pub(super) fn start(&mut self, slot: u32) {
        if !self.mds[slot].has_own_event_slot() {
            self.events.lend(self.mds[slot].event_queue);
        }
        let ends = self.mds[slot].start();
        if self.mds[slot].is_exhausted() {
            self.note_retry(slot);
        }
        if ends {
            self.mds[slot].ending = Ending::Unlinking;
            self.detach(slot);
        }
    }

    /// Ends an operation on a descriptor: reports it, as the last one if it is. Returns the status as
    /// reported.
    pub(super) fn complete(&mut self, ended: EndedOperation<'_>, status: Status) -> Status {
        let slot = ended.md();
        let md = &mut self.mds[slot];
        md.operations -= 1;
        if ended.is_unanswered(status) {
            md.responses = md.responses.saturating_sub(1);
            if let EndedOperation::Sent(_, header) = ended {
                self.end_part(&header.body);
            }
        }
        let md = &mut self.mds[slot];
        if md.operations == 0 && md.withheld.is_claimed() {
            md.withheld.unclaim();
            self.note_retry(slot);
        }
        let md = &mut self.mds[slot];
        let aborted = md.ending == Ending::Aborted && status == Status::Ok;
        let status = if aborted { Status::Unknown(Cause::Timeout) } else { status };
        let unlinked = md.operations == 0 && md.ends_when_idle();
        if md.event_queue != NONE {
            let (queue, is_recurring) = (md.event_queue, md.is_infinite());
            let event = self.event_at_end(ended, status, unlinked);
            self.events.push(queue, event, is_recurring);
        }
        let md = &self.mds[slot];
        if unlinked {
            self.detach(slot);
            self.end_tracking(slot);
            self.forget(slot, 0);
        } else if md.tracker != NONE {
            // One without a threshold is watched only while it is busy (LNet `lib-msg.c:
            // lnet_msg_detach_md`): it outlives a lost response.
            let rests = md.is_infinite() && md.operations == 0;
            let response = ended.response();
            let is_last = response.is_some_and(|it| self.trackers.note_response(md.tracker, it));
            if is_last || rests {
                self.end_tracking(slot);
            }
        }
        status
    }

    /// Awaits no more responses for a descriptor.
    fn end_tracking(&mut self, slot: u32) {
        let tracker = core::mem::replace(&mut self.mds[slot].tracker, NONE);
        if tracker != NONE {
            self.trackers.end(tracker);
        }
    }

    /// Parts a descriptor from its entry, if it has one; the entry goes too if it was made that way.
    fn detach(&mut self, slot: u32) {
        let entry = core::mem::replace(&mut self.mds[slot].entry, NONE);
        if entry == NONE {
            return;
        }
        if self.tables.entry(entry).auto_unlink {
            self.tables.remove(entry);
        } else {
            self.tables.set_md(entry, NONE);
        }
    }

    /// Awaits the REPLY no more that a GET for a part has asked for.
    pub(super) fn end_part(&mut self, request: &Body) {
        if let Body::Get { return_md, .. } = request {
            let cookie = Cookie(return_md.object_cookie);
            if self.awaited_part(cookie).is_some() {
                self.parts.end(cookie.slot());
            }
        }
    }

    /// Frees a descriptor without entry, tracker and operations, and the event slots that it did not need:
    /// `used` is 1 where its UNLINK event has the one that was for that.
    fn forget(&mut self, slot: u32, used: u32) {
        let md = self.mds.remove(slot);
        if md.options.contains(MdOptions::IN_PART) {
            self.parts.end_all(slot);
        }
        if md.event_queue != NONE {
            let own = md.event_slots.max(1).unsigned_abs();
            self.events.release(md.event_queue, own - used);
            self.events.orphan_slots(md.event_queue, md.borrowed_slots());
        }
    }
}
