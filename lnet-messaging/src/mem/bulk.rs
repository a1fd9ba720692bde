//! Messages and bulk operations of mem, on a worker of the transfer machine that asked for them.

use super::LISTED;
use super::address::MemAddress;
use super::descriptor::MemDescriptor;
use crate::buffer::{BulkDescriptor, Memory};
use crate::crew::directory::Listed;
use crate::crew::work::{Item, Task, take_receive, take_task};
use crate::errno::{Errno, Status};
use crate::queue::{BufferId, QueueType};
use crate::tm::TmState;
use crate::transport::Completion;

/// Carries out the operation of a buffer that sends or is active.
pub(super) fn operate(own: &Listed, address: MemAddress, id: BufferId) {
    let Some((task, mut memory)) = take_task(own, id) else { return };
    let (status, length_bytes) = match task {
        Task::Send { to, length_bytes } => (send(own, address, &to, &memory, length_bytes), 0),
        Task::Read { from } => read(own, address, &from, &mut memory),
        Task::Write { to, length_bytes } => (write(own, address, &to, &memory, length_bytes), 0),
    };
    own.link.post(Completion::new(id, status, length_bytes).memory(memory));
}

/// The transfer machine with this address, of another domain.
fn find(own: &Listed, address: MemAddress) -> Result<Listed, Errno> {
    LISTED
        .find(address)
        .filter(|found| !found.link.shares_domain_with(&own.link))
        .ok_or(Errno::NetworkUnreachable)
}

fn send(own: &Listed, from: MemAddress, to: &str, memory: &Memory, length_bytes: u64) -> Status {
    let to = MemAddress::parse(to).map_err(|error| error.errno())?;
    let target = find(own, to)?;
    let (id, mut room) = take_receive(&target)?;
    let status = room.copy_from(memory, length_bytes).map_err(|_| Errno::MessageSize);
    let end_point = status.is_ok().then(|| target.link.end_point(&from.to_string()));
    let completion = Completion { end_point, ..Completion::new(id, status, length_bytes) };
    target.work.push(Item::Done(completion.memory(room)));
    status
}

/// The passive buffer that a descriptor names, taken for one operation.
fn take_passive(
    own: &Listed,
    address: MemAddress,
    descriptor: &BulkDescriptor,
    active: QueueType,
) -> Result<(Listed, MemDescriptor, Memory), Errno> {
    let descriptor = MemDescriptor::decode(descriptor).map_err(|error| error.errno())?;
    if descriptor.id.queue.inverse() != Some(active) {
        return Err(Errno::NotPermitted);
    }
    if descriptor.initiator.is_some_and(|initiator| initiator != address) {
        return Err(Errno::AccessDenied);
    }
    let target = find(own, descriptor.passive)?;
    let memory = target.link.with_front(|front| {
        if front.state() != TmState::Started {
            return Err(Errno::NetworkUnreachable);
        }
        let queued = front.queued(descriptor.id).filter(|queued| queued.is_usable());
        let queued = queued.ok_or(Errno::NotFound)?;
        // What a descriptor says of the buffer beyond its name is not trusted.
        if queued.operation().length_bytes().is_some_and(|length| length != descriptor.length_bytes) {
            return Err(Errno::Invalid);
        }
        queued.flags.in_use = true;
        Ok(queued.take_memory())
    })?;
    Ok((target, descriptor, memory))
}

fn read(own: &Listed, address: MemAddress, from: &BulkDescriptor, memory: &mut Memory) -> (Status, u64) {
    let (target, descriptor, source) = match take_passive(own, address, from, QueueType::ActiveReceive) {
        Ok(taken) => taken,
        Err(errno) => return (Err(errno), 0),
    };
    let status = memory.copy_from(&source, descriptor.length_bytes).map_err(|error| error.errno());
    target.work.push(Item::Done(Completion::new(descriptor.id, status, 0).memory(source)));
    (status, descriptor.length_bytes)
}

fn write(
    own: &Listed,
    address: MemAddress,
    to: &BulkDescriptor,
    memory: &Memory,
    length_bytes: u64,
) -> Status {
    let (target, descriptor, mut room) = take_passive(own, address, to, QueueType::ActiveSend)?;
    let status = room.copy_from(memory, length_bytes).map_err(|error| error.errno());
    let completion = Completion::new(descriptor.id, status, length_bytes).memory(room);
    target.work.push(Item::Done(completion));
    status
}
