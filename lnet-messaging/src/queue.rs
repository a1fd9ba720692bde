//! The six queues, and the names of buffers that are in one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Which queue a buffer is in: what is done with it. The order of completion is not that of the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum QueueType {
    /// Messages are received into it.
    Receive = 0,
    /// Its bytes are sent as a message.
    Send = 1,
    /// Another transfer machine writes to it.
    PassiveReceive = 2,
    /// Another transfer machine reads from it.
    PassiveSend = 3,
    /// Bytes of another one's passive buffer are fetched into it.
    ActiveReceive = 4,
    /// Its bytes are written to another one's passive buffer.
    ActiveSend = 5,
}

impl QueueType {
    /// All of them, by number.
    pub const ALL: [Self; 6] = [
        Self::Receive,
        Self::Send,
        Self::PassiveReceive,
        Self::PassiveSend,
        Self::ActiveReceive,
        Self::ActiveSend,
    ];

    /// The queue of this number, as descriptors have it.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether bytes come into its buffers.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::PassiveReceive | Self::ActiveReceive)
    }

    /// Whether its buffers wait for another transfer machine's bulk operation.
    #[must_use]
    pub const fn is_passive(self) -> bool {
        matches!(self, Self::PassiveReceive | Self::PassiveSend)
    }

    /// The queue that an active operation needs at the other end.
    #[must_use]
    pub const fn inverse(self) -> Option<Self> {
        match self {
            Self::ActiveReceive => Some(Self::PassiveSend),
            Self::ActiveSend => Some(Self::PassiveReceive),
            Self::PassiveSend => Some(Self::ActiveReceive),
            Self::PassiveReceive => Some(Self::ActiveSend),
            Self::Receive | Self::Send => None,
        }
    }
}

/// One use of a buffer: from its addition to a queue until it leaves that. No other use in the process has
/// the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId {
    pub(crate) queue: QueueType,
    pub(crate) number: u64,
}

impl BufferId {
    /// The queue.
    #[must_use]
    pub const fn queue(self) -> QueueType {
        self.queue
    }
}

/// A table by the numbers of uses of buffers.
pub(crate) type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers that follow each other, which no peer chooses.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // Tables look at both ends of a hash: the number is at the lower one, and spread over the upper one.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// How far a queued buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags {
    /// Data is being moved: the operation cannot be cancelled any more.
    pub in_use: bool,
    /// Its end was asked for before data was moved.
    pub cancelled: bool,
    /// Its deadline has passed.
    pub timed_out: bool,
}
