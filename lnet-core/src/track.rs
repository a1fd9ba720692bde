//! Requests whose response is awaited, and until when (LNet `lib-move.c: lnet_attach_rsp_tracker`).
//!
//! Invariants: a descriptor has at most one tracker, for all its requests, and there are as many trackers as
//! descriptors, so that one is always found; trackers stand in the order of their deadlines, so that the
//! first is the next to expire. The end of a descriptor ends its tracker: none ever names another one.

use lnet_wire::Nid;

use crate::collections::{Link, List, NONE, Slab, linked};
use crate::time::Instant;

/// What answers a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Response {
    Ack,
    Reply,
}

struct Tracker {
    deadline: Instant,
    /// When the last request started.
    asked: Instant,
    /// Slot of its descriptor.
    md: u32,
    /// Whom the last request went to; the wildcard while it waits for that.
    peer: Nid,
    /// Responses that have not come, by [`Response`].
    awaited: [u32; 2],
    link: Link,
}

/// Marks the order of deadlines.
struct Deadlines;

linked!(Tracker, Deadlines, link);

/// The trackers of a shard. Each is named by its slot, which its descriptor keeps; [`NONE`] is no tracker.
pub(crate) struct Trackers {
    trackers: Slab<Tracker>,
    order: List<Deadlines>,
}

impl Trackers {
    /// Trackers for this many descriptors.
    pub(crate) fn new(capacity: u32) -> Self {
        Self { trackers: Slab::new(capacity), order: List::new() }
    }

    /// Awaits one more response for the descriptor `md`, to a request that starts now, and all of them until
    /// `deadline`; returns its tracker. Deadlines stay in order: one before the last (the timeout was lowered
    /// meanwhile) is put off until then.
    pub(crate) fn await_one(
        &mut self,
        tracker: u32,
        md: u32,
        (response, peer): (Response, &Nid),
        (now, deadline): (Instant, Instant),
    ) -> u32 {
        let slot = if tracker == NONE {
            let fresh =
                Tracker { deadline, asked: now, md, peer: *peer, awaited: [0; 2], link: Link::UNLINKED };
            let Ok(slot) = self.trackers.insert(fresh) else { unreachable!("a descriptor has two trackers") };
            slot
        } else {
            self.order.remove(&mut self.trackers, tracker);
            tracker
        };
        let latest = self.trackers.get(self.order.last()).map_or(deadline, |last| last.deadline);
        let tracker = &mut self.trackers[slot];
        tracker.deadline = deadline.max(latest);
        (tracker.asked, tracker.peer) = (now, *peer);
        tracker.awaited[response as usize] += 1;
        self.order.push_back(&mut self.trackers, slot);
        slot
    }

    /// A request that had no next hop when it started, or went to `former`, goes to this peer NI. A later
    /// request of the descriptor may have gone elsewhere.
    pub(crate) fn move_peer(&mut self, tracker: u32, former: &Nid, peer: &Nid) {
        if tracker == NONE {
            return;
        }
        let known = &mut self.trackers[tracker].peer;
        if known.is_any() || known == former {
            *known = *peer;
        }
    }

    /// Takes note of a response that has come; says whether none is awaited any more. One that was not asked
    /// for changes nothing.
    pub(crate) fn note_response(&mut self, tracker: u32, response: Response) -> bool {
        let awaited = &mut self.trackers[tracker].awaited;
        awaited[response as usize] = awaited[response as usize].saturating_sub(1);
        *awaited == [0; 2]
    }

    /// When the last request started whose response is awaited; `None` for no tracker.
    pub(crate) fn asked(&self, tracker: u32) -> Option<Instant> {
        self.trackers.get(tracker).map(|tracker| tracker.asked)
    }

    /// The NID that was asked last; `None` for no tracker.
    pub(crate) fn asked_last(&self, tracker: u32) -> Option<&Nid> {
        self.trackers.get(tracker).map(|tracker| &tracker.peer)
    }

    /// Ends a tracker.
    pub(crate) fn end(&mut self, tracker: u32) {
        self.order.remove(&mut self.trackers, tracker);
        self.trackers.remove(tracker);
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.trackers.get(self.order.first()).map(|first| first.deadline)
    }

    /// The descriptor whose deadline is the earliest, if that has passed, and whom its last request went to.
    pub(crate) fn expired(&self, now: Instant) -> Option<(u32, Nid)> {
        let first = self.trackers.get(self.order.first())?;
        (now >= first.deadline).then_some((first.md, first.peer))
    }

    pub(crate) const fn count(&self) -> u32 {
        self.trackers.used_count()
    }
}
