//! Registered buffers, what is done with them, and descriptors of passive ones.
//!
//! Invariants: a buffer is owned by the application or by a queue, never by both; one that is owned by a
//! queue comes back with the event that says so. Whatever leaves the application's hands is registered with a
//! domain, and is deregistered when it is dropped.

mod lists;
pub mod pool;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::pool::Pool;
use crate::domain::{Domain, DomainShared};
use crate::end_point::EndPoint;
use crate::errno::{Errno, Error};
use crate::event::BufferEvent;
use crate::queue::{BufferId, QueueType};
use crate::tm::TransferMachine;
use crate::transport::Limits;

/// The bytes of a buffer, in one or more segments.
#[derive(Debug, Default)]
pub struct Memory(pub(crate) lnet_user::Buffer);

impl Memory {
    /// Memory of these segments, one behind the other, none of them empty.
    ///
    /// # Errors
    /// `EINVAL` without segments or with an empty one, `EFBIG` where there are more than any transport takes.
    pub fn from_segments(segments: Vec<Vec<u8>>) -> Result<Self, Error> {
        let count = segments.len();
        if count == 0 || segments.iter().any(Vec::is_empty) {
            return Err(Error::invalid(format!(
                "{count} segments, some without bytes: one at least with one byte each is expected"
            )));
        }
        match lnet_user::Buffer::from_fragments(segments) {
            Ok(memory) => Ok(Self(memory)),
            Err(error) => Err(Error::new(Errno::TooBig, error.to_string())),
        }
    }

    /// Zero bytes in so many segments of the same size.
    ///
    /// # Errors
    /// As [`Memory::from_segments`].
    pub fn zeroed(segments: usize, segment_bytes: usize) -> Result<Self, Error> {
        Self::from_segments(vec![vec![0; segment_bytes]; segments])
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// The segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.fragments()
    }

    /// The segments, in order, to write.
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.fragments_mut()
    }

    /// Copies bytes to the beginning, and returns how many: as many as there is room for.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        self.fill_at(0, bytes)
    }

    /// Copies bytes to this offset, and returns how many: as many as there is room for.
    pub fn fill_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> usize {
        let mut left = bytes;
        let mut begin = 0;
        for segment in self.segments_mut() {
            let length = segment.len() as u64;
            let from = offset_bytes.saturating_sub(begin).min(length) as usize;
            begin += length;
            let room = &mut segment[from..];
            let (now, later) = left.split_at(left.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            left = later;
        }
        bytes.len() - left.len()
    }

    /// Some of the bytes, in one piece.
    #[must_use]
    pub fn bytes(&self, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        let end = offset_bytes.saturating_add(length_bytes);
        part(self.segments(), offset_bytes, end).flatten().copied().collect()
    }

    /// Copies the first `length_bytes` of another memory to the beginning, across segments of other sizes.
    ///
    /// # Errors
    /// `EFBIG` where one of them is shorter.
    pub fn copy_from(&mut self, source: &Self, length_bytes: u64) -> Result<(), Error> {
        let room = self.size_bytes().min(source.size_bytes());
        if length_bytes > room {
            let found = format!("a copy of {length_bytes} bytes: at most {room} are expected");
            return Err(Error::new(Errno::TooBig, found));
        }
        let mut source = part(source.segments(), 0, length_bytes);
        let mut piece: &[u8] = &[];
        for segment in self.segments_mut() {
            let mut target = segment;
            while !target.is_empty() {
                if piece.is_empty() {
                    let Some(next) = source.next() else { return Ok(()) };
                    piece = next;
                }
                let (now, later) = piece.split_at(piece.len().min(target.len()));
                let (to, rest) = target.split_at_mut(now.len());
                to.copy_from_slice(now);
                (piece, target) = (later, rest);
            }
        }
        Ok(())
    }

    /// Whether a transport with these limits takes memory of this shape.
    ///
    /// # Errors
    /// `EFBIG` names what is too much.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Error> {
        let segments: Vec<u64> = self.segments().map(|segment| segment.len() as u64).collect();
        let longest = segments.iter().copied().max().unwrap_or(0);
        check_shape(segments.len(), longest, segments.iter().sum(), limits)
    }
}

/// Whether a transport with these limits takes so many segments, the longest and all of so many bytes.
///
/// # Errors
/// `EFBIG` names what is too much.
pub(crate) fn check_shape(
    segments: usize,
    longest_bytes: u64,
    size_bytes: u64,
    limits: &Limits,
) -> Result<(), Error> {
    let found = [
        ("bytes in a buffer", size_bytes, limits.buffer_bytes),
        ("bytes in a segment", longest_bytes, limits.segment_bytes),
        ("segments", segments as u64, limits.segments as u64),
    ];
    match found.iter().find(|(_, found, most)| found > most) {
        Some((what, found, most)) => {
            Err(Error::new(Errno::TooBig, format!("{found} {what}: at most {most} are expected")))
        }
        None => Ok(()),
    }
}

/// The bytes from `start` to `end` of segments, without empty pieces.
pub(crate) fn part<'a>(
    segments: impl Iterator<Item = &'a [u8]>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = &'a [u8]> {
    let mut begin = 0;
    segments.filter_map(move |segment| {
        let length = segment.len() as u64;
        let [from, to] = [start, end].map(|bound| bound.saturating_sub(begin).min(length) as usize);
        begin += length;
        (from < to).then(|| &segment[from..to])
    })
}

/// A buffer that is registered with a [`Domain`], and not queued. Dropping it deregisters it.
pub struct Buffer {
    memory: Memory,
    domain: Arc<DomainShared>,
    size_bytes: u64,
    /// The pool that gave it.
    pool: Option<Pool>,
    /// The application's; the layer never looks at it.
    pub user_data: u64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.size_bytes)
    }
}

impl Buffer {
    /// One that the transport has registered already, and that the domain counts.
    pub(crate) fn new(memory: Memory, domain: Arc<DomainShared>) -> Self {
        let size_bytes = memory.size_bytes();
        Self { memory, domain, size_bytes, pool: None, user_data: 0 }
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its bytes.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its bytes, to write.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Some of the bytes, in one piece.
    #[must_use]
    pub fn bytes(&self, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        self.memory.bytes(offset_bytes, length_bytes)
    }

    /// Copies bytes to the beginning, and returns how many: as many as there is room for.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        self.memory.fill(bytes)
    }

    /// The domain that it is registered with.
    #[must_use]
    pub fn domain(&self) -> Domain {
        Domain::of(&self.domain)
    }

    pub(crate) fn belongs_to(&self, domain: &Arc<DomainShared>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// The pool that it is from; `None` of one that the application has registered itself.
    #[must_use]
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// Gives it back to the pool that it is from, with the colour of its last user
    /// ([`LockedPool::put`](crate::LockedPool::put)). The pool must not be locked by this thread.
    ///
    /// # Errors
    /// `EINVAL`, with the buffer, where it is from no pool, or the colour does not exist.
    pub fn put_back(self, colour: Option<usize>) -> Result<(), (Error, Self)> {
        match self.pool.clone() {
            Some(pool) => pool.lock().put(self, colour),
            None => Err((Error::invalid("a buffer of no pool: one that a pool gave is expected"), self)),
        }
    }

    pub(crate) fn set_pool(&mut self, pool: Option<Pool>) {
        self.pool = pool;
    }

    /// Takes the memory for the time of an operation.
    pub(crate) fn take_memory(&mut self) -> Memory {
        std::mem::take(&mut self.memory)
    }

    /// Takes the memory back. Where a transport has lost it, the buffer gets other memory of its size.
    pub(crate) fn set_memory(&mut self, memory: Memory) {
        self.memory = if memory.size_bytes() == self.size_bytes {
            memory
        } else {
            Memory(lnet_user::Buffer::zeroed(self.size_bytes as usize))
        };
    }

    /// Deregisters it, and gives its memory back.
    #[must_use]
    pub fn deregister(mut self) -> Memory {
        self.take_memory()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.lose_one();
        }
        self.domain.deregister();
    }
}

/// What the other end needs for a bulk operation with a passive buffer: opaque bytes, to be sent in a
/// message. It names one use of the buffer, and is dead once that has ended.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BulkDescriptor(Vec<u8>);

impl BulkDescriptor {
    /// The descriptor with these bytes, as they came in a message. What they say is checked when it is used.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Its bytes, the same on every host.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Frees the bytes: none are left. Freeing it once more does nothing.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

/// What is done with a buffer that is added to a queue. Each has what it needs, and no more: what makes no
/// sense does not compile.
///
/// A buffer that is queued is the layer's:
/// ```compile_fail,E0382
/// # fn add(tm: &lnet_messaging::TransferMachine, mut buffer: lnet_messaging::Buffer) {
/// # use lnet_messaging::Operation;
/// let added = tm.add(buffer, Operation::PassiveReceive { initiator: None });
/// buffer.fill(b"too late");
/// # }
/// ```
/// A message has a destination:
/// ```compile_fail,E0063
/// let operation = lnet_messaging::Operation::Send { length_bytes: 8 };
/// ```
/// A receive buffer has none:
/// ```compile_fail,E0559
/// # fn receive(to: lnet_messaging::EndPoint) -> lnet_messaging::Operation {
/// lnet_messaging::Operation::Receive { to, min_receive_bytes: 8, max_messages: 1 }
/// # }
/// ```
#[derive(Debug)]
pub enum Operation {
    /// Messages are received into it. Events of all but the last one lend its bytes, and are to be dropped
    /// before the last one is waited for ([`BufferEvent`]).
    Receive {
        /// Room that a message is given, in bytes: on LNet also the longest message that the buffer takes.
        /// The buffer ends when less is left.
        min_receive_bytes: u64,
        /// Messages after which the buffer ends.
        max_messages: u32,
    },
    /// Its first bytes are sent as a message.
    Send {
        /// Where to.
        to: EndPoint,
        /// How many.
        length_bytes: u64,
    },
    /// Another transfer machine may write to it once.
    PassiveReceive {
        /// The only one that may, where the transport can tell (mem, rpc).
        initiator: Option<EndPoint>,
    },
    /// Another transfer machine may read its first bytes once.
    PassiveSend {
        /// The only one that may, where the transport can tell (mem, rpc).
        initiator: Option<EndPoint>,
        /// How many bytes.
        length_bytes: u64,
    },
    /// It is filled with the bytes of a passive buffer.
    ActiveReceive {
        /// Of which one.
        from: BulkDescriptor,
    },
    /// Its first bytes are written to a passive buffer.
    ActiveSend {
        /// To which one.
        to: BulkDescriptor,
        /// How many.
        length_bytes: u64,
    },
}

impl Operation {
    /// The queue that it belongs to.
    #[must_use]
    pub fn queue(&self) -> QueueType {
        match self {
            Self::Receive { .. } => QueueType::Receive,
            Self::Send { .. } => QueueType::Send,
            Self::PassiveReceive { .. } => QueueType::PassiveReceive,
            Self::PassiveSend { .. } => QueueType::PassiveSend,
            Self::ActiveReceive { .. } => QueueType::ActiveReceive,
            Self::ActiveSend { .. } => QueueType::ActiveSend,
        }
    }

    /// The length of the data in the buffer, of one that sends.
    #[must_use]
    pub fn length_bytes(&self) -> Option<u64> {
        match *self {
            Self::Send { length_bytes, .. }
            | Self::PassiveSend { length_bytes, .. }
            | Self::ActiveSend { length_bytes, .. } => Some(length_bytes),
            _ => None,
        }
    }

    /// The end point that it names.
    #[must_use]
    pub fn end_point(&self) -> Option<&EndPoint> {
        match self {
            Self::Send { to, .. } => Some(to),
            Self::PassiveReceive { initiator } | Self::PassiveSend { initiator, .. } => initiator.as_ref(),
            _ => None,
        }
    }
}

type Called = dyn Fn(&TransferMachine, BufferEvent) + Send + Sync;

/// What is called with the events of one buffer.
#[derive(Clone)]
pub struct Callback(Arc<Called>);

impl Callback {
    /// A callback that runs on a thread of the transport, or on that which delivers
    /// ([`TransferMachine::deliver_all`]).
    pub fn new(callback: impl Fn(&TransferMachine, BufferEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn call(&self, tm: &TransferMachine, event: BufferEvent) {
        (self.0)(tm, event);
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}

/// A buffer's addition to a queue.
#[derive(Debug)]
pub struct Addition {
    pub(crate) operation: Operation,
    pub(crate) deadline: Option<Instant>,
    pub(crate) callback: Option<Callback>,
}

impl From<Operation> for Addition {
    fn from(operation: Operation) -> Self {
        Self { operation, deadline: None, callback: None }
    }
}

impl Addition {
    /// Has the operation end with [`Errno::TimedOut`] if it is not over by then: not earlier, and somewhat
    /// later.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Has events of the buffer go to this callback, instead of the transfer machine's
    /// [`Handler`](crate::event::Handler).
    #[must_use]
    pub fn callback(mut self, callback: &Callback) -> Self {
        self.callback = Some(callback.clone());
        self
    }
}

/// A buffer that is queued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Added {
    /// Names this use of it.
    pub id: BufferId,
    /// Of a passive buffer: for the other end. It is usable already.
    pub descriptor: Option<BulkDescriptor>,
}

/// A refusal that hands the buffer back.
#[derive(Debug)]
pub struct NotAdded {
    /// Why.
    pub error: Error,
    /// The buffer.
    pub buffer: Buffer,
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotAdded {}
