//! The operations of a stream, and how completions name them.

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Purpose {
    Receive,
    Send,
    Dial,
    Accept,
}

/// Names an operation: no two under way have the same tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    pub(super) purpose: Purpose,
    pub(super) sequence: u32,
    /// Slot of the stream or listener, less than 2^24.
    pub(super) slot: u32,
}

/// Slots are less than that.
pub(super) const SLOTS_MAX: u32 = 1 << 24;
/// Tells the cancellation of an operation from the operation.
const CANCELLATION: u64 = 1 << 63;

impl Tag {
    /// The user data of the operation.
    #[inline]
    pub(super) fn user_data(self) -> u64 {
        (self.purpose as u64) << 56 | u64::from(self.sequence) << 24 | u64::from(self.slot)
    }

    /// The user data of its cancellation.
    pub(super) fn cancellation(self) -> u64 {
        self.user_data() | CANCELLATION
    }

    /// The tag in user data, and whether that is a cancellation's.
    #[inline]
    pub(super) fn parse(user_data: u64) -> (Self, bool) {
        let purpose = match user_data >> 56 & 0x7f {
            0 => Purpose::Receive,
            1 => Purpose::Send,
            2 => Purpose::Dial,
            _ => Purpose::Accept,
        };
        let tag =
            Self { purpose, sequence: (user_data >> 24) as u32, slot: user_data as u32 & (SLOTS_MAX - 1) };
        (tag, user_data & CANCELLATION != 0)
    }
}

/// Where an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Operation {
    #[default]
    Idle,
    /// The operation of this number is under way.
    UnderWay(u32),
    /// Its cancellation was submitted.
    Ending(u32),
}

impl Operation {
    pub(super) fn is_idle(self) -> bool {
        self == Self::Idle
    }

    /// Notes that its cancellation is submitted, and returns the number if that is due.
    pub(super) fn end(&mut self) -> Option<u32> {
        let Self::UnderWay(sequence) = *self else { return None };
        *self = Self::Ending(sequence);
        Some(sequence)
    }

    /// Notes that its cancellation has not found it: the kernel was just about to go on with it.
    pub(super) fn was_missed(&mut self, sequence: u32) -> bool {
        let missed = *self == Self::Ending(sequence);
        if missed {
            *self = Self::UnderWay(sequence);
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_were_written() {
        for purpose in [Purpose::Receive, Purpose::Send, Purpose::Dial, Purpose::Accept] {
            for (sequence, slot) in
                [(0, 0), (1, 2), (u32::MAX, 0), (0, SLOTS_MAX - 1), (u32::MAX, SLOTS_MAX - 1)]
            {
                let tag = Tag { purpose, sequence, slot };
                assert_eq!(Tag::parse(tag.user_data()), (tag, false));
                assert_eq!(Tag::parse(tag.cancellation()), (tag, true));
            }
        }
    }

    #[test]
    fn a_cancellation_that_comes_late_means_nothing() {
        let mut operation = Operation::UnderWay(7);
        assert_eq!((operation.end(), operation.end()), (Some(7), None));
        assert!(!operation.was_missed(6));
        assert!(operation.was_missed(7));
        assert_eq!(operation, Operation::UnderWay(7));
        operation = Operation::Idle;
        assert!(!operation.was_missed(7) && operation.is_idle());
    }
}
