//! Memory descriptors: what may be done with a buffer, how often, and where its events go.
//!
//! The core knows a buffer by its length alone; the bytes are the driver's. Invariant: a descriptor lives
//! until no operation is under way on it *and* it was unlinked (explicitly, with its entry, or because it
//! was used up and asked for that, or because a response did not come in time), and exactly the event that
//! reports its end is marked `unlinked`.

use core::ops::BitOr;

use lnet_wire::header::PAYLOAD_BYTES_MAX;
use thiserror::Error;

use crate::collections::{NONE, slot_bytes};
use crate::handle::{EqHandle, MeHandle};

/// What may be done with a descriptor, and how: LNet's `LNET_MD_*` with their values.
///
/// `LNET_MD_MAX_SIZE` is not among them: [`MdSpec::max_size_bytes`] says it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MdOptions(u16);

impl MdOptions {
    /// No options.
    pub const NONE: Self = Self(0);
    /// May be PUT into.
    pub const PUT: Self = Self(0x0001);
    /// May be GET from.
    pub const GET: Self = Self(0x0002);
    /// The message's offset counts, not the descriptor's own.
    pub const MANAGE_REMOTE: Self = Self(0x0004);
    /// Takes requests longer than its room, and cuts them.
    pub const TRUNCATE: Self = Self(0x0010);
    /// PUTs into it are never acknowledged.
    pub const ACK_DISABLE: Self = Self(0x0020);
    /// The responses to its requests are watched for, whatever [`ResponseTracking`] the node has.
    ///
    /// [`ResponseTracking`]: crate::tunables::ResponseTracking
    pub const TRACK_RESPONSE: Self = Self(0x0400);
    /// Responses are not watched for, whatever else is said.
    pub const NO_TRACK_RESPONSE: Self = Self(0x0800);
    /// The bytes that come in may be skipped; lengths are told as if they were there. What is found in the
    /// buffer is as before, or what came in.
    pub const DISCARD: Self = Self(0x4000);
    /// Not LNet's: PUTs into it are acknowledged once [`Shard::acknowledge`] says so, or after
    /// [`ACK_WAIT`](crate::shard::ACK_WAIT): who made it has done something with what they say.
    ///
    /// [`Shard::acknowledge`]: crate::Shard::acknowledge
    pub const ACK_LATE: Self = Self(0x1000);
    /// Not LNet's: a PUT was once started from the descriptor, so that PUTs under way may read its bytes.
    pub(crate) const SOURCE: Self = Self(0x8000);
    /// Not LNet's: GETs for parts of the descriptor were started.
    pub(crate) const IN_PART: Self = Self(0x2000);
    /// Not LNet's: its requests are not sent again, since they are to find out whether their path works.
    pub const NO_RESEND: Self = Self(0x1000);
    /// What events say nothing of.
    pub(crate) const INTERNAL: Self = Self(Self::SOURCE.0 | Self::IN_PART.0 | Self::NO_RESEND.0);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// All but those of `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The options as LNet's bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }
}

impl BitOr for MdOptions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How many operations a descriptor takes: each PUT and GET sent, each ACK and REPLY received for them,
/// each PUT and GET received, counted when it starts. So a PUT with ACK takes two, and a GET as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threshold {
    /// A number of operations.
    Count(u32),
    /// No end.
    Infinite,
}

/// A descriptor to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MdSpec {
    /// Length of the buffer. A bound descriptor is sent whole, so it is at most `LNET_MTU`
    /// (`lnet_wire::header::PAYLOAD_BYTES_MAX`); an attached one may be longer.
    pub length_bytes: u64,
    /// Most bytes that one message may move; the descriptor is used up when less than that is left behind
    /// its own offset. At most `length_bytes`.
    pub max_size_bytes: Option<u64>,
    /// Operations that it takes.
    pub threshold: Threshold,
    /// What may be done with it.
    pub options: MdOptions,
    /// Whether it goes when it is used up.
    pub auto_unlink: bool,
    /// Where its events go; without a queue there are none, not even the last.
    pub event_queue: Option<EqHandle>,
    /// The caller's; comes back with each event.
    pub user_ptr: u64,
}

impl MdSpec {
    /// A descriptor that takes so many operations, tells `event_queue` of them, and goes when they are used
    /// up.
    #[must_use]
    pub const fn new(
        length_bytes: u64,
        threshold: Threshold,
        options: MdOptions,
        event_queue: EqHandle,
    ) -> Self {
        Self {
            length_bytes,
            max_size_bytes: None,
            threshold,
            options,
            auto_unlink: true,
            event_queue: Some(event_queue),
            user_ptr: 0,
        }
    }
}

/// Why a descriptor is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MdError {
    /// The entry does not exist (any more).
    #[error("no match entry {:#x}", .0.0.0)]
    UnknownEntry(MeHandle),
    /// The entry has a descriptor. It keeps it.
    #[error("match entry {:#x} has a descriptor", .0.0.0)]
    EntryInUse(MeHandle),
    /// Neither or one of [`MdOptions::PUT`] and [`MdOptions::GET`] is needed to attach, none allowed to bind.
    #[error("options {:#x}: PUT or GET is expected to attach, neither of them to bind", .0.bits())]
    Options(MdOptions),
    /// `max_size_bytes` exceeds the length.
    #[error("maximum size {max_size_bytes}: at most the length, {length_bytes}, is expected")]
    MaxSize {
        /// What was asked for.
        max_size_bytes: u64,
        /// The most there can be.
        length_bytes: u64,
    },
    /// Too long for one message.
    #[error("length {length_bytes}: at most {PAYLOAD_BYTES_MAX} is expected of a bound descriptor")]
    TooLong {
        /// What was asked for.
        length_bytes: u64,
    },
    /// The event queue does not exist (any more).
    #[error("no event queue {:#x}", .0.0.0)]
    UnknownEventQueue(EqHandle),
    /// The event queue has too few free slots for the events that may come.
    #[error("{wanted} event slots wanted, {free} free in the event queue")]
    EventSlots {
        /// Slots wanted: the threshold and one; without a threshold what
        /// [`Limits::unlimited_events`](crate::Limits::unlimited_events) says.
        wanted: u32,
        /// Slots that are free.
        free: u32,
    },
    /// Every descriptor of the shard is in use.
    #[error("every memory descriptor is in use")]
    Full,
}

/// How an explicit unlink went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlinked {
    /// The descriptor is gone; its event queue, if it has one, has an UNLINK event.
    Done,
    /// Operations are under way; the event of the last one is marked `unlinked`.
    Pending,
}

/// Threshold of a descriptor without one.
const INFINITE: u32 = u32::MAX;

/// Whether a descriptor goes when its last operation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    No,
    /// The descriptor goes then.
    Unlinking,
    /// The descriptor was unlinked, by its owner or for want of a response, with operations under way.
    /// Nothing finds it any more.
    Aborted,
}

/// Messages that are written into a descriptor whose spans may overlap, and whether others have to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Withheld(u8);

impl Withheld {
    /// Nothing is known to be written.
    pub(crate) const NO: Self = Self(0);
    /// A message waits until the descriptor is idle.
    const CLAIMED: u8 = 1 << 7;
    /// The count that stands for one message which is to be alone.
    const ALONE: u8 = Self::CLAIMED - 1;
    /// The highest count of messages that are written beside each other.
    const FULL: u8 = Self::ALONE - 1;

    /// Whether no message that arrives may start.
    #[inline]
    pub(crate) const fn keeps_out(self) -> bool {
        self.0 >= Self::FULL
    }

    /// Whether messages are written into it: its bytes are not to be sent.
    #[inline]
    pub(crate) const fn is_filled(self) -> bool {
        self.0 & Self::ALONE != 0
    }

    /// Whether a message waits until the descriptor is idle.
    #[inline]
    pub(crate) const fn is_claimed(self) -> bool {
        self.0 & Self::CLAIMED != 0
    }

    /// Keeps others out until the descriptor is idle.
    pub(crate) const fn claim(&mut self) {
        self.0 |= Self::CLAIMED;
    }

    /// The descriptor is idle.
    pub(crate) const fn unclaim(&mut self) {
        self.0 &= Self::ALONE;
    }

    /// A message begins to be written that no other one may be beside: a sibling shard writes it, or
    /// PUTs read the descriptor.
    pub(crate) const fn fill_alone(&mut self) {
        self.0 |= Self::ALONE;
    }

    /// A message begins to be written beside others; nothing keeps it out.
    pub(crate) const fn fill(&mut self) {
        self.0 += 1;
    }

    /// A message that was written has ended.
    pub(crate) const fn end_fill(&mut self) {
        self.0 = if self.0 & Self::ALONE == Self::ALONE { self.0 & Self::CLAIMED } else { self.0 - 1 };
    }
}

/// A descriptor as a shard holds it: a cache line, which every operation touches.
#[repr(align(64))]
pub(crate) struct MemoryDesc {
    pub(crate) length_bytes: u64,
    /// Where the next locally managed operation starts.
    pub(crate) offset_bytes: u64,
    /// `u64::MAX` when there is none.
    max_size_bytes: u64,
    threshold: u32,
    pub(crate) options: MdOptions,
    /// Its match entry, or [`NONE`].
    pub(crate) entry: u32,
    /// Slot of its event queue, or [`NONE`].
    pub(crate) event_queue: u32,
    /// Slots reserved there that no event and no operation has taken yet, of which the last is for its UNLINK
    /// event; how far it is below that one says how many spare slots it has borrowed.
    pub(crate) event_slots: i32,
    /// Operations under way.
    pub(crate) operations: u32,
    /// Who watches for the responses to its requests, or [`NONE`].
    pub(crate) tracker: u32,
    /// ACKs and REPLYs that may still come for its requests. Saturates.
    pub(crate) responses: u16,
    pub(crate) auto_unlink: bool,
    pub(crate) ending: Ending,
    pub(crate) withheld: Withheld,
    /// Messages wait until it takes them, or goes.
    pub(crate) awaited: bool,
    pub(crate) user_ptr: u64,
}

impl MemoryDesc {
    /// A descriptor with no entry and no event slots yet.
    pub(crate) fn new(spec: &MdSpec) -> Self {
        Self {
            length_bytes: spec.length_bytes,
            offset_bytes: 0,
            max_size_bytes: spec.max_size_bytes.unwrap_or(u64::MAX),
            threshold: match spec.threshold {
                // The one count that means "infinite" is as good as infinite.
                Threshold::Count(count) => count,
                Threshold::Infinite => INFINITE,
            },
            options: spec.options,
            entry: NONE,
            event_queue: NONE,
            event_slots: 0,
            operations: 0,
            tracker: NONE,
            responses: 0,
            auto_unlink: spec.auto_unlink,
            ending: Ending::No,
            withheld: Withheld::NO,
            awaited: false,
            user_ptr: spec.user_ptr,
        }
    }

    pub(crate) const fn is_infinite(&self) -> bool {
        self.threshold == INFINITE
    }

    /// Whether it serves PUTs and GETs of this node; else it is (or was) attached to an entry.
    pub(crate) const fn is_bound(&self) -> bool {
        !self.options.intersects(MdOptions(MdOptions::PUT.0 | MdOptions::GET.0))
    }

    /// Whether its threshold is used up.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.threshold == 0
    }

    /// Whether it takes no operation any more (LNet `lib-lnet.h: lnet_md_exhausted`).
    #[inline]
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.is_used_up()
            || self.max_size_bytes != u64::MAX
                && self.offset_bytes.saturating_add(self.max_size_bytes) > self.length_bytes
    }

    /// Operations that its threshold must still have for a request, with or without a response, and for the
    /// responses that may come to earlier ones.
    #[inline]
    pub(crate) fn wanted_operations(&self, is_answered: bool) -> u32 {
        1 + u32::from(is_answered) + u32::from(self.responses)
    }

    /// Operations that are left of its threshold; without end of one that has none.
    #[inline]
    pub(crate) const fn operations_left(&self) -> u32 {
        self.threshold
    }

    /// Whether the next operation uses it up and takes its entry along.
    #[inline]
    pub(crate) const fn ends_with_next(&self) -> bool {
        self.auto_unlink && self.threshold == 1
    }

    /// Most bytes that an operation at this offset may move.
    #[inline]
    pub(crate) fn allowed_bytes(&self, offset_bytes: u64) -> u64 {
        self.length_bytes.saturating_sub(offset_bytes).min(self.max_size_bytes)
    }

    /// Whether an operation finds an event slot of the descriptor's own, so that its event cannot be lost.
    /// One slot is kept for the UNLINK event. A descriptor with a threshold has a slot for each operation
    /// that it takes.
    #[inline]
    pub(crate) const fn has_own_event_slot(&self) -> bool {
        self.event_queue == NONE || self.event_slots > 1
    }

    /// Spare event slots that it has borrowed.
    #[inline]
    pub(crate) const fn borrowed_slots(&self) -> u32 {
        if self.event_slots < 1 { self.event_slots.abs_diff(1) } else { 0 }
    }

    /// Whether messages that arrive for it may be given spans with bytes in common: where the sender says the
    /// offset, and where REPLYs go, each of which begins at the start.
    #[inline]
    pub(crate) const fn shares_spans(&self) -> bool {
        self.options.contains(MdOptions::MANAGE_REMOTE) || self.is_bound()
    }

    /// Whether the end of its last operation is its own end (LNet `lib-lnet.h: lnet_md_unlinkable`).
    pub(crate) const fn ends_when_idle(&self) -> bool {
        !matches!(self.ending, Ending::No) || self.auto_unlink && self.is_exhausted()
    }

    /// Counts an operation in, for which there is an event slot; says whether that used the descriptor up for
    /// good.
    pub(crate) fn start(&mut self) -> bool {
        assert!(!self.is_used_up(), "an operation starts on a descriptor that is used up");
        assert!(self.has_own_event_slot() || self.is_infinite(), "an operation starts without an event slot");
        self.operations += 1;
        if !self.is_infinite() {
            self.threshold -= 1;
        }
        if self.event_queue != NONE {
            self.event_slots -= 1;
        }
        self.auto_unlink && self.is_exhausted()
    }
}

const _: () = assert!(slot_bytes::<MemoryDesc>() == 64, "a descriptor exceeds a cache line");

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(length_bytes: u64, max_size_bytes: Option<u64>, threshold: Threshold) -> MdSpec {
        MdSpec {
            length_bytes,
            max_size_bytes,
            threshold,
            options: MdOptions::PUT,
            auto_unlink: true,
            event_queue: None,
            user_ptr: 0,
        }
    }

    #[test]
    fn a_threshold_is_used_up_by_starting() {
        let mut md = MemoryDesc::new(&spec(10, None, Threshold::Count(2)));
        assert!(!md.start());
        assert!(md.start());
        assert!(md.is_exhausted());
        assert_eq!(md.operations, 2);
    }

    #[test]
    fn infinite_is_never_used_up() {
        let mut md = MemoryDesc::new(&spec(10, None, Threshold::Infinite));
        assert!((0..1000).all(|_| !md.start()));
    }

    #[test]
    fn max_size_marks_exhaustion_and_caps() {
        let mut md = MemoryDesc::new(&spec(10, Some(4), Threshold::Infinite));
        assert_eq!(md.allowed_bytes(0), 4);
        md.offset_bytes = 6;
        assert!(!md.is_exhausted());
        assert_eq!(md.allowed_bytes(6), 4);
        md.offset_bytes = 7;
        assert!(md.is_exhausted());
        assert_eq!(md.allowed_bytes(8), 2);
        assert_eq!(md.allowed_bytes(11), 0, "an offset beyond the end allows nothing");
        assert_eq!(md.allowed_bytes(u64::MAX), 0);
    }
}
