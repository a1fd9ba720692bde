//! The target's side of a plan: an entry for each operation that may arrive at a shard.

use std::sync::Arc;

use lnet_core::event::{Event, EventKind, EventMd, Origin};
use lnet_core::handle::{EqHandle, MdHandle};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::runtime::{Delivery, Home, Steering, Worker, entry_home};
use lnet_wire::ProcessId;

use super::plan::{Kind, Operation, Plan};

/// What the bytes of a buffer are before anything arrives.
const GUARD: u8 = 0xEE;

/// One shard of the target.
#[derive(Debug)]
pub struct Sink {
    plan: Arc<Plan>,
    event_queue: EqHandle,
    /// Descriptors posted, by number of their operation; taken out by their last event.
    posted: Vec<Option<MdHandle>>,
}

impl Sink {
    /// Posts the entries of all operations that may arrive at this shard: each has one, and where a policy
    /// leaves the shard open, one on every shard.
    ///
    /// # Panics
    /// When the shard refuses one.
    #[must_use]
    pub fn post(plan: &Arc<Plan>, steering: &Steering, worker: &mut Worker) -> Self {
        let event_queue = worker.create_event_queue(2 * plan.operations.len() as u32).expect("event queue");
        let mut posted = vec![None; plan.operations.len()];
        for (number, operation) in plan.operations.iter().enumerate() {
            let home = entry_home(steering, operation.portal, &ProcessId::ANY, operation.match_bits, 0)
                .expect("a home");
            if matches!(home, Home::Shard(shard) if shard != u32::from(worker.shard_id().0)) {
                continue;
            }
            posted[number] = Some(attach(number, operation, event_queue, worker));
        }
        Self { plan: Arc::clone(plan), event_queue, posted }
    }

    /// Takes the events of a turn and checks them.
    ///
    /// # Panics
    /// When anything about one is not as planned.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            let number = delivery.event.user_ptr() as usize;
            self.check(number, &delivery);
            let posted = self.posted[number].take();
            assert_eq!(posted, Some(delivery.event.md()), "operation {number}: one last event");
            self.plan.note_arrival(number);
        }
    }

    /// Unlinks what was posted and met nothing; each buffer comes home untouched.
    ///
    /// # Panics
    /// When one does not.
    pub fn unlink_rest(&mut self, worker: &mut Worker) {
        for (number, md) in self.posted.iter_mut().enumerate().filter_map(|(n, md)| Some((n, md.take()?))) {
            worker.unlink(md).expect("a descriptor that is posted");
            let Delivery { event, buffer, .. } = worker.poll_event(self.event_queue).expect("its last event");
            assert_eq!((event.kind(), event.unlinked(), event.md()), (EventKind::Unlink, true, md));
            assert_eq!(event.user_ptr(), number as u64);
            let buffer = buffer.expect("the last event brings the buffer");
            let is_get = self.plan.operations[number].kind == Kind::Get;
            assert!(is_get || buffer.iter().all(|byte| *byte == GUARD), "operation {number}");
        }
    }

    fn check(&self, number: usize, delivery: &Delivery) {
        let operation = &self.plan.operations[number];
        let is_get = operation.kind == Kind::Get;
        let (source, target) = self.plan.ends_told(number, |ends| {
            delivery.event.origin().is_some_and(|origin| (origin.initiator, origin.target) == *ends)
        });
        let md = EventMd {
            handle: delivery.event.md(),
            user_ptr: number as u64,
            options: options(operation),
            status: Status::Ok,
            unlinked: true,
        };
        let origin = Origin { target, initiator: source, source: source.nid, sender: source.nid };
        let Operation { portal, match_bits, .. } = *operation;
        let manipulated_bytes = operation.moved_bytes();
        let offset_bytes = u64::from(operation.offset.unwrap_or(0));
        let expected = if is_get {
            Event::Get { md, origin, portal, match_bits, manipulated_bytes, offset_bytes }
        } else {
            let (hdr_data, requested_bytes) = (Plan::hdr_data(number), operation.length_bytes);
            Event::Put {
                md,
                origin,
                portal,
                match_bits,
                hdr_data,
                requested_bytes,
                manipulated_bytes,
                offset_bytes,
            }
        };
        assert_eq!(delivery.event, expected, "operation {number}: {operation:?}");
        let buffer = delivery.buffer.as_ref().expect("the last event brings the buffer");
        let (before, rest) = buffer.split_at(operation.offset.unwrap_or(0) as usize);
        assert!(before.iter().all(|byte| *byte == GUARD), "operation {number}: bytes before the offset");
        assert!(Plan::holds(number, &rest[..operation.moved_bytes() as usize]), "operation {number}: bytes");
    }
}

fn options(operation: &Operation) -> MdOptions {
    let direction = if operation.kind == Kind::Get { MdOptions::GET } else { MdOptions::PUT };
    let manage = if operation.offset.is_some() { MdOptions::MANAGE_REMOTE } else { MdOptions::NONE };
    direction | manage | MdOptions::TRUNCATE
}

fn attach(number: usize, operation: &Operation, event_queue: EqHandle, worker: &mut Worker) -> MdHandle {
    let mut bytes = vec![GUARD; operation.target_bytes()];
    if operation.kind == Kind::Get {
        Plan::fill(number, &mut bytes[operation.offset.unwrap_or(0) as usize..]);
    }
    let entry = EntrySpec::new(operation.portal, operation.match_bits);
    let (length_bytes, once) = (bytes.len() as u64, Threshold::Count(1));
    let md = MdSpec {
        user_ptr: number as u64,
        ..MdSpec::new(length_bytes, once, options(operation), event_queue)
    };
    match worker.attach(&entry, &md, Buffer::from(bytes)) {
        Ok((_, md)) => md,
        Err(refused) => panic!("operation {number}: {refused}"),
    }
}
