//! Operations of queued buffers, and the descriptor by which the other end of a bulk operation names it.

use crate::end_point::EndPoint;
use crate::queue::QueueType;

/// Opaque bytes that the other end needs for a bulk operation with a passive buffer, to be sent in a message.
/// They name one use of the buffer, and are dead once that has ended.
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

/// The operation of a buffer that is added to a queue. Each has what it needs, and no more: what makes no
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
    /// before the last one is waited for ([`BufferEvent`](crate::BufferEvent)).
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
        /// The only one that may; over lnet all of its node may.
        initiator: Option<EndPoint>,
    },
    /// Another transfer machine may read its first bytes once.
    PassiveSend {
        /// The only one that may; over lnet all of its node may.
        initiator: Option<EndPoint>,
        /// How many bytes.
        length_bytes: u64,
    },
    /// Bytes of a passive buffer are fetched into it.
    ActiveReceive {
        /// The passive buffer.
        from: BulkDescriptor,
    },
    /// Its first bytes are written to a passive buffer.
    ActiveSend {
        /// The passive buffer.
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
