//! Messages and bulk operations of rpc, on a worker of the transfer machine that asked for them.

use super::address::RpcAddress;
use super::connection::Connections;
use super::message::Procedure;
use super::program::{self, RpcDescriptor, SEGMENT_MAX_BYTES, put_address};
use super::xdr::{Decoder, Garbage, put_opaque, put_word};
use crate::buffer::{BulkDescriptor, Memory, part};
use crate::crew::directory::Listed;
use crate::crew::work::{Task, take_task};
use crate::errno::{Errno, Status};
use crate::queue::{BufferId, QueueType};
use crate::transport::Completion;

/// Results that cannot be decoded.
impl From<Garbage> for Errno {
    fn from(_: Garbage) -> Self {
        Self::BadMessage
    }
}

/// The calls of a transfer machine.
pub(super) struct Caller<'a> {
    pub(super) connections: &'a Connections,
    pub(super) address: RpcAddress,
}

impl Caller<'_> {
    /// Carries out the operation of a buffer that sends or is active.
    pub(super) fn operate(&self, own: &Listed, id: BufferId) {
        let Some((task, mut memory)) = take_task(own, id) else { return };
        let (status, length_bytes) = match task {
            Task::Send { to, length_bytes } => (self.send(&to, &memory, length_bytes), 0),
            Task::Read { from } => match self.read(&from, &mut memory) {
                Ok(length_bytes) => (Ok(()), length_bytes),
                Err(errno) => (Err(errno), 0),
            },
            Task::Write { to, length_bytes } => (self.write(&to, &memory, length_bytes), 0),
        };
        own.link.post(Completion::new(id, status, length_bytes).memory(memory));
    }

    fn send(&self, to: &str, memory: &Memory, length_bytes: u64) -> Status {
        let to = RpcAddress::parse(to).map_err(|error| error.errno())?;
        let put = |arguments: &mut Vec<u8>| {
            put_address(arguments, self.address);
            put_address(arguments, to);
            put_opaque(arguments, length_bytes as usize, part(memory.segments(), 0, length_bytes));
        };
        self.connections.call(to.server, Procedure::Message, put, status)
    }

    /// The descriptor of an operation in this direction that this transfer machine may carry out.
    fn descriptor(&self, descriptor: &BulkDescriptor, active: QueueType) -> Result<RpcDescriptor, Errno> {
        let descriptor = RpcDescriptor::decode(descriptor)?;
        if descriptor.id.queue.inverse() != Some(active) {
            return Err(Errno::NotPermitted);
        }
        match descriptor.initiator {
            Some(initiator) if initiator != self.address => Err(Errno::AccessDenied),
            _ => Ok(descriptor),
        }
    }

    /// Returns the number of bytes read.
    fn read(&self, from: &BulkDescriptor, memory: &mut Memory) -> Result<u64, Errno> {
        let descriptor = self.descriptor(from, QueueType::ActiveReceive)?;
        let total = u64::from(descriptor.total_bytes);
        if memory.size_bytes() < total {
            return Err(Errno::TooBig);
        }
        let mut offset = 0;
        // A part ends with a segment: a server that needs more calls breaks the protocol.
        for _ in 0..super::LIMITS.segments {
            let put = |arguments: &mut Vec<u8>| {
                descriptor.put(arguments);
                put_word(arguments, offset as u32);
            };
            let take = |results: &[u8]| {
                let mut results = Decoder::new(results);
                let status = program::status(&mut results)?;
                let is_last = results.truth()?;
                let bytes = results.opaque(SEGMENT_MAX_BYTES)?;
                results.end()?;
                status?;
                if offset + bytes.len() as u64 > total {
                    return Err(Errno::Protocol);
                }
                memory.fill_at(offset, bytes);
                Ok((bytes.len() as u64, is_last))
            };
            let (length, is_last) =
                self.connections.call(descriptor.passive.server, Procedure::Get, put, take)?;
            offset += length;
            match (is_last, length) {
                (true, _) if offset == total => return Ok(total),
                (true, _) | (false, 0) => return Err(Errno::Protocol),
                (false, _) => {}
            }
        }
        Err(Errno::Protocol)
    }

    fn write(&self, to: &BulkDescriptor, memory: &Memory, length_bytes: u64) -> Status {
        let descriptor = self.descriptor(to, QueueType::ActiveSend)?;
        // That is how the other end learns which part is the last. A buffer has far less than 4 GiB.
        let descriptor = RpcDescriptor { total_bytes: length_bytes as u32, ..descriptor };
        let mut offset = 0;
        for piece in part(memory.segments(), 0, length_bytes) {
            let put = |arguments: &mut Vec<u8>| {
                descriptor.put(arguments);
                put_word(arguments, offset);
                put_opaque(arguments, piece.len(), [piece].into_iter());
            };
            self.connections.call(descriptor.passive.server, Procedure::Put, put, status)?;
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
