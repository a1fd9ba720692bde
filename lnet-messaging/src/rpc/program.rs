//! Arguments and results of the procedures, and the descriptor, which is one of the arguments.
//!
//! ```text
//! struct ep_addr   { unsigned int addr; unsigned int port; unsigned int service; };
//! struct bulk_desc { unsigned hyper name; ep_addr active; ep_addr passive; unsigned int qtype; unsigned int total; };
//! MSG  { ep_addr sender; ep_addr receiver; opaque data<4194304>; }         -> { int rc; }
//! GET  { bulk_desc desc; unsigned int offset; }                            -> { int rc; bool eof; opaque data<262144>; }
//! PUT  { bulk_desc desc; unsigned int offset; opaque data<262144>; }       -> { int rc; }
//! ```
//!
//! An address is in reading order on the wire; the `active` one of all zeros is any.

use std::net::Ipv4Addr;

use super::address::RpcAddress;
use super::xdr::{Decoder, Garbage, put_hyper, put_word};
use crate::crew::Descriptor;
use crate::errno::{Errno, Status};
use crate::operation::BulkDescriptor;
use crate::queue::QueueType;

/// Most bytes of a part of bulk data, and of a segment.
pub(super) const SEGMENT_BYTES_MAX: usize = 1 << 18;
/// Most bytes of a message.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 22;
/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 40;
/// Most bytes of a record: a message, and what stands around it.
pub(super) const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 1024;

/// A descriptor of rpc. A buffer has far less than 4 GiB, of which the wire tells.
pub(super) type RpcDescriptor = Descriptor<RpcAddress>;

/// Why there is no descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoDescriptor {
    /// Bytes that cannot be decoded.
    Garbage,
    /// Values that no descriptor has.
    Invalid,
}

impl From<Garbage> for NoDescriptor {
    fn from(_: Garbage) -> Self {
        Self::Garbage
    }
}

impl RpcDescriptor {
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        put_hyper(to, self.name);
        match self.initiator {
            Some(initiator) => put_address(to, initiator),
            None => (0..3).for_each(|_| put_word(to, 0)),
        }
        put_address(to, self.passive);
        put_word(to, self.queue.number());
        put_word(to, self.length_bytes as u32);
    }

    /// # Errors
    /// Too few bytes, or values that no descriptor has.
    pub(super) fn take(decoder: &mut Decoder<'_>) -> Result<Self, NoDescriptor> {
        let name = decoder.hyper()?;
        let initiator = words(decoder)?;
        let passive = words(decoder)?;
        let [queue, length_bytes] = [decoder.word()?, decoder.word()?];
        let queue = QueueType::from_number(queue).filter(|queue| queue.is_passive());
        let initiator = match initiator {
            [0, 0, 0] => None,
            words => Some(address(words).ok_or(NoDescriptor::Invalid)?),
        };
        let (Some(queue), Some(passive)) = (queue, address(passive)) else {
            return Err(NoDescriptor::Invalid);
        };
        Ok(Self { queue, name, initiator, passive, length_bytes: length_bytes.into() })
    }

    /// The bytes that the application has.
    pub(super) fn encode(&self) -> BulkDescriptor {
        let mut bytes = Vec::with_capacity(DESCRIPTOR_BYTES);
        self.put(&mut bytes);
        BulkDescriptor::from_bytes(&bytes)
    }

    /// # Errors
    /// `EINVAL` for what is none.
    pub(super) fn decode(descriptor: &BulkDescriptor) -> Result<Self, Errno> {
        let mut decoder = Decoder::new(descriptor.as_bytes());
        let decoded = Self::take(&mut decoder).map_err(|_| Errno::Invalid)?;
        decoder.end().map_err(|_| Errno::Invalid)?;
        Ok(decoded)
    }
}

pub(super) fn put_address(to: &mut Vec<u8>, address: RpcAddress) {
    put_word(to, address.server.ip().to_bits());
    put_word(to, address.server.port().into());
    put_word(to, address.service);
}

/// The three words of an address.
pub(super) fn words(decoder: &mut Decoder<'_>) -> Result<[u32; 3], Garbage> {
    Ok([decoder.word()?, decoder.word()?, decoder.word()?])
}

/// The address that they are.
pub(super) fn address([ip, port, service]: [u32; 3]) -> Option<RpcAddress> {
    RpcAddress::new(Ipv4Addr::from_bits(ip), u16::try_from(port).ok()?, service)
}

/// How an operation ended, as the wire has it: the number of an errno of Linux, negative, or 0.
pub(super) fn put_status(to: &mut Vec<u8>, status: Status) {
    let number = status.err().map_or(0, |errno| -errno.number());
    put_word(to, number.cast_unsigned());
}

/// A status; numbers that are unknown are `EIO`.
pub(super) fn status(decoder: &mut Decoder<'_>) -> Result<Status, Garbage> {
    let number = decoder.word()?.cast_signed();
    Ok(match number {
        0 => Ok(()),
        _ => Err(number.checked_neg().and_then(Errno::from_number).unwrap_or(Errno::Io)),
    })
}
