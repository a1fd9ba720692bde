//! The initiator's side of a plan: every shard starts its share and checks what comes of it.

use std::collections::VecDeque;
use std::sync::Arc;

use lnet_core::event::{Event, EventKind, EventMd, Origin};
use lnet_core::handle::EqHandle;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_user::Buffer;
use lnet_user::runtime::{Delivery, Worker};
use lnet_wire::MessageType;

use super::plan::{Kind, Operation, Plan, WINDOW};

/// One shard of the initiator.
#[derive(Debug)]
pub struct Source {
    plan: Arc<Plan>,
    event_queue: EqHandle,
    waiting: VecDeque<usize>,
    /// Events that are still to come, by number of the operation; 0 before its start and after its end.
    pending: Vec<u8>,
    under_way: usize,
}

impl Source {
    /// The share of one of `shards` shards: every operation whose number is its own modulo `shards`.
    ///
    /// # Panics
    /// When the shard has no room for an event queue.
    #[must_use]
    pub fn new(plan: &Arc<Plan>, shards: usize, worker: &mut Worker) -> Self {
        let shard = usize::from(worker.shard_id().0);
        let event_queue = worker.create_event_queue(4 * WINDOW as u32).expect("event queue");
        let waiting = (0..plan.operations.len()).filter(|number| number % shards == shard).collect();
        let pending = vec![0; plan.operations.len()];
        Self { plan: Arc::clone(plan), event_queue, waiting, pending, under_way: 0 }
    }

    /// Takes the events of a turn, checks them and starts what there is room for.
    ///
    /// # Panics
    /// When anything about an event is not as planned, or the shard refuses an operation.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            self.take(&delivery);
        }
        while self.under_way < WINDOW
            && let Some(number) = self.waiting.pop_front()
        {
            self.start(number, worker);
        }
    }

    fn start(&mut self, number: usize, worker: &mut Worker) {
        let operation = self.plan.operations[number];
        let mut bytes = vec![0; operation.length_bytes as usize];
        if operation.kind != Kind::Get {
            Plan::fill(number, &mut bytes);
        }
        let events = if operation.kind == Kind::PutNoAck { 1 } else { 2 };
        let md = MdSpec {
            length_bytes: u64::from(operation.length_bytes),
            max_size_bytes: None,
            threshold: Threshold::Count(events.into()),
            options: MdOptions::NONE,
            auto_unlink: true,
            event_queue: Some(self.event_queue),
            user_ptr: number as u64,
        };
        let md = worker.bind(&md, Buffer::from(bytes)).unwrap_or_else(|refused| panic!("{refused}"));
        let Operation { portal, match_bits, .. } = operation;
        let (source, target) = self.plan.ends(number);
        let (self_nid, offset) = (Some(source.nid), operation.offset.unwrap_or(0));
        let started = match operation.kind {
            Kind::Get => {
                worker.get(&GetRequest { md, part: None, self_nid, target, portal, match_bits, offset })
            }
            kind => {
                let (ack, hdr_data) = (kind == Kind::Put, Plan::hdr_data(number));
                worker.put(&PutRequest {
                    md,
                    part: None,
                    ack,
                    self_nid,
                    target,
                    portal,
                    match_bits,
                    offset,
                    hdr_data,
                })
            }
        };
        started.unwrap_or_else(|error| panic!("operation {number}: {error}"));
        self.pending[number] = events;
        self.under_way += 1;
    }

    fn take(&mut self, delivery: &Delivery) {
        let event = &delivery.event;
        let number = event.user_ptr() as usize;
        let operation = &self.plan.operations[number];
        assert_ne!(self.pending[number], 0, "an event too many: {event:?}");
        self.pending[number] -= 1;
        let last = self.pending[number] == 0;
        let expected = self.expected(number, event, last);
        assert_eq!(*event, expected, "operation {number}: {operation:?}");
        assert_eq!(delivery.buffer.is_some(), last, "the last event brings the buffer");
        if let Some(buffer) = &delivery.buffer {
            let meant =
                if operation.kind == Kind::Get { operation.moved_bytes() } else { operation.length_bytes };
            let (meant, rest) = buffer.split_at(meant as usize);
            assert!(Plan::holds(number, meant), "operation {number}: bytes");
            assert!(rest.iter().all(|byte| *byte == 0), "operation {number}: bytes that nobody sent");
            self.under_way -= 1;
            self.plan.note_end();
        }
    }

    /// The event of the same kind as `event`, as it must be.
    fn expected(&self, number: usize, event: &Event, unlinked: bool) -> Event {
        let operation = &self.plan.operations[number];
        let is_get = operation.kind == Kind::Get;
        let (_, target) = self.plan.ends(number);
        let (handle, user_ptr) = (event.md(), number as u64);
        let md = EventMd { handle, user_ptr, options: MdOptions::NONE, status: Status::Ok, unlinked };
        let (to, from) = self.plan.ends_told(number, |ends| {
            event.origin().is_none_or(|origin| (origin.target, origin.initiator) == *ends)
        });
        let origin = Origin { target: to, initiator: from, source: from.nid, sender: from.nid };
        let Operation { portal, match_bits, length_bytes, .. } = *operation;
        let manipulated_bytes = operation.moved_bytes();
        match event.kind() {
            EventKind::Send => Event::Send {
                md,
                message_type: if is_get { MessageType::Get } else { MessageType::Put },
                target,
                portal,
                match_bits,
                hdr_data: if is_get { 0 } else { Plan::hdr_data(number) },
                length_bytes,
                offset_bytes: operation.offset.unwrap_or(0),
            },
            EventKind::Ack => Event::Ack { md, origin, match_bits, manipulated_bytes },
            EventKind::Reply => {
                let requested_bytes = manipulated_bytes;
                Event::Reply { md, origin, requested_bytes, manipulated_bytes, offset_bytes: 0 }
            }
            kind => panic!("operation {number}: an event of kind {kind:?} at the initiator"),
        }
    }
}
