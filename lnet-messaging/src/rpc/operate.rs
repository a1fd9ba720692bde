//! Messages and bulk operations of rpc, on a worker of the transfer machine that asked for them.

use super::address::RpcAddress;
use super::message::Procedure;
use super::program::{self, RpcDescriptor, SEGMENT_BYTES_MAX, put_address};
use super::server::{self, ServerSpec};
use super::xdr::{Decoder, Garbage, put_opaque, put_word};
use super::{Calls, LISTED, RpcTransport};
use crate::crew::Carrier;
use crate::crew::directory::{Directory, Listed};
use crate::errno::{Errno, Error, Status};
use crate::memory::{Memory, part};
use crate::operation::BulkDescriptor;

/// Results that cannot be decoded.
impl From<Garbage> for Errno {
    fn from(_: Garbage) -> Self {
        Self::BadMessage
    }
}

impl Carrier for Calls {
    type Address = RpcAddress;

    fn directory() -> &'static Directory<RpcAddress> {
        &LISTED
    }

    fn parse(text: &str) -> Result<RpcAddress, Error> {
        RpcAddress::parse(text)
    }

    fn encode(descriptor: &RpcDescriptor) -> BulkDescriptor {
        descriptor.encode()
    }

    fn decode(descriptor: &BulkDescriptor) -> Result<RpcDescriptor, Errno> {
        RpcDescriptor::decode(descriptor)
    }

    /// Has the server of the process run for this transfer machine too, and the skulker look at its
    /// deadlines.
    fn open(&self, own: &Listed<RpcAddress>) -> Result<(), Errno> {
        let RpcTransport { connections_max, call_timeout, .. } = self.transport;
        server::acquire(own.address.server, ServerSpec { connections_max, record_timeout: call_timeout })?;
        self.watched().push(own.link.clone());
        Ok(())
    }

    fn close(&self, own: &Listed<RpcAddress>) {
        self.unwatch(&own.link);
        server::release();
    }

    fn send(&self, own: &Listed<RpcAddress>, to: RpcAddress, memory: &Memory, length_bytes: u64) -> Status {
        let put = |arguments: &mut Vec<u8>| {
            put_address(arguments, own.address);
            put_address(arguments, to);
            put_opaque(arguments, length_bytes as usize, part(memory.segments(), 0, length_bytes));
        };
        self.connections.call(to.server, Procedure::Message, put, status)
    }

    fn read(&self, _: &Listed<RpcAddress>, from: &RpcDescriptor, memory: &mut Memory) -> Result<u64, Errno> {
        let total = from.length_bytes;
        if memory.size_bytes() < total {
            return Err(Errno::TooBig);
        }
        let mut offset = 0;
        // A part ends with a segment: a server that needs more calls breaks the protocol.
        for _ in 0..super::LIMITS.segments {
            let put = |arguments: &mut Vec<u8>| {
                from.put(arguments);
                put_word(arguments, offset as u32);
            };
            let take = |results: &[u8]| {
                let mut results = Decoder::new(results);
                let status = program::status(&mut results)?;
                let is_last = results.truth()?;
                let bytes = results.opaque(SEGMENT_BYTES_MAX)?;
                results.end()?;
                status?;
                if offset + bytes.len() as u64 > total {
                    return Err(Errno::Protocol);
                }
                memory.fill_at(offset, bytes);
                Ok((bytes.len() as u64, is_last))
            };
            let (length, is_last) = self.connections.call(from.passive.server, Procedure::Get, put, take)?;
            offset += length;
            match (is_last, length) {
                (true, _) if offset == total => return Ok(total),
                (true, _) | (false, 0) => return Err(Errno::Protocol),
                (false, _) => {}
            }
        }
        Err(Errno::Protocol)
    }

    fn write(
        &self,
        _: &Listed<RpcAddress>,
        to: &RpcDescriptor,
        memory: &Memory,
        length_bytes: u64,
    ) -> Status {
        // The length tells the other end which part is the last.
        let to = RpcDescriptor { length_bytes, ..*to };
        let mut offset = 0;
        for piece in part(memory.segments(), 0, length_bytes) {
            let put = |arguments: &mut Vec<u8>| {
                to.put(arguments);
                put_word(arguments, offset);
                put_opaque(arguments, piece.len(), [piece].into_iter());
            };
            self.connections.call(to.passive.server, Procedure::Put, put, status)?;
            offset += piece.len() as u32;
        }
        Ok(())
    }
}

/// Results that are a status alone.
fn status(results: &[u8]) -> Status {
    let mut results = Decoder::new(results);
    let status = program::status(&mut results)?;
    results.end()?;
    status
}
