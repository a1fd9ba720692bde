//! What can go wrong, and the way out.

use core::fmt;

use rustix::io::Errno;

use super::config::RING_ENTRIES_MAX;
use super::umem::CHUNK_COUNT_MAX;

/// Why there is no UMEM.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UmemError {
    /// No chunks, or too many.
    #[error("a UMEM of {chunk_count} chunks; expected 1 to {CHUNK_COUNT_MAX}")]
    ChunkCount {
        /// Configured count.
        chunk_count: u32,
    },
    /// More registered memory than there may be chunks for.
    #[error(
        "{registered_bytes} bytes of registered memory besides {chunk_count} chunks; expected no more than \
         {CHUNK_COUNT_MAX} chunks of 4096 bytes together"
    )]
    Registered {
        /// Configured bytes.
        registered_bytes: u64,
        /// Configured count.
        chunk_count: u32,
    },
    /// There is no such memory.
    #[error("no {length_bytes} bytes of memory for a UMEM: {source}")]
    Map {
        /// Bytes that were asked for.
        length_bytes: usize,
        /// The kernel's answer.
        source: Errno,
    },
    /// This process has made 2^32 UMEMs.
    #[error("this process has made more UMEMs than can be told apart")]
    IdsExhausted,
}

/// A queue of an interface, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueLabel {
    /// The interface's name, where it has one, and its index.
    pub interface: String,
    /// Configured index, from 0.
    pub queue_index: u32,
}

impl fmt::Display for QueueLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} of interface {}", self.queue_index, self.interface)
    }
}

/// Why the sockets of a queue could not be opened or driven.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SocketError {
    /// A ring size that the kernel or this crate does not take.
    #[error("a {ring} ring of {entries} entries; expected a power of two from 1 to {RING_ENTRIES_MAX}")]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// Configured count.
        entries: u32,
    },
    /// A queue without sockets.
    #[error("a queue needs at least 1 socket")]
    NoSockets,
    /// The process may not open AF_XDP sockets.
    #[error(
        "no permission for AF_XDP sockets ({source}): CAP_NET_RAW is needed in the user namespace of the \
         network namespace; run as root or grant it"
    )]
    NotPermitted {
        /// The kernel's answer.
        source: Errno,
    },
    /// The kernel was built without AF_XDP, or is too old for what this crate needs.
    #[error(
        "the kernel has no AF_XDP, or too old a one ({source}); needed are CONFIG_XDP_SOCKETS and Linux 5.4"
    )]
    NoXdpSockets {
        /// The kernel's answer.
        source: Errno,
    },
    /// The UMEM would have to be locked in memory, once for each interface, and that is limited.
    #[error(
        "a UMEM of {length_bytes} bytes, which counts once for each interface, cannot be pinned in memory \
         (RLIMIT_MEMLOCK is {}); raise the limit or grant CAP_IPC_LOCK",
        .limit_bytes.map_or_else(|| "unlimited".to_owned(), |limit| format!("{limit} bytes"))
    )]
    MemoryLock {
        /// Bytes of the UMEM.
        length_bytes: u64,
        /// The soft limit; `None` is unlimited.
        limit_bytes: Option<u64>,
    },
    /// There is no interface with that index in this network namespace.
    #[error("no interface with index {interface_index} in this network namespace")]
    NoInterface {
        /// Configured index.
        interface_index: u32,
    },
    /// The interface has fewer queues.
    #[error(
        "interface {} has no queue {}; `ethtool -l` shows how many it has and \
         `ethtool -L` changes it (a veth gets them from `numrxqueues` and `numtxqueues` when it is made)",
        .0.interface, .0.queue_index
    )]
    NoSuchQueue(QueueLabel),
    /// Another UMEM, of this process or another, has the queue.
    #[error("{0} is bound by an AF_XDP socket of another node or program: stop that one, or use mode socket")]
    QueueBusy(QueueLabel),
    /// The device does not take the memory, or has no zero copy.
    #[error("zero copy on {queue} was refused: {source}")]
    NoZeroCopy {
        /// The queue.
        queue: QueueLabel,
        /// The kernel's answer.
        source: Errno,
    },
    /// More queues than one UMEM serves.
    #[error("one UMEM serves at most {max} queues")]
    TooManyQueues {
        /// How many it serves.
        max: usize,
    },
    /// The interface is down.
    #[error("interface {interface} is down")]
    LinkDown {
        /// The interface.
        interface: String,
    },
    /// The kernel has detached the socket, because the interface is gone.
    #[error("the socket on {0} is detached: the interface is gone")]
    Detached(QueueLabel),
    /// Something else that the kernel refused.
    #[error("{operation} for {queue}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The queue.
        queue: QueueLabel,
        /// The kernel's answer.
        source: Errno,
    },
}

impl SocketError {
    /// Whether more privileges would help.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::NotPermitted { .. } | Self::MemoryLock { .. })
    }

    /// Whether the queue is in use by another socket.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::QueueBusy { .. })
    }
}

/// Why the kernel's chunks could not be taken back.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReclaimError {
    /// There are sockets or rings on the UMEM.
    #[error("{count} sockets or sets of rings still use the UMEM; drop all of their rings first")]
    InUse {
        /// How many.
        count: usize,
    },
    /// The sockets were opened in another network namespace than the caller's.
    #[error("the UMEM's sockets were opened in another network namespace than the calling thread's")]
    OtherNamespace,
    /// A queue is still bound, by the UMEM's old sockets or by new ones of another process.
    #[error(
        "queue {queue_index} of the interface with index {interface_index} is still bound, so the kernel may \
         still write to the UMEM: duplicates of the sockets may be open, or another program has the queue"
    )]
    StillBound {
        /// The interface.
        interface_index: u32,
        /// The queue, from 0.
        queue_index: u32,
    },
    /// The queue could not be examined.
    #[error("cannot tell whether the kernel still uses the UMEM: {source}")]
    Unknown {
        /// Why.
        source: Box<SocketError>,
    },
}
