//! Answers of the server to the calls of others, whose every word may be a lie.

use super::address::RpcAddress;
use super::message::{self, Fault, Procedure};
use super::program::{self, MESSAGE_BYTES_MAX, NoDescriptor, RpcDescriptor, SEGMENT_BYTES_MAX, put_status};
use super::xdr::{Decoder, put_opaque, put_word};
use super::{LISTED, record};
use crate::crew;
use crate::crew::directory::Listed;
use crate::crew::work::Item;
use crate::errno::{Errno, Status};
use crate::memory::part;
use crate::operation::Operation;
use crate::queue::{BufferId, QueueType};
use crate::transport::{Completion, QueuedBuffer, TmFront};

/// The record that answers a call; `None` for what is no call, after which there is no use in the connection.
pub(super) fn answer(call: &[u8]) -> Option<Vec<u8>> {
    let (xid, call) = message::call(call).ok()?;
    Some(record::build(|reply| {
        let begin = reply.len();
        message::put_reply(reply, xid, Ok(()));
        let run = call.and_then(|(procedure, arguments)| run(procedure, Decoder::new(arguments), reply));
        if let Err(fault) = run {
            reply.truncate(begin);
            message::put_reply(reply, xid, Err(fault));
        }
    }))
}

/// Runs a procedure, which appends its results.
fn run(procedure: Procedure, mut arguments: Decoder<'_>, results: &mut Vec<u8>) -> Result<(), Fault> {
    match procedure {
        Procedure::Null => arguments.end()?,
        Procedure::Message => {
            let [from, to] = [program::words(&mut arguments)?, program::words(&mut arguments)?];
            let bytes = arguments.opaque(MESSAGE_BYTES_MAX)?;
            arguments.end()?;
            put_status(results, receive(from, to, bytes));
        }
        Procedure::Get => {
            let descriptor = descriptor(&mut arguments)?;
            let offset = arguments.word()?;
            arguments.end()?;
            let begin = results.len();
            let got = descriptor
                .map_err(Refusal::Status)
                .and_then(|descriptor| get(&descriptor, offset.into(), results));
            match got {
                Ok(()) => {}
                Err(Refusal::Fault(fault)) => return Err(fault),
                Err(Refusal::Status(errno)) => {
                    results.truncate(begin);
                    put_status(results, Err(errno));
                    // Not the end, and no bytes.
                    (0..2).for_each(|_| put_word(results, 0));
                }
            }
        }
        Procedure::Put => {
            let descriptor = descriptor(&mut arguments)?;
            let offset = arguments.word()?;
            let bytes = arguments.opaque(SEGMENT_BYTES_MAX)?;
            arguments.end()?;
            let status = descriptor.and_then(|descriptor| put(&descriptor, offset.into(), bytes));
            put_status(results, status);
        }
    }
    Ok(())
}

/// The descriptor in arguments, or what its caller is told.
fn descriptor(arguments: &mut Decoder<'_>) -> Result<Result<RpcDescriptor, Errno>, Fault> {
    match RpcDescriptor::take(arguments) {
        Ok(descriptor) => Ok(Ok(descriptor)),
        Err(NoDescriptor::Invalid) => Ok(Err(Errno::Invalid)),
        Err(NoDescriptor::Garbage) => Err(Fault::GarbageArguments),
    }
}

/// A message has come.
fn receive(from: [u32; 3], to: [u32; 3], bytes: &[u8]) -> Status {
    let from = program::address(from).ok_or(Errno::Invalid)?;
    let target = program::address(to).and_then(|to| LISTED.find(to)).ok_or(Errno::NetworkUnreachable)?;
    crew::receive(&target, &from, bytes.len() as u64, std::iter::once(bytes))
}

/// The transfer machine that has the passive buffer.
fn target(descriptor: &RpcDescriptor) -> Result<Listed<RpcAddress>, Errno> {
    LISTED.find(descriptor.passive).ok_or(Errno::NetworkUnreachable)
}

/// The passive buffer that a descriptor names, if its caller may use it.
fn passive<'a>(
    front: &'a mut TmFront,
    descriptor: &RpcDescriptor,
    queue: QueueType,
) -> Result<(BufferId, &'a mut QueuedBuffer), Errno> {
    let (id, queued) = front.passive(queue, descriptor.name)?;
    let stated = descriptor.initiator.map(|stated| stated.to_string());
    match queued.operation().end_point() {
        Some(initiator) if stated.as_deref() != Some(initiator.address()) => Err(Errno::AccessDenied),
        _ => Ok((id, queued)),
    }
}

/// Why nothing is read.
enum Refusal {
    /// A status in the results.
    Status(Errno),
    /// A fault in the place of results.
    Fault(Fault),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Status(errno)
    }
}

/// Appends what stands at `offset` of a passive buffer, up to the end of a segment. With the last part the
/// buffer has served.
fn get(descriptor: &RpcDescriptor, offset: u64, results: &mut Vec<u8>) -> Result<(), Refusal> {
    let target = target(descriptor)?;
    let completion = target.link.with_front(|front| {
        let (id, queued) = passive(front, descriptor, QueueType::PassiveSend)?;
        let &Operation::PassiveSend { length_bytes, .. } = queued.operation() else {
            return Err(Refusal::Status(Errno::NotFound));
        };
        let pieces = part(queued.memory().segments(), offset, length_bytes).next();
        let piece = pieces.ok_or(Errno::Invalid)?;
        results.try_reserve(piece.len() + 64).map_err(|_| Refusal::Fault(Fault::System))?;
        let is_last = offset + piece.len() as u64 == length_bytes;
        put_status(results, Ok(()));
        put_word(results, is_last.into());
        put_opaque(results, piece.len(), [piece].into_iter());
        Ok(is_last.then(|| {
            queued.flags.in_use = true;
            Completion::new(id, Ok(()), 0).memory(queued.take_memory())
        }))
    })?;
    if let Some(completion) = completion {
        target.work.push(Item::Done(completion));
    }
    Ok(())
}

/// Writes the next part of a passive buffer. With the last one the buffer has served; what is refused leaves
/// it as it was.
fn put(descriptor: &RpcDescriptor, offset: u64, bytes: &[u8]) -> Status {
    let target = target(descriptor)?;
    let total = descriptor.length_bytes;
    let end = offset + bytes.len() as u64;
    let completion = target.link.with_front(|front| {
        let (id, queued) = passive(front, descriptor, QueueType::PassiveReceive)?;
        let size = queued.size_bytes();
        if total > size || end > size {
            return Err(Errno::TooBig);
        }
        if offset != queued.received_bytes || end > total || bytes.is_empty() {
            return Err(Errno::Invalid);
        }
        queued.memory_mut().fill_at(offset, bytes);
        queued.received_bytes = end;
        Ok((end == total).then(|| {
            queued.flags.in_use = true;
            Completion::new(id, Ok(()), total).memory(queued.take_memory())
        }))
    })?;
    if let Some(completion) = completion {
        target.work.push(Item::Done(completion));
    }
    Ok(())
}
