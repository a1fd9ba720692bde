//! The application looks at its events.
//!
//! Invariants: an event belongs to a descriptor that has not had its last one; each of a message comes
//! once in a life.

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{PING_MATCH_BITS, Status};
use lnet_core::md::MdOptions;

use super::Bug;
use super::app::NO_OPERATION;
use super::ledger::{Leg, STRANGE};
use super::memory::{Region, differs};
use super::world::World;

impl World {
    /// Looks at the events of a shard.
    pub(super) fn poll_events(&mut self, node: usize, shard: usize) {
        let Some(lane) = self.nodes[node].lanes.get_mut(shard) else { return };
        lane.is_polled = false;
        for queue in lane.queues.clone() {
            while let Some(event) = self.nodes[node].lanes[shard].shard.poll_event(queue) {
                self.trace.say(|| {
                    format!(
                        "node {node}/{shard} event {:?} {:?} {:?}",
                        event.kind(),
                        event.md(),
                        event.status()
                    )
                });
                let is_answer = matches!(event.kind(), EventKind::Ack | EventKind::Reply);
                // Without the last event of a descriptor its operation would not end, as others find.
                if is_answer && !event.unlinked() && self.bugs.strike(Bug::EventLost, &mut self.random) {
                    continue;
                }
                self.event(node, &event);
            }
        }
        self.request_turn(node, shard, self.now + 1);
    }

    fn event(&mut self, node: usize, event: &Event) {
        let operation = match *event {
            // Pings and pushes have the same bits at all nodes.
            Event::Send { match_bits: PING_MATCH_BITS, .. }
            | Event::Ack { match_bits: PING_MATCH_BITS, .. } => Some(event.user_ptr() as u32),
            Event::Send { match_bits, .. }
            | Event::Get { match_bits, .. }
            | Event::Ack { match_bits, .. } => Some((match_bits >> 32) as u32),
            Event::Put { hdr_data, .. } => Some(hdr_data as u32),
            Event::Reply { .. } => Some(event.user_ptr() as u32),
            Event::Unlink { .. } => None,
        };
        let operation = operation.filter(|number| *number != STRANGE);
        if let Some(number) = operation {
            let gentle = self.plan.gentle;
            let Some(operation) = self.ledger.operations.get_mut(number as usize) else {
                return self.ledger.fail("events are of operations", || format!("{event:?}"));
            };
            if event.kind() == EventKind::Put && event.options().contains(MdOptions::ACK_DISABLE) {
                operation.awaits = false;
            }
            let once = match event.kind() {
                EventKind::Send => {
                    operation.send_events += 1;
                    operation.send_events == 1
                }
                EventKind::Put | EventKind::Get => self.ledger.has_event((number, Leg::Request)),
                _ => self.ledger.has_event((number, Leg::Response)),
            };
            let operation = &self.ledger.operations[number as usize];
            let answered = !operation.awaits || operation.answered.is_some_and(|taken| taken.events != 0);
            self.ledger.expect(once, "each event comes once", || format!("operation {number}: {event:?}"));
            // A descriptor that ends by itself, and well, has taken its answer.
            let ends_well =
                event.unlinked() && event.user_ptr() == u64::from(number) && event.status() == Status::Ok;
            let holds = answered || !ends_well;
            self.ledger.expect(holds, "events are never lost", || format!("operation {number}: {event:?}"));
            if event.kind() == EventKind::Send {
                self.unsent.remove(&number);
                let is_hostile = self.ledger.operations[number as usize].is_hostile;
                let fine = !gentle || is_hostile || event.status() == Status::Ok;
                self.ledger
                    .expect(fine, "what can arrive does arrive", || format!("operation {number}: {event:?}"));
            }
        }
        self.check_event(node, event, operation);
        self.note_service(node, event);
        if event.unlinked() {
            self.nodes[node].memory.end(event.md());
            if event.user_ptr() != NO_OPERATION {
                self.open.remove(&(event.user_ptr() as u32));
            }
        }
    }

    fn check_event(&mut self, node: usize, event: &Event, operation: Option<u32>) {
        let Some(region) = self.nodes[node].memory.get(event.md()) else {
            return self.ledger.fail("the unlinked mark is last", || format!("{event:?}"));
        };
        let Region::Sink { bytes, overlaps: false } = region else { return };
        let Some(operation) = operation.filter(|_| event.status() == Status::Ok) else { return };
        let operation = &self.ledger.operations[operation as usize];
        if operation.is_of_node {
            return;
        }
        let pattern = match event.kind() {
            EventKind::Put => Some((operation.seed, operation.offset)),
            EventKind::Reply => operation.source,
            _ => None,
        };
        let Some((seed, offset)) = pattern else { return };
        let Some(span) = event.payload() else { return };
        let start = span.offset_bytes as usize;
        if event.kind() == EventKind::Reply {
            let (before, rest) = bytes.split_at(start);
            let is_untouched =
                before.iter().chain(&rest[span.length_bytes as usize..]).all(|byte| *byte == 0);
            let is_in_part = span.offset_bytes == operation.offset && is_untouched;
            self.ledger.expect(is_in_part, "a REPLY fills its part alone", || format!("{event:?}"));
        }
        let found = &bytes[start..start + span.length_bytes as usize];
        if let Some(at) = differs(seed, offset, found) {
            self.ledger.fail("payload stays as it arrived", || format!("differs at byte {at}: {event:?}"));
        }
    }
}
